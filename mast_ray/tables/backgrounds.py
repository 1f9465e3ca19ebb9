"""Backgrounds of a prepared archive: measured while recordings are prepared, looked up when chunks are read.

Legend: N stretches, B chunks, F bins. `backgrounds.parquet` has one row per stretch of a recording, with what
the statistics of values above the background need. An archive prepared before there was such a table gets it
from its stored frames, once.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import reduce
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import torch
from numpy.typing import NDArray

from mast_ray.config.errors import MastError
from mast_ray.spectrogram.background import Backgrounds, BackgroundStream, Stretch
from mast_ray.spectrogram.chunking import Segment
from mast_ray.spectrogram.grid import NUM_BINS, SEGMENT_FRAMES
from mast_ray.spectrogram.normalisation import Background, Moments
from mast_ray.spectrogram.storage import dequantise
from mast_ray.tables.prepared import Prepared, read_table, write_table
from mast_ray.tables.reading.blocks import BlockReader, block_map
from mast_ray.tables.reading.chunk_sets import ChunkSet
from mast_ray.tables.schemas import BACKGROUNDS
from mast_ray.tables.statistics import pool_moments

log = logging.getLogger("mast.tables")

TABLE = "backgrounds.parquet"


class BackgroundRows:
    """Rows of `backgrounds.parquet`, gathered while segments of recordings pass through."""

    def __init__(self) -> None:
        self._rows: list[dict[str, Any]] = []

    def measuring(self, recording_id: str, segments: Iterable[Segment]) -> Iterator[Segment]:
        """The same segments; a recording that breaks off leaves no row."""
        stream, sums, rows = BackgroundStream(), _SegmentSums(), []
        for segment in segments:
            values = torch.from_numpy(segment.logmel)[None]
            sums.add(segment)
            rows += [sums.row(recording_id, s) for s in stream.push(values, segment.valid_frames)]
            yield segment
        rows += [sums.row(recording_id, stretch) for stretch in stream.finish()]
        self._rows += rows

    def table(self) -> pa.Table:
        return pa.Table.from_pylist(self._rows, schema=BACKGROUNDS)


class _SegmentSums:
    """Per segment what gives its sums above any background, until that background is known."""

    def __init__(self) -> None:
        self._open: list[tuple[int, NDArray[np.float64], float]] = []

    def add(self, segment: Segment) -> None:
        valid = segment.logmel[: segment.valid_frames].astype(np.float64)
        self._open.append((segment.valid_frames, valid.sum(axis=0), float(np.square(valid).sum())))

    def row(self, recording_id: str, stretch: Stretch) -> dict[str, Any]:
        done, self._open = self._open[: stretch.num_segments], self._open[stretch.num_segments :]
        level = stretch.background.numpy().astype(np.float64)
        # sum (x - b)^2 = sum x^2 - 2 sum b x + n b^2, bin by bin
        value_sum = [float(sums.sum() - frames * level.sum()) for frames, sums, _ in done]
        square_sum = [
            float(squares - 2 * level @ sums + frames * (level @ level)) for frames, sums, squares in done
        ]
        return {
            "recording_id": recording_id, "segment": stretch.first_segment,
            "num_segments": stretch.num_segments, "background": stretch.background.numpy(),
            "value_sum": value_sum, "square_sum": square_sum,
        }  # fmt: skip


def with_background(prepared: Prepared, background: Background) -> Prepared:
    """The archive as chunks of it are to be read: as they are, or with their background beside them."""
    if background == "none":
        return replace(prepared, backgrounds=None)
    if prepared.backgrounds is not None:
        return prepared
    return replace(prepared, backgrounds=backgrounds_of(prepared))


def backgrounds_of(prepared: Prepared) -> Backgrounds:
    """The backgrounds of an archive; those its table lacks are measured in the stored frames."""
    if prepared.members:
        return _joined([backgrounds_of(member) for member in prepared.members])
    table = stored_backgrounds(prepared)
    has_frames = prepared.num_chunks > 0
    known = np.unique(prepared.rows_of(table.column("recording_id")))
    missing = np.setdiff1d(np.flatnonzero(has_frames), known)
    if len(missing):
        log.info(
            "%s: the background of %d recordings is measured in their stored frames, once",
            prepared.storage.url,
            len(missing),
        )
        table = pa.concat_tables([table, _measured(prepared, missing)])
        _keep(prepared, table)
    rows = prepared.rows_of(table.column("recording_id"))
    order = np.lexsort((table.column("segment").to_numpy(), rows))
    order = order[rows[order] >= 0]
    flat = pc.list_flatten(table.column("background").combine_chunks()).to_numpy(zero_copy_only=False)
    counts = np.bincount(rows[order], minlength=len(prepared.num_chunks))
    return Backgrounds(
        np.concatenate(([0], np.cumsum(counts))),
        flat.reshape(-1, NUM_BINS).astype(np.float32)[order],
        pool_moments(table, prepared.recordings, prepared.splits),
    )


def _joined(parts: Sequence[Backgrounds]) -> Backgrounds:
    """Backgrounds of archives that are one: recordings one after the other, statistics of all pools."""
    before = np.cumsum([0, *(len(part.levels) for part in parts)])
    first = [part.first[:-1] + start for part, start in zip(parts, before[:-1], strict=True)]
    return Backgrounds(
        np.concatenate([*first, before[-1:]]).astype(np.int64),
        np.concatenate([part.levels for part in parts]),
        reduce(Moments.merge, (part.moments for part in parts)),
    )


def stored_backgrounds(prepared: Prepared) -> pa.Table:
    """The table as it lies there; empty in an archive that was prepared without one."""
    if prepared.storage.stat(TABLE) is None:
        return BACKGROUNDS.empty_table()
    return read_table(prepared.storage, TABLE)


def _keep(prepared: Prepared, table: pa.Table) -> None:
    """Write the table for the next time; an archive that cannot be written to is measured again then."""
    try:
        write_table(prepared.storage, TABLE, table)
    except (OSError, MastError) as error:
        log.info("%s cannot be written (%s): it will be measured again", TABLE, error)


def _measured(prepared: Prepared, recordings: NDArray[np.int64]) -> pa.Table:
    """Rows of some recordings from their stored frames, one after the other."""
    rows, reader = BackgroundRows(), BlockReader(prepared.places)
    for recording in recordings.tolist():
        for _ in rows.measuring(prepared.recording_ids[recording], _segments(prepared, recording, reader)):
            pass
    return rows.table()


def _segments(prepared: Prepared, recording: int, reader: BlockReader) -> Iterator[Segment]:
    """The stored segments of a recording, in order: the first of every chunk, and the second of the last."""
    count = int(prepared.num_chunks[recording])
    number = np.arange(count, dtype=np.int32)
    chunks = ChunkSet(np.full(count, recording, np.int32), number, np.ones(count, np.float32))
    places = block_map(prepared, chunks)
    open_block = -1
    values: NDArray[np.generic] = np.zeros(0)
    for chunk in range(count):
        if places.block[chunk] != open_block:
            open_block = int(places.block[chunk])
            values = reader.read(places.blocks[open_block])
        scale, offset = float(places.scale[chunk]), float(places.offset[chunk])
        row = int(places.row[chunk])
        for segment in (chunk, chunk + 1) if chunk == count - 1 else (chunk,):
            valid = int(np.clip(prepared.num_frames[recording] - segment * SEGMENT_FRAMES, 0, SEGMENT_FRAMES))
            yield Segment(segment, dequantise(values[row + segment - chunk], scale, offset), valid)
