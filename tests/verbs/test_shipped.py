"""Detectors that come with the package: found by name, checked like any other, used where no model is named."""

import argparse
import json
import shutil

import numpy as np
import pytest
import soundfile
import torch
from small_archive import make_prepared

from mast_ray.config.errors import ConfigError, DataError
from mast_ray.config.tree import Config, ModelConfig
from mast_ray.reporting.detection_tables import read_detections
from mast_ray.training.assembly import detection, load_detector
from mast_ray.training.files.model_files import read_card, read_model
from mast_ray.training.files.shipped import SCRATCH, SHIPPED, SIZES, model_folder, shipped_model
from mast_ray.verbs import train
from mast_ray.verbs.main import _asked, run_verb
from mast_ray.verbs.run import workers_for_cores

RATE_HZ = 16_000


@pytest.fixture(scope="module")
def archive(tmp_path_factory):
    """Faint noise with a loud 3 kHz whistle of half a second, once a second from 2 s on."""
    folder = tmp_path_factory.mktemp("archive")
    rng = np.random.default_rng(0)
    wave = 0.003 * rng.standard_normal(12 * RATE_HZ)
    time_s = np.arange(RATE_HZ // 2) / RATE_HZ
    whistle = 0.2 * np.sin(2 * np.pi * 3000 * time_s) * np.hanning(len(time_s))
    for begin_s in range(2, 11, 2):
        wave[begin_s * RATE_HZ : begin_s * RATE_HZ + len(whistle)] += whistle
    soundfile.write(folder / "whistles.wav", wave.astype(np.float32), RATE_HZ)
    return folder


@pytest.mark.parametrize("size", SIZES)
def test_a_shipped_detector_loads_and_says_what_it_expects(size):
    detector, card = load_detector(shipped_model(size))
    assert card.normaliser().background == "median" and 0 < card.score_threshold < 1
    assert detector.architecture.size == size
    weights, _ = read_model(shipped_model(size), "detector")
    assert {value.dtype for value in weights.values() if value.is_floating_point()} == {torch.float16}
    assert sum(file.stat().st_size for file in shipped_model("tiny").parent.rglob("*")) < 30_000_000


@pytest.mark.parametrize("size", SIZES)
def test_a_shipped_detector_states_its_licence_and_those_of_every_source(size):
    card = read_card(shipped_model(size))
    sources = json.loads((shipped_model(size).parent / "sources.json").read_text(encoding="utf-8"))
    assert card.began_with == () and card.licence.startswith("CC BY-NC-SA 4.0")
    for one in sources:
        assert f"{one['source']} ({', '.join(one['licences'])})" in card.licence


def test_the_energy_detector_is_shipped_too_and_has_nothing_to_learn():
    detector, card = load_detector(model_folder("shipped:energy", has_gpu=True))
    assert not list(detector.parameters()) and card.score_threshold == 0.5
    takes = card.normaliser()
    assert (takes.background, takes.mean, takes.std) == ("median", 0.0, 1.0), (
        "it reckons in logarithms of power"
    )
    with pytest.raises(ConfigError, match="no network to train"):
        detection(
            Config().model_copy(update={"model": ModelConfig.model_validate(card.model)}), Config().detector
        )


def test_names_mean_folders():
    assert model_folder("shipped", has_gpu=False) == str(shipped_model("tiny"))
    assert model_folder("shipped", has_gpu=True) == model_folder("shipped:compact", has_gpu=False)
    assert model_folder("runs/mine", has_gpu=True) == "runs/mine"
    with pytest.raises(ConfigError, match="shipped:tiny or shipped:compact or shipped:energy"):
        model_folder("shipped:huge", has_gpu=False)


def test_a_replaced_weights_file_is_refused(tmp_path, monkeypatch):
    shutil.copytree(shipped_model("tiny"), tmp_path / "weights" / "tiny")
    monkeypatch.setattr("mast_ray.training.files.shipped.files", lambda package: tmp_path)
    file = tmp_path / "weights" / "tiny" / "weights.safetensors"
    data = bytearray(file.read_bytes())
    data[-1] ^= 1
    file.write_bytes(bytes(data))
    with pytest.raises(DataError, match="does not match the sha256") as refused:
        load_detector(model_folder("shipped:tiny", has_gpu=False))
    assert len(str(refused.value).splitlines()) <= 3
    shutil.rmtree(tmp_path / "weights")
    with pytest.raises(DataError, match="missing from this installation"):
        model_folder("shipped:tiny", has_gpu=False)


@pytest.mark.slow
def test_listen_finds_the_whistles_without_a_model_and_writes_a_report(archive, tmp_path):
    out = tmp_path / "listened"
    assert run_verb("listen", [str(archive), "--out", str(out)]) == 0
    assert (out / "report.html").stat().st_size > 10_000
    table = read_detections(str(out / "detections")).to_pandas()
    strong = table[table.score >= 0.25]
    for begin_s in range(2, 11, 2):
        middle_s = begin_s + 0.25
        hit = strong[
            (strong.begin_s < middle_s)
            & (strong.end_s > middle_s)
            & (strong.low_hz < 3000)
            & (strong.high_hz > 3000)
        ]
        assert len(hit), f"the whistle at {begin_s} s was not found"


@pytest.mark.parametrize(
    ("said", "start"),
    [
        ([], SHIPPED),
        (["--set", "self_train.stage2.epochs=1"], SHIPPED),
        (["--set", "model.name=fcos"], SCRATCH),
        (["--recipe", "paper"], SCRATCH),
        (["--encoder", "e"], SCRATCH),
        (["--detector", "d"], SCRATCH),
    ],
)
def test_training_starts_from_the_shipped_detector_unless_something_says_what_to_train(said, start):
    parser = argparse.ArgumentParser()
    for name in ("--recipe", "--config"):
        parser.add_argument(name, dest={"--config": "config_file"}.get(name), default=None)
    parser.add_argument("--set", dest="sets", action="append", default=[])
    train.add_arguments(parser)
    chosen, why = train.chosen_start(parser.parse_args(["prepared", "--out", "o", *said]))
    assert chosen == start and why.startswith("start: ")
    assert start == SHIPPED or f"as {said[0]}" in why


def test_every_core_trains_where_there_is_no_gpu_unless_a_number_is_named():
    assert [workers_for_cores([], cores) for cores in (1, 2, 3, 16)] == [
        ["cluster.num_workers=1"],
        ["cluster.num_workers=2"],
        ["cluster.num_workers=2"],
        ["cluster.num_workers=4"],
    ]
    assert workers_for_cores(["seed=1", "cluster.num_workers=3"], 2) == []


@pytest.mark.parametrize(
    ("said", "count"),
    [
        (["self_train.stage2.batch_size=6"], 2),
        (["self_train.stage2.batch_size=3"], 1),
        (["self_train.stage2.accumulate=4"], 1),
    ],
)
def test_a_batch_that_a_user_asks_for_is_not_refused_because_of_cores_that_nobody_named(said, count):
    assert workers_for_cores(said, 16) == [f"cluster.num_workers={count}"]
    assert workers_for_cores([*said, "detector.nonsense=1"], 16) == []  # said by whoever reads the settings


def test_a_detector_of_ones_own_is_adapted_with_as_small_batches_as_the_shipped_one(
    tmp_path, capsys, monkeypatch
):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    prepared = make_prepared(tmp_path)
    capsys.readouterr()
    start = [str(prepared), "--out", str(tmp_path / "out"), "--dry-run", "--start"]
    plans = []
    for name in (f"{SHIPPED}:tiny", str(shipped_model("tiny"))):
        assert run_verb("train", [*start, name]) == 0
        plans.append(capsys.readouterr().out)
    assert "recipe tiny, because there is no GPU" in plans[1] and plans[0] == plans[1]
    assert run_verb("train", [*start, name, "--recipe", "field"]) == 0
    assert "recipe tiny" not in capsys.readouterr().out


@pytest.mark.parametrize(("value", "is_aside"), [("none", True), ("median", False)])
def test_a_spectrogram_other_than_that_of_the_detector_one_starts_from_is_not_left_aside_in_silence(
    tmp_path, caplog, monkeypatch, value, is_aside
):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    argv = [
        str(make_prepared(tmp_path, 4)),
        "--out",
        str(tmp_path / "out"),
        "--dry-run",
        "--start",
        "shipped",
    ]
    assert run_verb("train", [*argv, "--set", f"spectrogram.background={value}"]) == 0
    told = [record.getMessage() for record in caplog.records if "left aside" in record.getMessage()]
    assert [message.split(":")[0] for message in told] == [
        "spectrogram.background=none is left aside"
    ] * is_aside


@pytest.mark.parametrize(
    ("said", "is_aside"),
    [
        (["detector.epochs=3"], True),
        (["self_train.stage2.epochs=3"], False),
        (["detector.epochs=3", "--section", "detector"], False),
        (["detector.epochs=3", "--start", SCRATCH], False),
    ],
)
def test_a_knob_of_another_section_than_the_one_trained_by_is_not_left_aside_in_silence(
    tmp_path, caplog, monkeypatch, said, is_aside
):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    argv = [str(make_prepared(tmp_path, 4)), "--out", str(tmp_path / "out"), "--dry-run", "--set", *said]
    assert run_verb("train", argv) == 0
    told = [record.getMessage() for record in caplog.records if "left aside" in record.getMessage()]
    assert bool(told) == is_aside
    assert not is_aside or told[0].startswith("detector.epochs=3 is left aside: knobs of self_train.stage2")


@pytest.mark.parametrize(
    ("verb", "argv", "name"),
    [
        ("embed", ["shipped:tiny", "archive", "--out", "o"], "model"),
        ("pseudo-label", ["shipped:tiny", "archive", "--out", "o"], "model"),
        ("self-train", ["archive", "--detector", "shipped:tiny", "--out", "o"], "detector"),
        ("tune", ["archive", "--detector", "shipped:tiny", "--out", "o"], "detector"),
    ],
)
def test_every_verb_that_reads_a_model_knows_the_shipped_ones_by_name(verb, argv, name):
    _, args = _asked(verb, argv)
    assert getattr(args, name) == str(shipped_model("tiny"))
    _, args = _asked(verb, [word.replace("shipped:tiny", "my/model") for word in argv])
    assert getattr(args, name) == "my/model"
