"""Figures of a method trained with several seeds, and differences between two
methods, with both kinds of noise.

Legend: S seeds, R recordings. The estimate is the mean over seeds. Its interval joins two
independent sources in quadrature: which recordings were drawn (bootstrap of the mean over seeds) and
which seeds (Student's limits of a mean, wide for few seeds as they should be). With one seed only
the first is known, and `num_seeds` says so.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from mast_ray.evaluation.intervals import (
    FIGURES,
    RecordingSums,
    difference_limits,
    figures,
    limits_of,
    resampled,
)
from mast_ray.evaluation.label_budget import mean_limits

Floats = NDArray[np.float64]


class SeedInterval(NamedTuple):
    """A figure of a method, or of one method minus another."""

    estimate: float  # mean over seeds
    low: float
    high: float
    num_seeds: int

    @property
    def holds_zero(self) -> bool:
        """Of a difference: within noise. Also when nothing is known about the noise."""
        return not (self.low > 0 or self.high < 0)


def seed_intervals(
    per_seed: Sequence[RecordingSums], num_resamples: int = 1000, seed: int = 0
) -> dict[str, SeedInterval]:
    """name -> mean over seeds with its interval, for one method on the same recordings with every seed."""
    at, draws = _estimates(per_seed), _mean_draws(per_seed, num_resamples, seed)
    found = {}
    for name in FIGURES:
        mean = float(np.mean(at[name]))
        one = _joined(at[name], *limits_of(name, mean, draws[name], per_seed)[:2])
        found[name] = one._replace(
            low=max(one.low, 0.0) if math.isfinite(one.low) else one.low,
            high=min(one.high, 1.0) if math.isfinite(one.high) else one.high,
        )
    return found


def seed_differences(
    first: Sequence[RecordingSums],
    second: Sequence[RecordingSums],
    num_resamples: int = 1000,
    seed: int = 0,
) -> dict[str, SeedInterval]:
    """name -> second minus first: the same recordings are drawn for both, and seeds are paired in order."""
    if len(first) != len(second):
        raise ValueError(f"{len(first)} and {len(second)} seeds cannot be paired")
    if first[0].num_recordings != second[0].num_recordings:
        raise ValueError("the two methods were not scored on the same recordings")
    at = _estimates(first), _estimates(second)
    draws = _mean_draws(first, num_resamples, seed), _mean_draws(second, num_resamples, seed)
    found = {}
    for name in FIGURES:
        own = (at[0][name], at[1][name]), (draws[0][name], draws[1][name])
        by_recordings = difference_limits(name, *own, (first, second))
        found[name] = _joined(at[1][name] - at[0][name], *by_recordings)
    return found


def _estimates(per_seed: Sequence[RecordingSums]) -> dict[str, Floats]:
    """name -> (S,) figure of every seed on all recordings."""
    ones = np.ones((1, per_seed[0].num_recordings))
    each = [figures(sums, ones) for sums in per_seed]
    return {name: np.array([one[name][0] for one in each]) for name in FIGURES}


def _mean_draws(per_seed: Sequence[RecordingSums], num_resamples: int, seed: int) -> dict[str, Floats]:
    """name -> (B,) mean over seeds on drawn recordings; the same seed draws the
    same recordings for every method.
    """
    draws = resampled(list(per_seed), num_resamples, seed)
    return {name: np.mean([one[name] for one in draws], axis=0) for name in FIGURES}


def _joined(per_seed: Floats, low: float, high: float) -> SeedInterval:
    """Limits by recordings and limits by seeds, in quadrature."""
    known = per_seed[np.isfinite(per_seed)]
    if not len(known):
        return SeedInterval(math.nan, math.nan, math.nan, 0)
    estimate, low_seeds, _ = mean_limits(known.tolist())
    by_seeds = estimate - low_seeds if math.isfinite(low_seeds) else 0.0
    below, above = (math.hypot(side, by_seeds) for side in (estimate - low, high - estimate))
    return SeedInterval(estimate, estimate - below, estimate + above, len(known))
