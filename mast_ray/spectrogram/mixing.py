"""Mixing two chunks: background from a noise bank, Mixup and CutMix, as sound adds up.

Legend: B chunks, M box slots, T frames, F bins. Sounds add in power, not in its logarithm: log(exp(a) +
exp(b)). With x = (S - mean) / d the mean cancels, so mixing normalised values needs only the denominator d.
Phases are unknown, so powers are added as for uncorrelated sounds.
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor

from mast_ray.boxes.batch import ChunkBatch, PaddedBoxes
from mast_ray.boxes.geometry import area
from mast_ray.spectrogram.normalisation import Normalisation

SHORTEST_REMNANT_FRAMES = 10.0  # 100 ms
FAINTEST_SHARE = 0.3  # a call that is mixed under this share of power would be a label without a sound


class MixDraw(NamedTuple):
    """Random numbers of Mixup and CutMix for a batch; the partner of an example is the next one."""

    share: Tensor  # (B,) power of the partner in Mixup; 0 where there is none
    own_begin: Tensor  # (B,) CutMix: frames [own_begin, own_end) stay, the others come from the partner
    own_end: Tensor  # (B,)


def draw_mixing(batch: ChunkBatch, mixup: float, cutmix: float, generator: torch.Generator) -> MixDraw | None:
    """Random numbers for Mixup and CutMix with these probabilities; None: both off, or no partner."""
    num_chunks, _, num_frames, _ = batch.logmel.shape
    if (mixup <= 0 and cutmix <= 0) or num_chunks < 2:
        return None
    device = batch.logmel.device
    chance, share, cut, side = torch.rand((4, num_chunks), generator=generator, device=device)
    is_mixup = chance < mixup
    is_cutmix = (chance >= mixup) & (chance < mixup + cutmix)
    cut_frame = ((0.25 + 0.5 * cut) * num_frames).round()  # each example keeps a quarter at least
    begin, end = torch.zeros_like(cut_frame), torch.full_like(cut_frame, num_frames)
    share = FAINTEST_SHARE + share * (1 - 2 * FAINTEST_SHARE)
    return MixDraw(
        share=torch.where(is_mixup, share, 0.0),
        own_begin=torch.where(is_cutmix & (side < 0.5), cut_frame, begin),
        own_end=torch.where(is_cutmix & (side >= 0.5), cut_frame, end),
    )


def mix_background(logmel: Tensor, background: Tensor, power: Tensor, normalisation: Normalisation) -> Tensor:
    """(B, T, F) normalised chunks with (B,) times the power of (B, T, F) backgrounds added.

    Values above a background are powers over it, and the sum has a background of its own: that of both.
    """
    unit = normalisation.denominator
    added = background * unit + power.clamp(min=1e-30).log()[:, None, None]
    mixed = torch.logaddexp(logmel * unit, added)
    if normalisation.background == "median":
        mixed = mixed - torch.log1p(power)[:, None, None]
    return mixed / unit


def mix_examples(batch: ChunkBatch, draw: MixDraw, normalisation: Normalisation) -> ChunkBatch:
    """Mixup or CutMix with the next example. Boxes of both come in 2 M slots, own ones first.

    Mixup adds both sounds, weighted in power, and keeps all boxes. CutMix joins the beginning of one with
    the end of the other, clips boxes at the seam and drops remnants under 100 ms. The weight of a chunk
    becomes the mean of both; with boxes of a model in it, it is pseudo-labelled.
    """
    partner = torch.roll(torch.arange(batch.logmel.shape[0], device=batch.logmel.device), -1)
    own, other = batch.logmel, batch.logmel[partner]
    num_frames = own.shape[2]
    unit = normalisation.denominator
    share = draw.share[:, None, None, None]
    both = torch.logaddexp(own * unit + (1 - share).log(), other * unit + share.clamp(min=1e-30).log()) / unit
    frame = torch.arange(num_frames, device=own.device)[None, :]
    stays = (frame >= draw.own_begin[:, None]) & (frame < draw.own_end[:, None])  # (B, T)
    logmel = torch.where(stays[:, None, :, None], both, other)

    is_mixup = draw.share > 0
    is_cutmix = (draw.own_begin > 0) | (draw.own_end < num_frames)
    own_boxes = _within(batch.boxes, draw.own_begin, draw.own_end)
    # The partner's part is the other side of the seam, or everything in Mixup.
    begin = torch.where(draw.own_begin > 0, 0.0, torch.where(is_cutmix, draw.own_end, 0.0))
    end = torch.where(draw.own_begin > 0, draw.own_begin, torch.full_like(draw.own_end, num_frames))
    theirs = PaddedBoxes(
        *(getattr(batch.boxes, name)[partner] for name in ("corners", "is_object", "is_ignored"))
    )
    theirs = _within(theirs, begin, end)
    is_mixed = is_mixup | is_cutmix
    boxes = PaddedBoxes(
        torch.cat((own_boxes.corners, theirs.corners * is_mixed[:, None, None]), dim=1),
        torch.cat((own_boxes.is_object, theirs.is_object & is_mixed[:, None]), dim=1),
        torch.cat((own_boxes.is_ignored, theirs.is_ignored & is_mixed[:, None]), dim=1),
    )
    weight = torch.where(is_mixed, (batch.weight + batch.weight[partner]) / 2, batch.weight)
    is_pseudo = batch.is_pseudo
    if is_pseudo is not None:
        is_pseudo = is_pseudo | (is_mixed & is_pseudo[partner])
    return replace(batch, logmel=logmel, boxes=boxes, weight=weight, is_pseudo=is_pseudo)


def _within(boxes: PaddedBoxes, begin: Tensor, end: Tensor) -> PaddedBoxes:
    """Boxes clipped to (B,) frames [begin, end); remnants under 100 ms go, naturally short calls stay."""
    low, high = begin[:, None], end[:, None]
    t0, f0, t1, f1 = boxes.corners.unbind(-1)
    clipped = torch.stack((t0.clamp(low, high), f0, t1.clamp(low, high), f1), dim=-1)
    length = clipped[..., 2] - clipped[..., 0]
    keep = (length >= (t1 - t0).clamp(max=SHORTEST_REMNANT_FRAMES)) & (area(clipped) > 0)
    return PaddedBoxes(clipped * keep[..., None], boxes.is_object & keep, boxes.is_ignored & keep)
