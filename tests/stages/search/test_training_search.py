"""What a search that goes on tells its searcher and its scheduler."""

from dataclasses import replace
from datetime import UTC, datetime
from types import MappingProxyType, SimpleNamespace
from typing import NamedTuple

import pytest
import torch
from small_archive import small_config

from mast_ray.config.errors import ConfigError, DataError
from mast_ray.config.loading import apply_overrides
from mast_ray.self_training.trial_records import LAST, Diary, TrialRecord, read_trials, trial_name
from mast_ray.stages.runner import HERE
from mast_ray.stages.search.trial import TrialTask, TrialWorker
from mast_ray.stages.search.tune import (
    _best_sample,
    _Search,
    best_rows,
    rounds_of,
    run_tune,
    search_key,
    usable_pool,
)
from mast_ray.stages.self_train.operator_task import Teacher
from mast_ray.storage.stage_folders import write_manifest
from mast_ray.storage.storage import open_storage

pytest.importorskip("ray.tune")
from mast_ray.on_ray.trials import scheduler, searcher
from mast_ray.stages.search.training_search import first_point, search_ranges, search_training


def _record(value: float, status: str, objectives: tuple[float, ...]) -> TrialRecord:
    sample = {"lambda_iou": value, "threshold": 0.2}
    result = {"objective": objectives[-1]} if objectives else {}
    return TrialRecord(trial_name(sample), sample, value, objectives, 1.0, status, result)


KNOWN = [
    _record(1.0, "done", (0.3, 0.4, 0.6)),
    _record(2.0, "stopped early", (0.2,)),
    _record(3.0, "open", (0.5,)),
]


def _config(**knobs):
    return small_config(**{"tune.parameters": ("lambda_iou", "threshold"), **knobs})


def _searcher(config, known):
    return searcher(config, search_ranges(config, 0.2), first_point(config, 0.2), known)


def test_a_new_search_begins_with_the_settings_as_they_are():
    config = _config()
    first = _searcher(config, []).suggest("a")
    assert first == {"lambda_iou": config.self_train.stage1.lambda_iou, "threshold": 0.2}


def test_optuna_goes_on_with_what_was_under_way_and_knows_what_is_finished():
    config = _config()
    found = _searcher(config, KNOWN)
    assert [(t.params, t.value) for t in found._ot_study.trials if t.state.is_finished()] == [
        (KNOWN[0].sample, 0.6),
        (KNOWN[1].sample, 0.2),
    ]
    assert found.suggest("a") == KNOWN[2].sample
    new = found.suggest("b")
    low, high = search_ranges(config, 0.2)["lambda_iou"]
    assert low <= new["lambda_iou"] <= high and new not in [record.sample for record in KNOWN]


def test_a_search_that_goes_on_does_not_propose_again_what_it_had():
    config = _config()
    fresh = _searcher(config, [])
    before = [fresh.suggest(str(number)) for number in range(4)]
    known = [
        TrialRecord(trial_name(s), s, float(n), (0.1,), 1.0, "done", {"objective": 0.1})
        for n, s in enumerate(before)
    ]
    later = _searcher(config, known)
    assert all(later.suggest(f"x{number}") not in before for number in range(4))


def test_halving_stops_a_trial_that_is_worse_than_trials_of_an_earlier_start(tmp_path):
    stage = open_storage(tmp_path)
    config = _config(**{"tune.epochs_stage1": 2, "tune.epochs_stage2": 1})
    poor = SimpleNamespace(trial_id="poor", config={"lambda_iou": 9.0})
    report = {"epochs": 1, "objective": 0.1}
    fresh = scheduler(config, stage, [])
    fresh.on_trial_add(None, poor)
    assert fresh.on_trial_result(None, poor, report) == "CONTINUE"  # nothing to compare with
    told = scheduler(config, stage, KNOWN)
    told.on_trial_add(None, poor)
    assert told.on_trial_result(None, poor, report) == "STOP"
    assert stage.stat(f"trials/{trial_name(poor.config)}/stopped.json") is not None
    good = SimpleNamespace(trial_id="good", config={"lambda_iou": 8.0})
    told.on_trial_add(None, good)
    assert told.on_trial_result(None, good, report | {"objective": 0.9}) == "CONTINUE"
    assert told.set_search_properties("objective", "max")
    assert read_trials(stage) == []  # telling history writes nothing but the stop


class _Trial(NamedTuple):
    trial_id: str
    config: MappingProxyType = MappingProxyType({"lambda_iou": 9.0})

    def __hash__(self):
        return hash(self.trial_id)


