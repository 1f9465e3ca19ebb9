"""Dealing splits: shares, held-out sites and dates, guarded blocks, the paper's
random chunks, and the leak audit.
"""

from collections import Counter
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

from mast_ray.config.errors import ConfigError, DataError
from mast_ray.config.tree import SplitConfig
from mast_ray.tables.dealing.label_budget import pick_budget
from mast_ray.tables.dealing.leaks import audit_leaks, leakage_rate
from mast_ray.tables.dealing.splits import BlockRow, Recording, chunk_ranges, deal_splits


def recording(
    number, site="A", date="2024-05-01", chunks=11, annotated=True, fingerprint=None, duration_s=60.0
):
    return Recording(
        f"r{number:03d}", site, date, duration_s, chunks, annotated, fingerprint or f"print{number}"
    )


def splits_of(rows):
    return {row.recording_id: row.split for row in rows}


def test_seventy_fifteen_fifteen_by_recording_and_the_same_seed_gives_the_same_table():
    recordings = [recording(n) for n in range(100)]
    rows = deal_splits(recordings, SplitConfig(), seed=1)
    assert Counter(row.split for row in rows) == {"train": 70, "val": 15, "test": 15}
    assert rows == deal_splits(recordings, SplitConfig(), seed=1)
    assert rows != deal_splits(recordings, SplitConfig(), seed=2)
    assert audit_leaks(rows, recordings) == []


def test_shares_count_audio_not_files():
    recordings = [recording(n, chunks=100 if n < 10 else 10) for n in range(110)]
    rows = deal_splits(recordings, SplitConfig(), seed=0)
    chunks = Counter()
    for row, r in zip(rows, recordings, strict=True):
        chunks[row.split] += r.num_chunks
    assert abs(chunks["train"] / 2000 - 0.7) < 0.05


def test_three_recordings_fill_three_splits():
    rows = deal_splits([recording(n) for n in range(3)], SplitConfig(), seed=0)
    assert sorted(row.split for row in rows) == ["test", "train", "val"]


def test_held_out_sites_and_dates_go_whole_and_stay_out_of_the_pool_even_unlabelled():
    recordings = [
        *[recording(n, site="A") for n in range(10)],
        recording(10, site="B"), recording(11, site="B", annotated=False),
        recording(12, site="A", date="2024-06-01"), recording(13, site="A", date="2024-06-01", annotated=False),
        recording(14, site="C"), recording(15, site="A", annotated=False),
    ]  # fmt: skip
    knobs = SplitConfig(ood_sites=("B",), ood_dates=("2024-06-01",), ood_dev_sites=("C",))
    rows = {row.recording_id: row for row in deal_splits(recordings, knobs, seed=0)}
    assert [rows[f"r{n:03d}"].split for n in (10, 12, 14)] == ["site_ood", "temporal_ood", "ood_dev"]
    assert [rows[f"r{n:03d}"].in_pool for n in (10, 11, 12, 13, 14)] == [False] * 5
    assert rows["r015"].split == "" and rows["r015"].in_pool
    assert all(
        row.in_pool == (row.split in ("train", "")) or row.recording_id in ("r011", "r013")
        for row in rows.values()
    )


HELD_OUT_SITE = [
    *[recording(n, site="A") for n in range(10)],
    recording(10, site="B", date="2024-05-01"), recording(11, site="B", date="2024-05-02"),
    recording(12, site="B", date="2024-05-01", annotated=False), recording(13, site="B", date="", annotated=False),
    recording(14, site="B", date="2024-05-02", annotated=False), recording(15, site="C", date="2024-05-01"),
    recording(16, site="C", date="2024-05-02", annotated=False), recording(17, site="D", annotated=False),
]  # fmt: skip


def held_out_rows(recordings=HELD_OUT_SITE, **knobs):
    rows = deal_splits(recordings, SplitConfig(ood_sites=("B", "C"), ood_dev_sites=("D",), **knobs), seed=0)
    assert audit_leaks(rows, recordings) == []
    return {int(row.recording_id[1:]): (row.split, row.in_pool) for row in rows if row.recording_id >= "r010"}


