"""Policies for the confidence threshold q: fixed, tuned on validation, or per group (site and hour) from the scores.

A group with too few detections falls back to its site, then to the whole pool, then to the given threshold; the source
of every group's threshold is kept, so that a report can say where q came from.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Policy = Literal["fixed", "tuned", "per_group_mixture", "per_group_quantile"]
FEWEST_SCORES = 20  # a mixture of two on fewer scores is noise


@dataclass(frozen=True)
class GroupThresholds:
    """A threshold per group and where each came from: fixed, tuned, group, site or pool."""

    threshold: Floats  # (G,)
    source: tuple[str, ...]  # (G,)


def mixture_threshold(score: Floats) -> float | None:
    """Score at which a two-component Gaussian mixture on the logits turns from background to event; None if unclear.

    Unclear: too few scores, or components closer than their spread (then the scores do not show two kinds).
    """
    from sklearn.mixture import GaussianMixture

    if len(score) < FEWEST_SCORES:
        return None
    clipped = np.clip(score, 1e-4, 1 - 1e-4)
    logit = np.log(clipped / (1 - clipped))
    if np.ptp(logit) < 1e-6:
        return None
    model = GaussianMixture(2, random_state=0, n_init=1, reg_covar=1e-3).fit(logit[:, None])
    low, high = np.argsort(model.means_[:, 0])
    means, spread = model.means_[:, 0], np.sqrt(model.covariances_[:, 0, 0])
    if means[high] - means[low] < max(spread[low], spread[high]):
        return None
    line = np.linspace(means[low], means[high], 512)
    is_event = model.predict_proba(line[:, None])[:, high] >= 0.5
    crossing = line[np.argmax(is_event)] if is_event.any() else means[high]
    return float(1 / (1 + np.exp(-crossing)))


def quantile_threshold(score: Floats, kept_share: float) -> float:
    """Score above which `kept_share` of the detections lie."""
    return float(np.quantile(score, 1.0 - np.clip(kept_share, 0.0, 1.0)))


def group_thresholds(
    policy: Policy,
    score: Floats,
    group: Ints,
    site_of_group: Ints,
    threshold: float,
    kept_share: float = 0.0,
    min_detections: int = 200,
) -> GroupThresholds:
    """One threshold per group for (N,) scores in groups 0..G-1; `site_of_group` (G,) names each group's site.

    `threshold` is the fixed or tuned value and the last fallback; `kept_share` is the share of validation detections
    that the tuned threshold keeps (quantile matching).
    """
    num_groups = len(site_of_group)
    if policy in ("fixed", "tuned"):
        return GroupThresholds(np.full(num_groups, threshold), (policy,) * num_groups)
    if policy == "per_group_quantile":
        estimate: Callable[[Floats], float | None] = lambda values: quantile_threshold(values, kept_share)  # noqa: E731
    else:
        estimate = mixture_threshold
    site = site_of_group[group] if num_groups else group
    pool = _estimate(estimate, score, min_detections)
    sites = {int(s): _estimate(estimate, score[site == s], min_detections) for s in np.unique(site_of_group)}
    values, sources = np.empty(num_groups), []
    for index in range(num_groups):
        own = _estimate(estimate, score[group == index], min_detections)
        candidates = (("group", own), ("site", sites[int(site_of_group[index])]), ("pool", pool))
        source, value = next(((s, v) for s, v in candidates if v is not None), ("fixed", threshold))
        values[index] = value
        sources.append(source)
    return GroupThresholds(values, tuple(sources))


def _estimate(estimate: Callable[[Floats], float | None], score: Floats, fewest: int) -> float | None:
    return estimate(score) if len(score) >= max(1, fewest) else None
