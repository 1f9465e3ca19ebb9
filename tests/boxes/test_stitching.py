"""Stitched recordings do not depend on where windows begin."""

import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mast_ray.boxes.stitching import merge_songs, stitch

WINDOW = 1024


def perfect_windows(
    calls: np.ndarray, num_frames: int, offset: int, hop: int = 512
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """What a perfect detector says in windows at offset + hop k: every call, clipped, 100 ms or whole."""
    starts, boxes, scores = [], [], []
    for start in range(offset - WINDOW + hop, num_frames, hop):
        for number, (t0, f0, t1, f1) in enumerate(calls):
            begin, end = max(t0, start), min(t1, start + WINDOW)
            if end - begin >= 10 or (end > begin and end - begin == t1 - t0):
                starts.append(start)
                boxes.append((begin, f0, end, f1))
                scores.append(0.5 + 0.4 * np.sin(number) ** 2)
    return np.array(starts), np.array(boxes, np.float64).reshape(-1, 4), np.array(scores)


@st.composite
def soundscapes(draw) -> tuple[np.ndarray, int]:
    """Calls in three bands, 10 frames or more apart within a band, from 5 frames to several windows long."""
    calls = []
    for low in (5, 40, 90):
        at = draw(st.integers(0, 300))
        for _ in range(draw(st.integers(0, 5))):
            length = draw(st.one_of(st.integers(5, 60), st.integers(60, 700), st.integers(700, 4000)))
            calls.append((at, low, at + length, low + draw(st.integers(3, 20))))
            at += length + draw(st.integers(10, 700))
    num_frames = int(max([call[2] for call in calls], default=0)) + draw(st.integers(0, 900))
    return np.array(sorted(calls), np.float64).reshape(-1, 4), num_frames


@settings(max_examples=60, deadline=None)
@given(soundscapes(), st.integers(0, 511))
def test_perfect_detections_give_the_calls_back_wherever_windows_begin(scene, offset: int) -> None:
    calls, num_frames = scene
    result = stitch(*perfect_windows(calls, num_frames, offset), num_frames)
    assert result.boxes.tolist() == calls.tolist()


@settings(max_examples=25, deadline=None)
@given(soundscapes(), st.integers(0, 255))
def test_a_denser_window_grid_gives_the_same_calls(scene, offset: int) -> None:
    calls, num_frames = scene
    result = stitch(*perfect_windows(calls, num_frames, offset, hop=256), num_frames)
    assert result.boxes.tolist() == calls.tolist()


@settings(max_examples=25, deadline=None)
@given(soundscapes(), st.integers(0, 511), st.integers(0, 1000))
def test_small_disagreement_between_windows_neither_doubles_nor_loses_a_call(
    scene, offset: int, seed: int
) -> None:
    calls, num_frames = scene
    calls = calls[calls[:, 2] - calls[:, 0] >= 20]  # shorter ones differ too much for an overlap of one half
    starts, boxes, scores = perfect_windows(calls, num_frames, offset)
    generator = np.random.default_rng(seed)
    boxes[:, 0::2] += generator.uniform(-1.5, 1.5, (len(boxes), 2))
    boxes[:, 0] = np.maximum(boxes[:, 0], starts)
    boxes[:, 2] = np.minimum(boxes[:, 2], starts + WINDOW)
    result = stitch(starts, boxes, scores * generator.uniform(0.8, 1.0, len(boxes)), num_frames)
    assert len(result.boxes) == len(calls)
    assert np.abs(np.sort(result.boxes[:, 0]) - np.sort(calls[:, 0])).max(initial=0) <= 6


def test_a_call_longer_than_a_window_comes_out_whole_with_its_best_score() -> None:
    starts = np.array([0, 512, 1024, 1536, 2048])
    boxes = np.array([[600, 10, 1024, 20], [600, 10, 1536, 20], [1024, 10, 2048, 21], [1536, 9, 2500, 20],
                      [2048, 10, 2500, 20]], float)  # fmt: skip
    result = stitch(starts, boxes, [0.6, 0.7, 0.8, 0.9, 0.75], num_frames=4000)
    assert result.boxes.tolist() == [[600, 9, 2500, 21]]
    assert result.scores.tolist() == [0.9] and result.source.tolist() == [3]


def test_windows_without_overlap_join_pieces_that_abut() -> None:
    boxes = [[900, 10, 1024, 20], [1024, 10, 1100, 20]]
    assert stitch([0, 1024], boxes, [0.9, 0.9], num_frames=4000).boxes.tolist() == [[900, 10, 1100, 20]]


def test_a_whole_call_is_taken_from_the_window_where_it_lies_most_central() -> None:
    # centres 752 and 812 of windows with their middles at 512 and 1024
    for left, right, most_central in ((700, 704, 0), (760, 764, 1)):
        boxes = [[left, 10, left + 100, 20], [right, 10, right + 100, 20]]
        result = stitch([0, 512], boxes, [0.8, 0.8], num_frames=4000)
        assert result.boxes.tolist() == [boxes[most_central]]


def test_a_weak_central_box_does_not_remove_a_clear_one() -> None:
    result = stitch([0, 512], [[700, 10, 800, 20], [720, 10, 820, 20]], [0.05, 0.9], num_frames=4000)
    assert result.scores.tolist() == [0.9]


def test_a_weak_whole_box_does_not_remove_a_clear_piece() -> None:
    result = stitch([0, 512], [[900, 10, 1024, 20], [880, 10, 1100, 20]], [0.9, 0.05], num_frames=4000)
    assert sorted(result.scores.tolist()) == [0.05, 0.9]


def test_a_weak_piece_inside_a_joined_call_is_left_out() -> None:
    starts = [0, 512, 1024, 512]
    boxes = [[600, 10, 1024, 20], [600, 10, 1536, 20], [1024, 10, 2000, 20], [1200, 10, 1536, 20]]
    result = stitch(starts, boxes, [0.9, 0.9, 0.9, 0.1], num_frames=4000)
    assert result.boxes.tolist() == [[600, 10, 2000, 20]]


def test_noise_at_the_score_floor_does_not_stretch_a_clear_call() -> None:
    starts, boxes = [0, 512, 1024], [[600, 10, 1024, 20], [600, 10, 1300, 20], [1024, 10, 2048, 20]]
    result = stitch(starts, boxes, [0.9, 0.9, 0.02], num_frames=8000)
    best = result.scores.argmax()
    assert result.boxes[best].tolist() == [600, 10, 1300, 20]


def test_boxes_of_one_window_are_never_merged_with_each_other() -> None:
    boxes = [[100, 10, 200, 20], [110, 10, 210, 20]]
    assert len(stitch([0, 0], boxes, [0.9, 0.8], num_frames=4000).boxes) == 2


def test_calls_at_the_very_ends_of_a_recording_are_not_pieces() -> None:
    # The window beside cuts the call and hears its band two bins higher: a piece would be joined to it, a whole call stays.
    beginning = stitch([0, 512], [[0, 10, 600, 20], [512, 10, 600, 22]], [0.9, 0.9], num_frames=4000)
    assert beginning.boxes.tolist() == [[0, 10, 600, 20]]
    end = stitch([512, 0], [[900, 10, 1536, 20], [900, 10, 1024, 22]], [0.9, 0.9], num_frames=1536)
    assert end.boxes.tolist() == [[900, 10, 1536, 20]]


def test_no_detections_give_none() -> None:
    result = stitch([], np.zeros((0, 4)), [], num_frames=4000)
    assert result.boxes.shape == (0, 4) and len(result.scores) == len(result.source) == 0
    assert merge_songs(np.zeros((0, 4)), [], 50).boxes.shape == (0, 4)


def test_calls_of_one_song_are_joined_by_gap_and_band() -> None:
    boxes = [[0, 10, 50, 20], [80, 10, 120, 20], [200, 10, 240, 20], [125, 60, 150, 70]]
    joined = merge_songs(boxes, [0.5, 0.9, 0.7, 0.6], gap_frames=30)
    assert joined.boxes.tolist() == [[0, 10, 120, 20], [125, 60, 150, 70], [200, 10, 240, 20]]
    assert joined.scores.tolist() == [0.9, 0.6, 0.7] and joined.source.tolist() == [1, 3, 2]
    other_band = [[0, 10, 50, 20], [60, 16, 100, 26]]  # 4 bins of 16 in common
    assert len(merge_songs(other_band, [0.5, 0.9], gap_frames=30).boxes) == 2
    touching = [[0, 10, 50, 20], [50, 10, 120, 20], [110, 10, 150, 20]]
    assert len(merge_songs(touching, [0.5, 0.9, 0.7], gap_frames=0).boxes) == 3


def test_a_hundred_thousand_detections_take_seconds() -> None:
    generator = np.random.default_rng(0)
    num_windows = 2_000
    starts = np.repeat(np.arange(num_windows) * 512, 50)
    begin = starts + generator.uniform(0, 1000, len(starts))
    low = generator.uniform(0, 110, len(starts))
    end = np.minimum(begin + generator.exponential(40, len(starts)) + 5, starts + 1024)
    boxes = np.stack((begin, low, end, low + generator.uniform(3, 15, len(starts))), axis=1)
    before = time.perf_counter()
    result = stitch(starts, boxes, generator.uniform(0.01, 1, len(starts)), num_windows * 512 + 512)
    assert time.perf_counter() - before < 10
    assert 50_000 < len(result.boxes) <= 100_000


@pytest.mark.parametrize("hop", [512, 256])
def test_stitching_twice_changes_nothing(hop: int) -> None:
    calls = np.array([[100, 10, 400, 30], [1500, 20, 4000, 50]], float)
    once = stitch(*perfect_windows(calls, 5000, 77, hop), 5000)
    again = stitch(np.zeros(len(once.boxes)), once.boxes, once.scores, 5000, window_frames=5000)
    assert again.boxes.tolist() == once.boxes.tolist() == calls.tolist()
