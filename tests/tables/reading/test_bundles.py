"""Bundles hold every chunk once with its two segments, and can be dealt out evenly."""

import numpy as np
import pytest
from archive_of_noise import write_archive

from mast_ray.tables.reading.blocks import Block, BlockReader
from mast_ray.tables.reading.bundles import (
    NO_CHUNK,
    Bundle,
    dealt_rows,
    make_bundles,
    most_repeated,
    num_bundles,
    read_bundle,
)
from mast_ray.tables.reading.chunk_sets import chunks_of_split
from mast_ray.tables.reading.reader import ChunkReader


@pytest.fixture(scope="module")
def prepared(tmp_path_factory):
    return write_archive(tmp_path_factory.mktemp("archive") / "prepared")


def test_the_number_of_bundles_by_hand():
    # 480,000 chunks over 8 workers: 60,000 each, 235 bundles of at most 256 each
    assert num_bundles(480_000, 8) == 235 * 8
    # 25 chunks over 2 workers: 16 bundles each would be emptier than a chunk, 12 each are not
    assert num_bundles(25, 2) == 24
    assert num_bundles(1000, 4) == 64
    assert num_bundles(1, 1) == 1
    # of 235 bundles a worker may lack a chunk in each; seven workers get 268 or 269, of up to 256 chunks
    assert most_repeated(480_000, 8, 8) == 235 + 1
    assert most_repeated(480_000, 8, 7) == 269 + 256 + 1


def test_rows_and_marks_of_a_bundle_by_hand():
    """Two blocks; chunks 0, 1 and 2 begin at rows 0, 1 and 4 of the first, chunk 3 at row 7 of the second."""
    blocks = (Block("a", (0,), 8), Block("b", (0,), 9))
    block, row = np.array([0, 0, 0, 1]), np.array([0, 1, 4, 7])
    (bundle,) = make_bundles(blocks, block, row, np.ones(4, bool), 1, seed=0)
    by_file = {read.block.file: read.rows.tolist() for read in bundle.reads}
    assert by_file == {"a": [0, 1, 2, 4, 5], "b": [7, 8]}
    marks = {"a": [0, 1, NO_CHUNK, 2, NO_CHUNK], "b": [3, NO_CHUNK]}
    assert bundle.chunk.tolist() == [mark for read in bundle.reads for mark in marks[read.block.file]]


def test_bundles_have_the_same_number_of_rows_and_of_chunks_to_within_one(prepared):
    reader = ChunkReader(prepared, chunks_of_split(prepared, "pool"), batch_size=4, num_threads=1)
    plan = reader.bundles(7)
    assert plan.num_chunks == 25 and len({len(bundle.chunk) for bundle in plan.bundles}) == 1
    sizes = [int((bundle.chunk != NO_CHUNK).sum()) for bundle in plan.bundles]
    assert sorted(sizes) == [3, 3, 3, 4, 4, 4, 4]
    every = np.concatenate([bundle.chunk[bundle.chunk != NO_CHUNK] for bundle in plan.bundles])
    assert sorted(every.tolist()) == list(range(25))
    assert plan.num_bytes == 7 * len(plan.bundles[0].chunk) * 512 * 128


def test_a_bundle_read_and_dealt_holds_the_chunks_that_the_reader_reads(prepared):
    reader = ChunkReader(prepared, chunks_of_split(prepared, "pool"), batch_size=25, num_threads=1)
    whole = next(reader.sequential())
    blocks, found = BlockReader(prepared.places), 0
    for bundle in reader.bundles(4).bundles:
        rows = dealt_rows(read_bundle(Bundle.from_json(bundle.to_json()), blocks))  # as it travels
        assert not rows.values.flags.owndata  # a view of the table
        for row in np.flatnonzero(rows.chunk != NO_CHUNK):
            chunk = np.array([rows.chunk[row]])
            batch = reader.assembled(chunk, [rows.values[row : row + 2]])
            assert (batch.values[0] == whole.values[chunk[0]]).all()
            assert batch.chunk_ids == (whole.chunk_ids[chunk[0]],)
            found += 1
    assert found == 25


def test_only_the_wanted_chunks_are_bundled(prepared):
    reader = ChunkReader(prepared, chunks_of_split(prepared, "pool"), batch_size=4, num_threads=1)
    is_left = np.arange(25) % 3 == 0
    plan = reader.bundles(4, is_left)
    every = np.concatenate([bundle.chunk[bundle.chunk != NO_CHUNK] for bundle in plan.bundles])
    assert sorted(every.tolist()) == list(range(0, 25, 3)) and plan.num_chunks == 9
