"""A model folder against the splits of a prepared archive: detections of every chunk, figures with intervals.

One pass over the chunks; the threshold is the one tuned on validation (card.json) and frozen for every split.
Figures are given per chunk (the paper's way) and on stitched recordings, where a call in two overlapping
chunks counts once. A folder written here holds

    metrics.json         {"settings": ..., "splits": {split: figures}, "stitched": {split: figures}}
    detections.parquet   schemas.DETECTIONS per chunk, down to evaluate.score_floor
    manifest.json        a second call with the same model and archive reads the table back instead of detecting again
"""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from mast_ray.boxes.stitching import stitch
from mast_ray.config.tree import Config
from mast_ray.evaluation.event_boxes import boxes_of_events
from mast_ray.evaluation.events import events_from_arrow, recordings_from_arrow
from mast_ray.evaluation.figure_tables import without_nan
from mast_ray.evaluation.intervals import Interval
from mast_ray.evaluation.metrics import Metrics, best_threshold
from mast_ray.evaluation.scoring import Scored, figures_of, score_tables
from mast_ray.evaluation.split_truth import scored_splits, truth_of_split
from mast_ray.inference.validation import Inputs, SplitDetections, detect_split
from mast_ray.spectrogram.grid import SEGMENT_FRAMES, seconds_hertz_from_boxes
from mast_ray.storage.stage_folders import (
    is_current,
    read_manifest,
    refuse_foreign,
    text_hash,
    write_manifest,
)
from mast_ray.storage.storage import open_storage
from mast_ray.tables.backgrounds import with_background
from mast_ray.tables.prepared import Prepared, data_hash, open_prepared, read_table, write_table
from mast_ray.tables.reading.chunk_sets import chunks_of_split
from mast_ray.tables.reading.reader import ChunkReader
from mast_ray.tables.schemas import DETECTIONS
from mast_ray.training.assembly import load_detector
from mast_ray.training.engine import choose_precision
from mast_ray.training.files.model_files import read_card
from mast_ray.training.worker import first_device

log = logging.getLogger("mast.scoring")

METRICS, DETECTIONS_TABLE = "metrics.json", "detections.parquet"
DEFAULT_THRESHOLD = 0.5  # of a detector that found nothing right on validation
Corners = NDArray[np.float64]


@dataclass(frozen=True)
class Figures:
    """Metrics at the frozen threshold with their 95 % intervals over recordings."""

    metrics: Metrics
    intervals: dict[str, Interval]
    num_recordings: int

    def as_dict(self) -> dict[str, Any]:
        """Figures as {estimate, low, high}, counts as numbers: what the report reads."""
        names = ("num_truth", "num_detections", "num_true_positives")
        counts = {"recordings": self.num_recordings} | {name: getattr(self.metrics, name) for name in names}
        return {name: one._asdict() for name, one in self.intervals.items()} | counts


@dataclass(frozen=True, eq=False)
class ModelScores:
    """How a model does on every split."""

    threshold: float
    threshold_from: str
    splits: dict[str, Figures]  # per chunk
    stitched: dict[str, Figures]  # per recording; empty where splits are dealt by chunk
    detections: pa.Table  # schemas.DETECTIONS per chunk

    def as_dict(self) -> dict[str, Any]:
        settings = {
            "threshold": self.threshold,
            "threshold_from": self.threshold_from,
            "matched_per": "chunk",
        }
        tree = {"settings": settings} | {
            name: {split: one.as_dict() for split, one in getattr(self, name).items()}
            for name in ("splits", "stitched")
        }
        return without_nan(tree)


