"""The operator over a pool's stored detections as a stage: pseudo-labels per chunk, chunks
to train on, figures without truth.

OUT holds pseudo_labels.parquet, pseudo_chunks.parquet (what training/data/labels.py reads) and figures.json.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from mast_ray.config.errors import DataError
from mast_ray.config.stage_knobs import SelfTrainConfig
from mast_ray.config.tree import Config
from mast_ray.evaluation.matching import match
from mast_ray.evaluation.metrics import summarise
from mast_ray.evaluation.score_sheet import score_rows
from mast_ray.evaluation.scoring import score_chunks
from mast_ray.self_training.governor import pool_figures
from mast_ray.self_training.operator import (
    EVEN_WEIGHT,
    PoolDetections,
    Validity,
    at_threshold,
    chunk_weights,
    in_band,
    is_valid,
)
from mast_ray.self_training.policies import group_thresholds
from mast_ray.self_training.pool import (
    ChunkGroups,
    chunk_groups,
    keys_of,
    objects_of,
    pool_of_table,
    pseudo_table,
    read_pool,
    site_groups,
)
from mast_ray.spectrogram.grid import CHUNK_FRAMES, fractional_frames
from mast_ray.storage.stage_folders import (
    read_manifest,
    text_hash,
)
from mast_ray.storage.stage_run import open_output, stage_run
from mast_ray.storage.storage import Storage, open_storage
from mast_ray.tables.prepared import Prepared, read_table, write_table
from mast_ray.tables.reading.chunk_sets import ChunkSet, chunks_of_split
from mast_ray.training.data.labels import PSEUDO_LABELS, LabelSource, pseudo_label_tables

STAGE, FIGURES_FILE = "pseudo", "figures.json"
_POLICY_KNOBS = {
    "policy", "threshold", "min_group_detections", "nms_overlap", "min_duration_s", "min_bins", "empty_chunks",
    "empty_weight", "max_chunks", "precision_target", "ignore_above",
}  # fmt: skip


@dataclass(frozen=True)
class Teacher:
    """Whose detections they are, and what its validation says about thresholds."""

    model_sha: str
    threshold: float  # tuned on validation or chosen for precision, or what stands in for it
    kept_share: (
        float  # of validation candidates (policy precision: of those above `saturated`) at that threshold
    )
    round: int
    saturated: float = 0.0  # threshold below which hardly a call is left to find; 0: not known


@dataclass(frozen=True, eq=False)
class PseudoLabels:
    """A finished stage."""

    source: LabelSource
    boxes: PoolDetections  # over `chunks`
    chunks: ChunkSet
    figures: dict[str, Any]


def validity_of(knobs: SelfTrainConfig) -> Validity:
    return Validity(float(fractional_frames(knobs.min_duration_s)), knobs.min_bins, CHUNK_FRAMES)


def make_pseudo_labels(
    config: Config, prepared: Prepared, detections: Storage, out: str, teacher: Teacher
) -> PseudoLabels:
    """Apply the operator with the configured policy; skipped when OUT already holds just that."""
    knobs, stage = config.self_train, open_output(out, STAGE, config.storage)
    made = read_manifest(detections)
    if made is None:
        raise DataError(f"{detections.url} is not finished: run `mast pseudo-label` again")
    settings = knobs.model_dump(mode="json", include=_POLICY_KNOBS) | {"seed": config.seed} | asdict(teacher)
    if knobs.score_weight != EVEN_WEIGHT:
        settings["score_weight"] = knobs.score_weight
    key, inputs = (
        text_hash(json.dumps(settings, sort_keys=True)),
        {"detections": made.key, **made.inputs},
    )
    chunks = chunks_of_split(prepared, "pool")
    source = LabelSource("pseudo", stage.url, text_hash(key + json.dumps(inputs, sort_keys=True)))
    with stage_run(stage, STAGE, config, key, inputs, lease="of_caller") as run:
        if run.done is None:
            run.finish(_write_labels(config, prepared, chunks, detections, teacher, stage))
    boxes = pool_of_table(objects_of(read_table(stage, PSEUDO_LABELS)), prepared, chunks)
    return PseudoLabels(source, boxes, chunks, json.loads(stage.read_bytes(FIGURES_FILE)))


def _write_labels(
    config: Config,
    prepared: Prepared,
    chunks: ChunkSet,
    detections: Storage,
    teacher: Teacher,
    stage: Storage,
) -> dict[str, int]:
    """The tables of a folder of pseudo-labels; returns counts."""
    knobs = config.self_train
    labelled = _labelled(knobs, prepared, chunks, detections, teacher)
    chosen, weight = chunk_weights(labelled.boxes, knobs.empty_chunks, knobs.empty_weight)
    chosen, weight = drawn_chunks(
        chosen, weight, knobs.max_chunks, np.random.default_rng([config.seed, teacher.round, 7])
    )
    lineage = {"model": teacher.model_sha, "policy": knobs.policy, "round": str(teacher.round)}
    table = pseudo_table(prepared, chunks, labelled.boxes, labelled.limit, lineage, labelled.ignored)
    limits = (labelled.limit, labelled.low)
    for name, content in pseudo_label_tables(prepared, chunks, chosen, weight, table, limits).items():
        write_table(stage, name, content)
    figures = _figures(prepared, chunks, labelled) | {"train_chunks": len(chosen), "policy": knobs.policy}
    stage.write_atomic(FIGURES_FILE, json.dumps(figures, indent=1).encode())
    return {
        "boxes": len(labelled.boxes.score),
        "ignored_boxes": len(labelled.ignored.score),
        "chunks": len(chunks),
        "train_chunks": len(chosen),
    }


def make_truth_labels(config: Config, prepared: Prepared, truth: pa.Table, out: str) -> LabelSource:
    """The truth of the pool in the form of pseudo-labels: what perfect ones would be. Every chunk of the pool is
    trained on, those without a call as well.
    """
    stage, chunks = open_storage(out, config.storage), chunks_of_split(prepared, "pool")
    rng = np.random.default_rng([config.seed, 7])
    everything = np.arange(len(chunks))
    chosen, weight = drawn_chunks(everything, np.ones(len(chunks)), config.self_train.max_chunks, rng)
    content = "".join(
        text_hash(write_table(stage, name, table))
        for name, table in pseudo_label_tables(prepared, chunks, chosen, weight, truth).items()
    )
    return LabelSource("truth", stage.url, text_hash(content))


@dataclass(frozen=True, eq=False)
class _Labelled:
    boxes: PoolDetections
    ignored: PoolDetections
    limit: NDArray[np.float64]  # (C,) threshold of every chunk
    low: NDArray[np.float64]  # (C,) where its band of ignored boxes begins; the threshold itself: no band
    groups: ChunkGroups
    threshold_of_group: NDArray[np.float64]
    source_of_group: tuple[str, ...]


def _labelled(
    knobs: SelfTrainConfig, prepared: Prepared, chunks: ChunkSet, detections: Storage, teacher: Teacher
) -> _Labelled:
    threshold = knobs.threshold if knobs.policy == "fixed" else teacher.threshold
    first_ignored = _first_ignored(knobs, teacher)
    by_group = knobs.policy in ("per_group_mixture", "per_group_quantile", "precision")
    lowest = 0.0 if by_group else min(threshold, first_ignored)
    found = read_pool(detections, prepared, chunks, lowest, knobs.nms_overlap, knobs.score_weight)
    is_possible = is_valid(found, validity_of(knobs))
    possible = found.where(is_possible)
    groups = (site_groups if knobs.policy == "precision" else chunk_groups)(prepared, chunks)
    likely = possible.where(possible.score >= teacher.saturated) if knobs.policy == "precision" else possible
    chosen = group_thresholds(
        knobs.policy, likely.score, groups.group[likely.chunk], groups.site_of_group, threshold,
        teacher.kept_share, knobs.min_group_detections,
    )  # fmt: skip
    low = np.full(len(chosen.threshold), first_ignored)
    low = np.minimum(low, chosen.threshold)
    limit, low = (values[groups.group] if len(chunks) else np.zeros(0) for values in (chosen.threshold, low))
    is_object = is_possible & (found.score >= limit[found.chunk])
    ignored = in_band(found, low if knobs.ignore_above else np.full(len(chunks), np.inf), is_object)
    return _Labelled(
        at_threshold(possible, limit), ignored, limit, low, groups, chosen.threshold, chosen.source
    )


def _first_ignored(knobs: SelfTrainConfig, teacher: Teacher) -> float:
    """Where the band of ignored boxes begins before it is carried to sites; 1: nowhere."""
    if knobs.ignore_above == "auto":
        return teacher.saturated or teacher.threshold
    return float(knobs.ignore_above) or 1.0


def drawn_chunks(
    chosen: NDArray[np.int64], weight: NDArray[np.float64], most: int, rng: np.random.Generator
) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """At most `most` of the chunks, drawn at random and in order; 0: all."""
    if not most or len(chosen) <= most:
        return chosen, weight
    kept = np.sort(rng.permutation(len(chosen))[:most])
    return chosen[kept], weight[kept]


def _figures(prepared: Prepared, chunks: ChunkSet, labelled: _Labelled) -> dict[str, Any]:
    count = np.bincount(labelled.boxes.chunk, minlength=len(chunks))
    site = np.array(prepared.recordings.column("site").fill_null("").to_pylist(), object)[chunks.recording]
    by_site = {
        str(name) or "(no site)": float(count[site == name].mean()) for name in sorted(set(site.tolist()))
    }
    groups = zip(
        labelled.groups.names, labelled.threshold_of_group.tolist(), labelled.source_of_group, strict=True
    )
    return {
        "figures": asdict(pool_figures(labelled.boxes)),
        "ignored_per_chunk": len(labelled.ignored.score) / max(1, len(chunks)),
        "boxes_per_chunk_by_site": by_site,
        "thresholds": [
            {"group": name, "threshold": value, "source": source} for name, value, source in groups
        ],
        "threshold": float(np.mean(labelled.limit)) if len(labelled.limit) else 0.0,
        "ignore_above": float(np.mean(labelled.low)) if len(labelled.low) else 0.0,
    }


def quality(
    config: Config, prepared: Prepared, pseudo: PseudoLabels, known: ChunkSet, truth: pa.Table | None = None
) -> dict[str, Any]:
    """Precision, coverage (recall) and F1 of pseudo-boxes in chunks whose truth is known, with intervals; it is the
    archive's labels, or a table that knows more.
    """
    place = np.searchsorted(keys_of(pseudo.chunks), keys_of(known))
    position = np.full(len(pseudo.chunks), -1, np.int64)
    position[place] = np.arange(len(known))
    own = pseudo.boxes.where(position[pseudo.boxes.chunk] >= 0)
    own = PoolDetections(position[own.chunk], own.boxes, own.score, len(known))
    scored = score_chunks(prepared, known, own, config, truth)
    (row,) = score_rows(scored, "pool", 0.0, config.evaluate.bootstrap, config.seed)
    names = {"precision": "precision", "coverage": "recall", "f1": "f1", "mean_iou": "mean_iou"}
    figures = {name: row.figures[figure]._asdict() for name, figure in names.items()}
    return figures | {"num_truth": row.num_truth, "chunks": len(known)}


def agreement_f1(now: PoolDetections, before: PoolDetections, iou: float) -> float:
    """F1 of this round's pseudo-boxes against the last round's on the same chunks; 0 when neither has any."""
    found = summarise(match(now.chunk, now.boxes, now.score, before.chunk, before.boxes, iou), 0.0)
    return found.f1 if np.isfinite(found.f1) else 0.0
