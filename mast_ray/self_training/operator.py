"""The pseudo-label operator: stored detections of chunks -> pseudo-boxes and chunk weights (SPEC 7, paper appendix B).

Legend: N detections, C chunks. A detection's chunk is an index into a list of chunks; boxes are (t0, f0, t1, f1) in
frames and bins of that chunk. Everything here is a pure function over arrays, so a threshold can be searched a
thousand times over one pass of inference.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray

from mast_ray.boxes.batch import Detections
from mast_ray.boxes.suppression import keep_after_suppression
from mast_ray.boxes.validity import is_valid_box

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Flags = NDArray[np.bool_]
MOST_PAIRS = 4_000_000  # box pairs compared at once: bounds memory to tens of megabytes


@dataclass(frozen=True)
class PoolDetections:
    """Detections of many chunks as columns, in any order."""

    chunk: Ints  # (N,) index of the chunk
    boxes: Floats  # (N, 4) frames and bins of the chunk
    score: Floats  # (N,)
    num_chunks: int

    def where(self, keep: Flags) -> PoolDetections:
        """Only the detections that are kept; the chunks stay the same."""
        return replace(self, chunk=self.chunk[keep], boxes=self.boxes[keep], score=self.score[keep])


@dataclass(frozen=True)
class Validity:
    """Smallest pseudo-box, and the length of a chunk."""

    shortest_frames: float = 10.0
    lowest_bins: float = 2.0
    chunk_frames: float = 1024.0


def survives_suppression(detections: PoolDetections, overlap: float) -> Flags:
    """(N,) which detections survive class-agnostic NMS within their chunk.

    Chunks are packed into rectangles of similar size, so that neither a loop over chunks nor a matrix over the whole
    pool is needed.
    """
    keep = np.zeros(len(detections.score), bool)
    if not len(keep):
        return keep
    order = np.lexsort(
        (-detections.score, detections.chunk)
    )  # by chunk, best first; equal scores keep their order
    chunks, first, count = np.unique(detections.chunk[order], return_index=True, return_counts=True)
    by_size = np.argsort(count, kind="stable")
    done = 0
    while done < len(chunks):
        # all chunks with at most `slots` detections, as many as fit the bound
        slots = int(2 ** np.ceil(np.log2(max(1, count[by_size[done]]))))
        last = int(np.searchsorted(count[by_size], slots, side="right"))
        last = min(last, done + max(1, MOST_PAIRS // slots**2))
        rows = by_size[done:last]
        position = first[rows, None] + np.arange(slots)[None]  # (R, slots) into order
        used = np.arange(slots)[None] < count[rows, None]
        index = order[np.minimum(position, len(order) - 1)]
        survivors = keep_after_suppression(
            torch.from_numpy(detections.boxes[index]), torch.from_numpy(used), overlap
        ).numpy()
        keep[index[survivors]] = True
        done = last
    return keep


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


def pseudo_boxes(
    detections: PoolDetections, threshold: float | Floats, overlap: float, validity: Validity
) -> PoolDetections:
    """The operator: NMS, score >= q, validity. Low scores never suppress higher ones, so the order of the last two is free."""
    return at_threshold(candidates(detections, overlap, validity), threshold)


def chunk_weights(
    pseudo: PoolDetections, empty_chunks: Literal["drop", "negative"], empty_weight: float
) -> tuple[Ints, Floats]:
    """Chunks to train on and their weights: the mean score of a chunk's pseudo-boxes (paper: g-bar).

    Chunks without pseudo-boxes are left out, or kept as negatives with `empty_weight`.
    """
    count = np.bincount(pseudo.chunk, minlength=pseudo.num_chunks)
    total = np.bincount(pseudo.chunk, weights=pseudo.score, minlength=pseudo.num_chunks)
    weight = np.divide(total, count, out=np.full(pseudo.num_chunks, float(empty_weight)), where=count > 0)
    chosen = np.flatnonzero(count > 0) if empty_chunks == "drop" else np.arange(pseudo.num_chunks)
    return chosen, weight[chosen]


def from_padded(detections: Detections, first_chunk: int, num_chunks: int) -> PoolDetections:
    """Columns from a model's padded output; slot rows are chunks first_chunk, first_chunk + 1, ..."""
    is_used = detections.is_valid.cpu().numpy()
    row, _ = np.nonzero(is_used)
    return PoolDetections(
        row + first_chunk,
        detections.corners.cpu().double().numpy()[is_used],
        detections.score.cpu().double().numpy()[is_used],
        num_chunks,
    )