def evaluate_model(
    model_folder: str,
    prepared: str | Prepared,
    splits: Sequence[str] | None,
    config: Config,
    out: str = "",
    threshold: float | None = None,
) -> ModelScores:
    """Figures of a detector on the named splits (None: every annotated split but
    train), written to `out` if given.
    """
    archive = prepared if isinstance(prepared, Prepared) else open_prepared(prepared, config.storage)
    names = tuple(splits) if splits is not None else scored_splits(archive)
    card = read_card(model_folder, config.storage)
    wanted = (
        (card.score_threshold, "tuned on validation with the model, frozen")
        if threshold is None
        else (threshold, "given")
    )
    stage = open_storage(out, config.storage) if out else None
    inputs = {"prepared": data_hash(archive), "model": card.weights_sha256}
    key = text_hash(
        json.dumps(
            [names, card.score_threshold, threshold, config.evaluate.model_dump(mode="json"), config.seed]
        )
    )
    if stage is not None:
        refuse_foreign(stage, "evaluate")
        if is_current(read_manifest(stage), "evaluate", key, inputs):
            log.info("%s is already scored", stage.url)
            return scores_of_table(archive, read_table(stage, DETECTIONS_TABLE), names, config, *wanted)
    table = detections_of_splits(model_folder, archive, names, config)
    scores = scores_of_table(archive, table, names, config, *wanted)
    if stage is not None:
        write_table(stage, DETECTIONS_TABLE, table)
        stage.write_atomic(METRICS, json.dumps(scores.as_dict(), indent=1).encode())
        counts = {"detections": len(table)} | {
            f"{name}_recordings": one.num_recordings for name, one in scores.splits.items()
        }
        write_manifest(stage, "evaluate", config, key, inputs, counts, datetime.now(UTC))
    return scores


def detections_of_splits(
    model_folder: str, prepared: Prepared, splits: Sequence[str], config: Config
) -> pa.Table:
    """Per-chunk detections of all chunks of some splits, down to the score floor."""
    detector, card = load_detector(model_folder, config.storage)
    device = first_device(config.cluster.use_gpu)
    precision = choose_precision(config.cluster.precision, device)
    inputs = Inputs(card.normaliser(), card.tail, device, precision)  # type: ignore[arg-type]
    chunks = chunks_of_split(prepared, *splits)
    reader = ChunkReader(
        with_background(prepared, inputs.normalisation.background),
        chunks,
        batch_size=config.evaluate.batch_size,
        num_threads=config.cluster.reader_threads,
    )
    found = detect_split(detector.to(device), reader, inputs, config.evaluate)
    return detection_table(prepared, found, card.weights_sha256)


def detection_table(prepared: Prepared, found: SplitDetections, model_sha: str = "") -> pa.Table:
    """Detections of chunks as rows of schemas.DETECTIONS, in seconds of the recording and hertz."""
    per_chunk = [len(score) for score in found.score]
    names = [identity.rpartition(":") for identity in found.chunk_ids]
    chunk = np.repeat(np.array([int(number) for _, _, number in names], np.int64), per_chunk)
    row_of = {name: row for row, name in enumerate(prepared.recording_ids)}
    row = np.repeat(np.array([row_of[name] for name, _, _ in names], np.int64), per_chunk)
    boxes = np.concatenate([*found.boxes, np.zeros((0, 4))])
    boxes[:, 0::2] += (chunk * SEGMENT_FRAMES)[:, None]
    begin_s, low_hz, end_s, high_hz = seconds_hertz_from_boxes(boxes).T
    facts = prepared.recordings.select(["recording_id", "path", "site", "start_utc", "utc_offset_s"]).take(
        pa.array(row)
    )
    since = pa.array(np.round(begin_s * 1e6).astype(np.int64)).cast(pa.duration("us"))
    columns: dict[str, Any] = {
        name: facts.column(name) for name in ("recording_id", "path", "site", "utc_offset_s")
    }
    columns |= {"chunk": chunk, "begin_s": begin_s, "end_s": end_s, "low_hz": low_hz, "high_hz": high_hz}
    columns["score"] = np.concatenate([*found.score, np.zeros(0)])
    columns["start_utc"] = pc.add(facts.column("start_utc"), since)
    columns["model_sha"] = pa.array([model_sha] * len(row), pa.string())
    columns["probability"] = pa.nulls(len(row), pa.float32())
    return pa.table({field.name: columns[field.name] for field in DETECTIONS}).cast(DETECTIONS)


