"""Who learns from a correction and who is judged by it, what changed between two tables, and where runs lie."""

import hashlib
from types import SimpleNamespace

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from mast_ray.config.errors import DataError
from mast_ray.config.recipes import tiny
from mast_ray.config.stage_knobs import lengthened
from mast_ray.evaluation.review.taught import Region, Taught
from mast_ray.recordings.annotations.model import Annotation, AnnotationSet, Span
from mast_ray.reporting.detection_tables import read_recordings
from mast_ray.stages.learn.archive import (
    HELD_OUT_SHARE,
    _neighbourhoods,
    _together,
    dealt_rows,
    groups_of,
    lesson_of,
    sides_by_name,
)
from mast_ray.stages.learn.changes import changes_between, is_found
from mast_ray.stages.learn.learn import fitted_epochs, num_held_out
from mast_ray.stages.learn.places import next_name
from mast_ray.tables.schemas import RECORDINGS
from mast_ray.training.schedule import schedule_of


def table(*rows):
    """(recording, begin_s, label)"""
    return pa.table(
        {
            "recording_id": [row[0] for row in rows],
            "path": [f"{row[0]}.wav" for row in rows],
            "begin_s": [float(row[1]) for row in rows],
            "end_s": [row[1] + 1.0 for row in rows],
            "low_hz": [1000.0] * len(rows),
            "high_hz": [2000.0] * len(rows),
            "score": pa.array([0.9] * len(rows), pa.float32()),
            "label": pa.array([row[2] for row in rows], pa.string()),
        }
    )


def test_a_recording_never_changes_sides_whatever_is_reviewed_later():
    paths = [f"S/{number}.wav" for number in range(400)]
    whole = sides_by_name(paths, seed=0)
    assert sides_by_name(paths[:200], seed=0) == {path: whole[path] for path in paths[:200]}
    share = sum(side == "val" for side in whole.values()) / len(paths)
    assert share == pytest.approx(HELD_OUT_SHARE, abs=0.07)


def test_both_sides_have_a_recording_and_one_recording_is_not_enough():
    for names in (["a", "b"], ["c", "d"], ["e", "f"], ["g", "h"]):
        assert set(sides_by_name(names, seed=3).values()) == {"train", "val"}
    with pytest.raises(DataError, match="at least two recordings"):
        sides_by_name(["a"], seed=0)
    assert len(sides_by_name(["a"], 0, {"train", "val"})) == 1  # labels of before fill both


def test_of_a_recording_only_the_chunks_that_show_corrections_best_are_read():
    """Chunks of 10.24 s begin every 5.12 s."""
    assert _neighbourhoods([(30.0, 31.0)], 105.0) == [pytest.approx((25.6, 35.84))]  # middle 30.72
    assert _neighbourhoods([(0.1, 0.4)], 105.0) == [pytest.approx((0.0, 10.24))]
    assert _neighbourhoods([(29.6, 29.9)], 30.0) == [pytest.approx((20.48, 30.0))]  # the last one is padded
    assert _neighbourhoods([(1.0, 2.0)], 5.0) == [pytest.approx((0.0, 5.0))]
    pieces = [(30.0, 30.5), (30.5, 31.0), (80.0, 81.0), (90.0, 91.0)]
    assert _neighbourhoods(pieces, 105.0) == [
        pytest.approx((25.6, 35.84)),
        pytest.approx((76.8, 87.04)),
        pytest.approx((87.04, 97.28)),
    ]
    assert _neighbourhoods([(80.0, 81.0), (84.0, 85.0)], 105.0) == [pytest.approx((76.8, 92.16))]
    assert _neighbourhoods([(30.0, 40.0)], 105.0) == [
        pytest.approx((19.76, 50.24))
    ]  # gone through: all that show some


def test_a_correction_replaces_the_earlier_box_under_it():
    known = AnnotationSet(
        (Annotation("a", 0, 1, 1000, 2000, "wren"), Annotation("a", 5, 6, 1000, 2000, "wren")),
        frozenset({"a"}),
    )
    corrected = AnnotationSet(
        (Annotation("a", 0, 1.1, 1000, 2000, "robin"), Annotation("a", 0, 1.1, 0, 1000, said="uncertain"),
         Annotation("b", 0, 1, 1000, 2000), Annotation("b", 0, 1, 0, 1000, said="uncertain")),
        frozenset({"a", "b"}), spans=(Span("a", 0, 1.1), Span("b", 0, 1)),
    )  # fmt: skip
    both = _together(known, corrected)
    assert [(a.path, a.begin_s, a.label, a.said) for a in both.annotations] == [
        ("a", 5, "wren", "call"),
        ("a", 0, "robin", "call"),
        ("b", 0, "", "call"),
        ("b", 0, "", "uncertain"),
    ]
    assert both.spans == (Span("b", 0, 1),)  # a was gone through wholly before


