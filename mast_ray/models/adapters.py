"""Adapters between the token map (B, C, 64, 8) and the pyramid, by name (paper, appendix "Adapter Designs").

Layers are as printed. The paper says that each adapter adds 2-4 M parameters; its conv adapter as printed
has 5.3 M, and its anisotropic one fits (3.5 M) only when the residual block at 512 channels is a
bottleneck, which is how it is built here.
"""

from __future__ import annotations

from typing import Literal

from torch import Tensor, nn
from torch.nn import functional

from mast_ray.models.convolutions import ConvNormAct, MapNorm, ResidualBlock
from mast_ray.models.encoder import PATCH

AdapterName = Literal["none", "conv", "anisotropic", "upsampling"]

UPSAMPLING: dict[AdapterName, tuple[int, int]] = {
    "none": (1, 1),
    "conv": (1, 1),
    "anisotropic": (1, 4),
    "upsampling": (2, 4),
}


def adapter_stride(name: AdapterName) -> tuple[int, int]:
    """Frames and bins per cell of the adapter's output: (16, 16), (16, 4) or (8, 4)."""
    time, frequency = UPSAMPLING[name]
    return PATCH // time, PATCH // frequency


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
    """Learned upsampling by 2 in time and 4 in frequency, then separable and 3 x 3 refinement: 128 x 32."""

    def __init__(self, inputs: int, channels: int) -> None:
        super().__init__()
        factors = UPSAMPLING["upsampling"]
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


def build_adapter(name: AdapterName, inputs: int, channels: int) -> nn.Module:
    """(B, inputs, 64, 8) -> (B, channels, 64 u_t, 8 u_f)"""
    match name:
        case "none":
            return nn.Conv2d(inputs, channels, 1)
        case "conv":
            return ConvAdapter(inputs, channels)
        case "anisotropic":
            return AnisotropicAdapter(inputs, channels)
        case "upsampling":
            return UpsamplingAdapter(inputs, channels)
