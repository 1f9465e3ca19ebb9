"""The rules that benchmarks/tune_rules.py compares, worked by hand."""

import pytest
from tune_rules import of_grid, of_middle, searched

from mast_ray.evaluation.matching import match
from mast_ray.stages.search.post_processing import PostSetting

CALL, NOWHERE = [0.0, 0.0, 5.0, 5.0], [100.0, 0.0, 105.0, 5.0]


def scored(hits: list[float], alarms: list[float], num_truth: int):
    """Every call lies in a chunk of its own, and so does what is none."""
    score = hits + alarms
    boxes = [CALL] * len(hits) + [NOWHERE] * len(alarms)
    return match(range(len(score)), boxes, score, range(num_truth), [CALL] * num_truth, 0.5)


def test_the_grid_gives_the_lowest_threshold_of_the_highest_f1_the_middle_lies_half_way():
    """F1 by score: 0.9 0.4, 0.8 0.667, 0.6 0.857, 0.5 0.75, 0.3 0.667; the grid has steps of 0.99 / 199."""
    matches = scored([0.9, 0.8, 0.6], [0.5, 0.3], 4)
    assert of_grid(matches) == (pytest.approx(0.01 + 99 * 0.99 / 199), pytest.approx(6 / 7))
    assert of_middle(matches) == (pytest.approx(0.55), pytest.approx(6 / 7))
    assert of_middle(scored([], [0.5], 4))[1] == 0.0


def test_weights_and_doubt_are_tried_at_the_best_suppression():
    def matches_of(setting: PostSetting):
        alarms = [0.9] * 3
        for is_right in (setting.nms_overlap == 0.4, setting.score_weight == 0.75, setting.doubts_nested):
            alarms = alarms[1:] if is_right else alarms
        return scored([0.9, 0.9], alarms, 2)

    assert searched(matches_of, of_grid) == PostSetting(0.4, 0.0, 1, 0.75, True)
