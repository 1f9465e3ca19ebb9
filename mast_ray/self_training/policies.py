"""Policies for the confidence threshold q: fixed, tuned on validation, or per group
(site and hour) from the scores, or for precision. Below q a second threshold may begin a band of boxes to ignore.

A group with too few detections falls back to its site, then to the whole pool, then to the given threshold;
the source of every group's threshold is kept, so that a report can say where q came from.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from mast_ray.self_training.order_statistics import InMemory, Scores, quantiles

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


class Found(NamedTuple):
    """A threshold and whose scores it is of; None: they were too few."""

    threshold: float | None
    source: str


Estimate = Callable[[Scores], float | None]


def mixture_threshold(score: Scores) -> float | None:
    """Score at which a two-component Gaussian mixture on the logits turns from
    background to event; None if unclear.

    Unclear: too few scores, or components closer than their spread (then the scores do not show two kinds).
    """
    from sklearn.mixture import GaussianMixture

    if len(score) < FEWEST_SCORES:
        return None
    if len(score) > MOST_SCORES:
        shares = (np.arange(MOST_SCORES) + 0.5) / MOST_SCORES
        ends = _logit(score.at(np.array([0, len(score) - 1])))
        logit = quantiles(score, shares, _logit)
    else:
        logit = ends = _logit(score.at(np.arange(len(score))))
    if np.ptp(ends) < 1e-6:
        return None
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


def _logit(score: Floats) -> Floats:
    clipped = np.clip(score, 1e-4, 1 - 1e-4)
    return np.log(clipped / (1 - clipped))


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


def quantile_threshold(score: Scores, kept_share: float) -> float:
    """Score above which `kept_share` of the detections lie."""
    return float(quantiles(score, np.array([1.0 - np.clip(kept_share, 0.0, 1.0)]))[0])


def precision_threshold(
    score: Floats, is_hit: Flags, target: float, at_least: float = 0.0
) -> tuple[float, bool]:
    """(lowest q, from `at_least` on, at which at least `target` of the detections kept are hits; whether there is one).

    Where the target is out of reach it is the q of the highest precision; `at_least` where too few are detected, or none
    of them is a hit.
    """
    order = np.argsort(-score, kind="stable")
    ordered, hits = score[order], np.cumsum(is_hit[order])
    last = np.flatnonzero(np.append(ordered[1:] != ordered[:-1], True)) if len(ordered) else order
    kept = last + 1
    ordered, precision = ordered[last][kept >= FEWEST_KEPT], (hits[last] / kept)[kept >= FEWEST_KEPT]
    if not len(ordered) or not is_hit.any():
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


def is_by_group(policy: Policy) -> bool:
    """Whether every group has a threshold of its own, made of its scores."""
    return policy in ("per_group_mixture", "per_group_quantile", "precision")


def estimator(policy: Policy, kept_share: float, fewest: int) -> Estimate:
    """What a policy makes of the scores of a group, a site or the pool; None where they are fewer than `fewest`, or
    do not show two kinds.
    """

    def estimate(score: Scores) -> float | None:
        if len(score) < max(1, fewest):
            return None
        return (
            mixture_threshold(score)
            if policy == "per_group_mixture"
            else quantile_threshold(score, kept_share)
        )

    return estimate


def site_thresholds(estimate: Estimate, groups: Sequence[Scores], whole: Scores) -> list[Found]:
    """One threshold per group of a site, from its own scores or from those of the `whole` site."""
    at_site = cache(lambda: estimate(whole))
    found = []
    for score in groups:
        own = Found(estimate(score), "group")
        found.append(own if own.threshold is not None else Found(at_site(), "site"))
    return found


def with_last_resorts(
    found: Sequence[Found], at_pool: Callable[[], float | None], threshold: float
) -> list[Found]:
    """Groups without a threshold take that of the whole pool, or else the given one."""
    if all(one.threshold is not None for one in found):
        return list(found)
    of_pool = at_pool()
    resort = Found(threshold, "fixed") if of_pool is None else Found(of_pool, "pool")
    return [one if one.threshold is not None else resort for one in found]


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
    if not is_by_group(policy):
        return GroupThresholds(np.full(num_groups, threshold), (policy,) * num_groups)
    estimate = estimator(policy, kept_share, min_detections)
    own, of_site = _parts(score, group, num_groups), np.asarray(site_of_group)
    found = [Found(None, "site")] * num_groups
    for site in np.unique(of_site).tolist():
        members = np.flatnonzero(of_site == site).tolist()
        parts = [InMemory(own[index]) for index in members]
        whole = InMemory(np.concatenate([part.values for part in parts]))
        for index, one in zip(members, site_thresholds(estimate, parts, whole), strict=True):
            found[index] = one
    found = with_last_resorts(found, lambda: estimate(InMemory(score)), threshold)
    return GroupThresholds(np.array([one.threshold for one in found]), tuple(one.source for one in found))


def _parts(score: Floats, group: Ints, num_groups: int) -> list[Floats]:
    """The scores of every group, by one sort."""
    order = np.argsort(group, kind="stable")
    ends = np.searchsorted(group[order], np.arange(num_groups), side="right")
    return np.split(score[order], ends)[:num_groups]
