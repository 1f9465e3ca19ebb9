"""What a reviewer does is on disk at once and comes back as it was."""

import json
import sys
import threading
from dataclasses import replace
from datetime import UTC, datetime

import numpy as np
import pytest
from review_run import write_run

from mast_ray.config.errors import DataError
from mast_ray.evaluation.review.corrections import Action, append_actions
from mast_ray.stages.review.found_boxes import detections_of, load_boxes
from mast_ray.stages.review.session import ReviewSession
from mast_ray.storage.storage import open_storage


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    run, audio = write_run(tmp_path_factory.mktemp("session"))
    return load_boxes(detections_of(str(run)), open_storage(audio), 0.5)


@pytest.fixture()
def folder(tmp_path):
    return tmp_path / "corrections"


def lines(folder, reviewer="Ana"):
    return [json.loads(line) for line in (folder / f"{reviewer}.jsonl").read_text().splitlines()]


def test_every_action_is_a_line_before_it_is_answered(found, folder):
    session = ReviewSession(found, folder, "Ana")
    for count, (kind, more) in enumerate(
        [
            ("accept", {"box_ids": [found.ids[0]]}),
            ("reject", {"box_ids": [found.ids[1]]}),
            ("name", {"box_ids": [found.ids[2]], "label": "  Rana   temporaria "}),
            ("change", {"box_ids": [found.ids[3]], "corners": (11.0, 900.0, 12.0, 1800.0)}),
            ("draw", {"recording": 0, "corners": (20.0, 500.0, 21.0, 900.0)}),
            ("looked", {"recording": 0, "corners": (0.0, 0.0, 10.24, 8000.0)}),
        ],
        start=1,
    ):
        session.act(kind, "uncertain", **more)
        assert len(lines(folder)) == count
    assert lines(folder)[2]["label"] == "Rana temporaria"


def test_started_again_everything_is_there(found, folder):
    first = ReviewSession(found, folder, "Ana")
    first.act("accept", "random", [found.ids[0]])
    first.act("change", "random", [found.ids[0]], corners=(1.1, 900.0, 2.0, 1500.0))
    (drawn,) = first.act("draw", "random", recording=1, corners=(20.0, 500.0, 21.0, 900.0), label="Rana")
    first.act("looked", "random", recording=1, corners=(0.0, 0.0, 30.0, 8000.0))
    again = ReviewSession(found, folder, "Ana")
    assert again.box_json(0) == first.box_json(0)
    assert again.box_json(0)["begin_s"] == 1.1 and again.box_json(0)["verdict"] == "right"
    assert drawn in again.boxes_within(1, 19.0, 22.0)
    assert again.has_looked(1, 5.0, 25.0) and not again.has_looked(0, 5.0, 25.0)
    assert again.met_at_random.tolist() == [True] + [False] * 23


def test_undo_takes_back_one_press_also_after_a_restart(found, folder):
    session = ReviewSession(found, folder, "Ana")
    session.act("accept", "uncertain", [found.ids[0]])
    session.act("reject", "cluster", list(found.ids[1:5]))
    session = ReviewSession(found, folder, "Ana")
    assert np.flatnonzero(session.verdict).tolist() == [0, 1, 2, 3, 4]
    assert {box["verdict"] for box in session.undo()} == {""}
    assert np.flatnonzero(session.verdict).tolist() == [0]
    session.redo()
    assert np.flatnonzero(session.verdict).tolist() == [0, 1, 2, 3, 4]
    session.undo()
    session.undo()
    assert session.undo() == []
    assert not ReviewSession(found, folder, "Ana").verdict.any()


def test_an_undone_drawing_is_gone_and_redone_is_back(found, folder):
    session = ReviewSession(found, folder, "Ana")
    (box,) = session.act("draw", "recording", recording=0, corners=(5.0, 500.0, 6.0, 900.0))
    assert session.undo() == [{"id": box["id"], "recording": 0, "gone": True}]
    assert session.redo() == [box]


def test_corners_are_put_in_order_and_inside_the_recording(found, folder):
    session = ReviewSession(found, folder, "Ana")
    (box,) = session.act("draw", "recording", recording=0, corners=(31.0, 9000.0, 29.0, -5.0))
    assert (box["begin_s"], box["end_s"], box["low_hz"], box["high_hz"]) == (29.0, 30.0, 0.0, 8000.0)


