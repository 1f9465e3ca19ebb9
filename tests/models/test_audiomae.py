"""AudioMAE's public layout: every name and shape, loading, exporting, refusing."""

import json

import pytest
import torch
from public_weights import export_state

from mast_ray.config.errors import DataError
from mast_ray.models.audiomae import (
    encoder_layout,
    import_encoder,
    import_state,
    is_public_layout,
    public_layout,
)
from mast_ray.models.autoencoder import AutoencoderArchitecture, MaskedAutoencoder
from mast_ray.models.encoder import build_encoder

PUBLIC = {"global": "global decoder (8 blocks)", "local": "local decoder (16 shifted-window blocks)"}


def shapes_of(state) -> dict[str, tuple[int, ...]]:
    return {name: tuple(tensor.shape) for name, tensor in state.items()}


@pytest.mark.parametrize("decoder", ["global", "local"])
def test_layout_lists_exactly_the_public_names_and_shapes(decoder, shared_folder):
    listing = shared_folder / "audiomae_state_dict.json"
    if not listing.exists():
        pytest.skip("no list of AudioMAE's public names beside the checkout")
    public = {name: tuple(shape) for name, shape in json.loads(listing.read_text())[PUBLIC[decoder]].items()}
    assert public_layout("base", decoder) == public


@pytest.mark.parametrize("decoder", ["global", "local"])
def test_exported_base_state_has_exactly_the_layout(decoder):
    with torch.device("meta"):
        autoencoder = MaskedAutoencoder(AutoencoderArchitecture("base", decoder))
    layout = public_layout("base", decoder)
    assert len(layout) == {"global": 254, "local": 430}[decoder]
    if decoder == "global":  # ours has no class token: nobody takes one for the other
        assert layout.pop("decoder_pos_embed") == (1, 513, 512)
        layout["decoder_pos_embed"] = (1, 512, 512)
    assert shapes_of(export_state(autoencoder)) == layout


def drawn_state(decoder: str) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    layout = public_layout("tiny", decoder)
    return {name: torch.randn(shape, generator=generator) for name, shape in layout.items()}


def test_a_global_decoder_begins_anew_beside_the_encoder():
    autoencoder = MaskedAutoencoder(AutoencoderArchitecture("tiny", "global"))
    fresh = {name: value.clone() for name, value in autoencoder.decoder.state_dict().items()}
    state = drawn_state("global")
    import_state(autoencoder, state)
    assert torch.equal(autoencoder.encoder.blocks[1].attn.qkv.weight, state["blocks.1.attn.qkv.weight"])
    assert all(torch.equal(value, fresh[name]) for name, value in autoencoder.decoder.state_dict().items())


def test_a_state_with_public_names_loads_with_its_own_positions_and_comes_back_unchanged():
    state = drawn_state("local")
    autoencoder = MaskedAutoencoder(AutoencoderArchitecture("tiny", "local"))
    import_state(autoencoder, state)
    assert torch.equal(autoencoder.encoder.pos_embed, state["pos_embed"])
    assert torch.equal(autoencoder.encoder.blocks[1].attn.qkv.weight, state["blocks.1.attn.qkv.weight"])
    exported = export_state(autoencoder)
    assert exported.keys() == state.keys()
    assert all(torch.equal(exported[name], state[name]) for name in state)
    assert is_public_layout(exported) and not is_public_layout(autoencoder.state_dict())


def test_encoder_loads_from_a_whole_checkpoint():
    state = {name: torch.full(shape, 0.5) for name, shape in public_layout("tiny", "local").items()}
    encoder = build_encoder("tiny")
    import_encoder(encoder, state, "tiny")
    assert all(bool((tensor == 0.5).all()) for tensor in encoder.state_dict().values())
    assert encoder.state_dict().keys() == encoder_layout("tiny").keys()


def test_misfits_are_listed_by_name_in_three_lines():
    state = {name: torch.zeros(shape) for name, shape in public_layout("tiny", "global").items()}
    del state["norm.bias"]
    state["cls_token"] = torch.zeros(1, 1, 99)
    state["head.weight"] = torch.zeros(1)
    with pytest.raises(DataError) as error:
        import_state(MaskedAutoencoder(AutoencoderArchitecture("tiny", "global")), state)
    text = str(error.value)
    assert "3 tensors do not fit" in text
    for part in ("missing norm.bias", "cls_token is (1, 1, 99), needs (1, 1, 128)", "unknown head.weight"):
        assert part in text
    assert len(text.splitlines()) == 3


def test_a_local_checkpoint_is_refused_by_a_global_decoder():
    state = {name: torch.zeros(shape) for name, shape in public_layout("tiny", "local").items()}
    with pytest.raises(DataError, match=r"unknown decoder_blocks\.0\.attn\.tau"):
        import_state(MaskedAutoencoder(AutoencoderArchitecture("tiny", "global")), state)
