"""The work of the pseudo-label operator on one part of a pool, wherever that part is worked on.

Every file of stored detections holds whole chunks, so a shard (a file, or some of the chunks of a large one) is
suppressed, judged and labelled alone. Only the thresholds of a policy by group need all shards, and of them only scores:

    ScoreWork      scores of what could be a pseudo-box, of every group in a shard       -> scores/*.parquet
    ThresholdWork  thresholds of the groups of a site, from the scores of all shards, or of the whole pool
    LabelWork      pseudo-labels and weights of the chunks of a shard                    -> labels/, chunks/*.parquet
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from mast_ray.config.errors import TemporaryError
from mast_ray.config.stage_knobs import SelfTrainConfig
from mast_ray.self_training.operator import (
    EVEN_WEIGHT,
    PoolDetections,
    at_threshold,
    chunk_weights,
    in_band,
    is_valid,
)
from mast_ray.self_training.policies import Found, estimator, site_thresholds
from mast_ray.self_training.pool import (
    NO_SITE,
    PSEUDO,
    ROWS_AT_ONCE,
    ChunkGroups,
    chunk_groups,
    pseudo_table,
    read_pool,
    site_groups,
)
from mast_ray.self_training.stored_scores import ScoreRun, StoredScores, scores_of_groups
from mast_ray.stages.detect.chunks import runs_of_items
from mast_ray.stages.self_train.operator_task import OperatorTask, validity_of
from mast_ray.storage.ledger import Attempt
from mast_ray.storage.storage import open_storage
from mast_ray.storage.unit_runner import Work, WorkDone, publish_file
from mast_ray.storage.units import Item, Outcome, iter_commits, read_commit
from mast_ray.tables.prepared import Prepared, open_prepared
from mast_ray.tables.reading.chunk_sets import (
    ChunkRuns,
    ChunkSet,
    common_runs,
    merged_runs,
    runs_of_blocks,
)
from mast_ray.training.data.labels import CHOSEN_CHUNKS, chosen_chunks_table

SCORES, LABELS, CHUNKS = "scores", "labels", "chunks"
POOL_ITEM = "pool"
ROWS_PER_GROUP = 200_000  # at least, where a file has as many
Floats = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Shard:
    """The chunks of one file of detections or some of them, and an archive of their recordings alone."""

    archive: Prepared
    chunks: ChunkSet
    groups: ChunkGroups
    files: tuple[str, ...]


@dataclass(frozen=True, eq=False)
class Shards:
    """Opens shards; made once where they are worked on."""

    task: OperatorTask
    prepared: Prepared

    def of(self, item: Item) -> Iterator[Shard]:
        """The shards of a unit of the detections' stage, in the order of the pool's chunks: one, or as many as keep
        the detections of each within what a process should hold.
        """
        commit = read_commit(open_storage(self.task.detections, self.task.config.storage), item.item_id)
        if commit is None:
            raise TemporaryError(
                f"{self.task.detections} lost a result meanwhile: run `mast pseudo-label` again"
            )
        files, num_rows = (
            tuple(file.key for file in commit.files),
            sum(file.num_rows for file in commit.files),
        )
        spans = runs_of_items(self.prepared, [outcome.item_id for outcome in commit.outcomes])
        for some in in_slices(spans, -(-num_rows // ROWS_AT_ONCE)):
            rows = np.unique(some.recording)
            archive = self.prepared.of_recordings(rows)
            own = merged_runs(np.searchsorted(rows, some.recording), some.first, some.count)
            chunks = common_runs(own, _pool_runs(archive)).chunks()
            groups = (site_groups if self.task.knobs.policy == "precision" else chunk_groups)(archive, chunks)
            yield Shard(archive, chunks, groups, files)

    def found(self, shard: Shard, min_score: float) -> PoolDetections:
        """What was detected in a shard from a score on, suppressed."""
        detections = open_storage(self.task.detections, self.task.config.storage)
        knobs, place = self.task.knobs, (shard.archive, shard.chunks)
        if not shard.files:  # all its recordings were rejected
            return PoolDetections(np.zeros(0, np.int64), np.zeros((0, 4)), np.zeros(0), len(shard.chunks))
        return read_pool(
            detections, *place, min_score, knobs.nms_overlap, knobs.score_weight, files=shard.files,
            doubts_nested=self.task.teacher.doubts_nested,
        )  # fmt: skip


def in_slices(spans: ChunkRuns, num_slices: int) -> Iterator[ChunkRuns]:
    """Stretches in about so many parts with equally many chunks, in the order of the pool's; none is cut."""
    order = np.lexsort((spans.first, spans.recording))
    most = max(1, -(-len(spans) // max(1, num_slices)))
    number = (np.cumsum(spans.count[order]) - 1) // most
    for one in np.unique(number):
        own = order[number == one]
        yield ChunkRuns(spans.recording[own], spans.first[own], spans.count[own])


def _pool_runs(archive: Prepared) -> ChunkRuns:
    blocks = archive.splits.filter(archive.splits.column("in_pool"))
    limits = (blocks.column(name).to_numpy() for name in ("begin_s", "end_s"))
    return runs_of_blocks(archive, archive.rows_of(blocks.column("recording_id")), *limits)


@dataclass(frozen=True, eq=False)
class MakeWork:
    """Builds a work where it will run: the archive is opened once per actor, or is the one that is open here."""

    task: OperatorTask
    kind: str  # scores, thresholds or labels
    archive: Prepared | None = None
    thresholds: Mapping[str, float] = field(default_factory=dict)  # of groups

    def __call__(self) -> Work:
        if self.kind == "thresholds":
            return ThresholdWork.of(self.task)
        archive = self.archive or open_prepared(self.task.prepared, self.task.config.storage)
        shards = Shards(self.task, archive)
        return ScoreWork(shards) if self.kind == "scores" else LabelWork(shards, self.thresholds)


@dataclass(frozen=True, eq=False)
class ScoreWork:
    """Scores by group, each group's sorted: one row group of a Parquet file per site. The outcome of the first item
    of a unit says how many scores each group has, in the order of the file.
    """

    shards: Shards

    def __call__(self, attempt: Attempt, items: Sequence[Item]) -> WorkDone:
        parts: dict[tuple[str, str], list[Floats]] = {}  # (site, group)
        for item in items:
            attempt.begin_item(item.item_id)
            for shard in self.shards.of(item):
                attempt.beat()
                for name, site, score in self._by_group(shard):
                    parts.setdefault((site, name), []).append(score)
        even = self.shards.task.knobs.score_weight == EVEN_WEIGHT
        schema = pa.schema([("score", pa.float32() if even else pa.float64())])  # stored scores are float32
        listed: dict[str, list[tuple[str, int]]] = {}
        stage, num_rows = self.shards.task.stage(SCORES), 0
        with stage.scratch_file() as path:
            with pq.ParquetWriter(
                path, schema, compression="zstd", use_byte_stream_split=["score"]
            ) as writer:
                for site in sorted({site for site, _ in parts}):
                    names = sorted(name for of, name in parts if of == site)
                    arrays = [np.sort(np.concatenate(parts[site, name])) for name in names]
                    listed[site] = [(name, len(array)) for name, array in zip(names, arrays, strict=True)]
                    column = pa.array(np.concatenate(arrays)).cast(schema.field("score").type)
                    writer.write_table(pa.table([column], schema=schema), row_group_size=max(1, len(column)))
                    num_rows += len(column)
            file = publish_file(stage, path, SCORES, attempt.unit, num_rows)
        records: list[dict[str, Any] | None] = [{"sites": list(listed.items())}] + [None] * len(items)
        outcomes = [
            Outcome(item.item_id, "done", record=record) for item, record in zip(items, records, strict=False)
        ]
        return WorkDone(outcomes, [file], {"detections": num_rows})

    def _by_group(self, shard: Shard) -> list[tuple[str, str, Floats]]:
        """(name, site, scores) of every group, also of those without scores."""
        task = self.shards.task
        # Lower scores count for nothing, and never suppress higher ones.
        lowest = task.teacher.saturated if task.knobs.policy == "precision" else 0.0
        found = self.shards.found(shard, lowest)
        possible = found.where(is_valid(found, validity_of(task.knobs)) & (found.score >= lowest))
        group = shard.groups.group[possible.chunk]
        order = np.argsort(group, kind="stable")
        ends = np.searchsorted(group[order], np.arange(len(shard.groups.names)), side="right")
        parts = np.split(possible.score[order], ends)[: len(ends)]
        return list(zip(shard.groups.names, shard.groups.site_names, parts, strict=True))


@dataclass(frozen=True, eq=False)
class ThresholdWork:
    """Thresholds of the groups of the sites that items name; of the whole pool for POOL_ITEM."""

    task: OperatorTask
    runs: Mapping[str, Mapping[str, Sequence[ScoreRun]]]  # of every group of every site

    @classmethod
    def of(cls, task: OperatorTask) -> ThresholdWork:
        runs: dict[str, dict[str, list[ScoreRun]]] = {}
        for commit in iter_commits(task.stage(SCORES)):
            record = next((outcome.record for outcome in commit.outcomes if outcome.record), None)
            for row_group, (site, groups) in enumerate((record or {}).get("sites", [])):
                first = 0
                for name, count in groups:
                    own = runs.setdefault(site, {}).setdefault(name, [])
                    if count:
                        own.append(ScoreRun(commit.files[0].key, row_group, first, count))
                    first += count
        return cls(task, runs)

    def sites(self) -> dict[str, int]:
        """Site -> number of scores."""
        return {
            site: sum(run.num_scores for own in groups.values() for run in own)
            for site, groups in self.runs.items()
        }

    def scores(self) -> StoredScores:
        """Those of all sites."""
        runs = [run for groups in self.runs.values() for own in groups.values() for run in own]
        return StoredScores(self.task.stage(SCORES), runs)

    def __call__(self, attempt: Attempt, items: Sequence[Item]) -> WorkDone:
        knobs = self.task.knobs
        estimate = estimator(knobs.policy, self.task.teacher.kept_share, knobs.min_group_detections)
        outcomes = []
        for item in items:
            attempt.begin_item(item.item_id)
            if item.item_id == POOL_ITEM:
                found = {POOL_ITEM: Found(estimate(self.scores()), "pool")}
            else:
                groups = self.runs[item.path]
                scores = scores_of_groups(self.task.stage(SCORES), list(groups.values()))
                found = dict(zip(groups, site_thresholds(estimate, *scores), strict=True))
            outcomes.append(Outcome(item.item_id, "done", record={"thresholds": found}))
        return WorkDone(outcomes, [], {})


@dataclass(frozen=True, eq=False)
class Labelled:
    """What the operator makes of the detections of some chunks."""

    boxes: PoolDetections
    ignored: PoolDetections


def labelled(knobs: SelfTrainConfig, found: PoolDetections, limit: Floats, low: Floats) -> Labelled:
    """Suppressed detections at the thresholds of their chunks: `limit` (C,), and `low` (C,) where the band of
    ignored boxes begins; the threshold itself: no band.
    """
    is_possible = is_valid(found, validity_of(knobs))
    is_object = is_possible & (found.score >= limit[found.chunk])
    ignored = in_band(found, low if knobs.ignore_above else np.full(len(low), np.inf), is_object)
    return Labelled(at_threshold(found.where(is_possible), limit), ignored)


def added(records: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """What is said of the shards of a file, as of the file: sums, and lists one after another."""
    return {name: sum((record[name] for record in records[1:]), records[0][name]) for name in records[0]}


class WholeTables:
    """A Parquet file of tables of whole chunks, none of which lies in two row groups; small tables share one."""

    def __init__(self, path: Path, schema: pa.Schema) -> None:
        self._writer = pq.ParquetWriter(path, schema, compression="zstd")
        self._held: list[pa.Table] = []
        self.num_rows = 0

    def __enter__(self) -> WholeTables:
        return self

    def __exit__(self, *error: object) -> None:
        self._write()
        self._writer.close()

    def add(self, table: pa.Table) -> None:
        self._held.append(table)
        self.num_rows += len(table)
        if sum(map(len, self._held)) >= ROWS_PER_GROUP:
            self._write()

    def _write(self) -> None:
        if self._held:
            table = pa.concat_tables(self._held)
            self._writer.write_table(table, row_group_size=max(1, len(table)))
        self._held = []


@dataclass(frozen=True, eq=False)
class LabelWork:
    """The tables of pseudo-labels and of the chunks to train on; an item's outcome says what they look like."""

    shards: Shards
    thresholds: Mapping[str, float]  # of groups; empty: one for all

    def __call__(self, attempt: Attempt, items: Sequence[Item]) -> WorkDone:
        stage, outcomes = self.shards.task.stage(LABELS), []
        with stage.scratch_file() as boxes_path, stage.scratch_file() as chunks_path:
            with WholeTables(boxes_path, PSEUDO) as boxes, WholeTables(chunks_path, CHOSEN_CHUNKS) as chunks:
                for item in items:
                    attempt.begin_item(item.item_id)
                    records = []
                    for shard in self.shards.of(item):
                        attempt.beat()
                        tables, record = self._tables(shard)
                        records.append(record)
                        boxes.add(tables[0])
                        chunks.add(tables[1])
                    outcomes.append(Outcome(item.item_id, "done", record=added(records)))
            files = [
                publish_file(stage, boxes_path, LABELS, attempt.unit, boxes.num_rows),
                publish_file(stage, chunks_path, CHUNKS, attempt.unit, chunks.num_rows),
            ]
        return WorkDone(outcomes, files, {"detections": boxes.num_rows})

    def _tables(self, shard: Shard) -> tuple[tuple[pa.Table, pa.Table], dict[str, Any]]:
        task, knobs = self.shards.task, self.shards.task.knobs
        names = shard.groups.names
        own = np.array([self.thresholds.get(name, task.threshold) for name in names], np.float64)
        limit = own[shard.groups.group]
        low = np.minimum(task.first_ignored, limit)
        lowest = float(np.min(low if knobs.ignore_above else limit, initial=1.0))
        made = labelled(knobs, self.shards.found(shard, lowest), limit, low)
        chosen, weight = chunk_weights(made.boxes, knobs.empty_chunks, knobs.empty_weight)
        boxes = pseudo_table(shard.archive, shard.chunks, made.boxes, limit, task.lineage, made.ignored)
        chunks = chosen_chunks_table(shard.archive, shard.chunks, chosen, weight, (limit, low))
        count = np.bincount(made.boxes.chunk, minlength=len(shard.chunks))
        in_group = np.bincount(shard.groups.group, minlength=len(names))
        boxes_in_group = np.bincount(shard.groups.group, weights=count, minlength=len(names))
        record = {
            "chunks": len(shard.chunks),
            "empty": int((count == 0).sum()),
            "boxes": len(made.boxes.score),
            "ignored": len(made.ignored.score),
            "score_sum": float(made.boxes.score.sum()),
            "groups": [
                (name, site or NO_SITE, int(chunks_of), int(boxes_of))
                for name, site, chunks_of, boxes_of in zip(
                    names, shard.groups.site_names, in_group, boxes_in_group, strict=True
                )
            ],
        }
        return (boxes.replace_schema_metadata(None), chunks), record
