"""Splits without a call, against tables of a few rows."""

from __future__ import annotations

import pyarrow as pa

from mast_ray.config.tree import SplitConfig
from mast_ray.tables.dealing.bonds import Recording
from mast_ray.tables.dealing.silent import silence_text, silent_splits, untested_text
from mast_ray.tables.schemas import SPLITS


def splits(*rows: tuple[str, float, float, str]) -> pa.Table:
    names = ("recording_id", "begin_s", "end_s", "split")
    return pa.Table.from_pylist([dict(zip(names, row, strict=True), in_pool=True) for row in rows], SPLITS)


def labels(*rows: tuple[str, float, float]) -> pa.Table:
    columns = list(zip(*rows, strict=True)) or [[], [], []]
    return pa.table(
        {
            "recording_id": pa.array(columns[0], pa.string()),
            "begin_s": pa.array(columns[1], pa.float64()),
            "end_s": pa.array(columns[2], pa.float64()),
        }
    )


def test_a_split_whose_blocks_meet_no_label_is_silent():
    dealt = splits(("a", 0, 60, "train"), ("a", 60, 120, "val"), ("b", 0, 60, "val"), ("c", 0, 60, ""))
    assert silent_splits(labels(("a", 10, 12)), dealt) == {"val": 2}
    assert silent_splits(labels(("a", 59, 61)), dealt) == {}, "it lies in both in part"
    assert silent_splits(labels(("c", 1, 2)), dealt) == {"train": 1, "val": 2}
    assert silent_splits(labels(("a", 10, 12), ("b", 1, 2)), dealt) == {}


def test_validation_may_be_silent_where_development_sites_choose():
    dealt = splits(("a", 0, 60, "train"), ("b", 0, 60, "val"), ("c", 0, 60, "ood_dev"))
    assert silent_splits(labels(("a", 1, 2), ("c", 1, 2)), dealt) == {}
    assert silent_splits(labels(("a", 1, 2)), dealt) == {"val": 1}


def test_nothing_is_said_of_an_archive_without_labels_or_of_a_split_that_is_not_there():
    assert silent_splits(labels(), splits(("a", 0, 60, "val"))) == {}
    assert silent_splits(labels(("a", 1, 2)), splits(("a", 0, 60, "train"))) == {}
    assert silence_text({}) == ""


def test_the_line_says_what_to_do():
    text = silence_text({"val": 2})
    assert "weights and threshold cannot be chosen" in text and "mast split" in text
    assert len(text.splitlines()) <= 3


def recording(site: str, date: str, is_annotated: bool) -> Recording:
    return Recording(f"{site}{date}", site, date, 60.0, 11, is_annotated, f"{site}{date}")


def test_places_and_dates_that_are_held_out_and_not_annotated_are_named():
    heard = [recording("A", "2024-05-01", True), recording("B", "2024-05-02", False)]
    knobs = SplitConfig(ood_sites=("A", "B"), ood_dates=("2024-05-02",))
    text = untested_text(heard, knobs)
    assert "split.ood_sites B; split.ood_dates 2024-05-02: held out" in text and len(text.splitlines()) <= 3
    assert untested_text(heard, SplitConfig(ood_dev_sites=("A",), ood_dates=("2024-05-01",))) == ""
    assert untested_text(heard[1:], knobs) == "", "a pool for pretraining alone"
