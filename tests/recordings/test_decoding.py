"""Reading recordings in blocks: exact times, bounded memory, equal samples from every door."""

import io
import os
import re
import subprocess
import sys

import numpy as np
import pytest
import soundfile
import soxr
from damage import encoded, noise, pcm16, wav

from mast_ray.recordings.decoding.faults import Reason, UnreadableRecording
from mast_ray.recordings.decoding.reading import Limits, mean_of, open_recording, probe, read_blocks


def read_all(source, **options):
    return np.concatenate(list(read_blocks(source, **options)))


@pytest.mark.parametrize("rate_hz", [8_000, 11_025, 22_050, 44_100, 48_000, 250_000, 384_000])
def test_resampling_equals_soxr_on_the_whole_signal(rate_hz):
    samples = noise(2.0, rate_hz)
    got = read_all(io.BytesIO(wav(pcm16(samples), rate_hz=rate_hz)))
    whole = np.rint(samples[:, 0] * 32767).astype(np.int16).astype(np.float32) / 32768
    want = soxr.resample(whole, rate_hz, 16_000, quality="HQ")
    assert len(got) == len(want) == 32_000
    np.testing.assert_allclose(got, want, atol=2e-6)


def test_samples_and_fingerprint_do_not_depend_on_the_block_length():
    content = encoded(noise(9.7, 44_100, 2), 44_100, "FLAC")
    results = []
    for block_s in (0.013, 1.0, 60.0):
        with open_recording(io.BytesIO(content)) as reading:
            blocks = list(reading.blocks(block_s))
            results.append((np.concatenate(blocks), reading.fingerprint))
        assert {len(block) for block in blocks[:-1]} <= {round(block_s * 16_000)}
    for samples, fingerprint in results[1:]:
        np.testing.assert_array_equal(samples, results[0][0])
        assert fingerprint == results[0][1]


@pytest.mark.slow
def test_a_click_keeps_its_time_after_twenty_minutes_at_an_awkward_rate():
    rate_hz, at_s = 44_100, 1_199.0
    samples = np.zeros(1_200 * rate_hz, np.int16)
    samples[0], samples[round(at_s * rate_hz)] = 1, 30_000
    got = read_all(io.BytesIO(wav(samples.tobytes() + b"\1\0", rate_hz=rate_hz)), block_s=60.0)
    assert abs(int(np.argmax(np.abs(got))) - round(at_s * 16_000)) <= 1


def test_stereo_is_averaged_or_one_channel_is_taken():
    left, right = noise(1.0, seed=1), noise(1.0, seed=2)
    content = encoded(np.hstack([left, right]), subtype="FLOAT")
    np.testing.assert_allclose(read_all(io.BytesIO(content)), (left + right)[:, 0] / 2, atol=1e-7)
    np.testing.assert_array_equal(read_all(io.BytesIO(content), channel=1), right[:, 0])
    with pytest.raises(UnreadableRecording) as caught:
        open_recording(io.BytesIO(content), channel=2)
    assert caught.value.reason == Reason.NO_CHANNELS


def test_a_path_and_an_open_file_give_the_same(tmp_path):
    path = tmp_path / "a.flac"
    path.write_bytes(encoded(noise(), container="FLAC"))
    with path.open("rb") as file:
        np.testing.assert_array_equal(read_all(path), read_all(file))
        assert not file.closed


@pytest.mark.parametrize(
    ("container", "subtype"), [("WAV", "PCM_16"), ("FLAC", "PCM_16"), ("AIFF", "PCM_16"), ("WAV", "PCM_24")]
)
def test_the_same_sound_in_lossless_files_has_one_fingerprint(container, subtype):
    exact = (np.rint(noise() * 32767) / 32768).astype(np.float32)

    def fingerprint(content):
        with open_recording(io.BytesIO(content)) as reading:
            list(reading.blocks())
            return reading.fingerprint

    assert fingerprint(encoded(exact, container=container, subtype=subtype)) == fingerprint(
        wav(pcm16(exact * 32768 / 32767))
    )
    assert fingerprint(encoded(noise(seed=5))) != fingerprint(encoded(noise()))