def test_untested_recordings_of_a_held_out_site_join_the_pool_and_tested_ones_do_not():
    tested, out, joins = ("site_ood", False), ("", False), ("", True)
    assert held_out_rows() == {
        10: tested,
        11: tested,
        12: out,
        13: out,
        14: out,
        15: tested,
        16: out,
        17: out,
    }
    assert held_out_rows(ood_pool="untested") == {
        10: tested, 11: tested, 12: joins, 13: joins, 14: joins, 15: tested, 16: joins, 17: out,
    }  # fmt: skip
    only_b = held_out_rows(ood_pool="untested", ood_pool_sites=("B",))
    assert only_b == {10: tested, 11: tested, 12: joins, 13: joins, 14: joins, 15: tested, 16: out, 17: out}


def test_with_tested_dates_the_other_days_join_even_where_labelled_and_unknown_days_stay_out():
    tested, out, joins = ("site_ood", False), ("", False), ("", True)
    rows = held_out_rows(ood_pool="untested", ood_test_dates=("2024-05-01",))
    assert rows == {10: tested, 11: joins, 12: out, 13: out, 14: joins, 15: tested, 16: joins, 17: out}
    without_pool = held_out_rows(ood_test_dates=("2024-05-01",))
    assert without_pool == {10: tested, 11: out, 12: out, 13: out, 14: out, 15: tested, 16: out, 17: out}


def test_a_copy_of_a_tested_recording_under_an_untested_day_stays_out_of_the_pool():
    copies = [
        *HELD_OUT_SITE,
        recording(18, site="B", date="2024-05-03", annotated=False, fingerprint="print10"),
    ]
    assert held_out_rows(copies, ood_pool="untested")[18] == ("", False)
    rows = deal_splits(copies, SplitConfig(ood_sites=("B", "C"), ood_pool="untested"), seed=0)
    leaky = [row._replace(in_pool=True) if row.recording_id in ("r010", "r018") else row for row in rows]
    kinds = [(leak.kind, leak.split, leak.example) for leak in audit_leaks(leaky, copies)]
    assert kinds == [("pool_duplicate", "site_ood", "r010"), ("pool_overlap", "site_ood", "r010")]


@pytest.mark.parametrize(
    ("knobs", "told"),
    [
        ({"ood_pool_sites": ("B",)}, "split.ood_pool=untested"),
        ({"ood_pool": "untested", "ood_pool_sites": ("A",)}, "names 'A', which is not in split.ood_sites"),
        ({"ood_test_dates": ("2024-05-02",)}, "nothing to test at C: its labels are of 2024-05-01"),
        ({"ood_test_dates": ("2024-07-01",)}, "split.ood_test_dates names '2024-07-01'"),
    ],
)
def test_settings_of_held_out_sites_that_cannot_be_meant_are_refused(knobs, told):
    with pytest.raises(ConfigError, match=told):
        held_out_rows(**knobs)


def test_a_date_at_a_held_out_site_is_site_ood():
    recordings = [recording(0), recording(1), recording(2), recording(3, site="B", date="2024-06-01")]
    knobs = SplitConfig(ood_sites=("B",), ood_dates=("2024-06-01",))
    assert splits_of(deal_splits(recordings, knobs, 0))["r003"] == "site_ood"


def test_transductive_lets_held_out_audio_into_the_pool():
    rows = deal_splits([recording(n) for n in range(20)], SplitConfig(transductive=True), seed=0)
    assert all(row.in_pool for row in rows)


