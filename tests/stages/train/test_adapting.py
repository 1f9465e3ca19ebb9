"""A model takes its statistics with it: any archive is read as it was trained, and nothing is prepared again."""

import logging

import pytest
import torch
from small_archive import make_prepared, small_config

from mast_ray.config.errors import ConfigError
from mast_ray.evaluation.intervals import Difference
from mast_ray.stages.runner import HERE
from mast_ray.stages.score.evaluate import Wanted, evaluate_model
from mast_ray.stages.self_train.pseudo_label import run_pseudo_label
from mast_ray.stages.train.adapting import HERE as NEW
from mast_ray.stages.train.adapting import THERE as OLD
from mast_ray.stages.train.adapting import Adaptation, adaptation_text
from mast_ray.stages.train.train import run_pretrain, run_train_detector
from mast_ray.tables.prepared import open_prepared
from mast_ray.tables.reading.chunk_sets import chunks_of_split
from mast_ray.tables.reading.reader import ChunkReader
from mast_ray.training.data.archive_inputs import archive_inputs, read_as
from mast_ray.training.data.feed import batch_of
from mast_ray.training.files.model_files import read_card
from mast_ray.verbs.main import main

pytestmark = pytest.mark.slow  # trains a network


@pytest.fixture(scope="module")
def near(tmp_path_factory):
    return str(make_prepared(tmp_path_factory.mktemp("near"), num_recordings=8, seconds=11))


@pytest.fixture(scope="module")
def far(tmp_path_factory):
    """The same sounds five times fainter: 14 dB, 3.2 in log-mel."""
    return str(make_prepared(tmp_path_factory.mktemp("far"), num_recordings=8, seconds=11, level=0.2))


@pytest.fixture(scope="module", params=["none", "median"])
def model(request, near, tmp_path_factory):
    out = tmp_path_factory.mktemp("model")
    config = small_config(**{"detector.max_steps": 4, "spectrogram.background": request.param})
    run_pretrain(config, near, str(out / "encoder"), runner=HERE)
    run_train_detector(config, near, str(out / "detector"), init_encoder=str(out / "encoder"), runner=HERE)
    return out


def first_chunks(inputs):
    reader = ChunkReader(
        inputs.prepared, chunks_of_split(inputs.prepared, "train"), batch_size=4, num_threads=1
    )
    raw = next(reader.sequential())
    return raw, batch_of(raw, inputs.normalisation, inputs.tail).logmel.squeeze(1)


def test_the_archives_have_other_statistics(near, far):
    levels = [open_prepared(archive).normalisation().mean for archive in (near, far)]
    assert levels[0] - levels[1] == pytest.approx(3.2, abs=0.3)


def test_another_archive_becomes_input_with_the_statistics_of_the_model(near, far, model):
    card = read_card(str(model / "detector"))
    for archive in (near, far):
        inputs = archive_inputs(open_prepared(archive), small_config(), card)
        assert inputs.normalisation == card.normaliser()
        raw, found = first_chunks(inputs)
        logmel = raw.values.float() * raw.scale[:, None, None] + raw.offset[:, None, None]
        if card.normaliser().background == "median":
            logmel = logmel - raw.background.repeat_interleave(512, dim=1)
            logmel = logmel.clamp(min=-6.0)
        expected = (logmel - card.normaliser().mean) / (card.normaliser().std + 1e-6)
        torch.testing.assert_close(found, expected, atol=1e-4, rtol=1e-4)


def test_above_the_background_both_archives_look_alike_and_without_it_they_do_not(near, far, model):
    card = read_card(str(model / "detector"))
    means = [
        float(first_chunks(archive_inputs(open_prepared(archive), small_config(), card))[1].median())
        for archive in (near, far)
    ]
    if card.normaliser().background == "median":
        assert means[0] == pytest.approx(means[1], abs=0.05)
    else:
        assert means[0] - means[1] > 0.5


def test_a_model_is_evaluated_and_labels_the_pool_of_another_archive_and_says_so(
    far, model, tmp_path, caplog
):
    caplog.set_level(logging.INFO)
    config = small_config()
    scores = evaluate_model(config, str(model / "detector"), far, str(tmp_path / "scores"), runner=HERE)
    assert scores.sheet.whole("val").num_truth > 0
    assert "is read as" in caplog.text and "was trained: mean" in caplog.text
    made = run_pseudo_label(config, str(model / "detector"), far, str(tmp_path / "pool"), runner=HERE)
    assert made.manifest.counts["chunks"] == len(chunks_of_split(open_prepared(far), "pool"))


