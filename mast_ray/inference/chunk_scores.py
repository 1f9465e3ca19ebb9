"""A detector scored on a split: found in memory during training, or stored by a stage. One arithmetic for both.

Training scores what it has just found, `mast evaluate` what it reads back from Parquet. Both measure boxes in seconds and
hertz first, so a box at the very edge of an overlap falls to the same side, and F1 agrees to the last digit.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from mast_ray.config.tree import Config
from mast_ray.evaluation.scoring import Scored, score_chunks
from mast_ray.inference.chunk_detector import BatchBoxes, ChunkDetector, StoredDetections
from mast_ray.inference.pool_rows import measured
from mast_ray.models.detector import NUM_CANDIDATES
from mast_ray.self_training.operator import (
    PoolDetections,
    Validity,
    doubted,
    is_valid,
    survivors,
    weighed,
)
from mast_ray.self_training.pool import boxes_in_chunks, joined, keys_of, read_pool
from mast_ray.storage.storage import Storage
from mast_ray.tables.prepared import Prepared
from mast_ray.tables.reading.chunk_sets import ChunkSet, chunks_of_split
from mast_ray.tables.reading.reader import ChunkReader
from mast_ray.training.files.post_processing import PostProcessing
from mast_ray.training.worker import Worker

CHUNKS = "chunks"  # folder of a scored model's detections, beside its sheet of scores


def as_detected(config: Config, post: PostProcessing | None = None) -> StoredDetections:
    """What a model's detections of a chunk are: suppressed once, by the evaluation's own overlap, or candidates for the
    post-processing of its card. Whoever wants to search over suppression stores other boxes for it.
    """
    knobs = config.evaluate
    if post is not None:
        return unsuppressed(config)
    return StoredDetections(knobs.score_floor, knobs.nms_overlap, knobs.max_detections, with_parts=True)


def unsuppressed(config: Config) -> StoredDetections:
    """All that a detector would suppress among: any overlap can then be tried as if it had been its own."""
    most = max(NUM_CANDIDATES, config.evaluate.max_detections)
    return StoredDetections(config.evaluate.score_floor, 1.0, most, with_parts=True)


def found_in_chunks(
    prepared: Prepared, detector: ChunkDetector, reader: ChunkReader, worker: Worker | None = None
) -> PoolDetections:
    """Detections of every chunk of a reader. With a worker, all ranks share the work and get the whole."""
    rank, world_size = (worker.rank, worker.world_size) if worker is not None else (0, 1)
    batches = detector.detections(reader, rank, world_size)
    own = joined([_read_back(prepared, reader.chunks, batch) for batch in batches], len(reader.chunks))
    if worker is None or world_size == 1:
        return own
    return joined(worker.gather(own), len(reader.chunks))


def _read_back(prepared: Prepared, chunks: ChunkSet, found: BatchBoxes) -> PoolDetections:
    """A batch as it would come out of a table."""
    return _measured_pool(prepared, chunks, found)[1]


def _measured_pool(
    prepared: Prepared, chunks: ChunkSet, found: BatchBoxes
) -> tuple[NDArray[np.int64], PoolDetections]:
    """(rows of the batch that do not lie in padding, these as they would come out of a table)"""
    rows, *measures = measured(prepared, chunks, found)
    chunk = found.chunk[rows]
    boxes = boxes_in_chunks(chunks.chunk[chunk].astype(np.int64), *measures)
    parts = None if found.parts is None else found.parts[rows].astype(np.float64)
    return rows, PoolDetections(chunk, boxes, found.score[rows].astype(np.float64), len(chunks), parts)


def delivered_boxes(
    prepared: Prepared, chunks: ChunkSet, found: BatchBoxes, post: PostProcessing, most: int
) -> BatchBoxes:
    """Of candidates of some chunks what the card's post-processing keeps, with its scores: as the search did it, over boxes
    as they come out of a table.
    """
    rows, pool = _measured_pool(prepared, chunks, found)
    pool = weighed(pool, post.score_weight)
    survive = survivors(pool, post.nms_overlap, most)
    rows, pool = rows[survive], pool.where(survive)
    pool = doubted(pool) if post.doubts_nested else pool
    kept = is_valid(pool, Validity(post.min_frames, post.min_bins, math.inf))
    chosen = rows[kept]
    parts = None if found.parts is None else found.parts[chosen]
    sites = prepared.recordings.column("site").to_pylist() if post.site_thresholds else []
    at = [sites[row] or "" for row in chunks.recording[found.chunk[chosen]]] if sites else []
    scores = post.at_sites(pool.score[kept], at).astype(np.float32)
    return BatchBoxes(found.chunk[chosen], found.boxes[chosen], scores, found.num_chunks, parts)


def doubted_boxes(prepared: Prepared, chunks: ChunkSet, found: BatchBoxes) -> BatchBoxes:
    """Detections of some chunks with doubt about boxes within better ones, over boxes as they come out of a table."""
    rows, pool = _measured_pool(prepared, chunks, found)
    parts = None if found.parts is None else found.parts[rows]
    scores = doubted(pool).score.astype(np.float32)
    return BatchBoxes(found.chunk[rows], found.boxes[rows], scores, found.num_chunks, parts)


def score_stored(
    prepared: Prepared, stage: Storage, splits: Sequence[str], config: Config
) -> dict[str, Scored]:
    """Detections that a stage has stored, in the chunks of some splits, against the archive's labels."""
    if not splits:
        return {}
    everything = chunks_of_split(prepared, *splits)
    found = read_pool(stage, prepared, everything)
    key = keys_of(everything)[found.chunk]
    scored = {}
    for split in splits:
        chunks = chunks_of_split(prepared, split)
        place = np.searchsorted(keys_of(chunks), key)
        is_own = np.append(keys_of(chunks), -1)[place] == key
        own = replace(found.where(is_own), chunk=place[is_own], num_chunks=len(chunks))
        scored[split] = score_chunks(prepared, chunks, own, config)
    return scored
