"""Tables of detections to columns and back: boxes in frames of their chunk, groups by site
and local hour, lineage in every row.
"""

from datetime import UTC, datetime
from types import SimpleNamespace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from mast_ray.self_training.operator import PoolDetections, Validity, is_valid, survives_suppression
from mast_ray.self_training.pool import chunk_groups, objects_of, pool_of_table, pseudo_table
from mast_ray.tables.reading.chunk_sets import ChunkSet


def archive(sites=("A", "B"), hours=(6, 23), offsets=(0, 7200)):
    """Two recordings; only what these functions look at."""
    starts = [datetime(2024, 5, 1, hour, 59, 50, tzinfo=UTC) if hour is not None else None for hour in hours]
    recordings = pa.table(
        {
            "recording_id": ["a", "b"],
            "site": list(sites),
            "start_utc": pa.array(starts, pa.timestamp("us", tz="UTC")),
            "utc_offset_s": pa.array(offsets, pa.int32()),
        }
    )

    def rows_of(ids):
        return (
            pc.fill_null(pc.index_in(ids, recordings["recording_id"].combine_chunks()), -1)
            .to_numpy(False)
            .astype(np.int64)
        )

    return SimpleNamespace(recordings=recordings, rows_of=rows_of)


def chunks(*pairs):
    recording, chunk = np.array(pairs, np.int32).T
    return ChunkSet(recording, chunk, np.ones(len(pairs), np.float32))


def test_pseudo_boxes_survive_the_way_through_the_table():
    pool = chunks((0, 0), (0, 1), (1, 4))
    boxes = PoolDetections(
        np.array([2, 0, 1]), np.array([[0.0, 0.0, 1024.0, 128.0], [10.5, 3.25, 20.0, 8.0], [512.0, 1.0, 600.0, 2.0]]),
        np.array([0.25, 0.5, 0.75]), 3,
    )  # fmt: skip
    table = pseudo_table(
        archive(), pool, boxes, np.array([0.1, 0.2, 0.25]), {"model": "abc", "policy": "tuned", "round": "2"}
    )
    assert table["chunk"].to_pylist() == [0, 1, 4]
    assert table["begin_s"].to_pylist() == pytest.approx([0.105, 10.24, 20.48])  # chunk k starts at 5.12 k
    assert table["threshold"].to_pylist() == pytest.approx([0.1, 0.2, 0.25])
    assert set(table["source"].to_pylist()) == {"model=abc policy=tuned round=2"}
    assert table.schema.metadata[b"model"] == b"abc"
    back = pool_of_table(table, archive(), pool)
    assert back.chunk.tolist() == [0, 1, 2]
    assert np.allclose(back.boxes, boxes.boxes[[1, 2, 0]], atol=1e-6)


def test_whole_frames_and_bins_come_back_whole_so_that_limits_hold_to_the_letter():
    """Boxes of just 100 ms and 2 bins, as detectors without a network give them: valid in every chunk; a pair that overlaps
    by just a half: neither suppresses the other.
    """
    rng = np.random.default_rng(0)
    pool = chunks(*((0, number) for number in range(400)))
    first = np.stack([rng.integers(0, 1000, 400), rng.integers(0, 124, 400)], axis=1).astype(float)
    small = np.concatenate([first, first + [10, 2]], axis=1)
    twice = np.concatenate([first, first + [20, 2]], axis=1)
    both = PoolDetections(
        np.tile(np.arange(400), 2), np.concatenate([small, twice]), rng.random(800).astype(np.float32), 400
    )
    back = pool_of_table(pseudo_table(archive(), pool, both, np.zeros(400), {}), archive(), pool)
    assert np.array_equal(back.boxes, np.round(back.boxes))
    assert is_valid(back, Validity()).all()
    assert survives_suppression(back, 0.5).all()


def test_ignored_boxes_travel_with_the_pseudo_boxes_and_are_told_apart():
    pool = chunks((0, 0), (0, 1))
    of = lambda *rows: PoolDetections(  # noqa: E731
        np.array([r[0] for r in rows]),
        np.array([[10.0, 3.0, 90.0, 8.0]] * len(rows)),
        np.array([r[1] for r in rows]),
        2,
    )
    table = pseudo_table(archive(), pool, of((1, 0.6)), np.array([0.5, 0.5]), {}, of((1, 0.9), (0, 0.2)))
    assert table["is_ignored"].to_pylist() == [True, False, True]  # by chunk, objects first
    assert pool_of_table(objects_of(table), archive(), pool).score.tolist() == pytest.approx([0.6])


def test_rows_of_other_chunks_and_unknown_recordings_are_left_out():
    table = pa.table(
        {
            "recording_id": ["a", "a", "c", "b"],
            "chunk": pa.array([0, 1, 0, None], pa.int32()),
            "begin_s": [1.0] * 4, "end_s": [2.0] * 4, "low_hz": [1000.0] * 4, "high_hz": [2000.0] * 4,
            "score": pa.array([0.5] * 4, pa.float32()),
        }
    )  # fmt: skip
    found = pool_of_table(table, archive(), chunks((0, 0), (1, 0)))
    assert found.chunk.tolist() == [0] and found.boxes[0, [0, 2]].tolist() == [100.0, 200.0]


def test_groups_are_sites_and_local_hours_of_the_chunk_not_of_the_recording():
    # recording a starts at 06:59:50, so its chunk 2 (10.24 s later) is in the next hour; b at 01:59:50 local
    found = chunk_groups(archive(), chunks((0, 0), (0, 2), (1, 0), (1, 2)))
    assert [found.names[g] for g in found.group] == ["A 06 h", "A 07 h", "B 01 h", "B 02 h"]
    assert found.site_of_group.tolist() == [0, 0, 1, 1]


def test_chunks_of_unknown_time_form_one_group_per_site():
    found = chunk_groups(archive(hours=(None, 23)), chunks((0, 0), (0, 900), (1, 0)))
    assert [found.names[g] for g in found.group] == ["A any hour", "A any hour", "B 01 h"]


def test_the_hour_of_a_recorder_whose_zone_nobody_named_is_that_of_its_clock():
    """Most names of files carry no zone: their hours are local, and tell dawn from noon all the same."""
    known = archive(hours=(None, None), offsets=(None, None))
    clocks = [datetime(2024, 5, 1, 6, 59, 50), datetime(2024, 5, 1, 13, 0, 0)]
    recordings = known.recordings.append_column("start_local", pa.array(clocks, pa.timestamp("us")))
    found = chunk_groups(
        SimpleNamespace(recordings=recordings, rows_of=known.rows_of), chunks((0, 0), (0, 2), (1, 0))
    )
    assert [found.names[g] for g in found.group] == ["A 06 h", "A 07 h", "B 13 h"]
