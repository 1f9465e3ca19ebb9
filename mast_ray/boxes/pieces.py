"""Pieces of what stands out of the background, and every way of putting neighbours together: which of them belong to one call, and
which groups are a whole call, is for judges to say who have seen an expert's boxes (models/baselines/pieces.py).

Pieces are joined two groups at a time, those that belong together most first, until nothing does: a tree, of which every
node is a box that may be a call. Legend: N pieces, P pairs of them, G groups. Boxes are (t0, f0, t1, f1).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from scipy import ndimage

from mast_ray.boxes.geometry import pairwise_covered
from mast_ray.boxes.standing_out import closed

Floats = NDArray[np.float32]
Ints = NDArray[np.int64]

LEVEL_DB = 5.0  # above the background
GAP_FRAMES, GAP_BINS = 2, 1  # holes that part nothing
LEAST_FRAMES = 2
MOST_PIECES = 250  # of a chunk, the largest: in rain the time to join them grows with the third power
FARTHEST_FRAMES = 150  # pieces further apart are never one call
LEAST_TOGETHER = 0.03  # groups that belong together less stay apart
NEAR_EDGE_FRAMES = 100.0
NUM_LEVELS, STEP_DB = 9, 5.0
DEPTH_DB = 25.0  # below its peak, where a group may end: a loud sound reaches further than anybody boxes it
HEARD_DB, STANDS_OUT_DB = (-3.0, 25.0), 3.0  # of the surroundings of a box
BESIDE_FRAMES, BESIDE_BINS = (5, 50), (3, 12)
PAIR_FEATURES, CANDIDATE_FEATURES = 19, 38


class Pieces(NamedTuple):
    """Connected cells above the level."""

    contours: (
        Floats  # (L, N, 4) boxes of their cells above LEVEL_DB, above STEP_DB more, ...; inf where none is
    )
    peak_db: Floats
    peak_bin: Floats
    mean_db: Floats
    cells: Floats
    smooth: NDArray[np.float16]  # (T, F) what they were found in

    @property
    def corners(self) -> Floats:
        """(N, 4)"""
        return self.contours[0]


class Groups(NamedTuple):
    """Nodes of the tree: the pieces themselves first."""

    members: NDArray[np.bool_]  # (G, N)
    together: Floats  # (G,) how much its two halves belong together; 1 of a piece
    beyond: Floats  # (G,) and how much it does with what it was joined with next; 0 where with nothing


def pieces_of(smooth: Floats) -> Pieces:
    """(T, F) what `smoothed` of boxes/standing_out.py gives -> pieces in order of time."""
    labels, count = ndimage.label(closed(smooth > LEVEL_DB, GAP_FRAMES, GAP_BINS))
    inside = np.flatnonzero(labels)
    own, level = labels.ravel()[inside], smooth.ravel()[inside]
    cells = np.bincount(own, minlength=count + 1)[1:]
    mean_db = np.bincount(own, level, minlength=count + 1)[1:] / cells
    peak = inside[
        np.lexsort((level, own))[np.cumsum(cells) - 1]
    ]  # the last of every piece's cells, in order of level
    spans = np.array(
        [(t.start, f.start, t.stop, f.stop) for t, f in ndimage.find_objects(labels)], np.float32
    ).reshape(-1, 4)
    kept = np.flatnonzero(spans[:, 2] - spans[:, 0] >= LEAST_FRAMES)
    kept = np.sort(kept[np.argsort(-cells[kept], kind="stable")[:MOST_PIECES]])
    return Pieces(
        _contours(smooth, labels, spans[kept], kept + 1),
        smooth.ravel()[peak[kept]],
        (peak[kept] % smooth.shape[1]).astype(np.float32),
        mean_db[kept].astype(np.float32),
        cells[kept].astype(np.float32),
        smooth.astype(np.float16),
    )


def _contours(smooth: Floats, labels: NDArray[np.int32], corners: Floats, number: Ints) -> Floats:
    """Boxes of the named pieces at every level."""
    found = np.full((NUM_LEVELS, len(number), 4), np.inf, np.float32)
    found[:, :, 2:] = -np.inf
    found[0] = corners
    for level in range(1, NUM_LEVELS):
        above = np.where(smooth > LEVEL_DB + level * STEP_DB, labels, 0)
        spans = ndimage.find_objects(above)
        if not spans:
            break
        for row, one in enumerate(number):
            if one <= len(spans) and (span := spans[one - 1]) is not None:
                found[level, row] = (span[0].start, span[1].start, span[0].stop, span[1].stop)
    return found


def pairs_of(pieces: Pieces) -> Ints:
    """(P, 2) pieces that might belong to one call, the smaller of a pair first."""
    first, second = np.triu_indices(len(pieces.cells), 1)
    begin, end = pieces.corners[:, 0], pieces.corners[:, 2]
    gap = np.maximum(begin[first], begin[second]) - np.minimum(end[first], end[second])
    pairs = np.stack((first, second), axis=1)[gap <= FARTHEST_FRAMES]
    is_larger = pieces.cells[pairs[:, 0]] > pieces.cells[pairs[:, 1]]
    pairs[is_larger] = pairs[is_larger, ::-1]
    return pairs


def pair_features(pieces: Pieces, pairs: Ints) -> Floats:
    """(P, PAIR_FEATURES) how two pieces lie to each other, and how alike they are."""
    small, large = pairs.T
    low, high = pieces.corners[:, :2], pieces.corners[:, 2:]
    size = high - low
    gap = np.maximum(low[small], low[large]) - np.minimum(high[small], high[large])  # frames, bins
    overlap = np.maximum(-gap, 0.0)
    extent = np.maximum(high[small], high[large]) - np.minimum(low[small], low[large])
    log_size = np.log(size)
    alike = [
        trait[small] - trait[large]
        for trait in (pieces.peak_db, pieces.peak_bin, pieces.mean_db, np.log(pieces.cells))
    ]
    columns = (
        np.maximum(gap, 0.0),
        overlap / np.minimum(size[small], size[large]),
        overlap / extent,
        log_size[small],
        log_size[large],
        np.log(extent),
        np.stack([*alike, pieces.peak_db[small], pieces.peak_db[large], pieces.peak_bin[large]], axis=1),
    )
    return np.concatenate(columns, axis=1).astype(np.float32)


def groups_of(pieces: Pieces, pairs: Ints, belongs: Floats) -> Groups:
    """The tree of pieces, by how much the two of every pair belong together (0 to 1): groups as much as their pieces do on
    average, every cell counting alike.
    """
    num = len(pieces.cells)
    weight = pieces.cells.astype(np.float64)
    between = np.zeros((num, num))
    between[pairs[:, 0], pairs[:, 1]] = between[pairs[:, 1], pairs[:, 0]] = belongs
    shared = between * np.outer(weight, weight)
    members = [np.eye(num, dtype=bool)]
    together, beyond = [1.0] * num, [0.0] * num
    node = list(range(num))  # that each row of the matrices stands for
    own = np.eye(num, dtype=bool)
    for _ in range(num - 1):
        row, other = divmod(int(between.argmax()), num)
        best = float(between[row, other])
        if best < LEAST_TOGETHER:
            break
        beyond[node[row]] = beyond[node[other]] = best
        node[row] = len(together)
        own[row] |= own[other]
        members.append(own[row][None].copy())
        together.append(best)
        beyond.append(0.0)
        shared[row] += shared[other]
        shared[:, row] += shared[:, other]
        shared[row, row] = 0.0
        weight[row] += weight[other]
        shared[other] = shared[:, other] = between[other] = between[:, other] = 0.0
        between[row] = between[:, row] = shared[row] / (weight[row] * weight)
    return Groups(np.concatenate(members), np.array(together, np.float32), np.array(beyond, np.float32))


class Candidates(NamedTuple):
    """Boxes that may be calls: of every group all of it, and of a loud one what is not too far below its peak."""

    boxes: Floats  # (C, 4)
    group: Ints  # (C,) whose it is
    level: Ints  # (C,) of its contour, in steps


def candidates_of(pieces: Pieces, groups: Groups) -> Candidates:
    peak = np.where(groups.members, pieces.peak_db, -np.inf).max(axis=1, initial=-np.inf)
    inner = np.ceil((peak - DEPTH_DB - LEVEL_DB) / STEP_DB).clip(0, NUM_LEVELS - 1).astype(np.int64)
    loud = np.flatnonzero(inner > 0)
    group = np.concatenate((np.arange(len(peak)), loud))
    level = np.concatenate((np.zeros(len(peak), np.int64), inner[loud]))
    has = groups.members[group][:, :, None]
    low = np.where(has, pieces.contours[level][:, :, :2], np.inf).min(axis=1, initial=np.inf)
    high = np.where(has, pieces.contours[level][:, :, 2:], -np.inf).max(axis=1, initial=-np.inf)
    return Candidates(np.concatenate((low, high), axis=1).astype(np.float32), group, level)


def candidate_features(pieces: Pieces, groups: Groups, candidates: Candidates) -> Floats:
    """(C, CANDIDATE_FEATURES) what the group of a candidate is made of, and what lies in and around its box."""
    boxes, of, level = candidates
    has, cells, peak = groups.members[of], pieces.cells, pieces.peak_db
    size = boxes[:, 2:] - boxes[:, :2]
    own = pieces.corners[:, 2:] - pieces.corners[:, :2]
    mass, count = has @ cells, has.sum(axis=1)
    strange = _mostly_inside(pieces.corners, boxes) & ~has
    mean_peak = (has @ peak) / count
    spread = np.sqrt(np.maximum((has @ peak**2) / count - mean_peak**2, 0.0))
    edge = np.minimum(boxes[:, 0], len(pieces.smooth) - boxes[:, 2])
    columns = (
        np.where(has, peak, 0.0).max(axis=1, initial=0.0),
        (has @ (pieces.mean_db * cells)) / mass,
        np.log(mass),
        mass / size.prod(axis=1),
        np.log(count),
        groups.together[of],
        groups.beyond[of],
        *np.log(size).T,
        boxes[:, 1],
        boxes[:, 3],
        (strange @ cells) / mass,
        np.where(strange, peak, 0.0).max(axis=1, initial=0.0),
        np.where(has, cells, 0.0).max(axis=1, initial=0.0) / mass,
        spread,
        np.minimum(edge, NEAR_EDGE_FRAMES),
        (has @ own[:, 0]) / size[:, 0],
        (has @ own[:, 1]) / count / size[:, 1],
        np.where(has, own[:, 0], 0.0).max(axis=1, initial=0.0) / size[:, 0],
        level,
        *_surroundings(pieces.smooth, boxes),
    )
    return np.stack(columns, axis=1).astype(np.float32)


def _surroundings(smooth: NDArray[np.float16], boxes: Floats) -> NDArray[np.float64]:
    """(18, G) means of the box, before, behind, above and below it, and of its outermost quarters"""
    t0, f0, t1, f1 = boxes.T
    long, high = t1 - t0, f1 - f0
    beside = np.clip(0.5 * long, *BESIDE_FRAMES)
    over = np.clip(0.5 * high, *BESIDE_BINS)
    quarter, part = 0.25 * long + 1.0, 0.25 * high + 1.0
    parts = (
        (t0, f0, t1, f1),
        (t0 - beside, f0, t0, f1),
        (t1, f0, t1 + beside, f1),
        (t0, f1, t1, f1 + over),
        (t0, f0 - over, t1, f0),
        (t0, f0, t0 + quarter, f1),
        (t1 - quarter, f0, t1, f1),
        (t0, f0, t1, f0 + part),
        (t0, f1 - part, t1, f1),
    )
    sums = _sums(smooth)
    means = [_means(sums, *(edge.astype(np.int64) for edge in one)) for one in parts]
    return np.concatenate(means, axis=0)


def _sums(smooth: NDArray[np.float16]) -> NDArray[np.float64]:
    """(2, T + 1, F + 1) sums over all cells before every corner, of levels and of cells that stand out at all: the mean of any
    box takes four of them.
    """
    maps = np.stack((np.clip(smooth, *HEARD_DB), smooth > STANDS_OUT_DB)).astype(np.float64)
    return np.pad(maps.cumsum(axis=1).cumsum(axis=2), ((0, 0), (1, 0), (1, 0)))


def _means(sums: NDArray[np.float64], t0: Ints, f0: Ints, t1: Ints, f1: Ints) -> NDArray[np.float64]:
    """(2, G) over what of the boxes lies in the chunk; 0 where nothing does"""
    frames, bins = sums.shape[1] - 1, sums.shape[2] - 1
    t0, t1, f0, f1 = t0.clip(0, frames), t1.clip(0, frames), f0.clip(0, bins), f1.clip(0, bins)
    total = sums[:, t1, f1] - sums[:, t0, f1] - sums[:, t1, f0] + sums[:, t0, f0]
    return np.asarray(total / np.maximum((t1 - t0) * (f1 - f0), 1))


def belongs_to(corners: Floats, boxes: Floats) -> Ints:
    """(N,) of the boxes that hold at least half of a piece the smallest; -1 where none does."""
    if not len(boxes):
        return np.full(len(corners), -1, np.int64)
    held = _mostly_inside(corners, boxes).T
    area = (boxes[:, 2:] - boxes[:, :2]).prod(axis=1)
    return np.where(held.any(axis=1), np.where(held, area, np.inf).argmin(axis=1), -1)


def _mostly_inside(corners: Floats, boxes: Floats) -> NDArray[np.bool_]:
    """(G, N) whether half of a piece's box lies in a group's."""
    covered = pairwise_covered(torch.from_numpy(corners), torch.from_numpy(boxes))
    return np.asarray((covered >= 0.5).T.numpy())
