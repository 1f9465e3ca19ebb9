"""Chunks as a training process wants them: raw stored values, boxes joined, in a
reproducible order, at GPU speed.

Legend: B chunks, T = 1024 frames, F = 128 bins. Files are decoded by threads outside the GIL; values
stay as stored (uint8 or float16) until they are on the device, where `Normalisation(values, scale,
offset, tail, background)` turns them into what a model takes.

    reader = ChunkReader(prepared, chunks_of_split(prepared, "train"), prepared.labels, batch_size=64, lanes=32, seed=0)
    for batch in reader.epoch(3, rank=0, world_size=2, start_step=17): ...
    for batch in reader.sequential(): ...
"""

from __future__ import annotations

import os
import sys
from collections import deque
from collections.abc import Generator, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
import pyarrow as pa
import torch
from numpy.typing import NDArray
from torch import Tensor

from mast_ray.boxes.batch import PaddedBoxes
from mast_ray.config.errors import DataError
from mast_ray.spectrogram.grid import CHUNK_FRAMES, NUM_BINS, SEGMENT_FRAMES
from mast_ray.tables.prepared import Prepared
from mast_ray.tables.reading.blocks import BlockReader, block_map, sort_by_block
from mast_ray.tables.reading.bundles import PoolPlan, make_bundles
from mast_ray.tables.reading.chunk_sets import ChunkSet, box_table
from mast_ray.tables.reading.handover import made_ahead
from mast_ray.tables.reading.sample_order import (
    EpochOrder,
    Window,
    check_world,
    lanes_of,
    places_of,
    steps_per_epoch,
)

CACHE_BYTES = 2 << 30  # a set whose blocks fit is kept in memory after the first pass


CHUNK_TENSORS = (
    "values", "scale", "offset", "valid_frames", "weight", "sample_index", "is_pseudo", "limits",
)  # fmt: skip


@dataclass(frozen=True)
class RawChunks:
    """Chunks as stored; value = offset + scale * stored."""

    values: Tensor  # (B, T, F) uint8 or float16
    scale: Tensor  # (B,) float32
    offset: Tensor  # (B,) float32
    valid_frames: Tensor  # (B,) int32: frames wholly inside the audio, the rest is padding
    boxes: PaddedBoxes
    weight: Tensor  # (B,) float32
    sample_index: Tensor  # (B,) int64: place in the run's global order, a seed that no worker count changes
    is_pseudo: Tensor  # (B,) bool: boxes by a model, not by an expert
    limits: Tensor  # (B, 2) float32: scores from which a teacher's boxes are objects, and are ignored
    chunk_ids: tuple[str, ...]
    background: Tensor | None = None  # (B, 2, F) float32 of both segments, where the archive is read with it
    num_expert: int | None = None  # chunks in front that experts labelled, where the rest are pseudo-labelled

    def __len__(self) -> int:
        return len(self.values)

    def to(self, device: torch.device | str) -> RawChunks:
        moved = {name: getattr(self, name).to(device, non_blocking=True) for name in CHUNK_TENSORS}
        background = self.background
        if background is not None:
            background = background.to(device, non_blocking=True)
        return replace(self, **moved, boxes=self.boxes.to(device), background=background)