@pytest.mark.parametrize(
    "wrong",
    [
        {"kind": "accept", "box_ids": ["../../etc/passwd"]},
        {"kind": "accept", "box_ids": []},
        {"kind": "draw", "recording": 99, "corners": (0, 0, 1, 1)},
        {"kind": "draw", "recording": 0, "corners": (0, 0, float("nan"), 1)},
        {"kind": "name", "box_ids": ["first"], "label": "x" * 201},
        {"kind": "name", "box_ids": ["first"], "label": "a\x00b"},
    ],
)
def test_what_cannot_be_done_leaves_no_line(found, folder, wrong):
    session = ReviewSession(found, folder, "Ana")
    kind = wrong.pop("kind")
    if wrong.get("box_ids") == ["first"]:
        wrong["box_ids"] = [found.ids[0]]
    with pytest.raises(DataError):
        session.act(kind, "uncertain", **wrong)
    assert not (folder / "Ana.jsonl").exists()


def test_a_name_from_the_model_is_accepted_with_its_box(found, folder):
    session = ReviewSession(found, folder, "Ana")
    (box,) = session.act("accept", "uncertain", [found.ids[23]])
    assert box["label"] == lines(folder)[0]["label"] == found.label[23] != ""


def test_who_accepts_a_box_called_unknown_gives_it_no_name(found, folder):
    session = ReviewSession(replace(found, label=("unknown",) * len(found)), folder, "Ana")
    (box,) = session.act("accept", "uncertain", [found.ids[0]])
    assert box["label"] == "" and session.names() == []


def test_figures_count_precision_at_random_and_agreement(found, folder):
    above = [found.ids[row] for row in np.flatnonzero(found.score >= 0.5)][:5]
    session = ReviewSession(found, folder, "Ana")
    for name in above[:4]:
        session.act("accept", "random", [name])
    session.act("reject", "random", [above[4]])
    other = ReviewSession(found, folder, "Bo")
    other.act("accept", "random", above[:3])
    other.act("reject", "random", [above[3]])
    figures = session.figures()
    # the fourth is disputed and left out: 3 right of 4, Wilson's limits of which are 0.301 and 0.954
    assert figures["precision"]["num"] == 4 and figures["precision"]["right"] == 3
    assert (figures["precision"]["low"], figures["precision"]["high"]) == (
        pytest.approx(0.301, abs=0.001),
        pytest.approx(0.954, abs=0.001),
    )
    (row,) = figures["agreement"]
    assert (row["first"], row["second"], row["num_both"], row["num_same"]) == ("Ana", "Bo", 4, 3)
    assert figures["reviewers"] == ["Ana", "Bo"]


def test_a_verdict_on_the_box_that_the_threshold_was_taken_from_counts(found, folder):
    """Scores were kept with four digits: 0.54000002 became 0.54, below the threshold, and its verdict said nothing."""
    row = int(np.flatnonzero(found.score > 0.53)[0])
    at_its_score = replace(found, threshold=float(found.score[row]))
    session = ReviewSession(at_its_score, folder, "Ana")
    session.act("accept", "random", [found.ids[row]])
    assert lines(folder)[0]["score"] == found.score[row] != 0.54
    assert session.figures()["precision"]["num"] == 1


def as_another_model_finds_them(found, shift_s=0.1):
    moved = replace(found, begin_s=found.begin_s + shift_s, end_s=found.end_s + shift_s)
    return replace(moved, ids=tuple(f"new{name}" for name in found.ids))


