"""Chunks in bundles that can be dealt out evenly: each has the same number of stored rows, and of chunks to within one.

Legend: N chunks, R bundles, S rows (segments) of a bundle. Chunks overlap by half, so a bundle holds segments, each once,
and says at which row a chunk begins; its second segment is the next row. Blocks of the archive are permuted before they
are cut into bundles, so that a bundle is made of many places. Whoever deals by rows deals chunks evenly then.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import astuple, dataclass
from itertools import pairwise
from typing import NamedTuple, Protocol

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from mast_ray.spectrogram.grid import NUM_BINS, SEGMENT_FRAMES
from mast_ray.tables.reading.blocks import Block, BlockReader, values_of
from mast_ray.tables.reading.chunk_sets import pair_keys

MOST_CHUNKS = 256  # of a bundle: 17 MB of bytes, a few a second for each GPU
LEAST_BUNDLES = 16  # for each worker in an epoch, where there are chunks enough
NO_CHUNK = -1


class BlockRows(NamedTuple):
    """Some rows of a block, in order."""

    block: Block
    rows: NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Bundle:
    """What to read, and which chunk of the set begins at each row (NO_CHUNK: none)."""

    reads: tuple[BlockRows, ...]
    chunk: NDArray[np.int64]  # (S,)

    def to_json(self) -> str:
        reads = [[*astuple(read.block), read.rows.tolist()] for read in self.reads]
        return json.dumps({"reads": reads, "chunk": self.chunk.tolist()})

    @classmethod
    def from_json(cls, text: str) -> Bundle:
        made = json.loads(text)
        reads = [
            BlockRows(Block(file, tuple(groups), num_rows), np.array(rows, np.int64))
            for file, groups, num_rows, rows in made["reads"]
        ]
        return cls(tuple(reads), np.array(made["chunk"], np.int64))


class PoolPlan(NamedTuple):
    """A whole set in bundles."""

    bundles: list[Bundle]
    num_chunks: int
    bytes_per_value: int

    @property
    def num_bytes(self) -> int:
        """Of all their values."""
        rows = sum(len(bundle.chunk) for bundle in self.bundles)
        return rows * SEGMENT_FRAMES * NUM_BINS * self.bytes_per_value


class DealtRows(NamedTuple):
    """A bundle as a worker gets it."""

    chunk: NDArray[np.int64]  # (S,)
    values: NDArray[np.generic]  # (S, 512, F), not to be written to


class DealtBundles(Protocol):
    """A worker's share of the bundles, each time it is gone through in another order; collective over the workers."""

    def __iter__(self) -> Iterator[DealtRows]: ...


class Deal(NamedTuple):
    """What is dealt to a worker: the whole set once an epoch, and what an interrupted epoch has not had."""

    whole: DealtBundles
    rest: DealtBundles


def num_bundles(num_chunks: int, num_workers: int) -> int:
    """A multiple of the workers, so that all get as many: at least so many each that a window of them is a mixture,
    and none with more than MOST_CHUNKS chunks.
    """
    each = max(
        -(-num_chunks // (num_workers * MOST_CHUNKS)), min(LEAST_BUNDLES, num_chunks // num_workers), 1
    )
    return each * num_workers


def most_repeated(num_chunks: int, num_workers: int, world_size: int) -> int:
    """Chunks of an epoch that a worker may have to see twice, because its share of the bundles held fewer than its
    share of the steps takes: one for each bundle it gets, and a bundle more where others get one more than it.
    """
    count = num_bundles(num_chunks, num_workers)
    uneven = -(-num_chunks // count) if count % world_size else 0
    return -(-count // world_size) + uneven + 1


def make_bundles(
    blocks: tuple[Block, ...],
    block: NDArray[np.int64],
    row: NDArray[np.int64],
    is_wanted: NDArray[np.bool_],
    count: int,
    seed: int,
) -> list[Bundle]:
    """`count` bundles (fewer where there are fewer chunks) of the wanted ones among N chunks, which lie in `block` from
    `row` on.
    """
    wanted = np.flatnonzero(is_wanted)
    if not len(wanted):
        return []
    place_of_block = np.random.default_rng([seed, 7]).permutation(len(blocks))
    order = wanted[np.argsort(pair_keys(place_of_block[block[wanted]], row[wanted]), kind="stable")]
    pieces = np.array_split(order, min(count, len(order)))
    made = [_bundle(blocks, block[piece], row[piece], piece) for piece in pieces]
    most_rows = max(len(bundle.chunk) for bundle in made)
    return [Bundle(bundle.reads, _padded(bundle.chunk, most_rows)) for bundle in made]


def _bundle(
    blocks: tuple[Block, ...], block: NDArray[np.int64], row: NDArray[np.int64], chunk: NDArray[np.int64]
) -> Bundle:
    """Chunks in the order of their blocks and rows."""
    borders = [0, *(np.flatnonzero(np.diff(block)) + 1).tolist(), len(block)]
    reads, marks = [], []
    for begin, end in pairwise(borders):
        first = row[begin:end]
        needed = np.unique(np.concatenate([first, first + 1]))
        mark = np.full(len(needed), NO_CHUNK, np.int64)
        mark[np.searchsorted(needed, first)] = chunk[begin:end]
        reads.append(BlockRows(blocks[int(block[begin])], needed))
        marks.append(mark)
    return Bundle(tuple(reads), np.concatenate(marks))


def _padded(chunk: NDArray[np.int64], num_rows: int) -> NDArray[np.int64]:
    return np.concatenate([chunk, np.full(num_rows - len(chunk), NO_CHUNK, np.int64)])


def read_bundle(bundle: Bundle, reader: BlockReader) -> pa.Table:
    """Columns `chunk` (S,) and `logmel` (S, 512, F), a tensor of fixed shape as stored; padding rows are zeros."""
    parts = [reader.read(read.block)[read.rows] for read in bundle.reads]
    missing = len(bundle.chunk) - sum(map(len, parts))
    values = np.concatenate([*parts, np.zeros((missing, SEGMENT_FRAMES, NUM_BINS), parts[0].dtype)])
    tensor = pa.FixedShapeTensorArray.from_numpy_ndarray(values)
    return pa.table({"chunk": pa.array(bundle.chunk), "logmel": tensor})


def dealt_rows(table: pa.Table) -> DealtRows:
    """Inverse of read_bundle, without a copy where the table lies in one piece."""
    return DealtRows(table.column("chunk").to_numpy(), values_of(table.column("logmel")))
