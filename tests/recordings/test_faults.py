"""Every class of damage is rejected or salvaged with its own reason code."""

import io
import os
import pickle
import struct

import numpy as np
import pytest
from damage import chunk, encoded, noise, pcm16, wav

from mast_ray.recordings.decoding.faults import Reason, UnreadableRecording, reasons_line
from mast_ray.recordings.decoding.reading import open_recording

BODY = pcm16(noise())
FLAC = encoded(noise(20.0), container="FLAC")


def outcome(content):
    """(reason or None, readable seconds or None) of reading a whole recording."""
    try:
        with open_recording(io.BytesIO(content)) as reading:
            blocks = list(reading.blocks(1.0))
    except UnreadableRecording as error:
        return error.reason, None
    assert all(np.isfinite(block).all() for block in blocks)
    return (
        (reading.salvage.reason, reading.salvage.readable_s)
        if reading.salvage
        else (None, reading.duration_s)
    )


def with_nan(at_frame):
    samples = noise()[:, 0].copy()
    samples[at_frame] = np.nan
    return wav(samples.astype("<f4").tobytes(), bits=32, tag=3)


def flipped(content, position):
    damaged = bytearray(content)
    damaged[position] ^= 0x55
    return bytes(damaged)


REJECTED = {
    "zero length": (b"", Reason.EMPTY_FILE),
    "header only": (wav(b"", declared_bytes=96_000), Reason.HEADER_ONLY),
    "empty data chunk before another chunk": (wav(b"", after=chunk(b"LIST", b"INFO")), Reason.HEADER_ONLY),
    "riff cut inside the header": (wav(BODY)[:20], Reason.HEADER_ONLY),
    "flac header only": (FLAC[:42], Reason.HEADER_ONLY),
    "html": (b"<!DOCTYPE html><html><body>404 not found</body></html>", Reason.NOT_AUDIO),
    "zip": (b"PK\x03\x04" + bytes(100), Reason.NOT_AUDIO),
    "all zeros": (bytes(5000), Reason.NOT_AUDIO),
    "riff avi": (b"RIFF\x00\x01\x00\x00AVI LIST" + bytes(100), Reason.NOT_AUDIO),
    "apple double": (b"\x00\x05\x16\x07\x00\x02\x00\x00Mac OS X        " + bytes(60), Reason.APPLE_DOUBLE),
    "no channels": (wav(BODY, num_channels=0), Reason.NO_CHANNELS),
    "no sample rate": (wav(BODY, rate_hz=0), Reason.NO_SAMPLE_RATE),
    "4 kHz": (wav(BODY, rate_hz=4_000), Reason.RATE_TOO_LOW),
    "2 MHz": (wav(BODY, rate_hz=2_000_000), Reason.RATE_TOO_HIGH),
    "999 channels": (wav(BODY, num_channels=999), Reason.BAD_HEADER),
    "not a number from the start": (with_nan(0), Reason.NON_FINITE),
    "five samples": (wav(BODY[:10]), Reason.TOO_SHORT),
    "never written": (wav(bytes(96_000)), Reason.SILENT),
    "m4a": (b"\x00\x00\x00\x20ftypM4A " + bytes(100), Reason.UNSUPPORTED_FORMAT),
    "wac": (b"WAac\x02\x01" + bytes(100), Reason.UNSUPPORTED_FORMAT),
    "mp3 tag without sound": (b"ID3\x04\x00\x00\x00\x00\x00\x0a" + bytes(10), Reason.HEADER_ONLY),
    "mp3 tag before noise": (b"ID3\x04\x00\x00\x00\x00\x00\x0a" + bytes(500), Reason.NOT_AUDIO),
}

