"""Pretraining fed by Ray Data: killed and resumed, every epoch has its chunks once; DeepSpeed under Ray Train."""

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest
from small_archive import make_prepared, small_config

from mast_ray.config.errors import ConfigError
from mast_ray.config.loading import config_to_yaml
from mast_ray.config.tree import ClusterConfig
from mast_ray.on_ray.dealing import STORE_SHARE, fit_text, refuse_no_core
from mast_ray.stages.runner import HERE
from mast_ray.stages.train.pool import TaskPool, began_with, choose_feed
from mast_ray.stages.train.summary import read_summary
from mast_ray.stages.train.train import run_pretrain
from mast_ray.stages.train.work import DetectorTask, PretrainTask
from mast_ray.storage.spread import Resources
from mast_ray.storage.storage import open_storage
from mast_ray.tables.prepared import open_prepared
from mast_ray.tables.reading.chunk_sets import chunks_of_split
from mast_ray.training.data.labels import LabelSource
from mast_ray.training.files.metrics_log import read_metrics

EPOCHS = 5
KNOBS = {
    "cluster.num_workers": 2, "cluster.cpus_per_worker": 0.5, "cluster.feed": "ray_data", "pretrain.epochs": EPOCHS,
    "cluster.checkpoint_every_steps": 1,
}  # fmt: skip


@pytest.fixture(scope="module")
def prepared(tmp_path_factory):
    return make_prepared(tmp_path_factory.mktemp("small"))


def test_what_fits_the_object_store_is_said_with_its_size(prepared, tmp_path):
    plan = TaskPool(PretrainTask(small_config(**KNOBS), str(prepared), str(tmp_path))).plan()
    fits, text = fit_text(plan, plan.num_bytes / STORE_SHARE, 2)
    assert fits and "kept there across epochs" in text
    # 15 chunks in 7 bundles for each of two workers, and a chunk that a worker's share of the steps may be larger
    assert text.endswith("a worker sees at most 8 chunks of an epoch twice")
    assert f"{plan.num_chunks} chunks in {len(plan.bundles)} bundles, {plan.num_bytes / 1e9:.3g} GB" in text
    fits, text = fit_text(plan, plan.num_bytes / STORE_SHARE - 10, 2)
    assert not fits and "more than 60% of it, so read again from the archive every epoch" in text


def test_ray_data_is_refused_without_ray_and_without_a_core_of_its_own(prepared, tmp_path):
    with pytest.raises(ConfigError, match=r"cluster\.feed=ray_data needs Ray"):
        run_pretrain(small_config(**KNOBS), str(prepared), str(tmp_path), runner=HERE)
    refuse_no_core(2.0, ClusterConfig(num_workers=2, cpus_per_worker=0.5))
    with pytest.raises(ConfigError, match=r"cluster\.cpus_per_worker=0\.5, or --set cluster\.feed=reader"):
        refuse_no_core(2.0, ClusterConfig(num_workers=2))


AUTO = KNOBS | {"cluster.feed": "auto", "cluster.use_gpu": "auto", "cluster.cpus_per_worker": 1.0}
EIGHT_GPUS = Resources(num_cpus=64.0, num_gpus=8.0)


@pytest.mark.parametrize(
    ("knobs", "cluster", "labels", "feed"),
    [
        ({"cluster.num_workers": 2}, EIGHT_GPUS, "", "ray_data"),
        ({"cluster.num_workers": 2}, EIGHT_GPUS, "both", "ray_data"),
        ({"cluster.num_workers": 2}, EIGHT_GPUS, "expert", "reader"),
        ({"cluster.num_workers": 2}, EIGHT_GPUS, "mixed", "reader"),
        ({"cluster.num_workers": 2, "cluster.min_workers": 1}, EIGHT_GPUS, "", "reader"),
        ({"cluster.num_workers": 2, "cluster.use_gpu": "no"}, EIGHT_GPUS, "", "reader"),
        ({"cluster.num_workers": 1}, EIGHT_GPUS, "", "reader"),
        ({"cluster.num_workers": 2}, Resources(2.5, 8.0), "", "reader"),
        ({"cluster.num_workers": 2}, Resources(64.0, 0.0), "", "reader"),
        ({"cluster.num_workers": 2}, None, "", "reader"),
    ],
)
def test_auto_deals_the_pool_to_several_gpus_that_leave_a_core(
    prepared, tmp_path, knobs, cluster, labels, feed
):
    config = small_config(**AUTO | knobs)
    task = PretrainTask(config, str(prepared), str(tmp_path))
    if labels:
        task = DetectorTask(config, str(prepared), str(tmp_path), labels=LabelSource(labels))
    choice = choose_feed(task, open_prepared(str(prepared)), cluster)
    assert choice.name == feed and choice.reason.startswith("auto: ")


def test_auto_deals_a_pool_that_lies_in_a_bucket_to_one_gpu(prepared, tmp_path):
    config = small_config(**AUTO | {"cluster.num_workers": 1})
    task = PretrainTask(config, str(prepared), str(tmp_path))
    away = SimpleNamespace(members=[], places=[SimpleNamespace(url="s3://pool/prepared")])
    assert choose_feed(task, away, EIGHT_GPUS).name == "ray_data"