def test_one_long_recording_is_dealt_in_guarded_blocks():
    day = recording(0, chunks=16_874, duration_s=86_400.0)
    rows = deal_splits([day], SplitConfig(), seed=0)
    assert Counter(row.split for row in rows)["train"] == pytest.approx(0.7 * 144, abs=1)
    rows.sort(key=lambda row: row.begin_s)
    for before, after in pairwise(rows):
        gap = after.begin_s - before.end_s
        assert gap == pytest.approx(10.24 if before.split != after.split else 0.0)
    assert audit_leaks(rows, [day]) == [] and leakage_rate(rows) == 0.0


def test_random_chunks_leak_and_the_rate_says_how_much():
    recordings = [recording(n) for n in range(50)]
    rows = deal_splits(recordings, SplitConfig(unit="chunk"), seed=0)
    # a test chunk is clean only if both neighbours miss training: about 0.3 ** 2 of them
    assert 0.80 < leakage_rate(rows) < 0.98
    assert {leak.kind for leak in audit_leaks(rows, recordings)} >= {"overlap", "pool_overlap"}


@pytest.mark.parametrize("duration_s", [60.0, 10.24, 15.36, 20.0, 51.2])
def test_rows_of_random_chunks_hold_each_chunk_once(duration_s):
    chunks = int(duration_s * 16_000) // 81_920
    rows = deal_splits(
        [recording(0, chunks=chunks, duration_s=duration_s)], SplitConfig(unit="chunk"), seed=0
    )
    begin_s, end_s = (np.array([getattr(row, name) for row in rows]) for name in ("begin_s", "end_s"))
    first, count = chunk_ranges(begin_s, end_s, np.full(len(rows), duration_s), np.full(len(rows), chunks))
    assert sorted(first.tolist()) == list(range(chunks)) and count.tolist() == [1] * chunks


def test_two_names_of_one_sound_go_into_one_split():
    recordings = [recording(n, fingerprint=f"p{n // 2}") for n in range(40)]
    names = splits_of(deal_splits(recordings, SplitConfig(), seed=0))
    assert all(names[f"r{n:03d}"] == names[f"r{n + 1:03d}"] for n in range(0, 40, 2))


def test_an_unlabelled_copy_of_held_out_audio_is_kept_from_the_pool():
    recordings = [*[recording(n) for n in range(10)], recording(10, annotated=False)]
    rows = deal_splits(recordings, SplitConfig(), seed=0)
    held = next(row.recording_id for row in rows if row.split == "test")
    copy = recordings[10].__class__(**{**recordings[10].__dict__, "fingerprint": f"print{int(held[1:])}"})
    rows = deal_splits([*recordings[:10], copy], SplitConfig(), seed=0)
    assert not rows[-1].in_pool and audit_leaks(rows, [*recordings[:10], copy]) == []


def test_the_audit_finds_every_kind_of_leak():
    recordings = [recording(0), recording(1, fingerprint="print0"), recording(2)]
    rows = [
        BlockRow("r000", 0, 60, "train", True),
        BlockRow("r001", 0, 60, "test", False),  # the same sound as r000
        BlockRow("r002", 0, 30, "train", True),
        BlockRow("r002", 29, 60, "val", False),  # one second of it is trained on
    ]
    kinds = {(leak.kind, leak.split) for leak in audit_leaks(rows, recordings)}
    assert kinds == {
        ("overlap", "val"),
        ("pool_overlap", "val"),
        ("duplicate", "test"),
        ("pool_duplicate", "test"),
    }


def test_a_site_that_is_not_there_is_refused_with_those_that_are():
    with pytest.raises(ConfigError, match=r"'X'.*there are A"):
        deal_splits([recording(0)], SplitConfig(ood_sites=("X",)), 0)


