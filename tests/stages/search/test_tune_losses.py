"""Loss weights of supervised training searched by short trainings."""

import pyarrow.parquet as pq
import pytest
from safetensors.torch import load_file
from small_archive import make_prepared, small_config

from mast_ray.config.errors import ConfigError
from mast_ray.config.loading import apply_overrides, config_from_yaml
from mast_ray.stages.search.loss_trial import LossTask, loss_overrides, run_loss_trial, short_training
from mast_ray.stages.search.tune import run_tune_losses
from mast_ray.verbs.main import run_verb

KNOBS = {
    "tune.trials": 3, "tune.concurrent": 2, "tune.epochs_stage1": 1, "tune.epochs_stage2": 1, "tune.search": "random",
    "tune.scheduler": "median", "tune.parameters": ("lambda_box", "lambda_con", "threshold"), "detector.epochs": 8,
    "detector.batch_size": 4, "evaluate.max_detections": 8, "evaluate.bootstrap": 20, "cluster.cpus_per_worker": 0.5,
}  # fmt: skip


def test_a_sample_is_the_weights_of_the_losses_and_factors_of_the_rates():
    config = small_config(**{"detector.learning_rate": 4e-4})
    found = loss_overrides(config, {"lambda_box": 0.2, "learning_rate": 0.5})
    assert found == {"detector.lambda_box": 0.2, "detector.learning_rate": 2e-4}


def test_a_trial_is_as_long_as_both_stages_of_self_training_and_keeps_its_share_of_warm_up():
    config = small_config(**KNOBS | {"detector.warmup_epochs": 4.0, "detector.min_steps": 500})
    short = short_training(config).detector
    assert (short.epochs, short.warmup_epochs, short.min_steps) == (2, 1.0, 0)


def test_only_what_a_supervised_training_has_is_searched():
    task = LossTask(small_config(**KNOBS), "prepared", "out")
    assert task.first_point() == {
        name: getattr(task.config.detector, name) for name in ("lambda_box", "lambda_con")
    }
    with pytest.raises(ConfigError, match="lambda_cls"):
        LossTask(small_config(**{"tune.parameters": ("threshold",)}), "prepared", "out").first_point()


@pytest.mark.parametrize(("knob", "value"), [("labels.time_only", "teach"), ("spectrogram.tail", "zeros")])
def test_trials_that_hear_or_are_taught_otherwise_are_not_of_one_search(knob, value):
    task = LossTask(small_config(**KNOBS), "prepared", "out")
    other = LossTask(small_config(**KNOBS | {knob: value}), "prepared", "out")
    assert task.settings() != other.settings()


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        ([], "give --detector"),
        (["--detector", "d", "--encoder", "e"], "add --over loss"),
        (["--over", "loss", "--detector", "d", "--encoder", "e"], "one thing"),
        (["--over", "loss", "--only", "post"], "belong to self-training"),
    ],
)
def test_options_of_the_other_search_are_refused(argv, said, capsys):
    assert run_verb("tune", ["prepared", "--out", "out", *argv]) == 2
    assert said in capsys.readouterr().err


@pytest.fixture(scope="module")
def prepared(tmp_path_factory):
    return str(make_prepared(tmp_path_factory.mktemp("small"), num_recordings=6, seconds=11))


@pytest.mark.slow
def test_a_trial_trains_with_its_weights_reports_every_epoch_and_is_not_run_again(prepared, tmp_path):
    config = apply_overrides(small_config(**KNOBS), {"detector.max_steps": 3})
    task = LossTask(config, prepared, str(tmp_path))
    reports = {}
    for weight in (0.1, 0.9):
        reports[weight] = []
        result = run_loss_trial(task, {"lambda_box": weight}, reports[weight].append)
        assert result["stage"] == "detector" and result["objective"] == reports[weight][-1]["objective"]
        assert [report["epochs"] for report in reports[weight]] == list(range(1, len(reports[weight]) + 1))
    weights = [load_file(path) for path in sorted(tmp_path.glob("trials/*/detector/weights.safetensors"))]
    assert len(weights) == 2
    assert any((weights[0][name] != weights[1][name]).any() for name in weights[0])
    again = []
    run_loss_trial(task, {"lambda_box": 0.9}, again.append)
    assert again == reports[0.9][-1:]


@pytest.mark.ray
@pytest.mark.slow
def test_trials_on_ray_tune_leave_the_best_weights_as_settings_for_training(prepared, tmp_path):
    config = apply_overrides(small_config(**KNOBS), {"detector.max_steps": 2})
    found = run_tune_losses(config, prepared, str(tmp_path / "out"))
    table = pq.read_table(tmp_path / "out" / "trials.parquet").to_pylist()
    assert len(table) == len({row["trial"] for row in table}) == 3
    first = {"config.lambda_box": config.detector.lambda_box, "config.lambda_con": config.detector.lambda_con}
    assert any(first.items() <= row.items() for row in table)  # the settings as they are were tried
    top = max(table, key=lambda row: row["objective"])
    best = config_from_yaml((tmp_path / "out" / "best.yaml").read_text(), "best.yaml")
    assert found.objective == top["objective"]
    chosen = top["config.lambda_box"] if top["objective"] else config.detector.lambda_box
    assert best.detector.lambda_box == pytest.approx(chosen)
    assert (
        best.detector.epochs == config.detector.epochs
    )  # the length of a trial is not a setting that was found
    assert run_tune_losses(config, prepared, str(tmp_path / "out")).was_done
    assert not (tmp_path / "out" / "ray").exists()  # Ray's own books