def test_the_median_of_trials_of_an_earlier_start_stops_what_is_below_it(tmp_path):
    stage = open_storage(tmp_path)
    config = _config(**{"tune.scheduler": "median", "tune.epochs_stage1": 2, "tune.epochs_stage2": 1})
    # Tune counts the last report of a finished trial twice: means 0.23, 0.33 and 0.73
    known = [
        _record(1.0, "done", (0.1, 0.3)),
        _record(2.0, "done", (0.2, 0.4)),
        _record(3.0, "done", (0.6, 0.8)),
    ]
    below, above, fresh = _Trial("below"), _Trial("above"), scheduler(config, stage, known[:2])
    told = scheduler(config, stage, known)
    for trial, value, action in ((below, 0.32, "STOP"), (above, 0.34, "CONTINUE")):
        told.on_trial_add(None, trial)
        assert told.on_trial_result(None, trial, {"epochs": 2, "objective": value}) == action
    assert stage.stat(f"trials/{trial_name(below.config)}/stopped.json") is not None
    fresh.on_trial_add(None, below)  # two trials are too few to say
    assert fresh.on_trial_result(None, below, {"epochs": 2, "objective": 0.0}) == "CONTINUE"


def test_a_search_without_early_stopping_has_no_scheduler(tmp_path):
    assert scheduler(_config(**{"tune.scheduler": "none"}), open_storage(tmp_path), KNOWN) is None


@pytest.mark.parametrize("knob", ["augment.zoom", "split.budget_chunks"])
def test_a_finished_search_is_not_that_of_students_who_learn_otherwise(knob):
    config = _config()
    other = apply_overrides(config, {knob: 3})
    assert search_key(other, "both") != search_key(config, "both")
    assert search_key(other, "post") == search_key(config, "post")  # trains nobody


def test_truth_of_the_pool_is_not_what_a_trial_has(tmp_path):
    config = _config(**{"self_train.curriculum": "ceiling"})
    with pytest.raises(ConfigError, match="no truth of the pool"):
        run_tune(config, str(tmp_path), str(tmp_path), str(tmp_path / "out"))


def test_trials_of_other_settings_are_no_part_of_a_search(tmp_path):
    config = _config(**{"tune.trials": 1})
    task = TrialTask(config, "prepared", "detector", "pool", Teacher("sha", 0.2, 0.0, 1), str(tmp_path))
    sample = {"lambda_iou": 1.0, "threshold": 0.2}
    folder = open_storage(tmp_path).at(f"trials/{trial_name(sample)}")
    Diary(folder, sample, lambda metrics: None).tell({"objective": 0.5}, LAST)
    assert [row["objective"] for row in search_training(task, 0.2)] == [0.5]
    free = {"self_train.rounds": 3, "evaluate.batch_size": 2, "tune.concurrent": 1}
    search_training(replace(task, config=apply_overrides(config, free)), 0.2)
    others = {"self_train.stage1.learning_rate": 9e-4, "evaluate.iou": 0.4, "labels.time_only": "teach"}
    for knob, value in (others | {"spectrogram.min_remnant_s": 0.3}).items():
        with pytest.raises(ConfigError, match=f"begun with {knob}"):
            search_training(replace(task, config=apply_overrides(config, {knob: value})), 0.2)
    with pytest.raises(ConfigError, match=r"begun with teacher\.threshold"):
        search_training(replace(task, teacher=Teacher("sha", 0.3, 0.0, 1)), 0.2)


@pytest.mark.parametrize(
    ("curriculum", "training"),
    [("two_stage", "stage1"), ("mixed_then_expert", "mixed"), ("control", "control")],
)
def test_a_search_leaves_no_training_state_of_trials_that_were_stopped(tmp_path, curriculum, training):
    config = _config(**{"tune.trials": 1, "self_train.curriculum": curriculum})
    task = TrialTask(config, "prepared", "detector", "pool", Teacher("sha", 0.2, 0.0, 1), str(tmp_path))
    sample = {"lambda_iou": 1.0, "threshold": 0.2}
    folder = open_storage(tmp_path).at(f"trials/{trial_name(sample)}")
    folder.at(training).write_atomic("checkpoints/step-0000000008/weights.safetensors", b"of a poor trial")
    own = folder.local_path("")
    for place in (own, own / training, own / training / "checkpoints"):  # killed while it wrote
        (place / ".tmp-0123456789abcdef").write_bytes(b"half a file")
    (own / ".tmp-notes").write_text("somebody's own")
    Diary(folder, sample, lambda metrics: None).tell({"objective": 0.5}, LAST)
    search_training(task, 0.2)
    assert [path.name for path in own.rglob(".tmp*")] == [".tmp-notes"]
    assert not (own / training / "checkpoints").exists()
    assert not list(folder.at(training).list("checkpoints"))


