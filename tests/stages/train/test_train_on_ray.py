"""Training on Ray Train survives the death of workers and of the driver, to the bit;
mistakes are told, not retried.
"""

import os
import random
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import psutil
import pytest
from small_archive import make_prepared, small_config

from mast_ray.config.errors import MastError
from mast_ray.config.loading import config_to_yaml
from mast_ray.on_ray.session import ray_session
from mast_ray.stages.train.train import run_pretrain

pytestmark = [pytest.mark.ray, pytest.mark.slow]

KNOBS = {"cluster.num_workers": 2, "pretrain.epochs": 8, "cluster.cpus_per_worker": 0.5}


@pytest.fixture(scope="module")
def prepared(tmp_path_factory):
    return make_prepared(tmp_path_factory.mktemp("small"))


@pytest.fixture(scope="module")
def cluster():
    """A session as commands have it: workers are copies of a process with torch in it."""
    with ray_session(num_cpus=2):
        yield


@pytest.fixture(scope="module")
def undisturbed(prepared, cluster, tmp_path_factory):
    return run_pretrain(small_config(**KNOBS), str(prepared), str(tmp_path_factory.mktemp("undisturbed")))


def training_workers():
    """Processes of Ray Train workers that this test started."""
    found = []
    for process in psutil.Process().children(recursive=True):
        try:
            if "TrainWorker" in " ".join(process.cmdline()):
                found.append(process)
        except psutil.Error:
            continue
    return found


class Killer(threading.Thread):
    """Kills one worker with -9, at a random moment after each new checkpoint, a few times."""

    def __init__(self, out: Path, times: int, seed: int) -> None:
        super().__init__(daemon=True)
        self.out, self.times, self.random, self.kills, self.over = (
            out,
            times,
            random.Random(seed),
            0,
            threading.Event(),
        )

    def run(self) -> None:
        seen: set[str] = set()
        while self.kills < self.times and not self.over.wait(0.02):
            now = {path.parent.name for path in (self.out / "checkpoints").glob("step-*/manifest.json")}
            if now - seen:
                seen |= now
                self.over.wait(self.random.uniform(0.0, 0.3))
                workers = training_workers()
                if workers:
                    os.kill(self.random.choice(workers).pid, signal.SIGKILL)
                    self.kills += 1


def checkpoints_of(out: Path) -> set[str]:
    return {path.parent.name for path in (out / "checkpoints").glob("step-*/manifest.json")}


def hears_ctrl_c():
    """What a shell starts in the background does not."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def test_a_killed_driver_and_the_same_command_again_end_with_the_same_bits(prepared, undisturbed, tmp_path):
    """Ended by Ctrl-C at its first checkpoint, then by SIGTERM and SIGKILL at later ones, then left alone."""
    out, config = tmp_path / "out", tmp_path / "config.yaml"
    config.write_text(config_to_yaml(small_config(**KNOBS)))
    command = [
        *(sys.executable, "-m", "mast_ray.verbs.main", "pretrain", str(prepared)),
        *("--out", str(out), "--config", str(config)),
    ]
    environment = {name: value for name, value in os.environ.items() if name != "RAY_ADDRESS"}
    for how, code in ((signal.SIGINT, 130), (signal.SIGTERM, 130), (signal.SIGKILL, -signal.SIGKILL)):
        before = checkpoints_of(out)
        driver = subprocess.Popen(
            command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
            preexec_fn=hears_ctrl_c,
        )  # fmt: skip
        deadline = time.monotonic() + 300  # a busy machine takes minutes to start Ray
        while not checkpoints_of(out) - before:
            assert driver.poll() is None, driver.stderr.read()
            assert time.monotonic() < deadline
            time.sleep(0.05)
        os.kill(driver.pid, how)
        _, said = driver.communicate(timeout=60)
        assert driver.returncode == code, said
        if how != signal.SIGKILL:
            assert said.strip().splitlines()[-1].startswith("interrupted: run the same command again"), said
            assert "Traceback" not in said and len(said.splitlines()) <= 30, said
    again = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=400)
    assert again.returncode == 0, again.stderr[-2000:]
    assert "already done" not in again.stdout
    from mast_ray.training.files.model_files import read_card

    assert read_card(out).weights_sha256 == undisturbed.weights_sha256
    third = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=400)
    assert third.returncode == 0 and "already done" in third.stdout


@pytest.mark.parametrize("kills", [2, pytest.param(5, marks=pytest.mark.long)])
def test_workers_killed_at_random_steps_cost_nothing_but_time(
    prepared, undisturbed, cluster, tmp_path, record_property, kills
):
    killer = Killer(tmp_path / "out", times=kills, seed=1)
    killer.start()
    disturbed = run_pretrain(small_config(**KNOBS), str(prepared), str(tmp_path / "out"))
    killer.over.set()
    assert killer.kills == kills
    assert disturbed.resumed_from_step > 0
    assert disturbed.weights_sha256 == undisturbed.weights_sha256
    assert disturbed.best == undisturbed.best
    record_property("figure", f"{killer.kills} kills, weights equal to the bit")


def test_a_mistake_met_by_a_worker_is_told_once_and_not_retried(prepared, cluster, tmp_path):
    # With one restart allowed, a second failure would end in another error than the worker's own.
    config = small_config(**KNOBS | {"pretrain.init": str(tmp_path / "nowhere"), "cluster.max_failures": 1})
    with pytest.raises(MastError, match="nowhere is not a finished model folder"):
        run_pretrain(config, str(prepared), str(tmp_path / "out"))