def test_a_rejected_label_of_before_is_no_call_any_more():
    known = AnnotationSet(
        (Annotation("a", 0, 1, 1000, 2000, "wren"), Annotation("a", 5, 6, 1000, 2000, "wren")),
        frozenset({"a"}),
    )
    both = _together(known, AnnotationSet(), [Annotation("a", 0.1, 1.1, 1000, 2000)])
    assert [a.begin_s for a in both.annotations] == [5]


def test_a_lesson_of_corrections_alone_holds_what_they_teach():
    taught = Taught(
        (Region("a", 0, 1, 1000, 2000, "wren"),), (Region("a", 0, 1, 0, 1000),), (("a", 0.0, 1.0),), 1, 0, 0
    )
    lesson = lesson_of(taught, None)
    assert [a.said for a in lesson.annotations.annotations] == ["call", "uncertain"]
    assert lesson.annotations.annotated_paths == {"a"} and lesson.annotations.spans == (Span("a", 0.0, 1.0),)


def test_boxes_gained_lost_and_renamed_are_counted_once_each():
    before = table(("x", 0, "wren"), ("x", 5, "wren"), ("y", 0, None))
    after = table(("x", 0.2, "robin"), ("y", 0, None), ("y", 9, "owl"))
    found = changes_between(before, after)
    assert found.counts == {"gained": 1, "lost": 1, "renamed": 1}
    assert [(row[0], row[1], row[7], row[8]) for row in found.rows] == [
        ("renamed", "x.wav", "robin", "wren"),
        ("lost", "x.wav", "", "wren"),
        ("gained", "y.wav", "owl", ""),
    ]
    assert "1 gained, 1 lost, 1 renamed, 1 as they were" in found.text()
    assert found.csv().decode().splitlines()[0].startswith("change,path,begin_s")


def test_a_call_is_found_by_a_detection_of_its_own():
    calls = table(("x", 0, "wren"), ("x", 0.1, "wren"), ("y", 3, "owl"))
    assert is_found(calls, table(("x", 0, None), ("y", 8, None))).tolist() == [True, False, False]
    assert is_found(calls.slice(0, 0), calls).tolist() == []


def test_a_held_out_call_counts_once_however_many_chunks_and_blocks_show_it():
    splits = pa.table(
        {"recording_id": ["a", "a", "b"], "begin_s": [0.0, 20.0, 0.0], "split": ["val", "val", "train"]}
    )
    labels = table(("a", 6, "x"), ("a", 22, ""), ("b", 1, "x"))
    assert num_held_out(SimpleNamespace(splits=splits, labels=labels)) == 2


def test_few_chunks_are_shown_more_often_and_many_within_the_minutes():
    knobs = tiny().self_train.stage2
    few, many = fitted_epochs(knobs, 60, 5.0, 7.0), fitted_epochs(knobs, 3000, 5.0, 7.0)
    assert fitted_epochs(knobs, 60, 5.0, 1.0)["epochs"] == 5  # a slower machine
    assert few["epochs"] > knobs.epochs and many["epochs"] == 1
    assert few["warmup_epochs"] == pytest.approx(knobs.warmup_epochs * few["epochs"] / knobs.epochs)


def test_the_fewest_steps_of_a_recipe_do_not_take_longer_than_the_minutes():
    knobs = tiny().self_train.stage2
    assert knobs.min_steps == 60  # of 4: ten chunks in two steps an epoch are gone through thirty times
    whole, cut = fitted_epochs(knobs, 10, 5.0, 2.0), fitted_epochs(knobs, 10, 0.5, 2.0)
    assert (whole["epochs"], whole["min_steps"]) == (30, 0)
    steps = schedule_of(lengthened(knobs.model_copy(update=cut), 10), 10).num_steps
    assert steps * knobs.batch_size <= 0.5 * 60 * 2.0


def test_min_steps_does_not_put_back_what_the_minutes_cut():
    knobs = tiny().self_train.stage2
    assert knobs.min_steps > 0
    short, enough = (fitted_epochs(knobs, 19, minutes, 0.5) for minutes in (0.2, 60.0))
    after = [lengthened(knobs.model_copy(update=found), 19).epochs for found in (short, enough)]
    assert after == [short["epochs"], enough["epochs"]] and short["epochs"] == 1
    assert enough["epochs"] >= lengthened(knobs, 19).epochs > 1  # where there is time, all of them


