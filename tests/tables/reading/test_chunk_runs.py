"""Stretches of chunks stand for their chunks, one by one, however many there are."""

import numpy as np
import pyarrow as pa
import pytest

from mast_ray.tables import prepared as prepared_module
from mast_ray.tables.reading import chunk_sets
from mast_ray.tables.reading.chunk_sets import (
    DRAWN_AT_ONCE,
    ChunkRuns,
    common_runs,
    drawn_runs,
    keys_of,
    merged_runs,
)


def runs(*rows):
    return ChunkRuns(*(np.array(column, np.int64) for column in zip(*rows, strict=True)))


def rows_of(found):
    return list(zip(found.recording.tolist(), found.first.tolist(), found.count.tolist(), strict=True))


def keys_one_by_one(some):
    """The oracle: every chunk of every stretch, in the order of recordings and places."""
    keys = [
        (recording << 32) + first + place
        for recording, first, count in rows_of(some)
        for place in range(count)
    ]
    return sorted(set(keys))


def random_stretches(rng, count):
    return ChunkRuns(rng.integers(0, 5, count), rng.integers(0, 60, count), rng.integers(0, 9, count))


def test_stretches_that_overlap_or_touch_become_one_and_empty_ones_nothing():
    some = runs((1, 4, 2), (0, 0, 3), (1, 6, 4), (0, 2, 5), (2, 9, 0), (0, 8, 1))
    assert rows_of(merged_runs(some.recording, some.first, some.count)) == [(0, 0, 7), (0, 8, 1), (1, 4, 6)]


def test_a_stretch_within_a_longer_one_does_not_cut_it_short():
    some = runs((0, 0, 10), (0, 2, 3), (0, 9, 3))
    assert rows_of(merged_runs(some.recording, some.first, some.count)) == [(0, 0, 12)]


def test_chunks_common_to_two_sets_of_stretches():
    some = merged_runs(*(np.array(c, np.int64) for c in ([0, 0, 1], [0, 20, 0], [10, 5, 4])))
    others = runs((0, 5, 2), (0, 8, 14), (2, 0, 4))
    assert rows_of(common_runs(some, others)) == [(0, 5, 2), (0, 8, 2), (0, 20, 2)]


@pytest.mark.parametrize("seed", range(5))
def test_merging_and_cutting_random_stretches_gives_the_chunks_that_counting_one_by_one_gives(seed):
    rng = np.random.default_rng(seed)
    first, second = random_stretches(rng, 30), random_stretches(rng, 20)
    merged = [merged_runs(one.recording, one.first, one.count) for one in (first, second)]
    for one, found in zip((first, second), merged, strict=True):
        np.testing.assert_array_equal(keys_of(found.chunks()), keys_one_by_one(one))
    both = np.intersect1d(keys_one_by_one(first), keys_one_by_one(second))
    np.testing.assert_array_equal(keys_of(common_runs(*merged).chunks()), both)


def test_a_part_is_drawn_in_stretches_of_two_minutes_as_large_as_asked_for():
    every = runs((0, 0, 1000), (1, 5, 3), (2, 0, 500), (4, 7, 30))
    part = drawn_runs(every, 200, seed=3)
    assert 200 <= len(part) < 200 + DRAWN_AT_ONCE
    assert set(keys_one_by_one(part)) <= set(keys_one_by_one(every))
    assert len(keys_one_by_one(part)) == len(part), "no chunk twice"
    assert rows_of(drawn_runs(every, 200, seed=3)) == rows_of(part) != rows_of(drawn_runs(every, 200, seed=4))
    # a stretch begins where a multiple of two minutes does, and is cut by the end of its run alone
    begin = dict(zip(every.recording.tolist(), every.first.tolist(), strict=True))
    assert all((first - begin[recording]) % DRAWN_AT_ONCE == 0 for recording, first, _ in rows_of(part))


def test_all_are_taken_where_no_number_is_given_or_there_are_no_more():
    every = runs((0, 0, 10), (3, 2, 5))
    assert drawn_runs(every, 0, 0) is every and drawn_runs(every, 15, 0) is every
    assert len(drawn_runs(every, 14, 0)) in (14, 15)


def test_every_chunk_is_drawn_as_often_as_any_other():
    every = runs(*((recording, 0, 24) for recording in range(40)))
    times = np.zeros(40)
    for seed in range(300):
        times[drawn_runs(every, 240, seed).recording] += 1
    assert np.abs(times / 300 - 0.25).max() < 0.1  # 4 standard deviations


def test_of_a_huge_set_longer_stretches_are_drawn(monkeypatch):
    monkeypatch.setattr(chunk_sets, "MOST_DRAWS", 10)
    part = drawn_runs(runs((0, 0, 5000), (1, 0, 5000)), 1500, 0)
    assert len(part) == 2000 and set(part.count.tolist()) <= {1000, 2000}


def test_few_ids_among_many_recordings_are_found_where_a_search_through_all_finds_them(prepared, monkeypatch):
    ids = pa.array([*prepared.recording_ids[::-2], "not-there", prepared.recording_ids[0]])
    among_all = prepared.rows_of(ids)
    monkeypatch.setattr(prepared_module, "FEW", 0)
    np.testing.assert_array_equal(prepared.rows_of(ids), among_all)
    assert among_all[-2:].tolist() == [-1, 0]


def test_the_archive_of_some_recordings_keeps_their_order_and_their_splits(prepared):
    part = prepared.of_recordings(np.array([5, 1]))
    assert part.recording_ids == [prepared.recording_ids[1], prepared.recording_ids[5]]
    own = [row for row in prepared.splits.to_pylist() if row["recording_id"] in part.recording_ids]
    assert own and part.splits.to_pylist() == own


def test_tables_of_an_open_archive_are_in_one_piece(prepared):
    """Looking a few recordings up must not go through all of them."""
    for table in (prepared.recordings, prepared.splits, prepared.labels, prepared.index):
        assert all(column.num_chunks <= 1 for column in table.columns)
