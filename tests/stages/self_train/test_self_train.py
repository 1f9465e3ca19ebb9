"""Self-training on a minimal archive: two rounds with one command, killed in every
stage, and every curriculum by name.
"""

import hashlib
import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from seed_detector import write_seed_detector
from small_archive import make_prepared, small_config

from mast_ray.config.errors import ConfigError, DataError
from mast_ray.config.loading import apply_overrides, config_to_yaml
from mast_ray.reporting.report.collect_studies import round_series
from mast_ray.self_training.round_records import rounds_of
from mast_ray.spectrogram.logmel import one_thread
from mast_ray.stages.runner import HERE
from mast_ray.stages.self_train.self_train import run_self_train
from mast_ray.training.files.model_files import read_card
from mast_ray.training.files.origins import short_name

pytestmark = pytest.mark.slow
REPOSITORY = Path(__file__).resolve().parents[3]
KNOBS = {
    "self_train.rounds": 2,
    "self_train.policy": "fixed",
    "self_train.threshold": 0.08,
    "self_train.governor": "warn",
    "self_train.stage1.batch_size": 4,
    "self_train.stage1.max_steps": 4,
    "self_train.stage2.batch_size": 4,
    "self_train.stage2.max_steps": 4,
    "evaluate.max_detections": 20,
    "evaluate.bootstrap": 50,
    "cluster.checkpoint_every_steps": 1,
}
# What is on disk when a stage of round 1 or 2 is under way.
MOMENTS = (
    "round0/evaluation/chunks/attempts/*/*.json",
    "round1/detections/attempts/*/*.json",
    "round1/pseudo/pseudo_labels.parquet",
    "round1/stage1/checkpoints/step-*/manifest.json",
    "round1/stage2/checkpoints/step-*/manifest.json",
    "round2/stage2/checkpoints/step-*/manifest.json",
)


@pytest.fixture(scope="module")
def archive(tmp_path_factory):
    return make_prepared(tmp_path_factory.mktemp("small"), num_recordings=6, seconds=12)


@pytest.fixture(scope="module")
def config():
    return small_config(**KNOBS)


@pytest.fixture(scope="module")
def detector(archive, config, tmp_path_factory):
    return write_seed_detector(config, archive, tmp_path_factory.mktemp("detector"))


@pytest.fixture(scope="module")
def undisturbed(archive, config, detector, tmp_path_factory):
    out = tmp_path_factory.mktemp("undisturbed")
    with one_thread():  # sums of several threads differ in their last bits from run to run
        run_self_train(
            config, str(archive), detector, str(out), truth=str(archive.parent / "labels.csv"), runner=HERE
        )
    return out


def content(out: Path) -> dict[str, str]:
    """Everything a run leaves that must not depend on kills."""
    names = ["rounds.json", "rounds.parquet", "model/weights.safetensors"]
    for number in (1, 2):
        names += [
            f"round{number}/pseudo/{name}"
            for name in ("pseudo_labels.parquet", "pseudo_chunks.parquet", "figures.json")
        ]
        names += [f"round{number}/{stage}/weights.safetensors" for stage in ("stage1", "stage2")]
        names += [
            str(path.relative_to(out))
            for path in sorted((out / f"round{number}/detections/detections").iterdir())
        ]
    return {name: hashlib.sha256((out / name).read_bytes()).hexdigest() for name in names}


def test_two_rounds_leave_figures_of_every_split_pseudo_labels_and_a_model(undisturbed):
    rows = json.loads((undisturbed / "rounds.json").read_text())["rounds"]
    assert [row["round"] for row in rows] == [0, 1, 2]
    assert {"val_f1", "test_f1", "val_ap_area"} <= rows[0].keys() and "val_f1_gain" in rows[1]
    for row in rows[1:]:
        assert {
            "pseudo_precision",
            "pseudo_coverage",
            "pseudo_f1",
            "pool_f1",
            "boxes_per_chunk",
            "governor",
        } <= row.keys()
        assert set(row["boxes_per_chunk_by_site"]) == {"S0", "S1"}
        assert row["weight_drift"] > 0 and row["train_chunks"] > 0
    assert rows[1]["agreement_f1"] is None and 0 <= rows[2]["agreement_f1"] <= 1
    final = read_card(undisturbed / "model")
    kept = json.loads((undisturbed / "rounds.json").read_text())["final"]
    students = ["round1/stage2", "round2/stage2"]
    shas = [kept["model_sha"], *(read_card(undisturbed / name).weights_sha256 for name in students)]
    f1 = [row["val_f1"]["estimate"] for row in rows]
    assert kept["round"] == f1.index(max(f1)) and final.weights_sha256 == shas[kept["round"]]
    assert len(pq.read_table(undisturbed / "rounds.parquet")) == 3
    assert (
        len(round_series(rounds_of((undisturbed / "rounds.json").read_bytes()))) >= 4
    )  # a report can draw them


