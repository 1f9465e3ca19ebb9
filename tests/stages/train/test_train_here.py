"""Pretraining and detector training in this process: real spectrograms, real
objectives, small enough for seconds.
"""

import json
import shutil
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from small_archive import make_prepared, small_config

from mast_ray.boxes.points import FINEST_STRIDES, finest_level_of
from mast_ray.config.errors import ConfigError
from mast_ray.inference.chunk_detector import ChunkDetector, Inputs
from mast_ray.inference.chunk_scores import as_detected, found_in_chunks
from mast_ray.inference.validation import DetectionValidation
from mast_ray.stages.runner import HERE, ON_RAY, Here
from mast_ray.stages.train.data import pretraining_chunks
from mast_ray.stages.train.plan import plan_text
from mast_ray.stages.train.train import run_pretrain, run_train_detector
from mast_ray.stages.train.work import DetectorTask, PretrainTask
from mast_ray.tables.backgrounds import with_background
from mast_ray.tables.prepared import open_prepared
from mast_ray.tables.reading.chunk_sets import chunks_of_split
from mast_ray.tables.reading.reader import ChunkReader
from mast_ray.training.assembly import load_autoencoder, load_detector
from mast_ray.training.data.labels import LabelSource, attach_boxes, labelled_chunks
from mast_ray.training.worker import LocalWorker

pytestmark = pytest.mark.slow  # trains or runs a network


@pytest.fixture(scope="module")
def prepared(tmp_path_factory):
    return str(make_prepared(tmp_path_factory.mktemp("small"), num_recordings=8, seconds=11))


@pytest.fixture(scope="module")
def encoder(prepared, tmp_path_factory):
    out = tmp_path_factory.mktemp("encoder") / "out"
    return out, run_pretrain(small_config(), prepared, str(out), runner=HERE)


@pytest.fixture(scope="module")
def detector(prepared, encoder, tmp_path_factory):
    out = tmp_path_factory.mktemp("detector") / "out"
    config = small_config(**{"detector.max_steps": 4, "model.adapter": "hybrid"})
    return out, run_train_detector(config, prepared, str(out), init_encoder=str(encoder[0]), runner=HERE)


def test_pretraining_leaves_a_model_folder_with_its_normalisation_metrics_and_manifest(prepared, encoder):
    out, summary = encoder
    _, card = load_autoencoder(out)
    assert card.normaliser() == with_background(open_prepared(prepared), "median").normalisation()
    assert card.weights_sha256 == summary.weights_sha256 and card.data_hash
    assert json.loads((out / "manifest.json").read_text())["stage"] == "pretrain"
    table = pq.read_table(out / "metrics.parquet").to_pylist()
    errors = [row["masked_error"] for row in table if row["kind"] == "validation"]
    assert len(errors) == 3 and errors[-1] < errors[0]
    assert list((out / "tensorboard").glob("events.*"))


def test_the_same_command_again_has_nothing_to_do(prepared, encoder):
    out, summary = encoder
    again = run_pretrain(small_config(), prepared, str(out), runner=HERE)
    assert again.was_done and again.weights_sha256 == summary.weights_sha256


def test_a_start_by_a_relative_path_is_found_by_workers_that_stand_elsewhere(
    prepared, encoder, tmp_path, monkeypatch
):
    class Elsewhere(Here):
        """As Ray Train does: its workers stand in a folder of their own."""

        def train(self, loop, *given):
            with monkeypatch.context() as patch:
                patch.chdir(tmp_path)
                super().train(loop, *given)

    monkeypatch.chdir(encoder[0].parent)
    config, out = small_config(**{"pretrain.init": encoder[0].name, "pretrain.max_steps": 1}), tmp_path / "on"
    summary = run_pretrain(config, prepared, str(out), runner=Elsewhere())
    assert summary.steps == 1
    (state,) = (out / "checkpoints").glob("*/state.json")
    assert json.loads(state.read_text())["identity"]["init"] == encoder[0].name  # as runs before named it
    assert run_pretrain(config, prepared, str(out), runner=HERE).was_done


def test_a_folder_is_not_trained_over_with_other_settings(prepared, encoder):
    with pytest.raises(ConfigError, match=r"other settings \(pretrain\.learning_rate"):
        run_pretrain(small_config(**{"pretrain.learning_rate": 5e-4}), prepared, str(encoder[0]), runner=HERE)


