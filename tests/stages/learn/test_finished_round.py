"""`mast learn` on a finished output: nothing to do where it is the same round, refused where it is another one."""

import json
from datetime import UTC, datetime

import pytest

from mast_ray.config.recipes import tiny
from mast_ray.evaluation.review.corrections import Action, append_actions, log_path, stamped
from mast_ray.stages.learn import learn as rounds
from mast_ray.stages.learn import places
from mast_ray.stages.learn.learn import round_before, round_key
from mast_ray.stages.learn.places import LearnedRun
from mast_ray.training.files.shipped import shipped_model
from mast_ray.verbs.main import run_verb

NOW = datetime(2026, 1, 1, tzinfo=UTC)
KNOBS = ("--recipe", "tiny", "--set", "cluster.use_gpu=no")


def accept(folder, name):
    """A reviewer accepts one more box."""
    where = {"recording_id": "a", "path": "a.wav", "box_id": name, "begin_s": 1.0, "end_s": 2.0}
    action = Action("accept", "Ana", low_hz=1e3, high_hz=2e3, **where)
    append_actions(log_path(folder, "Ana"), [stamped(action, NOW, name)])


@pytest.fixture
def place(tmp_path):
    accept(tmp_path / "corrections", "0" * 16)
    urls = (str(tmp_path / "run"), str(tmp_path / "run/detections"), shipped_model("tiny"), str(tmp_path))
    return LearnedRun(*urls, tmp_path / "corrections", "", "")


@pytest.fixture
def finished(place, tmp_path):
    """The record of a round of one minute in which nothing became better."""
    (tmp_path / "out").mkdir()
    record = {"changes": None, "key": round_key(tiny(), place, 1.0)}
    (tmp_path / "out" / "learn.json").write_text(json.dumps(record))
    return str(tmp_path / "out")


def test_a_round_is_the_same_with_the_same_corrections_settings_and_minutes(place, finished, tmp_path):
    assert round_before(tiny(), place, finished, 1.0) is not None
    assert round_before(tiny(), place, str(tmp_path / "nothing"), 1.0) is None
    assert round_before(tiny(), place, finished, 2.0) is None
    assert round_before(tiny().model_copy(update={"seed": 1}), place, finished, 1.0) is None
    accept(place.corrections, "1" * 16)
    assert round_before(tiny(), place, finished, 1.0) is None


def test_the_same_command_again_has_nothing_to_do_and_another_round_is_refused(
    place, finished, tmp_path, capsys, monkeypatch
):
    monkeypatch.setattr(places, "find_run", lambda *_: place)
    monkeypatch.setattr(rounds, "what_was_said", lambda _: pytest.fail("it learns again"))
    argv = [place.run, "--out", finished, "--minutes", "1", *KNOBS]
    assert run_verb("learn", argv) == 0
    said = capsys.readouterr().out
    assert said.startswith(f"already done, skipping: {finished}\n") and f"mast review {finished}" in said
    accept(place.corrections, "1" * 16)
    assert run_verb("learn", argv) == 3
    said = capsys.readouterr().err.strip()
    assert "a finished round of other corrections or settings" in said and "another --out" in said
    assert len(said.splitlines()) <= 3
