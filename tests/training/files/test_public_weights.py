"""AudioMAE's checkpoint as it is published: a .pth with "model" inside, read without running anything in it."""

import argparse
import logging
import pickle
from pathlib import Path

import pytest
import torch
from public_weights import export_state
from toy import weights_equal

from mast_ray.config.errors import DataError
from mast_ray.config.loading import apply_overrides
from mast_ray.config.recipes import tiny
from mast_ray.models.audiomae import public_layout
from mast_ray.training.assembly import detection, load_encoder_weights, reconstruction

CONFIG = apply_overrides(
    tiny(), {"spectrogram.divisor": 2.0, "model.decoder": "local", "pretrain.target": "raw"}
)


@pytest.fixture(scope="module")
def original():
    return reconstruction(apply_overrides(CONFIG, {"seed": 7})).autoencoder


def saved(path: Path, content) -> str:
    torch.save(content, path)
    return str(path)


def test_encoder_and_decoder_are_read_from_the_published_file(original, tmp_path, caplog):
    settings = argparse.Namespace(batch_size=64, norm_pix_loss=True)
    file = saved(
        tmp_path / "pretrained.pth", {"model": export_state(original), "args": settings, "epoch": 32}
    )
    detector = detection(CONFIG, CONFIG.detector)
    load_encoder_weights(detector, file, CONFIG)
    assert weights_equal(detector.detector.encoder.state_dict(), original.encoder.state_dict())
    whole = reconstruction(CONFIG)
    with caplog.at_level(logging.WARNING):
        load_encoder_weights(whole, file, CONFIG)
    for part in ("encoder", "decoder"):
        own, theirs = getattr(whole.autoencoder, part), getattr(original, part)
        assert weights_equal(own.state_dict(), theirs.state_dict())
    assert (
        "patch_normalised" in caplog.text
    )  # its decoder predicted normalised patches, this one's predicts raw ones


def test_the_target_it_was_trained_for_goes_on_without_a_warning(original, tmp_path, caplog):
    file = saved(tmp_path / "pretrained.pth", {"model": export_state(original)})
    config = apply_overrides(CONFIG, {"pretrain.target": "patch_normalised"})
    with caplog.at_level(logging.WARNING):
        load_encoder_weights(reconstruction(config), file, config)
    assert not caplog.text


def test_a_global_decoder_of_theirs_is_said_to_begin_anew(tmp_path, caplog):
    """It has heads of half the width and a class token."""
    config = apply_overrides(CONFIG, {"model.decoder": "global"})
    state = {name: torch.full(shape, 0.5) for name, shape in public_layout("tiny", "global").items()}
    objective, fresh = reconstruction(config), reconstruction(config).autoencoder
    with caplog.at_level(logging.WARNING):
        load_encoder_weights(objective, saved(tmp_path / "pretrained.pth", {"model": state}), config)
    whole = objective.autoencoder
    assert all(bool((value == 0.5).all()) for value in whole.encoder.state_dict().values())
    assert weights_equal(whole.decoder.state_dict(), fresh.decoder.state_dict())
    assert "ours begins anew" in caplog.text and "has to learn anew" not in caplog.text


class Trap:
    def __reduce__(self):
        return (Path.touch, (Path("sprung"),))


def test_code_inside_a_checkpoint_is_never_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "evil.pth").write_bytes(pickle.dumps({"model": Trap()}))
    saved(tmp_path / "evil_zip.pth", {"model": {"weight": torch.ones(1)}, "args": Trap()})
    for name in ("evil.pth", "evil_zip.pth"):
        with pytest.raises(DataError, match="never run"):
            load_encoder_weights(detection(CONFIG, CONFIG.detector), name, CONFIG)
    assert not (tmp_path / "sprung").exists()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({"optimizer": {"lr": 1.0}}, "holds no weights"),
        ([torch.ones(2)], "holds no weights"),
        ({"model": {"stem.weight": torch.ones(2)}}, "does not have AudioMAE's names"),
    ],
)
def test_another_layout_is_refused_with_the_remedy(content, message, tmp_path):
    file = saved(tmp_path / "other.pth", content)
    with pytest.raises(DataError, match=message):
        load_encoder_weights(detection(CONFIG, CONFIG.detector), file, CONFIG)


@pytest.mark.parametrize(
    "content",
    [b"", b"{}", (1 << 62).to_bytes(8, "little") + b"{", bytes(100)],
    ids=("empty", "short", "endless", "zeros"),
)
def test_safetensors_that_are_cut_short_are_told(content, tmp_path):
    (tmp_path / "x.safetensors").write_bytes(content)
    with pytest.raises(DataError, match=r"x.safetensors is damaged or cut short"):
        load_encoder_weights(detection(CONFIG, CONFIG.detector), str(tmp_path / "x.safetensors"), CONFIG)


def test_tensors_of_another_shape_are_listed(original, tmp_path):
    state = export_state(original)
    state["blocks.0.attn.qkv.weight"] = torch.ones(3, 3)
    file = saved(tmp_path / "other.pth", {"model": state})
    with pytest.raises(DataError, match=r"blocks\.0\.attn\.qkv\.weight is \(3, 3\)"):
        load_encoder_weights(detection(CONFIG, CONFIG.detector), file, CONFIG)
