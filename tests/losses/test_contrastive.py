"""The contrastive loss against the printed formula in loops, and the rules of its samples."""

import math

import pytest
import torch
from torch.nn import functional
from torchvision.ops import box_iou

from mast_ray.boxes.batch import pad_boxes
from mast_ray.losses.contrastive import (
    ContrastiveNoise,
    contrastive_loss,
    contrastive_regions,
    draw_noise,
    jittered,
)

EXTENT = (1024.0, 128.0)


def unit(*shape: int, seed: int = 0) -> torch.Tensor:
    return functional.normalize(torch.randn(shape, generator=torch.Generator().manual_seed(seed)), dim=-1)


def test_loss_equals_the_printed_formula_computed_by_loops():
    anchors, positives, negatives = unit(3, 4, 8), unit(3, 4, 5, 8, seed=1), unit(3, 6, 8, seed=2)
    is_anchor = torch.tensor([[1, 1, 0, 0], [1, 0, 0, 0], [0, 0, 0, 0]], dtype=torch.bool)
    is_negative = torch.tensor([[1, 1, 1, 0, 0, 0], [1, 1, 1, 1, 1, 1], [1, 1, 0, 0, 0, 0]], dtype=torch.bool)
    total, count, tau = 0.0, 0, 0.1
    for b in range(3):
        for i in range(4):
            if not is_anchor[b, i]:
                continue
            up = sum(math.exp(float(anchors[b, i] @ p) / tau) for p in positives[b, i])
            down = sum(
                math.exp(float(anchors[b, i] @ negatives[b, n]) / tau) for n in range(6) if is_negative[b, n]
            )
            total += -math.log(up / (up + down))
            count += 1
    value = contrastive_loss(anchors, is_anchor, positives, negatives, is_negative, tau)
    assert float(value) == pytest.approx(total / count, rel=1e-5)


def test_loss_of_a_single_anchor_is_not_divided_further():
    """The copy is the anchor itself, the negative at right angles to it: -log(e^10 / (e^10 + 1))."""
    along, across = torch.tensor([1.0, 0.0]), torch.tensor([0.0, 1.0])
    yes = torch.ones((1, 1), dtype=torch.bool)
    value = contrastive_loss(along[None, None], yes, along[None, None, None], across[None, None], yes)
    assert float(value) == pytest.approx(math.log1p(math.exp(-10)), rel=0.1)  # float32 beside 10


def test_images_without_boxes_give_zero_with_finite_gradients():
    anchors = unit(2, 3, 8).requires_grad_()
    negatives = unit(2, 4, 8, seed=2).requires_grad_()
    nothing = torch.zeros((2, 3), dtype=torch.bool)
    value = contrastive_loss(
        anchors, nothing, unit(2, 3, 2, 8, seed=1), negatives, torch.zeros((2, 4), dtype=torch.bool)
    )
    value.backward()
    assert float(value.detach()) == 0.0
    assert bool(anchors.grad.isfinite().all()) and bool(negatives.grad.isfinite().all())


@pytest.mark.parametrize("corner", [0.0, 1.0])
def test_the_widest_jitter_still_overlaps_by_07(corner):
    boxes = torch.tensor([[[100.0, 20.0, 200.0, 40.0], [0.0, 0.0, 3.0, 1.0]]])
    inwards = torch.tensor([1.0, 1.0, 0.0, 0.0]) if corner == 0.0 else torch.tensor([0.0, 0.0, 1.0, 1.0])
    copies = jittered(boxes, inwards.expand(1, 2, 1, 4), EXTENT)
    for index in range(2):
        assert float(box_iou(boxes[0, index : index + 1], copies[0, index])) >= 0.7


def test_random_copies_overlap_by_07_differ_and_stay_inside():
    generator = torch.Generator().manual_seed(0)
    low = torch.rand((4, 8, 2), generator=generator) * torch.tensor([900.0, 100.0])
    boxes = torch.cat(
        [low, low + 1 + torch.rand((4, 8, 2), generator=generator) * torch.tensor([120.0, 27.0])], -1
    )
    noise = torch.rand((4, 8, 25, 4), generator=generator)
    copies = jittered(boxes, noise, EXTENT)
    overlaps = torch.stack([box_iou(b[None], c) for b, c in zip(boxes.flatten(0, 1), copies.flatten(0, 1))])
    assert float(overlaps.min()) >= 0.7
    assert float(overlaps.min()) < 0.8 and float(overlaps.max()) < 1.0
    assert (
        float(copies.min()) >= 0
        and float(copies[..., 2].max()) <= 1024
        and float(copies[..., 3].max()) <= 128
    )


def test_negatives_miss_every_box_and_ignore_region_and_come_hardest_first():
    boxes = pad_boxes(
        [torch.tensor([[100.0, 10.0, 200.0, 30.0]]), torch.zeros(0, 4)],
        [torch.tensor([[600.0, 60.0, 700.0, 90.0]]), torch.zeros(0, 4)],
    )
    candidates = torch.tensor(
        [
            [100.0, 10.0, 200.0, 30.0],  # the box itself
            [110.0, 12.0, 190.0, 30.0],  # IoU 0.72
            [190.0, 10.0, 300.0, 30.0],  # IoU 0.05: a negative
            [600.0, 60.0, 650.0, 80.0],  # in the ignore region
            [800.0, 60.0, 900.0, 80.0],  # far away: a negative
            [500.0, 60.0, 500.0, 80.0],  # no area
            [150.0, 10.0, 250.0, 30.0],  # IoU 50 / 150: no longer a miss
            [155.0, 10.0, 255.0, 30.0],  # IoU 45 / 155 = 0.29: a negative
        ]
    ).expand(2, 8, 4)
    score = torch.tensor([[0.9, 0.8, 0.3, 0.7, 0.6, 0.99, 0.2, 0.1]] * 2)
    noise = draw_noise(2, 8, torch.Generator().manual_seed(0))
    regions = contrastive_regions(boxes, candidates, score, noise, EXTENT, num_negatives=4)
    assert regions.is_negative.tolist() == [[True, True, True, False], [True, True, True, True]]
    assert torch.equal(regions.negatives[0, :3], candidates[0, [4, 2, 7]])
    assert torch.equal(regions.negatives[1], candidates[1, [0, 1, 3, 4]])
    assert regions.is_anchor.sum(1).tolist() == [1, 0]


def test_no_more_than_16_anchors_are_drawn_and_each_is_a_box():
    low = torch.arange(30.0)[:, None] * torch.tensor([30.0, 2.0])
    boxes = pad_boxes([torch.cat([low, low + torch.tensor([20.0, 8.0])], -1)])
    noise = draw_noise(1, 32, torch.Generator().manual_seed(0))
    regions = contrastive_regions(boxes, torch.zeros(1, 40, 4), torch.zeros(1, 40), noise, EXTENT)
    assert regions.anchors.shape == (1, 16, 4) and regions.positives.shape == (1, 16, 4, 4)
    assert bool(regions.is_anchor.all())
    assert len({tuple(row.tolist()) for row in regions.anchors[0]}) == 16
    again = ContrastiveNoise(1 - noise.order, noise.jitter)
    other = contrastive_regions(boxes, torch.zeros(1, 40, 4), torch.zeros(1, 40), again, EXTENT)
    assert not torch.equal(other.anchors, regions.anchors)
