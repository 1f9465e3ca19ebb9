"""BirdSet-style pools: Parquet shards that hold compressed audio beside its
metadata, or Parquet beside ogg files.

One row per labelled event (or per clip), several rows may name one recording. Columns: `filepath`, `audio` (struct of bytes and
path; absent where the ogg files lie beside the table), `start_time`, `end_time` (seconds or HH:MM:SS), `low_freq`, `high_freq`,
`ebird_code`, `lat`, `long`, `microphone`. Shards are read row group by row group; audio is never unpacked to disk.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path, PurePosixPath
from typing import Any, BinaryIO

import pyarrow.parquet as pq

from mast_ray.config.errors import DataError
from mast_ray.recordings.annotations.model import Annotation, AnnotationSet
from mast_ray.recordings.annotations.paths import RecordingIndex
from mast_ray.recordings.clock_and_site.clock import TableRow
from mast_ray.recordings.clock_and_site.site_tables import SiteTable
from mast_ray.storage.entries import Entry
from mast_ray.storage.storage import Storage

_ABOUT = (
    "filepath",
    "start_time",
    "end_time",
    "low_freq",
    "high_freq",
    "ebird_code",
    "lat",
    "long",
    "microphone",
)


@dataclass(frozen=True)
class BirdSetArchive:
    """Recordings inside Parquet shards, each under `<shard>/<file name>`; read-only."""

    inner: Storage

    @property
    def url(self) -> str:
        return self.inner.url

    def list(self, prefix: str = "", folders_named: Callable[[str], bool] | None = None) -> Iterator[Entry]:
        for shard in shards_of(self.inner):
            for key, (_, _, num_bytes) in _places(self.inner, shard).items():
                if key.startswith(prefix):
                    yield Entry(key, num_bytes, str(num_bytes))

    def stat(self, key: str) -> Entry | None:
        place = _places(self.inner, _shard_of(key)).get(key)
        return Entry(key, place[2], str(place[2])) if place else None

    def read_bytes(self, key: str) -> bytes:
        shard = _shard_of(key)
        place = _places(self.inner, shard).get(key)
        if place is None:
            raise FileNotFoundError(f"{self.url}/{key}")
        group, row, _ = place
        return _audio_of(self.inner, shard, group)[row]

    def open_read(self, key: str, read_ahead_bytes: int = 0) -> BinaryIO:
        return io.BytesIO(self.read_bytes(key))

    def local_path(self, key: str) -> Path | None:
        return None

    def at(self, folder: str) -> BirdSetArchive:
        return BirdSetArchive(self.inner.at(folder))

    def has_conditional_put(self) -> bool:
        return False

    def _refuse(self, *_: Any) -> Any:
        raise DataError(f"{self.url} is read-only: write somewhere else")

    write_atomic = put_if_absent = delete = publish = scratch_file = arrow = _refuse


def shards_of(storage: Storage) -> list[str]:
    """The Parquet files of a pool."""
    return [entry.key for entry in storage.list() if entry.key.endswith(".parquet")]


def birdset_archive(storage: Storage) -> Storage:
    """The archive to read recordings from: the shards themselves, or the files beside them."""
    shards = shards_of(storage)
    if not shards:
        raise DataError(f"{storage.url} holds no Parquet file: --dataset birdset needs its tables")
    names = _file(storage, shards[0]).schema_arrow.names
    if "filepath" not in names:
        raise DataError(f"{storage.url}/{shards[0]} has no column 'filepath': this is no BirdSet table")
    return BirdSetArchive(storage) if "audio" in names else storage


def birdset_labels(storage: Storage, recordings: list[str]) -> tuple[AnnotationSet, SiteTable]:
    """Events and places of a pool. Rows without both times are unlabelled clips; labels
    without a band stay time-only.
    """
    index = RecordingIndex(recordings)
    annotations: list[Annotation] = []
    annotated, unresolved = set(), set()
    rows_by_path: dict[str, TableRow] = {}
    for shard in shards_of(storage):
        file = _file(storage, shard)
        columns = [name for name in _ABOUT if name in file.schema_arrow.names]
        for row in file.read(columns=columns).to_pylist():
            embedded = f"{shard}/{PurePosixPath(row['filepath']).name}"
            path = embedded if embedded in index.paths else index.find(row["filepath"])
            if path is None:
                unresolved.add(row["filepath"])
                continue
            rows_by_path[path] = TableRow(
                site=str(row.get("microphone") or ""), latitude=row.get("lat"), longitude=row.get("long")
            )
            begin_s, end_s = _seconds(row.get("start_time")), _seconds(row.get("end_time"))
            if begin_s is None or end_s is None:
                continue
            annotated.add(path)
            if row.get("ebird_code"):
                low_hz, high_hz = row.get("low_freq"), row.get("high_freq")
                has_band = low_hz is not None and bool(high_hz)
                annotations.append(
                    Annotation(
                        path,
                        begin_s,
                        end_s,
                        low_hz=float(low_hz) if has_band else None,
                        high_hz=float(high_hz) if has_band else None,
                        label=str(row["ebird_code"]),
                    )
                )
    found = AnnotationSet(tuple(annotations), frozenset(annotated), tuple(sorted(unresolved)))
    return found, SiteTable(rows_by_path, {}, {})


def _seconds(value: Any) -> float | None:
    """Seconds from a number, or from HH:MM:SS."""
    if value is None or value == "":
        return None
    if isinstance(value, str) and ":" in value:
        total = 0.0
        for part in value.split(":"):
            total = total * 60 + float(part)
        return total
    return float(value)


def _file(storage: Storage, shard: str) -> pq.ParquetFile:
    return pq.ParquetFile(storage.open_read(shard))


def _shard_of(key: str) -> str:
    shard, _, _ = key.rpartition("/")
    return shard


@lru_cache(maxsize=64)  # storages are frozen values
def _places(storage: Storage, shard: str) -> dict[str, tuple[int, int, int]]:
    """key -> (row group, row, bytes) of every recording of a shard, the first row that holds it."""
    file = _file(storage, shard)
    found: dict[str, tuple[int, int, int]] = {}
    for group in range(file.num_row_groups):
        table = file.read_row_group(group, columns=["filepath", "audio.bytes"])
        sizes = table.column("audio").combine_chunks().field("bytes")
        for row, (name, size) in enumerate(
            zip(table.column("filepath").to_pylist(), (len(v.as_py() or b"") for v in sizes), strict=True)
        ):
            if size:
                found.setdefault(f"{shard}/{PurePosixPath(name).name}", (group, row, size))
    return found


@lru_cache(maxsize=2)
def _audio_of(storage: Storage, shard: str, group: int) -> list[bytes]:
    """Audio of one row group; recordings are worked on in order, so the last one
    is asked for again and again.
    """
    table = _file(storage, shard).read_row_group(group, columns=["audio.bytes"])
    return table.column("audio").combine_chunks().field("bytes").to_pylist()
