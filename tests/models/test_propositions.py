"""The paper's propositions with numbers: quantisation bound, narrow bands, optimal ratio, separable
filters, weighting and noise.
"""

import numpy as np
import pytest
import torch
from torch import nn

from mast_ray.models.upsampling_theory import (
    advise,
    iou_bound,
    optimal_ratio,
    worst_placement_iou,
)


def snapped_iou(start: np.ndarray, extent: tuple[float, float], stride: tuple[float, float]) -> np.ndarray:
    """IoU of a placed box with the tightest enclosing box whose corners lie on the grid."""
    start, step = np.asarray(start), np.asarray(stride)
    low, high = np.floor(start / step) * step, np.ceil((start + extent) / step) * step
    return np.prod(extent / (high - low), axis=-1)


def worst_of_many_placements(extent: tuple[float, float], stride: tuple[float, float]) -> float:
    offsets = [np.arange(0, s, s / 64) for s in stride]
    starts = np.stack(np.meshgrid(*offsets, indexing="ij"), axis=-1).reshape(-1, 2)
    return float(snapped_iou(starts, extent, stride).min())


@pytest.mark.parametrize("extent", [(50.0, 5.0), (16.0, 16.0), (100.0, 12.0), (3.0, 1.5), (400.0, 40.0)])
@pytest.mark.parametrize("stride", [(16.0, 16.0), (8.0, 4.0), (16.0, 4.0)])
def test_proposition_1_some_placement_falls_to_the_bound_or_below(extent, stride):
    worst = worst_of_many_placements(extent, stride)
    assert worst <= iou_bound(extent, stride) + 1e-12
    assert worst == pytest.approx(float(worst_placement_iou(extent, stride)), abs=1e-9)


def test_proposition_1_by_hand():
    assert iou_bound((48.0, 16.0), (16.0, 16.0)) == pytest.approx(48 * 16 / (64 * 32))
    # 20 frames on a grid of 16: worst is 3 cells = 48; 16 bins: 32
    assert worst_placement_iou((20.0, 16.0), (16.0, 16.0)) == pytest.approx(20 / 48 * 16 / 32)
    assert snapped_iou((0.0, 0.0), (48.0, 16.0), (16.0, 16.0)) == 1.0


def test_corollary_2_a_narrow_band_stays_under_one_half_whatever_its_length():
    lengths = np.geomspace(1, 1e9, 200)
    for height in (1.0, 4.0, 16.0):
        bound = iou_bound(np.stack([lengths, np.full_like(lengths, height)], axis=-1), (16.0, 16.0))
        assert bound.max() < 0.5
    assert iou_bound((1e9, 16.0), (16.0, 16.0)) == pytest.approx(0.5, abs=1e-6)


def test_upsampling_2_by_4_lifts_16_bins_over_one_half_from_14_frames_on():
    bound = lambda frames: float(iou_bound((frames, 16.0), (8.0, 4.0)))  # noqa: E731
    assert bound(14.0) == pytest.approx(14 * 16 / (22 * 20)) and bound(14.0) > 0.5
    assert bound(13.0) < 0.5


@pytest.mark.parametrize("extent", [(100.0, 10.0), (64.0, 32.0), (20.0, 20.0), (8.0, 40.0)])
@pytest.mark.parametrize("budget", [4.0, 8.0, 16.0])
def test_proposition_3_no_other_allocation_beats_the_ratio_of_extents(extent, budget):
    ratio = float(optimal_ratio(extent))
    assert ratio == extent[0] / extent[1]
    time, frequency = np.sqrt(budget / ratio), np.sqrt(budget * ratio)
    best = float(iou_bound(extent, (16 / time, 16 / frequency)))
    for other in np.geomspace(time / 8, time * 8, 201):
        assert iou_bound(extent, (16 / other, 16 * other / budget)) <= best + 1e-12


def test_proposition_4_separable_filters_have_2_over_k_of_the_parameters():
    for kernel in (3, 5, 7):
        with torch.device("meta"):
            along = nn.Sequential(
                nn.Conv2d(64, 64, (kernel, 1), bias=False), nn.Conv2d(64, 64, (1, kernel), bias=False)
            )
            square = nn.Conv2d(64, 64, kernel, bias=False)
        counts = tuple(sum(p.numel() for p in m.parameters()) for m in (along, square))
        assert counts == (2 * 64**2 * kernel, 64**2 * kernel**2)
        assert counts[1] / counts[0] == kernel / 2


def test_proposition_4_separable_filters_see_a_k_by_k_field_with_rank_at_most_c():
    torch.manual_seed(0)
    for channels, rank in ((1, 1), (2, 2), (5, 3)):
        time = nn.Conv2d(channels, channels, (3, 1), padding=(1, 0), bias=False)
        frequency = nn.Conv2d(channels, channels, (1, 3), padding=(0, 1), bias=False)
        pulse = torch.zeros(1, channels, 9, 9)
        pulse[0, 0, 4, 4] = 1.0
        with torch.no_grad():
            response = frequency(time(pulse))[0, 0]
        assert bool((response[3:6, 3:6] != 0).all())
        outside = response.clone()
        outside[3:6, 3:6] = 0
        assert float(outside.abs().max()) == 0.0
        assert int(torch.linalg.matrix_rank(response[3:6, 3:6])) == rank == min(channels, 3)


@pytest.mark.parametrize("seed", range(5))
def test_proposition_6_confidence_weighting_lowers_the_effective_noise_rate(seed):
    confidence = np.random.default_rng(seed).uniform(0.1, 1.0, 500)
    error = 0.6 * (1 - confidence) ** 2 + 0.02  # falls as confidence rises
    weighted = (confidence * error).sum() / confidence.sum()
    assert weighted < error.mean()
    equal = np.full(500, 0.4)
    assert (equal * error).sum() / equal.sum() == pytest.approx(error.mean())
    worse = 0.02 + 0.5 * confidence  # the assumption broken: confident labels are the wrong ones
    assert (confidence * worse).sum() / confidence.sum() > worse.mean()


@pytest.mark.parametrize("alpha", [0.1, 0.5, 0.9])
def test_proposition_5_gap_of_the_effective_distribution_is_bounded(alpha):
    """Total variation of (1 - a) pseudo + a labelled from the target, on a discrete label space."""
    rng = np.random.default_rng(0)
    target, labelled = rng.dirichlet(np.ones(20)), rng.dirichlet(np.ones(20))
    agreement = 0.7  # coverage times precision: this share of the mass is right, the rest is anything
    pseudo = agreement * target + (1 - agreement) * rng.dirichlet(np.ones(20))
    distance = lambda p, q: 0.5 * np.abs(p - q).sum()  # noqa: E731
    effective = (1 - alpha) * pseudo + alpha * labelled
    bound = (1 - alpha) * (1 - agreement) + alpha * distance(labelled, target)
    assert distance(effective, target) <= bound


def test_advice_prefers_frequency_for_long_low_boxes_and_time_for_short_high_ones():
    assert advise([[200.0, 10.0], [150.0, 6.0]], 8)[0].factors in {(1, 8), (2, 4)}
    assert advise([[6.0, 60.0]], 8)[0].factors == (8, 1)
    choices = advise([[60.0, 16.0]], 8)
    assert {choice.factors for choice in choices} == {(1, 8), (2, 4), (4, 2), (8, 1)}
    two_by_four = next(choice for choice in choices if choice.factors == (2, 4))
    assert two_by_four.mean_bound == pytest.approx(60 * 16 / (68 * 20))
    assert two_by_four.strides == (8.0, 4.0) and two_by_four.share_at_least_half == 1.0