@pytest.mark.parametrize("runner", [HERE, ON_RAY])
def test_a_refused_command_leaves_a_finished_folder_as_it_was(prepared, encoder, runner):
    def files():
        names = (p for p in encoder[0].rglob("*") if p.is_file() and "lease" not in p.parts)
        return {str(p.relative_to(encoder[0])): p.read_bytes() for p in names}

    before, other = files(), small_config(**{"pretrain.learning_rate": 5e-4})
    with pytest.raises(ConfigError, match="other settings"):
        run_pretrain(other, prepared, str(encoder[0]), runner=runner)
    assert files() == before
    assert run_pretrain(small_config(), prepared, str(encoder[0]), runner=runner).was_done


def test_a_detector_starts_from_the_encoder_and_carries_its_tuned_threshold(prepared, detector):
    out, summary = detector
    model, card = load_detector(out)
    assert card.kind == "detector" and set(card.metrics) >= {"f1", "ap_area", "threshold"}
    assert summary.best["num_truth"] > 0
    opened = with_background(open_prepared(prepared), "median")
    reader = ChunkReader(opened, chunks_of_split(opened, "val"), batch_size=4, num_threads=1)
    # The exported weights are those that were validated.
    validation = DetectionValidation(model, opened, reader, inputs_of(card), small_config())
    measured = validation.measure(model.state_dict(), LocalWorker())
    assert json.dumps(measured) == json.dumps({name: summary.best[name] for name in measured})


def test_a_card_names_the_encoder_that_its_training_began_with_and_a_fresh_one_nothing(encoder, detector):
    (_, of_encoder), (_, of_detector) = load_autoencoder(encoder[0]), load_detector(detector[0])
    assert of_encoder.began_with == ()
    (own,) = of_detector.began_with
    name = f"{encoder[0].parent.name}/out"
    assert (own.how, own.name, own.weights_sha256) == ("encoder", name, of_encoder.weights_sha256)


def inputs_of(card):
    return Inputs(card.normaliser(), card.tail, torch.device("cpu"))


def test_a_split_shared_by_two_workers_gives_the_detections_of_one(prepared, detector):
    model, card = load_detector(detector[0])
    opened, config = with_background(open_prepared(prepared), "median"), small_config()
    reader = ChunkReader(opened, chunks_of_split(opened, "val", "test"), batch_size=1, num_threads=1)
    found = ChunkDetector(model, inputs_of(card), 1, as_detected(config))
    whole = found_in_chunks(opened, found, reader)
    shares = []

    class Half(LocalWorker):
        world_size = 2

        def gather(self, value):
            shares.append(value)
            return shares if len(shares) == 2 else [value]

    for rank in (0, 1):
        worker = Half()
        worker.rank = rank
        both = found_in_chunks(opened, found, reader, worker)
    assert 0 < len(shares[0].chunk) < len(whole.chunk)
    for name in ("chunk", "boxes", "score"):
        np.testing.assert_array_equal(getattr(both, name), getattr(whole, name))


def test_best_weights_are_chosen_on_the_development_split_where_one_is_labelled(prepared):
    """The test recordings are declared to be of sites set aside for choosing models."""
    opened = open_prepared(prepared)
    names = pa.array(["ood_dev" if name == "test" else name for name in opened.splits["split"].to_pylist()])
    dealt = replace(opened, splits=opened.splits.set_column(3, "split", names))
    task = DetectorTask(small_config(), prepared, "out")
    held = task.held_out(dealt)
    assert held.ids(dealt) == chunks_of_split(opened, "test").ids(opened) != task.held_out(opened).ids(opened)
    assert replace(task, select_on="val").held_out(dealt).ids(dealt) == task.held_out(opened).ids(opened)


def test_held_out_chunks_are_never_in_the_pool(prepared):
    opened = open_prepared(prepared)
    pool, held = pretraining_chunks(opened)
    assert not set(pool.ids(opened)) & set(held.ids(opened))
    unlabelled = replace(
        opened, splits=opened.splits.filter([name != "val" for name in opened.splits["split"].to_pylist()])
    )
    pool, held = pretraining_chunks(unlabelled)
    assert len(held) >= 1 and not set(pool.ids(opened)) & set(held.ids(opened))
    # chunk k holds segments k and k + 1
    segments = [
        {
            (r, c + more)
            for r, c in zip(one.recording.tolist(), one.chunk.tolist(), strict=True)
            for more in (0, 1)
        }
        for one in (pool, held)
    ]
    assert not segments[0] & segments[1], "a chunk is scored half of which was trained on"