class ChunkReader:
    """Reads a set of chunks, shuffled epoch by epoch or in order. Cheap to build;
    threads live as long as an iterator.
    """

    def __init__(
        self,
        prepared: Prepared,
        chunks: ChunkSet,
        labels: pa.Table | None = None,
        *,
        batch_size: int = 64,
        lanes: int = 32,
        seed: int = 0,
        num_threads: int = 0,
        min_remnant_s: float = 0.1,
        ignored: pa.Table | None = None,
        shuffle_chunks: int = 4096,
        pin_memory: bool = False,
        cache_bytes: int = CACHE_BYTES,
    ) -> None:
        if not len(chunks):
            raise DataError(
                f"{prepared.storage.url}: there is no chunk to read; look at `mast split` and the labels"
            )
        found = block_map(prepared, chunks)
        order, self._block_start = sort_by_block(found)
        self.chunks = chunks.take(order)
        self.boxes = box_table(prepared, self.chunks, labels, min_remnant_s, ignored)
        self.is_pseudo = np.zeros(len(chunks), bool)
        self.limits = np.ones((len(chunks), 2), np.float32)
        self.batch_size, self.seed = batch_size, seed
        self.lanes = lanes_of(batch_size, lanes)
        self.num_threads = num_threads or min(8, os.cpu_count() or 1)
        self._block, self._row = found.block[order], found.row[order]
        self._scale, self._offset = found.scale[order], found.offset[order]
        valid = (
            prepared.num_frames[self.chunks.recording] - self.chunks.chunk.astype(np.int64) * SEGMENT_FRAMES
        )
        self._valid = valid.clip(0, CHUNK_FRAMES).astype(np.int32)
        self._names, self._backgrounds = prepared.recording_ids, prepared.backgrounds
        self._blocks, self._reader = found.blocks, BlockReader(prepared.places, _deadline_of(prepared))
        self._shuffle_chunks, self._pin_memory = shuffle_chunks, pin_memory
        self._dtype = {"uint8": torch.uint8, "float16": torch.float16}[prepared.storage_type]
        used = np.unique(self._block).tolist()
        total = sum(found.blocks[b].num_rows for b in used) * SEGMENT_FRAMES * NUM_BINS * self._dtype.itemsize
        self._buffers: list[NDArray[np.generic]] = []
        self._cache: dict[int, NDArray[np.generic]] | None = {} if total <= cache_bytes else None

    def __len__(self) -> int:
        return len(self.chunks)

    @property
    def steps_per_epoch(self) -> int:
        return steps_per_epoch(len(self), self.batch_size)

    def epoch(
        self, epoch: int, rank: int = 0, world_size: int = 1, start_step: int = 0
    ) -> Iterator[RawChunks]:
        """This worker's part of every global batch of an epoch from `start_step` on:
        batch_size / world_size chunks, or one more.
        """
        check_world(self.batch_size, world_size)
        order = EpochOrder(
            self._block_start, self.batch_size, self.lanes, self.seed, epoch, self._shuffle_chunks
        )
        per_lane = self.batch_size // self.lanes
        mine = places_of(self.batch_size, self.lanes, rank, world_size)
        lanes = [places.start // per_lane for places in mine]
        parts = [slice(places.start % per_lane, places.start % per_lane + len(places)) for places in mine]
        places = np.concatenate([np.asarray(part) for part in mine])
        first_sample = (epoch * self.steps_per_epoch + start_step) * self.batch_size
        windows = [list(order.windows(lane, start_step)) for lane in lanes]
        positions = _steps(windows, parts, per_lane, start_step, order.steps)
        schedule = sorted(  # the order in which chunks of theirs are first asked for
            _taken(windows, parts, per_lane, start_step),
            key=lambda window: (max(window.start // per_lane, start_step), window.lane, window.start),
        )
        for step, batch in enumerate(self._batches(schedule, positions, ahead=len(lanes) + 4)):
            index = first_sample + step * self.batch_size + places
            yield replace(batch, sample_index=torch.from_numpy(index))

    def sequential(
        self, rank: int = 0, world_size: int = 1, batch_size: int | None = None
    ) -> Iterator[RawChunks]:
        """Every chunk of this worker's share once, in the order of the files; the
        last batch may be smaller.
        """
        size = batch_size or self.batch_size
        begin, end = rank * len(self) // world_size, (rank + 1) * len(self) // world_size
        starts = [int(s) for s in self._block_start if begin < s < end]
        borders = [begin, *starts, end] if end > begin else []
        windows = [Window(0, a, np.arange(a, b)) for a, b in pairwise(borders)]
        positions = [np.arange(a, min(a + size, end)) for a in range(begin, end, size)]
        for index, batch in zip(
            positions, self._batches(windows, positions, 4 * self.num_threads), strict=True
        ):
            yield replace(batch, sample_index=torch.from_numpy(index))

    def _batches(
        self, windows: list[Window], positions: Iterable[NDArray[np.int64]], ahead: int
    ) -> Iterator[RawChunks]:
        """Assemble batches in a thread, a few ahead of the consumer."""

        def batches() -> Generator[RawChunks, None, None]:
            with ThreadPoolExecutor(self.num_threads, thread_name_prefix="blocks") as pool:
                source = _BlockSource(self, pool, windows, ahead)
                try:
                    for chunks in positions:
                        yield self._read(chunks, source)
                finally:
                    source.cancel()

        yield from made_ahead(batches(), 3, "chunk-reader")

    def _read(self, chunks: NDArray[np.int64], source: _BlockSource) -> RawChunks:
        """(B,) positions in the set -> a batch."""
        places = zip(chunks.tolist(), self._block[chunks].tolist(), self._row[chunks].tolist(), strict=True)
        return self.assembled(
            chunks, (source.rows(chunk, block)[row : row + 2] for chunk, block, row in places)
        )

    def assembled(self, chunks: NDArray[np.int64], segments: Iterable[NDArray[np.generic]]) -> RawChunks:
        """(B,) positions in the set and the two stored segments of each, (2, 512, F) -> a batch; one copy of each."""
        values = self._buffer(len(chunks))
        target = values.numpy()
        for place, pair in enumerate(segments):
            target[place] = pair.reshape(CHUNK_FRAMES, NUM_BINS)
        recording, number = self.chunks.recording[chunks].tolist(), self.chunks.chunk[chunks].tolist()
        return RawChunks(
            values,
            torch.from_numpy(self._scale[chunks]),
            torch.from_numpy(self._offset[chunks]),
            torch.from_numpy(self._valid[chunks]),
            self.boxes.padded(chunks),
            torch.from_numpy(self.chunks.weight[chunks]),
            torch.zeros(len(chunks), dtype=torch.int64),
            torch.from_numpy(self.is_pseudo[chunks]),
            torch.from_numpy(self.limits[chunks]),
            tuple(f"{self._names[r]}:{k}" for r, k in zip(recording, number, strict=True)),
            self._background(chunks),
        )

    def _background(self, chunks: NDArray[np.int64]) -> Tensor | None:
        if self._backgrounds is None:
            return None
        own = self.chunks
        return torch.from_numpy(self._backgrounds.of_chunks(own.recording[chunks], own.chunk[chunks]))

    def _buffer(self, num_chunks: int) -> Tensor:
        """Memory for a batch. Pageable buffers are used again once nobody holds them: fresh
        pages cost as much as the copy.
        """
        shape = (num_chunks, CHUNK_FRAMES, NUM_BINS)
        if self._pin_memory:
            return torch.empty(
                shape, dtype=self._dtype, pin_memory=True
            )  # torch recycles pinned memory itself
        for number in range(len(self._buffers)):
            if self._buffers[number].shape == shape and sys.getrefcount(self._buffers[number]) == 2:
                return torch.from_numpy(self._buffers[number])
        fresh = torch.empty(shape, dtype=self._dtype).numpy()
        self._buffers = [*self._buffers[-7:], fresh]
        return torch.from_numpy(fresh)

    def bundles(self, count: int, is_wanted: NDArray[np.bool_] | None = None) -> PoolPlan:
        """The chunks of the set (those that are wanted, by position) in bundles that can be dealt out evenly."""
        wanted = np.ones(len(self), bool) if is_wanted is None else is_wanted
        made = make_bundles(self._blocks, self._block, self._row, wanted, count, self.seed)
        return PoolPlan(made, int(wanted.sum()), self._dtype.itemsize)

    def _decoded(self, block: int) -> NDArray[np.generic]:
        if self._cache is None:
            return self._reader.read(self._blocks[block])
        if block not in self._cache:
            self._cache[block] = self._reader.read(self._blocks[block])
        return self._cache[block]


class _BlockSource:
    """Hands out decoded blocks window by window: windows are read ahead in order and
    dropped once they are used up.
    """

    def __init__(
        self, reader: ChunkReader, pool: ThreadPoolExecutor, windows: list[Window], ahead: int
    ) -> None:
        self._reader, self._pool, self._waiting, self._ahead = reader, pool, deque(windows), ahead
        self._in_flight = 0  # windows submitted of which no chunk has been asked for
        self._windows_of: dict[int, list[_OpenWindow]] = {}  # a small set may hold a chunk twice
        self._submit()

    def _submit(self) -> None:
        while self._waiting and self._in_flight < self._ahead:
            window = self._waiting.popleft()
            blocks = np.unique(self._reader._block[window.chunks]).tolist()
            futures = {block: self._pool.submit(self._reader._decoded, block) for block in blocks}
            opened = _OpenWindow(futures)
            for chunk in window.chunks.tolist():
                self._windows_of.setdefault(chunk, []).append(opened)
            self._in_flight += 1

    def rows(self, chunk: int, block: int) -> NDArray[np.generic]:
        window = self._windows_of[chunk].pop(0)
        if not self._windows_of[chunk]:
            del self._windows_of[chunk]
        if not window.is_started:
            window.is_started = True
            self._in_flight -= 1
            self._submit()
        return window.futures[block].result()

    def cancel(self) -> None:
        for windows in self._windows_of.values():
            for window in windows:
                for future in window.futures.values():
                    future.cancel()


@dataclass(eq=False)
class _OpenWindow:
    futures: dict[int, Future[NDArray[np.generic]]]
    is_started: bool = False


def _taken(
    windows: list[list[Window]], parts: list[slice], per_lane: int, start_step: int
) -> Iterator[Window]:
    """Windows with those of their chunks alone that will be asked for: a lane may be shared with another worker."""
    for lane_windows, part in zip(windows, parts, strict=True):
        for window in lane_windows:
            place = window.start + np.arange(len(window.chunks))
            within = place % per_lane
            is_mine = (place >= start_step * per_lane) & (within >= part.start) & (within < part.stop)
            if is_mine.any():
                yield replace(window, chunks=window.chunks[is_mine])


def _steps(
    windows: list[list[Window]], parts: list[slice], per_lane: int, start_step: int, steps: int
) -> Iterator[NDArray[np.int64]]:
    """Positions in the set of each step's chunks, lane after lane, of each lane's chunks those in its part."""
    rows = []
    for lane_windows in windows:
        row = np.concatenate([w.chunks for w in lane_windows]) if lane_windows else np.zeros(0, np.int64)
        rows.append(row[start_step * per_lane - lane_windows[0].start :] if lane_windows else row)
    for step in range(steps - start_step):
        yield np.concatenate(
            [row[step * per_lane :][:per_lane][part] for row, part in zip(rows, parts, strict=True)]
        )


def _deadline_of(prepared: Prepared) -> float:
    settings = getattr(prepared.storage, "settings", None)
    return settings.io_deadline_s if settings is not None else 5.0