def test_probe_tells_rate_channels_and_length_without_decoding():
    info = probe(io.BytesIO(wav(pcm16(noise(2.0, 48_000, 2)), rate_hz=48_000, num_channels=2)))
    assert (info.container, info.codec, info.sample_rate_hz, info.num_channels) == (
        "WAV",
        "PCM_16",
        48_000,
        2,
    )
    assert info.declared_frames == info.readable_frames == 96_000
    assert info.duration_s == 2.0
    assert info.fault is None


def test_mp3_read_in_pieces_equals_mp3_read_whole():
    content = encoded(
        noise(70.0), container="MP3"
    )  # several pieces: soundfile's own seek would break the bit reservoir
    whole, _ = soundfile.read(io.BytesIO(content), dtype="float32")
    np.testing.assert_allclose(read_all(io.BytesIO(content)), whole, atol=1e-6)


@pytest.mark.parametrize("container", ["WAV", "FLAC", "OGG", "MP3", "AIFF"])
def test_a_remote_file_that_answers_in_small_portions_is_read_whole(container):
    class Portions(io.BytesIO):
        def read(self, count=-1):
            return super().read(min(count, 1000) if count >= 0 else 1000)

    content = encoded(noise(), container=container)
    np.testing.assert_array_equal(read_all(Portions(content)), read_all(io.BytesIO(content)))


def test_a_storage_error_is_not_taken_for_a_short_recording():
    class Failing(io.BytesIO):
        def read(self, count=-1):
            if self.tell() > 50_000:
                raise ConnectionResetError("the store went away")
            return super().read(count)

    content = encoded(noise(20.0), container="FLAC")
    with pytest.raises(ConnectionResetError):
        read_all(Failing(content))


def test_an_rf64_file_is_read(tmp_path):
    path = tmp_path / "big.wav"
    soundfile.write(path, noise(), 16_000, format="RF64")
    with open_recording(path) as reading:
        assert sum(len(block) for block in reading.blocks()) == 48_000
        assert reading.salvage is None


def test_a_flac_bomb_is_refused_before_it_unfolds():
    limits = Limits(min_bomb_bytes=1 << 20, max_expansion=20.0)
    content = encoded(np.zeros((16_000 * 120, 1), np.float32), container="FLAC")
    assert len(content) < 100_000
    with pytest.raises(UnreadableRecording) as caught:
        open_recording(io.BytesIO(content), limits=limits)
    assert caught.value.reason == Reason.DECOMPRESSION_BOMB


def test_a_flac_bomb_that_hides_its_length_is_stopped_on_the_way():
    content = bytearray(encoded(np.zeros((16_000 * 120, 1), np.float32), container="FLAC"))
    content[21] &= 0xF0
    content[22:26] = bytes(4)  # total samples: unknown
    limits = Limits(min_bomb_bytes=1 << 20, max_expansion=20.0)
    with pytest.raises(UnreadableRecording) as caught:
        read_all(io.BytesIO(bytes(content)), limits=limits)
    assert caught.value.reason == Reason.DECOMPRESSION_BOMB


def test_a_recording_longer_than_the_limit_is_refused():
    with pytest.raises(UnreadableRecording) as caught:
        probe(io.BytesIO(encoded(noise(3.0))), limits=Limits(max_duration_s=2.0))
    assert caught.value.reason == Reason.TOO_LONG


_MEMORY = """
import sys
import numpy as np
from mast_ray.recordings.decoding.reading import open_recording
with open_recording(sys.argv[1]) as reading:
    for block in reading.blocks():
        pass
peak_kb = next(line.split()[1] for line in open("/proc/self/status") if line.startswith("VmHWM"))
print(reading.num_samples, reading.num_samples - len(block) + int(np.argmax(np.abs(block))), peak_kb, reading.salvage.reason)
"""


