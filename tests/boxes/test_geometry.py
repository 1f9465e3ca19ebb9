"""Areas and overlaps against torchvision and worked by hand."""

import pytest
import torch
from torchvision import ops

from mast_ray.boxes.geometry import (
    area,
    centres,
    clip,
    paired_giou,
    paired_iou,
    pairwise_covered,
    pairwise_intersection,
    pairwise_iou,
)


def random_boxes(*shape: int, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    corner = torch.rand((*shape, 2), generator=generator) * torch.tensor([1000.0, 120.0])
    size = torch.rand((*shape, 2), generator=generator) * torch.tensor([300.0, 60.0]) + 0.1
    return torch.cat((corner, corner + size), dim=-1)


def pairwise_giou(first: torch.Tensor, second: torch.Tensor) -> torch.Tensor:
    return paired_giou(first[..., :, None, :], second[..., None, :, :])


def test_iou_and_giou_equal_torchvision() -> None:
    first, second = random_boxes(40), random_boxes(60, seed=1)
    torch.testing.assert_close(area(first), ops.box_area(first))
    torch.testing.assert_close(pairwise_iou(first, second), ops.box_iou(first, second))
    torch.testing.assert_close(pairwise_giou(first, second), ops.generalized_box_iou(first, second))


def test_leading_batch_dimensions_give_what_each_chunk_gives_alone() -> None:
    first, second = random_boxes(3, 5, 7), random_boxes(3, 5, 4, seed=1)
    for function, oracle in ((pairwise_iou, ops.box_iou), (pairwise_giou, ops.generalized_box_iou)):
        together = function(first, second)
        assert together.shape == (3, 5, 7, 4)
        torch.testing.assert_close(together[2, 3], oracle(first[2, 3], second[2, 3]))


def test_paired_overlaps_are_the_diagonal_of_pairwise_ones() -> None:
    first, second = random_boxes(2, 9), random_boxes(2, 9, seed=1)
    torch.testing.assert_close(
        paired_iou(first, second), pairwise_iou(first, second).diagonal(dim1=1, dim2=2)
    )
    for number in range(2):
        whole = ops.generalized_box_iou(first[number], second[number])
        torch.testing.assert_close(paired_giou(first, second)[number], whole.diagonal())


def test_overlap_of_two_boxes_worked_by_hand() -> None:
    first, second = torch.tensor([[0.0, 0, 10, 4]]), torch.tensor([[5.0, 2, 15, 6]])
    # shared 5 x 2 = 10, union 40 + 40 - 10 = 70, hull 15 x 6 = 90
    assert pairwise_intersection(first, second).item() == 10
    assert paired_iou(first, second).item() == pytest.approx(1 / 7)
    assert paired_giou(first, second).item() == pytest.approx(1 / 7 - 20 / 90)
    assert pairwise_covered(first, second).item() == pytest.approx(0.25)
    assert centres(second).tolist() == [[10.0, 4.0]]


def test_empty_slots_overlap_nothing_and_give_no_nan_in_value_or_gradient() -> None:
    boxes = torch.zeros(2, 3, 4, requires_grad=True)
    for function in (pairwise_iou, pairwise_giou, pairwise_covered):
        value = function(boxes, boxes)
        assert (value == 0).all()
        value.sum().backward()
        assert boxes.grad is not None and boxes.grad.isfinite().all()


def test_giou_gradient_pulls_distant_boxes_together() -> None:
    box = torch.tensor([[0.0, 0, 10, 10]], requires_grad=True)
    paired_giou(box, torch.tensor([[20.0, 0, 30, 10]])).sum().backward()
    assert box.grad is not None and box.grad[0, 2] > 0  # moving the end towards the other raises GIoU


def test_clipping_moves_corners_inside_and_collapses_boxes_outside() -> None:
    boxes = torch.tensor([[-5.0, -1, 3, 200], [1030, 10, 1040, 20], [4, 5, 6, 7]])
    clipped = clip(boxes, 1024, 128)
    assert clipped.tolist() == [[0, 0, 3, 128], [1024, 10, 1024, 20], [4, 5, 6, 7]]
    assert area(clipped)[1] == 0
    torch.testing.assert_close(
        clip(random_boxes(50), 500, 64)[:, [0, 1, 2, 3]], ops.clip_boxes_to_image(random_boxes(50), (64, 500))
    )


@pytest.mark.parametrize("aligned", [True, False])
def test_roi_align_reads_time_first_boxes_when_the_map_is_laid_out_frequency_by_time(aligned: bool) -> None:
    """torchvision calls the first box coordinate x = last axis: a (T, F) map needs (f0, t0, f1, t1)."""
    ramp = torch.arange(64.0)[:, None].expand(64, 8)[None, None]  # value = time cell
    box = torch.tensor([[0.0, 10, 2, 20, 6]])  # chunk, t0, f0, t1, f1
    swapped = box[:, [0, 2, 1, 4, 3]]
    value = ops.roi_align(ramp.contiguous(), swapped, (2, 1), aligned=aligned).flatten()
    shift = 0.5 if aligned else 0.0
    torch.testing.assert_close(value, torch.tensor([12.5, 17.5]) - shift)
