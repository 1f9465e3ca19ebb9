"""Doubt about boxes that lie within better ones: a syllable found beside its phrase, a harmonic beside its stack.

Which of the two the expert calls one call is a habit of the labels, and a detector gives both where it is not sure. Where held-out
labels say that wholes are meant (training tries it on the split that selects), the score of a box within a better one is
multiplied by one minus half of that one's. Nothing is left out: two calls may lie in each other.

Legend: ... leading dimensions, K detection slots.
"""

from __future__ import annotations

import torch
from torch import Tensor

from mast_ray.boxes.batch import Detections
from mast_ray.boxes.geometry import pairwise_covered
from mast_ray.boxes.suppression import sort_detections

WITHIN = 0.7  # share of a box inside another one from which it may be a part of it
DOUBT = 0.5  # share that the part loses for each unit of the better box's score


def doubted_scores(corners: Tensor, score: Tensor, is_valid: Tensor) -> Tensor:
    """(..., K, 4) boxes and (..., K) scores -> (..., K) scores; those of boxes that nothing better holds stay."""
    better = score[..., None, :] > score[..., :, None]
    holds = (pairwise_covered(corners, corners) >= WITHIN) & better & is_valid[..., None, :]
    best = torch.where(holds, score[..., None, :], 0.0).amax(dim=-1)
    return score * (1 - DOUBT * best)


def with_doubt(found: Detections) -> Detections:
    """Detections of chunks with such scores, best first."""
    score = doubted_scores(found.corners.float(), found.score, found.is_valid)
    return sort_detections(Detections(found.corners, score, found.is_valid, found.parts))
