"""Stored detections of a pool as columns for the operator, and the groups (site and local
hour) that its chunks fall into.

Legend: N detections, C chunks, G groups. Tables speak seconds and hertz of the recording; boxes here are in
fractional frames and bins of the chunk, as the model gave them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray

from mast_ray.config.errors import DataError
from mast_ray.self_training.operator import (
    EVEN_WEIGHT,
    PoolDetections,
    doubted,
    survives_suppression,
    weighed,
)
from mast_ray.spectrogram.grid import (
    SEGMENT_FRAMES,
    boxes_on_open_grid,
    seconds_hertz_from_boxes,
    seconds_of_hops,
)
from mast_ray.storage.storage import Storage
from mast_ray.storage.units import read_commits
from mast_ray.tables.local_time import local_seconds
from mast_ray.tables.prepared import Prepared
from mast_ray.tables.reading.chunk_sets import ChunkSet, keys_of, pair_keys
from mast_ray.tables.schemas import LABELS

Ints = NDArray[np.int64]
COLUMNS = ["recording_id", "chunk", "begin_s", "end_s", "low_hz", "high_hz", "score"]
PARTS = ["classification", "centerness"]
NO_SITE = "(no site)"
ROWS_AT_ONCE = 3_000_000  # detections that a process holds; files of more are gone through several times
ROWS_WORTH_THREADS = 100_000
PSEUDO = pa.schema([*LABELS, ("chunk", pa.int32()), ("threshold", pa.float32()), ("is_ignored", pa.bool_())])


def read_pool(
    stage: Storage,
    prepared: Prepared,
    chunks: ChunkSet,
    min_score: float = 0.0,
    overlap: float | None = None,
    score_weight: float = EVEN_WEIGHT,
    with_parts: bool = False,
    files: Sequence[str] | None = None,
    doubts_nested: bool = False,
) -> PoolDetections:
    """Detections of a finished pseudo-label stage in some chunks, from `min_score` on.

    File by file, each holding whole chunks: with `overlap` they are suppressed on the way, so that memory
    holds survivors only. Leaving out low scores first is exact, because they never suppress higher ones, nor make them doubtful.
    Scores are made anew for another weight, and `doubts_nested` lowers those of boxes within better ones. `files`: only these of the stage.
    """
    keys = files
    if keys is None:
        keys = sorted(file.key for commit in read_commits(stage) for file in commit.files)
    if not keys:
        raise DataError(f"{stage.url} holds no detections: give a folder written by `mast pseudo-label`")
    filesystem, root = stage.arrow()
    is_reweighed = score_weight != EVEN_WEIGHT
    lowest, names = (0.0 if is_reweighed else min_score), [*COLUMNS]
    if with_parts or is_reweighed:
        names += PARTS
    parts = []
    for key in keys:
        with filesystem.open_input_file(f"{root}/{key}") as source:
            tables = _detections(source, prepared, lowest, names)
            own = [pool_of_table(table, prepared, chunks) for table in tables]
        part = weighed(own[0] if len(own) == 1 else joined(own, len(chunks)), score_weight)
        if is_reweighed:
            part = part.where(part.score >= min_score)
        part = part if overlap is None else part.where(survives_suppression(part, overlap))
        if doubts_nested:
            part = doubted(part)
            part = part.where(part.score >= min_score)
        parts.append(part)
    return joined(parts, len(chunks))


def has_parts(stage: Storage) -> bool:
    """Whether a finished stage holds classification and centerness beside its scores."""
    filesystem, root = stage.arrow()
    for key in sorted(file.key for commit in read_commits(stage) for file in commit.files if file.num_rows):
        with filesystem.open_input_file(f"{root}/{key}") as source:
            file = pq.ParquetFile(source)
            if PARTS[0] not in file.schema_arrow.names:
                return False
            return file.read_row_group(0, columns=PARTS[:1]).column(0).null_count == 0
    return False


def _detections(
    source: pa.NativeFile, prepared: Prepared, min_score: float, names: Sequence[str]
) -> Iterator[pa.Table]:
    """The columns of a file that it has, all rows from a score on, a row group read at a time. Of a large file row groups
    without recordings of `prepared` are left out: who wants some of its chunks does not hold the others.
    """
    file = pq.ParquetFile(source, pre_buffer=True, read_dictionary=["recording_id"])
    names = [name for name in names if name in file.schema_arrow.names]
    is_large, tables = file.metadata.num_rows > ROWS_AT_ONCE, []
    for number in range(file.num_row_groups):
        # threads take longer to wake than to read a few rows
        use_threads = file.metadata.row_group(number).num_rows > ROWS_WORTH_THREADS
        if is_large:
            ids = file.read_row_group(number, columns=["recording_id"], use_threads=use_threads).column(0)
            if not (prepared.rows_of(pc.unique(ids).dictionary_decode()) >= 0).any():
                continue
        table = file.read_row_group(number, columns=names, use_threads=use_threads)
        tables.append(table.filter(pc.greater_equal(table.column("score"), min_score)))
        if is_large:
            yield tables.pop()
    yield pa.concat_tables(tables or [file.schema_arrow.empty_table().select(names)])


def joined(parts: Sequence[PoolDetections], num_chunks: int) -> PoolDetections:
    """Parts over the same chunks as one."""
    return PoolDetections(
        np.concatenate([np.zeros(0, np.int64), *(part.chunk for part in parts)]),
        np.concatenate([np.zeros((0, 4)), *(part.boxes for part in parts)]),
        np.concatenate([np.zeros(0), *(part.score for part in parts)]),
        num_chunks,
        np.concatenate([np.zeros((0, 2)), *(part.parts for part in parts if part.parts is not None)])
        if parts and all(part.parts is not None for part in parts)
        else None,
    )


def pool_of_table(table: pa.Table, prepared: Prepared, chunks: ChunkSet) -> PoolDetections:
    """Rows of a per-chunk table (detections or pseudo-labels) whose chunk is in the set."""
    wanted, order = keys_of(chunks), np.arange(len(chunks))
    if (wanted[1:] < wanted[:-1]).any():
        order = np.argsort(wanted, kind="stable")
        wanted = wanted[order]
    number = pc.fill_null(table.column("chunk"), -1).to_numpy().astype(np.int64)
    own = pair_keys(_rows_of(prepared, table.column("recording_id")), number)
    place = np.minimum(np.searchsorted(wanted, own), max(len(wanted) - 1, 0))
    found = np.zeros(0, np.int64)
    if len(wanted):
        found = np.flatnonzero((wanted[place] == own) & (number >= 0))
    begin_s, end_s, low_hz, high_hz, score = (
        table.column(name).to_numpy().astype(np.float64)[found]
        for name in ("begin_s", "end_s", "low_hz", "high_hz", "score")
    )
    boxes = boxes_in_chunks(number[found], begin_s, end_s, low_hz, high_hz)
    return PoolDetections(order[place[found]], boxes, score, len(chunks), _parts(table, found))


def _rows_of(prepared: Prepared, ids: pa.ChunkedArray) -> Ints:
    """Rows of the recordings of a column in which each stands many times."""
    codes = ids.combine_chunks()
    if not pa.types.is_dictionary(codes.type):
        codes = codes.dictionary_encode()
    return prepared.rows_of(codes.dictionary)[codes.indices.to_numpy()]


def boxes_in_chunks(
    number: Ints,
    begin_s: NDArray[np.float64],
    end_s: NDArray[np.float64],
    low_hz: NDArray[np.float64],
    high_hz: NDArray[np.float64],
) -> NDArray[np.float64]:
    """(N, 4) fractional frames and bins of chunk `number` of a recording. Whole ones stay whole: a box of just 100 ms or
    2 bins, or one that overlaps another by just a half, must not fall to either side by rounding.
    """
    boxes = boxes_on_open_grid(begin_s, end_s, low_hz, high_hz)
    boxes[:, 0::2] -= (number * SEGMENT_FRAMES)[:, None]
    return boxes


def _parts(table: pa.Table, rows: Ints) -> NDArray[np.float64] | None:
    """(N, 2) classification and centerness of some rows; None where they were not stored."""
    if any(name not in table.column_names or table.column(name).null_count for name in PARTS):
        return None
    return np.stack([table.column(name).to_numpy().astype(np.float64)[rows] for name in PARTS], axis=1)


def objects_of(table: pa.Table) -> pa.Table:
    """The rows of a table of pseudo-labels that are objects."""
    return table.filter(pc.invert(table.column("is_ignored")))


@dataclass(frozen=True, eq=False)
class ChunkGroups:
    """Groups that share a threshold."""

    group: Ints  # (C,)
    site_of_group: Ints  # (G,)
    names: tuple[str, ...]  # (G,) "SITE01 06 h": the same in every part of an archive
    site_names: tuple[str, ...]  # (G,)


def chunk_groups(prepared: Prepared, chunks: ChunkSet) -> ChunkGroups:
    """Site and local hour of every chunk; chunks of unknown time form one group per site."""
    sites = pc.fill_null(prepared.recordings.column("site"), "").combine_chunks().dictionary_encode()
    site = sites.indices.to_numpy().astype(np.int64)[chunks.recording]
    local_s = local_seconds(prepared.recordings)[chunks.recording] + seconds_of_hops(chunks.chunk)
    hour = np.floor(np.nan_to_num(local_s)).astype(np.int64) // 3600 % 24
    hour[np.isnan(local_s)] = 24
    code = site * 25 + hour
    codes = np.flatnonzero(np.bincount(code))
    group = np.searchsorted(codes, np.arange(25 * len(sites.dictionary)))[code]  # without sorting the chunks
    names = sites.dictionary.to_pylist()
    labels = [
        f"{names[code // 25]} {f'{code % 25:02d} h' if code % 25 < 24 else 'any hour'}".strip()
        for code in codes.tolist()
    ]
    own = tuple(names[code // 25] for code in codes.tolist())
    return ChunkGroups(group, codes // 25, tuple(labels), own)


def site_groups(prepared: Prepared, chunks: ChunkSet) -> ChunkGroups:
    """One group per site."""
    sites = pc.fill_null(prepared.recordings.column("site"), "").combine_chunks().dictionary_encode()
    codes, group = np.unique(sites.indices.to_numpy()[chunks.recording], return_inverse=True)
    own = tuple(sites.dictionary[int(code)].as_py() for code in codes)
    names = tuple(name or NO_SITE for name in own)
    return ChunkGroups(group.astype(np.int64), codes.astype(np.int64), names, own)


def pseudo_table(
    prepared: Prepared,
    chunks: ChunkSet,
    pseudo: PoolDetections,
    limit: NDArray[np.float64],
    lineage: dict[str, str],
    ignored: PoolDetections | None = None,
) -> pa.Table:
    """Pseudo-boxes as labels of their chunks; every row names its model, policy and
    round, and the threshold it passed.

    `limit` is the threshold of every chunk (C,); `ignored` boxes are below it, or no valid pseudo-boxes.
    """
    num_objects = len(pseudo.score)
    pseudo = pseudo if ignored is None else joined([pseudo, ignored], pseudo.num_chunks)
    is_ignored = np.arange(len(pseudo.score)) >= num_objects
    order = np.lexsort((-pseudo.score, is_ignored, pseudo.chunk))
    chunk = pseudo.chunk[order]
    boxes = pseudo.boxes[order].copy()
    number = chunks.chunk[chunk].astype(np.int64)
    boxes[:, 0::2] += (number * SEGMENT_FRAMES)[:, None]
    begin_s, low_hz, end_s, high_hz = seconds_hertz_from_boxes(boxes).T
    ids = prepared.recordings.column("recording_id").combine_chunks().take(pa.array(chunks.recording[chunk]))
    source = " ".join(f"{name}={value}" for name, value in lineage.items())
    columns = {
        "recording_id": ids, "begin_s": begin_s, "end_s": end_s, "low_hz": low_hz, "high_hz": high_hz,
        "label": pa.repeat("", len(order)), "score": pseudo.score[order], "source": pa.repeat(source, len(order)),
        "chunk": number, "threshold": limit[chunk], "is_ignored": is_ignored[order],
    }  # fmt: skip
    arrays = [pa.array(columns[field.name]).cast(field.type) for field in PSEUDO]
    return pa.Table.from_arrays(arrays, schema=PSEUDO.with_metadata(lineage))
