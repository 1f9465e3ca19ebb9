"""Precision, recall, F1, average precision and mean IoU from one set of matches.

Legend: D detections, G truths, H thresholds. A detection is kept when score >= threshold. Everything here is a function of
`Matches`, which hold at every threshold: match once, then ask as often as you like. What is undefined (precision
without detections, anything without truth) is NaN, never a flattering 0 or 1.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from mast_ray.evaluation.matching import Matches, dense_groups

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
APName = Literal["area", "11_point", "101_point"]

CHANCE = 2.0  # standard errors by which a lower F1 may be bad luck
MOST_BY_CHANCE = 0.1  # of the highest F1: a detector that finds little is not given any threshold


@dataclass(frozen=True)
class Metrics:
    """One line of a results table; micro unless named macro."""

    threshold: float
    num_truth: int
    num_detections: int  # kept at the threshold
    num_true_positives: int
    precision: float
    recall: float
    f1: float
    f1_macro: float  # mean over groups holding a truth or a kept detection
    ap_area: float
    ap_11_point: float
    ap_101_point: float
    mean_iou: float  # of true positives
    num_time_only_truth: int = 0  # truths without frequency limits, matched by time alone
    time_precision: float = np.nan  # of all events matched by time alone
    time_recall: float = np.nan
    time_f1: float = np.nan


class ThresholdCurve(NamedTuple):
    """Counts and scores at every asked threshold; all (H,)."""

    threshold: Floats
    num_detections: Ints
    num_true_positives: Ints
    precision: Floats
    recall: Floats
    f1: Floats


def summarise(
    matches: Matches,
    threshold: float,
    ap_over: Literal["all", "kept"] = "all",
    in_time: Matches | None = None,
) -> Metrics:
    """All figures at one threshold; those in time need the matches by time alone.

    AP ranks all detections ("all") or only those above the threshold ("kept": how the paper's 0.0909 = 1/11
    come about, one precise detector whose recall ends below 0.1).
    """
    kept = matches.score >= threshold
    hits = kept & matches.is_true_positive
    num_kept, num_hits, num_truth = int(kept.sum()), int(hits.sum()), matches.num_truth
    ranked = matches.order if ap_over == "all" else matches.order[kept[matches.order]]
    is_hit, is_ranked = matches.is_true_positive[ranked], has_ranks(matches.score[ranked])
    time_kept, time_hits = np.nan, np.nan
    if in_time is not None:
        passing = in_time.score >= threshold
        time_kept, time_hits = float(passing.sum()), float((passing & in_time.is_true_positive).sum())
    return Metrics(
        threshold=float(threshold),
        num_truth=num_truth,
        num_detections=num_kept,
        num_true_positives=num_hits,
        precision=_ratio(num_hits, num_kept),
        recall=_ratio(num_hits, num_truth),
        f1=_ratio(2 * num_hits, num_kept + num_truth),
        f1_macro=f1_macro(matches, threshold),
        ap_area=average_precision(is_hit, num_truth, "area", is_ranked),
        ap_11_point=average_precision(is_hit, num_truth, "11_point", is_ranked),
        ap_101_point=average_precision(is_hit, num_truth, "101_point", is_ranked),
        mean_iou=_ratio(math.fsum(matches.iou[hits]), num_hits),  # exact: units come in any order
        num_time_only_truth=int(matches.truth_is_time_only.sum()),
        time_precision=_ratio(time_hits, time_kept),
        time_recall=_ratio(time_hits, num_truth),
        time_f1=_ratio(2 * time_hits, time_kept + num_truth),
    )


def has_ranks(score: Floats) -> bool:
    """Whether scores put detections in any order: those of a table without scores are all 1."""
    return len(score) == 0 or bool(score.min() < score.max())


def average_precision(
    is_true_positive: ArrayLike, num_truth: int, kind: APName = "area", is_ranked: bool = True
) -> float:
    """AP of detections ordered best first: precision, made non-increasing in
    recall, averaged over recall levels.

    `area`: over all num_truth levels k / num_truth (the exact area); `11_point`: over 0, 0.1 .. 1 (VOC 2007);
    `101_point`: over 0, 0.01 .. 1 (COCO). Levels never reached count as 0. Detections that are not ranked have one
    precision, whatever order their recordings come in.
    """
    hit = np.asarray(is_true_positive, bool).reshape(-1)
    if num_truth == 0:
        return float("nan")
    position = np.flatnonzero(hit)  # precision only peaks where a hit arrives
    envelope = np.arange(1, len(position) + 1) / (position + 1.0)
    envelope = np.maximum.accumulate(envelope[::-1])[::-1]
    if not is_ranked:
        envelope = np.full(len(position), len(position) / max(len(hit), 1))
    match kind:
        case "area":
            return float(envelope.sum() / num_truth)
        case "11_point":
            levels = np.arange(11) / 10  # not linspace: its 0.6 lies above 3 / 5
        case "101_point":
            levels = np.linspace(0.0, 1.0, 101)  # COCO's own floats, to agree with it to the last digit
    recall = np.arange(1, len(position) + 1) / num_truth
    first = np.searchsorted(recall, levels, side="left")
    return float(np.append(envelope, 0.0)[first].mean())


def f1_over_thresholds(matches: Matches, thresholds: ArrayLike | None = None) -> ThresholdCurve:
    """Counts, precision, recall and F1 at (H,) thresholds; at every distinct score, ascending, when None.

    Matching is not included: it is done once, by `match`.
    """
    score = np.sort(matches.score)
    hit_score = np.sort(matches.score[matches.is_true_positive])
    thresholds = np.unique(score) if thresholds is None else np.asarray(thresholds, np.float64).reshape(-1)
    kept = len(score) - np.searchsorted(score, thresholds, side="left")
    hits = len(hit_score) - np.searchsorted(hit_score, thresholds, side="left")
    num_truth = matches.num_truth
    with np.errstate(invalid="ignore", divide="ignore"):
        return ThresholdCurve(
            thresholds, kept, hits, hits / kept, hits / np.float64(num_truth), 2.0 * hits / (kept + num_truth)
        )


def best_threshold(matches: Matches) -> float:
    """A threshold to be tuned on validation and frozen elsewhere: the middle of all scores around the one of highest micro F1 at which
    F1 is no lower beyond chance. Without a single hit there is nothing to tune on: NaN.

    The highest F1 of a few calls is at a lucky score, the middle of those as good is less so; of many calls they are
    the same. Chance is two standard errors of a share of the labelled calls, a tenth of the highest F1 at the most. Among scores of equal F1 the highest counts as the
    best, and every score holds down to the next one below.
    """
    curve = f1_over_thresholds(matches)
    if len(curve.f1) == 0 or not curve.num_true_positives.any():
        return float("nan")
    highest = float(np.nanmax(curve.f1))
    best = int(np.flatnonzero(curve.f1 >= highest)[-1])
    share = (highest * matches.num_truth + 1) / (
        matches.num_truth + 2
    )  # even where all is right it may be luck
    error = (share * (1 - share) / matches.num_truth) ** 0.5
    lowest = highest - min(CHANCE * error, MOST_BY_CHANCE * highest)
    lower = np.flatnonzero(curve.f1 < lowest)
    below = int(lower[lower < best].max(initial=-1))
    last = int(lower[lower > best].min(initial=len(curve.f1))) - 1
    return float((curve.threshold[max(below, 0)] + curve.threshold[last]) / 2)


def f1_macro(matches: Matches, threshold: float) -> float:
    """Mean F1 over groups that hold a truth or a kept detection; silent groups
    rightly left silent say nothing.
    """
    kept = matches.score >= threshold
    counts = group_counts(matches, kept)
    total = counts.num_detections + counts.num_truth
    busy = total > 0
    return float((2.0 * counts.num_true_positives[busy] / total[busy]).mean()) if busy.any() else float("nan")


class GroupCounts(NamedTuple):
    """Per group (ascending ids, some may be empty): kept detections, hits, truths,
    and the sum of the hits' IoU.
    """

    group: Ints
    num_detections: Ints
    num_true_positives: Ints
    num_truth: Ints
    iou_sum: Floats


def group_counts(matches: Matches, kept: NDArray[np.bool_]) -> GroupCounts:
    """Sufficient statistics of every group, for the detections in the mask `kept`."""
    det_dense, truth_dense, groups = dense_groups(matches.group, matches.truth_group)
    hits = kept & matches.is_true_positive
    size = len(groups)
    return GroupCounts(
        groups,
        np.bincount(det_dense[kept], minlength=size),
        np.bincount(det_dense[hits], minlength=size),
        np.bincount(truth_dense, minlength=size),
        np.bincount(det_dense[hits], weights=matches.iou[hits], minlength=size).astype(np.float64),
    )


def _ratio(above: float, below: float) -> float:
    return float(above / below) if below else float("nan")
