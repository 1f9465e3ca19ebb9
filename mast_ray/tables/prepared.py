"""A prepared archive, opened: its small tables in memory, its frames where they lie.

Rows of `recordings` number the recordings everywhere in this room; tables speak seconds and hertz. Several archives that a
folder joins (tables/joining.py) are one: their tables one after the other, recordings told apart by the archive's number.
"""

from __future__ import annotations

import io
import json
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, reduce
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray

from mast_ray.config.errors import DataError
from mast_ray.config.tree import StorageConfig
from mast_ray.spectrogram.background import Backgrounds
from mast_ray.spectrogram.normalisation import Moments, Normalisation
from mast_ray.storage.stage_folders import MANIFEST, SCHEMA_VERSION, Manifest, read_manifest, text_hash
from mast_ray.storage.storage import Storage, open_storage
from mast_ray.tables.dealing.dealt_before import was_stopped
from mast_ray.tables.schemas import IGNORED

FEW = 100  # ids are searched for one by one where there are so many times more recordings
IDS_AT_ONCE = 1_000_000
JOIN = "join"  # the stage of a folder that stands for several archives
MEND = "run the command that wrote this folder again: it finds what is damaged and does just that again"


@dataclass(frozen=True, eq=False)
class OrderedIds:
    """Ids in order and the row of each."""

    ids: NDArray[np.bytes_]
    rows: NDArray[np.int64]

    @classmethod
    def of(cls, column: pa.ChunkedArray) -> OrderedIds:
        slices = [column.slice(first, IDS_AT_ONCE) for first in range(0, len(column), IDS_AT_ONCE)]
        ids = np.concatenate([np.array(some.to_pylist(), "S") for some in slices])
        rows = np.argsort(ids, kind="stable")
        return cls(ids[rows], rows)

    def rows_of(self, ids: NDArray[np.bytes_]) -> NDArray[np.int64]:
        """-1 for those that are not there."""
        place = np.minimum(np.searchsorted(self.ids, ids), len(self.ids) - 1)
        return np.where(self.ids[place] == ids, self.rows[place], -1)