def test_every_student_names_what_its_weights_go_back_to(undisturbed, detector):
    """The teacher is what a student begins with; the seed's card is from before that was recorded."""
    seed = short_name(detector)
    chain = [
        "round2/stage1",
        "round1/stage2",
        "round1/stage1",
        seed,
        f"not recorded ({seed} is from before it was)",
    ]
    for name, first in (
        ("round2/stage2", 0),
        ("round2/stage1", 1),
        ("round1/stage2", 2),
        ("round1/stage1", 3),
    ):
        began_with = read_card(undisturbed / name).began_with
        assert [one.name for one in began_with] == chain[first:]
        assert {one.how for one in began_with} == {"start"}
    taught = json.loads((undisturbed / "round2/pseudo/manifest.json").read_text())["counts"]["taught_by"]
    assert [(one["how"], one["name"]) for one in taught[:1]] == [("teacher", "round1/stage2")]


def test_every_pseudo_box_knows_its_model_policy_and_round(undisturbed, detector):
    first = pq.read_table(undisturbed / "round1/pseudo/pseudo_labels.parquet")
    second = pq.read_table(undisturbed / "round2/pseudo/pseudo_labels.parquet")
    student = read_card(undisturbed / "round1" / "stage2").weights_sha256
    assert set(first["source"].to_pylist()) == {
        f"model={read_card(detector).weights_sha256} policy=fixed round=1"
    }
    assert set(second["source"].to_pylist()) == {f"model={student} policy=fixed round=2"}
    assert min(first["score"].to_pylist()) >= 0.08 and max(first["threshold"].to_pylist()) == pytest.approx(
        0.08
    )


def test_killed_in_every_stage_it_ends_with_the_same_tables_and_metrics(
    archive, config, detector, undisturbed, tmp_path
):
    out, record = tmp_path / "out", tmp_path / "config.yaml"
    record.write_text(config_to_yaml(config))
    command = [
        sys.executable,
        "-m",
        "mast_ray",
        "self-train",
        str(archive),
        "--detector",
        detector,
        "--out",
        str(out),
    ]
    command += ["--config", str(record), "--runner", "here", "--truth", str(archive.parent / "labels.csv")]
    environment = os.environ | {"PYTHONPATH": str(REPOSITORY), "OMP_NUM_THREADS": "1"}
    pause = threading.Event()
    for moment in MOMENTS:
        driver = subprocess.Popen(
            command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
        )
        while driver.poll() is None and not any(out.glob(moment)):
            pause.wait(0.005)
        assert driver.poll() is None, f"ended before {moment}: {driver.stderr.read()[-2000:]}"
        os.kill(driver.pid, signal.SIGKILL)
        driver.communicate()
    again = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
    assert again.returncode == 0, again.stderr[-2000:]
    assert content(out) == content(undisturbed)


def test_a_finished_run_has_nothing_to_do_and_other_settings_are_refused(
    archive, config, detector, undisturbed
):
    truth = str(archive.parent / "labels.csv")
    arguments = (str(archive), detector, str(undisturbed))
    assert run_self_train(config, *arguments, truth=truth, runner=HERE).was_done
    other = apply_overrides(config, {"self_train.threshold": 0.2})
    with pytest.raises(ConfigError, match=r"was begun with self_train\.threshold=0\.08, now it is 0\.2"):
        run_self_train(other, *arguments, truth=truth, runner=HERE)
    augmented = apply_overrides(
        config, {"augment.mixup": 0.5}
    )  # its students are others: no figures of these
    with pytest.raises(ConfigError, match=r"holds a run with other settings \(augment\)"):
        run_self_train(augmented, *arguments, truth=truth, runner=HERE)


