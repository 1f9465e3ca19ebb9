"""Statistics that merge over shards, and normalisation of stored chunks."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from mast_ray.spectrogram.logmel import LOG_FLOOR
from mast_ray.spectrogram.normalisation import Moments, Normalisation
from mast_ray.spectrogram.storage import quantise


@given(st.lists(st.lists(st.floats(-20, 12), max_size=30), max_size=6), st.randoms())
def test_moments_of_shards_merge_to_those_of_the_whole_in_any_order(
    shards: list[list[float]], random
) -> None:
    parts = [Moments.of(shard) for shard in shards]
    random.shuffle(parts)
    merged = Moments()
    for part in parts:
        merged = merged.merge(part)
    whole = np.array([value for shard in shards for value in shard])
    assert merged.count == len(whole)
    if len(whole):
        assert merged.mean == pytest.approx(whole.mean(), abs=1e-10)
        assert merged.std == pytest.approx(whole.std(), abs=1e-7)


def test_moments_are_stable_far_from_zero() -> None:
    values = np.random.default_rng(0).standard_normal(100_000) * 1e-3 + 1e6
    merged = Moments()
    for part in np.split(values, 100):
        merged = merged.merge(Moments.of(part))
    assert merged.std == pytest.approx(values.std(), rel=1e-6)


def test_moments_survive_a_dictionary() -> None:
    moments = Moments.of([1.0, 2.0, 4.0])
    assert Moments.from_dict(moments.to_dict()) == moments
    assert moments.mean == pytest.approx(7 / 3) and moments.std == pytest.approx(np.std([1, 2, 4]))


def test_normalisation_survives_a_dictionary_and_equals_only_itself() -> None:
    normalisation = Normalisation(-6.5, 3.0, divisor=2.0)
    assert Normalisation.from_dict(normalisation.to_dict()) == normalisation
    assert Normalisation(-6.5, 3.1, divisor=2.0) != normalisation


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize("divisor", [1.0, 2.0])
def test_float_chunks_are_centred_and_divided(dtype: torch.dtype, divisor: float) -> None:
    raw = (torch.randn(2, 1024, 128, generator=torch.Generator().manual_seed(0)) * 3 - 6).to(dtype)
    out = Normalisation(-6.0, 3.0, divisor)(raw)
    assert out.shape == (2, 1, 1024, 128) and out.dtype == torch.float32
    torch.testing.assert_close(out[:, 0], (raw.float() + 6) / ((3.0 + 1e-6) * divisor), atol=1e-5, rtol=1e-5)


def test_bytes_are_dequantised_with_the_scale_of_their_own_recording() -> None:
    values = np.random.default_rng(0).uniform(-15, 3, (2, 1024, 128)).astype(np.float32)
    values[1] *= 0.5
    stored = [quantise(chunk, "uint8", None) for chunk in values]
    raw = torch.from_numpy(np.stack([s.values for s in stored]))
    scale, offset = torch.tensor([s.scale for s in stored]), torch.tensor([s.offset for s in stored])
    out = Normalisation(-6.0, 3.0)(raw, scale, offset)
    assert (out[:, 0] * 3 - 6 - torch.from_numpy(values)).abs().max() < 0.5 * max(
        s.scale for s in stored
    ) + 1e-4


def test_segments_quantised_apart_may_share_a_chunk() -> None:
    raw = torch.ones(1, 1024, 128, dtype=torch.uint8)
    out = Normalisation(0.0, 1.0, eps=0.0)(raw, torch.tensor([[2.0, 3.0]]), torch.tensor([[10.0, 20.0]]))
    assert (out[0, 0, :512] == 12).all() and (out[0, 0, 512:] == 23).all()


@pytest.mark.parametrize("quantised", [True, False])
def test_the_zero_tail_is_zero_before_normalisation(quantised: bool) -> None:
    normalisation = Normalisation(-6.0, 3.0, eps=0.0)
    raw = torch.full((1, 1024, 128), 7, dtype=torch.uint8)
    out = (
        normalisation(raw, torch.ones(1), torch.zeros(1), "zeros")
        if quantised
        else normalisation(raw, tail="zeros")
    )
    assert torch.equal(out[0, 0, 1022:], torch.full((2, 128), 2.0))
    assert out[0, 0, 1021, 0] == pytest.approx(13 / 3)


def test_silence_is_the_floor_of_the_logarithm() -> None:
    normalisation = Normalisation(-6.0, 3.0, divisor=2.0)
    assert normalisation.silence * normalisation.denominator - 6.0 == pytest.approx(LOG_FLOOR, abs=1e-5)


def test_values_on_one_scale_become_those_on_another():
    ours, theirs = (
        Normalisation(-6.0, 3.0, background="median"),
        Normalisation(0.5, 1.2, 2.0, background="median"),
    )
    gain, shift = ours.scale_from(theirs)
    log_mel = torch.linspace(-10, 4, 7)
    normalised = torch.tensor([theirs.of_value(float(value)) for value in log_mel])
    expected = torch.tensor([ours.of_value(float(value)) for value in log_mel])
    torch.testing.assert_close(normalised * gain + shift, expected)
    assert ours.scale_from(ours) == (1.0, 0.0)
