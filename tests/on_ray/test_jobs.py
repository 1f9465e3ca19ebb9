"""`ray job submit -- python jobs/X.py` on a cluster of two raylets with token
authentication: the same as `mast X`.
"""

import json
import threading
import time

import pyarrow.parquet as pq
import pytest
from job_cluster import job_cluster
from synthetic_model import write_tiny_detector
from tones import Tone, committed_keys, write_tones

from mast_ray.spectrogram.logmel import one_thread
from mast_ray.stages.prepare import PrepareInputs, prepare
from mast_ray.stages.runner import HERE
from mast_ray.storage.storage import open_storage
from mast_ray.verbs.main import config_of, run_verb

pytestmark = [pytest.mark.ray, pytest.mark.slow]
SETS = ["audio.timezone=UTC", "evaluate.max_detections=8", "detect.batch_size=4"]
KNOBS = ["--recipe", "tiny", *(part for text in SETS for part in ("--set", text))]


@pytest.fixture(scope="module")
def cluster():
    with job_cluster() as cluster:
        yield cluster


@pytest.fixture(scope="module")
def archive(tmp_path_factory):
    root = tmp_path_factory.mktemp("jobs") / "archive"
    for hour in range(23):
        write_tones(root / "A" / f"A_20240501_{hour:02d}0000.wav", [Tone(2.0, 3.0, 2000.0)], 12.0, seed=hour)
    return root


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return write_tiny_detector(tmp_path_factory.mktemp("model"))


def test_a_job_needs_the_token(cluster):
    assert cluster.status_without_token() in (401, 403)


def test_a_detect_job_that_loses_a_raylet_writes_what_a_plain_process_writes(
    cluster, archive, model, tmp_path
):
    here = [str(model), str(archive), "--out", str(tmp_path / "here"), "--runner", "here", *KNOBS]
    with one_thread():  # as in the cluster's workers: sums of several threads differ in their last bits
        assert run_verb("detect", here) == 0
    arguments = ("jobs/detect.py", str(model), str(archive), "--out", str(tmp_path / "job"), *KNOBS)
    submitted = cluster.submit(*arguments, options=("--submission-id", "detect-1", "--no-wait"))
    assert submitted.returncode == 0, submitted.stdout + submitted.stderr
    stage, until_s = open_storage(tmp_path / "job"), time.monotonic() + 120
    while sum(1 for _ in stage.list("commit")) < 2 and time.monotonic() < until_s:
        threading.Event().wait(0.1)
    cluster.kill_worker()
    status = ""
    while not any(word in status for word in ("succeeded", "failed")) and time.monotonic() < until_s + 120:
        threading.Event().wait(1.0)
        status = cluster.ray("job", "status", "--address", cluster.url, "detect-1").stdout.lower()
    logs = cluster.ray("job", "logs", "--address", cluster.url, "detect-1").stdout
    assert "succeeded" in status, logs
    assert "23 offered = 23 done" in logs
    alone, together = detections_by_unit(tmp_path / "here"), detections_by_unit(tmp_path / "job")
    assert alone.keys() == together.keys()
    for unit, boxes in alone.items():
        assert boxes["path"] == together[unit]["path"]
        for name, nearly in (
            ("begin_s", 1e-4),
            ("end_s", 1e-4),
            ("low_hz", 0.1),
            ("high_hz", 0.1),
            ("score", 1e-5),
        ):
            assert together[unit][name] == pytest.approx(boxes[name], abs=nearly)


def detections_by_unit(out):
    """Columns of every accepted file by its unit: last bits may differ between processes, and with them a file's name."""
    files = [key for key in committed_keys(out) if key.endswith(".parquet")]
    return {key.rsplit("-", 1)[0]: pq.ParquetFile(out / key).read().to_pydict() for key in files}


def test_a_pretrain_job_writes_a_model_folder(cluster, archive, tmp_path):
    prepared = tmp_path / "prepared"
    assert prepare(PrepareInputs(str(archive), str(prepared)), config_of("tiny", None, []), runner=HERE) == 0
    knobs = [part for text in ("pretrain.max_steps=2", "pretrain.batch_size=4") for part in ("--set", text)]
    done = cluster.submit(
        "jobs/pretrain.py", str(prepared), "--out", str(tmp_path / "encoder"), "--recipe", "tiny", *knobs
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert json.loads((tmp_path / "encoder" / "card.json").read_text())["kind"] == "autoencoder"


def test_a_job_with_a_mistake_fails_visibly_with_its_remedy(cluster, archive, tmp_path):
    failed = cluster.submit("jobs/detect.py", "nowhere", str(archive), "--out", str(tmp_path / "out"), *KNOBS)
    assert failed.returncode != 0
    text = failed.stdout + failed.stderr
    assert "not a finished model folder" in text and "exit code 3" in text
