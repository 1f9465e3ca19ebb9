"""Detections of overlapping windows of one recording -> detections of the recording, wherever windows begin.

Legend: N detections, E pairs of them. Boxes are (N, 4) = (t0, f0, t1, f1) of the recording.

A detection that touches a border inside the recording is a *piece*, any other is *whole*. Of the wholes
that several windows give for one call, the one that is strong and central in its window stays. Pieces of a
call that is whole somewhere are left out; the others (calls longer than a window) are joined across
windows. Stitch before asking for validity: the middle pieces of a long call touch both borders. Nothing
here compares all detections with all others: only pairs that meet in time are ever formed.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

Floats = NDArray[np.float64]
Indices = NDArray[np.int64]

BORDER_FRAMES = 4.0
SAME_CALL_IOU = 0.5
COVERED_SHARE = 0.7
LOWEST_SCORE_RATIO = 0.5
_PAIRS_AT_ONCE = 2_000_000  # about 100 MB


class Stitched(NamedTuple):
    """Detections of a recording, by begin time."""

    boxes: Floats  # (M, 4)
    scores: Floats  # (M,)
    source: Indices  # (M,) the strongest detection that each one is made of


def stitch(
    window_start: ArrayLike,
    boxes: ArrayLike,
    scores: ArrayLike,
    num_frames: float,
    window_frames: float = 1024,
) -> Stitched:
    """Merge (N, 4) detections of windows beginning at (N,) frames of a recording of `num_frames` frames.

    A box ending within BORDER_FRAMES of its window's border is taken as cut there. Two detections are parts of
    one call only if their bands overlap by SAME_CALL_IOU and the weaker has LOWEST_SCORE_RATIO of the stronger
    score: detections are stored down to a low floor, and noise must not stretch or remove a clear call.
    """
    start = np.asarray(window_start, np.float64)
    boxes = np.asarray(boxes, np.float64).reshape(-1, 4)
    scores = np.asarray(scores, np.float64)
    end = start + window_frames
    cut_before = (boxes[:, 0] <= start + BORDER_FRAMES) & (start > 0)
    cut_after = (boxes[:, 2] >= end - BORDER_FRAMES) & (end < num_frames)
    is_piece = cut_before | cut_after

    # 1. One whole per call. Weight 1 in the middle of a window, 1/2 at its border.
    offset = np.abs((boxes[:, 0] + boxes[:, 2]) / 2 - (start + end) / 2)
    strength = scores * (1 - offset / window_frames)
    first, second = _pairs(boxes, ~is_piece, start, 0.0)
    same = _iou(boxes[first], boxes[second]) >= SAME_CALL_IOU
    keep = _survivors(strength, first[same], second[same], ~is_piece)

    # 2. Leave out pieces of a call that is whole in another window.
    first, second = _pairs(boxes, keep | is_piece, start, BORDER_FRAMES)
    for piece, whole in ((first, second), (second, first)):
        hit = is_piece[piece] & keep[whole] & (scores[whole] >= LOWEST_SCORE_RATIO * scores[piece])
        piece, whole = piece[hit], whole[hit]
        covered = _covered(boxes[piece], boxes[whole]) >= COVERED_SHARE
        is_piece[piece[covered]] = False

    # 3. Join the pieces that remain.
    both = is_piece[first] & is_piece[second]
    first, second = first[both], second[both]
    joined = (
        _is_continuation(boxes, cut_before, cut_after, first, second)
        & (_band_iou(boxes[first], boxes[second]) >= SAME_CALL_IOU)
        & (_score_ratio(scores, first, second) >= LOWEST_SCORE_RATIO)
    )
    taken = np.flatnonzero(keep | is_piece)
    result = _joined(boxes, scores, taken, first[joined], second[joined])

    # 4. A weak remnant that was not joined may still lie inside a joined call.
    remnant = is_piece[result.source]
    first, second = _pairs(result.boxes, remnant, np.arange(len(remnant)), 0.0)
    drop = np.zeros(len(remnant), bool)
    for small, large in ((first, second), (second, first)):
        inside = _covered(result.boxes[small], result.boxes[large]) >= COVERED_SHARE
        inside &= _band_iou(result.boxes[small], result.boxes[large]) >= SAME_CALL_IOU
        inside &= result.scores[small] < result.scores[large]
        drop[small[inside]] = True
    return Stitched(result.boxes[~drop], result.scores[~drop], result.source[~drop])


def merge_songs(boxes: ArrayLike, scores: ArrayLike, gap_frames: float) -> Stitched:
    """Join calls of one song: neighbours at most `gap_frames` apart whose bands overlap. Gap 0: none."""
    boxes = np.asarray(boxes, np.float64).reshape(-1, 4)
    scores = np.asarray(scores, np.float64)
    everything = np.ones(len(boxes), bool)
    first, second = _pairs(boxes, everything, np.arange(len(boxes)), gap_frames)
    near = (_band_iou(boxes[first], boxes[second]) >= SAME_CALL_IOU) & (gap_frames > 0)
    return _joined(boxes, scores, np.arange(len(boxes)), first[near], second[near])


def _pairs(boxes: Floats, chosen: NDArray[np.bool_], window: NDArray, gap: float) -> tuple[Indices, Indices]:
    """Pairs (first begins no later) of chosen boxes of different windows that meet and share a bin."""
    parts = list(_pairs_in_slabs(boxes, chosen, window, gap))
    if not parts:
        return np.zeros(0, np.int64), np.zeros(0, np.int64)
    return np.concatenate([p[0] for p in parts]), np.concatenate([p[1] for p in parts])


def _pairs_in_slabs(
    boxes: Floats, chosen: NDArray[np.bool_], window: NDArray, gap: float
) -> Iterator[tuple[Indices, Indices]]:
    rows = np.flatnonzero(chosen)
    rows = rows[np.argsort(boxes[rows, 0], kind="stable")]
    begins = boxes[rows, 0]
    # Everything that begins after me and before I end (plus the gap) meets me in time.
    reach = np.searchsorted(begins, boxes[rows, 2] + gap, side="right")
    counts = np.maximum(reach - np.arange(len(rows)) - 1, 0)
    totals = np.cumsum(counts)
    at = 0
    while at < len(rows):
        done = totals[at - 1] if at else 0
        stop = max(at + 1, int(np.searchsorted(totals, done + _PAIRS_AT_ONCE, side="right")))
        mine = np.repeat(np.arange(at, stop), counts[at:stop])
        place = np.arange(len(mine)) - np.repeat(totals[at:stop] - counts[at:stop] - done, counts[at:stop])
        first, second = rows[mine], rows[mine + 1 + place]
        meet = (boxes[first, 1] < boxes[second, 3]) & (boxes[second, 1] < boxes[first, 3])
        meet &= window[first] != window[second]
        yield first[meet], second[meet]
        at = stop


def _overlap(first: Floats, second: Floats, axis: int) -> Floats:
    upper = np.minimum(first[:, axis + 2], second[:, axis + 2])
    return np.maximum(upper - np.maximum(first[:, axis], second[:, axis]), 0)


def _area(boxes: Floats) -> Floats:
    return (boxes[:, 2] - boxes[:, 0]) * (boxes[:, 3] - boxes[:, 1])


def _iou(first: Floats, second: Floats) -> Floats:
    shared = _overlap(first, second, 0) * _overlap(first, second, 1)
    return shared / np.maximum(_area(first) + _area(second) - shared, 1e-9)


def _covered(small: Floats, large: Floats) -> Floats:
    return _overlap(small, large, 0) * _overlap(small, large, 1) / np.maximum(_area(small), 1e-9)


def _band_iou(first: Floats, second: Floats) -> Floats:
    shared = _overlap(first, second, 1)
    heights = first[:, 3] - first[:, 1] + second[:, 3] - second[:, 1]
    return shared / np.maximum(heights - shared, 1e-9)


def _score_ratio(scores: Floats, first: Indices, second: Indices) -> Floats:
    low, high = np.minimum(scores[first], scores[second]), np.maximum(scores[first], scores[second])
    return low / np.maximum(high, 1e-12)


def _is_continuation(
    boxes: Floats,
    cut_before: NDArray[np.bool_],
    cut_after: NDArray[np.bool_],
    first: Indices,
    second: Indices,
) -> NDArray[np.bool_]:
    """Whether two pieces can be one call: where they begin or end apart, the shorter one was cut."""
    length = boxes[:, 2] - boxes[:, 0]
    slack = BORDER_FRAMES + 0.2 * np.minimum(length[first], length[second])
    later_is_cut = cut_before[second] | (boxes[second, 0] - boxes[first, 0] <= slack)
    earlier = np.where(boxes[first, 2] <= boxes[second, 2], first, second)
    apart = np.abs(boxes[first, 2] - boxes[second, 2])
    return later_is_cut & (cut_after[earlier] | (apart <= slack))


def _survivors(
    strength: Floats, first: Indices, second: Indices, chosen: NDArray[np.bool_]
) -> NDArray[np.bool_]:
    """Greedy suppression along pairs, strongest first: the fixed point of `no survivor beats me`."""
    first_wins = (strength[first] > strength[second]) | (
        (strength[first] == strength[second]) & (first < second)
    )
    winner, loser = np.where(first_wins, first, second), np.where(first_wins, second, first)
    keep = chosen.copy()
    while True:
        beaten = np.zeros(len(keep), bool)
        beaten[loser[keep[winner]]] = True
        new = chosen & ~beaten
        if np.array_equal(new, keep):
            return keep
        keep = new


def _joined(boxes: Floats, scores: Floats, taken: Indices, first: Indices, second: Indices) -> Stitched:
    """One box around every connected set of `taken` detections, with its best score."""
    label = np.arange(len(boxes))
    while True:  # every detection takes the smallest label in reach; label[label] jumps along chains
        low = np.minimum(label[first], label[second])
        new = label.copy()
        np.minimum.at(new, first, low)
        np.minimum.at(new, second, low)
        new = new[new]
        if np.array_equal(new, label):
            break
        label = new
    group, member = np.unique(label[taken], return_inverse=True)
    corners = np.empty((len(group), 4))
    corners[:, :2], corners[:, 2:] = np.inf, -np.inf
    np.minimum.at(corners[:, :2], member, boxes[taken, :2])
    np.maximum.at(corners[:, 2:], member, boxes[taken, 2:])
    best_last = np.lexsort((-taken, scores[taken], member))
    last_of_group = np.searchsorted(member[best_last], np.arange(len(group)), side="right") - 1
    source = taken[best_last[last_of_group]]
    order = np.lexsort((corners[:, 1], corners[:, 0]))
    return Stitched(corners[order], scores[source][order], source[order])
