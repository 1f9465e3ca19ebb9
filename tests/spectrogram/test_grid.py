"""Seconds and hertz to frames and bins, and back."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mast_ray.spectrogram import grid


@given(st.integers(0, 10_000_000))
def test_frames_to_seconds_and_back_are_the_same_frames_over_a_day(frame: int) -> None:
    assert grid.frames_of_seconds(grid.seconds_of_frames(frame)) == frame


@given(st.floats(0, 90_000))
def test_a_time_lies_within_its_frame(seconds: float) -> None:
    frame = grid.frames_of_seconds(seconds)
    assert grid.seconds_of_frames(frame) <= seconds + 1e-8
    assert seconds < grid.seconds_of_frames(frame + 1) + 1e-8


@given(st.floats(1.0, 8_000.0))
def test_hertz_to_bins_and_back_is_the_same_frequency(hertz: float) -> None:
    assert grid.bin_to_hertz(grid.hertz_to_bin(hertz)) == pytest.approx(hertz, rel=1e-9)


@given(st.floats(-1.0, 128.0))
def test_bins_to_hertz_and_back_is_the_same_bin(position: float) -> None:
    assert grid.hertz_to_bin(grid.bin_to_hertz(position)) == pytest.approx(position, abs=1e-9)


def test_sound_ends_with_the_last_sample_of_the_last_whole_frame() -> None:
    assert (
        grid.end_of_sound(10) == 11.5
    )  # frames of 25 ms every 10 ms: the tenth begins at 90 ms and ends at 115 ms
    assert grid.seconds_of_frames(grid.end_of_sound(10)) == pytest.approx(0.115)


def test_mel_scale_is_the_htk_one() -> None:
    assert grid.hertz_to_mel(700.0) == pytest.approx(2595 * np.log10(2), rel=1e-4)
    assert grid.mel_to_hertz(grid.hertz_to_mel(1234.5)) == pytest.approx(1234.5)


def test_bin_centres_follow_the_formula_and_end_below_8_khz() -> None:
    mel = lambda f: 1127 * np.log(1 + f / 700)  # noqa: E731
    step = (mel(8000) - mel(20)) / 129
    centres = grid.bin_to_hertz(np.arange(128.0))
    assert grid.hertz_to_mel(centres) == pytest.approx(mel(20) + np.arange(1, 129) * step)
    assert grid.hertz_to_bin(centres) == pytest.approx(np.arange(128), abs=1e-9)


def boxes_of(*event: float) -> tuple[list[float], bool]:
    boxes, representable = grid.boxes_from_seconds_hertz(*(np.array([value]) for value in event))
    return boxes[0].tolist(), bool(representable[0])


def test_an_event_becomes_floor_frames_and_nearest_bins() -> None:
    centres = grid.bin_to_hertz(np.arange(128.0))
    event = (0.29, 0.5799, centres[10] + 1.0, centres[20] - 1.0)
    assert boxes_of(*event) == ([29, 10, 57, 20], True)


def test_a_point_event_is_still_one_frame_and_one_bin() -> None:
    assert boxes_of(1.0, 1.0, 1000.0, 1000.0)[0][2] == 101
    box, representable = boxes_of(1.0, 1.0, 1000.0, 1000.0)
    assert representable and box[2] - box[0] == 1 and box[3] - box[1] == 1


def test_events_above_8_khz_are_left_out_and_partly_above_are_clipped() -> None:
    assert boxes_of(0, 1, 8_000, 12_000)[1] is False
    assert boxes_of(0, 1, 9_000, 12_000)[1] is False
    box, representable = boxes_of(0, 1, 7_000, 12_000)
    assert representable and box[3] == 128


@given(st.floats(0, 3600), st.floats(0.02, 60), st.floats(60, 7000), st.floats(1.05, 4))
def test_event_to_box_to_event_moves_by_less_than_a_frame_and_a_bin(
    begin_s: float, length_s: float, low_hz: float, ratio: float
) -> None:
    high_hz = min(low_hz * ratio, 8000.0)
    boxes, _ = grid.boxes_from_seconds_hertz(
        np.array([begin_s]), np.array([begin_s + length_s]), np.array([low_hz]), np.array([high_hz])
    )
    back = grid.seconds_hertz_from_boxes(boxes)[0]
    assert abs(back[0] - begin_s) <= 0.010 + 1e-7 and abs(back[2] - begin_s - length_s) <= 0.010 + 1e-7
    # half a bin from rounding; up to a bin more where a box was raised to one bin of height
    assert abs(grid.hertz_to_bin(back[1]) - grid.hertz_to_bin(low_hz)) <= 1.0 + 1e-6
    assert abs(grid.hertz_to_bin(back[3]) - grid.hertz_to_bin(high_hz)) <= 1.5 + 1e-6


@given(st.integers(0, 120), st.integers(1, 7), st.integers(0, 100_000), st.integers(1, 2000))
def test_boxes_to_events_and_back_are_the_same_boxes(f0: int, height: int, t0: int, length: int) -> None:
    boxes = np.array([[t0, f0, t0 + length, f0 + height]], np.float64)
    begin_s, low_hz, end_s, high_hz = grid.seconds_hertz_from_boxes(boxes).T
    again, representable = grid.boxes_from_seconds_hertz(begin_s, end_s, low_hz, high_hz)
    assert representable.all() and again.tolist() == boxes.tolist()


def test_no_event_reaches_above_the_nyquist_frequency_of_16_khz() -> None:
    assert 7999.9 < grid.seconds_hertz_from_boxes(np.array([[0.0, 0, 1, 128]]))[0, 3] <= 8000


def test_boxes_end_at_half_the_rate_of_their_recordings() -> None:
    """Half of 8 kHz is bin 96.1; nobody knows the rate of the last recording."""
    boxes = np.array([[0.0, 60, 9, 128], [0, 100, 9, 120], [0, 60, 9, 90], [0, 60, 9, 128], [0, 60, 9, 128]])
    cut, has_band = grid.below_half_rate(boxes, np.array([8000, 8000, 8000, 16000, np.nan]))
    assert cut[:, 3].tolist() == [float(grid.hertz_to_bin(4000.0))] * 2 + [90, 128, 128]
    assert has_band.tolist() == [True, False, True, True, True] and boxes[0, 3] == 128


def test_a_time_belongs_to_the_chunk_in_whose_middle_half_it_lies() -> None:
    # Chunks begin every 5.12 s and last 10.24 s: the middle half of chunk k is 5.12 k + 2.56 to 5.12 k + 7.68 s.
    times = np.array([0.0, 2.5, 2.6, 7.6, 7.7, 12.7, 12.9])
    assert grid.middle_chunk(times).tolist() == [0, 0, 0, 0, 1, 1, 2]


@pytest.mark.parametrize("frames", [0, 153_600, 8_640_000])
def test_whole_bins_and_frames_of_a_table_come_back_whole(frames: int) -> None:
    low = np.arange(0.0, 127.0)
    boxes = np.stack([low + frames, low, low + frames + 10, low + 1], axis=1)
    begin_s, low_hz, end_s, high_hz = grid.seconds_hertz_from_boxes(boxes).T
    measures = (begin_s, end_s, low_hz, high_hz)
    assert np.array_equal(grid.boxes_from_seconds_hertz(*measures, rounding="none")[0], boxes)
    assert np.array_equal(grid.boxes_on_open_grid(*measures), boxes)
