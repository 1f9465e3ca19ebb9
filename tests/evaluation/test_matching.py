"""The matcher against a one-by-one reference that is obviously greedy."""

import numpy as np
import pytest

from mast_ray.evaluation import matching
from mast_ray.evaluation.matching import match, score_order


def overlap(first, second):
    span = min(first[2], second[2]) - max(first[0], second[0])
    if np.isnan([*first, *second]).any():
        return max(span, 0) / (max(first[2], second[2]) - min(first[0], second[0]))
    inside = max(span, 0) * max(min(first[3], second[3]) - max(first[1], second[1]), 0)
    area = lambda box: (box[2] - box[0]) * (box[3] - box[1])  # noqa: E731
    return inside / (area(first) + area(second) - inside)


def one_by_one(det_group, det_boxes, det_score, truth_group, truth_boxes, iou):
    taken = np.full(len(det_group), -1)
    for row in sorted(range(len(det_group)), key=lambda r: -det_score[r]):  # equal scores stay in order
        best, choice = min(iou, 1 - 1e-10), -1
        for truth in np.flatnonzero(truth_group == det_group[row]):
            value = overlap(det_boxes[row], truth_boxes[truth])
            if truth not in taken and value >= best:
                best, choice = value, truth
        taken[row] = choice
    return taken


def crowded(seed, num_det=60, num_truth=25, num_groups=3):
    rng = np.random.default_rng(seed)

    def boxes(number):
        t0, f0 = rng.integers(0, 25, number), rng.integers(0, 8, number)
        return np.stack(
            [t0, f0, t0 + rng.integers(1, 15, number), f0 + rng.integers(1, 8, number)], 1
        ).astype(float)

    det_boxes, truth_boxes = boxes(num_det), boxes(num_truth)
    truth_boxes[rng.random(num_truth) < 0.2, 1::2] = np.nan
    det_boxes[rng.random(num_det) < 0.1, 1::2] = np.nan
    groups = rng.integers(0, num_groups, num_det), rng.integers(0, num_groups + 1, num_truth)
    return groups[0], det_boxes, rng.integers(0, 6, num_det) / 6, groups[1], truth_boxes


@pytest.mark.parametrize("iou", [0.2, 0.5, 0.75, 1.0])
def test_matching_in_rounds_equals_greedy_one_by_one_in_crowds_with_ties(iou):
    for seed in range(25):
        arrays = crowded(seed)
        np.testing.assert_array_equal(match(*arrays, iou=iou).truth_index, one_by_one(*arrays, iou))


def test_result_does_not_depend_on_the_size_of_the_blocks_or_of_the_group_ids(monkeypatch):
    det_group, det_boxes, score, truth_group, truth_boxes = crowded(1, 400, 200, 9)
    whole = match(det_group, det_boxes, score, truth_group, truth_boxes)
    monkeypatch.setattr(matching, "PAIRS_PER_BLOCK", 37)
    spread = match(det_group * 10**15, det_boxes, score, truth_group * 10**15, truth_boxes)
    np.testing.assert_array_equal(whole.truth_index, spread.truth_index)
    np.testing.assert_array_equal(whole.iou, spread.iou)


def test_raising_the_threshold_never_changes_the_matches_of_what_is_left():
    det_group, det_boxes, score, truth_group, truth_boxes = crowded(2, 200, 90)
    whole = match(det_group, det_boxes, score, truth_group, truth_boxes)
    kept = score >= 0.5
    part = match(det_group[kept], det_boxes[kept], score[kept], truth_group, truth_boxes)
    np.testing.assert_array_equal(whole.truth_index[kept], part.truth_index)


def test_of_two_equally_scored_detections_the_first_row_takes_the_truth():
    box = [[0, 0, 10, 10]]
    matches = match([0, 0], box * 2, [0.7, 0.7], [0], box)
    assert matches.truth_index.tolist() == [0, -1]
    assert matches.detection_index.tolist() == [0]


def test_equal_scores_are_ordered_by_group_and_then_by_row():
    assert score_order(np.array([0, 0, 1, 1]), np.array([0.5, 0.9, 0.5, 0.9])).tolist() == [1, 3, 0, 2]
    assert score_order(np.array([1, 0, 0, 1]), np.array([0.5, 0.5, 0.9, 0.9])).tolist() == [2, 3, 1, 0]
    score = np.random.default_rng(0).integers(0, 3, 1000) / 3
    order = score_order(np.arange(1000) // 100, score)
    assert order.tolist() == sorted(range(1000), key=lambda row: -score[row])


@pytest.mark.parametrize("iou", [0.0, 1.01])
def test_an_overlap_that_all_or_no_boxes_reach_is_refused(iou):
    with pytest.raises(ValueError, match="must lie in"):
        match([0], [[0, 0, 1, 1]], [0.5], [0], [[0, 0, 1, 1]], iou=iou)


def test_time_only_label_is_matched_by_time_alone_and_marked():
    nan = float("nan")
    matches = match(
        [0, 0], [[0, 5, 8, 9], [30, 5, 40, 9]], [0.9, 0.8], [0, 0], [[0, nan, 10, nan], [30, 5, 40, 9]]
    )
    assert matches.truth_index.tolist() == [0, 1]
    np.testing.assert_allclose(matches.iou, [0.8, 1.0])
    assert matches.truth_is_time_only.tolist() == [True, False]


def test_boxes_of_different_groups_never_meet_even_next_to_the_border_of_the_line():
    box = [[1000.0, 0, 1020, 10]]
    matches = match([0, 1], [[0, 0, 2000, 10], [0, 0, 20, 10]], [0.9, 0.8], [0, 2], box * 2)
    assert matches.truth_index.tolist() == [-1, -1]


def test_empty_sides_give_only_misses_or_only_false_alarms():
    nothing = np.zeros((0, 4))
    assert match([], nothing, [], [0], [[0, 0, 1, 1]]).detection_index.tolist() == [-1]
    assert match([0], [[0, 0, 1, 1]], [0.5], [], nothing).truth_index.tolist() == [-1]
    assert match([], nothing, [], [], nothing).num_truth == 0


def test_boxes_without_area_match_nothing_and_scores_that_are_not_numbers_are_refused():
    assert match([0], [[5, 0, 5, 0]], [0.5], [0], [[5, 0, 5, 0]]).truth_index.tolist() == [-1]
    with pytest.raises(ValueError, match="not a number"):
        match([0], [[0, 0, 1, 1]], [float("nan")], [0], [[0, 0, 1, 1]])
