"""Policies for the confidence threshold q: fixed, tuned on validation, or per group
(site and hour) from the scores, or for precision. Below q a second threshold may begin a band of boxes to ignore.

A group with too few detections falls back to its site, then to the whole pool, then to the given threshold;
the source of every group's threshold is kept, so that a report can say where q came from.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Literal

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Flags = NDArray[np.bool_]
Policy = Literal["fixed", "tuned", "per_group_mixture", "per_group_quantile", "precision", "precision_pool"]
FEWEST_SCORES = 20  # a mixture of two on fewer scores is noise
FEWEST_KEPT = 20  # a precision of fewer detections is no estimate
SATURATED = 0.95  # of all hits: below their threshold hardly a call is left to find
REGULARISATION = 1e-3  # added to variances of logits
# A mixture is fitted to so many quantiles of more scores: 80 million of a pool take no longer.
MOST_SCORES = 2048


@dataclass(frozen=True)
class GroupThresholds:
    """A threshold per group and where each came from: fixed, tuned, group, site or pool."""

    threshold: Floats  # (G,)
    source: tuple[str, ...]  # (G,)


def mixture_threshold(score: Floats) -> float | None:
    """Score at which a two-component Gaussian mixture on the logits turns from
    background to event; None if unclear.

    Unclear: too few scores, or components closer than their spread (then the scores do not show two kinds).
    """
    from sklearn.mixture import GaussianMixture

    if len(score) < FEWEST_SCORES:
        return None
    clipped = np.clip(score, 1e-4, 1 - 1e-4)
    logit = np.log(clipped / (1 - clipped))
    if np.ptp(logit) < 1e-6:
        return None
    if len(logit) > MOST_SCORES:
        logit = np.quantile(logit, (np.arange(MOST_SCORES) + 0.5) / MOST_SCORES)
    weights, centres, variances = two_parts(logit)
    model = GaussianMixture(
        2, reg_covar=REGULARISATION, weights_init=weights, means_init=centres[:, None],
        precisions_init=1 / (variances[:, None, None] + REGULARISATION),
    ).fit(logit[:, None])  # fmt: skip
    low, high = np.argsort(model.means_[:, 0])
    means, spread = model.means_[:, 0], np.sqrt(model.covariances_[:, 0, 0])
    if means[high] - means[low] < max(spread[low], spread[high]):
        return None
    line = np.linspace(means[low], means[high], 512)
    is_event = model.predict_proba(line[:, None])[:, high] >= 0.5
    crossing = line[np.argmax(is_event)] if is_event.any() else means[high]
    return float(1 / (1 + np.exp(-crossing)))


def two_parts(values: Floats) -> tuple[Floats, Floats, Floats]:
    """Shares, means and variances of the two parts, low and high, of least squared distance to their means.

    In one dimension the best parts are the values below and above some cut (values that are not all
    equal), so every cut is tried at once.
    """
    ordered = np.sort(values)
    count = np.arange(1, len(ordered))
    below, above = np.cumsum(ordered)[:-1], np.cumsum(ordered[::-1])[-2::-1]
    between = below**2 / count + above**2 / (
        len(ordered) - count
    )  # the larger, the closer values are to their means
    parts = np.split(ordered, [int(np.argmax(between)) + 1])
    shares = np.array([len(part) for part in parts]) / len(ordered)
    return shares, np.array([part.mean() for part in parts]), np.array([part.var() for part in parts])


def quantile_threshold(score: Floats, kept_share: float) -> float:
    """Score above which `kept_share` of the detections lie."""
    return float(np.quantile(score, 1.0 - np.clip(kept_share, 0.0, 1.0)))


def precision_threshold(
    score: Floats, is_hit: Flags, target: float, at_least: float = 0.0
) -> tuple[float, bool]:
    """(lowest q, from `at_least` on, at which at least `target` of the detections kept are hits; whether there is one).

    Where the target is out of reach it is the q of the highest precision; `at_least` where too few are detected.
    """
    order = np.argsort(-score, kind="stable")
    ordered, hits = score[order], np.cumsum(is_hit[order])
    last = np.flatnonzero(np.append(ordered[1:] != ordered[:-1], True)) if len(ordered) else order
    kept = last + 1
    ordered, precision = ordered[last][kept >= FEWEST_KEPT], (hits[last] / kept)[kept >= FEWEST_KEPT]
    if not len(ordered):
        return at_least, False
    reached = precision >= target
    chosen = ordered[reached if reached.any() else precision >= precision.max()].min()
    return max(float(chosen), at_least), bool(reached.any())


def saturation_threshold(score: Floats, is_hit: Flags) -> float:
    """Highest threshold that still keeps SATURATED of all hits; NaN without hits."""
    hits = np.sort(score[is_hit])[::-1]
    return float(hits[int(np.ceil(SATURATED * len(hits))) - 1]) if len(hits) else float("nan")


def kept_share(score: Floats, threshold: float) -> float:
    """Share of detections at or above a threshold; 0 without detections."""
    return float((score >= threshold).mean()) if len(score) else 0.0


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
    if policy in ("fixed", "tuned", "precision_pool"):
        return GroupThresholds(np.full(num_groups, threshold), (policy,) * num_groups)
    if policy in ("per_group_quantile", "precision"):
        estimate: Callable[[Floats], float | None] = lambda values: quantile_threshold(values, kept_share)  # noqa: E731
    else:
        estimate = mixture_threshold
    own, of_site = _parts(score, group, num_groups), np.asarray(site_of_group)

    @cache
    def at_site(site: int) -> float | None:
        members = np.flatnonzero(of_site == site)
        return _estimate(estimate, np.concatenate([own[index] for index in members]), min_detections)

    @cache
    def at_pool() -> float | None:
        return _estimate(estimate, score, min_detections)

    values, sources = np.empty(num_groups), []
    for index in range(num_groups):
        value, source = _estimate(estimate, own[index], min_detections), "group"
        if value is None:
            value, source = at_site(int(of_site[index])), "site"
        if value is None:
            value, source = at_pool(), "pool"
        if value is None:
            value, source = threshold, "fixed"
        values[index] = value
        sources.append(source)
    return GroupThresholds(values, tuple(sources))


def _parts(score: Floats, group: Ints, num_groups: int) -> list[Floats]:
    """The scores of every group, by one sort."""
    order = np.argsort(group, kind="stable")
    ends = np.searchsorted(group[order], np.arange(num_groups), side="right")
    return np.split(score[order], ends)[:num_groups]


def _estimate(estimate: Callable[[Floats], float | None], score: Floats, fewest: int) -> float | None:
    return estimate(score) if len(score) >= max(1, fewest) else None