def stitched_table(prepared: Prepared, detections: pa.Table) -> pa.Table:
    """Per-chunk detections -> detections of recordings (chunk null): a call seen by two chunks is one row."""
    events = events_from_arrow(detections, recordings_from_arrow(prepared.recordings))
    boxes, _ = boxes_of_events(events)
    kept: list[NDArray[np.int64]] = []
    merged: list[Corners] = []
    score: list[NDArray[np.float64]] = []
    order = np.argsort(events.recording, kind="stable")
    for rows in np.split(order, np.flatnonzero(np.diff(events.recording[order])) + 1):
        if len(rows):
            num_frames = int(prepared.num_frames[events.recording[rows[0]]])
            one = stitch(
                events.chunk[rows] * float(SEGMENT_FRAMES), boxes[rows], events.score[rows], num_frames
            )
            kept.append(rows[one.source])
            merged.append(one.boxes)
            score.append(one.scores)
    whole = detections.take(pa.array(np.concatenate([*kept, np.zeros(0, np.int64)])))
    begin_s, low_hz, end_s, high_hz = seconds_hertz_from_boxes(np.concatenate([*merged, np.zeros((0, 4))])).T
    changed = {
        "begin_s": begin_s,
        "end_s": end_s,
        "low_hz": low_hz,
        "high_hz": high_hz,
        "score": np.concatenate([*score, np.zeros(0)]),
    }
    columns = {name: changed.get(name, whole.column(name)) for name in DETECTIONS.names}
    columns["chunk"] = pa.nulls(len(whole), pa.int32())
    return pa.table(columns).cast(DETECTIONS)


def scored_split(prepared: Prepared, detections: pa.Table, split: str, config: Config) -> Scored:
    """Detections of one split matched to its truth; per chunk or stitched, as the table is."""
    truth, blocks = truth_of_split(prepared, split)
    found = events_from_arrow(detections, recordings_from_arrow(prepared.recordings))
    if len(found) == 0 and "chunk" in detections.column_names:
        # An empty table does not say whether it is per chunk: no figure depends on it.
        found = replace(found, chunk=np.zeros(0, np.int64))
    return score_tables(
        found, truth, config.evaluate.iou, blocks=blocks, min_remnant_s=config.spectrogram.min_remnant_s
    )


def scores_of_table(
    prepared: Prepared,
    detections: pa.Table,
    splits: Sequence[str],
    config: Config,
    threshold: float | None,
    threshold_from: str = "given",
) -> ModelScores:
    """Figures of a table of per-chunk detections; without a threshold it is tuned on validation."""
    knobs = config.evaluate
    per_chunk = {name: scored_split(prepared, detections, name, config) for name in splits}
    if threshold is None:
        threshold = best_threshold(per_chunk["val"].matches) if "val" in per_chunk else math.nan
        threshold_from = "best F1 on val, frozen"
        if not math.isfinite(threshold):
            threshold, threshold_from = DEFAULT_THRESHOLD, "default: nothing right was found on validation"
    by_recording: dict[str, Scored] = {}
    if prepared.manifest["config"]["split"]["unit"] != "chunk":  # random chunks do not make up recordings
        whole = stitched_table(prepared, detections)
        by_recording = {name: scored_split(prepared, whole, name, config) for name in splits}

    def figures(one: Scored) -> Figures:
        return Figures(*figures_of(one, threshold, knobs.bootstrap, config.seed), one.num_recordings)

    return ModelScores(
        float(threshold),
        threshold_from,
        {name: figures(one) for name, one in per_chunk.items()},
        {name: figures(one) for name, one in by_recording.items()},
        detections,
    )
