"""Feature pyramid whose finest level is the adapter's output (docs/method.md). Strides double on both axes.

Legend: maps (B, C, time, frequency), finest level first.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional

from mast_ray.models.convolutions import ConvNormAct, MapNorm, doubled


class WeightedSum(nn.Module):
    """Two maps mixed with non-negative learned weights that are normalised by their sum."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(2))

    def forward(self, first: Tensor, second: Tensor) -> Tensor:
        share = functional.relu(self.weight)
        share = (share / (share.sum() + 1e-4)).to(first.dtype)
        return share[0] * first + share[1] * second


class SmoothingBlock(nn.Module):
    """Sum of 3 x 3, 3 x 1 and 1 x 3 convolutions, norm, ReLU.

    A sum of convolutions is the convolution with the sum of kernels, so the three are
    learned apart and run as one.
    """

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.square = nn.Conv2d(channels, channels, (3, 3), bias=False)
        self.along_time = nn.Conv2d(channels, channels, (3, 1), bias=False)
        self.along_frequency = nn.Conv2d(channels, channels, (1, 3), bias=False)
        self.norm = MapNorm(channels)

    def forward(self, features: Tensor) -> Tensor:
        kernel = self.square.weight
        kernel = kernel + functional.pad(self.along_time.weight, (1, 1))
        kernel = kernel + functional.pad(self.along_frequency.weight, (0, 0, 1, 1))
        return functional.relu(self.norm(functional.conv2d(features, kernel, padding=1)))


class Pyramid(nn.Module):
    """Stride-2 convolutions down, 1 x 1 laterals, weighted top-down fusion, smoothing."""

    def __init__(self, channels: int, num_levels: int) -> None:
        super().__init__()
        self.down = nn.ModuleList(ConvNormAct(channels, channels, stride=2) for _ in range(num_levels - 1))
        self.lateral = nn.ModuleList(nn.Conv2d(channels, channels, 1) for _ in range(num_levels))
        self.fuse = nn.ModuleList(WeightedSum() for _ in range(num_levels - 1))
        self.smooth = nn.ModuleList(SmoothingBlock(channels) for _ in range(num_levels))

    def forward(self, features: Tensor, above: Sequence[Tensor] = ()) -> list[Tensor]:
        """(B, C, time, frequency) -> one map per level; `above` is added to the levels above the finest"""
        maps = [features]
        for level, down in enumerate(self.down):
            below = down(maps[-1])
            maps.append(below + above[level] if level < len(above) else below)
        return fused_top_down(maps, self.lateral, self.fuse, self.smooth)


class StagePyramid(nn.Module):
    """The same fusion over the stages of a convolutional network; levels beyond them by stride-2 convolutions."""

    def __init__(self, widths: Sequence[int], channels: int, num_levels: int) -> None:
        super().__init__()
        inputs = [*widths, *([channels] * (num_levels - len(widths)))]
        self.down = nn.ModuleList(
            ConvNormAct(inputs[level - 1], channels, stride=2) for level in range(len(widths), num_levels)
        )
        self.lateral = nn.ModuleList(nn.Conv2d(width, channels, 1) for width in inputs)
        self.fuse = nn.ModuleList(WeightedSum() for _ in range(num_levels - 1))
        self.smooth = nn.ModuleList(SmoothingBlock(channels) for _ in range(num_levels))

    def forward(self, stages: list[Tensor]) -> list[Tensor]:
        """Maps of the stages, finest first -> one map per level"""
        maps = list(stages)
        for down in self.down:
            maps.append(down(maps[-1]))
        return fused_top_down(maps, self.lateral, self.fuse, self.smooth)


def fused_top_down(
    maps: list[Tensor], lateral: nn.ModuleList, fuse: nn.ModuleList, smooth: nn.ModuleList
) -> list[Tensor]:
    """1 x 1 laterals, then every map mixed with the one above it, then smoothed; finest first."""
    maps = [layer(level) for layer, level in zip(lateral, maps, strict=True)]
    for index in range(len(maps) - 2, -1, -1):
        maps[index] = fuse[index](maps[index], _as_large_as(maps[index], maps[index + 1]))
    return [layer(level) for layer, level in zip(smooth, maps, strict=True)]


def _as_large_as(level: Tensor, above: Tensor) -> Tensor:
    """The map of the level above, every cell again for those below it."""
    wanted = level.shape[-2:]
    if torch.compiler.is_compiling() and wanted == (2 * above.shape[-2], 2 * above.shape[-1]):
        return doubled(above)
    return functional.interpolate(above, size=wanted, mode="nearest")