def test_a_trial_that_goes_on_remembers_its_best_of_the_stage(tmp_path):
    def told_by(stage, *validations):
        diary = Diary(open_storage(tmp_path), {"lambda_iou": 1.0}, heard.append)
        worker = TrialWorker(torch.device("cpu"), diary, {"stage": stage})
        for step, f1 in validations:
            worker.report({"step": float(step), "f1": f1})

    heard: list[dict] = []
    told_by("stage1", (4, 0.3), (8, 0.6), (12, 0.5))
    told_by("stage1", (8, 0.6), (12, 0.5), (16, 0.4))  # killed: on from the checkpoint of step 4
    told_by("stage2", (4, 0.2))
    assert [report["objective"] for report in heard] == [0.3, 0.6, 0.6, 0.6, 0.6, 0.6, 0.2]
    heard.clear()
    told_by("stage1", (12, 0.5))
    assert heard[0]["objective"] == 0.6  # as if it had never been killed


def test_trials_that_find_nothing_choose_no_setting(caplog):
    rows = [{"trial": "a", "config.lambda_cls": 1.0, "objective": 0.0}]
    assert _best_sample(rows, "training", "val") == ({}, 0.0)
    assert caplog.messages == ["no trial finds a call of val: no setting is chosen by that"]
    rows += [{"trial": "b", "config.lambda_cls": 2.0, "objective": 0.1}]
    assert _best_sample(rows, "training", "val") == ({"lambda_cls": 2.0}, 0.1)


def test_a_trial_that_was_stopped_early_does_not_win_by_the_figure_of_another_stage(caplog):
    """Its 0.7 is of stage 1, on pseudo-labels alone; the other's 0.6 is what its student ends with."""
    stopped = {
        "trial": "a",
        "status": "stopped early",
        "config.lambda_cls": 1.0,
        "objective": 0.7,
        "objective_of": "stage1",
    }
    done = {
        "trial": "b",
        "status": "done",
        "config.lambda_cls": 2.0,
        "objective": 0.6,
        "objective_of": "final",
    }
    assert _best_sample([stopped, done], "training", "val") == ({"lambda_cls": 2.0}, 0.6)
    assert [row["trial"] for row in best_rows([stopped, done])] == ["b", "a"]
    assert _best_sample([stopped], "training", "val") == ({}, 0.0)
    assert "every trial was stopped early" in caplog.messages[-1]


def test_a_search_writes_nothing_into_the_rounds_whose_detections_it_takes_up(tmp_path):
    """They were scored with what the detector's card said then, and are the record of that."""
    rounds, stage = open_storage(tmp_path / "rounds"), open_storage(tmp_path / "tune")
    search = _Search(_config(), "data", None, "model", stage, HERE, rounds, False)
    assert search.evaluation.url == f"{stage.url}/evaluation"
    assert search.known.known == (f"{rounds.url}/round0/evaluation",)
    inputs = {"model": "sha", "prepared": "data"}
    assert usable_pool(search.pool, stage.at("detections"), False, inputs).url == f"{stage.url}/detections"
    write_manifest(search.pool, "pseudo-label", _config(), "key", inputs, {}, datetime.now(UTC))
    assert usable_pool(search.pool, stage.at("detections"), False, inputs).url == search.pool.url


def test_stored_rounds_are_those_of_this_detector_and_archive(tmp_path):
    config, folder = _config(), str(tmp_path / "rounds")
    with pytest.raises(DataError, match="holds no finished round 0") as refused:
        rounds_of(folder, "sha", "data", config)
    assert "--self-trained" in str(refused.value) and not (tmp_path / "rounds").exists()
    stage, now = open_storage(folder).at("round0/evaluation"), datetime.now(UTC)
    write_manifest(stage, "evaluate", config, "key", {"model": "sha", "prepared": "data"}, {}, now)
    assert rounds_of(folder, "sha", "data", config).url == folder
    for model, data, word in (("other", "data", "another detector"), ("sha", "other", "another archive")):
        with pytest.raises(ConfigError, match=word):
            rounds_of(folder, model, data, config)


def test_ranges_lie_around_the_threshold_of_validation():
    low, high = search_ranges(_config(), 0.4)["threshold"]
    assert low == pytest.approx(0.1) and high == pytest.approx(0.76)
