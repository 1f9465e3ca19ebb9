"""Adapters between the token map (B, C, 64, 8) and the pyramid, by name (docs/method.md).

Layers are as printed. The paper says that each adapter adds 2-4 M parameters; its conv adapter as printed
has 5.3 M, and its anisotropic one fits (3.5 M) only when the residual block at 512 channels is a
bottleneck, which is how it is built here. `hybrid` is not the paper's: the upsampling adapter beside a
convolutional path from the spectrogram itself.
"""

from __future__ import annotations

import itertools
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional

from mast_ray.boxes.points import FINEST_STRIDES, FinestLevel
from mast_ray.models.convolutions import ConvNormAct, MapNorm, ResidualBlock, SharedBatchNorm
from mast_ray.models.encoder import PATCH

AdapterName = Literal["none", "conv", "anisotropic", "upsampling", "hybrid"]

# Strides of the side path up to the finest map, in three steps.
SIDE_STRIDES: dict[FinestLevel, tuple[tuple[int, int], ...]] = {
    "8x4": ((2, 2), (2, 2), (2, 1)),
    "4x4": ((2, 2), (2, 2), (1, 1)),
    "2x4": ((2, 2), (1, 2), (1, 1)),
}
MOST_SIDE_STAGES = 3  # beyond the finest map; a level above them has few cells
MOST_FIRST_CHANNELS = (
    64  # of the side path's first maps, as in ResNets: they are up to 16 times the finest one
)


def adapter_stride(name: AdapterName, finest: FinestLevel = "8x4") -> tuple[int, int]:
    """Frames and bins per cell of the adapter's output: (16, 16), (16, 4), or the
    finest level of those that can choose it.
    """
    match name:
        case "none" | "conv":
            return PATCH, PATCH
        case "anisotropic":
            return PATCH, PATCH // 4
        case "upsampling" | "hybrid":
            return FINEST_STRIDES[finest]


class ConvAdapter(nn.Sequential):
    """Three 3 x 3 convolutions with ReLU at 64 x 8: restores locality, cannot
    resolve events inside a patch.
    """

    def __init__(self, inputs: int, channels: int) -> None:
        super().__init__(
            nn.Conv2d(inputs, 2 * channels, 3, padding=1),
            nn.ReLU(),
            nn.Conv2d(2 * channels, channels, 3, padding=1),
            nn.ReLU(),
            nn.Conv2d(channels, channels, 3, padding=1),
            nn.ReLU(),
        )


