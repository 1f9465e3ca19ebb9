"""The masked autoencoder: its loss by hand, its window block against timm's, and an overfit on real sound."""

from pathlib import Path

import pytest
import soundfile
import torch
import torchaudio
from timm.models.swin_transformer_v2_cr import SwinTransformerV2CrBlock

from mast_ray.models.autoencoder import (
    AutoencoderArchitecture,
    MaskedAutoencoder,
    SideAutoencoder,
    SideShape,
    cells_of,
    chessboard,
    reconstruction_target,
)
from mast_ray.models.decoder_local import ShiftedWindowBlock
from mast_ray.models.encoder import patches_of
from mast_ray.models.masking import Masking


@pytest.fixture(scope="module", params=["global", "local"])
def autoencoder(request) -> MaskedAutoencoder:
    torch.manual_seed(0)
    return MaskedAutoencoder(AutoencoderArchitecture("tiny", request.param))


def test_loss_is_the_mean_squared_error_of_masked_patches_only(autoencoder):
    logmel = torch.randn(2, 1, 1024, 128)
    mask = Masking().draw(2, torch.Generator().manual_seed(0))
    with torch.no_grad():
        result = autoencoder(logmel, mask)
    patches = patches_of(logmel)
    errors = [
        (result.prediction[b, token] - patches[b, token]).square().mean()
        for b in range(2)
        for token in mask.is_masked[b].nonzero()[:, 0]
    ]
    assert len(errors) == 2 * (512 - 125)
    assert float(result.loss) == pytest.approx(float(torch.stack(errors).mean()), rel=1e-5)


def test_masked_input_cannot_reach_the_prediction(autoencoder):
    logmel = torch.randn(1, 1, 1024, 128)
    mask = Masking().draw(1, torch.Generator().manual_seed(0))
    hidden = mask.is_masked.reshape(1, 1, 64, 8).repeat_interleave(16, 2).repeat_interleave(16, 3)
    with torch.no_grad():
        first = autoencoder(logmel, mask).prediction
        second = autoencoder(torch.where(hidden, logmel + 5.0, logmel), mask).prediction
        third = autoencoder(torch.where(hidden, logmel, logmel + 5.0), mask).prediction
    assert torch.equal(first, second)
    assert not torch.allclose(first, third)


def test_every_parameter_of_a_decoder_learns(autoencoder):
    mask = Masking().draw(2, torch.Generator().manual_seed(0))
    autoencoder(torch.randn(2, 1, 1024, 128), mask).loss.backward()
    silent = [name for name, p in autoencoder.named_parameters() if p.grad is None or not p.grad.abs().any()]
    autoencoder.zero_grad()
    assert silent == []


def test_patch_normalised_target_has_zero_mean_and_unit_variance():
    target = reconstruction_target(3.0 + 2.0 * torch.randn(2, 512, 256), "patch_normalised")
    assert torch.allclose(target.mean(-1), torch.zeros(2, 512), atol=1e-5)
    assert torch.allclose(target.var(-1), torch.ones(2, 512), atol=1e-4)


def test_every_second_patch_is_hidden_and_the_others_are_in_the_other_half():
    even, odd = chessboard(torch.tensor([0, 1]))[:, 0]
    assert not even[:16, :16].any() and even[:16, 16:32].all() and even[16:32, :16].all()
    assert torch.equal(even, ~odd) and even.float().mean() == 0.5


def test_cells_hold_the_values_of_their_place():
    values = torch.arange(1024 * 128.0).reshape(1, 1, 1024, 128)
    cells = cells_of(values, (8, 4))
    assert cells.shape == (1, 32, 128, 32)
    assert torch.equal(cells[0, :, 3, 5].reshape(8, 4), values[0, 0, 24:32, 20:24])


@pytest.mark.parametrize("finest", ["8x4", "4x4", "2x4"])
def test_the_side_path_is_scored_on_what_it_could_not_see(finest):
    torch.manual_seed(0)
    side = SideAutoencoder(SideShape(16, finest)).eval()
    logmel, is_odd = torch.randn(2, 1, 1024, 128), torch.tensor([0, 1])
    hidden = chessboard(is_odd)
    torch.nn.init.zeros_(side.predict.weight)
    torch.nn.init.zeros_(side.predict.bias)
    with torch.no_grad():
        assert float(side(logmel, is_odd)) == pytest.approx(float(logmel[hidden].square().mean()), rel=1e-5)
        torch.nn.init.normal_(side.predict.weight)
        seen: list[torch.Tensor] = []
        side.refine.register_forward_hook(lambda _module, _inputs, output: seen.append(output))
        side(logmel, is_odd)
        side(torch.where(hidden, logmel + 5.0, logmel), is_odd)
        side(torch.where(hidden, logmel, logmel + 5.0), is_odd)
    assert torch.equal(seen[0], seen[1]) and not torch.allclose(seen[0], seen[2])


