"""Model folders: cards, checksums, refusals, and the best weights of a run."""

import hashlib
import json
from dataclasses import replace

import pytest
import torch
from toy import weights_equal

from mast_ray.config.errors import ConfigError, DataError
from mast_ray.config.loading import apply_overrides
from mast_ray.config.recipes import tiny
from mast_ray.spectrogram.normalisation import Normalisation
from mast_ray.storage.storage import open_storage
from mast_ray.training.assembly import (
    detection,
    load_autoencoder,
    load_detector,
    load_detector_weights,
    load_encoder,
    load_encoder_weights,
    network_weights,
    reconstruction,
)
from mast_ray.training.files.checkpoints import refuse_another_network
from mast_ray.training.files.model_files import (
    BestWeights,
    Card,
    read_card,
    read_model,
    write_card,
    write_model,
)

NORMALISATION = Normalisation(-6.0, 2.5)
CONFIG = apply_overrides(tiny(), {"pretrain.side_path": True})


def card(kind):
    return Card(
        kind,
        CONFIG.model.model_dump(mode="json"),
        NORMALISATION.to_dict(),
        config=CONFIG.model_dump(mode="json"),
    )


@pytest.fixture(scope="module")
def encoder_folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("encoder")
    objective = reconstruction(apply_overrides(CONFIG, {"seed": 5}))
    write_model(open_storage(folder), network_weights(objective, objective.state_dict()), card("autoencoder"))
    return folder


@pytest.fixture(scope="module")
def detector_folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("detector")
    objective = detection(apply_overrides(CONFIG, {"seed": 5}), CONFIG.detector)
    weights = network_weights(objective, objective.state_dict())
    write_model(open_storage(folder), weights, replace(card("detector"), score_threshold=0.4))
    return folder


def test_a_detector_comes_back_as_it_was_with_its_threshold(detector_folder):
    detector, read = load_detector(detector_folder)
    assert read.score_threshold == 0.4 and read.normaliser() == NORMALISATION
    original = detection(apply_overrides(CONFIG, {"seed": 5}), CONFIG.detector).detector
    assert weights_equal(detector.state_dict(), original.state_dict())
    assert not detector.training


def test_the_folder_of_a_run_is_answered_with_the_folder_of_its_model(detector_folder, tmp_path):
    (tmp_path / "run" / "self_trained").mkdir(parents=True)
    (tmp_path / "run" / "self_trained" / "model").symlink_to(detector_folder)
    with pytest.raises(DataError, match=r"give .*/run/self_trained/model"):
        read_card(tmp_path / "run")
    with pytest.raises(DataError, match=r"not a finished model folder.*\n.*copy the whole folder"):
        read_card(tmp_path)


def test_an_encoder_moves_from_an_autoencoder_into_a_detector(encoder_folder):
    objective = detection(CONFIG, CONFIG.detector)
    load_encoder_weights(objective, str(encoder_folder), CONFIG)
    autoencoder, _ = load_autoencoder(encoder_folder)
    assert weights_equal(objective.detector.encoder.state_dict(), autoencoder.encoder.state_dict())


def test_a_pretrained_side_path_moves_along_whatever_the_finest_level(encoder_folder):
    autoencoder, _ = load_autoencoder(encoder_folder)
    assert autoencoder.side is not None
    path = autoencoder.side.path.state_dict()
    for finest in ("8x4", "4x4"):
        config = apply_overrides(CONFIG, {"model.finest_level": finest, "seed": 9})
        objective = detection(config, config.detector)
        load_encoder_weights(objective, str(encoder_folder), config)
        adapter = objective.detector.adapter.state_dict()
        assert weights_equal({name: adapter[name] for name in path}, path)


def test_an_autoencoder_without_a_side_path_starts_one_with_it_and_the_other_way_round(
    encoder_folder, tmp_path
):
    without = apply_overrides(CONFIG, {"pretrain.side_path": False, "seed": 3})
    plain = reconstruction(without)
    load_encoder_weights(plain, str(encoder_folder), without)
    autoencoder, _ = load_autoencoder(encoder_folder)
    assert weights_equal(plain.autoencoder.encoder.state_dict(), autoencoder.encoder.state_dict())
    write_model(open_storage(tmp_path), plain.autoencoder.state_dict(), card("autoencoder"))
    whole = reconstruction(CONFIG)
    load_encoder_weights(whole, str(tmp_path), CONFIG)
    assert weights_equal(whole.autoencoder.encoder.state_dict(), autoencoder.encoder.state_dict())
    assert load_autoencoder(tmp_path)[0].side is None