@pytest.mark.slow
@pytest.mark.skipif(not os.path.exists("/proc/self/status"), reason="peak memory is read from /proc")
def test_a_24_hour_file_is_read_in_under_500_mb_with_exact_times(tmp_path):
    rate_hz, num_seconds = 48_000, 24 * 3600
    path = tmp_path / "day.wav"
    header = wav(b"", rate_hz=rate_hz)[:40] + b"\xff\xff\xff\xff"  # 8.3 GB do not fit into 32 bits
    # a sparse file: only a click one second before the end, and the end, are written
    with path.open("wb") as file:
        file.write(header)
        file.seek(len(header) + (num_seconds - 1) * rate_hz * 2)
        file.write(np.array([30_000], "<i2").tobytes())
        file.seek(len(header) + num_seconds * rate_hz * 2 - 2)
        file.write(b"\1\0")
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", _MEMORY, path]
    run = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    num_samples, click, peak_kb, reason = run.stdout.split()
    assert int(num_samples) == 16_000 * num_seconds
    assert abs(int(click) - 16_000 * (num_seconds - 1)) <= 1
    assert int(peak_kb) < 500_000
    assert reason == Reason.DATA_SIZE_UNKNOWN


def layer_two(num_frames, kbits_index=8, version=3):
    """MPEG layer II, mono, by hand: 15 levels in the lowest subband and nothing in the others.

    48 kHz, 128 kbit/s (or 24 kHz, 64 kbit/s of MPEG 2): 384 bytes a frame, allocation of 27 (30) subbands, one scale
    factor, 36 samples of which every other is positive: a tone at the upper edge of the subband.
    """
    header = bytes([0xFF, 0xE5 | version << 3, kbits_index << 4 | 1 << 2, 0xC0])
    # index of 15 levels, then nothing: 11 x 4 + 12 x 3 + 4 x 2 bits, or 4 x 4 + 7 x 3 + 19 x 2 of MPEG 2
    allocation = f"{3:04b}" + "0" * 84 if version == 3 else f"{5:04b}" + "0" * 71
    samples = "".join(f"{code:04b}" for code in (13, 1) * 18)
    bits = allocation + "10" + f"{6:06b}" + samples  # one scale factor for all three parts
    body = int(bits.ljust(380 * 8, "0"), 2).to_bytes(380, "big")
    return (header + body) * num_frames


@pytest.mark.parametrize(("version", "rate_hz"), [(3, 48_000), (2, 24_000)])
def test_mpeg_layer_two_is_decoded_whatever_its_name(tmp_path, version, rate_hz):
    (tmp_path / "x.mp3").write_bytes(layer_two(50, version=version))
    with open_recording(tmp_path / "x.mp3") as reading:
        sound = np.concatenate(list(reading.blocks(1.0)))
    assert (reading.info.sample_rate_hz, reading.info.container) == (rate_hz, "MP3")
    assert reading.duration_s == pytest.approx(50 * 1152 / rate_hz, abs=0.03) and reading.salvage is None
    peak_hz = np.argmax(np.abs(np.fft.rfft(sound))) * 16_000 / len(sound)
    assert peak_hz == pytest.approx(rate_hz / 64, rel=0.02)  # 32 subbands


@pytest.mark.parametrize("tag", [b"TAG" + bytes(125), b"TAG+" + bytes(223) + b"TAG" + bytes(125)])
def test_an_id3_tag_of_version_one_may_stand_before_the_sound(tag):
    content = encoded(noise(5.0), container="MP3")
    with open_recording(io.BytesIO(tag + content)) as reading, open_recording(io.BytesIO(content)) as plain:
        assert np.array_equal(np.concatenate(list(reading.blocks())), np.concatenate(list(plain.blocks())))
    with open_recording(io.BytesIO(tag + layer_two(30))) as reading:
        assert len(np.concatenate(list(reading.blocks()))) > 10_000