def test_the_plan_names_every_derived_quantity(prepared):
    config = small_config(**{"cluster.num_workers": 2, "detector.accumulate": 2})
    text = plan_text(DetectorTask(config, prepared, "nowhere"))
    assert "batch      4 = 2 workers x 2 parts x 1 chunks" in text
    assert "encoder from epoch 0, decayed" in text and "average    decay" in text
    assert "of the pool" in plan_text(PretrainTask(config, prepared, "nowhere"))


@pytest.mark.slow
def test_a_baseline_trains_through_the_same_door_with_the_same_budget(prepared, detector, tmp_path):
    config = small_config(**{"model.name": "fcos", "detector.max_steps": 2})
    summary = run_train_detector(config, prepared, str(tmp_path / "fcos"), runner=HERE)
    assert summary.steps == 2 and summary.train_chunks == detector[1].train_chunks
    model, card = load_detector(tmp_path / "fcos")
    assert card.model["name"] == "fcos" and hasattr(model, "detect")


def test_an_encoder_of_another_size_is_refused_with_the_remedy(prepared, encoder, tmp_path):
    config = small_config(**{"model.size": "small"})
    with pytest.raises(ConfigError, match=r"is of size tiny, model.size=small: use --set model.size=tiny"):
        run_train_detector(config, prepared, str(tmp_path / "out"), init_encoder=str(encoder[0]), runner=HERE)


def test_auto_settles_the_finest_level_from_the_boxes_and_the_card_names_it(prepared, tmp_path):
    config = small_config(
        **{"detector.max_steps": 1, "model.adapter": "hybrid", "model.finest_level": "auto"}
    )
    run_train_detector(config, prepared, str(tmp_path / "out"), runner=HERE)
    detector, card = load_detector(tmp_path / "out")
    corners = labelled_corners(prepared, config)
    expected = finest_level_of(corners[:, 2] - corners[:, 0])
    assert card.model["finest_level"] == expected == detector.architecture.finest
    assert detector.levels[0].stride == FINEST_STRIDES[expected]
    assert f"finest level {expected}" in plan_text(DetectorTask(config, prepared, "nowhere"))


def labelled_corners(prepared: str, config) -> np.ndarray:
    archive = open_prepared(prepared)
    labelled = labelled_chunks(archive, LabelSource("expert"), config)
    reader = ChunkReader(archive, labelled.chunks, batch_size=4)
    attach_boxes(reader, archive, labelled, config.spectrogram.min_remnant_s)
    return reader.boxes.corners


def test_a_card_from_before_finest_levels_is_an_8x4_model(detector, tmp_path):
    out, _ = detector
    copy = shutil.copytree(out, tmp_path / "old")
    card = json.loads((copy / "card.json").read_text())
    del card["model"]["finest_level"]
    (copy / "card.json").write_text(json.dumps(card))
    old, _ = load_detector(copy)
    assert old.levels == load_detector(out)[0].levels and old.levels[0].stride == (8, 4)


def test_normalised_patches_and_random_masks_pretrain_an_encoder_that_a_detector_takes(prepared, tmp_path):
    knobs = {"pretrain.target": "patch_normalised", "pretrain.masking": "random", "detector.max_steps": 1}
    config = small_config(**knobs)
    run_pretrain(config, prepared, str(tmp_path / "encoder"), runner=HERE)
    autoencoder, card = load_autoencoder(tmp_path / "encoder")
    assert autoencoder.architecture.target == "patch_normalised"
    assert (
        0.5 < card.metrics["masked_error"] < 1.5
    )  # patches have a variance of 1, and little was learned yet
    encoder_file = str(tmp_path / "encoder")
    run_train_detector(config, prepared, str(tmp_path / "out"), init_encoder=encoder_file, runner=HERE)
    own = load_detector(tmp_path / "out")[0].encoder.state_dict()
    frozen = "blocks.0.attn.qkv.weight"  # tiny trains the top four of four blocks: the first moves a little
    assert torch.allclose(own[frozen], autoencoder.encoder.state_dict()[frozen], atol=1e-2)