@dataclass(frozen=True, eq=False)
class Prepared:
    """PREPARED/ as docs/architecture.md draws it."""

    storage: Storage
    manifest: Manifest
    recordings: pa.Table
    index: pa.Table
    labels: pa.Table
    splits: pa.Table
    moments: Moments  # over valid frames of the training pool
    backgrounds: Backgrounds | None = None  # set by `with_background`: chunks are read with theirs
    ignored: pa.Table = field(default_factory=IGNORED.empty_table)  # neither call nor background
    members: tuple[
        Prepared, ...
    ] = ()  # where several are joined: a file of the index begins with a member's number

    @property
    def places(self) -> tuple[Storage, ...]:
        """Where the frames lie that the index names: here, or in each of the joined archives."""
        return tuple(member.storage for member in self.members) or (self.storage,)

    @cached_property
    def recording_ids(self) -> list[str]:
        return self.recordings.column("recording_id").to_pylist()

    @cached_property
    def num_chunks(self) -> NDArray[np.int64]:
        return self.recordings.column("num_chunks").to_numpy().astype(np.int64)

    @cached_property
    def num_frames(self) -> NDArray[np.int64]:
        return self.recordings.column("num_frames").to_numpy().astype(np.int64)

    def rows_of(self, recording_ids: pa.ChunkedArray | pa.Array) -> NDArray[np.int64]:
        """Row of each id in `recordings`; -1 for an id that is not there. Few ids are searched for in an order that
        is made once: going through millions of recordings for every unit of work would take the square of them.
        """
        if len(recording_ids) * FEW < len(self.recordings):
            return self._ordered_ids.rows_of(np.array(recording_ids.to_pylist(), "S"))
        found = pc.index_in(recording_ids, value_set=self.recordings.column("recording_id").combine_chunks())
        return pc.fill_null(found, -1).to_numpy(zero_copy_only=False).astype(np.int64)

    @cached_property
    def _ordered_ids(self) -> OrderedIds:
        return OrderedIds.of(self.recordings.column("recording_id"))

    def of_recordings(self, rows: NDArray[np.int64]) -> Prepared:
        """The archive of some of its recordings, in their order there."""
        rows = np.sort(rows)
        recording, order = self._splits_by_recording
        low, high = (np.searchsorted(recording, rows, side=side) for side in ("left", "right"))
        own = np.concatenate([np.zeros(0, np.int64), *map(np.arange, low, high)])
        return replace(
            self,
            recordings=self.recordings.take(pa.array(rows)),
            splits=self.splits.take(pa.array(np.sort(order[own]))),
        )

    @cached_property
    def _splits_by_recording(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """(recordings of all rows of `splits` in their order, those rows)."""
        recording = self.rows_of(self.splits.column("recording_id"))
        order = np.argsort(recording, kind="stable")
        return recording[order], order

    @property
    def storage_type(self) -> str:
        """uint8 or float16."""
        return self.manifest.config["spectrogram"]["storage"]

    def normalisation(self, divisor: float = 1.0) -> Normalisation:
        """From the statistics of the pool: of its values, or of those above the background where that is read."""
        if self.backgrounds is None:
            return Normalisation.of_moments(self.moments, divisor)
        return Normalisation.of_moments(self.backgrounds.moments, divisor, background="median")


def open_prepared(uri: str | Path | Storage, settings: StorageConfig | None = None) -> Prepared:
    """Read the small tables of a finished prepare stage."""
    storage = open_storage(uri, settings) if isinstance(uri, str | Path) else uri
    manifest = read_manifest(storage)
    if manifest is None:
        if storage.stat(MANIFEST) is not None:
            raise DataError(f"{storage.url}/{MANIFEST} is damaged:\n{MEND}")
        if was_stopped(storage):
            raise DataError(
                f"{storage.url} was being dealt again, and that was stopped:\nrun the same `mast split` again, or `mast prepare`"
            )
        unfinished = next(iter(storage.list("attempts")), None) is not None
        what = (
            "is not finished: run the same `mast prepare` again"
            if unfinished
            else "holds no prepared archive: give a folder that `mast prepare` wrote"
        )
        raise DataError(f"{storage.url} {what}\n(there is no manifest.json)")
    if manifest.stage == JOIN:
        return joined_archives(
            storage, [open_prepared(url, settings) for url in manifest.counts["archives"]], manifest
        )
    if manifest.stage != "prepare":
        raise DataError(f"{storage.url} is the output of `{manifest.stage}`: give a prepared archive")
    if manifest.schema_version != SCHEMA_VERSION:
        raise DataError(
            f"{storage.url} has schema version {manifest.schema_version}, this is version {SCHEMA_VERSION}:\n"
            "prepare the archive again"
        )
    stats = _read_json(storage, "stats.json")
    names = ("recordings", "index", "labels", "splits")
    tables = {name: in_one_piece(read_table(storage, f"{name}.parquet")) for name in names}
    ignored = IGNORED.empty_table()
    if storage.stat("ignored.parquet") is not None:  # archives that were prepared before there were any
        ignored = read_table(storage, "ignored.parquet")
    return Prepared(storage, manifest, **tables, moments=Moments.from_dict(stats), ignored=ignored)


def joined_archives(storage: Storage, members: Sequence[Prepared], manifest: Manifest) -> Prepared:
    """Several archives as one that `storage` stands for: pools, labels and splits of all, and statistics of all pools."""
    names = [member.storage.url.rstrip("/").rpartition("/")[2] for member in members]
    paths = [set(member.recordings.column("path").to_pylist()) for member in members]
    is_ambiguous = len(set().union(*paths)) < sum(map(len, paths))

    def of_all(name: str) -> pa.Table:
        tables = []
        for number, member in enumerate(members):
            table = _with_prefix(getattr(member, name), "recording_id", f"{number}.")
            table = _with_prefix(table, "file", f"{number}/")
            table = _with_prefix(table, "group", f"{number}.")
            if name == "recordings" and is_ambiguous:
                own = names[number] if names.count(names[number]) == 1 else f"{names[number]}-{number}"
                table = _with_prefix(table, "path", f"{own}/")
            tables.append(table)
        return pa.concat_tables(tables, promote_options="permissive").combine_chunks()

    first = json.loads(json.dumps(dict(members[0].manifest.config)))
    if len({member.storage_type for member in members}) > 1:
        first["spectrogram"]["storage"] = "float16"  # holds every stored byte as it is
    if any(member.manifest.config["split"]["unit"] == "chunk" for member in members):
        first["split"]["unit"] = "chunk"
    tables = {name: of_all(name) for name in ("recordings", "index", "labels", "splits", "ignored")}
    return Prepared(
        storage,
        replace(manifest, config=first),
        **tables,
        moments=reduce(Moments.merge, (member.moments for member in members)),
        members=tuple(members),
    )


def _with_prefix(table: pa.Table, column: str, prefix: str) -> pa.Table:
    """Texts of a column with something before them, empty ones as they are; the same table without that column."""
    if column not in table.column_names:
        return table
    texts = table.column(column)
    longer = pc.if_else(pc.not_equal(texts, ""), pc.binary_join_element_wise(prefix, texts, ""), texts)
    return table.set_column(table.column_names.index(column), column, longer)


def read_table(storage: Storage, key: str) -> pa.Table:
    """A small Parquet table, whole."""
    try:
        return pq.read_table(io.BytesIO(storage.read_bytes(key)), partitioning=None)
    except FileNotFoundError as error:
        raise DataError(f"{storage.url}/{key} is missing:\n{MEND}") from error
    except (pa.ArrowException, OSError) as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise  # the disk's word, not Parquet's
        raise DataError(f"{storage.url}/{key} is damaged:\n{MEND}") from error


def in_one_piece(table: pa.Table) -> pa.Table:
    """Rows of a table in pieces are taken by joining all of its pieces first, every time. One column after another is
    joined and let go of: a table of ten million recordings is not held twice.
    """
    schema, columns = table.schema, []
    while table.num_columns:
        columns.append(table.column(0).combine_chunks())
        table = table.remove_column(0)
    return pa.Table.from_arrays(columns, schema=schema)


def _read_json(storage: Storage, key: str) -> dict:
    try:
        found = json.loads(storage.read_bytes(key))
    except ValueError:
        found = None
    if not isinstance(found, dict):
        raise DataError(f"{storage.url}/{key} is damaged:\n{MEND}")
    return found


def write_table(storage: Storage, key: str, table: pa.Table) -> bytes:
    """Write a small table as one object; the same rows give the same bytes, which are returned."""
    sink = io.BytesIO()
    pq.write_table(table, sink, compression="zstd", store_schema=True)
    storage.write_atomic(key, sink.getvalue())
    return sink.getvalue()


def data_hash(prepared: Prepared) -> str:
    """Names the content of a prepared archive: what was prepared, how it was dealt out, who labelled what."""
    if prepared.members:
        return text_hash("\n".join(data_hash(member) for member in prepared.members))
    parts = [json.dumps([prepared.manifest.key, prepared.manifest.inputs], sort_keys=True)]
    parts += [
        text_hash(prepared.storage.read_bytes(f"{name}.parquet"))
        for name in ("recordings", "splits", "labels")
    ]
    return text_hash("\n".join(parts))
