"""An archive that grows: what was learned is never tested, and one sound under two names lies in one split, in blocks too."""

from dataclasses import replace

import pytest

from mast_ray.config.tree import SplitConfig
from mast_ray.tables.dealing.leaks import audit_leaks, heard_before
from mast_ray.tables.dealing.splits import BlockRow, Recording, deal_splits


def recording(number, duration_s=60.0, sound=None, group=""):
    chunks = int(duration_s // 5.12) - 1
    return Recording(
        f"r{number:03d}", "A", "2024-05-01", duration_s, chunks, True, sound or f"sound{number}", group
    )


def places(rows, recording_id):
    return [(row.begin_s, row.end_s, row.split) for row in rows if row.recording_id == recording_id]


@pytest.mark.parametrize(("names", "wanted"), [(("train", "test"), "train"), (("val", "test"), "val")])
def test_recordings_that_turn_out_to_belong_together_go_where_they_were_learned(names, wanted):
    recordings = [recording(n) for n in range(40)]
    for seed in range(20):
        before = deal_splits(recordings, SplitConfig(), seed=seed)
        split_of = {row.recording_id: row.split for row in before}
        pair = [next(rid for rid, split in split_of.items() if split == name) for name in names]
        bound = [replace(r, group="one bird") if r.recording_id in pair else r for r in recordings]
        after = {row.recording_id: row.split for row in deal_splits(bound, SplitConfig(), seed, before)}
        assert [after[rid] for rid in pair] == [wanted, wanted]
        assert all(after[rid] == split for rid, split in split_of.items() if rid not in pair)


@pytest.mark.parametrize("unit", ["auto", "block"])
def test_a_long_recording_and_its_copy_are_dealt_in_the_same_blocks(unit):
    recordings = [recording(0, 6 * 3600.0, "dawn"), recording(1, 6 * 3600.0, "dawn")]
    rows = deal_splits(recordings, SplitConfig(unit=unit), seed=0)
    assert {row.split for row in rows} == {"train", "val", "test"}
    assert places(rows, "r000") == places(rows, "r001")
    assert audit_leaks(rows, recordings, unit) == []


@pytest.mark.parametrize("further", [1, 5])
@pytest.mark.parametrize("unit", ["auto", "block"])
def test_a_copy_that_comes_later_is_dealt_in_the_blocks_of_the_first(unit, further):
    first = [recording(0, 6 * 3600.0, "dawn")]
    before = deal_splits(first, SplitConfig(unit=unit), seed=0)
    grown = [*first, recording(1, 6 * 3600.0, "dawn"), *(recording(n, 3600.0) for n in range(2, 1 + further))]
    rows = deal_splits(grown, SplitConfig(unit=unit), 0, before)
    assert places(rows, "r001") == places(rows, "r000") == places(before, "r000")
    assert audit_leaks(rows, grown, unit) == []


def test_copies_that_meet_in_time_are_told_as_leaks_and_others_are_not():
    recordings = [recording(0, 1200.0, "dawn"), recording(1, 1200.0, "dawn")]
    apart = [BlockRow("r000", 0.0, 590.0, "train", True), BlockRow("r001", 610.0, 1200.0, "test", False)]
    assert audit_leaks(apart, recordings) == []
    met = [apart[0], BlockRow("r001", 500.0, 1200.0, "test", False)]
    assert {leak.kind for leak in audit_leaks(met, recordings)} == {"duplicate", "pool_duplicate"}


def test_recordings_of_the_pool_that_get_labels_and_are_held_out_are_named():
    labelled, unlabelled = [recording(n) for n in range(10)], [recording(n) for n in range(10, 30)]
    before = deal_splits([*labelled, *(replace(r, is_annotated=False) for r in unlabelled)], SplitConfig(), 0)
    assert heard_before([], before) == []
    rows = deal_splits([*labelled, *unlabelled], SplitConfig(), 0, before)
    held = {row.recording_id for row in rows if row.split in ("val", "test")}
    assert heard_before(before, rows) == sorted(held & {r.recording_id for r in unlabelled}) != []
