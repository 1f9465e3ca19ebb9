"""Detection losses of a batch: classification, corners, overlap, centerness; dense over points, no loops
over chunks or boxes.

Legend: B chunks, M box slots, P points. Boxes are (t0, f0, t1, f1); distances are in strides (boxes/points).
Every loss is a sum over points of w_b * term, where w_b is the weight of the chunk; the caller divides all by
one number of positives (GFL's normalisation), so that the sums of several workers can share it.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from mast_ray.boxes.assignment import Assignment
from mast_ray.boxes.batch import PaddedBoxes
from mast_ray.boxes.geometry import paired_giou, paired_iou
from mast_ray.boxes.points import (
    PyramidPoints,
    boxes_of_distances,
    centerness_of_distances,
    distances_of_boxes,
)

ClassificationName = Literal["quality_focal", "focal"]
FOCAL_ALPHA = 0.25


class DetectionSums(NamedTuple):
    """Weighted sums of the four losses over all points of the batch, and how many points are positive."""

    classification: Tensor
    corners: Tensor
    overlap: Tensor
    centerness: Tensor
    num_positives: Tensor


def quality_focal(logit: Tensor, quality: Tensor) -> Tensor:
    """Quality focal loss (Li et al. 2020) per point: |q - p|^2 times the cross entropy to a soft
    target q in [0, 1].
    """
    gap = (quality - logit.sigmoid()).abs()
    return gap.square() * functional.binary_cross_entropy_with_logits(logit, quality, reduction="none")


def focal(logit: Tensor, is_positive: Tensor) -> Tensor:
    """Focal loss (Lin et al. 2017) per point."""
    target = is_positive.to(logit.dtype)
    probability = logit.sigmoid()
    wrong = torch.where(is_positive, 1 - probability, probability)
    balance = torch.where(is_positive, FOCAL_ALPHA, 1 - FOCAL_ALPHA)
    return (
        balance
        * wrong.square()
        * functional.binary_cross_entropy_with_logits(logit, target, reduction="none")
    )


def detection_sums(
    score_logit: Tensor,
    centerness_logit: Tensor,
    distances: Tensor,
    points: PyramidPoints,
    boxes: PaddedBoxes,
    assignment: Assignment,
    chunk_weight: Tensor,
    classification: ClassificationName = "quality_focal",
) -> DetectionSums:
    """(B, P), (B, P), (B, P, 4) head outputs against assigned boxes; ignored points take no part in classification.

    A call that is known in time only is compared in time only: the predicted band is taken for the right one.
    """
    slot = assignment.box_index.clamp(min=0)  # (B, P)
    target = boxes.corners.gather(1, slot[..., None].expand(-1, -1, 4))  # (B, P, 4)
    is_positive = assignment.box_index >= 0
    predicted = boxes_of_distances(distances, points.centres, points.strides)
    wanted = distances_of_boxes(target, points.centres, points.strides)
    in_time = (is_positive & ~boxes.has_band.gather(1, slot))[..., None]  # (B, P, 1)
    is_band = torch.arange(4, device=target.device) % 2 == 1  # made there: a copy would make the device wait
    predicted = torch.where(in_time & is_band, target, predicted)
    centred = torch.where(in_time & is_band, 1.0, wanted)  # equal distances: central in frequency

    match classification:
        case "quality_focal":
            quality = torch.where(is_positive, paired_iou(predicted.detach(), target), 0.0)
            score_loss = quality_focal(score_logit, quality)
        case "focal":
            score_loss = focal(score_logit, is_positive)
    centerness = centerness_of_distances(centred)
    centerness_loss = functional.binary_cross_entropy_with_logits(
        centerness_logit, centerness, reduction="none"
    )

    weight = chunk_weight[:, None]  # (B, 1)
    on_positives = weight * is_positive  # (B, P)
    return DetectionSums(
        classification=(score_loss * weight * ~assignment.is_ignored).sum(),
        corners=(((distances - wanted).abs() * ~(in_time & is_band)).sum(-1) * on_positives).sum(),
        overlap=((1 - paired_giou(predicted, target)) * on_positives).sum(),
        centerness=(centerness_loss * on_positives).sum(),
        num_positives=is_positive.sum(),
    )
