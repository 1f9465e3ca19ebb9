"""How recordings become segments and chunks, and boxes go along."""

import numpy as np
import pytest
import torch
import torchaudio.compliance.kaldi
from hypothesis import given, settings
from hypothesis import strategies as st

from mast_ray.spectrogram import grid
from mast_ray.spectrogram.chunking import (
    SegmentStream,
    assemble_chunk,
    boxes_of_chunks,
    num_chunks_of,
    num_segments_of,
    segments_of_blocks,
)
from mast_ray.spectrogram.logmel import LOG_FLOOR, num_frames_of

HOP = 81_920


def audio(num_samples: int, seed: int = 0, offset: float = 0.0) -> np.ndarray:
    noise = np.random.default_rng(seed).standard_normal(num_samples) * 0.1
    return (noise + offset).astype(np.float32)


def kaldi(waveform: np.ndarray) -> np.ndarray:
    return torchaudio.compliance.kaldi.fbank(
        torch.from_numpy(waveform)[None], htk_compat=True, sample_frequency=16_000, use_energy=False,
        window_type="hanning", num_mel_bins=128, dither=0.0, frame_shift=10,
    ).numpy()  # fmt: skip


@pytest.mark.parametrize(
    ("seconds", "padded", "dropped"),
    [
        (0.5, 0, 0),
        (1.0, 1, 0),
        (5.004, 1, 0),
        (5.12, 1, 1),
        (10.23, 1, 1),
        (10.24, 2, 2),
        (15.4, 3, 3),
        (60.0, 11, 11),
    ],
)
def test_a_chunk_every_5_12_s_that_is_at_least_half_audio(seconds: float, padded: int, dropped: int) -> None:
    samples = round(seconds * 16_000)
    assert num_chunks_of(samples, "pad") == padded
    assert num_chunks_of(samples, "drop") == dropped
    assert num_segments_of(samples, "drop") == (dropped + 1 if dropped else 0)


def test_the_rule_agrees_with_walking_over_the_recording() -> None:
    for samples in range(0, 6 * HOP, 4_001):
        walked = sum(1 for start in range(0, samples, HOP) if samples - start >= HOP)
        assert num_chunks_of(samples, "drop") == walked


@pytest.mark.parametrize(
    "num_samples", [5 * 16_000, HOP, HOP + 100, 2 * HOP - 300, 2 * HOP, 3 * HOP + 40_000]
)
@pytest.mark.parametrize("offset", [0.0, 0.2])
def test_every_chunk_equals_fbank_of_the_mean_centred_zero_padded_chunk(
    num_samples: int, offset: float
) -> None:
    waveform = audio(num_samples, offset=offset)
    segments = list(segments_of_blocks([waveform]))
    assert [segment.index for segment in segments] == list(range(num_segments_of(num_samples)))
    for k in range(num_chunks_of(num_samples)):
        valid = waveform[k * HOP : k * HOP + grid.CHUNK_SAMPLES]
        padded = np.zeros(grid.CHUNK_SAMPLES, np.float32)
        padded[: len(valid)] = valid - valid.mean()
        chunk = assemble_chunk(segments[k].logmel, segments[k + 1].logmel)
        assert np.abs(chunk[:1022] - kaldi(padded)).max() < 1e-3