def of_older_version(folder, weights, name: str, shape: tuple[int, ...]) -> str:
    """A folder with a weight of a shape that another version gave it."""
    write_model(open_storage(folder), weights | {name: torch.ones(shape)}, card("autoencoder"))
    return str(folder)


def test_the_encoder_goes_on_where_a_side_path_or_a_global_decoder_is_of_another_version(tmp_path, caplog):
    """The first maps of a side path were wider, and the global decoder had a class token and other heads."""
    weights = reconstruction(apply_overrides(CONFIG, {"seed": 3})).autoencoder.state_dict()
    wider = of_older_version(tmp_path / "side", weights, "side.path.side.0.conv.weight", (48, 1, 7, 7))
    with_token = of_older_version(tmp_path / "token", weights, "decoder.pos_embed", (1, 513, 128))
    for folder, part in ((wider, "side path"), (with_token, "decoder")):
        assert weights_equal(load_encoder(folder)[0].state_dict(), below("encoder.", weights))
        caplog.clear()
        whole, fresh = reconstruction(CONFIG), reconstruction(CONFIG).autoencoder.state_dict()
        load_encoder_weights(whole, folder, CONFIG)
        found = whole.autoencoder.state_dict()
        assert weights_equal(below("encoder.", found), below("encoder.", weights))
        for prefix, name in (("side.", "side path"), ("decoder.", "decoder")):
            began = fresh if name == part else weights
            assert weights_equal(below(prefix, found), below(prefix, began))
        assert f"its {part} is that of another version" in caplog.text
    objective = detection(CONFIG, CONFIG.detector)
    fresh = objective.detector.adapter.state_dict()
    fresh = {name: value.clone() for name, value in fresh.items()}
    load_encoder_weights(objective, wider, CONFIG)
    assert weights_equal(objective.detector.encoder.state_dict(), below("encoder.", weights))
    assert weights_equal(objective.detector.adapter.state_dict(), fresh)


def test_a_pretraining_begun_with_a_class_token_in_its_global_decoder_does_not_go_on(tmp_path):
    objective = reconstruction(CONFIG)
    begun = objective.state_dict()
    refuse_another_network(open_storage(tmp_path), begun, objective)
    begun["autoencoder.decoder.pos_embed"] = torch.zeros(1, 513, 128)
    with pytest.raises(ConfigError, match=r"another shape \(1 weights: autoencoder.decoder.pos_embed"):
        refuse_another_network(open_storage(tmp_path), begun, objective)


def below(prefix: str, weights: dict) -> dict:
    return {name.removeprefix(prefix): value for name, value in weights.items() if name.startswith(prefix)}


def test_a_folder_whose_weights_did_not_come_along_says_so(detector_folder, tmp_path):
    (tmp_path / "card.json").write_bytes((detector_folder / "card.json").read_bytes())
    with pytest.raises(DataError, match=r"has no weights.safetensors.*copy the whole model folder"):
        load_detector(tmp_path)


def test_a_flipped_bit_in_the_weights_is_refused_before_they_are_used(detector_folder, tmp_path):
    for name in ("weights.safetensors", "card.json"):
        (tmp_path / name).write_bytes((detector_folder / name).read_bytes())
    data = bytearray((tmp_path / "weights.safetensors").read_bytes())
    data[-1] ^= 4
    (tmp_path / "weights.safetensors").write_bytes(data)
    with pytest.raises(DataError, match="does not match the sha256"):
        load_detector(tmp_path)


def test_a_card_with_a_background_nobody_knows_is_refused(detector_folder, tmp_path):
    wrong = replace(
        read_card(detector_folder), normalisation=NORMALISATION.to_dict() | {"background": "mean"}
    )
    write_card(open_storage(tmp_path), wrong)
    with pytest.raises(DataError, match="background 'mean', neither none nor median"):
        read_card(tmp_path)


