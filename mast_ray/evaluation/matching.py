"""The one matcher: within a group, detections take truths greedily in order of
score, at IoU >= 0.5.

Legend: D detections, G truths, K candidate pairs. A group is a chunk or a stitched recording. Boxes are
(t0, f0, t1, f1) in any unit; a box whose f0 or f1 is NaN is time-only and is matched by time IoU alone.

A detection takes the free truth it overlaps most; equal scores go in order of (group, row), equal overlaps to
the later truth: pycocotools' rules. Because a lower-scored detection never disturbs a higher-scored one, a
match made once holds at every score threshold.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]

PAIRS_PER_BLOCK = 4_000_000  # bounds memory (about 0.5 GB) when long boxes overlap many


@dataclass(frozen=True)
class Matches:
    """What became of every detection and every truth, at all score thresholds at once."""

    group: Ints  # (D,)
    score: Floats  # (D,)
    truth_index: Ints  # (D,) row of the truth it took; -1: false alarm
    iou: Floats  # (D,) with that truth; 0 for false alarms
    order: Ints  # (D,) rows of the detections, best first
    truth_group: Ints  # (G,)
    detection_index: Ints  # (G,) row of the detection that took it; -1: missed at every threshold
    truth_is_time_only: Bools  # (G,) matched by time IoU, having no frequency limits

    @property
    def is_true_positive(self) -> Bools:
        return self.truth_index >= 0

    @property
    def num_truth(self) -> int:
        return len(self.truth_group)


def match(
    det_group: ArrayLike,
    det_boxes: ArrayLike,
    det_score: ArrayLike,
    truth_group: ArrayLike,
    truth_boxes: ArrayLike,
    iou: float = 0.5,
) -> Matches:
    """Match (D, 4) scored boxes to (G, 4) truths inside equal integer groups."""
    if not 0.0 < iou <= 1.0:
        raise ValueError(f"iou={iou} must lie in (0, 1]")
    det_group = np.asarray(det_group, np.int64).reshape(-1)
    truth_group = np.asarray(truth_group, np.int64).reshape(-1)
    det_score = np.asarray(det_score, np.float64).reshape(-1)
    det_boxes = np.asarray(det_boxes, np.float64).reshape(-1, 4)
    truth_boxes = np.asarray(truth_boxes, np.float64).reshape(-1, 4)
    if np.isnan(det_score).any():
        raise ValueError("a detection has a score that is not a number")
    num_det, num_truth = len(det_group), len(truth_group)

    order = score_order(det_group, det_score)
    rank = np.empty(num_det, np.int64)
    rank[order] = np.arange(num_det)
    det, truth, overlap = candidate_pairs(det_group, det_boxes, truth_group, truth_boxes, iou)
    chosen = _resolve(rank, det, truth, overlap, num_truth)

    truth_index = np.full(num_det, -1, np.int64)
    detection_index = np.full(num_truth, -1, np.int64)
    matched_iou = np.zeros(num_det)
    truth_index[det[chosen]] = truth[chosen]
    detection_index[truth[chosen]] = det[chosen]
    matched_iou[det[chosen]] = overlap[chosen]
    truth_is_time_only = np.asarray(np.isnan(truth_boxes[:, 1::2]).any(axis=1))
    return Matches(
        det_group,
        det_score,
        truth_index,
        matched_iou,
        order,
        truth_group,
        detection_index,
        truth_is_time_only,
    )


def match_in_time(
    det_group: ArrayLike,
    det_boxes: ArrayLike,
    det_score: ArrayLike,
    truth_group: ArrayLike,
    truth_boxes: ArrayLike,
    iou: float = 0.5,
) -> Matches:
    """The same, comparing time spans only: what can be asked of labels that have no frequencies."""
    spans = np.array(truth_boxes, np.float64).reshape(-1, 4)
    spans[:, 1::2] = np.nan
    return match(det_group, det_boxes, det_score, truth_group, spans, iou)


def score_order(group: Ints, score: Floats) -> Ints:
    """(D,) rows from best to worst score; ties in order of group, then row."""
    if len(group) >= 2 and not (np.diff(group) >= 0).all():
        return np.lexsort((group, -score))
    order = np.argsort(-score)  # unstable: five times faster than stable, and ties are put in order below
    run = np.concatenate([[0], np.cumsum(np.diff(score[order]) != 0)])[: len(order)] * len(order)
    return np.sort(run + order) - run


def paired_iou(first: Floats, second: Floats) -> Floats:
    """IoU of row k of (K, 4) with row k of (K, 4); of time spans alone where
    either has no frequency limits.
    """
    span = np.minimum(first[:, 2], second[:, 2]) - np.maximum(first[:, 0], second[:, 0])
    band = np.minimum(first[:, 3], second[:, 3]) - np.maximum(first[:, 1], second[:, 1])  # NaN: time-only
    time_only = np.isnan(band)
    height_first, height_second = first[:, 3] - first[:, 1], second[:, 3] - second[:, 1]
    if time_only.any():
        band, height_first, height_second = (
            np.where(time_only, 1.0, v) for v in (band, height_first, height_second)
        )
    inside = np.maximum(span, 0.0) * np.maximum(band, 0.0)
    area_first = (first[:, 2] - first[:, 0]) * height_first
    area_second = (second[:, 2] - second[:, 0]) * height_second
    union = area_first + area_second - inside
    return np.divide(inside, union, out=np.zeros_like(inside), where=union > 0)


def candidate_pairs(
    det_group: Ints, det_boxes: Floats, truth_group: Ints, truth_boxes: Floats, iou: float
) -> tuple[Ints, Ints, Floats]:
    """(K,) detection rows, truth rows and overlaps of all pairs of one group with IoU >=
    iou; rows of one detection together.

    A join by sorted time windows: time IoU is never below box IoU, so with d the length of a detection the
    truth must begin between begin - d (1 - iou) / iou and begin + d (1 - iou).
    """
    none = np.zeros(0, np.int64), np.zeros(0, np.int64), np.zeros(0)
    if len(det_group) == 0 or len(truth_group) == 0:
        return none
    det_dense, truth_dense, _ = dense_groups(det_group, truth_group)
    origin = min(det_boxes[:, 0].min(), truth_boxes[:, 0].min())
    length = det_boxes[:, 2] - det_boxes[:, 0]
    before, after = length * (1 - iou) / iou, length * (1 - iou)
    reach = max(det_boxes[:, 2].max(), truth_boxes[:, 2].max()) - origin + before.max() + 1.0
    stride = 2.0 * reach  # all groups lie on one line, further apart than any window
    truth_key = truth_dense * stride + (truth_boxes[:, 0] - origin)
    det_key = det_dense * stride + (det_boxes[:, 0] - origin)
    slack = 4 * np.spacing(max(truth_key.max(), det_key.max()) + stride)

    truth_order = np.argsort(truth_key)
    det_order = np.argsort(det_key)  # ordered queries keep searchsorted in cache
    det_key, before, after = det_key[det_order], before[det_order], after[det_order]
    truth_key = truth_key[truth_order]
    first = np.searchsorted(truth_key, det_key - before - slack, side="left")
    count = np.searchsorted(truth_key, det_key + after + slack, side="right") - first

    least = min(iou, 1 - 1e-10)  # as pycocotools: identical boxes match at iou=1
    pieces = []
    ends = np.cumsum(count)
    start = 0
    while start < len(count):
        base = ends[start - 1] if start else 0
        stop = max(start + 1, int(np.searchsorted(ends, base + PAIRS_PER_BLOCK, side="right")))
        block = slice(start, stop)
        det = np.repeat(det_order[block], count[block])
        offset = np.arange(len(det)) - np.repeat(ends[block] - count[block] - base, count[block])
        truth = truth_order[np.repeat(first[block], count[block]) + offset]
        overlap = paired_iou(det_boxes[det], truth_boxes[truth])
        keep = (overlap >= least) & (det_group[det] == truth_group[truth])
        pieces.append((det[keep], truth[keep], overlap[keep]))
        start = stop
    return tuple(np.concatenate(column) for column in zip(*pieces, strict=True))  # type: ignore[return-value]


def dense_groups(det_group: Ints, truth_group: Ints) -> tuple[Ints, Ints, Ints]:
    """Groups as numbers 0, 1, ... and the id of each number; ids that are small already are only shifted."""
    if len(det_group) + len(truth_group) == 0:
        return det_group, truth_group, np.zeros(0, np.int64)
    both = [group for group in (det_group, truth_group) if len(group)]
    low, high = min(int(g.min()) for g in both), max(int(g.max()) for g in both)
    if high - low <= 4 * (len(det_group) + len(truth_group)):
        return det_group - low, truth_group - low, np.arange(low, high + 1)
    ids, dense = np.unique(np.concatenate([det_group, truth_group]), return_inverse=True)
    return dense[: len(det_group)], dense[len(det_group) :], ids


def _resolve(rank: Ints, det: Ints, truth: Ints, overlap: Floats, num_truth: int) -> Ints:
    """(M,) indices of the pairs that greedy matching chooses.

    In rounds over all groups together: every waiting detection asks for its best truth not yet
    refused, a truth keeps the best-ranked that asked. As all truths prefer by the same rank, this ends
    where one-by-one greedy ends, after as many rounds as the longest chain of refusals (a handful),
    not as many as there are detections.
    """
    if len(det) == 0:
        return np.zeros(0, np.int64)
    several = np.flatnonzero(det[1:] == det[:-1])
    if len(several):  # best overlap first, later truth first among equals, within the rows of a detection
        mixed = np.zeros(len(det), bool)
        mixed[several] = mixed[several + 1] = True
        rows = np.flatnonzero(mixed)
        starts = np.concatenate([[True], det[rows][1:] != det[rows][:-1]])
        within = rows[np.lexsort((-truth[rows], -overlap[rows], np.cumsum(starts)))]
        pair = np.arange(len(det))
        pair[rows] = within
    else:
        pair = np.arange(len(det))
    wanted = truth[pair]
    ask_rank = rank[det]
    is_last = np.concatenate([det[1:] != det[:-1], [True]])

    nobody = len(det)
    holder = np.full(num_truth, nobody, np.int64)  # the ask (position in `pair`) a truth keeps
    asks = np.flatnonzero(np.concatenate([[True], det[1:] != det[:-1]]))
    while len(asks):
        asks = asks[np.argsort(-ask_rank[asks], kind="stable")]
        held = holder[wanted[asks]]
        better = (held == nobody) | (ask_rank[asks] < ask_rank[np.minimum(held, nobody - 1)])
        refused = asks[~better]
        asking, outdone = asks[better], held[better]
        holder[wanted[asking]] = asking  # the last written wins, and the best rank is written last
        lost = asking[holder[wanted[asking]] != asking]
        released = outdone[(outdone != nobody) & (holder[wanted[asking]] == asking)]
        losers = np.concatenate([refused, lost, released])
        asks = losers[~is_last[losers]] + 1
    return pair[holder[holder != nobody]]
