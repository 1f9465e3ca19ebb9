"""Convolution blocks of adapters, pyramid and head on maps (B, C, time, frequency);
kernels are (time, frequency).

Norms have 8 channels per group, which is GroupNorm-32 at the paper's 256 channels.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional

CHANNELS_PER_GROUP = 8


class MapNorm(nn.GroupNorm):
    """GroupNorm that returns the type it was given (autocast would return float32)."""

    def __init__(self, channels: int) -> None:
        super().__init__(channels // CHANNELS_PER_GROUP, channels)

    def forward(self, features: Tensor) -> Tensor:
        with torch.autocast(features.device.type, enabled=False):
            weight, bias = self.weight.to(features.dtype), self.bias.to(features.dtype)
            return functional.group_norm(features, self.num_groups, weight, bias, self.eps)


Norm = Callable[[int], nn.Module]  # channels -> a norm of maps


class ConvNormAct(nn.Module):
    """Convolution, norm, ReLU; padding keeps the size (halves an axis with stride 2)."""

    def __init__(
        self,
        inputs: int,
        outputs: int,
        kernel: tuple[int, int] = (3, 3),
        stride: int | tuple[int, int] = 1,
        norm: Norm = MapNorm,
    ) -> None:
        super().__init__()
        padding = (kernel[0] // 2, kernel[1] // 2)
        self.conv = nn.Conv2d(inputs, outputs, kernel, stride, padding, bias=False)
        self.norm = norm(outputs)

    def forward(self, features: Tensor) -> Tensor:
        return functional.relu(self.norm(self.conv(features)))


class ResidualBlock(nn.Module):
    """Two 3 x 3 convolutions around a skip connection; with `inner` channels
    between 1 x 1 ones (a bottleneck).
    """

    def __init__(self, channels: int, inner: int | None = None, norm: Norm = MapNorm) -> None:
        super().__init__()
        if inner is None:
            self.body: nn.Module = ConvNormAct(channels, channels, norm=norm)
            self.last = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        else:
            self.body = nn.Sequential(ConvNormAct(channels, inner, (1, 1)), ConvNormAct(inner, inner))
            self.last = nn.Conv2d(inner, channels, 1, bias=False)
        self.norm = norm(channels)

    def forward(self, features: Tensor) -> Tensor:
        return functional.relu(features + self.norm(self.last(self.body(features))))


class PlaceNorm(nn.LayerNorm):
    """LayerNorm over the channels of every place of a map: nothing of a chunk or a batch enters."""

    def forward(self, features: Tensor) -> Tensor:
        with torch.autocast(features.device.type, enabled=False):
            weight, bias = self.weight.to(features.dtype), self.bias.to(features.dtype)
            last = features.permute(0, 2, 3, 1)
            return functional.layer_norm(last, self.normalized_shape, weight, bias, self.eps).permute(
                0, 3, 1, 2
            )


class StandardisedConv2d(nn.Conv2d):
    """A convolution whose kernels have mean 0 and variance 1 / fan-in (Qiao et al. 2019)."""

    def forward(self, features: Tensor) -> Tensor:
        weight = self.weight.float()
        variance, mean = torch.var_mean(weight, dim=(1, 2, 3), keepdim=True, correction=0)
        weight = (weight - mean) * torch.rsqrt(variance * weight[0].numel() + 1e-6)
        return functional.conv2d(features, weight, self.bias, self.stride, self.padding)


def standardised(module: nn.Module) -> nn.Module:
    """A module whose convolutions became standardised ones, in place."""
    for part in module.modules():
        if type(part) is nn.Conv2d:
            part.__class__ = StandardisedConv2d
    return module
