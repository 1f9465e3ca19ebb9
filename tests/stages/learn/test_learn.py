"""A round from corrections to new detections, with a detector that has learned nothing and two steps of training."""

import json
from datetime import UTC, datetime, timedelta

import pytest
from folder_content import content
from study_archive import TONES_HZ, make_study_archive, write_fresh_detector

from mast_ray.evaluation.review.corrections import Action, append_actions, log_path, stamped
from mast_ray.evaluation.review.verdicts import read_verdicts
from mast_ray.reporting.detection_tables import read_detections, read_recordings
from mast_ray.reporting.exports.rows import detection_id
from mast_ray.stages.learn.archive import sides_by_name
from mast_ray.stages.learn.places import find_run
from mast_ray.tables.prepared import open_prepared
from mast_ray.verbs.main import run_verb

pytestmark = pytest.mark.slow  # trains and detects
KNOBS = ("--recipe", "tiny", "--set", "evaluate.max_detections=20", "--set", "evaluate.bootstrap=50", "--set",
         "self_train.stage2.max_steps=2", "--set", "self_train.stage2.batch_size=4", "--set", "cluster.use_gpu=no")  # fmt: skip
NOW = datetime(2026, 1, 1, tzinfo=UTC)
LEFT_OUT = "S1/"
GROUPED = [f"S0/S0_2024050{day}_0{hour}0000.wav" for day, hour in ((1, 1), (1, 7), (2, 2), (2, 8))]


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    root = tmp_path_factory.mktemp("learn")
    prepared = make_study_archive(root)
    write_fresh_detector(root / "run" / "model", prepared)
    table = root / "table.csv"
    table.write_text("file,group,site,latitude\n" + "".join(f"{name},bird,Otava,60.5\n" for name in GROUPED))
    argv = [
        str(root / "run/model"),
        str(root / "archive"),
        "--out",
        str(root / "run/detections"),
        "--table",
        str(table),
    ]
    argv += ["--exclude", f"{LEFT_OUT}*", "--set", "audio.timezone=Asia/Makassar"]
    assert run_verb("detect", [*argv, "--runner", "here", *KNOBS]) == 0
    table.unlink()  # a round does without it
    review(root / "run")
    return root


def review(run):
    """Four recordings are gone through: their tones are drawn and named; some detections elsewhere are judged at random."""
    recordings = read_recordings(str(run / "detections")).to_pylist()
    actions = []

    def add(**fields):
        name = f"{len(actions):016x}"
        actions.append(stamped(Action(reviewer="Ana", **fields), NOW + timedelta(seconds=len(actions)), name))

    for number, row in enumerate(recordings[:6]):
        where = {"recording_id": row["recording_id"], "path": row["path"]}
        add(action="looked", **where, begin_s=0.0, end_s=16.0)
        for place, begin in enumerate(range(1, 15, 3)):
            label = ("low", "high")[(place + number) % 2]
            edges = {"low_hz": TONES_HZ[label] - 200, "high_hz": TONES_HZ[label] + 200}
            add(action="draw", **where, begin_s=float(begin), end_s=begin + 1.0, label=label, **edges)
    others = [
        row
        for row in read_detections(str(run / "detections"), 0.05).to_pylist()
        if row["path"] == recordings[7]["path"]
    ]
    for number, row in enumerate(others[:4]):
        box = {
            name: row[name]
            for name in ("begin_s", "end_s", "low_hz", "high_hz", "score", "recording_id", "path")
        }
        name = detection_id(*(row[part] for part in ("path", "begin_s", "end_s", "low_hz", "high_hz")))
        add(action="reject" if number else "accept", box_id=name, detection_id=name, queue="random", **box)
    add(action="reject", box_id="of another run", detection_id="of another run", queue="random", **box)
    append_actions(log_path(run / "corrections", "Ana"), actions)


def test_a_round_keeps_the_better_model_and_leaves_the_run_alone(root, capsys, monkeypatch):
    before = content(root / "run")
    assert (
        run_verb("learn", [str(root / "run"), "--minutes", "0.1", *KNOBS]) == 0
    )  # knows its model and recordings itself
    said = capsys.readouterr().out
    assert "heard as the detections were made: audio.timezone=Asia/Makassar (" in said
    assert content(root / "run") == before
    record = json.loads((root / "run-2" / "learn.json").read_text())
    held = record["held_out"]
    assert (record["kept"] == "adapted") == (held["gain"]["estimate"] > 0)
    assert f"the {'adapted' if record['kept'] == 'adapted' else 'present'} detector" in said
    assert record["names"]["labels"] == ["high", "low"] and record["names"]["what"] == "new"
    found = read_detections(str(root / "run-2" / "detections"))
    assert set(found.column("label").to_pylist()) <= {"high", "low", "unknown"}
    changes = (root / "run-2" / "changes.csv").read_text().splitlines()
    assert len(changes) - 1 == sum(record["changes"].values()) > 0
    assert content(root / "run-2" / "corrections") == content(root / "run" / "corrections")

    verdicts = read_verdicts(root / "run-2" / "verdicts.csv")
    assert verdicts.is_drawn and verdicts.is_right.tolist().count(True) == 1
    assert f"by {len(verdicts.is_right)} boxes drawn at random: 0.250" in said

    archive = open_prepared(str(root / "run-2" / "prepared"))
    assert set(archive.splits.column("split").to_pylist()) == {"train", "val"}
    path_of = dict(zip(archive.recording_ids, archive.recordings.column("path").to_pylist(), strict=True))
    side_of = {path_of[row["recording_id"]]: row["split"] for row in archive.splits.to_pylist()}
    assert len({sides_by_name(side_of, 0)[name] for name in GROUPED}) == 2  # one by one on both sides
    assert len({side_of[name] for name in GROUPED}) == 1
    known = ("path", "group", "site", "latitude", "start_utc", "time_source")
    first, again = (
        read_recordings(str(root / run / "detections")).select(known).to_pylist() for run in ("run", "run-2")
    )
    assert first == again and not any(row["path"].startswith(LEFT_OUT) for row in again)
    assert {row["path"] for row in again if row["site"] == "Otava"} == set(GROUPED)
    unheard = [row for row in archive.ignored.to_pylist() if row["why"] == "not_gone_through"]
    assert unheard  # the recording in which boxes were judged one by one
    place = find_run(str(root / "run-2"))  # ready for the next round
    assert place.model.endswith("run-2/model") and place.dealt.endswith("run-2/prepared")
    assert place.labels == "" and len(place.rounds) == 1
    made = content(root / "run-2")
    assert run_verb("learn", [str(root / "run"), "--minutes", "0.1", *KNOBS]) == 0
    assert "already done, skipping" in capsys.readouterr().out and content(root / "run-2") == made


def test_what_cannot_be_learned_from_is_told(root, capsys):
    empty = root / "empty"
    assert (
        run_verb("learn", [str(root / "run"), "--corrections", str(empty), "--out", str(root / "x"), *KNOBS])
        == 3
    )
    assert "names no call" in capsys.readouterr().err
    assert run_verb("learn", [str(root / "archive"), *KNOBS]) == 3
    assert "holds no detections" in capsys.readouterr().err
    assert run_verb("learn", [str(root / "run"), "--model", "shipped_tiny_not_there", *KNOBS]) == 3
    assert run_verb("learn", [str(root / "run"), "--minutes", "0", *KNOBS]) == 2
    assert run_verb("learn", [str(root / "run"), "--out", str(root / "run"), *KNOBS]) == 3
    assert "not to be touched" in capsys.readouterr().err
