"""The operator over a pool's stored detections as a stage: pseudo-labels per chunk, chunks
to train on, figures without truth.

OUT holds pseudo_labels.parquet, pseudo_chunks.parquet (what training/data/labels.py reads) and figures.json. The work
is spread over the files of detections (spread_operator.py): this process joins parts one after another, and holds no
more than one of them.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from mast_ray.config.errors import DataError
from mast_ray.config.tree import Config
from mast_ray.evaluation.matching import match
from mast_ray.evaluation.score_sheet import score_rows
from mast_ray.evaluation.scoring import score_chunks
from mast_ray.self_training.operator import EVEN_WEIGHT, PoolDetections
from mast_ray.self_training.pool import COLUMNS, PSEUDO, joined, objects_of, pool_of_table
from mast_ray.stages.runner import HERE, Runner
from mast_ray.stages.self_train.operator_task import OperatorTask, Teacher
from mast_ray.stages.self_train.spread_operator import spread_operator
from mast_ray.storage.outputs import remove_folder
from mast_ray.storage.stage_folders import read_manifest, text_hash
from mast_ray.storage.stage_run import open_output, stage_run
from mast_ray.storage.storage import Storage, open_storage
from mast_ray.tables.prepared import Prepared, write_table
from mast_ray.tables.reading.chunk_sets import ChunkSet, chunks_of_split, drawn_runs, runs_of_split
from mast_ray.training.data.labels import (
    CHOSEN_CHUNKS,
    PSEUDO_CHUNKS,
    PSEUDO_LABELS,
    LabelSource,
    pseudo_label_tables,
)
from mast_ray.training.files.began_with import TAUGHT_BY

log = logging.getLogger("mast.self_train")

STAGE, FIGURES_FILE, WORK = "pseudo", "figures.json", "work"
MOST_SHUFFLED = 100_000_000
_POLICY_KNOBS = {
    "policy", "threshold", "min_group_detections", "nms_overlap", "min_duration_s", "min_bins", "empty_chunks",
    "empty_weight", "max_chunks", "precision_target", "ignore_above",
}  # fmt: skip


@dataclass(frozen=True, eq=False)
class PseudoLabels:
    """A finished stage."""

    source: LabelSource
    stage: Storage
    archive: Prepared
    figures: dict[str, Any]
    drawn: Mapping[str, int]  # most_chunks of the pool, by a seed; empty: all

    @cached_property
    def chunks(self) -> ChunkSet:
        """What was labelled of the pool."""
        every = runs_of_split(self.archive, "pool")
        drawn = drawn_runs(every, self.drawn.get("most_chunks", 0), self.drawn.get("seed", 0))
        return drawn.chunks()

    def boxes_of(self, chunks: ChunkSet) -> PoolDetections:
        """The pseudo-boxes of some chunks, over them."""
        parts = [self._row_group(number, chunks) for number in range(self._file().num_row_groups)]
        return joined(parts, len(chunks))

    def stretches(self) -> Iterator[PoolDetections]:
        """All pseudo-boxes, over `chunks`: whole chunks at a time, no more than one part of the operator gave."""
        for number in range(self._file().num_row_groups):
            yield self._row_group(number, self.chunks)

    def boxes_between(self, first: int, last: int) -> PoolDetections:
        """Those of `chunks` first to last; only what may hold any of them is read."""
        own = [number for number, (low, high) in enumerate(self._ranges) if low <= last and high >= first]
        found = joined([self._row_group(number, self.chunks) for number in own], len(self.chunks))
        return found.where((found.chunk >= first) & (found.chunk <= last))

    @cached_property
    def _ranges(self) -> list[tuple[int, int]]:
        """First and last chunk of every row group; (0, -1) without boxes."""
        return [
            (int(p.chunk.min()), int(p.chunk.max())) if len(p.chunk) else (0, -1) for p in self.stretches()
        ]

    def _row_group(self, number: int, chunks: ChunkSet) -> PoolDetections:
        table = self._file().read_row_group(number, columns=[*COLUMNS, "is_ignored"])
        return pool_of_table(objects_of(table), self.archive, chunks)

    def _file(self) -> pq.ParquetFile:
        filesystem, root = self.stage.arrow()
        return pq.ParquetFile(f"{root}/{PSEUDO_LABELS}", filesystem=filesystem)


def make_pseudo_labels(
    config: Config,
    prepared: Prepared,
    detections: Storage,
    out: str,
    teacher: Teacher,
    *,
    runner: Runner = HERE,
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
    content = text_hash(key + json.dumps(inputs, sort_keys=True))
    with stage_run(stage, STAGE, config, key, inputs, lease="of_caller") as run:
        if run.done is None:
            work = stage.at(WORK).at(content).url  # parts of other settings are not taken up
            task = OperatorTask(config, prepared.storage.url, detections.url, work, teacher)
            run.begin_anew()
            told = {name: made.counts[name] for name in (TAUGHT_BY,) if name in made.counts}
            run.finish(_write_labels(task, prepared, stage, runner) | told)
    return PseudoLabels(
        LabelSource("pseudo", stage.url, content),
        stage,
        prepared,
        json.loads(stage.read_bytes(FIGURES_FILE)),
        made.counts.get("drawn", {}),
    )


def _write_labels(task: OperatorTask, prepared: Prepared, stage: Storage, runner: Runner) -> dict[str, Any]:
    """The tables of a folder of pseudo-labels; returns counts."""
    made = spread_operator(task, prepared, runner)
    most, places = task.knobs.max_chunks, None
    if 0 < most < made.num_chosen:
        rng = np.random.default_rng([task.config.seed, task.teacher.round, 7])
        places = drawn_places(made.num_chosen, most, rng)
    train_chunks = made.num_chosen if places is None else len(places)
    write_joined(stage, PSEUDO_LABELS, made.labels(), PSEUDO.with_metadata(task.lineage))
    write_joined(stage, PSEUDO_CHUNKS, made.chunks(places), CHOSEN_CHUNKS)
    figures = made.figures() | {"train_chunks": train_chunks, "policy": task.knobs.policy}
    if task.knobs.ignore_above and figures["ignore_above"] >= figures["threshold"]:
        log.warning(
            "self_train.ignore_above=%s ignores nothing between two thresholds: boxes are objects from %.3f on (mean of the "
            "pool's chunks), and what scores less is background; set it lower",
            task.knobs.ignore_above, figures["threshold"],
        )  # fmt: skip
    stage.write_atomic(FIGURES_FILE, json.dumps(figures, indent=1).encode())
    remove_folder(stage.at(WORK))
    return {
        "boxes": made.totals["boxes"],
        "ignored_boxes": made.totals["ignored"],
        "chunks": made.totals["chunks"],
        "train_chunks": train_chunks,
    }


def write_joined(stage: Storage, key: str, tables: Iterable[pa.Table], schema: pa.Schema) -> None:
    """Tables one after another as one file, a row group each; one of them is held at a time."""
    with stage.scratch_file() as path:
        with pq.ParquetWriter(path, schema, compression="zstd", store_schema=True) as writer:
            for table in tables:
                writer.write_table(table.cast(schema), row_group_size=max(1, len(table)))
        stage.publish(path, key)


def make_truth_labels(config: Config, prepared: Prepared, truth: pa.Table, out: str) -> LabelSource:
    """The truth of the pool in the form of pseudo-labels: what perfect ones would be. Every chunk of the pool is
    trained on, those without a call as well.
    """
    stage, chunks = open_storage(out, config.storage), chunks_of_split(prepared, "pool")
    rng = np.random.default_rng([config.seed, 7])
    chosen = drawn_places(len(chunks), config.self_train.max_chunks, rng)
    content = "".join(
        text_hash(write_table(stage, name, table))
        for name, table in pseudo_label_tables(prepared, chunks, chosen, np.ones(len(chosen)), truth).items()
    )
    return LabelSource("truth", stage.url, text_hash(content))


def drawn_places(count: int, most: int, rng: np.random.Generator) -> NDArray[np.int64]:
    """At most `most` of the places 0 .. count - 1, drawn at random and in order; 0: all. Of more places than numbers
    that one should hold, only those drawn are held.
    """
    if not most or count <= most:
        return np.arange(count)
    if count > MOST_SHUFFLED:
        return np.sort(rng.choice(count, most, replace=False, shuffle=False))
    return np.sort(rng.permutation(count)[:most])


def quality(
    config: Config, prepared: Prepared, pseudo: PseudoLabels, known: ChunkSet, truth: pa.Table | None = None
) -> dict[str, Any]:
    """Precision, coverage (recall) and F1 of pseudo-boxes in chunks whose truth is known, with intervals; it is the
    archive's labels, or a table that knows more.
    """
    scored = score_chunks(prepared, known, pseudo.boxes_of(known), config, truth)
    (row,) = score_rows(scored, "pool", 0.0, config.evaluate.bootstrap, config.seed)
    names = {"precision": "precision", "coverage": "recall", "f1": "f1", "mean_iou": "mean_iou"}
    figures = {name: row.figures[figure]._asdict() for name, figure in names.items()}
    return figures | {"num_truth": row.num_truth, "chunks": len(known)}


def agreement_f1(now: PseudoLabels, before: PseudoLabels, iou: float) -> float:
    """F1 of this round's pseudo-boxes against the last round's on the same chunks; 0 when neither has any.

    Boxes are matched within their chunks, so stretches of chunks are matched one after another: memory does not grow
    with the pool.
    """
    hits = num_boxes = 0
    for own in now.stretches():
        if not len(own.chunk):
            continue
        last = before.boxes_between(int(own.chunk.min()), int(own.chunk.max()))
        found = match(own.chunk, own.boxes, own.score, last.chunk, last.boxes, iou)
        hits += int(found.is_true_positive.sum())
        num_boxes += len(own.chunk)
    num_boxes += sum(len(part.chunk) for part in before.stretches())
    return 2.0 * hits / max(1, num_boxes)
