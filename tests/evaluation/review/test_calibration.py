"""Scores become probabilities that come true as often as they say."""

import json

import numpy as np
import pytest
from scipy import optimize

from mast_ray.evaluation.review.calibration import (
    Calibration,
    doubts_of,
    expected_calibration_error,
    fit_calibration,
    reliability_curve,
)


def overconfident(rng, size):
    """Scores whose log-odds are twice too steep and shifted: right with
    probability expit(0.5 logit(score) - 1).
    """
    score = rng.uniform(0.02, 0.98, size)
    probability = 1 / (1 + np.exp(-(0.5 * np.log(score / (1 - score)) - 1)))
    return score, probability, rng.random(size) < probability


def test_platt_finds_the_slope_and_offset_that_made_the_verdicts():
    rng = np.random.default_rng(0)
    score, _, right = overconfident(rng, 20_000)
    fitted = fit_calibration(score, right, "platt")
    assert (fitted.slope, fitted.offset) == (pytest.approx(0.5, abs=0.05), pytest.approx(-1.0, abs=0.05))


@pytest.mark.parametrize("method", ["platt", "isotonic"])
def test_calibrated_probabilities_come_true_on_new_detections(method):
    rng = np.random.default_rng(1)
    score, _, right = overconfident(rng, 4000)
    fitted = fit_calibration(score, right, method)
    new_score, truth, new_right = overconfident(rng, 20_000)
    raw = expected_calibration_error(reliability_curve(new_score, new_right))
    calibrated = expected_calibration_error(reliability_curve(fitted.probability(new_score), new_right))
    assert raw > 0.15 and calibrated < 0.03
    assert np.abs(fitted.probability(new_score) - truth).mean() < 0.03


@pytest.mark.parametrize("method", ["platt", "isotonic"])
def test_calibration_rises_with_the_score_and_survives_json(method):
    score, _, right = overconfident(np.random.default_rng(2), 300)
    fitted = fit_calibration(score, right, method)
    again = Calibration.from_dict(json.loads(json.dumps(fitted.to_dict())))
    assert again == fitted
    grid = np.linspace(0, 1, 101)
    assert (np.diff(again.probability(grid)) >= 0).all()


@pytest.mark.parametrize(
    "change",
    [
        {"steepness": 2.0}, {"method": "magic"}, {"slope": "steep"}, {"offset": float("nan")}, {"num_examples": "many"},
        {"method": "isotonic"}, {"method": "isotonic", "knots_score": [0.5, 0.1], "knots_probability": [0.1, 0.9]},
        {"method": "isotonic", "knots_score": [0.1, 0.5], "knots_probability": [0.1]}, {"knots_score": 3},
    ],
)  # fmt: skip
def test_a_calibration_that_is_no_curve_is_refused(change):
    """Cards are edited by hand: a curve that is none ended in a traceback, or in probabilities that are not."""
    with pytest.raises(ValueError):
        Calibration.from_dict(Calibration("platt", 2.0, -1.0, num_examples=40).to_dict() | change)


def test_weights_undo_a_sheet_that_looked_at_strong_detections_more_often():
    rng = np.random.default_rng(3)
    score, _, right = overconfident(rng, 40_000)
    kept = rng.random(len(score)) < np.where(score > 0.5, 1.0, 0.1)
    weight = np.where(score[kept] > 0.5, 1.0, 10.0)
    fitted = fit_calibration(score[kept], right[kept], "platt", weight)
    assert fitted.slope == pytest.approx(0.5, abs=0.08)


def test_verdicts_that_all_agree_give_a_finite_calibration():
    fitted = fit_calibration(np.linspace(0.5, 0.9, 10), np.ones(10), "platt")
    assert 0.8 < fitted.probability(0.9) < 1.0
    # Where all scores are even only the verdicts speak: ten right of ten are eleven of twelve (Platt's targets).
    assert fit_calibration(np.full(10, 0.5), np.ones(10), "platt").probability(0.5) == pytest.approx(
        11 / 12, abs=1e-4
    )


def test_only_the_ratios_of_weights_count():
    score, _, right = overconfident(np.random.default_rng(4), 60)
    weight = np.where(score > 0.5, 1.0, 10.0)
    once, larger = (fit_calibration(score, right, "platt", factor * weight) for factor in (1.0, 1000.0))
    assert (larger.slope, larger.offset) == (pytest.approx(once.slope), pytest.approx(once.offset))


