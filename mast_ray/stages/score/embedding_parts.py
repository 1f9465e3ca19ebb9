"""Embeddings of an archive in parts: stretches of recordings, each embedded by whoever has a model at hand.

A box is embedded in the chunk of its recording that shows most of it, so a recording is never divided. The parts are
joined in the order of the archive (chunks) or of the events (boxes): the table is that of one process.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from mast_ray.config.tree import Config
from mast_ray.inference.embeddings import (
    Background,
    Embedder,
    What,
    chunks_to_embed,
    embed_chunks,
    embedded_boxes,
    load_embedder,
    refuse_no_boxes,
)
from mast_ray.models.detector import EmbeddingName
from mast_ray.stages.detect.chunks import model_spread
from mast_ray.stages.parts import part_of, run_parts
from mast_ray.stages.runner import Runner
from mast_ray.storage.ledger import Attempt
from mast_ray.storage.outputs import remove_folder
from mast_ray.storage.spread import Resources, Spread
from mast_ray.storage.stage_folders import text_hash
from mast_ray.storage.storage import Storage, open_storage
from mast_ray.storage.unit_runner import Work, WorkDone, publish_file
from mast_ray.storage.units import Item, Outcome, Unit, group_units
from mast_ray.tables.prepared import Prepared, open_prepared, read_table, write_table
from mast_ray.tables.reading.chunk_sets import ChunkSet
from mast_ray.training.data.archive_inputs import read_as

WORK, EVENTS, FOLDER = "work", "events.parquet", "parts"
CHUNKS_PER_UNIT = 8_192  # half a minute of a GPU


@dataclass(frozen=True)
class EmbedTask:
    """What is embedded by which model; it travels. Boxes are those of EVENTS in the folder of the parts."""

    config: Config
    model: str
    prepared: str
    work: str
    what: What
    name: EmbeddingName
    background: Background
    splits: tuple[str, ...]

    @property
    def stage(self) -> Storage:
        return open_storage(self.work, self.config.storage)

    def embedder(self) -> Embedder:
        return load_embedder(self.model, self.name, self.config, self.background)


@dataclass(frozen=True, eq=False)
class MakeEmbedWork:
    """Builds the work where it will run, or takes what is open here."""

    task: EmbedTask
    opened: tuple[Embedder, Prepared] | None = None

    def __call__(self) -> Work:
        task = self.task
        if self.opened is not None:
            embedder, archive = self.opened
        else:
            embedder = task.embedder()
            archive = open_prepared(task.prepared, task.config.storage)
            archive = read_as(archive, embedder.card, task.model)
        events = read_table(task.stage, EVENTS) if task.what == "boxes" else None
        return EmbedWork(task, embedder, archive, chunks_to_embed(archive, task.splits), events)


@dataclass(frozen=True, eq=False)
class EmbedWork:
    """The rows of some recordings as one file; none where they hold nothing to embed."""

    task: EmbedTask
    embedder: Embedder
    archive: Prepared
    chunks: ChunkSet
    events: pa.Table | None

    def __call__(self, attempt: Attempt, items: Sequence[Item]) -> WorkDone:
        tables = [
            table
            for group in attempt.groups(items)
            if (table := self._table(group)) is not None and len(table)
        ]
        outcomes, files = [Outcome(item.item_id, "done") for item in items], []
        if tables:
            table = pa.concat_tables(tables)
            with self.task.stage.scratch_file() as path:
                pq.write_table(table, path, compression="zstd")
                files.append(publish_file(self.task.stage, path, FOLDER, attempt.unit, len(table)))
        return WorkDone(outcomes, files, {})

    def _table(self, items: Sequence[Item]) -> pa.Table | None:
        rows = self.archive.rows_of(pa.array([item.item_id for item in items]))
        own = self.chunks.take(np.isin(self.chunks.recording, rows))
        config = self.task.config
        if self.events is None:
            return embed_chunks(self.embedder, self.archive, own, config)
        return embedded_boxes(self.embedder, self.archive, self.events, own, config)


def embed_in_parts(
    task: EmbedTask,
    embedder: Embedder,
    archive: Prepared,
    events: pa.Table | None,
    out: Storage,
    runner: Runner,
) -> pa.Table:
    """One row per chunk, or per event that can be embedded; parts go below OUT/work until they are joined."""
    if events is not None:
        write_table(task.stage, EVENTS, events)
    units = recording_units(archive, chunks_to_embed(archive, task.splits))

    def make(offered: Resources) -> MakeEmbedWork:
        return MakeEmbedWork(task, (embedder, archive) if offered.is_one_process else None)

    def spread(offered: Resources, num_units: int) -> Spread:
        return model_spread(task.config, offered, num_units)

    run_parts(runner, task.stage, units, make, spread)
    filesystem, root = task.stage.arrow()
    tables = []
    for unit in units:
        for file in part_of(task.stage, unit).files:
            with filesystem.open_input_file(f"{root}/{file.key}") as source:
                tables.append(pq.read_table(source))
    remove_folder(out.at(WORK))
    if events is None:
        return pa.concat_tables(tables)
    refuse_no_boxes(len(events), sum(map(len, tables)))
    table = pa.concat_tables(tables)
    return table.take(pa.array(np.argsort(table.column("event").to_numpy(), kind="stable")))


def recording_units(archive: Prepared, chunks: ChunkSet) -> list[Unit]:
    """Units of whole recordings; the size of an item is its number of chunks."""
    rows, counts = np.unique(chunks.recording, return_counts=True)
    paths, ids = archive.recordings.column("path"), archive.recordings.column("recording_id")
    items = [
        Item(ids[row].as_py(), paths[row].as_py(), count, "")
        for row, count in zip(rows.tolist(), counts.tolist(), strict=True)
    ]
    return group_units(items, CHUNKS_PER_UNIT, CHUNKS_PER_UNIT)


def parts_folder(out: Storage, facts: Sequence[object], events: pa.Table | None) -> str:
    """Where the parts of just this work lie below OUT."""
    content = "" if events is None else text_hash(_bytes_of(events))
    return out.at(f"{WORK}/{text_hash(json.dumps([*facts, content]))}").url


def _bytes_of(table: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return sink.getvalue().to_pybytes()
