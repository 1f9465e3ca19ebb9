"""Class-agnostic non-maximum suppression of many chunks at once.

Legend: B chunks, K detection slots. Equal to torchvision.ops.nms chunk by chunk, but without a loop over
chunks and without waiting for the device: greedy suppression is the only fixed point of `keep = nothing
kept above me overlaps me`, and repeating that rule fixes at least one more box per step from the best
downwards. Equal scores are ordered by slot.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from mast_ray.boxes.batch import Detections
from mast_ray.boxes.geometry import pairwise_iou


def keep_after_suppression(
    corners: Tensor, is_valid: Tensor, iou_threshold: float, num_steps: int | None = None
) -> Tensor:
    """Which of (B, K, 4) boxes, sorted best first, survive: (B, K) bool. IoU above the threshold suppresses.

    `num_steps` None iterates until nothing changes (reads one flag from the device per step). A fixed
    number keeps a compiled graph free of host reads; K steps are always exact, and a chain of s boxes that
    suppress one another in turn needs s steps, so 8 to 16 are exact in practice.
    """
    num_slots = corners.shape[-2]
    overlaps = pairwise_iou(corners, corners) > iou_threshold  # (B, K, K)
    both = is_valid[..., :, None] & is_valid[..., None, :]
    above = torch.ones((num_slots, num_slots), dtype=torch.bool, device=corners.device).tril(-1)
    threat = (overlaps & both & above).to(torch.float32)  # row: who suppresses me
    keep = is_valid
    for _ in range(num_slots if num_steps is None else min(num_steps, num_slots)):
        beaten = (threat @ keep.to(torch.float32)[..., None]).squeeze(-1) > 0
        new = is_valid & ~beaten
        if num_steps is None and bool((new == keep).all()):
            break
        keep = new
    return keep


def sort_detections(detections: Detections) -> Detections:
    """Slots ordered best first, unused ones last; equal scores keep their order."""
    score = torch.where(detections.is_valid, detections.score, -1.0)
    order = score.sort(dim=-1, descending=True, stable=True).indices
    return _take(detections, order, detections.is_valid.gather(-1, order))


def inside_sound(detections: Detections, end_frames: Tensor | None) -> Detections:
    """Boxes clipped to where their chunk's sound ends (B,); what is empty then is no detection."""
    corners = detections.corners
    if end_frames is not None:
        low, high = corners[..., 0::2], end_frames.to(corners.dtype)[:, None, None]
        corners = torch.stack((torch.minimum(low, high), corners[..., 1::2]), dim=-1).flatten(-2)
    has_size = (corners[..., 2] > corners[..., 0]) & (corners[..., 3] > corners[..., 1])
    return replace(detections, corners=corners, is_valid=detections.is_valid & has_size)


def suppress(
    detections: Detections,
    iou_threshold: float = 0.5,
    max_detections: int | None = None,
    num_steps: int | None = None,
    end_frames: Tensor | None = None,
) -> Detections:
    """Detections of each chunk after NMS, best first, survivors in front, cut to `max_detections`.

    `end_frames` (B,): where a chunk's sound ends. What a model says of the padding behind it must not suppress a call.
    """
    ordered = sort_detections(inside_sound(detections, end_frames))
    keep = keep_after_suppression(ordered.corners, ordered.is_valid, iou_threshold, num_steps)
    order = (~keep).to(torch.uint8).sort(dim=-1, stable=True).indices[..., :max_detections]
    return _take(ordered, order, keep.gather(-1, order))


def suppress_one(corners: Tensor, score: Tensor, iou_threshold: float) -> Tensor:
    """Indices of the survivors of (N, 4) boxes of any number, best first, through torchvision's own kernel.

    For more boxes than fit a K x K matrix; equal scores keep their order.
    """
    from torchvision.ops import nms

    order = score.sort(descending=True, stable=True).indices
    rank_score = torch.arange(len(order), 0, -1, dtype=torch.float32, device=corners.device)
    return order[nms(corners[order].float(), rank_score, iou_threshold)]


def _take(detections: Detections, order: Tensor, is_valid: Tensor) -> Detections:
    corners = detections.corners.gather(-2, order[..., None].expand(*order.shape, 4))
    score = detections.score.gather(-1, order)
    parts = detections.parts
    if parts is not None:
        parts = parts.gather(-2, order[..., None].expand(*order.shape, 2))
    return Detections(
        torch.where(is_valid[..., None], corners, 0.0), torch.where(is_valid, score, 0.0), is_valid, parts
    )
