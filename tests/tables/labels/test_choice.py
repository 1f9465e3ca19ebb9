"""Which labels are calls: by name, by pattern, and by what names mean in the common tools."""

from dataclasses import replace

import pytest

from mast_ray.config.errors import ConfigError, DataError
from mast_ray.config.loading import apply_overrides
from mast_ray.config.recipes import field, paper
from mast_ray.recordings.annotations.model import Annotation, AnnotationSet, Span
from mast_ray.tables.labels.choice import chosen_labels, refuse_no_calls, role_of
from mast_ray.tables.labels.cleaning import single_boxes
from mast_ray.tables.labels.spans import with_listened


def knobs(**settings):
    return apply_overrides(field(), {f"labels.{name}": value for name, value in settings.items()}).labels


def found(*labels):
    boxes = tuple(Annotation("a.wav", n, n + 0.5, 1000, 2000, label) for n, label in enumerate(labels))
    return AnnotationSet(boxes, frozenset({"a.wav", "silent.wav"}))


@pytest.mark.parametrize(
    ("label", "settings", "role"),
    [
        ("Turdus merula", {}, "call"),
        ("", {}, "call"),
        ("unknown bird", {}, "call"),  # an animal, whatever it is
        ("alarm", {}, "call"),
        ("NOISE", {}, "no_animal"),
        ("boat noise", {}, "no_animal"),
        ("frog noise", {}, "call"),
        ("Human_non-vocal", {}, "no_animal"),
        ("no  call", {}, "no_animal"),
        ("NoID", {}, "uncertain"),
        ("Don't Know", {}, "uncertain"),
        ("???", {}, "uncertain"),
        ("noise", {"no_animal": "keep"}, "call"),
        ("noise", {"include": ("noise",)}, "call"),
        ("Turdus merula", {"include": ("turdus*",)}, "call"),
        ("Parus major", {"include": ("turdus*",)}, "left_out"),
        ("", {"include": ("turdus*",)}, "left_out"),
        ("Turdus merula", {"include": ("turdus*",), "exclude": ("* merula",)}, "left_out"),
        ("Turdus merula", {"include": ("turdus*",), "uncertain": ("*merula",)}, "uncertain"),
        ("7", {"include": (7, 8)}, "call"),  # numbers are names too
    ],
)
def test_what_a_label_is_taken_for(label, settings, role):
    assert role_of(label, knobs(**settings)) == role


def test_as_printed_in_the_paper_every_label_is_a_call():
    assert {role_of(label, paper().labels) for label in ("noise", "unknown", "wren")} == {"call"}


def test_every_label_is_counted_before_any_work():
    chosen = chosen_labels(found("wren", "wren", "tit", "rain", "unk", "dog"), knobs(exclude=("dog",)))
    assert chosen.lines() == [
        "labels: 3 calls in 1 recordings, 1 more gone through without a call: wren 2, tit 1",
        "  1 uncertain, neither call nor background: unk 1",
        "  1 no animal by their name, left out (labels.no_animal=keep or labels.include keeps them): rain 1",
        "  1 left out as chosen by labels.include and labels.exclude: dog 1",
    ]
    assert [a.label for a in chosen.uncertain] == ["unk"]


def test_a_pattern_that_fits_no_label_is_refused_with_the_nearest_name():
    with pytest.raises(ConfigError, match=r"labels\.include names 'Turdus merla'.*\n.*'Turdus merula'"):
        chosen_labels(found("Turdus merula", "Parus major"), knobs(include=("Turdus merla",)))


def test_boxes_of_which_none_is_a_call_are_refused_by_what_they_are():
    boxes = found("rain", "rain", "?")
    with pytest.raises(DataError, match=r"not one of its 3 boxes is a call: they are rain 2, \? 1"):
        refuse_no_calls(boxes, chosen_labels(boxes, knobs()), "boxes.csv")


def test_a_recording_with_nothing_but_points_is_not_background():
    points = (Annotation("point.wav", 2, 2, label="wren"), Annotation("line.wav", 2, 3, 900, 900, "wren"))
    box = Annotation("box.wav", 1, 2, 900, 1900, "wren")
    spans = (Span("point.wav", 0, 5),)
    some = AnnotationSet(
        (*points, box, replace(box, end_s=1)),
        frozenset({"point.wav", "line.wav", "box.wav", "silent.wav"}),
        spans=spans,
    )
    chosen = chosen_labels(some, knobs())
    assert chosen.calls.annotated_paths == {"box.wav", "silent.wav"} and not chosen.calls.spans
    assert chosen.lines()[0] == "labels: 1 calls in 1 recordings, 1 more gone through without a call: wren 1"
    assert any("2 boxes are all that their recordings have" in line for line in chosen.lines())
    nothing = AnnotationSet((Annotation("a.wav", 0, 0, 0, 0, "none"),), frozenset({"a.wav"}))
    assert chosen_labels(nothing, knobs()).calls.annotated_paths == {"a.wav"}, "a row that says so"
    alone = AnnotationSet(points, frozenset({"point.wav", "line.wav"}))
    with pytest.raises(
        DataError, match=r"1 boxes have no length .*\ngive tables whose boxes lie around calls"
    ):
        refuse_no_calls(alone, chosen_labels(alone, knobs()), "points")


def test_tables_that_are_really_empty_are_annotations():
    nothing = AnnotationSet((), frozenset({"a.wav"}))
    refuse_no_calls(nothing, chosen_labels(nothing, knobs()), "tables")