def test_label_budgets():
    hours = np.repeat([5.5, 12.0, 23.9], [90, 6, 4])
    rng = np.random.default_rng
    assert pick_budget(hours, "sequential", 3, rng(0)).tolist() == [0, 1, 2]
    random = pick_budget(hours, "random", 30, rng(0))
    assert len(set(random.tolist())) == 30 and random.tolist() == sorted(random.tolist())
    balanced = Counter(hours[pick_budget(hours, "time_balanced", 12, rng(0))].tolist())
    assert balanced == {5.5: 4, 12.0: 4, 23.9: 4}
    drawn_dry = Counter(hours[pick_budget(hours, "time_balanced", 30, rng(0))].tolist())
    assert drawn_dry == {5.5: 20, 12.0: 6, 23.9: 4}
    assert len(pick_budget(hours, "time_balanced", 100, rng(0))) == 100
    with pytest.raises(DataError, match="at most 100"):
        pick_budget(hours, "random", 101, rng(0))


def grouped(n, group, **about):
    return replace(recording(n, **about), group=group)


def test_one_bird_on_four_microphones_goes_into_one_split():
    """Thirty birds, each on four microphones of four sites."""
    recordings = [
        grouped(4 * bird + mic, f"bird{bird}", site=f"mic{mic}") for bird in range(30) for mic in range(4)
    ]
    for unit in ("auto", "recording", "group"):
        rows = deal_splits(recordings, SplitConfig(unit=unit), seed=3)
        by_bird = {r.group: set() for r in recordings}
        for row, r in zip(rows, recordings, strict=True):
            by_bird[r.group].add(row.split)
        assert all(len(names) == 1 for names in by_bird.values())
        assert {row.split for row in rows} == {"train", "val", "test"}
        assert audit_leaks(rows, recordings, unit) == []
    parted = deal_splits([replace(r, group="") for r in recordings], SplitConfig(), seed=3)
    assert {leak.kind for leak in audit_leaks(parted, recordings)} >= {"group", "pool_group"}


@pytest.mark.parametrize(("unit", "attribute"), [("day", "local_date"), ("site", "site")])
def test_whole_days_and_whole_sites_are_dealt(unit, attribute):
    recordings = [
        recording(10 * day + n, site=f"S{day}", date=f"2024-05-{day + 1:02d}")
        for day in range(8)
        for n in range(5)
    ]
    rows = deal_splits(recordings, SplitConfig(unit=unit), seed=1)
    names = {}
    for row, r in zip(rows, recordings, strict=True):
        names.setdefault(getattr(r, attribute), set()).add(row.split)
    assert all(len(found) == 1 for found in names.values())
    assert audit_leaks(rows, recordings, unit) == []
    by_recording = deal_splits(recordings, SplitConfig(unit="recording"), seed=1)
    assert {leak.kind for leak in audit_leaks(by_recording, recordings, unit)} == {unit}
    assert audit_leaks(by_recording, recordings) == []


def test_a_group_and_a_copy_chain_recordings_together():
    recordings = [
        replace(grouped(0, "a"), fingerprint="x"), replace(grouped(1, "b"), fingerprint="x"), grouped(2, "b"),
        *[recording(n) for n in range(3, 12)],
    ]  # fmt: skip
    rows = deal_splits(recordings, SplitConfig(), seed=0)
    assert len({row.split for row in rows[:3]}) == 1


def test_an_unlabelled_microphone_of_a_held_out_bird_is_kept_from_the_pool():
    recordings = [grouped(n, f"bird{n}") for n in range(10)] + [
        grouped(n + 10, f"bird{n}", annotated=False) for n in range(10)
    ]
    rows = deal_splits(recordings, SplitConfig(), seed=0)
    for own, other in zip(rows[:10], rows[10:], strict=True):
        assert other.in_pool == (own.split == "train")
    assert audit_leaks(rows, recordings) == []


@pytest.mark.parametrize(
    ("unit", "recordings", "told"),
    [
        ("group", [recording(n) for n in range(9)], "no annotated recording has a known group"),
        ("day", [recording(n, date="") for n in range(9)], "no annotated recording has a known day"),
        ("site", [recording(n, site="A") for n in range(9)], "has 1 to deal into 3 splits"),
    ],
)
def test_units_that_cannot_be_dealt_are_refused(unit, recordings, told):
    with pytest.raises(ConfigError, match=told):
        deal_splits(recordings, SplitConfig(unit=unit), seed=0)


