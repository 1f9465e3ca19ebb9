"""Pyramid grids and boxes as distances from their points."""

import torch
from hypothesis import given
from hypothesis import strategies as st

from mast_ray.boxes.points import (
    boxes_of_distances,
    centerness_of_distances,
    distances_of_boxes,
    finest_level_of,
    levels_from,
    pyramid_levels,
    pyramid_points,
)


def test_default_pyramid_has_four_levels_of_doubling_strides() -> None:
    levels = pyramid_levels(4, (8, 4))
    assert [level.stride for level in levels] == [(8, 4), (16, 8), (32, 16), (64, 32)]
    assert [level.size for level in levels] == [(128, 32), (64, 16), (32, 8), (16, 4)]


def test_the_finest_level_is_the_coarsest_that_cuts_short_calls_in_three() -> None:
    """Of 5 durations the 20th percentile is at four fifths of the way from the first to the second."""
    assert finest_level_of([24.0] * 10) == "8x4"
    assert finest_level_of([23.9] * 10) == "4x4"
    assert finest_level_of([12.0] * 10) == "4x4"
    assert finest_level_of([11.9] * 10) == "2x4"
    assert finest_level_of([3.0] * 10) == "2x4"  # nothing is fine enough: the finest there is
    assert finest_level_of([4.0, 24.0, 100.0, 100.0, 100.0]) == "4x4"  # 4 + 0.8 * 20 = 20 frames
    assert finest_level_of([]) == "8x4"


def test_finer_pyramids_add_levels_up_to_five() -> None:
    assert [levels_from(name, 4) for name in ("8x4", "4x4", "2x4")] == [4, 5, 5]
    assert [levels_from(name, 3) for name in ("8x4", "4x4", "2x4")] == [3, 4, 5]


def test_odd_sizes_are_rounded_up_as_strided_convolutions_do() -> None:
    assert [level.size for level in pyramid_levels(3, (16, 16), 1000, 48)] == [(63, 3), (32, 2), (16, 1)]


def test_points_are_cell_centres_in_the_order_of_a_flattened_map() -> None:
    centres, strides, level = pyramid_points(pyramid_levels(2, (8, 4), 16, 8))
    assert centres.tolist() == [[4, 2], [4, 6], [12, 2], [12, 6], [8, 4]]
    assert strides.tolist() == [[8, 4]] * 4 + [[16, 8]]
    assert level.tolist() == [0, 0, 0, 0, 1]


@given(
    st.floats(0, 1000, width=32),
    st.floats(0, 120, width=32),
    st.floats(0.5, 500, width=32),
    st.integers(0, 5439),
)
def test_box_to_distances_and_back_is_the_same_box(t0: float, f0: float, size: float, point: int) -> None:
    centres, strides, _ = pyramid_points(pyramid_levels(4, (8, 4)))
    box = torch.tensor([[t0, f0, t0 + size, f0 + size]])
    at, by = centres[point : point + 1], strides[point : point + 1]
    again = boxes_of_distances(distances_of_boxes(box, at, by), at, by)
    torch.testing.assert_close(again, box, atol=1e-3, rtol=1e-5)


def test_distances_are_divided_by_the_stride_of_their_own_axis() -> None:
    box, centre, stride = (
        torch.tensor([[4.0, 2, 28, 14]]),
        torch.tensor([[12.0, 6]]),
        torch.tensor([[8.0, 4]]),
    )
    assert distances_of_boxes(box, centre, stride).tolist() == [[1, 1, 2, 2]]


def test_centerness_is_one_in_the_middle_and_zero_outside() -> None:
    distances = torch.tensor([[2.0, 3, 2, 3], [1, 1, 4, 1], [-1, 1, 3, 1], [0, 1, 3, 1]])
    assert centerness_of_distances(distances).tolist() == [1, 0.5, 0, 0]
