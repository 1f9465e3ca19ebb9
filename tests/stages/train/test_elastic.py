"""A node that is lost for good: with `cluster.min_workers` training goes on with the
rest, from the last checkpoint.
"""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from small_archive import make_prepared, small_config

from mast_ray.config.loading import config_to_yaml
from mast_ray.stages.runner import HERE
from mast_ray.stages.train.summary import read_summary
from mast_ray.stages.train.train import run_pretrain
from mast_ray.storage.storage import open_storage

pytestmark = [pytest.mark.ray, pytest.mark.long]  # Ray needs its time to give a node up
REPOSITORY = Path(__file__).resolve().parents[3]


def test_training_goes_on_with_one_worker_when_the_other_ones_node_is_gone(tmp_path):
    from ray.cluster_utils import Cluster

    prepared = make_prepared(tmp_path / "small")
    knobs = {"pretrain.epochs": 12, "cluster.num_workers": 2, "cluster.min_workers": 1}
    config, record = small_config(**knobs), tmp_path / "config.yaml"
    alone = run_pretrain(
        small_config(**{"pretrain.epochs": 12}), str(prepared), str(tmp_path / "alone"), runner=HERE
    )
    record.write_text(config_to_yaml(config))
    out = tmp_path / "out"
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
    try:
        second = cluster.add_node(num_cpus=1)
        cluster.wait_for_nodes()
        environment = os.environ | {"RAY_ADDRESS": cluster.address, "PYTHONPATH": str(REPOSITORY)}
        driver = subprocess.Popen(
            [sys.executable, "-m", "mast_ray", "pretrain", str(prepared), "--out", str(out), "--config", str(record)],
            env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )  # fmt: skip
        until_s = time.monotonic() + 180
        while not list((out / "checkpoints").glob("step-*/manifest.json")):
            assert driver.poll() is None and time.monotonic() < until_s, driver.communicate()[0][-2000:]
            time.sleep(0.05)
        cluster.remove_node(second, allow_graceful=False)
        printed, _ = driver.communicate(timeout=300)
    finally:
        cluster.shutdown()
    assert driver.returncode == 0, printed[-3000:]
    summary = read_summary(open_storage(out))
    assert summary.num_workers == 1 and summary.resumed_from_step > 0
    assert (summary.steps, summary.samples) == (alone.steps, alone.samples)
    # the same samples in the same order, summed over one process instead of two
    assert summary.best["masked_error"] == pytest.approx(alone.best["masked_error"], rel=0.02)
