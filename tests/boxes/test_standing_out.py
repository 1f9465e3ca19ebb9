"""Boxes of what stands out, against blocks put where they are known to be."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mast_ray.boxes.standing_out import StandOut, closed, standing_out


def silence(num_frames: int = 200, num_bins: int = 64) -> np.ndarray:
    return np.zeros((num_frames, num_bins), np.float32)


def test_a_block_is_boxed_where_it_lies_and_its_level_is_given():
    level = silence()
    level[40:80, 20:30] = 20.0
    (corners,), (peak,) = standing_out(level)
    # averaged over 5 frames and 3 bins: a border's mean passes 6 dB one frame and (20 / 3 > 6) one bin outside
    np.testing.assert_allclose(corners, [39, 19, 81, 31], atol=1)
    assert peak == pytest.approx(20.0)


@pytest.mark.parametrize(("gap", "num_boxes"), [(40, 1), (70, 2)])
def test_syllables_are_one_call_unless_a_silence_is_longer_than_the_gap(gap, num_boxes):
    level = silence()
    level[20:40, 10:20] = level[40 + gap : 60 + gap, 10:20] = 20.0
    corners, peak = standing_out(level, StandOut(gap_frames=50))
    assert len(corners) == len(peak) == num_boxes
    assert corners[:, 0].min() == pytest.approx(20, abs=1) and corners[:, 2].max() == pytest.approx(
        60 + gap, abs=1
    )


def test_calls_far_apart_in_frequency_are_two():
    level = silence()
    level[20:60, 5:12] = 15.0
    level[20:60, 40:50] = 25.0
    corners, peak = standing_out(level)
    assert len(corners) == 2 and sorted(peak.tolist()) == pytest.approx([15.0, 25.0])


def test_wind_over_all_bins_is_no_call_and_a_call_in_it_is_found():
    level = silence()
    level[50:150] = 12.0
    assert len(standing_out(level)[0]) == 0
    level[80:120, 30:40] = 30.0
    (corners,), (peak,) = standing_out(level)
    np.testing.assert_allclose(corners, [80, 30, 120, 40], atol=1.5)
    assert peak == pytest.approx(18.0)


def test_silence_and_specks_are_nothing():
    level = silence()
    assert standing_out(level)[0].shape == (0, 4)
    level[100, 30] = 60.0  # one cell: 4 dB when averaged
    assert len(standing_out(level)[1]) == 0


@pytest.mark.parametrize(("apart", "is_box"), [((0, 1), True), ((1, 1), False), ((0, 2), False)])
def test_a_box_has_at_least_five_frames_and_two_bins(apart, is_box):
    """Two cells of 60 dB are 4 dB over 5 by 3 cells each, 8 where these meet: 5 by 2 cells, 4 by 2, and 5 by 1."""
    level = silence()
    level[100, 30] = level[100 + apart[0], 30 + apart[1]] = 60.0
    found = standing_out(level)[0].tolist()
    assert found == ([[98, 30, 103, 32]] if is_box else [])


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.booleans(), min_size=1, max_size=60),
    st.integers(0, 9),
)
def test_gaps_are_filled_as_a_loop_over_the_line_fills_them(line, gap):
    mask = np.asarray(line)[:, None]
    expected = mask[:, 0].copy()
    on = np.flatnonzero(expected)
    for before, after in itertools.pairwise(on):
        if after - before - 1 <= gap:
            expected[before:after] = True
    np.testing.assert_array_equal(closed(mask, gap, 0)[:, 0], expected)
    np.testing.assert_array_equal(closed(mask.T, 0, gap)[0], expected)
