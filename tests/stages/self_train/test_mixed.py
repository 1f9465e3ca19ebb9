"""Mixed curricula on a minimal archive, in this process: the moving-average teacher, what it is measured against, a
kill in the middle, and which round is delivered.
"""

import json
from dataclasses import asdict, replace

import pyarrow.parquet as pq
import pytest
from seed_detector import write_seed_detector
from small_archive import make_prepared, small_config

from mast_ray.config.errors import ConfigError, DataError
from mast_ray.config.loading import apply_overrides
from mast_ray.self_training.choice import best_round
from mast_ray.spectrogram.logmel import one_thread
from mast_ray.stages.runner import HERE
from mast_ray.stages.self_train.plan import plan_text
from mast_ray.stages.self_train.self_train import run_self_train
from mast_ray.storage.storage import open_storage
from mast_ray.tables.backgrounds import with_background
from mast_ray.tables.prepared import open_prepared
from mast_ray.training import loop
from mast_ray.training.files.model_files import read_card, read_model, write_model
from mast_ray.training.files.shipped import shipped_model

pytestmark = pytest.mark.slow
KNOBS = {
    "split.budget_chunks": 3,  # the other chunks of the pool are unlabelled
    "self_train.curriculum": "mixed",
    "self_train.policy": "fixed",
    "self_train.threshold": 0.5,  # scores of the seed detector lie between 0.35 and 0.75
    "self_train.ignore_above": 0.42,
    "self_train.rounds": 1,
    "self_train.governor": "warn",
    "self_train.stage1.batch_size": 4,
    "self_train.stage1.epochs": 2,
    "self_train.stage1.max_steps": 4,
    "self_train.augmentation": "own",
    "evaluate.max_detections": 20,
    "evaluate.bootstrap": 20,
    "cluster.checkpoint_every_steps": 1,
}


@pytest.fixture(scope="module")
def archive(tmp_path_factory):
    return make_prepared(tmp_path_factory.mktemp("small"), num_recordings=6, seconds=12)


@pytest.fixture(scope="module")
def config():
    return small_config(**KNOBS)


@pytest.fixture(scope="module")
def detector(archive, config, tmp_path_factory):
    return write_seed_detector(config, archive, tmp_path_factory.mktemp("detector"))


def self_trained(config, archive, detector, out, also=(), **knobs):
    changed = apply_overrides(config, {f"self_train.{name}": value for name, value in knobs.items()})
    truth = str(archive.parent / "labels.csv")
    with one_thread():  # sums of several threads differ in their last bits from run to run
        return run_self_train(changed, str(archive), detector, str(out), truth=truth, also=also, runner=HERE)


@pytest.fixture(scope="module")
def undisturbed(archive, config, detector, tmp_path_factory):
    out = tmp_path_factory.mktemp("undisturbed")
    return out, self_trained(config, archive, detector, out)


def test_a_round_of_mixed_batches_says_what_was_kept_and_why(undisturbed, detector):
    out, result = undisturbed
    assert (out / "round1" / "mixed" / "weights.safetensors").exists()
    row, final = result.rounds[1], result.final
    assert row["weight_drift"] > 0 and row["ignored_per_chunk"] > 0
    f1, ap = ([r[name]["estimate"] for r in result.rounds] for name in ("val_f1", "val_ap_area"))
    assert (final["round"], final["why"]) == best_round(f1, ap, [0, 1], "val")
    kept = detector if final["round"] == 0 else out / "round1" / "mixed"
    assert read_card(out / "model").weights_sha256 == read_card(kept).weights_sha256
    labels = pq.read_table(out / "round1" / "pseudo" / "pseudo_labels.parquet")
    is_ignored = labels["is_ignored"].to_numpy()
    above = labels["score"].to_numpy() >= labels["threshold"].to_numpy() - 1e-6
    assert is_ignored.any() and above[~is_ignored].all()