@pytest.mark.parametrize("unit", ["recording", "day"])
def test_an_archive_that_grows_keeps_what_was_dealt_and_fills_up_the_shares(unit):
    old = [recording(n, date=f"2024-05-{n // 2 + 1:02d}") for n in range(20)]
    new = [recording(n, date=f"2024-06-{n // 2 - 9:02d}") for n in range(20, 40)]
    knobs = SplitConfig(unit=unit)
    first = deal_splits(old, knobs, 0)
    rows = deal_splits([*new[:10], *old, *new[10:]], knobs, 0, first)
    kept, grown = splits_of(first), splits_of(rows)
    assert all(grown[rid] == name for rid, name in kept.items())
    assert Counter(grown.values()) == Counter(train=28, val=6, test=6)
    fresh = splits_of(deal_splits([*old, *new], knobs, 0))
    assert any(
        fresh[rid] != name for rid, name in kept.items()
    )  # as it was: tested recordings were trained on
    assert not audit_leaks(rows, [*old, *new], unit)


def test_blocks_of_recordings_that_were_there_stay_as_they_are():
    old = [recording(0, duration_s=7200.0, chunks=1400)]
    first = deal_splits(old, SplitConfig(unit="block"), 0)
    rows = deal_splits(
        [*old, recording(1, duration_s=7200.0, chunks=1400)], SplitConfig(unit="block"), 0, first
    )
    assert rows[: len(first)] == first and len(rows) == 2 * len(first)


def test_a_recording_that_was_dealt_in_blocks_keeps_them_when_whole_recordings_are_dealt():
    """With three labelled recordings `auto` deals whole ones: the first must not become wholly test, or wholly train."""
    old = [recording(0, duration_s=3000.0, chunks=585)]
    first = deal_splits(old, SplitConfig(), 0)
    assert {row.split for row in first} == {"train", "val", "test"}
    grown = [*old, *(recording(n, duration_s=100.0, chunks=19) for n in range(1, 31))]
    rows = deal_splits(grown, SplitConfig(), 0, first)
    assert rows[: len(first)] == first
    assert [row.recording_id for row in rows[len(first) :]] == [f"r{n:03d}" for n in range(1, 31)]
    seconds = Counter()
    for row in rows:
        seconds[row.split] += row.end_s - row.begin_s
    assert seconds["train"] / sum(seconds.values()) == pytest.approx(0.7, abs=0.03)  # blocks count too


def test_a_group_that_was_parted_goes_to_training_and_a_label_that_is_gone_is_pool():
    old = [recording(n) for n in range(10)]
    first = deal_splits(old, SplitConfig(), 0)
    names = splits_of(first)
    train, test = (next(r for r in old if names[r.recording_id] == name) for name in ("train", "test"))
    bound = [replace(r, group="bird") if r in (train, test) else r for r in old]
    rows = deal_splits(bound, SplitConfig(), 0, first)
    assert splits_of(rows)[train.recording_id] == splits_of(rows)[test.recording_id] == "train"
    unlabelled = [replace(r, is_annotated=False) if r is train else r for r in old]
    row = next(
        r for r in deal_splits(unlabelled, SplitConfig(), 0, first) if r.recording_id == train.recording_id
    )
    assert (row.split, row.in_pool) == ("", True)


def test_blocks_that_touch_share_no_sound_and_blocks_that_overlap_do():
    one = recording(0)
    rid = one.recording_id
    for end_s, leaks in ((10.0, []), (10.5, [("overlap", "test"), ("pool_overlap", "test")])):
        rows = [BlockRow(rid, 0.0, end_s, "train", True), BlockRow(rid, 10.0, 20.0, "test", False)]
        assert [(leak.kind, leak.split) for leak in audit_leaks(rows, [one])] == leaks
        assert leakage_rate(rows) == (1.0 if leaks else 0.0)
