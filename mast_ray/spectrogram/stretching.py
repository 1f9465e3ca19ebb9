"""Time and frequency of chunks stretched, evenly (a zoom) or by more in one place than in another (a bend).

Legend: B chunks, M box slots, T frames, F bins. Frames and bins are stretched apart from each other, so a tight box stays one.
A bend is a sine added to the places that sound is taken from: (strength, waves in the chunk, phase). What it presses to
`1 / (1 + strength)` in one place it stretches to `1 / (1 - strength)` half a wave on.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn import functional

INVERSION_STEPS = 24  # each leaves `strength` of the error at the most


def zoomed(logmel: Tensor, factors: Tensor, about: Tensor, silence: float) -> Tensor:
    """(B, T, F) stretched by (B, 2) factors about (B, 2) places: frames from outside are silence, bins the outermost again."""
    return stretched(logmel, factors, about, None, silence)


def stretched(logmel: Tensor, factors: Tensor, about: Tensor, bends: Tensor | None, silence: float) -> Tensor:
    """(B, T, F) zoomed, then bent by (B, 2, 3) bends of time and frequency."""
    num_frames, num_bins = logmel.shape[1:]

    def source(axis: int, length: int) -> Tensor:
        """(B, length) where the middle of every frame or bin comes from"""
        place = torch.arange(length, device=logmel.device)[None, :] + 0.5
        if bends is not None:
            place = place + moved_by(place, bends[:, axis, :, None], length)
        return (place - about[:, axis, None]) / factors[:, axis, None] + about[:, axis, None]

    frames, bins = source(0, num_frames), source(1, num_bins)
    across = (2 * bins / num_bins - 1)[:, None, :].expand(-1, num_frames, -1)
    along = (2 * frames / num_frames - 1)[:, :, None].expand(-1, -1, num_bins)
    grid = torch.stack((across, along), dim=3).to(logmel.dtype)
    out = functional.grid_sample(logmel[:, None], grid, "bilinear", "border", align_corners=False)[:, 0]
    outside = (frames < 0) | (frames > num_frames)
    return out.masked_fill(outside[..., None], silence)


def stretched_corners(
    corners: Tensor, factors: Tensor, about: Tensor, bends: Tensor | None, lengths: tuple[int, int]
) -> Tensor:
    """(B, M, 4) boxes where `stretched` puts what is in them; they may reach beyond the chunk."""
    out = (corners - about.repeat(1, 2)[:, None]) * factors.repeat(1, 2)[:, None] + about.repeat(1, 2)[
        :, None
    ]
    if bends is None:
        return out
    halves = [
        unbent(out[..., axis::2], bends[:, axis, :, None, None], lengths[axis]) for axis in (0, 1)
    ]  # (B, M, 2) begin and end
    return torch.stack((halves[0][..., 0], halves[1][..., 0], halves[0][..., 1], halves[1][..., 1]), dim=-1)


def moved_by(place: Tensor, bend: Tensor, length: int) -> Tensor:
    """How far from a place its sound is taken. `bend`: (B, 3, ...)."""
    strength, waves, phase = bend.unbind(1)
    turns = 2 * math.pi * waves / length
    return strength / turns * torch.sin(turns * place + phase)


def unbent(wanted: Tensor, bend: Tensor, length: int) -> Tensor:
    """Places whose sound is taken from the wanted ones: the inverse, by steps that draw together (strength < 1)."""
    place = wanted
    for _ in range(INVERSION_STEPS):
        place = wanted - moved_by(place, bend, length)
    return place