def test_the_next_round_has_the_next_number():
    assert [next_name(name) for name in ("run", "run-2", "a/demo-9/")] == ["run-2", "run-3", "a/demo-10"]


def test_where_nothing_is_held_out_the_recording_is_that_a_larger_share_would_take_first():
    names = [f"{letter}.wav" for letter in "abcdefgh"]
    taught = [path for path, side in sides_by_name(names, seed=0).items() if side == "train"]
    (held,) = [path for path, side in sides_by_name(taught, seed=0).items() if side == "val"]
    assert held == min(taught, key=lambda path: hashlib.sha256(f"0:{path}".encode()).digest())


def test_recordings_of_one_group_are_on_one_side_and_with_what_is_tested_left_out(monkeypatch):
    """One bird on several microphones (prepare --group) was learned from on one and judged by on the other."""
    paths = [f"m{mic}/{song}.wav" for song in range(20) for mic in range(3)]
    group_of = {path: path[3:] for path in paths}
    known = {"m0/0.wav": "train", "m0/1.wav": "val", "m0/2.wav": "test"}
    labels = SimpleNamespace(
        recording_ids=paths,
        recordings=pa.table({"path": paths, "duration_s": [10.0] * 60, "group": list(group_of.values())}),
        labels=pa.table({"recording_id": pa.array([], pa.string())}),
        ignored=pa.table({"recording_id": pa.array([], pa.string()), "why": pa.array([], pa.string())}),
        splits=pa.table({"recording_id": list(known), "split": list(known.values())}),
    )
    calls = tuple(Region(path, 1.0, 2.0, 1000.0, 2000.0, "") for path in paths if path not in known)
    taught = Taught(calls, (), tuple((one.path, 1.0, 2.0) for one in calls), len(calls), 0, 0)
    monkeypatch.setattr("mast_ray.stages.learn.archive.selection_split", lambda prepared: "val")
    lesson = lesson_of(taught, labels)
    assert lesson.num_tested == 2 and lesson.annotations.annotated_paths.isdisjoint(
        {"m0/2.wav", "m1/2.wav", "m2/2.wav"}
    )
    used = sorted(lesson.annotations.annotated_paths)
    archive = SimpleNamespace(
        recording_ids=used, recordings=pa.table({"path": used, "duration_s": [10.0] * len(used)})
    )
    sides = {row.recording_id: row.split for row in dealt_rows(archive, lesson, seed=0)}
    assert len({(group_of[path], side) for path, side in sides.items()}) == 19
    assert {sides["m1/0.wav"], sides["m2/1.wav"]} == {"train", "val"} and sides["m1/0.wav"] == "train"
    assert set(sides.values()) == {"train", "val"}
    assert lesson_of(taught, labels, groups={"m0/0.wav": "other", "new.wav": "a"}).groups == {
        **group_of,
        "new.wav": "a",
    }
    labels.recordings = labels.recordings.drop_columns("group")  # as early releases wrote it
    assert lesson_of(taught, labels).groups == {}


def test_without_a_prepared_archive_groups_are_those_of_the_table_that_detect_was_given(tmp_path):
    """They are in recordings.parquet beside the detections."""
    paths = [f"m{mic}/{song}.wav" for song in range(20) for mic in range(3)]
    group_of = {path: path[3:] for path in paths}
    rows = [
        {"recording_id": path, "path": path, "group": group, "duration_s": 10.0}
        for path, group in group_of.items()
    ]
    pq.write_table(pa.Table.from_pylist(rows, schema=RECORDINGS), tmp_path / "recordings.parquet")
    groups = groups_of(read_recordings(str(tmp_path)))
    calls = tuple(Region(path, 1.0, 2.0, 1000.0, 2000.0, "") for path in paths)
    taught = Taught(calls, (), tuple((path, 1.0, 2.0) for path in paths), len(calls), 0, 0)
    lesson = lesson_of(taught, None, None, groups)
    archive = SimpleNamespace(
        recording_ids=paths, recordings=pa.table({"path": paths, "duration_s": [10.0] * len(paths)})
    )
    sides = {row.recording_id: row.split for row in dealt_rows(archive, lesson, seed=0)}
    assert len({(group_of[path], side) for path, side in sides.items()}) == 20
