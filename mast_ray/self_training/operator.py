"""The pseudo-label operator: stored detections of chunks -> pseudo-boxes and chunk
weights (docs/method.md).

Legend: N detections, C chunks. A detection's chunk is an index into a list of chunks; boxes are (t0, f0, t1,
f1) in frames and bins of that chunk. Everything here is a pure function over arrays, so a threshold can be
searched a thousand times over one pass of inference.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray

from mast_ray.boxes.batch import EVEN_WEIGHT
from mast_ray.boxes.nesting import DOUBT, WITHIN
from mast_ray.boxes.validity import is_valid_box
from mast_ray.config.errors import DataError

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Flags = NDArray[np.bool_]
MOST_AT_ONCE = 20_000  # boxes compared with all that they meet
MOST_PAIRS = 2_000_000  # box pairs compared at once: bounds memory to a few hundred megabytes


@dataclass(frozen=True)
class PoolDetections:
    """Detections of many chunks as columns, in any order."""

    chunk: Ints  # (N,) index of the chunk
    boxes: Floats  # (N, 4) frames and bins of the chunk
    score: Floats  # (N,)
    num_chunks: int
    parts: Floats | None = None  # (N, 2) classification and centerness, where they were stored

    def where(self, keep: Flags) -> PoolDetections:
        """Only the detections that are kept; the chunks stay the same."""
        parts = None if self.parts is None else self.parts[keep]
        return replace(
            self, chunk=self.chunk[keep], boxes=self.boxes[keep], score=self.score[keep], parts=parts
        )


def weighed(detections: PoolDetections, score_weight: float) -> PoolDetections:
    """Scores made anew as classification^w centerness^(1 - w); the detector's own are those of w = 1/2."""
    if score_weight == EVEN_WEIGHT:
        return detections
    if detections.parts is None:
        raise DataError(
            "these detections hold a score only (a baseline's, or an older version's):\n"
            "leave self_train.score_weight at 0.5, or detect again into a new folder"
        )
    classification, centerness = detections.parts.T
    return replace(detections, score=classification**score_weight * centerness ** (1.0 - score_weight))


@dataclass(frozen=True)
class Validity:
    """Smallest pseudo-box, and the length of a chunk; infinite: a box may fill all of it."""

    shortest_frames: float = 10.0
    lowest_bins: float = 2.0
    chunk_frames: float = 1024.0


def survives_suppression(detections: PoolDetections, overlap: float) -> Flags:
    """(N,) which detections survive class-agnostic NMS within their chunk; of
    equal scores the earlier row wins.

    Only pairs that overlap enough in time are ever formed (a sorted join), and greedy suppression is the only fixed point of
    `no survivor above me overlaps me`: repeating that rule over all chunks at once needs a handful of steps.
    """
    keep = np.ones(len(detections.score), bool)
    first, second = _overlapping_pairs(detections, overlap)
    score = detections.score
    first_wins = (score[first] > score[second]) | ((score[first] == score[second]) & (first < second))
    winner, loser = np.where(first_wins, first, second), np.where(first_wins, second, first)
    while True:
        beaten = np.zeros(len(keep), bool)
        beaten[loser[keep[winner]]] = True
        if np.array_equal(~beaten, keep):
            return keep
        keep = ~beaten


def strongest(detections: PoolDetections, most: int) -> Flags:
    """(N,) the `most` best of every chunk; of equal scores the earlier row."""
    order = np.lexsort((-detections.score, detections.chunk))
    counts = np.bincount(detections.chunk, minlength=detections.num_chunks)
    place = np.arange(len(order)) - np.repeat(np.cumsum(counts) - counts, counts)
    keep = np.zeros(len(order), bool)
    keep[order[place < most]] = True
    return keep


def survivors(detections: PoolDetections, overlap: float, most: int) -> Flags:
    """(N,) which candidates a detector would give that suppresses at this overlap and gives so many of a chunk."""
    keep = survives_suppression(detections, overlap)
    keep[keep] = strongest(detections.where(keep), most)
    return keep


def doubted(detections: PoolDetections) -> PoolDetections:
    """Detections of chunks with the scores of boxes/nesting.py, as precise as a table keeps them."""
    order = np.argsort(detections.chunk, kind="stable")
    chunk, holder = detections.chunk[order], np.zeros(len(order))
    at = 0
    while at < len(order):  # whole chunks, some at a time: their boxes meet in many pairs
        last = chunk[min(at + MOST_AT_ONCE, len(order)) - 1]
        stop = int(np.searchsorted(chunk, last, side="right"))
        some = order[at:stop]
        holder[at:stop] = _best_holder(
            replace(
                detections,
                chunk=chunk[at:stop],
                boxes=detections.boxes[some],
                score=detections.score[some],
                parts=None,
            )
        )
        at = stop
    score = np.empty(len(order))
    score[order] = detections.score[order] * (1 - DOUBT * holder)
    return replace(detections, score=score.astype(np.float32).astype(np.float64))


