"""Box-level contrastive loss (docs/method.md): jittered copies of a box are positives, confident misses of the
same chunk negatives.

Legend: B chunks, M box slots, A anchors per chunk, J jittered copies per anchor, N negatives per chunk, P
points, D dimensions. Chunks are padded to equal numbers of slots; flags say which are real. Noise is handed
in, so a compiled step stays free of generators.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from mast_ray.boxes.batch import PaddedBoxes
from mast_ray.boxes.geometry import area, clip, pairwise_intersection, pairwise_iou

POSITIVE_IOU = 0.7
NEGATIVE_IOU = 0.3
# Moving all four sides inwards by this share of the box's size leaves an IoU of exactly 0.7, and no other
# move is worse.
JITTER = (1 - math.sqrt(POSITIVE_IOU)) / 2
MAX_ANCHORS = 16  # of a chunk


class ContrastiveRegions(NamedTuple):
    """Boxes to be pooled and embedded."""

    anchors: Tensor  # (B, A, 4)
    is_anchor: Tensor  # (B, A) bool
    positives: Tensor  # (B, A, J, 4)
    negatives: Tensor  # (B, N, 4)
    is_negative: Tensor  # (B, N) bool


class ContrastiveNoise(NamedTuple):
    """Uniform numbers in [0, 1) that decide which boxes are anchors and how copies are jittered."""

    order: Tensor  # (B, M)
    jitter: Tensor  # (B, A, J, 4)


def draw_noise(
    num_chunks: int, num_slots: int, generator: torch.Generator, num_positives: int = 4
) -> ContrastiveNoise:
    """Noise on the generator's device."""
    num_anchors = min(num_slots, MAX_ANCHORS)
    shapes = ((num_chunks, num_slots), (num_chunks, num_anchors, num_positives, 4))
    return ContrastiveNoise(
        *(torch.rand(shape, generator=generator, device=generator.device) for shape in shapes)
    )


def jittered(boxes: Tensor, noise: Tensor, extent: tuple[float, float]) -> Tensor:
    """(B, A, 4) boxes -> (B, A, J, 4) copies with IoU >= 0.7, inside the chunk."""
    size = boxes[..., 2:] - boxes[..., :2]
    # A hair less than the limit, so that rounding cannot push a copy under it.
    reach = (0.999 * JITTER * size).repeat(1, 1, 2)[:, :, None]  # (B, A, 1, 4)
    return clip(boxes[:, :, None] + (2 * noise - 1) * reach, *extent)


def contrastive_regions(
    boxes: PaddedBoxes,
    candidates: Tensor,
    candidate_score: Tensor,
    noise: ContrastiveNoise,
    extent: tuple[float, float],
    num_negatives: int = 32,
) -> ContrastiveRegions:
    """Anchors (at most A drawn per chunk), their copies, and the best-scored predictions that miss every box.
    A call without a band is no anchor.

    `candidates` (B, P, 4) are predicted boxes with scores (B, P). A negative has area, IoU < 0.3 to every
    box and does not touch an ignore region; hardest first means highest score first. More than A boxes in a
    chunk would only repeat what A say, at the cost of A x J more regions to pool.
    """
    num_anchors = noise.jitter.shape[1]
    order = torch.where(boxes.has_band, noise.order, -1.0).topk(num_anchors, dim=1).indices  # (B, A)
    anchors = boxes.corners.gather(1, order[..., None].expand(-1, -1, 4))
    overlap = torch.where(boxes.is_object[:, None], pairwise_iou(candidates, boxes.corners), 0.0).amax(
        -1
    )  # (B, P)
    touches = (pairwise_intersection(candidates, boxes.corners) > 0) & boxes.is_ignored[:, None]
    is_miss = (overlap < NEGATIVE_IOU) & ~touches.any(-1) & (area(candidates) > 0)
    hardness, index = torch.where(is_miss, candidate_score, -1.0).topk(num_negatives, dim=1)
    return ContrastiveRegions(
        anchors=anchors,
        is_anchor=boxes.has_band.gather(1, order),
        positives=jittered(anchors, noise.jitter, extent),
        negatives=candidates.gather(1, index[..., None].expand(-1, -1, 4)),
        is_negative=hardness >= 0,
    )


def contrastive_loss(
    anchors: Tensor,
    is_anchor: Tensor,
    positives: Tensor,
    negatives: Tensor,
    is_negative: Tensor,
    tau: float = 0.1,
) -> Tensor:
    """As printed, positives summed inside the logarithm; mean over all anchors of the
    batch, 0 when there are none.

    Unit vectors (B, A, D), (B, A, J, D), (B, N, D) -> ()
    """
    # divided by tau, the rounding of bf16 would show
    with torch.autocast(anchors.device.type, enabled=False):
        to_positives = torch.einsum("bad,bajd->baj", anchors, positives) / tau
        to_negatives = torch.einsum("bad,bnd->ban", anchors, negatives) / tau
    to_negatives = to_negatives.masked_fill(~is_negative[:, None], -torch.inf)
    attraction = to_positives.logsumexp(-1)  # (B, A)
    everything = torch.cat([to_positives, to_negatives], dim=-1).logsumexp(-1)
    loss = (everything - attraction) * is_anchor
    return loss.sum() / is_anchor.sum().clamp(min=1)
