"""Hearings of one chunk as one, against values worked by hand."""

from __future__ import annotations

import torch

from mast_ray.boxes.batch import Detections
from mast_ray.boxes.fusion import fused
from mast_ray.boxes.suppression import suppress


def hearing(*rows: tuple[float, ...]) -> Detections:
    """(t0, f0, t1, f1, score) rows of one chunk."""
    values = torch.tensor(rows)
    return Detections(values[None, :, :4], values[None, :, 4], values[None, :, 4] > 0)


def test_what_both_hear_is_one_box_between_theirs_with_their_mean_score() -> None:
    first = hearing((0, 0, 10, 10, 0.9), (50, 0, 60, 10, 0.6))
    second = hearing((2, 0, 12, 10, 0.3), (0, 0, 0, 0, 0.0))
    found = suppress(fused([first, second]), 0.5)
    assert found.is_valid.sum() == 2
    # (0.9 * 0 + 0.3 * 2) / 1.2 = 0.5: the first hearing is three times as sure
    torch.testing.assert_close(found.corners[0, 0], torch.tensor([0.5, 0.0, 10.5, 10.0]))
    torch.testing.assert_close(found.score[0, :2], torch.tensor([0.6, 0.3]))
    torch.testing.assert_close(found.corners[0, 1], torch.tensor([50.0, 0.0, 60.0, 10.0]))


def test_boxes_that_overlap_too_little_do_not_support_each_other() -> None:
    found = fused([hearing((0, 0, 10, 10, 0.8)), hearing((5, 0, 15, 10, 0.8))])  # IoU 1/3
    torch.testing.assert_close(found.score, torch.tensor([[0.4, 0.4]]))


def test_one_hearing_supports_a_box_once() -> None:
    """Two boxes of one hearing on one call are not two voices."""
    found = fused(
        [hearing((0, 0, 10, 10, 0.8), (1, 0, 11, 10, 0.7)), hearing((0, 0, 0, 0, 0), (0, 0, 0, 0, 0))]
    )
    torch.testing.assert_close(found.score[0, :2], torch.tensor([0.4, 0.4]))
    assert not found.is_valid[0, 2:].any()
    assert (found.score[0, 2:] == 0).all() and (found.corners[0, 2:] == 0).all()


def test_one_hearing_alone_is_what_it_was() -> None:
    alone = hearing((0, 0, 10, 10, 0.8), (30, 5, 40, 9, 0.2))
    found = fused([alone])
    torch.testing.assert_close(found.corners, alone.corners)
    torch.testing.assert_close(found.score, alone.score)


def test_hearings_need_not_have_as_many_slots_as_each_other() -> None:
    """A DETR has one per query."""
    first = hearing((0, 0, 10, 10, 0.9), (50, 0, 60, 10, 0.6), (80, 0, 90, 10, 0.5))
    second = hearing((80, 0, 90, 10, 0.3))
    for hearings in ([first, second], [second, first]):
        found = suppress(fused(hearings), 0.5)
        torch.testing.assert_close(found.score[0, :3], torch.tensor([0.45, 0.4, 0.3]))
        torch.testing.assert_close(found.corners[0, :3, 0], torch.tensor([0.0, 80.0, 50.0]))
