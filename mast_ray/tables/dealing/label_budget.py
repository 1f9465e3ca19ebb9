"""Which labelled chunks a budget of labels buys."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from mast_ray.config.errors import ConfigError, DataError


def pick_budget(
    hours: NDArray[np.float64], strategy: str, budget: int, rng: np.random.Generator
) -> NDArray[np.int64]:
    """Indices of `budget` chunks out of the given ones (in order of time), whose
    local hour of day is `hours`.

    random: any; sequential: the first; time_balanced: in turn from the 24 hours of the day, so that rare
    hours are drawn dry before common ones fill the rest.
    """
    count = len(hours)
    if budget > count:
        raise DataError(
            f"split.budget_chunks={budget} is more than the {count} labelled training chunks there are:\n"
            f"use at most {count}, or 0 for all"
        )
    match strategy:
        case "random":
            return np.sort(rng.permutation(count)[:budget])
        case "sequential":
            return np.arange(budget)
        case "time_balanced":
            shuffled = rng.permutation(count)
            hour = np.floor(np.nan_to_num(hours[shuffled], nan=-1.0)).astype(np.int64)
            rank_in_hour = np.zeros(count, np.int64)
            for value in np.unique(hour):
                members = np.flatnonzero(hour == value)
                rank_in_hour[members] = np.arange(len(members))
            return np.sort(shuffled[np.argsort(rank_in_hour, kind="stable")[:budget]])
    raise ConfigError(f"split.budget_strategy={strategy!r} is not known")
