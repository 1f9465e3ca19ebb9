"""Rows of samples give the frames that segments hold, to the end of the recording."""

import numpy as np
import pytest
import torch

from mast_ray.spectrogram.chunking import SegmentStream
from mast_ray.spectrogram.logmel import logmel_on_device
from mast_ray.spectrogram.sample_segments import SampleSegments


@pytest.mark.parametrize(
    "num_samples", [16_000, 81_919, 81_920, 82_160, 100_000, 163_839, 163_840, 164_079, 300_001]
)
@pytest.mark.parametrize("block", [7_001, 10**6])
def test_frames_from_rows_are_those_of_segments(num_samples, block):
    sound = np.random.default_rng(0).standard_normal(num_samples).astype(np.float32) * 0.1 + 0.05
    stream, samples = SegmentStream(), SampleSegments()
    segments = [*stream.push(sound), *stream.finish()]
    rows = [samples.push(sound[at : at + block]) for at in range(0, num_samples, block)]
    rows = np.concatenate([*rows, samples.finish()])
    assert len(rows) == len(segments)
    got = logmel_on_device(torch.from_numpy(rows)).numpy()
    assert np.abs(got - np.stack([s.logmel for s in segments])).max() < 1e-3


def test_a_recording_too_short_for_a_chunk_has_no_rows():
    samples = SampleSegments("drop")
    assert len(samples.push(np.ones(40_000, np.float32))) == 0 and len(samples.finish()) == 0
