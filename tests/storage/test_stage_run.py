"""The life of a stage: refused, skipped, held, declared whole."""

import json

import pytest

from mast_ray.config.errors import ConfigError, DataError, RunActiveError
from mast_ray.config.recipes import tiny
from mast_ray.storage.stage_folders import Manifest, read_manifest
from mast_ray.storage.stage_run import open_output, stage_run
from mast_ray.storage.storage import open_storage

INPUTS = {"prepared": "abc"}


def finish(stage, key="k", inputs=INPUTS, settings=None, **options):
    """Whether there was work to do."""
    with stage_run(stage, "train", tiny(), key, inputs, settings, **options) as run:
        if run.done is None:
            run.finish({"steps": 7})
        return run.done is None


def test_a_stage_is_done_once_for_a_key_and_its_inputs(tmp_path):
    stage = open_storage(tmp_path)
    assert finish(stage) and not finish(stage)
    assert finish(stage, when_done="again")
    assert finish(stage, key="other") and finish(stage, inputs={"prepared": "changed"})
    found = read_manifest(stage)
    assert (found.stage, found.key, found.counts) == ("train", "k", {"steps": 7})
    assert found.inputs == {"prepared": "changed"} and found.config["recipe"] == "tiny"


def test_a_folder_of_another_stage_is_refused_before_any_work(tmp_path):
    finish(open_storage(tmp_path))
    with pytest.raises(DataError, match="holds the output of `train`"):
        open_output(str(tmp_path), "detect", tiny().storage)
    with (
        pytest.raises(DataError, match="choose another --out"),
        stage_run(open_storage(tmp_path), "detect", tiny(), "k", {}),
    ):
        pytest.fail("the block must not run")


def test_two_runs_cannot_hold_one_folder_and_a_run_inside_another_needs_no_lease(tmp_path):
    stage = open_storage(tmp_path)
    with stage_run(stage, "train", tiny(), "k", INPUTS) as outer:
        assert outer.run_id
        with pytest.raises(RunActiveError), stage_run(stage, "train", tiny(), "k", INPUTS):
            pytest.fail("the block must not run")
        with stage_run(stage.at("inside"), "pseudo", tiny(), "k", {}, lease="of_caller") as inner:
            inner.finish({})
    assert read_manifest(stage) is None  # left without finish: the same command goes on
    assert not (tmp_path / "inside/lease").exists() and read_manifest(stage.at("inside")).stage == "pseudo"


def test_work_with_other_settings_is_not_mixed(tmp_path):
    stage = open_storage(tmp_path)
    with stage_run(stage, "train", tiny(), "k", INPUTS, {"seed": 1, "rate": 0.1}):
        stage.write_atomic("commit/one", b"work")
    with pytest.raises(ConfigError, match=r"was begun with rate=0\.1, now it is 0\.2"):
        finish(stage, settings={"seed": 1, "rate": 0.2})
    assert finish(stage, settings={"seed": 1, "rate": 0.1})


def test_a_mistake_before_any_work_does_not_decide_what_the_folder_is_for(tmp_path):
    stage = open_storage(tmp_path)
    with (
        pytest.raises(DataError),
        stage_run(stage, "pseudo_label", tiny(), "k", INPUTS, {"model": "an encoder"}),
    ):
        raise DataError("holds autoencoder weights")
    assert finish(stage, settings={"model": "a detector"})
    assert json.loads((tmp_path / "begun.json").read_text()) == {"model": "a detector"}


def test_a_manifest_survives_the_round_trip_and_a_foreign_one_is_nobodys(tmp_path):
    finish(open_storage(tmp_path))
    written = json.loads((tmp_path / "manifest.json").read_text())
    assert Manifest.from_json(written) == read_manifest(open_storage(tmp_path))
    assert not Manifest.from_json({"key": "k", "name": "something else"}).is_of("train", "k", {})


def test_a_refusal_before_any_work_leaves_nothing(tmp_path):
    stage = open_storage(tmp_path / "out")
    with pytest.raises(DataError), stage_run(stage, "train", tiny(), "k", INPUTS, {"seed": 1}):
        raise DataError("the weights are damaged")
    assert list((tmp_path / "out").iterdir()) == []
    assert finish(stage)


def test_a_refusal_after_some_work_leaves_all_of_it(tmp_path):
    stage = open_storage(tmp_path)
    with pytest.raises(DataError), stage_run(stage, "train", tiny(), "k", INPUTS) as run:
        run.stage.write_atomic("checkpoints/one", b"work")
        raise DataError("a recording is gone")
    left = {entry.key for entry in stage.list()}
    assert left == {"checkpoints/one", "lease/000001.json", "lease/000001.beat"}
