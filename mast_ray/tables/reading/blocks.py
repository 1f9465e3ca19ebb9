"""Where the segments of a prepared archive lie, and how blocks of them are read: by threads, outside the GIL.

A block is one or several neighbouring row groups of one frames file: what a single read delivers. The
writer begins every block of a long recording with a row group of one segment, so that the chunk across the
border costs one segment more, not a block.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.fs
import pyarrow.parquet as pq
from numpy.typing import NDArray

from mast_ray.config.errors import DataError, TemporaryError
from mast_ray.spectrogram.grid import NUM_BINS, SEGMENT_FRAMES
from mast_ray.storage.storage import Storage
from mast_ray.tables.prepared import MEND, Prepared
from mast_ray.tables.reading.chunk_sets import ChunkSet, keys_of, pair_keys

ROWS_PER_BLOCK = 64


@dataclass(frozen=True)
class Block:
    """Row groups of a file to be read together."""

    file: str
    row_groups: tuple[int, ...]
    num_rows: int


@dataclass(frozen=True, eq=False)
class BlockMap:
    """For every chunk of a set: its block and the row of its first segment
    therein; the second is the next row.
    """

    blocks: tuple[Block, ...]
    block: NDArray[np.int64]  # (N,)
    row: NDArray[np.int64]  # (N,)
    scale: NDArray[np.float32]  # (N,)
    offset: NDArray[np.float32]  # (N,)


def block_map(prepared: Prepared, chunks: ChunkSet) -> BlockMap:
    """Find every chunk of a set in the frames files."""
    index = prepared.index
    file_names = index.column("file").combine_chunks().dictionary_encode()
    file = file_names.indices.to_numpy().astype(np.int64)
    group, row, segment, count = (
        index.column(name).to_numpy().astype(np.int64)
        for name in ("row_group", "row", "segment", "num_segments")
    )
    of_recording = prepared.rows_of(index.column("recording_id"))

    # pieces in the order of (recording, segment); a chunk's first segment is found by bisection
    order = np.lexsort((segment, of_recording))
    order = order[of_recording[order] >= 0]
    keys = pair_keys(of_recording[order], segment[order])
    wanted = keys_of(chunks)
    piece = order[np.searchsorted(keys, wanted, side="right") - 1] if len(wanted) else order[:0]
    within = chunks.chunk - segment[piece]
    if len(piece) and ((of_recording[piece] != chunks.recording) | (within >= count[piece])).any():
        raise DataError(
            f"{prepared.storage.url}: index.parquet does not cover its recordings: prepare it again"
        )

    # rows of each row group, then row groups joined into blocks
    group_keys, group_of = np.unique(pair_keys(file, group), return_inverse=True)
    group_rows = np.zeros(len(group_keys), np.int64)
    np.maximum.at(group_rows, group_of, row + count)
    blocks, first_group, block_of_group, base = _joined(group_keys, group_rows, ROWS_PER_BLOCK)
    names = file_names.dictionary.to_pylist()
    block = block_of_group[group_of[piece]]
    place = base[group_of[piece]] + row[piece] + within
    needs_more = np.zeros(len(blocks), bool)  # a chunk whose second segment opens the next block
    np.logical_or.at(
        needs_more, block, place + 1 >= np.array([b[2] for b in blocks])[block] if len(blocks) else []
    )
    made = []
    for number, (of_file, groups, num_rows) in enumerate(blocks):
        after = first_group[number] + len(groups)
        if needs_more[number]:
            groups, num_rows = (*groups, groups[-1] + 1), num_rows + int(group_rows[after])
        made.append(Block(names[of_file], groups, num_rows))
    scale, offset = (index.column(name).to_numpy().astype(np.float32)[piece] for name in ("scale", "offset"))
    return BlockMap(tuple(made), block, place, scale, offset)


def _joined(keys: NDArray[np.int64], rows: NDArray[np.int64], most_rows: int) -> tuple:
    """Consecutive row groups of a file as blocks of at most `most_rows` rows (or one row group)."""
    blocks: list[tuple[int, tuple[int, ...], int]] = []
    first_group: list[int] = []
    block_of_group = np.zeros(len(keys), np.int64)
    base = np.zeros(len(keys), np.int64)
    for number, (key, num_rows) in enumerate(zip(keys.tolist(), rows.tolist(), strict=True)):
        file, group = key >> 32, key & 0xFFFFFFFF
        last = blocks[-1] if blocks else None
        if last and last[0] == file and last[1][-1] + 1 == group and last[2] + num_rows <= most_rows:
            base[number] = last[2]
            blocks[-1] = (file, (*last[1], group), last[2] + num_rows)
        else:
            blocks.append((file, (group,), num_rows))
            first_group.append(number)
        block_of_group[number] = len(blocks) - 1
    return blocks, first_group, block_of_group, base


class BlockReader:
    """Reads blocks from any thread; keeps the footers of the files it has seen."""

    def __init__(self, places: Sequence[Storage], deadline_s: float = 300.0) -> None:
        self._places = [place.arrow() for place in places]  # of Prepared.places
        self._deadline_s = deadline_s
        self._footers: dict[str, pq.FileMetaData] = {}
        self._lock = threading.Lock()

    def read(self, block: Block) -> NDArray[np.generic]:
        """(rows, 512, F) stored values; retried until the deadline, because networks fail."""
        started_s, pause_s = time.monotonic(), 0.1
        filesystem, path = self._place(block.file)
        while True:
            try:
                return self._read(block, filesystem, path)
            except FileNotFoundError as error:
                raise DataError(f"{path} is missing:\n{MEND}") from error
            except pa.ArrowInvalid as error:
                raise DataError(f"{path} is damaged:\n{MEND}") from error
            except OSError as error:
                if "CRC checksum" in str(error):  # bytes that were changed after they were written
                    raise DataError(
                        f"{path} is damaged:\nrun the same `mast prepare` with --verify, which does it again"
                    ) from error
                if time.monotonic() - started_s > self._deadline_s:
                    raise TemporaryError(
                        f"cannot read {path}: {str(error)[:200]}\nrun the same command again later"
                    ) from error
                time.sleep(pause_s)
                pause_s = min(5.0, pause_s * 2)

    def _place(self, file: str) -> tuple[pa.fs.FileSystem, str]:
        """Where a file of the index lies; that of joined archives begins with the number of its archive."""
        number, _, own = file.partition("/") if len(self._places) > 1 else ("0", "", file)
        filesystem, root = self._places[int(number)]
        return filesystem, f"{root}/{own}"

    def _read(self, block: Block, filesystem: pa.fs.FileSystem, path: str) -> NDArray[np.generic]:
        footer = self._footers.get(path)
        source = filesystem.open_input_file(path)
        with pq.ParquetFile(
            source,
            metadata=footer,
            pre_buffer=len(block.row_groups) > 1,
            page_checksum_verification=True,
        ) as file:
            if footer is None:
                with self._lock:
                    self._footers[path] = file.metadata
            table = file.read_row_groups(list(block.row_groups), columns=["logmel"], use_threads=False)
        return values_of(table.column("logmel"))


def values_of(column: pa.ChunkedArray) -> NDArray[np.generic]:
    """A tensor column as (rows, 512, F), without a copy where it lies in one piece."""
    parts = [_flat(chunk) for chunk in column.chunks]
    flat = parts[0] if len(parts) == 1 else np.concatenate(parts)
    return flat.reshape(-1, SEGMENT_FRAMES, NUM_BINS)


def _flat(array: Any) -> NDArray[np.generic]:
    return array.storage.flatten().to_numpy(zero_copy_only=True)


def sort_by_block(blocks: BlockMap) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """(order of chunks by block and row, where each used block begins in that order, with the end)."""
    order = np.lexsort((blocks.row, blocks.block))
    sorted_block = blocks.block[order]
    starts: Sequence[int] = np.flatnonzero(np.diff(sorted_block, prepend=-1)).tolist()
    return order, np.array([*starts, len(order)], np.int64)