def test_the_models_own_archive_needs_no_word(near, model, caplog):
    caplog.set_level(logging.INFO)
    read_as(open_prepared(near), read_card(str(model / "detector")))
    assert "is read as" not in caplog.text


def test_training_goes_on_from_another_archives_encoder_with_its_statistics(far, model, tmp_path, caplog):
    caplog.set_level(logging.INFO)
    config = small_config(**{"detector.max_steps": 1})
    run_train_detector(config, far, str(tmp_path / "out"), init_encoder=str(model / "encoder"), runner=HERE)
    before, after = (read_card(str(folder)) for folder in (model / "encoder", tmp_path / "out"))
    assert after.normaliser() == before.normaliser()
    assert after.config["spectrogram"]["background"] == before.normaliser().background
    own = config.spectrogram.background
    is_other = before.normaliser().background != own
    assert (f"spectrogram.background={own} is left aside" in caplog.text) == is_other
    more = small_config(**{"pretrain.max_steps": 1, "pretrain.init": str(model / "encoder")})
    run_pretrain(more, far, str(tmp_path / "encoder"), runner=HERE)
    assert read_card(str(tmp_path / "encoder")).normaliser() == before.normaliser()


def test_a_detector_is_adapted_and_both_archives_say_what_changed(near, far, model, tmp_path, capsys):
    out, start = tmp_path / "adapted", str(model / "detector")
    argv = ["train", far, "--start", start, "--remember", near, "--out", str(out), "--runner", "here"]
    knobs = ["--recipe", "tiny", "--set", "self_train.stage2.max_steps=2", "--set", "cluster.use_gpu=no",
             "--set", "cluster.lanes=4", "--set", "model.size=small"]  # fmt: skip
    assert main([*argv, *knobs]) == 0
    shown = capsys.readouterr().out
    assert "on the new archive (val" in shown and "on the archive to remember (val" in shown
    card = read_card(str(out))
    assert card.normaliser() == read_card(start).normaliser()
    assert card.model["size"] == "tiny"  # of the detector, not of the settings
    config = small_config(**{"evaluate.bootstrap": 50})
    before = evaluate_model(config, start, far, str(tmp_path / "before"), Wanted(("val",)), runner=HERE)
    after = evaluate_model(config, str(out), near, str(tmp_path / "after"), Wanted(("val",)), runner=HERE)
    f1 = [scores.sheet.whole("val").figures["f1"].estimate for scores in (before, after)]
    here, there = (next(line for line in shown.splitlines() if line.startswith(p)) for p in (NEW, OLD))
    assert f"F1 {f1[0]:.3f} -> " in here and f" -> {f1[1]:.3f}" in there


def test_lines_say_what_was_gained_and_lost():
    about = {"f1": 0.5, "ap_area": 0.4, "precision": 0.5, "recall": 0.5}
    better = {"f1": 0.75, "ap_area": 0.6, "precision": 1.0, "recall": 0.6}
    one = Adaptation(NEW, "val", 12, about, better, Difference(0.25, 0.125, 0.375))
    assert adaptation_text([one]) == (
        "on the new archive (val, 12 calls): F1 0.500 -> 0.750, AP 0.400 -> 0.600, "
        "precision 0.500 -> 1.000, recall 0.500 -> 0.600; F1 +0.250 [+0.125, +0.375]"
    )
    assert "cannot be compared" in adaptation_text([])


def test_what_does_not_go_together_is_refused(near, model, tmp_path, capsys):
    argv = ["train", near, "--out", str(tmp_path / "x"), "--remember", near]
    assert main(argv) != 0
    assert "say which one, --start DETECTOR" in capsys.readouterr().err
    argv = ["train", near, "--out", str(tmp_path / "x"), "--start", str(model / "detector"), "--encoder", "y"]
    assert main(argv) != 0
    assert "leave out --detector and --encoder" in capsys.readouterr().err
    with pytest.raises(ConfigError, match="holds autoencoder weights"):
        run_train_detector(
            small_config(), near, str(tmp_path / "x"), init_detector=str(model / "encoder"), runner=HERE
        )
