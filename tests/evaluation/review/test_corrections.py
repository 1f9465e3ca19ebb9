"""The log of corrections on disk, and what it comes to when it is folded."""

import math
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from mast_ray.config.errors import ConfigError, DataError
from mast_ray.evaluation.review.corrections import (
    Action,
    action_of_line,
    append_actions,
    checked_reviewer,
    corrections_folder,
    line_of,
    log_path,
    read_log,
    read_logs,
    stamped,
    standing,
)
from mast_ray.evaluation.review.review_state import (
    Span,
    agreed_boxes,
    agreements,
    fold_log,
    looked_at,
    merged_spans,
    name_notes,
    random_verdicts,
)

NOON = datetime(2026, 5, 1, 12, tzinfo=UTC)


def said(number: int, action: str, reviewer: str = "Ana", box: str = "d1", **more) -> Action:
    """Action `number` of a test's log, on a detection (d...), a drawn box or a span of recording r1."""
    values = {"begin_s": 1.0, "end_s": 2.0, "low_hz": 500.0, "high_hz": 900.0} | more
    if action == "looked":
        values |= {"low_hz": None, "high_hz": None}
    detection = box if box.startswith("d") and not box.startswith("drawn") else ""
    plain = Action(
        action, reviewer, "r1", "site/a.wav", "" if action in ("looked", "undo") else box, detection
    )
    return stamped(replace(plain, **values), NOON + timedelta(seconds=number), f"{number:016x}")


def undo(number: int, undone: int, reviewer: str = "Ana") -> Action:
    return said(number, "undo", reviewer, undoes=f"{undone:016x}")


def test_an_action_comes_back_from_its_line_as_it_was():
    action = said(1, "name", label='Rana "x" <b>\n', score=0.25, queue="random")
    line = line_of(action)
    assert line.count("\n") == 1 and line.endswith("\n")
    assert action_of_line(line) == action


def test_a_drawn_box_is_called_after_the_action_that_drew_it():
    assert stamped(Action("draw", "Ana", "r1", "a.wav"), NOON, "ab12").box_id == "drawn-ab12"


def test_appended_actions_are_read_back_in_order(tmp_path):
    path = log_path(tmp_path / "corrections", "Ana")
    append_actions(path, [said(1, "accept")])
    append_actions(path, [said(2, "reject", box="d2"), undo(3, 2)])
    assert [a.action for a in read_log(path).actions] == ["accept", "reject", "undo"]
    assert read_log(path).problems == ()


@pytest.mark.parametrize("kept", [1, 20, 60])
def test_a_last_line_that_a_crash_cut_short_is_named_and_harms_nothing(tmp_path, kept):
    path = tmp_path / "Ana.jsonl"
    append_actions(path, [said(1, "accept")])
    with path.open("ab") as file:
        file.write(line_of(said(2, "reject")).encode()[:kept])
    assert [a.action for a in read_log(path).actions] == ["accept"]
    append_actions(path, [said(3, "name", label="frog")])
    log = read_log(path)
    assert [a.action for a in log.actions] == ["accept", "name"]
    assert len(log.problems) == 1 and "line 2" in log.problems[0]


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("action", "delete"),
        ("queue", "mine"),
        ("begin_s", 2.0),
        ("begin_s", -1.0),
        ("begin_s", None),
        ("end_s", "2"),
        ("low_hz", None),
        ("high_hz", 400.0),
        ("label", 3),
        ("label", None),
        ("reviewer", ""),
        ("box_id", ""),
        ("score", True),
    ],
)
def test_a_line_that_cannot_be_is_refused_and_its_neighbours_are_kept(tmp_path, field, value):
    import json

    path = tmp_path / "Ana.jsonl"
    values = json.loads(line_of(said(2, "accept"))) | {field: value}
    path.write_text(line_of(said(1, "accept")) + json.dumps(values) + "\n" + line_of(said(3, "reject")))
    log = read_log(path)
    assert [a.id[-1] for a in log.actions] == ["1", "3"]
    assert len(log.problems) == 1


def test_nothing_that_cannot_be_read_back_is_written(tmp_path):
    with pytest.raises(ValueError, match="not a number"):
        append_actions(tmp_path / "Ana.jsonl", [said(1, "accept", end_s=math.nan)])
    assert not (tmp_path / "Ana.jsonl").exists()


def test_a_log_of_another_version_is_named(tmp_path):
    path = tmp_path / "Ana.jsonl"
    path.write_text(line_of(said(1, "accept")).replace('"version":1', '"version":2'))
    assert "another release" in read_log(path).problems[0]


def test_every_reviewer_of_a_folder_is_read(tmp_path):
    for name in ("Ana", "Bo"):
        append_actions(log_path(tmp_path, name), [said(1, "accept", name)])
    (tmp_path / "notes.txt").write_text("not a log")
    assert [a.reviewer for a in read_logs(tmp_path).actions] == ["Ana", "Bo"]
    assert read_logs(tmp_path / "nowhere") == ((), ())


