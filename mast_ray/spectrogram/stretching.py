"""Time and frequency of chunks stretched.

Legend: B chunks, M box slots, T frames, F bins. Frames and bins are stretched apart from each other, so a tight box stays one.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional


def zoomed(logmel: Tensor, factors: Tensor, about: Tensor, silence: float) -> Tensor:
    """(B, T, F) stretched by (B, 2) factors about (B, 2) places: frames from outside are silence, bins the outermost again."""
    num_frames, num_bins = logmel.shape[1:]

    def source(axis: int, length: int) -> Tensor:
        """(B, length) where the middle of every frame or bin comes from"""
        place = torch.arange(length, device=logmel.device)[None, :] + 0.5
        return (place - about[:, axis, None]) / factors[:, axis, None] + about[:, axis, None]

    frames, bins = source(0, num_frames), source(1, num_bins)
    across = (2 * bins / num_bins - 1)[:, None, :].expand(-1, num_frames, -1)
    along = (2 * frames / num_frames - 1)[:, :, None].expand(-1, -1, num_bins)
    grid = torch.stack((across, along), dim=3).to(logmel.dtype)
    out = functional.grid_sample(logmel[:, None], grid, "bilinear", "border", align_corners=False)[:, 0]
    outside = (frames < 0) | (frames > num_frames)
    return out.masked_fill(outside[..., None], silence)


def zoomed_corners(corners: Tensor, factors: Tensor, about: Tensor) -> Tensor:
    """(B, M, 4) boxes where `zoomed` puts what is in them; they may reach beyond the chunk."""
    middle = about.repeat(1, 2)[:, None]
    return (corners - middle) * factors.repeat(1, 2)[:, None] + middle
