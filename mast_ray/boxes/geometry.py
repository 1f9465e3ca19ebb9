"""Areas, overlaps and clipping of boxes, for any leading batch dimensions.

Legend: ... leading dimensions, N and M boxes. Boxes are (..., 4) = (t0, f0, t1, f1), half-open, in frames
and bins. A box without area (an empty slot) overlaps nothing: its IoU is 0, never NaN.
"""

from __future__ import annotations

import torch
from torch import Tensor

# Frames x bins: far below the area of any real box, so quotients stay finite without being changed.
_SMALLEST_AREA = 1e-7


def area(boxes: Tensor) -> Tensor:
    """(..., 4) -> (...); inverted boxes have area 0."""
    size = (boxes[..., 2:] - boxes[..., :2]).clamp(min=0)
    return size[..., 0] * size[..., 1]


def _overlap(top_left: Tensor, bottom_right: Tensor) -> Tensor:
    size = (bottom_right - top_left).clamp(min=0)
    return size[..., 0] * size[..., 1]


def paired_intersection(first: Tensor, second: Tensor) -> Tensor:
    """Area shared by boxes of equal position: (..., 4), (..., 4) -> (...). The two may broadcast."""
    return _overlap(
        torch.maximum(first[..., :2], second[..., :2]), torch.minimum(first[..., 2:], second[..., 2:])
    )


def pairwise_intersection(first: Tensor, second: Tensor) -> Tensor:
    """(..., N, 4), (..., M, 4) -> (..., N, M)."""
    return paired_intersection(first[..., :, None, :], second[..., None, :, :])


def paired_iou(first: Tensor, second: Tensor) -> Tensor:
    """Intersection over union of boxes of equal position: (..., 4), (..., 4) -> (...)."""
    shared = paired_intersection(first, second)
    return shared / (area(first) + area(second) - shared).clamp(min=_SMALLEST_AREA)


def pairwise_iou(first: Tensor, second: Tensor) -> Tensor:
    """(..., N, 4), (..., M, 4) -> (..., N, M)."""
    return paired_iou(first[..., :, None, :], second[..., None, :, :])


def paired_giou(first: Tensor, second: Tensor) -> Tensor:
    """Generalised IoU (Rezatofighi et al. 2019) in [-1, 1]: (..., 4), (..., 4) -> (...)."""
    shared = paired_intersection(first, second)
    union = (area(first) + area(second) - shared).clamp(min=_SMALLEST_AREA)
    hull = _overlap(
        torch.minimum(first[..., :2], second[..., :2]), torch.maximum(first[..., 2:], second[..., 2:])
    ).clamp(min=_SMALLEST_AREA)
    return shared / union - (hull - union) / hull


def pairwise_covered(first: Tensor, second: Tensor) -> Tensor:
    """Share of each first box that a second box covers: (..., N, 4), (..., M, 4) -> (..., N, M) in [0, 1]."""
    return pairwise_intersection(first, second) / area(first).clamp(min=_SMALLEST_AREA)[..., :, None]


def clip(boxes: Tensor, num_frames: float, num_bins: float) -> Tensor:
    """Corners moved inside [0, num_frames] x [0, num_bins]; a box outside collapses to zero area."""
    times = boxes[..., 0::2].clamp(0, num_frames)
    bins = boxes[..., 1::2].clamp(0, num_bins)
    return torch.stack((times[..., 0], bins[..., 0], times[..., 1], bins[..., 1]), dim=-1)


def centres(boxes: Tensor) -> Tensor:
    """(..., 4) -> (..., 2) centre in time and frequency."""
    return (boxes[..., :2] + boxes[..., 2:]) / 2