@pytest.mark.parametrize("name", ["", "..", ".hidden", "a/b", "a\\b", "a\nb", "x" * 61, "<b>"])
def test_a_reviewer_who_cannot_be_a_file_is_refused(name):
    with pytest.raises(ConfigError, match="--reviewer"):
        checked_reviewer(name)


def test_a_reviewer_has_one_file_however_the_accent_is_written(tmp_path):
    assert log_path(tmp_path, "Zoe\u0308") == log_path(tmp_path, "Zo\u00eb")


@pytest.mark.parametrize(
    ("made", "place", "folder"),
    [
        (["run/steps.json"], "run/detections", "run/corrections"),
        (["run/learn.json"], "run/detections", "run/corrections"),
        ([], "run/detections", "run/detections/corrections"),  # two folders of a user's
        (["w/steps.json"], "w/det1", "w/det1/corrections"),
        ([], "w/det2", "w/det2/corrections"),
        # what a stage keeps, and may delete, is the stage itself
        (["out/commit/u.json"], "out/detections", "out/corrections"),
        (["out/commit/u.json"], "out/detections/site=A/x.parquet", "out/corrections"),
        (["out/commit/u.json"], "out/earlier", "out/corrections"),
        (["run/steps.json", "run/detections/commit/u.json"], "run/detections/detections", "run/corrections"),
        ([], "d/x.parquet", "d/corrections/x"),
    ],
)
def test_no_two_outputs_share_their_corrections(tmp_path, made, place, folder):
    for name in made:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("{}")
    assert corrections_folder(str(tmp_path / place)) == tmp_path / folder
    assert corrections_folder(f"file://{tmp_path / place}") == tmp_path / folder


def test_corrections_are_not_kept_in_a_bucket():
    with pytest.raises(DataError, match="--corrections"):
        corrections_folder("s3://bucket/run/detections")


def test_logs_of_before_go_on_where_they_are_until_there_are_own_ones(tmp_path, capsys):
    shared, own = tmp_path / "corrections", tmp_path / "det1/corrections"
    shared.mkdir()
    assert corrections_folder(str(tmp_path / "det1")) == own and not capsys.readouterr().err
    append_actions(log_path(shared, "Ana"), [said(1, "accept")])
    assert corrections_folder(str(tmp_path / "det1")) == shared
    told = capsys.readouterr().err
    assert f"--corrections {own}" in told and len(told.splitlines()) == 2
    append_actions(log_path(own, "Ana"), [said(1, "accept")])
    assert corrections_folder(str(tmp_path / "det1")) == own and not capsys.readouterr().err


def test_an_undo_takes_back_and_undoing_it_brings_back():
    log = [said(1, "accept"), said(2, "reject"), undo(3, 2)]
    assert [a.action for a in standing(log)] == ["accept"]
    assert [a.action for a in standing([*log, undo(4, 3)])] == ["accept", "reject"]
    assert [a.action for a in standing([*log, undo(4, 2, "Bo")])] == ["accept"]  # Bo undoes nothing of Ana's


def test_the_last_word_counts_and_each_action_changes_only_what_it_is_about():
    log = [
        said(1, "change", begin_s=1.5, low_hz=600.0, score=0.4),
        said(2, "name", label="frog", score=0.4),
        said(3, "reject", score=0.4),
    ]
    box = fold_log(log)["Ana"].boxes["d1"]
    assert (box.begin_s, box.low_hz, box.label, box.verdict, box.is_changed) == (
        1.5,
        600.0,
        "frog",
        "wrong",
        True,
    )
    assert fold_log([*log, said(4, "accept", score=0.4)])["Ana"].boxes["d1"].verdict == "right"


def test_a_drawn_box_that_is_rejected_or_whose_drawing_is_undone_is_gone():
    drawn = [said(1, "draw", box="drawn-x"), said(2, "name", box="drawn-x", label="frog")]
    assert fold_log(drawn)["Ana"].boxes["drawn-x"].label == "frog"
    assert not fold_log([*drawn, said(3, "reject", box="drawn-x")])["Ana"].boxes
    assert not fold_log([*drawn, undo(3, 1)])["Ana"].boxes


def test_spans_that_touch_are_one():
    assert merged_spans([Span(5, 6), Span(0, 2), Span(1, 3), Span(3, 4)]) == (Span(0, 4), Span(5, 6))


def test_what_anybody_looked_at_was_looked_at():
    log = [
        said(1, "looked", begin_s=0.0, end_s=10.0),
        said(2, "looked", "Bo", begin_s=5.0, end_s=20.0),
        said(3, "looked", "Bo", begin_s=30.0, end_s=40.0),
        undo(4, 3, "Bo"),
    ]
    assert looked_at(fold_log(log)) == {"r1": (Span(0.0, 20.0),)}


