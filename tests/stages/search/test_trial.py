"""A trial of the training search, in this process."""

import pyarrow.parquet as pq
import pytest
import torch
from seed_detector import write_seed_detector
from small_archive import make_prepared, small_config

from mast_ray.config.errors import ConfigError
from mast_ray.stages.runner import HERE
from mast_ray.stages.search.trial import TrialTask, run_trial
from mast_ray.stages.search.tune import run_tune
from mast_ray.stages.self_train.operator_task import Teacher
from mast_ray.stages.self_train.pseudo_label import run_pseudo_label
from mast_ray.stages.self_train.self_train import run_self_train
from mast_ray.training.files.model_files import read_card, read_model
from mast_ray.training.files.shipped import shipped_model

pytestmark = pytest.mark.slow
KNOBS = {
    "self_train.curriculum": "stage1_only",
    "self_train.stage1.batch_size": 4,
    "self_train.stage1.max_steps": 1,
    "self_train.stage1.learning_rate": 1e-12,  # whoever begins with the teacher's weights ends with them
    "self_train.stage1.weight_decay": 0.0,
    "tune.epochs_stage1": 1,
    "evaluate.max_detections": 20,
}


def test_a_student_that_begins_with_no_weights_does_so_in_a_trial_too(tmp_path):
    archive = make_prepared(tmp_path / "small", num_recordings=4, seconds=12)
    config = small_config(**KNOBS)
    detector = write_seed_detector(config, archive, tmp_path / "detector")
    run_pseudo_label(config, detector, str(archive), str(tmp_path / "pool"), runner=HERE)
    teacher = Teacher(read_card(detector).weights_sha256, 0.4, 0.0, 1)
    theirs, _ = read_model(detector, "detector")
    for student, is_its_teacher in (("teacher", True), ("fresh", False)):
        own = small_config(**KNOBS | {"self_train.student": student})
        out = tmp_path / student
        task = TrialTask(own, str(archive), detector, str(tmp_path / "pool"), teacher, str(out))
        run_trial(task, {"threshold": 0.4}, lambda metrics: None)
        (folder,) = out.glob("trials/*/stage1")
        weights, _ = read_model(folder, "detector")
        kernel = "head.score.weight"
        assert torch.allclose(weights[kernel], theirs[kernel], atol=1e-6) == is_its_teacher


@pytest.mark.ray
def test_pseudo_labels_of_a_trial_are_those_of_the_rounds_that_it_is_tried_for(tmp_path):
    """Where the threshold is not searched, a policy by site and hour kept the best box alone of every group in a trial."""
    archive = make_prepared(tmp_path / "small", num_recordings=6, seconds=12)
    knobs = {
        "self_train.policy": "per_group_quantile",
        "self_train.min_group_detections": 1,
        "self_train.rounds": 1,
        "self_train.governor": "off",
        "tune.trials": 1,
        "tune.concurrent": 1,
        "tune.parameters": ("lambda_iou",),
        "evaluate.bootstrap": 20,
    }
    config = small_config(**KNOBS | knobs)
    detector = write_seed_detector(config, archive, tmp_path / "detector")
    rounds, search = tmp_path / "rounds", tmp_path / "tune"
    run_self_train(config, str(archive), detector, str(rounds), runner=HERE)
    run_tune(config, str(archive), detector, str(search), what="training", runner=HERE)
    (trial,) = search.glob("trials/*/pseudo/pseudo_labels.parquet")
    theirs, own = (pq.read_table(path) for path in (rounds / "round1/pseudo/pseudo_labels.parquet", trial))
    assert len(theirs) > 2 * len(theirs["recording_id"].unique())
    assert own.equals(theirs)


def test_trials_of_a_detector_that_was_never_trained_need_students_that_begin_with_no_weights(tmp_path):
    """They failed one by one, after the whole pool was labelled."""
    archive = make_prepared(tmp_path / "small", num_recordings=4, seconds=12)
    energy, out = str(shipped_model("energy")), str(tmp_path / "tune")
    with pytest.raises(ConfigError, match="student=fresh"):
        run_tune(small_config(**KNOBS), str(archive), energy, out, what="training", runner=HERE)


@pytest.mark.ray
def test_trials_of_such_a_detector_train_the_network_of_the_settings(tmp_path):
    archive = make_prepared(tmp_path / "small", num_recordings=6, seconds=12)
    knobs = {"self_train.student": "fresh", "tune.trials": 1, "tune.concurrent": 1, "evaluate.bootstrap": 20}
    config, out = small_config(**KNOBS | knobs), tmp_path / "tune"
    run_tune(config, str(archive), str(shipped_model("energy")), str(out), what="training", runner=HERE)
    (card,) = out.glob("trials/*/stage1/card.json")
    assert read_card(card.parent).model["name"] == "mast"
