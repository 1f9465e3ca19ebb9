"""Masks: exact counts, per-chunk draws, reproducibility."""

import pytest
import torch

from mast_ray.config.errors import ConfigError
from mast_ray.models.masking import Masking


def test_structured_mask_keeps_25_by_5_tokens_as_an_outer_product():
    masking = Masking("structured")
    mask = masking.draw(16, torch.Generator().manual_seed(0))
    assert masking.num_kept == 125
    assert mask.keep_index.shape == (16, 125)
    kept = ~mask.is_masked.reshape(16, 64, 8)
    for chunk in kept:
        times, bins = chunk.any(1), chunk.any(0)
        assert (int(times.sum()), int(bins.sum())) == (25, 5)
        assert torch.equal(chunk, times[:, None] & bins[None])
    assert float(mask.is_masked.float().mean()) == pytest.approx(1 - 125 / 512)


def test_random_mask_keeps_a_quarter():
    mask = Masking("random").draw(4, torch.Generator().manual_seed(0))
    assert mask.keep_index.shape == (4, 128)
    assert mask.is_masked.sum(1).tolist() == [384] * 4


@pytest.mark.parametrize("name", ["structured", "random"])
def test_index_and_flags_agree_and_chunks_differ(name):
    mask = Masking(name).draw(8, torch.Generator().manual_seed(1))
    for chunk in range(8):
        assert torch.equal((~mask.is_masked[chunk]).nonzero()[:, 0], mask.keep_index[chunk])
    assert len({tuple(row.tolist()) for row in mask.keep_index}) == 8


def test_same_seed_same_mask_and_another_seed_another():
    draw = lambda seed: Masking().draw(2, torch.Generator().manual_seed(seed)).keep_index  # noqa: E731
    assert torch.equal(draw(3), draw(3))
    assert not torch.equal(draw(3), draw(4))


def test_every_token_is_masked_equally_often():
    mask = Masking().draw(4000, torch.Generator().manual_seed(0))
    share = mask.is_masked.float().mean(0)
    # Binomial with p = 0.756 over 4000 draws: five standard deviations are 0.034.
    assert float((share - (1 - 125 / 512)).abs().max()) < 0.034


def test_fixed_mask_belongs_to_the_chunk_not_to_the_batch():
    masking = Masking()
    together = masking.fixed(("a:0", "b:7", "c:1"), seed=5, device="cpu")
    alone = masking.fixed(("b:7",), seed=5, device="cpu")
    assert torch.equal(together.keep_index[1], alone.keep_index[0])
    assert not torch.equal(together.keep_index[0], together.keep_index[1])


@pytest.mark.parametrize(
    "knobs, said",
    [
        ({"frequency_ratio": 0.9}, "frequency_mask=0.9 hide every patch"),  # 0.8 of 8 rows: none
        ({"time_ratio": 0.0, "frequency_ratio": 0.0}, "hide no patch"),
        ({"name": "random", "random_ratio": 1.0}, "random_mask=1 hide every patch"),
        ({"name": "random", "random_ratio": 0.0}, "hide no patch"),
    ],
)
def test_masks_that_leave_nothing_to_see_or_nothing_to_predict_are_refused(knobs, said):
    with pytest.raises(ConfigError, match=said) as told:
        Masking(**knobs)
    assert len(str(told.value).splitlines()) <= 3


def test_one_axis_alone_may_be_masked():
    assert Masking(frequency_ratio=0.0).num_kept == 25 * 8
    assert Masking(frequency_ratio=0.875).num_kept == 25