def _best_holder(detections: PoolDetections) -> Floats:
    """(N,) the best score among the better boxes of a chunk that each box lies within; 0 without one."""
    boxes, score, best = detections.boxes, detections.score, np.zeros(len(detections.score))
    first, second = _overlapping_pairs(detections, 0.0)
    area = (boxes[:, 2] - boxes[:, 0]) * (boxes[:, 3] - boxes[:, 1])
    inside = np.minimum(boxes[first, 2:], boxes[second, 2:]) - np.maximum(boxes[first, :2], boxes[second, :2])
    shared = inside.prod(axis=1)
    for part, whole in ((first, second), (second, first)):
        is_held = (score[whole] > score[part]) & (shared >= WITHIN * area[part])
        np.maximum.at(best, part[is_held], score[whole[is_held]])
    return best


def _overlapping_pairs(detections: PoolDetections, overlap: float) -> tuple[Ints, Ints]:
    """Rows of all pairs of one chunk whose IoU is above `overlap`, a bounded number of candidates at a time.

    With d the length of the box that begins first, the other must begin within d (1 - overlap) of it.
    """
    boxes = detections.boxes
    order = np.lexsort((boxes[:, 0], detections.chunk))
    if not len(order):
        return order, order
    chunk, boxes = detections.chunk[order], boxes[order]
    stride = 2.0 * (np.ptp(boxes[:, 0::2]) + 1.0)  # all chunks on one line, further apart than any reach
    begin = chunk * stride + boxes[:, 0]
    reach = begin + (boxes[:, 2] - boxes[:, 0]) * (1.0 - overlap)
    count = (
        np.searchsorted(begin, reach + 4 * np.spacing(begin[-1] + stride), side="right")
        - np.arange(len(order))
        - 1
    )
    count = np.maximum(count, 0)
    total, pairs, at = np.cumsum(count), [], 0
    area = (boxes[:, 2] - boxes[:, 0]) * (boxes[:, 3] - boxes[:, 1])
    while at < len(order):
        done = total[at - 1] if at else 0
        stop = max(at + 1, int(np.searchsorted(total, done + MOST_PAIRS, side="right")))
        first = np.repeat(np.arange(at, stop), count[at:stop])
        second = (
            first
            + 1
            + np.arange(len(first))
            - np.repeat(total[at:stop] - count[at:stop] - done, count[at:stop])
        )
        span = np.minimum(boxes[first, 2], boxes[second, 2]) - boxes[second, 0]
        band = np.minimum(boxes[first, 3], boxes[second, 3]) - np.maximum(boxes[first, 1], boxes[second, 1])
        shared = np.maximum(span, 0.0) * np.maximum(band, 0.0)
        close = (shared > overlap * (area[first] + area[second] - shared)) & (chunk[first] == chunk[second])
        pairs.append((order[first[close]], order[second[close]]))
        at = stop
    return np.concatenate([p[0] for p in pairs]), np.concatenate([p[1] for p in pairs])


def is_valid(detections: PoolDetections, validity: Validity) -> Flags:
    """(N,) long enough, high enough, and not touching both time borders of the chunk."""
    boxes = torch.from_numpy(detections.boxes)
    return is_valid_box(boxes, validity.chunk_frames, validity.shortest_frames, validity.lowest_bins).numpy()


def candidates(detections: PoolDetections, overlap: float, validity: Validity) -> PoolDetections:
    """What could be a pseudo-box at some threshold: survivors of NMS that are valid."""
    kept = detections.where(survives_suppression(detections, overlap))
    return kept.where(is_valid(kept, validity))


def at_threshold(detections: PoolDetections, threshold: float | Floats) -> PoolDetections:
    """Those with score >= q; `threshold` is one value or one per chunk (C,)."""
    limit = np.broadcast_to(np.asarray(threshold, np.float64), (detections.num_chunks,))
    return detections.where(detections.score >= limit[detections.chunk])


def in_band(detections: PoolDetections, low: Floats, is_object: Flags) -> PoolDetections:
    """What is neither taught as an object nor as background: score >= the (C,) lower threshold, and no object.

    Boxes above q that are no valid pseudo-box (too short, a whole chunk) are among them: something was heard there.
    """
    return detections.where((detections.score >= low[detections.chunk]) & ~is_object)


def pseudo_boxes(
    detections: PoolDetections, threshold: float | Floats, overlap: float, validity: Validity
) -> PoolDetections:
    """The operator: NMS, score >= q, validity. Low scores never suppress higher ones, so
    the order of the last two is free.
    """
    return at_threshold(candidates(detections, overlap, validity), threshold)


def chunk_weights(
    pseudo: PoolDetections, empty_chunks: Literal["drop", "negative"], empty_weight: float
) -> tuple[Ints, Floats]:
    """Chunks to train on and their weights: the mean score of a chunk's pseudo-boxes (g-bar in the formula).

    Chunks without pseudo-boxes are left out, or kept as negatives with `empty_weight`.
    """
    count = np.bincount(pseudo.chunk, minlength=pseudo.num_chunks)
    total = np.bincount(pseudo.chunk, weights=pseudo.score, minlength=pseudo.num_chunks)
    weight = np.divide(total, count, out=np.full(pseudo.num_chunks, float(empty_weight)), where=count > 0)
    chosen = np.flatnonzero(count > 0) if empty_chunks == "drop" else np.arange(pseudo.num_chunks)
    return chosen, weight[chosen]
