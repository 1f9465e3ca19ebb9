"""What a user sees of a search whose trials break."""

import logging
from types import SimpleNamespace

import pytest

from mast_ray.config.chatter import chatter_apart, chatter_file
from mast_ray.config.errors import DataError

pytest.importorskip("ray.tune")
import ray

from mast_ray.on_ray.trials import _Progress, _trainable, _tunes_words_apart, broken_trials, reason_of
from mast_ray.self_training.trial_records import LAST, Diary, read_trials, trial_name
from mast_ray.storage.storage import open_storage


def test_a_broken_trial_says_why_in_its_line(capsys, tmp_path):
    sample = {"lambda_iou": 1.0}
    trial = SimpleNamespace(
        config=sample, get_pickled_error=lambda: DataError("a shard is damaged:\nprepare again")
    )
    _Progress(2, [], open_storage(tmp_path)).on_trial_error(1, [], trial)
    assert capsys.readouterr().out.startswith(
        f"[1/2] trial {trial_name(sample)}: broke (a shard is damaged), "
    )


def test_a_trial_that_is_stopped_early_is_said_to_be_and_is_not_the_best(capsys, tmp_path):
    stage, told = open_storage(tmp_path), _Progress(3, [], open_storage(tmp_path))
    for number, (f1, at) in enumerate([(0.7, "stage1:4"), (0.6, LAST)]):
        sample = {"lambda_iou": float(number)}
        folder = stage.at(f"trials/{trial_name(sample)}")
        last = Diary(folder, sample, lambda metrics: None).tell({"objective": f1, "stage": "stage1"}, at)
        told.on_trial_complete(number, [], SimpleNamespace(config=sample, last_result=last))
    stopped, done = capsys.readouterr().out.splitlines()
    assert "stopped early at F1 0.7000 of stage1" in stopped
    assert "F1 0.6000, best 0.6000" in done


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (None, "no reason was given"),
        (
            ray.exceptions.WorkerCrashedError(),
            "Ray lost processes or machines that the work needed (WorkerCrashedError)",
        ),
        (RuntimeError("Traceback ...\n  File x\nValueError: of the library"), "ValueError: of the library"),
    ],
)
def test_reasons_are_a_line(error, reason):
    assert reason_of(error) == reason


def test_pages_of_tune_about_a_trial_are_kept_apart(caplog):
    with chatter_apart():
        with caplog.at_level(logging.ERROR), _tunes_words_apart():
            logging.getLogger("ray.tune.execution").error("Trial task failed", exc_info=ValueError("why"))
        with open(chatter_file(), encoding="utf-8") as file:
            assert "ValueError: why" in file.read()
    assert not caplog.records
    assert logging.getLogger("ray.tune").propagate


def test_a_trial_that_died_before_its_first_line_is_in_the_table_too(tmp_path):
    stage = open_storage(tmp_path)
    early, late, good = ({"lambda_iou": value} for value in (1.0, 2.0, 3.0))
    Diary(stage.at(f"trials/{trial_name(late)}"), late, lambda told: None).tell(
        {"objective": 0.5}, "stage1:4"
    )
    error = ray.exceptions.WorkerCrashedError()
    results = [
        SimpleNamespace(config=early, error=error),
        SimpleNamespace(config=late, error=error),
        SimpleNamespace(config=good, error=None),
    ]
    assert list(broken_trials(results, stage)) == [trial_name(early), trial_name(late)]
    assert {r.name: (r.sample, r.objectives, r.status) for r in read_trials(stage)} == {
        trial_name(early): (early, (), "open"),
        trial_name(late): (late, (0.5,), "open"),
    }


def test_a_warning_of_a_trial_is_a_line_like_any_other(monkeypatch, capsys):
    monkeypatch.setattr(logging.getLogger(), "handlers", [])
    monkeypatch.setattr(logging.getLogger(), "level", logging.WARNING)
    _trainable(
        {},
        lambda sample, report, threads: logging.getLogger("mast.training").warning("a checkpoint is lost"),
        1,
    )
    assert capsys.readouterr().err == "a checkpoint is lost\n"
