"""Short trials, two at a time; a killed driver goes on, and finished trials are not run again."""

import os
import re
import signal
import subprocess
import sys
import threading
from functools import partial
from itertools import pairwise
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from seed_detector import write_seed_detector
from small_archive import make_prepared, small_config

from mast_ray.config.loading import config_from_yaml, config_to_yaml
from mast_ray.config.stage_knobs import lengthened
from mast_ray.reporting.report.collect_studies import trials_of
from mast_ray.stages.search.trial import sampled_overrides, short_config

REPOSITORY = Path(__file__).resolve().parents[3]
KNOBS = {
    "tune.trials": 8,
    "tune.concurrent": 2,
    "tune.epochs_stage1": 1,
    "tune.epochs_stage2": 1,
    "self_train.stage1.batch_size": 4,
    "self_train.stage1.max_steps": 1,
    "self_train.stage2.batch_size": 4,
    "self_train.stage2.max_steps": 1,
    "evaluate.max_detections": 20,
    "evaluate.bootstrap": 20,
}


def test_a_sample_sets_losses_for_both_stages_and_multiplies_rates():
    config = small_config(
        **{"self_train.stage1.learning_rate": 1e-3, "self_train.stage2.learning_rate": 5e-4}
    )
    overrides = sampled_overrides(
        config, {"lambda_iou": 3.0, "learning_rate": 2.0, "threshold": 0.25, "empty_weight": 0.5}
    )
    assert overrides == {
        "self_train.stage1.lambda_iou": 3.0,
        "self_train.stage2.lambda_iou": 3.0,
        "self_train.stage1.learning_rate": 2e-3,
        "self_train.stage2.learning_rate": 1e-3,
        "self_train.policy": "fixed",
        "self_train.threshold": 0.25,
        "self_train.empty_chunks": "negative",
        "self_train.empty_weight": 0.5,
    }


def test_a_shortened_stage_keeps_its_share_of_warm_up_and_unfreezing():
    knobs = {"epochs": 4, "warmup_epochs": 2, "unfreeze_start_epoch": 1}
    config = small_config(
        **{"tune.epochs_stage1": 1} | {f"self_train.stage1.{name}": value for name, value in knobs.items()}
    )
    short = short_config(config).self_train.stage1
    assert (short.epochs, short.warmup_epochs, short.unfreeze_start_epoch) == (1, 0.5, 0.25)


def test_a_trial_takes_the_epochs_it_is_given_over_few_labels_too():
    config = small_config(**{"tune.epochs_stage2": 2, "self_train.stage2.min_steps": 60})
    assert lengthened(short_config(config).self_train.stage2, 12).epochs == 2


def _ended_at(command, environment, is_time, how) -> tuple[int, str]:
    """Send a running driver a signal at some moment; its exit code and what it printed."""
    driver = subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    pause = threading.Event()
    while driver.poll() is None and not is_time():
        pause.wait(0.05)
    if driver.poll() is None:
        os.kill(driver.pid, how)
    printed, _ = driver.communicate(timeout=60)
    return driver.returncode, printed[-3000:]


def _are_there(out: Path, file: str, count: int) -> bool:
    return len(list(out.glob(f"trials/*/{file}"))) >= count


def _weights_written(out: Path) -> dict[str, int]:
    return {
        path.parent.name: (path.parent / "stage2" / "weights.safetensors").stat().st_mtime_ns
        for path in out.glob("trials/*/trial.json")
    }


# What is waited for, how often, and what then ends the driver.
TERMINATED = ("diary.json", 1, signal.SIGTERM)
INTERRUPTED = ("trial.json", 2, signal.SIGINT)
KILLED = ("trial.json", 2, signal.SIGKILL)


@pytest.mark.ray
@pytest.mark.slow
@pytest.mark.parametrize(
    ("num_trials", "ends"),
    [
        pytest.param(5, (TERMINATED, KILLED), id="five"),
        pytest.param(8, (TERMINATED, INTERRUPTED, KILLED), marks=pytest.mark.long, id="eight"),
    ],
)
def test_trials_two_at_a_time_survive_their_drivers(tmp_path, num_trials, ends):
    config = small_config(**KNOBS | {"tune.trials": num_trials})
    archive = make_prepared(tmp_path / "small", num_recordings=5, seconds=12)
    detector = write_seed_detector(config, archive, tmp_path / "detector")
    out, record = tmp_path / "out", tmp_path / "config.yaml"
    record.write_text(config_to_yaml(config))
    command = [
        sys.executable,
        "-m",
        "mast_ray",
        "tune",
        str(archive),
        "--detector",
        detector,
        "--out",
        str(out),
    ]
    command += ["--config", str(record), "--runner", "here"]
    environment = {name: value for name, value in os.environ.items() if name != "RAY_ADDRESS"}
    environment |= {"PYTHONPATH": str(REPOSITORY)}
    seen: dict[str, int] = {}  # finished trials and when their weights were written
    for number, (file, count, how) in enumerate(ends):
        is_time = partial(_are_there, out, file, count + len(seen))
        code, printed = _ended_at(command, environment, is_time, how)
        assert code == (-signal.SIGKILL if how == signal.SIGKILL else 130), printed
        assert ("resuming" in printed) == (number > 0), printed
        written = _weights_written(out)
        assert seen.items() <= written.items()
        seen = written
    again = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=500)
    assert again.returncode == 0, again.stderr[-3000:]
    resumed = re.search(r"resuming: (\d+) trials are finished", again.stdout)
    # a trial may outlive its driver by a moment
    assert resumed is not None and len(seen) <= int(resumed[1]) < num_trials
    assert seen.items() <= _weights_written(out).items()
    finished = set(seen)

    table = pq.read_table(out / "trials.parquet").to_pylist()
    assert len(table) == num_trials and finished <= {row["trial"] for row in table}
    assert all(row["status"] in ("done", "stopped early") for row in table)
    assert len({row["config.lambda_iou"] for row in table}) > num_trials // 2
    spans = sorted(
        (path.parent / "pseudo" / "manifest.json", path) for path in out.glob("trials/*/trial.json")
    )
    times = sorted((begin.stat().st_mtime, end.stat().st_mtime) for begin, end in spans)
    assert max(sum(a < t <= b for a, b in times) for t, _ in times) <= 2
    assert any(second[0] < first[1] for first, second in pairwise(times))  # they did overlap
    assert trials_of(pq.read_table(out / "trials.parquet").to_pylist()) is not None  # a report can draw them
    best = config_from_yaml((out / "best.yaml").read_text(), "best.yaml")
    top = max(table, key=lambda row: row["objective"])
    chosen = top["config.lambda_iou"] if top["objective"] else config.self_train.stage1.lambda_iou
    assert best.self_train.stage1.lambda_iou == pytest.approx(chosen)
    assert {"trials.png", "thresholds.png", "thresholds.csv", "post.json", "trials.csv"} <= {
        p.name for p in out.iterdir()
    }