class AnisotropicAdapter(nn.Module):
    """Separable 3 x 1 and 1 x 3 convolutions, then frequency repeated 4 times: 64 x 32."""

    def __init__(self, inputs: int, channels: int) -> None:
        super().__init__()
        wide = 2 * channels
        self.body = nn.Sequential(
            ConvNormAct(inputs, wide, (1, 1)),
            ResidualBlock(wide, inner=wide // 4),
            ConvNormAct(wide, wide, (3, 1)),
            ConvNormAct(wide, wide, (1, 3)),
            ConvNormAct(wide, channels, (1, 1)),
            ResidualBlock(channels),
        )

    def forward(self, tokens: Tensor) -> Tensor:
        return functional.interpolate(self.body(tokens), scale_factor=(1.0, 4.0), mode="nearest")


class UpsamplingAdapter(nn.Module):
    """Learned upsampling (by 2 in time and 4 in frequency as printed), then separable and 3 x 3 refinement:
    128 x 32.
    """

    def __init__(self, inputs: int, channels: int, finest: FinestLevel = "8x4") -> None:
        super().__init__()
        stride = FINEST_STRIDES[finest]
        factors = (PATCH // stride[0], PATCH // stride[1])
        self.reduce = ConvNormAct(inputs, channels, (1, 1))
        self.coarse = ResidualBlock(channels)
        self.upsample = nn.ConvTranspose2d(channels, channels, factors, factors, bias=False)
        self.upsample_norm = MapNorm(channels)
        self.along_time = ConvNormAct(channels, channels, (3, 1))
        self.along_frequency = ConvNormAct(channels, channels, (1, 3))
        self.fine = ResidualBlock(channels)

    def forward(self, tokens: Tensor) -> Tensor:
        features = self.coarse(self.reduce(tokens))  # (B, c, 64, 8)
        features = functional.relu(self.upsample_norm(self.upsample(features)))  # (B, c, 128, 32)
        return self.fine(self.along_frequency(self.along_time(features)))


class SidePath(nn.Module):
    """A residual network from the spectrogram to the finest map and the levels above it.

    Its norms are batch norms: group norms had 0.017 less F1 in-domain, 0.031 at unseen dates and 0.012 at unseen sites
    (docs/measured/next_site.md). Weights have the same shapes whatever the finest level: only strides differ.
    """

    def __init__(self, channels: int, finest: FinestLevel = "8x4", num_levels: int = 4) -> None:
        super().__init__()
        first, second, third = SIDE_STRIDES[finest]
        narrow = min(channels // 2, MOST_FIRST_CHANNELS)
        self.side = nn.Sequential(
            ConvNormAct(1, narrow, (7, 7), first, SharedBatchNorm),
            ResidualBlock(narrow, norm=SharedBatchNorm),
            ConvNormAct(narrow, narrow, (3, 3), second, SharedBatchNorm),
            ResidualBlock(narrow, norm=SharedBatchNorm),
            ConvNormAct(narrow, channels, (3, 3), third, SharedBatchNorm),
            ResidualBlock(channels, norm=SharedBatchNorm),
            ResidualBlock(channels, norm=SharedBatchNorm),
        )
        self.widths = (channels, *([channels * 3 // 2] * min(num_levels - 1, MOST_SIDE_STAGES)))
        self.stages = nn.ModuleList(
            nn.Sequential(
                ConvNormAct(before, after, (3, 3), 2, SharedBatchNorm),
                ResidualBlock(after, norm=SharedBatchNorm),
                ResidualBlock(after, norm=SharedBatchNorm),
            )
            for before, after in itertools.pairwise(self.widths)
        )

    def maps(self, logmel: Tensor) -> list[Tensor]:
        """(B, 1, T, F) -> maps of the widths named in `widths`, finest first, strides doubling"""
        logmel = logmel.contiguous(memory_format=torch.channels_last)
        maps = [self.side(logmel.to(self.side[0].conv.weight.dtype))]
        for stage in self.stages:
            maps.append(stage(maps[-1]))
        return maps


class HybridAdapter(SidePath):
    """Upsampled tokens joined, level by level, by a residual network from the spectrogram.

    It sees where in a 16 x 16 patch a call lies, which tokens must learn by heart, and it keeps calls shorter
    than a patch apart.
    """

    def __init__(self, inputs: int, channels: int, finest: FinestLevel = "8x4", num_levels: int = 4) -> None:
        tokens = UpsamplingAdapter(inputs, channels, finest)
        super().__init__(channels, finest, num_levels)
        self.tokens = tokens
        self.joints = nn.ModuleList(nn.Conv2d(width, channels, 1, bias=False) for width in self.widths[1:])

    def forward(self, tokens: Tensor, logmel: Tensor) -> list[Tensor]:
        """(B, inputs, 64, 8), (B, 1, T, F) -> the finest map (B, channels, time, frequency), and what is added to
        the levels above it
        """
        finest, *above = self.maps(logmel)
        joined = [joint(features) for joint, features in zip(self.joints, above, strict=True)]
        return [self.tokens(tokens) + finest, *joined]


def build_adapter(
    name: AdapterName, inputs: int, channels: int, finest: FinestLevel = "8x4", num_levels: int = 4
) -> nn.Module:
    """(B, inputs, 64, 8) -> (B, channels, time, frequency); `hybrid` takes the spectrogram too and gives a list."""
    match name:
        case "none":
            return nn.Conv2d(inputs, channels, 1)
        case "conv":
            return ConvAdapter(inputs, channels)
        case "anisotropic":
            return AnisotropicAdapter(inputs, channels)
        case "upsampling":
            return UpsamplingAdapter(inputs, channels, finest)
        case "hybrid":
            return HybridAdapter(inputs, channels, finest, num_levels)
