"""A small review sheet, and what it says about precision at any threshold.

Legend: D detections, n reviewed rows, H thresholds, K cells, B bands. Strata are bands of score, equally reviewed;
inside a band rows are drawn systematically in order of site and hour, so that every site and hour appears in its share
and all rows of a band have the same chance. Both the draw and the precision need only counts, by cell (band, site and
hour) and by band above a threshold: they can be added up over files. The precision spoken of is that of these D
detections, not of a population of archives.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import special

from mast_ray.evaluation.intervals import LEVEL

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Counts = NDArray[Any]

NUM_BANDS = 8
FEWEST_PER_BAND = (
    3  # a band cut by a threshold needs this many verdicts above it, else all its verdicts speak
)


class PrecisionCurve(NamedTuple):
    """Precision of the detections at or above each threshold, with limits; all (H,)."""

    threshold: Floats
    precision: Floats
    low: Floats
    high: Floats
    num_detections: Ints
    num_reviewed: Ints


class Cell(NamedTuple):
    """Detections alike in all that a sheet is spread over; hour -1: unknown."""

    band: int
    site: str
    hour: int


class Places(NamedTuple):
    """Which detections of which cells are drawn, in a random order."""

    cell: Ints  # (n,)
    place: Ints  # (n,) among the detections of the cell, in their order in the table


def cells_of(band: Ints, site: ArrayLike, hour: ArrayLike) -> tuple[list[Cell], Ints]:
    """(cells that hold something, in order; (D,) which of them each detection is in)."""
    hours = np.nan_to_num(np.asarray(hour, np.float64).reshape(-1), nan=-1.0).astype(np.int64)
    names, site_code = np.unique(np.asarray(site).astype(str), return_inverse=True)
    codes, cell = np.unique((band * len(names) + site_code) * 32 + (hours + 1), return_inverse=True)
    bands, rest = np.divmod(codes, 32 * max(1, len(names)))
    found = zip(bands.tolist(), (rest // 32).tolist(), (rest % 32 - 1).tolist(), strict=True)
    return [Cell(of, str(names[number]), own) for of, number, own in found], cell.reshape(-1)


def draw_places(cells: Sequence[Cell], count: Ints, size: int, seed: int) -> Places:
    """Choose `size` detections of cells that hold `count` (K,) each; cells are in order."""
    rng = np.random.default_rng(seed)
    band = np.array([cell.band for cell in cells], np.int64)
    in_band = np.bincount(band, weights=count).astype(np.int64)
    share = _even_shares(in_band, min(size, int(count.sum())))
    first = np.cumsum(count) - count  # of every cell, in the order of bands
    chosen = [np.zeros(0, np.int64)]
    for number in np.flatnonzero(share).tolist():
        step = in_band[number] / share[number]
        places = np.floor((np.arange(share[number]) + rng.random()) * step).astype(np.int64)
        chosen.append(places + in_band[:number].sum())
    cell = np.searchsorted(first, np.concatenate(chosen), side="right") - 1
    own, times = np.unique(cell, return_counts=True)
    # which of a cell is left to chance: neighbours in a table are often of one song
    parts = [rng.choice(int(count[k]), n, replace=False) for k, n in zip(own, times.tolist(), strict=True)]
    mixed = rng.permutation(len(cell))
    place = np.concatenate([np.zeros(0, np.int64), *parts])
    return Places(np.repeat(own, times)[mixed], place[mixed])


def band_edges_of(score: ArrayLike, num_bands: int = NUM_BANDS) -> Floats:
    """Equally wide bands from the lowest to the highest score of a table: the same for sheet and verdicts. Its lowest
    and highest score alone give the same.
    """
    score = np.asarray(score, np.float64).reshape(-1)
    if len(score) == 0:
        return np.array([0.0, 1.0])
    return np.linspace(score.min(), np.nextafter(score.max(), np.inf), num_bands + 1)


def weights_of_bands(reviewed_score: ArrayLike, total: Ints, band_edges: Floats) -> Floats:
    """(n,) how many detections each verdict speaks for, where (B,) bands hold `total` of them."""
    band = band_of_score(reviewed_score, band_edges)
    return total[band] / np.bincount(band, minlength=len(total))[band]


def num_above(thresholds: ArrayLike, score: ArrayLike, band_edges: Floats) -> Ints:
    """(H, B) how many detections of every band lie at or above each threshold."""
    score = np.asarray(score, np.float64).reshape(-1)
    band, num_bands = band_of_score(score, band_edges), len(band_edges) - 1
    limits = np.asarray(thresholds, np.float64).reshape(-1).tolist()
    return np.array([np.bincount(band[score >= limit], minlength=num_bands) for limit in limits])


def band_of_score(score: ArrayLike, edges: Floats) -> Ints:
    """(D,) band of every score; scores beyond the outer edges go to the outer bands."""
    band = np.searchsorted(edges, np.asarray(score, np.float64), side="right") - 1
    return np.clip(band, 0, len(edges) - 2)


def precision_of_counts(
    thresholds: ArrayLike,
    counts: Ints,
    reviewed_score: ArrayLike,
    is_right: ArrayLike,
    band_edges: Floats,
) -> PrecisionCurve:
    """Precision at (H,) thresholds from n verdicts on a sheet, where (H, B) `counts` say how many detections lie above each.

    Bands are weighted by their detections above the threshold. Limits: Clopper-Pearson at the
    effective sample size of the weighted estimate (Korn and Graubard 1998), which keep their
    level when nearly all verdicts agree.
    """
    thresholds = np.asarray(thresholds, np.float64).reshape(-1)
    reviewed = np.asarray(reviewed_score, np.float64).reshape(-1)
    right = np.asarray(is_right, bool).reshape(-1)
    num_bands = len(band_edges) - 1
    reviewed_band = band_of_score(reviewed, band_edges)
    all_reviewed = np.bincount(reviewed_band, minlength=num_bands)
    all_right = np.bincount(reviewed_band, weights=right, minlength=num_bands)
    out = np.full((3, len(thresholds)), np.nan)
    num_reviewed = np.zeros(len(thresholds), np.int64)
    num_kept = np.zeros(len(thresholds), np.int64)
    for column, threshold in enumerate(thresholds):
        total = counts[column]
        above = reviewed >= threshold
        seen = np.bincount(reviewed_band[above], minlength=num_bands)
        good = np.bincount(reviewed_band[above], weights=right[above], minlength=num_bands)
        num_kept[column], num_reviewed[column] = total.sum(), seen.sum()
        thin = seen < np.minimum(FEWEST_PER_BAND, total)
        basis_seen, basis_good = np.where(thin, all_reviewed, seen), np.where(thin, all_right, good)
        known = basis_seen > 0
        if total[~known].sum() > 0.5 * total.sum() or total.sum() == 0:
            continue  # most detections lie in bands nobody reviewed
        out[:, column] = _weighted_limits(
            total[known], (total - seen)[known], good[known], basis_seen[known], basis_good[known]
        )
    return PrecisionCurve(thresholds, out[0], out[1], out[2], num_kept, num_reviewed)


def _weighted_limits(
    total: Counts, unseen: Counts, good: Counts, basis_seen: Counts, basis_good: Counts
) -> tuple[float, float, float]:
    """Estimate and limits from strata of `total` detections: `good` ones were seen to be right, and the
    `unseen` are judged by `basis_good` of `basis_seen` verdicts.
    """
    estimate = float((good + unseen * basis_good / basis_seen).sum() / total.sum())
    if not unseen.any():
        return estimate, estimate, estimate
    # Rates are shrunk a little for the variance only: a band of three right verdicts is not certain.
    rate = (basis_good + 1.0) / (basis_seen + 2.0)
    variance = (unseen * (1 + unseen / basis_seen) * rate * (1 - rate)).sum() / total.sum() ** 2
    centre = (good + unseen * rate).sum() / total.sum()
    effective = max(float(centre * (1 - centre) / variance), 1.0)
    hits, tail = estimate * effective, (1 - LEVEL) / 2
    low = float(special.betaincinv(hits, effective - hits + 1, tail)) if hits > 1e-9 else 0.0
    high = float(special.betaincinv(hits + 1, effective - hits, 1 - tail)) if effective - hits > 1e-9 else 1.0
    return estimate, low, high


def _even_shares(available: Ints, size: int) -> Ints:
    """How many to draw from each band: as equal as the bands allow, `size` in all."""
    share = np.zeros(len(available), np.int64)
    left = size
    while left > 0:
        open_bands = np.flatnonzero(share < available)
        if len(open_bands) == 0:
            break
        each = max(1, left // len(open_bands))
        give = np.minimum(each, available[open_bands] - share[open_bands])
        give = give * (np.cumsum(give) <= left)
        if give.sum() == 0:
            give[0] = left
        share[open_bands] += give
        left -= int(give.sum())
    return share


def threshold_for_precision(curve: PrecisionCurve, target: float) -> float:
    """Lowest threshold whose lower limit reaches the target, none above it being known
    to miss it; NaN when none does.

    Few detections lie above the highest thresholds, so their lower limits fall
    again: that is no reason to refuse.
    """
    order = np.argsort(curve.threshold)
    threshold, low, high = curve.threshold[order], curve.low[order], curve.high[order]
    misses = np.nan_to_num(high, nan=1.0) < target
    clear_above = ~np.logical_or.accumulate(misses[::-1])[::-1]
    good = (np.nan_to_num(low, nan=0.0) >= target) & clear_above
    return float(threshold[good].min()) if good.any() else float("nan")
