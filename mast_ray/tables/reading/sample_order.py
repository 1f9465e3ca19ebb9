"""The order of samples in an epoch: shuffled, the same global batches for any number
of workers, resumable anywhere.

Legend: N chunks in G blocks (what one read delivers), L lanes, B the global batch. Every epoch the
blocks are permuted and laid in a row, without the chunks that fill no batch, which are drawn anew; the row is
cut into L equal lanes; each lane is shuffled inside windows of neighbouring blocks. A step takes B / L chunks
from every lane. Worker r of W reads the lanes r, r + W, ... where W measures L, and its even share of the places
of a batch otherwise: a lane may then serve two workers. Everything is computed from (seed, epoch), so a position
is found without reading what was before it, and nothing depends on W.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from math import gcd

import numpy as np
from numpy.typing import NDArray

from mast_ray.config.errors import ConfigError


@dataclass(frozen=True)
class Window:
    """Chunks of one lane that are read and shuffled together."""

    lane: int
    start: int  # position in the lane of its first chunk
    chunks: NDArray[np.int64]  # positions in the set, in the order they are handed out


def lanes_of(batch_size: int, most: int) -> int:
    """Lanes for a global batch: the largest common measure, so that every lane
    gives the same number of chunks.
    """
    return gcd(batch_size, most)


def check_world(batch_size: int, world_size: int) -> None:
    """Every worker needs a chunk of every batch."""
    if batch_size < world_size:
        raise ConfigError(
            f"a batch of {batch_size} chunks cannot be shared by {world_size} workers:\n"
            f"use at most {batch_size} (cluster.num_workers), or a larger batch"
        )


def share_of(batch_size: int, rank: int, world_size: int) -> range:
    """Places in the global batch of one of several even shares; they differ by one chunk at most."""
    return range(rank * batch_size // world_size, (rank + 1) * batch_size // world_size)


def places_of(batch_size: int, lanes: int, rank: int, world_size: int) -> list[range]:
    """Places in the global batch of a worker, lane by lane."""
    per_lane = batch_size // lanes
    if lanes % world_size == 0:
        return [range(lane * per_lane, (lane + 1) * per_lane) for lane in range(rank, lanes, world_size)]
    share = share_of(batch_size, rank, world_size)
    cuts = [
        share.start,
        *(p for p in range(0, batch_size, per_lane) if share.start < p < share.stop),
        share.stop,
    ]
    return [range(begin, end) for begin, end in pairwise(cuts)]


def steps_per_epoch(num_chunks: int, batch_size: int) -> int:
    """Whole batches in an epoch; a set smaller than a batch is repeated to fill one."""
    return max(1, num_chunks // batch_size)


class EpochOrder:
    """The order of one epoch over chunks that are sorted by block."""

    def __init__(
        self,
        block_start: NDArray[np.int64],
        batch_size: int,
        lanes: int,
        seed: int,
        epoch: int,
        shuffle_chunks: int = 4096,
    ) -> None:
        assert batch_size % lanes == 0
        self.batch_size, self.lanes, self._key = batch_size, lanes, (seed, epoch)
        self._window_chunks = max(1, shuffle_chunks // lanes)
        self._block_start = block_start
        num_chunks = int(block_start[-1])
        self.steps = steps_per_epoch(num_chunks, batch_size)
        rng = np.random.default_rng([seed, epoch, 1])
        rows = [self._row_of_blocks(rng)]
        while sum(map(len, rows)) < batch_size:
            rows.append(self._row_of_blocks(rng))
        row = np.concatenate(rows)
        # Not the end of every lane: of few blocks it is the same chunks in every epoch, and they were never learned.
        left_out = rng.choice(num_chunks, len(row) - self.steps * batch_size, replace=False, shuffle=False)
        self._row = np.delete(row, len(row) - 1 - left_out)

    def _row_of_blocks(self, rng: np.random.Generator) -> NDArray[np.int64]:
        starts, sizes = self._block_start[:-1], np.diff(self._block_start)
        order = rng.permutation(len(sizes))
        sizes = sizes[order]
        place = np.arange(sizes.sum()) - np.repeat(np.cumsum(sizes) - sizes, sizes)
        return np.repeat(starts[order], sizes) + place

    def windows(self, lane: int, start_step: int = 0) -> Iterator[Window]:
        """The lane's windows from the one that holds the first chunk of `start_step`, each shuffled.

        The first window of lane l is shorter than the others by a share of l / L: lanes then need new windows
        at different steps and reading is even.
        """
        count = len(self._row)
        begin, end = lane * count // self.lanes, (lane + 1) * count // self.lanes
        per_step = self.batch_size // self.lanes
        mine = self._row[begin:end]
        block = np.searchsorted(self._block_start, mine, side="right")
        borders = np.flatnonzero(np.diff(block)) + 1
        target, start, number = max(1, self._window_chunks * (lane + 1) // self.lanes), 0, 0
        while start < len(mine):
            after = borders[np.searchsorted(borders, start + target) :]
            stop = int(after[0]) if len(after) else len(mine)
            if stop > start_step * per_step:
                shuffled = np.random.default_rng([*self._key, 2, lane, number]).permutation(mine[start:stop])
                yield Window(lane, start, shuffled)
            start, number, target = stop, number + 1, self._window_chunks
