"""Cells of a breakdown add up, and hits follow their truth."""

import numpy as np
import pytest

from mast_ray.evaluation.breakdown import (
    DURATION_EDGES_S,
    breakdown,
    cells_of_hours,
    cells_of_values,
    subset,
)
from mast_ray.evaluation.matching import match, match_in_time


@pytest.fixture
def two_sites():
    # Recording 0 (site A): one hit, one false alarm. Recording 1 (site B): one hit, one miss.
    truth = [[0, 0, 10, 10], [0, 0, 10, 10], [50, 0, 80, 10]]
    found = [[0, 0, 10, 10], [30, 0, 35, 10], [0, 0, 10, 8]]
    return match([0, 0, 1], found, [0.9, 0.8, 0.7], [0, 1, 1], truth)


def test_cells_hold_their_own_counts_and_add_up_to_the_whole(two_sites):
    cells = breakdown(two_sites, [0, 0, 1], [0, 1, 1], ["A", "B", "unused"], 0.5, num_resamples=20)
    assert [cell.name for cell in cells] == ["A", "B"]
    a, b = (cell.metrics for cell in cells)
    assert (a.num_truth, a.num_detections, a.num_true_positives) == (1, 2, 1)
    assert (b.num_truth, b.num_detections, b.num_true_positives) == (2, 1, 1)
    assert b.mean_iou == pytest.approx(0.8)
    assert all(cell.num_recordings == 1 for cell in cells)


def test_a_hit_counts_in_the_cell_of_its_truth_not_of_its_own_size(two_sites):
    det_cell, truth_cell = [1, 1, 1], [0, 0, 1]
    short, long = breakdown(two_sites, det_cell, truth_cell, ["short", "long"], 0.5, num_resamples=20)
    assert (short.metrics.num_true_positives, short.metrics.num_detections) == (2, 2)
    assert (long.metrics.num_true_positives, long.metrics.num_detections, long.metrics.num_truth) == (0, 1, 1)
    assert short.num_recordings == 2


def test_figures_in_time_follow_the_truth_they_hit_in_time():
    """The detection is short and in the wrong band: a false alarm among short boxes, a hit in time of a long call."""
    arguments = (
        [0, 0],
        [[0, 50, 60, 60], [200, 0, 210, 10]],
        [0.9, 0.8],
        [0, 0],
        [[0, 0, 100, 10], [300, 0, 310, 10]],
    )
    matches, in_time = match(*arguments), match_in_time(*arguments)
    short, long = breakdown(
        matches, [0, 0], [1, 0], ["short", "long"], 0.5, num_resamples=20, in_time=in_time
    )
    assert (short.metrics.num_detections, short.metrics.num_truth, short.metrics.time_f1) == (2, 1, 0.0)
    assert (long.metrics.num_detections, long.metrics.recall, long.metrics.time_f1) == (0, 0.0, 1.0)


def test_subset_refuses_to_tear_a_hit_from_its_truth(two_sites):
    with pytest.raises(ValueError, match="truth"):
        subset(two_sites, np.array([True, True, True]), np.array([False, True, True]))


def test_values_on_an_edge_belong_to_the_upper_cell_and_unknown_ones_to_none():
    cell, names = cells_of_values([0.05, 0.1, 2.0, 99.0, np.nan], DURATION_EDGES_S, "s")
    assert cell.tolist() == [0, 1, 3, 4, -1]
    assert names == ("0-0.1 s", "0.1-0.3 s", "0.3-1 s", "1-3 s", ">= 3 s")


def test_hour_of_day_wraps_at_midnight():
    cell, names = cells_of_hours([23.5 * 3600, 24.5 * 3600, -60.0, np.nan])
    assert cell.tolist() == [23, 0, 23, -1]
    assert names[23] == "23 h"
