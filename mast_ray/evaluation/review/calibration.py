"""From score to probability of being right: Platt's logistic line or isotonic steps, and how well they fit.

Platt is fitted on the log-odds of the score and needs few verdicts; isotonic follows any rising shape and
wants hundreds. A calibration is a handful of numbers that travel in JSON.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from mast_ray.evaluation.intervals import wilson_limits

Floats = NDArray[np.float64]
NUM_BANDS = 10
SMALLEST = 1e-6
NEWTON_STEPS = 100  # a dozen are the rule
FEWEST_FOR_STEPS = 100  # verdicts; isotonic steps of fewer follow single ones


@dataclass(frozen=True)
class Calibration:
    """platt: probability = expit(slope * logit(score) + offset); isotonic: linear between knots."""

    method: Literal["platt", "isotonic"]
    slope: float = 1.0
    offset: float = 0.0
    knots_score: tuple[float, ...] = ()
    knots_probability: tuple[float, ...] = ()
    num_examples: int = 0

    def probability(self, score: ArrayLike) -> Floats:
        score = np.asarray(score, np.float64)
        match self.method:
            case "platt":
                return _expit(self.slope * _logit(score) + self.offset)
            case "isotonic":
                return np.interp(score, self.knots_score, self.knots_probability)

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    @staticmethod
    def from_dict(values: dict[str, Any]) -> Calibration:
        """What `to_dict` gave; ValueError for anything else, as a card may have been written by hand."""
        try:
            knots = {k: tuple(map(float, values.get(k, ()))) for k in ("knots_score", "knots_probability")}
            found = Calibration(**(values | knots))
            numbers = [found.slope, found.offset, *found.knots_score, *found.knots_probability]
            is_finite = bool(np.isfinite(np.array(numbers, np.float64)).all())
        except (TypeError, AttributeError) as error:
            raise ValueError(str(error)) from error
        scores = found.knots_score
        rises = list(scores) == sorted(scores) and len(scores) == len(found.knots_probability)
        if found.method not in ("platt", "isotonic") or (found.method == "isotonic" and not scores):
            raise ValueError(f"method {str(found.method)[:20]!r} with {len(scores)} knots")
        if not is_finite or not rises or not isinstance(found.num_examples, int) or found.num_examples < 0:
            raise ValueError("numbers that are no curve")
        return found


def doubts_of(calibration: Calibration, is_right: ArrayLike) -> list[str]:
    """For people: what speaks against taking the curve at its word."""
    right = np.asarray(is_right, bool).reshape(-1)
    doubts = []
    if right.all() or not right.any():
        doubts.append(
            f"all {len(right)} verdicts say {'right' if right.all() else 'wrong'}: how the chance changes with the score is a guess"
        )
    elif calibration.method == "platt" and calibration.slope == 0:
        doubts.append(
            "detections of a high score are not right more often than those of a low one: all get the same probability"
        )
    if calibration.method == "isotonic" and len(right) < FEWEST_FOR_STEPS:
        doubts.append(
            f"{len(right)} verdicts are few for isotonic steps, which then follow single ones: use --method platt, or judge {FEWEST_FOR_STEPS}"
        )
    return doubts


class Reliability(NamedTuple):
    """Observed share of right detections per band of predicted probability, with
    Wilson limits; empty bands left out.
    """

    predicted: Floats
    observed: Floats
    low: Floats
    high: Floats
    num_examples: NDArray[np.int64]


def fit_calibration(
    score: ArrayLike,
    is_right: ArrayLike,
    method: Literal["platt", "isotonic"] = "platt",
    weight: ArrayLike | None = None,
) -> Calibration:
    """Calibration from scored verdicts; `weight` undoes unequal sampling
    (detections per verdict of a band).
    """
    score = np.asarray(score, np.float64).reshape(-1)
    right = np.asarray(is_right, np.float64).reshape(-1)
    counts = np.ones(len(score)) if weight is None else np.asarray(weight, np.float64).reshape(-1)
    if len(score) == 0:
        raise ValueError("no verdicts to calibrate on")
    counts = counts * len(score) / counts.sum()
    match method:
        case "platt":
            slope, offset = _platt(_logit(score), right, counts)
            return Calibration("platt", slope, offset, num_examples=len(score))
        case "isotonic":
            # only who fits needs it: every process that writes detections imports this module
            from sklearn.isotonic import IsotonicRegression

            fitted = IsotonicRegression(y_min=0.0, y_max=1.0, out_of_bounds="clip").fit(
                score, right, sample_weight=counts
            )
            knots = tuple(map(float, fitted.X_thresholds_)), tuple(map(float, fitted.y_thresholds_))
            return Calibration(
                "isotonic", knots_score=knots[0], knots_probability=knots[1], num_examples=len(score)
            )


def _platt(logit: Floats, right: Floats, weight: Floats) -> tuple[float, float]:
    """Slope and offset of largest likelihood, with Platt's softened targets: finite even when all verdicts agree. The
    slope is never negative: verdicts that fall with the score give all scores one probability.
    """
    num_right, num_wrong = float((weight * right).sum()), float((weight * (1 - right)).sum())
    target = np.where(right > 0, (num_right + 1) / (num_right + 2), 1 / (num_wrong + 2))
    mean = float((weight * target).sum() / weight.sum())
    level = float(np.log(mean / (1 - mean)))  # the best offset of slope 0
    centre = float((weight * logit).sum() / weight.sum())
    slope, height = _largest_likelihood(logit - centre, target, weight, level)
    return (slope, height - slope * centre) if slope > 0 else (0.0, level)


def _largest_likelihood(x: Floats, target: Floats, weight: Floats, level: float) -> tuple[float, float]:
    """(slope, height) of the line over x, by Newton's steps from the level line. The loss is convex, so a step is halved
    until it helps, and where none does is the end.
    """

    def loss(line: Floats, slope: float) -> float:
        # One pseudo-verdict's worth of pull towards slope 1 keeps few or equal scores from running away.
        return float((weight * (np.logaddexp(0, line) - target * line)).sum() + 0.5 * (slope - 1) ** 2)

    at = np.array([0.0, level])
    for _ in range(NEWTON_STEPS):
        line = at[0] * x + at[1]
        chance = _expit(line)
        error, bend = weight * (chance - target), weight * chance * (1 - chance)
        gradient = np.array([(error * x).sum() + at[0] - 1, error.sum()])
        mixed = (bend * x).sum()
        step = np.linalg.solve(np.array([[(bend * x * x).sum() + 1, mixed], [mixed, bend.sum()]]), gradient)
        if float(gradient @ step) < 1e-12:
            break
        before, share = loss(line, at[0]), 1.0
        while (
            share > 1e-9
            and loss((at[0] - share * step[0]) * x + at[1] - share * step[1], at[0] - share * step[0])
            >= before
        ):
            share /= 2
        at = at - share * step
    return float(at[0]), float(at[1])


def reliability_curve(probability: ArrayLike, is_right: ArrayLike) -> Reliability:
    """Predicted against observed, in equally wide bands of predicted probability."""
    probability = np.asarray(probability, np.float64).reshape(-1)
    right = np.asarray(is_right, np.float64).reshape(-1)
    band = np.clip((probability * NUM_BANDS).astype(np.int64), 0, NUM_BANDS - 1)
    count = np.bincount(band, minlength=NUM_BANDS)
    busy = count > 0
    count = count[busy]
    predicted = np.bincount(band, weights=probability, minlength=NUM_BANDS)[busy] / count
    good = np.bincount(band, weights=right, minlength=NUM_BANDS)[busy]
    low, high = wilson_limits(good, count)
    return Reliability(predicted, good / count, low, high, count)


def expected_calibration_error(curve: Reliability) -> float:
    """Mean distance between predicted and observed, weighted by count."""
    total = curve.num_examples.sum()
    if total == 0:
        return float("nan")
    return float((np.abs(curve.predicted - curve.observed) * curve.num_examples).sum() / total)


def _logit(score: Floats) -> Floats:
    clipped = np.clip(score, SMALLEST, 1 - SMALLEST)
    return np.log(clipped) - np.log1p(-clipped)


def _expit(value: Floats) -> Floats:
    return 0.5 * (1.0 + np.tanh(0.5 * value))
