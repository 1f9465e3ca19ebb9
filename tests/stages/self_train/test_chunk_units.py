"""How many chunks of a pool are one unit, and that larger units find what smaller ones have done."""

import pytest
from pseudo_operator import write_prepared

from mast_ray.stages.detect import chunks
from mast_ray.stages.detect.chunks import chunk_units, chunks_of_a_unit
from mast_ray.storage.units import Commit, Outcome, pending_units
from mast_ray.tables.prepared import open_prepared
from mast_ray.tables.reading.chunk_sets import runs_of_split


@pytest.mark.parametrize(
    ("num_chunks", "expected"),
    [
        (100, 64),  # a sixteenth would be 6
        (16_000, 1_000),
        (481_245, 16_384),  # of the paper
        (819_200_000, 16_384),  # 50,000 units
        (819_200_001, 16_385),
        (5_000_000_000, 100_000),
    ],
)
def test_huge_pools_have_larger_units_and_all_others_the_same(num_chunks, expected):
    assert chunks_of_a_unit(num_chunks) == expected


def test_a_pool_that_has_outgrown_its_units_finds_what_was_done(tmp_path, monkeypatch):
    """Four recordings of 11 chunks; stretches of at most 4, so 4 + 4 + 3. Units of 4 hold one, units of 22 hold six."""
    write_prepared(tmp_path, 44)
    prepared = open_prepared(tmp_path / "prepared")
    runs = runs_of_split(prepared, "pool")
    monkeypatch.setattr(chunks, "CHUNKS_PER_UNIT", 4)
    small, large = chunk_units(prepared, runs, 4), chunk_units(prepared, runs, 22)
    assert [len(unit.items) for unit in small] == [1] * 12
    assert [len(unit.items) for unit in large] == [6, 6]
    done = [
        Commit(unit.unit_id, "t", (), (Outcome(unit.items[0].item_id, "done"),), {unit.items[0].item_id: ""})
        for unit in small[:7]
    ]
    (left,) = pending_units(large, done)
    assert left.items == large[1].items[1:]
