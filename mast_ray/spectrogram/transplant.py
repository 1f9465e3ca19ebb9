"""Calls moved into another place: the labelled sounds of a chunk, cut out and added in power to a quiet chunk.

Legend: B chunks, M box slots, T frames, F bins. Inside its boxes a chunk gives what stands out of its own
background, bin by bin as so many times that background; the other chunk receives as many times its own. A call
is thus heard as well in the new place as in the old, and takes its colour. Boxes stay where they are.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from mast_ray.boxes.batch import PaddedBoxes
from mast_ray.spectrogram.normalisation import Normalisation

EVERY_FRAMES = 8  # a median over 128 of 1024 frames is near enough, and a sort of an eighth
# Times the background, averaged over 5 frames and 3 bins: single cells of noise reach that, such averages do
# not. Without the gate the noise inside a box would be carried over too, and show the box as a bright rectangle.
SMOOTH = (5, 3)
FAINT, CLEAR = 3.0, 5.0
LEAST_AUDIBLE = 0.02  # share of a box's cells; below, its label would be one without a sound


def transplanted(
    logmel: Tensor, boxes: PaddedBoxes, place: Tensor, is_moved: Tensor, normalisation: Normalisation
) -> Tensor:
    """(B, T, F) chunks, those of `is_moved` as their boxed sounds in (B, T, F) quiet chunks.

    A chunk stays as it is when it has no call, or one that hardly stands out of its background.
    """
    unit, silence = normalisation.denominator, normalisation.silence
    own, theirs = median_level(logmel, silence), median_level(place, silence)  # (B, F)
    times = ((logmel - own[:, None, :]) * unit).clamp(max=20.0).exp()  # power over the background
    in_time, in_band = _inside_boxes(boxes, logmel.shape[1], logmel.shape[2])
    is_boxed = torch.bmm(in_time.transpose(1, 2), in_band) > 0  # (B, T, F)
    gate = clearness(times) * is_boxed
    added = ((times - 1).clamp(min=0) * gate).clamp(min=1e-30).log()
    moved = torch.logaddexp(place * unit, theirs[:, None, :] * unit + added) / unit

    cells = in_time.sum(dim=2) * in_band.sum(dim=2)  # (B, M)
    heard = (torch.bmm(in_time, gate) * in_band).sum(dim=2) / cells.clamp(min=1)
    is_audible = (heard >= LEAST_AUDIBLE) | ~boxes.is_object
    moves = is_moved & boxes.is_object.any(dim=1) & is_audible.all(dim=1)
    return torch.where(moves[:, None, None], moved, logmel)


def clearness(times: Tensor) -> Tensor:
    """(B, T, F) power over the background -> 0 where it is noise, 1 where it is clearly more"""
    padding = (SMOOTH[0] // 2, SMOOTH[1] // 2)
    mean = functional.avg_pool2d(times[:, None], SMOOTH, stride=1, padding=padding, count_include_pad=False)
    return ((mean[:, 0] - FAINT) / (CLEAR - FAINT)).clamp(0, 1)


def median_level(logmel: Tensor, silence: float) -> Tensor:
    """(B, T, F) -> (B, F) median over the frames that are not padding; 0 where all are"""
    frames = logmel[:, ::EVERY_FRAMES]
    is_sound = (frames > silence + 1e-3).any(dim=2)  # (B, frames)
    sorted_up = frames.masked_fill(~is_sound[:, :, None], torch.inf).sort(dim=1).values
    middle = ((is_sound.sum(dim=1) - 1) // 2).clamp(min=0)
    level = sorted_up.gather(1, middle[:, None, None].expand(-1, 1, frames.shape[2]))[:, 0]
    return level.masked_fill(level.isinf(), 0.0)


def _inside_boxes(boxes: PaddedBoxes, num_frames: int, num_bins: int) -> tuple[Tensor, Tensor]:
    """Whether frames (B, M, T) and bins (B, M, F) are touched by each box, as 0 and 1"""
    is_used = (boxes.is_object | boxes.is_ignored)[..., None]
    low, high = boxes.corners[..., None, :2], boxes.corners[..., None, 2:]  # (B, M, 1, 2)

    def touched(axis: int, length: int) -> Tensor:
        place = torch.arange(length, device=boxes.corners.device)
        return ((place < high[..., axis]) & (place + 1 > low[..., axis]) & is_used).to(torch.float32)

    return touched(0, num_frames), touched(1, num_bins)