def test_what_an_earlier_round_said_is_not_asked_again(found, folder):
    first = ReviewSession(found, folder, "Ana")
    first.act("name", "random", [found.ids[4]], label="Rana")
    first.act("reject", "random", [found.ids[5]])
    first.act("accept", "uncertain", [found.ids[6]])
    first.act("draw", "recording", recording=0, corners=(20.0, 500.0, 21.0, 900.0))
    end = datetime.now(UTC).isoformat()
    new = as_another_model_finds_them(found)
    new = replace(
        new, begin_s=np.where(np.arange(len(new)) == 6, 28.0, new.begin_s)
    )  # the accepted one is lost
    session = ReviewSession(new, folder, "Ana", rounds=(end,))
    assert [session.box_json(row)["verdict"] for row in (3, 4, 5, 6)] == ["", "right", "wrong", ""]
    assert session.box_json(4)["label"] == "Rana" and session.box_json(4)["begin_s"] == found.begin_s[4]
    figures = session.figures()
    assert figures["num_judged"] == 2 and figures["num_drawn"] == 2  # the lost call is shown by itself
    assert figures["precision"]["num"] == 0  # verdicts on another model's boxes say nothing about this one's
    assert not session.met_at_random.any()
    shown = {box["id"] for box in session.boxes_within(0, 0.0, 30.0)}
    assert found.ids[6] in shown and found.ids[4] not in shown
    session.act("reject", "random", [new.ids[4]])  # the last word is this round's
    assert session.box_json(4)["verdict"] == "wrong" and session.figures()["precision"]["num"] == 1
    session.undo()
    assert session.box_json(4)["verdict"] == "right" and session.figures()["precision"]["num"] == 0


def test_the_last_press_of_an_earlier_round_can_be_taken_back_and_is_open_again(found, folder):
    ReviewSession(found, folder, "Ana").act("accept", "random", [found.ids[4]])
    new = as_another_model_finds_them(found)
    session = ReviewSession(new, folder, "Ana", rounds=(datetime.now(UTC).isoformat(),))
    assert session.verdict[4] == 1 and session.figures()["num_judged"] == 1
    (changed,) = session.undo()
    assert (changed["id"], changed["verdict"]) == (new.ids[4], "")
    assert session.verdict[4] == 0 and session.figures()["num_judged"] == 0
    (changed,) = session.redo()
    assert (changed["verdict"], session.figures()["num_judged"]) == ("right", 1)


def test_a_box_drawn_in_this_round_stays_beside_the_detection_it_lies_on(found, folder):
    session = ReviewSession(found, folder, "Ana")
    corners = (
        float(found.begin_s[0]),
        float(found.low_hz[0]),
        float(found.end_s[0]),
        float(found.high_hz[0]),
    )
    (drawn,) = session.act("draw", "recording", recording=0, corners=corners)
    again = ReviewSession(found, folder, "Ana")
    assert again.box_json(0)["verdict"] == ""
    assert drawn["id"] in {box["id"] for box in again.boxes_within(0, 0.0, 30.0)}


def test_boxes_are_shown_while_others_are_drawn(found, folder):
    """The server answers in several threads, and a page in two tabs asks two things at once."""
    where, moment = found.recordings[0], "2026-11-19T00:00:00+00:00"
    many = [
        Action(
            "draw", "Ana", where.recording_id, where.path, f"drawn-{n}", "", 1.0, 2.0, id=f"{n}", time=moment
        )
        for n in range(2_000)
    ]
    append_actions(folder / "Ana.jsonl", many)
    session = ReviewSession(found, folder, "Ana")
    draws = threading.Thread(
        target=lambda: [
            session.act("draw", "recording", recording=1, corners=(3.0, 500.0, 4.0, 900.0)) for _ in range(10)
        ]
    )
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        draws.start()
        while draws.is_alive():
            assert session.boxes_within(1, 0.0, 1.0) == []
    finally:
        draws.join()
        sys.setswitchinterval(before)


@pytest.mark.parametrize("reader", ["Ana", "Ben"])
def test_what_one_person_said_on_two_computers_counts_together(found, folder, reader):
    """Ana's log of the other computer was put beside hers under another name."""
    other = ReviewSession(found, folder, "Ana")
    other.act("accept", "random", [found.ids[0]])
    other.act("looked", "recording", recording=0, corners=(0.0, 0.0, 10.0, 8000.0))
    (folder / "Ana.jsonl").rename(folder / "Ana field laptop.jsonl")
    here = ReviewSession(found, folder, "Ana")
    here.act("reject", "random", [found.ids[1]])
    here.act("looked", "recording", recording=0, corners=(20.0, 0.0, 30.0, 8000.0))
    state = ReviewSession(found, folder, reader).states()["Ana"]
    assert {name: box.verdict for name, box in state.boxes.items()} == {
        found.ids[0]: "right",
        found.ids[1]: "wrong",
    }
    assert state.spans == {found.recordings[0].recording_id: ((0.0, 10.0), (20.0, 30.0))}