def box(begin_s, end_s, low_hz, high_hz, label="", path="a.wav"):
    return Annotation(path, begin_s, end_s, low_hz, high_hz, label)


@pytest.mark.parametrize(
    ("other", "is_same"),
    [
        (box(1.0, 2.0, 1000, 3000), True),
        (box(1.009, 1.992, 1000, 3000), True),  # within a frame
        (box(1.012, 2.0, 1000, 3000), False),
        (box(1.0, 2.012, 1000, 3000), False),
        (box(1.0, 2.0, 1030, 3060), True),  # a bin is 33 Hz high at 1 kHz, 72 Hz at 3 kHz
        (box(1.0, 2.0, 1040, 3000), False),
        (box(1.0, 2.0, 1000, 3100), False),
        (box(1.0, 2.0, 1000, 3000, path="b.wav"), False),
        (box(1.0, 2.0, None, None), False),  # a label in time says something else
    ],
)
def test_two_boxes_are_the_same_within_a_frame_and_a_bin(other, is_same):
    kept, notes = single_boxes([box(1.0, 2.0, 1000, 3000), other])
    assert len(kept) == (1 if is_same else 2) and len(notes) == is_same


def test_of_the_same_box_twice_the_label_is_kept_whichever_has_it():
    kept, _ = single_boxes([box(1, 2, None, None), box(1, 2, None, None, "wren")])
    assert kept == [box(1, 2, None, None, "wren")]
    kept, notes = single_boxes([box(1, 2, 20000, 30000, "bat"), box(1, 2, 20000, 30000, "myotis")])
    assert kept == [box(1, 2, 20000, 30000, "bat")] and notes[0].count == 1


def test_two_names_of_the_same_box_are_told_with_the_one_that_stays():
    twice = [box(1, 2, 1000, 2000, "frog"), box(1, 2, 1000, 2000, "toad"), box(1, 2, 1000, 2000, "Frog")]
    kept, notes = single_boxes(twice)
    assert [a.label for a in kept] == ["frog"] and [note.count for note in notes] == [2, 1]
    assert "have two names, of which the first is kept" in str(notes[1])
    assert str(notes[1]).endswith("1000 to 2000 Hz: frog, not toad)")
    kept, notes = single_boxes([box(1, 2, 1000, 2000), *twice[:2]])  # the first has none
    assert [a.label for a in kept] == ["frog"] and [note.count for note in notes] == [2, 1]


def test_what_was_not_gone_through_at_all_is_not_counted_as_silent():
    boxes = (box(1, 2, 1000, 2000, "wren", path="part.wav"), box(1, 2, 1000, 2000, "tit", path="other.wav"))
    found = AnnotationSet(boxes, frozenset({"part.wav", "other.wav"}))
    listened = AnnotationSet(
        annotated_paths=frozenset({"part.wav", "silent.wav"}), spans=(Span("part.wav", 0.0, 5.0),)
    )
    lines = chosen_labels(with_listened(found, listened), knobs()).lines()
    assert lines[:2] == [
        "labels: 1 calls in 1 recordings, 1 more gone through without a call: wren 1",
        "  1 recordings were gone through in part: the rest is neither call nor background",
    ]
    assert lines[2].startswith("  1 recordings have a table, ") and lines[2].endswith("(e.g. other.wav)")


@pytest.mark.parametrize("marker", ["annotate", "listen"])
def test_a_task_that_nobody_has_begun_is_not_gone_through(marker):
    tasks = (
        Annotation("open.wav", 0.0, 10.24, 500, 8000, marker),
        Annotation("begun.wav", 0.0, 10.24, 500, 8000, marker),
        Annotation("begun.wav", 1.0, 2.0, 1000, 2000, "wren"),
    )
    paths = frozenset({"open.wav", "begun.wav", "silent.wav"})
    chosen = chosen_labels(AnnotationSet(tasks, paths), knobs())
    assert chosen.calls.annotated_paths == {"begun.wav", "silent.wav"}
    assert [a.label for a in chosen.calls.annotations] == ["wren"]
    assert any("nobody has begun" in line and "open.wav" in line for line in chosen.lines())
    assert chosen_labels(AnnotationSet(tasks, paths), knobs(no_animal="keep")).calls.annotated_paths == paths
    heard = with_listened(AnnotationSet(tasks, paths), AnnotationSet(annotated_paths=paths))
    assert chosen_labels(heard, knobs()).calls.annotated_paths == paths


def test_a_task_of_a_part_that_stays_beside_calls_is_said_unless_something_says_what_was_gone_through():
    boxes = (
        Annotation("a.wav", 5.12, 15.36, None, None, "annotate"),
        Annotation("a.wav", 6.0, 7.0, 1000, 2000, "wren"),
    )
    found = AnnotationSet(boxes, frozenset({"a.wav"}))
    assert any("say so with --listened" in line for line in chosen_labels(found, knobs()).lines())
    partly = AnnotationSet(boxes, frozenset({"a.wav"}), spans=(Span("a.wav", 5.12, 15.36),))
    assert not any("--listened" in line for line in chosen_labels(partly, knobs()).lines())


def test_names_that_differ_in_case_or_signs_alone_are_said():
    lines = chosen_labels(
        found("Wren", "wren", "wren", "Great_Tit", "great tit", "Coal Tit"), knobs()
    ).lines()
    (said,) = [line for line in lines if "several ways" in line]
    assert "2 names" in said and "Great_Tit and great tit, Wren and wren" in said
    assert not any("several ways" in line for line in chosen_labels(found("Wren", "Tit"), knobs()).lines())
