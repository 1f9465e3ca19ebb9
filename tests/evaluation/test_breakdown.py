"""Cells of a breakdown add up, and hits follow their truth."""

import numpy as np
import pytest

from mast_ray.evaluation.breakdown import (
    DURATION_EDGES_S,
    breakdown,
    breakdown_of_names,
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


def test_recordings_of_a_cell_are_counted_not_their_groups(two_sites):
    """Groups 0 and 1 are two chunks of one recording; a cell that is known to have three has two silent ones."""
    cells = breakdown(two_sites, [0, 0, 0], [0, 0, 0], ["A"], 0.5, [4, 4], num_resamples=20, sizes=[3])
    assert cells[0].num_recordings == 3
    (alone,) = breakdown(two_sites, [0, 0, 0], [0, 0, 0], ["A"], 0.5, [4, 4], num_resamples=20)
    assert alone.num_recordings == 1


def test_a_wrong_name_is_a_false_alarm_under_one_name_and_a_miss_under_the_other():
    """Groups 0 and 1 are chunks of one recording. The second robin is called a wren; the third is met in time only."""
    arguments = (
        [0, 1, 2, 2],
        [[0, 0, 10, 10], [0, 0, 10, 10], [0, 0, 10, 8], [50, 50, 60, 60]],
        [0.9, 0.8, 0.7, 0.6],
        [0, 1, 2, 2],
        [[0, 0, 10, 10], [0, 0, 10, 10], [0, 0, 10, 10], [50, 0, 60, 10]],
    )
    found = np.array(["robin", "wren", "wren", "robin"], object)
    truth = np.array(["robin", "robin", "wren", "robin"], object)
    matches, in_time = match(*arguments), match_in_time(*arguments)
    names = ["robin", "wren", "owl"]
    robin, wren = breakdown_of_names(
        matches, found, truth, names, 0.5, [0, 0, 1], num_resamples=20, in_time=in_time
    )
    assert (robin.name, robin.num_recordings, wren.name, wren.num_recordings) == ("robin", 2, "wren", 2)
    one, other = robin.metrics, wren.metrics
    assert (one.num_truth, one.num_detections, one.num_true_positives) == (3, 2, 1)
    assert (other.num_truth, other.num_detections, other.num_true_positives) == (1, 2, 1)
    assert (one.mean_iou, other.mean_iou) == (1.0, 0.8)
    assert (one.f1, one.time_f1) == (pytest.approx(2 / 5), pytest.approx(4 / 5))
    assert (other.f1, other.time_f1) == (pytest.approx(2 / 3), pytest.approx(2 / 3))
    (wren,) = breakdown_of_names(matches, found, truth, ["wren"], 0.5, num_resamples=20)
    assert wren.metrics.num_true_positives == 1 and np.isnan(wren.metrics.time_f1)


def test_names_that_were_only_given_or_only_labelled_have_a_line():
    box = [[0, 0, 10, 10]]
    wren, robin = np.array(["wren"], object), np.array(["robin"], object)
    cells = breakdown_of_names(
        match([0], box, [0.9], [0], box), wren, robin, ["robin", "wren"], 0.5, num_resamples=20
    )
    assert [(c.metrics.num_truth, c.metrics.num_detections) for c in cells] == [(1, 0), (0, 1)]
    assert [c.metrics.num_true_positives for c in cells] == [0, 0]


def test_subset_refuses_to_tear_a_hit_from_its_truth(two_sites):
    with pytest.raises(ValueError, match="truth"):
        subset(two_sites, np.array([True, True, True]), np.array([False, True, True]))


def test_values_on_an_edge_belong_to_the_upper_cell_and_unknown_ones_to_none():
    cell, names = cells_of_values([0.05, 0.1, 2.0, 99.0, np.nan], DURATION_EDGES_S, "s")
    assert cell.tolist() == [0, 1, 3, 4, -1]
    assert cells_of_values([20.0, 25.0], (0.0, 10.0, 20.0), "s")[0].tolist() == [1, 1]  # not above the last
    assert names == ("0-0.1 s", "0.1-0.3 s", "0.3-1 s", "1-3 s", ">= 3 s")


def test_hour_of_day_wraps_at_midnight():
    cell, names = cells_of_hours([23.5 * 3600, 24.5 * 3600, -60.0, np.nan])
    assert cell.tolist() == [23, 0, 23, -1]
    assert names[23] == "23 h" and len(names) == 24
