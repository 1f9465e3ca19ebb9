"""A FLAC whose header states less than it holds is read to its end, and it is said."""

import io

import numpy as np
import pytest
import soundfile

from mast_ray.recordings.decoding.faults import Reason
from mast_ray.recordings.decoding.flac_frames import last_known_sample
from mast_ray.recordings.decoding.reading import open_recording

SECONDS = 3


def flac(rate_hz: int, channels: int, subtype: str, stated_s: float) -> bytes:
    """Three seconds of noise under a header that states another length; 0: none."""
    noise = 0.1 * np.random.default_rng(0).standard_normal((rate_hz * SECONDS, channels))
    file = io.BytesIO()
    soundfile.write(file, noise, rate_hz, format="FLAC", subtype=subtype)
    data = bytearray(file.getvalue())
    packed = int.from_bytes(data[18:26], "big") >> 36 << 36 | round(stated_s * rate_hz)
    data[18:26] = packed.to_bytes(8, "big")
    return bytes(data)


def heard(source):
    with open_recording(source) as reading:
        samples = np.concatenate(list(reading.blocks()))
        return len(samples), reading.fingerprint, reading.salvage


@pytest.mark.parametrize(
    ("rate_hz", "channels", "subtype"), [(16_000, 1, "PCM_16"), (48_000, 2, "PCM_24"), (8_000, 1, "PCM_16")]
)
@pytest.mark.parametrize("by_path", [True, False])
def test_what_lies_behind_the_stated_end_is_read_and_said(tmp_path, rate_hz, channels, subtype, by_path):
    def source(stated_s: float):
        data = flac(rate_hz, channels, subtype, stated_s)
        path = tmp_path / f"{stated_s}.flac"
        path.write_bytes(data)
        return path if by_path else io.BytesIO(data)

    whole = heard(source(SECONDS))
    assert whole[0] == SECONDS * 16_000 and whole[2] is None
    *short, salvage = heard(source(1.0))
    assert short == list(whole[:2])
    assert salvage is not None and salvage.reason is Reason.DATA_SIZE_UNKNOWN
    assert salvage.detail == "the header states 1.000 s, and the file goes on"
    assert heard(source(0.0)) == whole  # states no length: nothing is wrong with it


def test_a_flac_that_ends_before_its_stated_end_is_cut_short_as_before():
    data = flac(16_000, 1, "PCM_16", 2 * SECONDS)
    assert heard(io.BytesIO(data))[2].reason is Reason.TRUNCATED


def test_frames_are_counted_by_what_their_headers_state():
    data = flac(16_000, 1, "PCM_16", SECONDS)
    block = int.from_bytes(data[10:12], "big")
    assert last_known_sample(io.BytesIO(data), len(data)) == (SECONDS * 16_000 - 1) // block * block
    assert last_known_sample(io.BytesIO(b"RIFF" + bytes(60)), 64) == -1
    noise = np.random.default_rng(1).integers(0, 256, 1 << 20, np.uint8).tobytes()
    assert (
        last_known_sample(io.BytesIO(data[:26] + noise), 26 + len(noise)) == -1
    )  # sync bytes come by chance