def test_killed_in_the_middle_the_moving_average_goes_on_as_the_same_teacher(
    undisturbed, archive, config, detector, tmp_path, monkeypatch
):
    """The teacher is the average in the checkpoint: the rest of the run is bit for bit that of an undisturbed one."""
    whole = loop._one_step

    def killed(*arguments):
        if arguments[3] == 2:
            raise KeyboardInterrupt
        return whole(*arguments)

    monkeypatch.setattr(loop, "_one_step", killed)
    with pytest.raises(KeyboardInterrupt):
        self_trained(config, archive, detector, tmp_path)
    monkeypatch.undo()
    self_trained(config, archive, detector, tmp_path)
    summary = json.loads((tmp_path / "round1" / "mixed" / "summary.json").read_text())
    assert summary["resumed_from_step"] == 2
    for name in ("round1/mixed/weights.safetensors", "rounds.json"):
        assert (tmp_path / name).read_bytes() == (undisturbed[0] / name).read_bytes()


def test_a_fixed_teacher_keeps_its_stored_labels_and_gives_another_student(
    undisturbed, archive, config, detector, tmp_path
):
    self_trained(config, archive, detector, tmp_path, teacher="fixed")
    stored = "round1/pseudo/pseudo_labels.parquet"
    assert (tmp_path / stored).read_bytes() == (undisturbed[0] / stored).read_bytes()
    ours, theirs = (read_card(out / "round1" / "mixed").weights_sha256 for out in (tmp_path, undisturbed[0]))
    assert ours != theirs


def test_a_detector_that_was_never_trained_can_teach_a_student_of_the_settings_own_kind(
    archive, config, tmp_path
):
    energy = str(shipped_model("energy"))
    with pytest.raises(ConfigError, match=r"self_train\.student=fresh"):
        self_trained(config, archive, energy, tmp_path / "refused")
    result = self_trained(config, archive, energy, tmp_path / "out", student="fresh")
    labels = pq.read_table(tmp_path / "out/round1/pseudo/pseudo_labels.parquet")
    assert len(labels), "the tones of the archive stand out"
    student = read_card(tmp_path / "out" / "round1" / "mixed")
    assert student.model["name"] == config.model.name and student.model["size"] == config.model.size
    assert student.normalisation == asdict(with_background(open_prepared(archive), config.spectrogram.background)
                                           .normalisation(config.spectrogram.divisor))  # fmt: skip
    assert "weight_drift" not in result.rounds[1], "there is nothing to compare"


def test_it_can_sit_in_a_committee_that_reads_the_archive_by_other_statistics(
    archive, config, detector, tmp_path
):
    energy = str(shipped_model("energy"))
    with pytest.raises(DataError, match="hear different spectrograms"):
        self_trained(config, archive, detector, tmp_path / "refused", also=(energy,))
    own = write_seed_detector(config, archive, tmp_path / "detector", background="median")
    for name, also in (("alone", ()), ("together", (energy,))):
        self_trained(config, archive, own, tmp_path / name, also=also, threshold=0.2, ignore_above=0.1)
    stored = "round1/pseudo/pseudo_labels.parquet"
    alone, together = (pq.read_table(tmp_path / name / stored) for name in ("alone", "together"))
    assert len(together) and not together.equals(alone)


def test_a_committee_labels_the_pool_and_a_fresh_student_owes_it_no_weight(
    undisturbed, archive, config, detector, tmp_path
):
    other = write_seed_detector(apply_overrides(config, {"seed": 5}), archive, tmp_path / "other")
    knobs = {"student": "fresh", "teacher_hearings": 2}
    result = self_trained(config, archive, detector, tmp_path / "out", also=(other,), **knobs)
    stored = "round1/pseudo/pseudo_labels.parquet"
    ours, theirs = (pq.read_table(out / stored) for out in (tmp_path / "out", undisturbed[0]))
    assert len(ours) and not ours.equals(theirs)
    assert (tmp_path / "out" / "round0" / "held_out").exists(), "its thresholds are those of the committee"
    drift = result.rounds[1]["weight_drift"]
    assert drift > 10 * undisturbed[1].rounds[1]["weight_drift"], (
        "a fresh student has other weights altogether"
    )


