"""A share of boxes with its 95 % limits: recordings are drawn again, because boxes of one stand or fall together."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from mast_ray.evaluation.intervals import SPREAD, Interval, limits, wilson_limits

NOTHING = Interval(float("nan"), float("nan"), float("nan"), "none")


def share_interval(is_so: ArrayLike, group: ArrayLike, num_resamples: int = 1000, seed: int = 0) -> Interval:
    """The share of rows that are so; Wilson's limits where every recording has the same share, or there is only one."""
    yes = np.asarray(is_so, bool)
    if not len(yes):
        return NOTHING
    _, code = np.unique(np.asarray(group).astype(str), return_inverse=True)
    hits, total = np.bincount(code, weights=yes), np.bincount(code).astype(np.float64)
    drawn = np.random.default_rng(seed).integers(0, len(total), (num_resamples, len(total)))
    draws = hits[drawn].sum(axis=1) / total[drawn].sum(axis=1)
    if np.ptp(draws) < SPREAD:
        low, high = (float(limit) for limit in wilson_limits(int(yes.sum()), len(yes)))
        return Interval(float(yes.mean()), low, high, "wilson")
    return Interval(float(yes.mean()), *limits(draws, len(total)))
