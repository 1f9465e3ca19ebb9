"""Scores become probabilities that come true as often as they say."""

import json

import numpy as np
import pytest

from mast_ray.evaluation.review.calibration import (
    Calibration,
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