@pytest.mark.parametrize(
    ("curriculum", "stages"),
    [("stage1_only", {"stage1"}), ("stage2_only", {"stage2"}), ("union", {"union"})],
)
def test_ablations_run_the_stages_they_name(archive, config, detector, tmp_path, curriculum, stages):
    knobs = {
        "self_train.curriculum": curriculum,
        "self_train.rounds": 1,
        "self_train.keep": "last",
        "self_train.empty_chunks": "negative",
    }
    result = run_self_train(
        apply_overrides(config, knobs), str(archive), detector, str(tmp_path), runner=HERE
    )
    assert {path.name for path in (tmp_path / "round1").iterdir()} & {"stage1", "stage2", "union"} == stages
    assert (tmp_path / "round1" / "pseudo").exists() == (curriculum != "stage2_only")
    assert result.final["round"] == 1 and result.rounds[1]["weight_drift"] > 0


def test_without_a_round_the_detector_is_delivered_as_it_was_trained_and_rounds_may_follow(
    archive, config, detector, tmp_path
):
    arguments = (str(archive), detector, str(tmp_path))
    result = run_self_train(apply_overrides(config, {"self_train.rounds": 0}), *arguments, runner=HERE)
    assert [row["round"] for row in result.rounds] == [0] and "no round was made" in result.final["why"]
    assert read_card(tmp_path / "model").weights_sha256 == read_card(detector).weights_sha256
    one = run_self_train(apply_overrides(config, {"self_train.rounds": 1}), *arguments, runner=HERE)
    assert [row["round"] for row in one.rounds] == [0, 1] and "no round was made" not in one.final["why"]


def test_pseudo_labels_that_collapse_stop_the_run_with_a_reason_and_the_seed_is_kept(
    archive, config, detector, tmp_path
):
    knobs = {"self_train.threshold": 1.0, "self_train.governor": "stop"}
    result = run_self_train(
        apply_overrides(config, knobs), str(archive), detector, str(tmp_path), runner=HERE
    )
    assert result.stopped.startswith("round 1: no pseudo-boxes at all")
    assert result.final["round"] == 0
    assert read_card(tmp_path / "model").weights_sha256 == read_card(detector).weights_sha256


@pytest.mark.parametrize("empty_chunks", ["drop", "negative"])
def test_without_a_governor_a_threshold_above_every_score_is_named_as_the_cause(
    archive, config, detector, tmp_path, empty_chunks
):
    knobs = {"threshold": 1.0, "governor": "off", "empty_chunks": empty_chunks}
    asked = apply_overrides(config, {f"self_train.{name}": value for name, value in knobs.items()})
    with pytest.raises(DataError, match=r"no pseudo-box .*\n.*self_train\.threshold=1"):
        run_self_train(asked, str(archive), detector, str(tmp_path), runner=HERE)


@pytest.mark.parametrize(
    "policy",
    [
        "tuned",
        "precision",
        *(
            pytest.param(name, marks=pytest.mark.long)
            for name in ("per_group_mixture", "per_group_quantile", "precision_pool")
        ),
    ],
)
def test_other_policies_write_where_every_threshold_came_from(archive, config, detector, tmp_path, policy):
    knobs = {"self_train.policy": policy, "self_train.rounds": 1, "self_train.min_group_detections": 10,
             "self_train.stage1.max_steps": 1, "self_train.stage2.max_steps": 1,
             "self_train.ignore_above": "auto"}  # fmt: skip
    run_self_train(apply_overrides(config, knobs), str(archive), detector, str(tmp_path), runner=HERE)
    figures = json.loads((tmp_path / "round1/pseudo/figures.json").read_text())
    sources = {group["source"] for group in figures["thresholds"]}
    one_for_all = policy in ("tuned", "precision_pool")
    assert sources <= ({policy} if one_for_all else {"group", "site", "pool", "fixed"})
    if policy == "precision":
        assert {group["group"] for group in figures["thresholds"]} == {"S0", "S1"}
    assert figures["figures"]["num_chunks"] > 0
