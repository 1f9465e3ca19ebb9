"""Stored detections against labels, chunk by chunk: the same figures for every split, model and round.

The threshold is tuned on validation and frozen everywhere else; intervals resample recordings.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from mast_ray.config.errors import DataError
from mast_ray.config.tree import Config
from mast_ray.evaluation.intervals import (
    RecordingSums,
    bootstrap_intervals,
    paired_differences,
    recording_sums,
)
from mast_ray.evaluation.matching import Matches, match
from mast_ray.evaluation.metrics import best_threshold, summarise
from mast_ray.self_training.operator import PoolDetections
from mast_ray.self_training.pool import read_pool
from mast_ray.storage.storage import Storage
from mast_ray.tables.prepared import Prepared
from mast_ray.tables.reading.chunk_sets import ChunkSet, box_table, chunks_of_split

SCORED_SPLITS = ("val", "test", "temporal_ood", "site_ood", "ood_dev")
COUNTS = ("num_truth", "num_detections", "num_true_positives")


@dataclass(frozen=True, eq=False)
class ScoredChunks:
    """Detections matched to labels in some chunks; groups of the matches are chunks."""

    matches: Matches
    recording_of_chunk: NDArray[np.int64]  # (C,) 0, 1, ... in order of appearance
    num_recordings: int

    def sums(self, threshold: float) -> RecordingSums:
        return recording_sums(self.matches, threshold, self.recording_of_chunk, self.num_recordings)

    def figures(self, threshold: float, num_resamples: int, seed: int) -> dict[str, Any]:
        """Every figure as {estimate, low, high}, and the counts."""
        intervals = bootstrap_intervals(self.sums(threshold), num_resamples, seed)
        found: dict[str, Any] = {name: interval._asdict() for name, interval in intervals.items()}
        metrics = summarise(self.matches, threshold)
        found |= {name: int(getattr(metrics, name)) for name in COUNTS}
        return found | {"recordings": self.num_recordings, "threshold": threshold}


def score_chunks(
    prepared: Prepared, chunks: ChunkSet, found: PoolDetections, labels: pa.Table, config: Config
) -> ScoredChunks:
    """Match detections of chunks to the labels that touch these chunks."""
    truth = box_table(prepared, chunks, labels, min_remnant_s=config.spectrogram.min_remnant_s)
    corners = truth.corners.astype(np.float64)
    corners[truth.is_time_only, 1::2] = np.nan  # matched by time
    groups = np.repeat(np.arange(len(chunks)), truth.counts())
    matches = match(found.chunk, found.boxes, found.score, groups, corners, config.evaluate.iou)
    rows, recording = np.unique(chunks.recording, return_inverse=True)
    return ScoredChunks(matches, recording.astype(np.int64), len(rows))


def splits_present(prepared: Prepared) -> tuple[str, ...]:
    """Held-out splits that hold at least one chunk."""
    return tuple(name for name in SCORED_SPLITS if _chunks_or_none(prepared, name) is not None)


def _chunks_or_none(prepared: Prepared, name: str) -> ChunkSet | None:
    try:
        chunks = chunks_of_split(prepared, name)
    except DataError:
        return None
    return chunks if len(chunks) else None


def score_split(prepared: Prepared, stage: Storage, name: str, config: Config) -> ScoredChunks:
    """Stored detections of a split after the evaluation's own suppression."""
    chunks = chunks_of_split(prepared, name)
    found = read_pool(stage, prepared, chunks, overlap=config.evaluate.nms_overlap)
    return score_chunks(prepared, chunks, found, prepared.labels, config)


@dataclass(frozen=True, eq=False)
class ModelScores:
    """One model on every split, at the threshold tuned on validation."""

    threshold: float
    threshold_from: str  # validation, card or config
    splits: dict[str, ScoredChunks]
    table: dict[str, dict[str, Any]]  # split -> figures with intervals

    def gains_over(self, other: ModelScores, config: Config) -> dict[str, dict[str, Any]]:
        """Split -> F1 and AP (area, and the headline's) of this model minus another's on the same
        recordings, each at its own threshold.
        """
        named = dict.fromkeys(("f1", "ap_area", f"ap_{config.evaluate.average_precision}"))
        gains = {}
        for name, scored in self.splits.items():
            found = paired_differences(
                other.splits[name].sums(other.threshold),
                scored.sums(self.threshold),
                config.evaluate.bootstrap,
                config.seed,
            )
            gains[name] = {figure: found[figure]._asdict() for figure in named}
        return gains


def score_model(
    prepared: Prepared, stage: Storage, config: Config, card_threshold: float | None
) -> ModelScores:
    """Scores of the detections in a stage on every held-out split there is."""
    scored = {name: score_split(prepared, stage, name, config) for name in splits_present(prepared)}
    threshold, origin = best_threshold(scored["val"].matches) if "val" in scored else math.nan, "validation"
    if not math.isfinite(threshold):  # no hit to tune on
        threshold, origin = config.self_train.threshold, "config"
        if card_threshold is not None:
            threshold, origin = card_threshold, "card"
    table = {
        name: one.figures(threshold, config.evaluate.bootstrap, config.seed) for name, one in scored.items()
    }
    return ModelScores(threshold, origin, scored, table)
