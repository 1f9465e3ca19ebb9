"""The rules that benchmarks/threshold_rules.py compares, on curves worked by hand."""

import pytest
from threshold_rules import f1_at, highest_threshold, middle_threshold, standard_error_of, summary

from mast_ray.evaluation.matching import match
from mast_ray.evaluation.metrics import best_threshold

CALLS = [[10.0 * n, 0.0, 10.0 * n + 5, 5.0] for n in range(4)]
NOWHERE = [100.0, 0.0, 105.0, 5.0]


def scored(*hits_and_scores: tuple[bool, float]):
    """Detections of four calls, each of another call or of nothing."""
    boxes = [CALLS[n] if is_hit else NOWHERE for n, (is_hit, _) in enumerate(hits_and_scores)]
    zeros = [0] * len(boxes)
    return match(zeros, boxes, [score for _, score in hits_and_scores], [0] * len(CALLS), CALLS, 0.5)


def test_the_middle_lies_between_the_scores_whose_f1_is_near_the_highest():
    """F1 by score: 0.9 0.4, 0.8 0.667, 0.6 0.857, 0.5 0.75, 0.3 0.667."""
    matches = scored((True, 0.9), (True, 0.8), (True, 0.6), (False, 0.5), (False, 0.3))
    assert f1_at(matches, 0.6) == pytest.approx(6 / 7) and f1_at(matches, 0.5) == pytest.approx(6 / 8)
    assert highest_threshold(matches) == pytest.approx((0.5 + 0.6) / 2)
    assert middle_threshold(matches, 0.11) == pytest.approx((0.3 + 0.6) / 2)
    assert middle_threshold(matches, 0.2) == pytest.approx((0.3 + 0.8) / 2)


def test_two_standard_errors_or_a_tenth_are_what_is_built_in():
    """The highest F1 of 6 / 7 counts as (24 / 7 + 1) / 6 of four calls: 0.738 with an error of 0.220, more than a tenth."""
    matches = scored((True, 0.9), (True, 0.8), (True, 0.6), (False, 0.5), (False, 0.3))
    assert standard_error_of(matches) == pytest.approx(0.220, abs=1e-3)
    assert best_threshold(matches) == middle_threshold(matches, 0.1 * 6 / 7) == pytest.approx(0.55)
    many = match(range(500), [CALLS[0]] * 500, [0.9] * 490 + [0.2] * 10, range(500), [CALLS[0]] * 500, 0.5)
    assert 2 * standard_error_of(many) < 0.1
    assert best_threshold(many) == middle_threshold(many, 2 * standard_error_of(many)) == 0.2


def test_gains_are_paired_over_archives():
    splits = {
        "in-domain": {"highest F1": 0.5, "other": 0.6},
        "unseen site": {"highest F1": 0.5, "other": 0.5},
    }
    better = {
        "in-domain": {"highest F1": 0.7, "other": 0.9},
        "unseen site": {"highest F1": 0.7, "other": 0.7},
    }
    archives = [{"shipped": one, "trained": one} for one in (splits, better)]
    line = next(one for one in summary(archives) if one["rule"] == "other" and one["split"] == "in-domain")
    assert line["f1"] == pytest.approx(0.75) and line["gain"] == pytest.approx(0.15)
    assert line["standard_error"] == pytest.approx(0.05)  # 0.1 and 0.2: deviation 0.0707 over root two
