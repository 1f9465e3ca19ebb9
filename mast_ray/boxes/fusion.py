"""Detections of the same chunks by several hearings as one: what all of them hear scores high, what one alone hears low.

Legend: B chunks, V hearings, N boxes of all of them. A box's support by a hearing is the best score that this
gives to a box which overlaps it enough, 0 without one; its fused score is the mean of its supports, its corners are
the means of the supporting boxes' weighed by their scores (Solovyev et al. 2021, without their loop over boxes).
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from mast_ray.boxes.batch import Detections
from mast_ray.boxes.geometry import pairwise_iou

SAME_CALL = 0.5  # IoU from which two hearings mean one call


def fused(hearings: Sequence[Detections]) -> Detections:
    """(B, N) boxes, each what its supporters make of it, in no order: those of one call lie upon each other, for suppression
    to choose from.
    """
    corners, score, is_valid = (
        torch.cat([getattr(one, name) for one in hearings], dim=1)
        for name in ("corners", "score", "is_valid")
    )
    same = pairwise_iou(corners, corners) >= SAME_CALL  # (B, N, N)
    support = torch.where(same & is_valid[:, None, :], score[:, None, :], 0.0)
    supports, indices, first = [], [], 0
    for num_slots in (one.score.shape[1] for one in hearings):  # a DETR has as many as it has queries
        best, at = support[..., first : first + num_slots].max(-1)
        supports.append(best)
        indices.append(at + first)
        first += num_slots
    support, index = (
        torch.stack(supports, -1),
        torch.stack(indices, -1),
    )  # (B, N, V): by each hearing, and by which box
    supporters = _gathered(corners, index)  # (B, N, V, 4)
    total = support.sum(-1).clamp(min=1e-9)
    middle = (supporters * support[..., None]).sum(-2) / total[..., None]
    return Detections(torch.where(is_valid[..., None], middle, 0.0), support.mean(-1) * is_valid, is_valid)


def _gathered(corners: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
    """(B, N, 4), (B, N, V) -> (B, N, V, 4)"""
    flat = index.flatten(1)
    return corners.gather(1, flat[..., None].expand(-1, -1, 4)).unflatten(1, index.shape[1:])