SALVAGED = {
    "wav cut in the middle": (wav(BODY)[: 44 + 48_000], Reason.TRUNCATED, 1.5),
    "flac cut in the middle": (FLAC[: len(FLAC) // 2], Reason.TRUNCATED, 9.9),
    "ogg cut in the middle": (encoded(noise(20.0), container="OGG")[:-9_000], Reason.TRUNCATED, 10.0),
    "aiff cut in the middle": (encoded(noise(), container="AIFF")[:48_000], Reason.TRUNCATED, 1.49),
    "mp3 cut in the middle": (encoded(noise(20.0), container="MP3")[:40_000], Reason.TRUNCATED, 9.0),
    "data size 0": (wav(BODY, declared_bytes=0), Reason.DATA_SIZE_ZERO, 3.0),
    "data size FFFFFFFF": (wav(BODY, declared_bytes=0xFFFFFFFF), Reason.DATA_SIZE_UNKNOWN, 3.0),
    "data size of a sox pipe": (wav(BODY, declared_bytes=0x7FFFF000), Reason.DATA_SIZE_UNKNOWN, 3.0),
    "data size as it was a minute before": (wav(BODY, declared_bytes=32_000), Reason.DATA_SIZE_UNKNOWN, 3.0),
    "aifc of floats cut in the middle": (
        encoded(noise(), container="AIFF", subtype="FLOAT")[:96_000], Reason.TRUNCATED, 1.49
    ),
    "aifc of mu-law cut in the middle": (
        encoded(noise(), container="AIFF", subtype="ULAW")[:24_000], Reason.TRUNCATED, 1.49
    ),
    "zero tail": (wav(BODY[:48_000] + bytes(48_000)), Reason.ZERO_TAIL, 1.5),
    "not a number after two seconds": (with_nan(32_000), Reason.NON_FINITE, 2.0),
    "flac with one flipped byte": (flipped(FLAC, len(FLAC) // 2), Reason.CORRUPT_STREAM, 19.0),
    "ogg with one flipped byte": (
        flipped(encoded(noise(20.0), container="OGG"), 60_000), Reason.CORRUPT_STREAM, 17.0
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", REJECTED)
def test_a_hopeless_file_is_rejected_with_its_reason(name):
    content, reason = REJECTED[name]
    assert outcome(content) == (reason, None)


@pytest.mark.parametrize("name", SALVAGED)
def test_a_damaged_file_is_salvaged_and_says_so(name):
    content, reason, at_least_s = SALVAGED[name]
    got_reason, readable_s = outcome(content)
    assert got_reason == reason
    assert readable_s >= at_least_s


@pytest.mark.parametrize(
    "content",
    [
        wav(BODY),
        wav(BODY, after=chunk(b"guan", b"GUANO|Version: 1.0")),
        wav(
            BODY[:-16_000] + bytes(16_000)
        ),  # half a second of digital silence is a faded clip, not an unwritten tail
        wav(BODY, after=bytes(50_000)),
        wav(BODY + b"\1", after=chunk(b"LIST", b"INFO" + bytes(50_000))),
        wav(BODY, rate_hz=8_000),
        encoded(noise(), container="FLAC"),
        encoded(noise(), container="OGG"),
        encoded(noise(), container="OGG", subtype="OPUS"),
        encoded(noise(), container="MP3"),
        encoded(noise(), container="AIFF"),
        encoded(noise(), container="AIFF", subtype="FLOAT"),
        encoded(noise(), container="AIFF", subtype="ULAW"),
    ],
    ids=[
        "wav",
        "wav with a chunk behind",
        "short silence",
        "zeros behind",
        "odd size",
        "8 kHz",
        "flac",
        "vorbis",
        "opus",
        "mp3",
        "aiff",
        "aifc of floats",
        "aifc of mu-law",
    ],
)
def test_a_whole_file_is_not_flagged(content):
    reason, duration_s = outcome(content)
    assert reason is None
    assert duration_s >= 2.9


def test_a_damaged_stretch_of_flac_keeps_the_times_of_what_follows():
    with open_recording(io.BytesIO(flipped(FLAC, len(FLAC) // 2))) as reading:
        got = np.concatenate(list(reading.blocks()))
    with open_recording(io.BytesIO(FLAC)) as reading:
        want = np.concatenate(list(reading.blocks()))
    assert len(got) == len(want)
    differs = np.flatnonzero(got != want)
    assert differs[-1] - differs[0] < 16_000  # one place, less than a second
    np.testing.assert_array_equal(got[differs[-1] + 1 :], want[differs[-1] + 1 :])


@pytest.mark.parametrize("share", [0.1, 0.5, 0.9, 0.999])
@pytest.mark.parametrize("container", ["WAV", "FLAC"])
def test_at_least_99_percent_of_a_truncated_file_is_kept(container, share):
    content = encoded(noise(60.0), container=container)
    reason, readable_s = outcome(content[: round(len(content) * share)])
    assert reason == Reason.TRUNCATED
    assert readable_s >= 0.99 * 60.0 * share - 0.3  # a FLAC frame that was cut cannot be read


def test_folders_missing_files_and_pipes_are_no_recordings(tmp_path):
    folder = tmp_path / "x.wav"
    folder.mkdir()
    pipe = tmp_path / "pipe.wav"
    os.mkfifo(pipe)
    for path, reason in (
        (folder, Reason.NOT_A_FILE),
        (pipe, Reason.NOT_A_FILE),
        (tmp_path / "no.wav", Reason.MISSING),
    ):
        with pytest.raises(UnreadableRecording) as caught:
            open_recording(path)
        assert caught.value.reason == reason


def test_the_exception_survives_pickling():
    error = pickle.loads(pickle.dumps(UnreadableRecording(Reason.TRUNCATED, "half is gone")))
    assert (error.reason, error.detail, str(error)) == (
        Reason.TRUNCATED,
        "half is gone",
        "TRUNCATED: half is gone",
    )


def test_three_hundred_mutated_files_raise_nothing_else(record_property):
    rng = np.random.default_rng(12)
    short = noise(0.5)
    seeds = [
        wav(pcm16(short), after=chunk(b"guan", b"GUANO|Version: 1.0\nTimestamp: 2020-01-01T00:00:00Z")),
        *(encoded(short, container=c) for c in ("FLAC", "OGG", "MP3", "AIFF", "RF64")),
        encoded(short, subtype="IMA_ADPCM"),
        encoded(short, container="OGG", subtype="OPUS"),
    ]
    outcomes = []
    record_property("figure", "304 mutated files")
    for trial in range(304):
        content = bytearray(seeds[trial % len(seeds)])
        for _ in range(int(rng.integers(1, 12))):
            position = int(rng.integers(0, min(len(content), 200 if rng.random() < 0.6 else len(content))))
            content[position] = int(rng.integers(0, 256))
        if rng.random() < 0.2:
            content = content[: int(rng.integers(0, len(content)))]
        outcomes.append(outcome(bytes(content))[0])
    assert len(outcomes) == 304
    assert {None, Reason.TRUNCATED} <= set(outcomes)


def test_the_size_in_the_header_is_believed_only_as_far_as_the_file_goes():
    content = wav(BODY, declared_bytes=len(BODY) + 1)  # off by less than a sample: no fault
    assert outcome(content) == (None, 3.0)
    content = bytearray(wav(BODY))
    struct.pack_into("<I", content, 4, 1)  # a wrong RIFF size alone does no harm
    assert outcome(bytes(content)) == (None, 3.0)


def test_reasons_are_named_with_the_setting_that_would_take_the_recording():
    reasons = ["NOT_AUDIO", "TOO_SHORT", "TOO_SHORT", "RATE_TOO_LOW"]
    assert reasons_line(reasons, "out/rejects.parquet") == (
        "rejected: TOO_SHORT 2 (audio.min_seconds), NOT_AUDIO 1, RATE_TOO_LOW 1 (audio.min_sample_rate_hz); "
        "see out/rejects.parquet"
    )
    assert reasons_line([], "out/rejects.parquet") == ""