def test_detectors_of_other_spectrograms_do_not_label_together(archive, config, detector, tmp_path):
    weights, card = read_model(detector, "detector")
    write_model(open_storage(tmp_path / "other"), weights, replace(card, tail="zeros"))
    with pytest.raises(DataError, match="tail zeros"):
        self_trained(config, archive, detector, tmp_path / "out", also=(str(tmp_path / "other"),))


def test_further_detectors_are_refused_where_nobody_labels_the_pool_and_are_in_the_plan_where_they_do(
    archive, config, detector, tmp_path
):
    with pytest.raises(ConfigError, match="uses no pseudo-labels"):
        self_trained(config, archive, detector, tmp_path / "out", also=(detector,), curriculum="stage2_only")
    changed = apply_overrides(config, {"self_train.teacher_hearings": 3, "self_train.rounds": 2})
    plan = plan_text(changed, str(archive), detector, str(tmp_path / "nowhere"), also=(detector,))
    first, second = (line for line in plan.splitlines() if "/detections" in line)
    assert "by 2 detectors, each in 3 ways" in first and "by one detector, each in 3" in second


def test_the_plan_counts_the_steps_that_few_chunks_are_gone_through_at_least(
    archive, config, detector, tmp_path
):
    knobs = {"curriculum": "stage2_only", "stage2.batch_size": 3, "stage2.epochs": 1, "stage2.min_steps": 7}
    changed = apply_overrides(config, {f"self_train.{name}": value for name, value in knobs.items()})
    assert "7 steps on expert labels" in plan_text(changed, str(archive), detector, str(tmp_path / "nowhere"))


@pytest.mark.parametrize("curriculum", ["control", "ceiling"])
def test_what_it_is_measured_against_trains_under_its_own_name(
    archive, config, detector, tmp_path, undisturbed, curriculum
):
    self_trained(config, archive, detector, tmp_path, curriculum=curriculum)
    assert {path.name for path in (tmp_path / "round1").iterdir()} == {
        "control": {"detections", "pseudo", "control", "evaluation"},
        "ceiling": {"truth", "ceiling", "evaluation"},
    }[curriculum]
    steps = [
        json.loads((out / "round1" / name / "summary.json").read_text())["steps"]
        for out, name in ((tmp_path, curriculum), (undisturbed[0], "mixed"))
    ]
    assert steps[0] == steps[1]


def test_a_ceiling_without_truth_is_refused(archive, config, detector, tmp_path):
    ceiling = apply_overrides(config, {"self_train.curriculum": "ceiling"})
    with pytest.raises(ConfigError, match="--truth"):
        run_self_train(ceiling, str(archive), detector, str(tmp_path), runner=HERE)


def test_averaged_with_its_teacher_a_student_lies_between_them(archive, config, detector, tmp_path):
    self_trained(
        config, archive, detector, tmp_path, average_with_teacher="auto", curriculum="mixed_then_expert",
        **{"stage2.max_steps": 2},
    )  # fmt: skip
    grid = json.loads((tmp_path / "round1" / "averaged" / "grid.json").read_text())
    assert set(grid["f1"]) == {"0.0", "0.25", "0.5", "0.75"} and grid["teacher_share"] in (
        0.0,
        0.25,
        0.5,
        0.75,
    )
    assert grid["f1"][str(grid["teacher_share"])] == max(grid["f1"].values())
    assert not list((tmp_path / "round1" / "averaged" / "tried").rglob("*.safetensors"))
    teacher, student, between = (
        read_model(folder, "detector")[0]
        for folder in (detector, tmp_path / "round1" / "stage2", tmp_path / "round1" / "averaged")
    )
    share = grid["teacher_share"]
    name = next(name for name in student if name.startswith("head.") and student[name].ndim == 4)
    assert between[name].numpy() == pytest.approx(
        (share * teacher[name] + (1 - share) * student[name]).numpy(), abs=1e-7
    )
