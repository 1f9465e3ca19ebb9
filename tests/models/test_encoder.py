"""The encoder against torch's transformer layer and its own definition of tokens."""

import pytest
import torch
from torch import nn

from mast_ray.models.encoder import build_encoder, patches_of, sincos_positions, spectrogram_of
from mast_ray.models.layers import transformer_block


def num_parameters(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


def test_base_encoder_has_86_million_parameters_with_its_positions():
    with torch.device("meta"):
        encoder = build_encoder("base")
    # blocks: 12 * (12 * 768^2 + 13 * 768); embedding 257 * 768; class token 768; norm 2 * 768
    assert num_parameters(encoder) == 12 * (12 * 768**2 + 13 * 768) + 257 * 768 + 768 + 2 * 768
    assert (num_parameters(encoder) + encoder.pos_embed.numel()) / 1e6 == pytest.approx(85.65, abs=0.01)


@pytest.mark.parametrize(
    ("size", "width", "depth", "millions"), [("large", 1024, 24, 302.6), ("huge", 1280, 32, 630.0)]
)
def test_large_and_huge_are_vit_l_and_vit_h(size, width, depth, millions):
    with torch.device("meta"):
        encoder = build_encoder(size)
    expected = depth * (12 * width**2 + 13 * width) + 257 * width + width + 2 * width
    assert num_parameters(encoder) == expected
    assert expected / 1e6 == pytest.approx(millions, abs=0.05)


def test_blocks_computed_again_give_the_same_gradients_and_run_twice():
    torch.manual_seed(0)
    encoder = build_encoder("tiny").train()
    logmel, runs = torch.randn(2, 1, 1024, 128), []
    for block in encoder.blocks:
        block.register_forward_pre_hook(lambda *_: runs.append(1))
    found = []
    for encoder.recomputes in (False, True):
        encoder.zero_grad()
        encoder(logmel).square().mean().backward()
        found.append([parameter.grad.clone() for parameter in encoder.parameters()])
        assert len(runs) == (4 if not encoder.recomputes else 4 + 8)
    assert all(torch.equal(kept, again) for kept, again in zip(*found, strict=True))
    runs.clear()
    with torch.no_grad():  # nothing is kept, so nothing is computed again
        encoder(logmel)
    assert len(runs) == 4


def test_patches_are_time_major_tiles_and_round_trip():
    logmel = torch.arange(2 * 1024 * 128, dtype=torch.float32).reshape(2, 1, 1024, 128)
    patches = patches_of(logmel)
    assert patches.shape == (2, 512, 256)
    time, frequency = 3, 5
    tile = logmel[1, 0, 16 * time : 16 * time + 16, 16 * frequency : 16 * frequency + 16]
    assert torch.equal(patches[1, 8 * time + frequency], tile.flatten())
    assert torch.equal(spectrogram_of(patches), logmel)


def test_positions_follow_tokens_and_leave_the_class_token_zero():
    table = sincos_positions(64)[0]
    assert table.shape == (513, 64)
    assert torch.equal(table[0], torch.zeros(64))
    time, frequency = 10, 6
    row = table[1 + 8 * time + frequency]
    rates = [10_000.0 ** (-i / 16) for i in range(16)]
    expected = [torch.sin(torch.tensor(frequency * r)) for r in rates] + [
        torch.cos(torch.tensor(frequency * r)) for r in rates
    ]
    assert torch.allclose(row[:32], torch.stack(expected), atol=1e-6)
    assert row[32] == pytest.approx(float(torch.sin(torch.tensor(10.0))), abs=1e-6)


def test_block_equals_torchs_pre_norm_layer_with_the_same_state():
    torch.manual_seed(0)
    ours = transformer_block(32, 4)
    theirs = nn.TransformerEncoderLayer(
        32, 4, 128, dropout=0.0, activation="gelu", layer_norm_eps=1e-6, batch_first=True, norm_first=True
    )
    names = {
        "self_attn.in_proj_": "attn.qkv.", "self_attn.out_proj.": "attn.proj.",
        "linear1.": "mlp.fc1.", "linear2.": "mlp.fc2.", "norm": "norm",
    }  # fmt: skip
    state = ours.state_dict()
    for name, tensor in theirs.state_dict().items():
        old, new = next(pair for pair in names.items() if name.startswith(pair[0]))
        tensor.copy_(state.pop(name.replace(old, new)))
    assert not state
    tokens = torch.randn(2, 7, 32)
    assert torch.allclose(ours(tokens), theirs(tokens), atol=1e-5)


def test_attention_runs_in_the_fused_kernel_and_the_encoder_compiles_without_a_break():
    encoder = build_encoder("tiny").eval()
    assert all(block.attn.fused_attn for block in encoder.blocks)
    logmel = torch.randn(1, 1, 1024, 128)
    compiled = torch.compile(encoder, backend="eager", fullgraph=True)  # raises where a graph breaks
    with torch.no_grad():
        torch.testing.assert_close(compiled(logmel), encoder(logmel), rtol=1e-4, atol=1e-4)


def test_keeping_every_token_gives_the_full_token_map():
    torch.manual_seed(0)
    encoder = build_encoder("tiny").eval()
    logmel = torch.randn(2, 1, 1024, 128)
    token_map = encoder(logmel)
    assert token_map.shape == (2, 128, 64, 8)
    keep_all = torch.arange(512).expand(2, -1)
    visible = encoder.forward_visible(patches_of(logmel), keep_all)
    assert torch.allclose(visible[:, 1:].transpose(1, 2).reshape(2, 128, 64, 8), token_map, atol=1e-5)


def test_residual_stream_stays_in_the_autocast_type():
    encoder = build_encoder("tiny")
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        assert encoder(torch.randn(1, 1, 1024, 128)).dtype == torch.bfloat16