def test_a_majority_decides_and_a_tie_is_disputed():
    log = [said(1, "accept", "Ana"), said(2, "reject", "Bo")]
    (box,) = agreed_boxes(fold_log(log))
    assert (box.num_right, box.num_wrong, box.is_disputed) == (1, 1, True)
    (box,) = agreed_boxes(fold_log([*log, said(3, "reject", "Cy")]))
    assert (box.box.verdict, box.is_disputed) == ("wrong", False)


def test_names_that_differ_are_told_and_the_most_frequent_is_taken():
    log = [said(n, "name", who, label=label) for n, who, label in
           [(1, "Ana", "frog"), (2, "Bo", "toad"), (3, "Cy", "frog")]]  # fmt: skip
    (box,) = agreed_boxes(fold_log(log))
    assert (box.box.label, box.names) == ("frog", ("frog", "toad"))
    (note,) = name_notes([box])
    assert note.startswith("of 1 calls reviewers give different names: the one that most give is kept")
    assert note.endswith("at 1.00 s: frog, not toad)")


@pytest.mark.parametrize("names", [("toad", "frog"), ("frog", "toad")])
def test_a_call_that_as_many_name_otherwise_has_no_name_whoever_comes_first_by_name(names):
    log = [said(n, "name", who, label=label) for n, (who, label) in enumerate(zip(("Ana", "Bo"), names), 1)]
    (box,) = agreed_boxes(fold_log(log))
    assert (box.box.label, box.box.verdict, set(box.names)) == ("", "right", {"frog", "toad"})
    (note,) = name_notes([box])
    assert (
        note.startswith("of 1 calls as many reviewers give one name as another")
        and f"{names[0]} or {names[1]}" in note
    )
    unsure = said(3, "name", "Cy", label="unknown")  # no voice for any name
    assert agreed_boxes(fold_log([*log, unsure]))[0].box.label == ""
    assert name_notes(agreed_boxes(fold_log([log[0], unsure]))) == []


def test_boxes_that_two_people_drew_around_one_call_are_one():
    log = [
        said(1, "draw", "Ana", "drawn-a", begin_s=1.0, end_s=2.0),
        said(2, "draw", "Bo", "drawn-b", begin_s=1.2, end_s=2.0),  # IoU 0.8
        said(3, "draw", "Bo", "drawn-c", begin_s=1.6, end_s=2.0),  # IoU 0.4 with Ana's
    ]
    found = agreed_boxes(fold_log(log))
    assert [(a.box.begin_s, a.num_right) for a in found] == [(1.2, 2), (1.6, 1)]


def test_who_went_past_a_drawn_box_speaks_against_it():
    drawn = said(1, "draw", "Ana", "drawn-a")
    past = said(2, "looked", "Bo", begin_s=0.0, end_s=10.0)
    (box,) = agreed_boxes(fold_log([drawn, past]))
    assert box.is_disputed
    aside = said(2, "looked", "Bo", begin_s=1.5, end_s=10.0)  # saw half of it only
    (box,) = agreed_boxes(fold_log([drawn, aside]))
    assert (box.num_right, box.num_wrong) == (1, 0)
    agreeing = said(3, "accept", "Bo", "d7")  # a detection at the same place
    found = {a.box.box_id: a for a in agreed_boxes(fold_log([drawn, past, agreeing]))}
    assert found["drawn-a"].num_wrong == 0


def test_agreement_is_counted_on_what_both_judged():
    verdicts = {"Ana": "yyyynn", "Bo": "yyynnn"}
    log = [
        said(n, "accept" if v == "y" else "reject", who, f"d{n}")
        for who, row in verdicts.items()
        for n, v in enumerate(row)
    ]
    (row,) = agreements(fold_log([*log, said(9, "accept", "Ana", "d9")]))
    assert (row.num_both, row.num_same) == (6, 5)
    # by chance 4/6 * 3/6 + 2/6 * 3/6 = 1/2, so kappa = (5/6 - 1/2) / (1/2) = 2/3
    assert row.kappa == pytest.approx(2 / 3)


def test_random_verdicts_are_those_drawn_at_random_also_when_met_elsewhere_before():
    log = [
        said(1, "accept", box="d1", score=0.9, queue="random"),
        said(2, "reject", box="d2", score=0.8, queue="uncertain"),
        said(3, "reject", box="d3", score=0.3, queue="uncertain"),
        said(4, "reject", box="d3", score=0.3, queue="random"),
        said(5, "draw", box="drawn-a", queue="random"),
    ]
    found = random_verdicts(agreed_boxes(fold_log(log)))
    assert dict(zip(found.detection_id, found.is_right)) == {"d1": True, "d3": False}
