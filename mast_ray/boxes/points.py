"""Pyramid levels, the points they predict from, and boxes as distances from those points.

Legend: L levels, P points over all levels, B chunks. Strides, sizes and points are pairs (time, frequency):
8 x 4 is not square. A point is the centre of its cell in frames and bins. Distances are (before t, before
f, after t, after f), i.e. point - (t0, f0) and (t1, f1) - point, each divided by the stride of its axis.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor

FinestLevel = Literal["8x4", "4x4", "2x4"]
FINEST_STRIDES: dict[FinestLevel, tuple[int, int]] = {"8x4": (8, 4), "4x4": (4, 4), "2x4": (2, 4)}
MOST_LEVELS = 5
CELLS_PER_SHORT_CALL = 3.0  # a box snapped to cells a third of its length still overlaps it by more than half
SHORT_CALL_SHARE = 0.2


class PyramidLevel(NamedTuple):
    """One feature map: frames and bins per cell, and cells along time and frequency."""

    stride: tuple[int, int]
    size: tuple[int, int]

    @property
    def num_points(self) -> int:
        return self.size[0] * self.size[1]


class PyramidPoints(NamedTuple):
    """Points of all levels, finest first, time-major within a level: `flatten(2)` of (B, C, T_l, F_l)."""

    centres: Tensor  # (P, 2) frames and bins
    strides: Tensor  # (P, 2)
    level: Tensor  # (P,) int64


def pyramid_levels(
    num_levels: int,
    finest_stride: tuple[int, int],
    num_frames: int = 1024,
    num_bins: int = 128,
) -> tuple[PyramidLevel, ...]:
    """Levels whose strides double on both axes; cells that stick out are kept (sizes are rounded up).

    Rounding up is what a 3 x 3 convolution with stride 2 and padding 1 does. The default is 4 levels from (8, 4).
    """
    levels = []
    for index in range(num_levels):
        stride = (finest_stride[0] << index, finest_stride[1] << index)
        levels.append(PyramidLevel(stride, (-(-num_frames // stride[0]), -(-num_bins // stride[1]))))
    return tuple(levels)


def finest_level_of(durations_frames: Sequence[float] | np.ndarray) -> FinestLevel:
    """The coarsest finest level whose cell is at most a third of the 20th percentile of the durations.

    2x4 where none is short enough, 8x4 where there are no boxes to go by.
    """
    if len(durations_frames) == 0:
        return "8x4"
    longest_cell = float(np.quantile(durations_frames, SHORT_CALL_SHARE)) / CELLS_PER_SHORT_CALL
    fits = [name for name, (frames, _) in FINEST_STRIDES.items() if frames <= longest_cell]
    return fits[0] if fits else "2x4"


def levels_from(finest: FinestLevel, num_levels: int) -> int:
    """Levels of a pyramid that has `num_levels` from 8x4: one more for each halving
    in time, up to five, so that long calls keep a level of their own.
    """
    halvings = {"8x4": 0, "4x4": 1, "2x4": 2}[finest]
    return max(num_levels, min(MOST_LEVELS, num_levels + halvings))


def pyramid_points(
    levels: tuple[PyramidLevel, ...], device: torch.device | str | None = None
) -> PyramidPoints:
    """Centres, strides and level index of every point of a pyramid."""
    centres, strides, index = [], [], []
    for number, (stride, size) in enumerate(levels):
        time = (torch.arange(size[0], device=device, dtype=torch.float32) + 0.5) * stride[0]
        frequency = (torch.arange(size[1], device=device, dtype=torch.float32) + 0.5) * stride[1]
        centres.append(torch.stack(torch.meshgrid(time, frequency, indexing="ij"), dim=-1).reshape(-1, 2))
        count = size[0] * size[1]
        strides.append(torch.stack([torch.full((count,), float(s), device=device) for s in stride], dim=-1))
        index.append(torch.full((count,), number, device=device, dtype=torch.int64))
    return PyramidPoints(torch.cat(centres), torch.cat(strides), torch.cat(index))


def distances_of_boxes(boxes: Tensor, centres: Tensor, strides: Tensor) -> Tensor:
    """(..., P, 4) boxes seen from (P, 2) points -> (..., P, 4) distances in strides; negative: outside."""
    return torch.cat(((centres - boxes[..., :2]) / strides, (boxes[..., 2:] - centres) / strides), dim=-1)


def boxes_of_distances(distances: Tensor, centres: Tensor, strides: Tensor) -> Tensor:
    """Inverse of distances_of_boxes: (..., P, 4) distances in strides -> (..., P, 4) boxes."""
    return torch.cat((centres - distances[..., :2] * strides, centres + distances[..., 2:] * strides), dim=-1)


def centerness_of_distances(distances: Tensor) -> Tensor:
    """FCOS centerness (..., 4) -> (...): 1 in the middle of a box, 0 on its border and outside."""
    before, after = distances[..., :2].clamp(min=0), distances[..., 2:].clamp(min=0)
    ratio = torch.minimum(before, after) / torch.maximum(before, after).clamp(min=1e-6)
    return (ratio[..., 0] * ratio[..., 1]).sqrt()