def test_frames_after_the_audio_are_silence_and_valid_frames_end_with_the_audio() -> None:
    num_samples = HOP + 16_000
    segments = list(segments_of_blocks([audio(num_samples)]))
    assert sum(segment.valid_frames for segment in segments) == num_frames_of(num_samples)
    assert [segment.valid_frames for segment in segments] == [512, 98]
    first_silent = -(-16_000 // 160)
    assert (segments[1].logmel[first_silent:] == np.float32(LOG_FLOOR)).all()
    assert (segments[1].logmel[:first_silent] > -10).any(axis=1).all()


@settings(max_examples=15, deadline=None)
@given(st.integers(0, 4 * HOP), st.lists(st.integers(1, 4 * HOP), max_size=6))
def test_segments_do_not_depend_on_how_the_recording_is_cut_into_blocks(
    num_samples: int, cuts: list[int]
) -> None:
    waveform = audio(num_samples, offset=0.1)
    whole = list(segments_of_blocks([waveform]))
    blocks = np.split(waveform, sorted(min(cut, num_samples) for cut in cuts))
    stream = SegmentStream()
    parts = [segment for block in blocks for segment in stream.push(block)] + stream.finish()
    assert stream.num_samples == num_samples
    assert [(s.index, s.valid_frames) for s in parts] == [(s.index, s.valid_frames) for s in whole]
    for one, other in zip(parts, whole, strict=True):
        assert np.abs(one.logmel - other.logmel).max() < 1e-5


def test_recordings_too_short_for_a_chunk_give_no_segment() -> None:
    assert list(segments_of_blocks([audio(15_000)], "pad")) == []
    assert list(segments_of_blocks([audio(5 * 16_000)], "drop")) == []
    assert len(list(segments_of_blocks([audio(5 * 16_000)], "pad"))) == 2
    assert list(segments_of_blocks([], "pad")) == []


def test_the_last_two_frames_are_real_in_field_and_zero_in_paper() -> None:
    segments = list(segments_of_blocks([audio(2 * HOP + 5_000)]))
    field = assemble_chunk(segments[0].logmel, segments[1].logmel, "real")
    paper = assemble_chunk(segments[0].logmel, segments[1].logmel, "zeros")
    assert (field[1022:] != 0).all() and (paper[1022:] == 0).all()
    assert np.array_equal(field[:1022], paper[:1022]) and field.shape == (1024, 128)
    with pytest.raises(AssertionError, match="dequantise"):
        assemble_chunk(np.zeros((512, 128), np.uint8), np.zeros((512, 128), np.uint8), "zeros")


def test_event_across_a_chunk_border_appears_in_both_chunks_clipped() -> None:
    found = boxes_of_chunks(np.array([[1000.0, 10, 1100, 20]]), num_chunks=4)
    assert found.chunk.tolist() == [0, 1, 2]
    assert found.corners[:, 0::2].tolist() == [[1000, 1024], [488, 588], [0, 76]]
    assert (found.corners[:, 1::2] == [10, 20]).all()


def test_a_truncated_remnant_under_100_ms_is_dropped_and_a_short_call_is_kept() -> None:
    cut = np.array([[1015.0, 10, 1100, 20]])  # 9 frames in chunk 0
    assert boxes_of_chunks(cut, 3).chunk.tolist() == [1, 2]
    assert boxes_of_chunks(cut, 3, shortest_remnant_frames=9).chunk.tolist() == [0, 1, 2]
    short = np.array([[1010.0, 10, 1015, 20]])  # 5 frames, whole in chunks 0 and 1
    assert boxes_of_chunks(short, 3).chunk.tolist() == [0, 1]
    short_and_cut = np.array([[1022.0, 10, 1027, 20]])
    assert boxes_of_chunks(short_and_cut, 3).chunk.tolist() == [1]


def test_a_call_longer_than_a_chunk_fills_the_chunks_it_crosses() -> None:
    found = boxes_of_chunks(np.array([[100.0, 10, 5000, 20]]), num_chunks=3)
    assert found.corners[:, 0::2].tolist() == [[100, 1024], [0, 1024], [0, 1024]]


boxes_in_recordings = st.lists(
    st.tuples(st.integers(0, 4000), st.integers(0, 120), st.integers(1, 3000), st.integers(1, 8)), max_size=12
)


@given(boxes_in_recordings, st.integers(1, 9))
def test_all_chunks_at_once_equal_a_walk_over_chunks_and_boxes(rows: list[tuple], num_chunks: int) -> None:
    boxes = np.array([[t, f, t + dt, f + df] for t, f, dt, df in rows], np.float64).reshape(-1, 4)
    found = boxes_of_chunks(boxes, num_chunks)
    expected = []
    for k in range(num_chunks):
        for number, (t0, f0, t1, f1) in enumerate(boxes):
            start, end = max(t0 - 512 * k, 0), min(t1 - 512 * k, 1024)
            is_cut = end - start != t1 - t0
            if end > start and not (is_cut and end - start < 10):
                expected.append((k, number, start, f0, end, f1))
    assert [
        (*pair, *box) for *pair, box in zip(found.chunk, found.origin, found.corners.tolist())
    ] == expected