def test_reliability_leaves_out_empty_bands_and_counts_the_others():
    curve = reliability_curve([0.05, 0.06, 0.95, 1.0], [0, 1, 1, 1])
    np.testing.assert_allclose(curve.predicted, [0.055, 0.975])
    np.testing.assert_allclose(curve.observed, [0.5, 1.0])
    assert curve.num_examples.tolist() == [2, 2]


def slowly_fitted(score, right, weight):
    """An oracle of its own: the same loss, by a search that knows no slopes, over the offset of every slope."""
    logit = np.log(score) - np.log1p(-score)
    weight = weight * len(score) / weight.sum()
    num_right, num_wrong = weight[right].sum(), weight[~right].sum()
    target = np.where(right, (num_right + 1) / (num_right + 2), 1 / (num_wrong + 2))

    def best_of(slope):
        def loss(offset):
            line = slope * logit + offset
            return (weight * (np.logaddexp(0, line) - target * line)).sum() + (slope - 1) ** 2 / 2

        found = optimize.minimize_scalar(loss, bracket=(-1, 1), tol=1e-12)
        return found.fun, found.x

    slope = optimize.minimize_scalar(
        lambda s: best_of(s)[0], bounds=(0, 30), method="bounded", options={"xatol": 1e-9}
    ).x
    return slope, best_of(slope)[1]


@pytest.mark.parametrize("verdicts", ["right", "wrong", "rising", "falling", "mixed"])
@pytest.mark.parametrize("scores", ["wide", "low", "narrow"])
def test_odd_verdicts_are_fitted_as_an_independent_search_fits_them(scores, verdicts):
    rng = np.random.default_rng(5)
    score = {
        "wide": rng.uniform(0.02, 0.98, 40),
        "low": 10 ** rng.uniform(-5, -0.1, 40),
        "narrow": rng.uniform(0.9, 0.91, 40),
    }[scores]
    low = score < np.median(score)
    right = {
        "right": low | True,
        "wrong": low & False,
        "rising": ~low,
        "falling": low,
        "mixed": rng.random(40) < 0.6,
    }[verdicts]
    weight = rng.uniform(0.1, 10, 40)
    fitted = fit_calibration(score, right, "platt", weight)
    slope, offset = slowly_fitted(score, right, weight)
    if slope < 1e-6:
        assert fitted.slope == 0
    expected = 1 / (1 + (1 / score - 1) ** slope * np.exp(-offset))
    np.testing.assert_allclose(fitted.probability(score), expected, atol=1e-5)


def test_verdicts_that_fall_with_the_score_give_all_scores_their_mean():
    """Nine right of twenty, the lowest: targets 10/11 and 1/13, (9 * 10/11 + 11 * 1/13) / 20 = 0.4514."""
    score = np.linspace(0.3, 0.95, 20)
    fitted = fit_calibration(score, np.arange(20) < 9, "platt")
    assert fitted.slope == 0
    np.testing.assert_allclose(fitted.probability([0.01, 0.5, 0.999]), 0.4514, atol=1e-4)
    # halves of twenty: one in two, whatever the scores; the search for a slope had ended early, at 0.58
    for low, high in ((0.04, 0.09), (0.88, 0.98), (0.9, 0.95)):
        fitted = fit_calibration(np.linspace(low, high, 20), np.arange(20) < 10, "platt")
        np.testing.assert_allclose(fitted.probability([0.001, 0.9]), 0.5, atol=1e-6)


def test_a_curve_that_verdicts_hardly_support_is_doubted():
    score = np.linspace(0.3, 0.95, 20)

    def doubts(right, method="platt"):
        return " ".join(doubts_of(fit_calibration(score, right, method), right))

    assert "all 20 verdicts say right" in doubts(np.ones(20, bool))
    assert "all 20 verdicts say wrong" in doubts(np.zeros(20, bool))
    assert "not right more often" in doubts(score < 0.6)
    assert "20 verdicts are few for isotonic" in doubts(score > 0.6, "isotonic")
    assert doubts(score > 0.6) == ""