def test_a_recording_of_fish_at_four_kilohertz_is_taken_when_asked_for():
    content = encoded(noise(5.0, rate_hz=4_000), rate_hz=4_000)
    with pytest.raises(UnreadableRecording, match=r"--set audio\.min_sample_rate_hz=4000"):
        open_recording(io.BytesIO(content), limits=Limits(min_rate_hz=8_000))
    with open_recording(io.BytesIO(content), limits=Limits(min_rate_hz=4_000)) as reading:
        assert len(np.concatenate(list(reading.blocks()))) == pytest.approx(5 * 16_000, abs=10)


def mixed(left, right, **options):
    """The salvage of a recording of two channels."""
    content = encoded(np.hstack([left, right]).astype(np.float32), subtype="FLOAT")
    with open_recording(io.BytesIO(content), **options) as reading:
        for _ in reading.blocks():
            pass
        return reading.salvage


def test_channels_that_cancel_each_other_are_said():
    sound, other = noise(3.0, seed=1), noise(3.0, seed=2)
    for right in (-sound, -0.9 * sound, -sound + 0.01 * other):
        salvage = mixed(sound, right)
        assert salvage is not None and salvage.reason is Reason.CHANNELS_CANCEL
        assert salvage.readable_s == 3.0 and "2 channels" in salvage.detail
    # a constant offset of the recorder is no sound that would be left
    assert mixed(0.01 * sound + 0.2, -0.01 * sound + 0.2).reason is Reason.CHANNELS_CANCEL
    assert mixed(sound, -sound, channel=0) is None


def test_channels_that_cancel_each_other_in_a_part_are_said_with_the_part():
    quiet, loud = 0.01 * noise(20.0, seed=1), noise(10.0, seed=2)
    sound = np.vstack([loud, quiet, loud])  # 40 s; what is lost is faint beside the rest
    sign = np.ones_like(sound)
    sign[160_000:480_000] = -1
    salvage = mixed(sound, sign * sound)
    assert salvage is not None and salvage.reason is Reason.CHANNELS_CANCEL and salvage.readable_s == 40.0
    seconds = re.search(r"in opposite phase in (\d+) of 40 s, from (\d+) s on", salvage.detail)
    assert (
        seconds and 14 <= int(seconds[1]) <= 20 and 10 <= int(seconds[2]) <= 15
    )  # in stretches of five seconds
    sign[:] = 1
    sign[160_000:230_000] = -1  # four seconds
    assert mixed(sound, sign * sound) is None


def test_channels_that_leave_something_in_their_mean_are_not_flagged():
    sound, other = noise(3.0, seed=1), noise(3.0, seed=2)
    silence, step = np.zeros_like(sound), np.sign(sound) / 40_000
    for left, right in (
        (sound, other),
        (sound, silence),
        (sound, -0.5 * sound),
        (sound, sound),
        (step, -step),
    ):
        assert mixed(left, right) is None
    eight = encoded(noise(3.0, num_channels=8), subtype="FLOAT")
    with open_recording(io.BytesIO(eight)) as reading:
        assert sum(len(block) for block in reading.blocks()) == 48_000
        assert reading.salvage is None


def test_a_cut_recording_whose_channels_cancel_says_both():
    sound = noise(3.0, seed=1)
    content = wav(pcm16(np.hstack([sound, -sound])), num_channels=2)[:-64_000]
    with open_recording(io.BytesIO(content)) as reading:
        assert sum(len(block) for block in reading.blocks()) == 32_000
    assert reading.salvage.reason is Reason.CHANNELS_CANCEL and "missing" in reading.salvage.detail


@pytest.mark.parametrize("num_channels", [1, 2, 3, 8])
def test_the_mean_is_that_of_numpy(num_channels):
    piece = noise(2.0, num_channels=num_channels) * np.float32(1e-40)
    for samples in (piece, noise(2.0, num_channels=num_channels)):
        np.testing.assert_array_equal(mean_of(samples), samples.mean(axis=1, dtype=np.float32))
