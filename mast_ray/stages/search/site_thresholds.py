"""A threshold per site in place of one for all, where recordings that had no part in choosing them say it is better.

Legend: D detections, G truths, R recordings. Each site's recordings are dealt into two halves by turns; thresholds of one
half are tried on the other. In the half they were chosen on, more thresholds would always look better than one. Each is
chosen by the rule for one threshold (`best_threshold`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from mast_ray.evaluation.breakdown import subset
from mast_ray.evaluation.matching import Matches
from mast_ray.evaluation.metrics import best_threshold

FEWEST_CALLS = 20  # in a half of a site: a threshold of fewer is noise

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]


@dataclass(frozen=True)
class SiteThresholds:
    """Thresholds by name of site (none where one for all is as good), and F1 by which they were chosen."""

    thresholds: dict[str, float]
    f1: float  # with them, on all that was looked at
    halves_f1: float  # of thresholds by site, each half by those of the other
    halves_f1_of_one: float  # of one threshold for all, likewise

    def text(self) -> str:
        """For people: what was chosen, and why."""
        if np.isnan(self.halves_f1):
            return f"one threshold for all sites: fewer than two have {2 * FEWEST_CALLS} calls to choose their own by"
        chosen = "a threshold for every site" if self.thresholds else "one threshold for all sites"
        return (
            f"{chosen}: on recordings that had no part in the choice F1 {self.halves_f1:.4f} by site, "
            f"{self.halves_f1_of_one:.4f} with one"
        )


class _Events(NamedTuple):
    """Detections and truths with their site and half."""

    matches: Matches
    site: Ints  # (D,)
    half: Ints  # (D,)
    truth_site: Ints  # (G,)
    truth_half: Ints  # (G,)


def thresholds_by_site(
    matches: Matches, recording_of_group: Ints, sites: list[str], threshold: float
) -> SiteThresholds:
    """`sites` names the site of every recording; `threshold` is the one for all, and that of sites with few calls or
    without a hit.
    """
    names, site_of = np.unique(np.array(sites, dtype=str), return_inverse=True)
    half_of = _halves(site_of, np.unique(recording_of_group))
    found, truth = recording_of_group[matches.group], recording_of_group[matches.truth_group]
    events = _Events(matches, site_of[found], half_of[found], site_of[truth], half_of[truth])  # fmt: skip
    calls = np.array([np.bincount(events.truth_site[events.truth_half == half], minlength=len(names)) for half in (0, 1)])  # fmt: skip
    chosen = np.flatnonzero((calls.min(0) >= FEWEST_CALLS) & (names != ""))
    everything = np.full(len(names), threshold)
    one = _f1(events, everything, (0, 1))
    if len(chosen) < 2:  # of one site alone, its threshold is the one for all
        return SiteThresholds({}, one, float("nan"), float("nan"))
    by_site, of_one = np.zeros(3), np.zeros(3)
    for half in (0, 1):
        other = 1 - half
        single = np.full(
            len(names), _best(events, threshold, events.half == other, events.truth_half == other)
        )
        of_one += _counts(events, single, (half,))
        by_site += _counts(events, _of_sites(events, chosen, single, (other,)), (half,))
    halves, halves_of_one = _f1_of(by_site), _f1_of(of_one)
    if not halves > halves_of_one:
        return SiteThresholds({}, one, halves, halves_of_one)
    best = _of_sites(events, chosen, everything, (0, 1))
    thresholds = {str(names[site]): float(best[site]) for site in chosen}
    return SiteThresholds(thresholds, _f1(events, best, (0, 1)), halves, halves_of_one)


def _halves(site_of: Ints, looked_at: Ints) -> Ints:
    """(R,) 0 and 1 by turns among the recordings of a site that were looked at."""
    half_of = np.zeros(len(site_of), np.int64)
    for site in np.unique(site_of[looked_at]):
        own = looked_at[site_of[looked_at] == site]
        half_of[own] = np.arange(len(own)) % 2
    return half_of


def _of_sites(events: _Events, chosen: Ints, otherwise: Floats, halves: tuple[int, ...]) -> Floats:
    """(S,) thresholds: the best of every chosen site in some halves, those of `otherwise` elsewhere."""
    thresholds = otherwise.copy()
    for site in chosen:
        in_site = (events.site == site) & np.isin(events.half, halves)
        truth_in_site = (events.truth_site == site) & np.isin(events.truth_half, halves)
        thresholds[site] = _best(events, otherwise[site], in_site, truth_in_site)
    return thresholds


def _best(events: _Events, otherwise: float, among: Bools, truth_among: Bools) -> float:
    """Threshold to be frozen for some events; `otherwise` where none of them is a hit."""
    found = best_threshold(subset(events.matches, among, truth_among))
    return found if np.isfinite(found) else otherwise


def _counts(events: _Events, threshold_of_site: Floats, halves: tuple[int, ...]) -> Floats:
    """Hits, kept detections and truths in some halves."""
    kept = (events.matches.score >= threshold_of_site[events.site]) & np.isin(events.half, halves)
    truths = np.isin(events.truth_half, halves).sum()
    return np.array([(kept & events.matches.is_true_positive).sum(), kept.sum(), truths], np.float64)


def _f1_of(counts: Floats) -> float:
    hits, kept, truths = counts.tolist()
    return 2.0 * hits / (kept + truths) if kept + truths else float("nan")


def _f1(events: _Events, threshold_of_site: Floats, halves: tuple[int, ...]) -> float:
    return _f1_of(_counts(events, threshold_of_site, halves))
