"""Detections of stored chunks -> rows of a per-chunk detections table, written to
Parquet by a thread of its own.

Legend: K boxes. Seconds are those of the recording, in float64. What lies in the padding
after a recording's end is left out.
"""

from __future__ import annotations

from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray

from mast_ray.inference.chunk_detector import BatchBoxes
from mast_ray.spectrogram.grid import SEGMENT_FRAMES, seconds_hertz_from_boxes
from mast_ray.tables.prepared import Prepared
from mast_ray.tables.reading.chunk_sets import ChunkSet
from mast_ray.tables.schemas import DETECTIONS

ROWS_PER_GROUP = 200_000
BATCHES_AHEAD = 8
POOL_DETECTIONS = pa.schema(
    [*DETECTIONS, ("classification", pa.float32()), ("centerness", pa.float32())]
)  # null where not kept: for a search over how the two make a score
_REPEATED = ("recording_id", "path", "site", "model_sha")
_MEASURED = ("begin_s", "end_s", "low_hz", "high_hz", "score")


class Measures(NamedTuple):
    """Detections as a table measures them: seconds of the recording and hertz; (K,) all."""

    row: NDArray[np.int64]  # of the batch: what lies in the padding is left out
    begin_s: NDArray[np.float64]
    end_s: NDArray[np.float64]
    low_hz: NDArray[np.float64]
    high_hz: NDArray[np.float64]


def measured(prepared: Prepared, chunks: ChunkSet, found: BatchBoxes) -> Measures:
    """Detections of `chunks` in seconds and hertz, clipped to the end of their recordings."""
    recording, number = chunks.recording[found.chunk], chunks.chunk[found.chunk]
    boxes = found.boxes.astype(np.float64)
    boxes[:, 0::2] += (number.astype(np.int64) * SEGMENT_FRAMES)[:, None]
    begin_s, low_hz, end_s, high_hz = seconds_hertz_from_boxes(boxes).T
    end_s = np.minimum(end_s, prepared.recordings.column("duration_s").to_numpy()[recording])
    inside = np.flatnonzero((begin_s < end_s) & (low_hz < high_hz))
    return Measures(inside, begin_s[inside], end_s[inside], low_hz[inside], high_hz[inside])


def pool_table(prepared: Prepared, chunks: ChunkSet, found: BatchBoxes, model_sha: str) -> pa.Table:
    """(K,) rows of the POOL_DETECTIONS schema for detections of `chunks`."""
    inside, begin_s, end_s, low_hz, high_hz = measured(prepared, chunks, found)
    number = chunks.chunk[found.chunk]
    rows = pa.array(chunks.recording[found.chunk][inside])

    def fact(name: str) -> pa.Array:
        return prepared.recordings.column(name).combine_chunks().take(rows)

    moment = pa.array(np.round(begin_s * 1e6).astype("timedelta64[us]"))
    columns: dict[str, Any] = {
        "recording_id": fact("recording_id"),
        "path": fact("path"),
        "site": fact("site"),
        "chunk": number[inside],
        "begin_s": begin_s,
        "end_s": end_s,
        "low_hz": low_hz,
        "high_hz": high_hz,
        "score": found.score[inside],
        "probability": pa.nulls(len(inside), pa.float32()),
        "start_utc": pc.add(fact("start_utc"), moment),
        "utc_offset_s": fact("utc_offset_s"),
        "model_sha": pa.repeat(model_sha, len(inside)),
        "label": pa.nulls(len(inside), pa.string()),  # boxes of single chunks are not named
        "label_score": pa.nulls(len(inside), pa.float32()),
    }
    for number_of_part, name in enumerate(("classification", "centerness")):
        columns[name] = (
            pa.nulls(len(inside), pa.float32())
            if found.parts is None
            else found.parts[inside, number_of_part]
        )
    arrays = [pa.array(columns[field.name]).cast(field.type) for field in POOL_DETECTIONS]
    return pa.Table.from_arrays(arrays, schema=POOL_DETECTIONS)


class PoolWriter:
    """Takes batches of detections as they come; conversion and compression happen in a thread,
    outside the GIL for the most part.
    """

    def __init__(self, path: Path, prepared: Prepared, model_sha: str) -> None:
        self._prepared, self._model_sha = prepared, model_sha
        self._writer = pq.ParquetWriter(
            path,
            POOL_DETECTIONS,
            compression="zstd",
            compression_level=1,
            use_dictionary=list(_REPEATED),
            use_byte_stream_split=list(_MEASURED),
            write_statistics=["recording_id", "chunk", "score"],
        )
        self._waiting: list[pa.Table] = []
        self._num_waiting = 0
        self.num_rows = 0
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="detections")
        self._pending: deque[Future[None]] = deque()

    def add(self, chunks: ChunkSet, found: BatchBoxes) -> None:
        while len(self._pending) >= BATCHES_AHEAD:
            self._pending.popleft().result()
        self._pending.append(self._pool.submit(self._add, chunks, found))

    def close(self) -> int:
        """Finish the file; the number of its rows."""
        while self._pending:
            self._pending.popleft().result()
        self._pool.submit(self._flush).result()
        self._pool.shutdown()
        self._writer.close()
        return self.num_rows

    def abandon(self) -> None:
        """Stop without a result; the half-written file goes with its scratch path."""
        self._pool.shutdown(wait=True, cancel_futures=True)
        self._writer.close()

    def _add(self, chunks: ChunkSet, found: BatchBoxes) -> None:
        table = pool_table(self._prepared, chunks, found, self._model_sha)
        self._waiting.append(table)
        self._num_waiting += len(table)
        if self._num_waiting >= ROWS_PER_GROUP:
            self._flush()

    def _flush(self) -> None:
        if self._waiting:
            table = pa.concat_tables(self._waiting).combine_chunks()
            self._writer.write_table(table, row_group_size=len(table) or 1)
            self.num_rows += len(table)
        self._waiting, self._num_waiting = [], 0