def test_the_side_path_learns_beside_the_encoder_and_neither_changes_the_other():
    torch.manual_seed(0)
    alone = MaskedAutoencoder(AutoencoderArchitecture("tiny", "global"))
    both = MaskedAutoencoder(AutoencoderArchitecture("tiny", "global", side=SideShape(16)))
    both.load_state_dict(
        alone.state_dict() | {k: v for k, v in both.state_dict().items() if k.startswith("side.")}
    )
    logmel, mask = torch.randn(2, 1, 1024, 128), Masking().draw(2, torch.Generator().manual_seed(0))
    result = both(logmel, mask)
    assert torch.equal(result.loss, alone(logmel, mask).loss) and alone(logmel, mask).side_loss is None
    result.side_loss.backward()
    learning = {name.split(".")[0] for name, p in both.named_parameters() if p.grad is not None}
    assert learning == {"side"}
    assert all(p.grad.abs().any() for name, p in both.named_parameters() if name.startswith("side."))


@pytest.mark.parametrize("shift", [(0, 0), (2, 0), (2, 2)])
def test_window_block_equals_timms_swin_v2_cr_block(shift):
    torch.manual_seed(0)
    theirs = SwinTransformerV2CrBlock(32, 4, (64, 8), (4, 4), shift, init_values=None).eval()
    theirs.shift_size = shift  # timm shifts both axes when it shifts at all
    theirs.attn_mask = theirs.get_attn_mask()
    theirs.norm1.eps = theirs.norm2.eps = 1e-6
    torch.nn.init.uniform_(theirs.attn.logit_scale, 0.5, 3.0)
    ours = ShiftedWindowBlock(32, 4, shift)
    state = {name: tensor for name, tensor in theirs.state_dict().items() if "logit_scale" not in name}
    state["attn.tau"] = 1.0 / theirs.attn.logit_scale.detach().exp()
    ours.load_state_dict(state)
    tokens = torch.randn(2, 512, 32)
    with torch.no_grad():
        expected = theirs(tokens.unflatten(1, (64, 8))).flatten(1, 2)
        assert torch.allclose(ours(tokens), expected, atol=1e-5)


def real_chunks(folder: Path, count: int = 8) -> torch.Tensor:
    """(count, 1, 1024, 128) normalised chunks, one from each of the first long enough real recordings."""
    chunks = []
    for path in sorted(folder.rglob("*.ogg")):
        if soundfile.info(path).duration < 10.3:
            continue
        samples, rate_hz = soundfile.read(path, dtype="float32", always_2d=True)
        wave = torchaudio.functional.resample(torch.from_numpy(samples.mean(1)), rate_hz, 16_000)
        bank = torchaudio.compliance.kaldi.fbank(
            (wave[:164_080] - wave[:164_080].mean())[None],
            htk_compat=True, sample_frequency=16_000, use_energy=False, window_type="hanning",
            num_mel_bins=128, dither=0.0, frame_shift=10,
        )  # fmt: skip
        chunks.append(bank[:1024])
        if len(chunks) == count:
            break
    stacked = torch.stack(chunks)[:, None]
    return (stacked - stacked.mean()) / stacked.std()


@pytest.mark.slow
@pytest.mark.long
def test_200_steps_on_8_real_chunks_cut_the_masked_error_to_a_tenth(shared_data):
    torch.manual_seed(0)
    chunks = real_chunks(shared_data / "clips" / "insects")
    assert len(chunks) == 8
    autoencoder = MaskedAutoencoder(AutoencoderArchitecture("tiny", "global"))
    mask = Masking().draw(8, torch.Generator().manual_seed(0))
    optimizer = torch.optim.AdamW(autoencoder.parameters(), lr=3e-3, betas=(0.9, 0.95), weight_decay=0.0)
    losses = []
    for step in range(200):
        optimizer.param_groups[0]["lr"] = 3e-3 * min(1.0, (step + 1) / 20)
        loss = autoencoder(chunks, mask).loss
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(autoencoder.parameters(), 1.0)
        optimizer.step()
        losses.append(loss.item())
    print(f"masked error {losses[0]:.3f} -> {losses[-1]:.4f}")
    assert losses[-1] < losses[0] / 10
