"""Batched suppression equals torchvision chunk by chunk."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torchvision.ops import nms

from mast_ray.boxes.batch import Detections
from mast_ray.boxes.suppression import keep_after_suppression, sort_detections, suppress, suppress_one
from mast_ray.boxes.validity import is_valid_box


def crowded(seed: int, chunks: int, slots: int, share_valid: float = 0.8) -> Detections:
    generator = torch.Generator().manual_seed(seed)
    corner = torch.rand((chunks, slots, 2), generator=generator) * torch.tensor([200.0, 60.0])
    size = torch.rand((chunks, slots, 2), generator=generator) * torch.tensor([80.0, 30.0]) + 4
    score = torch.randint(1, 20, (chunks, slots), generator=generator) / 20.0  # many equal scores
    valid = torch.rand((chunks, slots), generator=generator) < share_valid
    return Detections(torch.cat((corner, corner + size), -1), score, valid)


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 10_000), st.floats(0.05, 0.9), st.integers(1, 60))
def test_suppression_equals_torchvision_per_chunk(seed: int, threshold: float, slots: int) -> None:
    found = crowded(seed, 3, slots)
    result = suppress(found, threshold)
    for row in range(3):
        valid = found.is_valid[row]
        corners, score = found.corners[row][valid], found.score[row][valid]
        kept = nms(corners, score, threshold)
        count = int(result.is_valid[row].sum())
        assert count == len(kept)
        assert torch.equal(result.corners[row, :count], corners[kept])
        assert torch.equal(result.score[row, :count], score[kept])
        assert not result.is_valid[row, count:].any() and (result.score[row, count:] == 0).all()


def test_an_overlap_of_just_the_threshold_suppresses_nothing() -> None:
    corners = torch.tensor([[0.0, 0, 10, 10], [0, 0, 10, 5]])  # IoU 50 / 100
    assert len(nms(corners, torch.tensor([0.9, 0.8]), 0.5)) == 2
    found = Detections(corners[None], torch.tensor([[0.9, 0.8]]), torch.ones(1, 2, dtype=torch.bool))
    assert suppress(found, 0.5).is_valid.tolist() == [[True, True]]
    assert suppress(found, 0.49).is_valid.tolist() == [[True, False]]


def test_a_chain_of_boxes_is_resolved_from_the_best_downwards() -> None:
    start = torch.arange(9) * 4.0
    corners = torch.stack((start, torch.zeros(9), start + 10, torch.ones(9)), -1)[
        None
    ]  # neighbours: IoU 6/14
    valid = torch.ones(1, 9, dtype=torch.bool)
    alternate = [True, False] * 4 + [True]
    assert keep_after_suppression(corners, valid, 0.4)[0].tolist() == alternate
    assert keep_after_suppression(corners, valid, 0.4, num_steps=9)[0].tolist() == alternate


def test_fixed_steps_equal_iteration_to_the_end() -> None:
    found = sort_detections(crowded(1, 8, 100, share_valid=1.0))
    exact = keep_after_suppression(found.corners, found.is_valid, 0.5)
    assert torch.equal(exact, keep_after_suppression(found.corners, found.is_valid, 0.5, num_steps=16))


def test_invalid_boxes_neither_suppress_nor_survive() -> None:
    corners = torch.tensor([[[0.0, 0, 10, 10], [0, 0, 10, 10]]])
    found = Detections(corners, torch.tensor([[0.9, 0.4]]), torch.tensor([[False, True]]))
    result = suppress(found, 0.5)
    assert result.is_valid.tolist() == [[True, False]] and result.score[0, 0] == pytest.approx(0.4)


def test_what_lies_behind_the_end_of_the_sound_suppresses_nothing() -> None:
    """Of the first box nothing is left at frame 500, of the second ten frames; they overlap by 95 of 110 frames."""
    corners = torch.tensor([[505.0, 0, 600, 10], [490, 0, 600, 10], [100, 20, 300, 30], [100, 40, 200, 40]])
    found = Detections(
        corners.repeat(2, 1, 1), torch.tensor([[0.9, 0.8, 0.7, 0.6]] * 2), torch.ones(2, 4) > 0
    )
    result = suppress(found, 0.5, end_frames=torch.tensor([500.0, 1025.5]))
    assert result.is_valid.tolist() == [[True, True, False, False]] * 2  # the flat box is none at all
    assert result.corners[0, :2].tolist() == [[490.0, 0, 500, 10], [100, 20, 300, 30]]
    assert result.corners[1, :2].tolist() == [[505.0, 0, 600, 10], [100, 20, 300, 30]]


def test_survivors_are_cut_to_the_best() -> None:
    result = suppress(crowded(2, 4, 50), 0.9, max_detections=5)
    assert result.corners.shape == (4, 5, 4)
    assert (result.score.diff(dim=1) <= 0).all()


def test_suppress_one_orders_equal_scores_by_position() -> None:
    corners = torch.tensor([[0.0, 0, 10, 10], [1, 0, 11, 10], [50, 0, 60, 10]])
    assert suppress_one(corners, torch.tensor([0.5, 0.5, 0.5]), 0.5).tolist() == [0, 2]


def test_validity_asks_for_100_ms_two_bins_and_not_both_time_borders() -> None:
    boxes = torch.tensor(
        [
            [5.0, 5, 15, 7],  # exactly 100 ms and 2 bins
            [5, 5, 14.9, 7],  # too short
            [5, 5, 15, 6.9],  # too low
            [0, 5, 1024, 30],  # touches both borders
            [0.4, 5, 1023.6, 30],  # as good as both
            [0, 5, 600, 30],  # one border
        ]
    )
    assert is_valid_box(boxes).tolist() == [True, False, False, False, False, True]
