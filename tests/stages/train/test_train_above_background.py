"""A run on values above the background, strongly augmented: from pretraining to detections in one input."""

import pytest
from augmentations import EVERY_AUGMENTATION
from small_archive import make_prepared, small_config

from mast_ray.config.loading import apply_overrides
from mast_ray.inference.chunk_scores import as_detected
from mast_ray.self_training.pool import read_pool
from mast_ray.stages.detect.chunks import ChunkTask, detect_chunks
from mast_ray.stages.runner import HERE
from mast_ray.stages.self_train.pseudo_label import run_pseudo_label
from mast_ray.stages.train.train import run_pretrain, run_train_detector
from mast_ray.storage.storage import open_storage
from mast_ray.tables.backgrounds import with_background
from mast_ray.tables.prepared import open_prepared
from mast_ray.tables.reading.chunk_sets import chunks_of_split
from mast_ray.training.files.model_files import read_card

pytestmark = pytest.mark.slow  # trains a network


@pytest.fixture(scope="module")
def prepared(tmp_path_factory):
    return str(make_prepared(tmp_path_factory.mktemp("small"), num_recordings=8, seconds=11))


@pytest.fixture(scope="module")
def run(prepared, tmp_path_factory):
    out = tmp_path_factory.mktemp("run")
    config = apply_overrides(
        small_config(**{"spectrogram.background": "median", "detector.max_steps": 4}), EVERY_AUGMENTATION
    )
    run_pretrain(config, prepared, str(out / "encoder"), runner=HERE)
    summary = run_train_detector(
        config, prepared, str(out / "detector"), init_encoder=str(out / "encoder"), runner=HERE
    )
    return config, out, summary


def test_every_model_of_the_run_says_what_it_takes(prepared, run):
    _, out, _ = run
    expected = with_background(open_prepared(prepared), "median").normalisation()
    assert expected.background == "median"
    for name in ("encoder", "detector"):
        assert read_card(str(out / name)).normaliser() == expected


def test_evaluation_and_pseudo_labels_show_the_model_the_same_input(prepared, run):
    config, out, _ = run
    opened = open_prepared(prepared)
    task = ChunkTask(
        config, str(out / "detector"), prepared, str(out / "found"), ("train",), as_detected(config)
    )
    detect_chunks(task, runner=HERE)
    run_pseudo_label(
        config, str(out / "detector"), prepared, str(out / "pool"), splits=("train",), runner=HERE
    )
    chunks = chunks_of_split(opened, "train")
    stored = read_pool(open_storage(str(out / "pool")), opened, chunks)
    scored = read_pool(open_storage(str(out / "found")), opened, chunks)
    assert len(set(scored.chunk.tolist())) > 1
    for row in range(len(chunks)):
        best = [found.score[found.chunk == row].max(initial=0.0) for found in (stored, scored)]
        assert best[0] == pytest.approx(best[1], abs=1e-5)