def test_a_run_goes_on_by_the_feed_it_began_with(prepared, tmp_path):
    storage = open_storage(tmp_path)
    assert began_with(storage) == ""
    config = small_config(**AUTO)
    task = PretrainTask(config, str(prepared), str(tmp_path))
    for record, feed in (("cluster: {feed: reader}", "reader"), ("cluster: {feed: ray_data}", "ray_data"),
                         ("cluster: {feed: auto}", "reader"), ("seed: 1", "reader")):  # fmt: skip
        storage.write_atomic("config.yaml", record.encode())
        assert choose_feed(task, open_prepared(str(prepared)), EIGHT_GPUS, began_with(storage)).name == feed
    with pytest.raises(
        ConfigError, match=r"began with cluster\.feed=ray_data, which needs Ray: use --runner ray"
    ):
        choose_feed(task, open_prepared(str(prepared)), None, "ray_data")
    assert choose_feed(task, open_prepared(str(prepared)), None, "reader").name == "reader"


def training_workers(driver: psutil.Process) -> list[psutil.Process]:
    found = []
    for process in driver.children(recursive=True):
        try:
            if "TrainWorker" in " ".join(process.cmdline()):
                found.append(process)
        except psutil.Error:
            continue
    return found


def started(prepared, out, record):
    environment = {name: value for name, value in os.environ.items() if name != "RAY_ADDRESS"}
    command = [sys.executable, "-m", "mast_ray", "pretrain", str(prepared)]
    return subprocess.Popen(
        [*command, "--out", str(out), "--config", str(record)],
        env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip


def wait_for_checkpoint(out: Path, driver: subprocess.Popen, after: int) -> None:
    """Until a checkpoint of a later step than `after` is whole."""
    until_s = time.monotonic() + 240
    while not any(
        int(path.parent.name[5:]) > after for path in (out / "checkpoints").glob("step-*/manifest.json")
    ):
        assert driver.poll() is None and time.monotonic() < until_s, driver.communicate()[0][-3000:]
        time.sleep(0.05)


@pytest.mark.ray
@pytest.mark.slow
def test_a_dealt_run_killed_and_resumed_has_every_chunk_of_every_epoch_once(prepared, tmp_path):
    """A worker is killed, then the driver; the account of each epoch says how many chunks it had."""
    out, record = tmp_path / "out", tmp_path / "config.yaml"
    config = small_config(**KNOBS)
    record.write_text(config_to_yaml(config))
    driver = started(prepared, out, record)
    wait_for_checkpoint(out, driver, 0)
    os.kill(random.Random(0).choice(training_workers(psutil.Process(driver.pid))).pid, signal.SIGKILL)
    wait_for_checkpoint(out, driver, 4)
    driver.kill()
    printed = driver.communicate()[0]
    again = started(prepared, out, record)
    printed += again.communicate(timeout=240)[0]
    assert again.returncode == 0, printed[-3000:]
    assert "kept there across epochs" in printed and "resuming: " in printed
    epochs = [row for row in read_metrics(open_storage(out)) if row["kind"] == "epoch"]
    summary = read_summary(open_storage(out))
    steps_per_epoch = summary.steps // EPOCHS
    assert [row["step"] for row in epochs] == [steps_per_epoch * epoch for epoch in range(1, EPOCHS + 1)]
    for row in epochs:
        assert row["done"] + row["skipped"] == row["offered"] == summary.train_chunks
        assert row["done"] + row["seen_twice"] == 4 * steps_per_epoch
        assert row["seen_twice"] <= 2  # of two workers each may lack a chunk
    assert summary.resumed_from_step > 0 and summary.num_workers == 2


@pytest.mark.ray
@pytest.mark.deepspeed
@pytest.mark.slow
def test_deepspeed_trains_under_ray_train_from_dealt_chunks_of_two_archives(prepared, tmp_path):
    """Two archives of different levels; of both every chunk is dealt once an epoch."""
    faint = make_prepared(tmp_path / "faint", num_recordings=4, seconds=10, level=0.01)
    both = [str(prepared), str(faint)]
    knobs = KNOBS | {"cluster.engine": "deepspeed", "cluster.zero_stage": 2, "pretrain.epochs": 2}
    summary = run_pretrain(small_config(**knobs), both, str(tmp_path / "out"))
    num_chunks = [len(chunks_of_split(open_prepared(place), "pool")) for place in both]
    assert min(num_chunks) > 0 and summary.train_chunks == sum(num_chunks)
    rows = read_metrics(open_storage(tmp_path / "out"))
    errors = [row["masked_error"] for row in rows if row["kind"] == "validation"]
    assert summary.num_workers == 2 and len(errors) == 2 and errors[1] < errors[0]
    epochs = [row for row in rows if row["kind"] == "epoch"]
    assert [row["seen_twice"] <= 2 for row in epochs] == [True, True]
    assert all(row["done"] + row["skipped"] == row["offered"] == sum(num_chunks) for row in epochs)