def test_a_folder_of_the_wrong_kind_size_or_state_is_refused_with_the_remedy(
    encoder_folder, detector_folder, tmp_path
):
    with pytest.raises(ConfigError, match="holds autoencoder weights, not detector"):
        load_detector(encoder_folder)
    with pytest.raises(DataError, match=r"has no card\.json"):
        load_detector(tmp_path)
    small = apply_overrides(CONFIG, {"model.size": "small"})
    with pytest.raises(ConfigError, match=r"--set model\.size=tiny"):
        load_encoder_weights(detection(small, small.detector), str(encoder_folder), small)
    other = apply_overrides(CONFIG, {"model.adapter": "conv"})
    with pytest.raises(ConfigError, match="does not fit the model"):
        load_detector_weights(detection(other, other.detector), str(detector_folder), other)


def test_a_card_can_be_replaced_without_touching_the_weights(detector_folder):
    storage = open_storage(detector_folder)
    before = read_card(storage)
    write_card(storage, replace(before, calibration={"a": 1.0}))
    weights, after = read_model(storage, "detector")
    assert after.calibration == {"a": 1.0} and after.weights_sha256 == before.weights_sha256 and weights
    write_card(storage, before)


def test_best_weights_are_kept_as_long_as_a_checkpoint_names_them(tmp_path):
    best = BestWeights(open_storage(tmp_path))
    for step in (4, 8, 12, 16):
        best.write(step, {"w": torch.full((2,), float(step))})
    best.keep_only({8, 12})
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "best-0000000008",
        "best-0000000012",
        "best-0000000016",
    ]
    assert float(best.read(12)["w"][0]) == 12.0
    with pytest.raises(DataError, match="missing"):
        best.read(4)
    path = tmp_path / "best-0000000008" / "weights.safetensors"
    path.write_bytes(path.read_bytes()[:-1] + b"x")
    with pytest.raises(DataError, match="damaged"):
        best.read(8)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"score_threshold": float("nan")}, "score_threshold nan"),
        ({"score_threshold": 7}, "score_threshold 7"),
        ({"score_threshold": "high"}, "score_threshold 'high'"),
        ({"kind": "poem"}, "neither autoencoder nor detector"),
        ({"tail": "long"}, "neither real nor zeros"),
        ({"normalisation": {"mean": 0.0, "std": 0.0, "divisor": 1.0, "eps": 1e-6}}, "std 0.0"),
        ({"normalisation": {"mean": float("nan"), "std": 1.0, "divisor": 1.0, "eps": 1e-6}}, "mean nan"),
        ({"normalisation": {}}, "KeyError"),
        ({"normalisation": [1]}, "TypeError"),
        ({"model": {"size": "enormous"}}, "model.size"),
        ({"model": {"magic": 1}}, "model.magic"),
        ({"model": None}, "model"),
        ({"surprise": 1}, "surprise"),
        ({"card_version": 99}, "version 99"),
    ],
)
def test_a_card_with_impossible_values_is_refused_in_two_lines(detector_folder, tmp_path, change, message):
    (tmp_path / "weights.safetensors").write_bytes((detector_folder / "weights.safetensors").read_bytes())
    values = json.loads((detector_folder / "card.json").read_text()) | change
    (tmp_path / "card.json").write_text(json.dumps(values))
    with pytest.raises(DataError, match=message) as refused:
        load_detector(tmp_path)
    assert len(str(refused.value).splitlines()) <= 3


@pytest.mark.parametrize("text", ["", "[]", "null", "{", "[" * 100_000, "\x00"])
def test_a_card_that_is_no_card_is_refused(tmp_path, text):
    (tmp_path / "card.json").write_text(text)
    with pytest.raises(DataError, match="cannot be used"):
        read_card(tmp_path)


def test_weights_that_are_not_numbers_are_refused_although_their_checksum_is_right(detector_folder, tmp_path):
    weights, card = read_model(detector_folder, "detector")
    name = next(name for name, value in weights.items() if value.is_floating_point())
    for value in (float("nan"), float("inf")):
        spoilt = weights | {name: torch.full_like(weights[name], value)}
        write_model(open_storage(tmp_path), spoilt, card)
        with pytest.raises(DataError, match="NaN or infinity in 1 of"):
            load_detector(tmp_path)
    for data in (b"", b"\x80\x04N.", b"\xff" * 8 + b"{}", (10**15).to_bytes(8, "little") + b"{}"):
        (tmp_path / "weights.safetensors").write_bytes(data)
        values = json.loads((detector_folder / "card.json").read_text())
        values["weights_sha256"] = hashlib.sha256(data).hexdigest()
        (tmp_path / "card.json").write_text(json.dumps(values))
        with pytest.raises(DataError, match="not a safetensors file"):
            load_detector(tmp_path)
