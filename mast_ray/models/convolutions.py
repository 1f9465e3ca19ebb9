"""Convolution blocks of adapters, pyramid and head on maps (B, C, time, frequency);
kernels are (time, frequency).

Norms have 8 channels per group, which is GroupNorm-32 at the paper's 256 channels. Some layers are written twice: what a
compiler for GPUs makes quick work of is not what runs well layer by layer. Both give the same values.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.nn.functional import all_reduce
from torch.nn import functional

CHANNELS_PER_GROUP = 8


class MapNorm(nn.GroupNorm):
    """GroupNorm that returns the type it was given (autocast would return float32)."""

    def __init__(self, channels: int) -> None:
        super().__init__(channels // CHANNELS_PER_GROUP, channels)

    def forward(self, features: Tensor) -> Tensor:
        with torch.autocast(features.device.type, enabled=False):
            if torch.compiler.is_compiling():
                return self.by_sums(features)
            weight, bias = self.weight.to(features.dtype), self.bias.to(features.dtype)
            return functional.group_norm(features, self.num_groups, weight, bias, self.eps)

    def by_sums(self, features: Tensor) -> Tensor:
        """The same from sums per channel, which the compiler joins with the layers around it: torch's own kernel has maps
        copied from one memory layout to another before and after. Launch by launch it is the slower one.
        """
        values, size = features.float(), CHANNELS_PER_GROUP
        area = features.shape[-2] * features.shape[-1]
        sums = torch.stack((values.sum((2, 3)), values.square().sum((2, 3))), dim=-1)
        mean, square = (sums.unflatten(1, (self.num_groups, size)).sum(2) / (size * area)).unbind(-1)
        variance = (square - mean.square()).clamp(min=0)
        scale = torch.rsqrt(variance + self.eps).repeat_interleave(size, 1) * self.weight.float()
        shift = self.bias.float() - mean.repeat_interleave(size, 1) * scale
        return (values * scale[:, :, None, None] + shift[:, :, None, None]).to(features.dtype)


class SharedBatchNorm(nn.BatchNorm2d):
    """BatchNorm over the whole batch of a step: with several workers their statistics are joined, so that a step
    does not depend on how chunks were dealt out. (SyncBatchNorm does so on GPUs only, and not for uneven shares.)
    """

    def forward(self, features: Tensor) -> Tensor:
        if self.training and dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1:
            # here and not as a decorator: that would import the compiler, seconds of every start
            return torch.compiler.disable(self._over_workers)(features)
        return super().forward(features)

    def _over_workers(self, features: Tensor) -> Tensor:
        with torch.autocast(features.device.type, enabled=False):
            values = features.float()
            own = torch.stack((values.sum((0, 2, 3)), values.square().sum((0, 2, 3))))
            count = values.new_full((1, self.num_features), values.numel() / self.num_features)
            total = all_reduce(torch.cat((own, count)))
            mean, square = total[0] / total[2], total[1] / total[2]
            variance = (square - mean.square()).clamp(min=0)
            self._remember(mean.detach(), variance.detach(), total[2, 0].detach())
            scale = torch.rsqrt(variance + self.eps) * self.weight.float()
            shift = self.bias.float() - mean * scale
            return (values * scale[:, None, None] + shift[:, None, None]).to(features.dtype)

    def _remember(self, mean: Tensor, variance: Tensor, count: Tensor) -> None:
        """Move the running statistics as BatchNorm does: towards the unbiased variance."""
        assert self.running_mean is not None and self.running_var is not None and self.momentum is not None
        self.running_mean.lerp_(mean.to(self.running_mean.dtype), self.momentum)
        unbiased = variance * count / (count - 1).clamp(min=1)
        self.running_var.lerp_(unbiased.to(self.running_var.dtype), self.momentum)
        if self.num_batches_tracked is not None:
            self.num_batches_tracked.add_(1)


class OneChannelConvolution(nn.Conv2d):
    """A convolution of stride 2 over one channel, for which GPUs have no fast kernel: compiled it is one of stride 1 over the
    four channels that every second frame and bin make.
    """

    def forward(self, features: Tensor) -> Tensor:
        return self.over_phases(features) if torch.compiler.is_compiling() else super().forward(features)

    def over_phases(self, features: Tensor) -> Tensor:
        """An odd square kernel of stride 2 and half its size as padding, with an even length of every axis."""
        edge = self.kernel_size[0] // 2
        phases = functional.pixel_unshuffle(functional.pad(features, (edge,) * 4), 2)
        kernels = functional.pixel_unshuffle(functional.pad(self.weight, (0, 1, 0, 1)), 2)
        return functional.conv2d(phases.contiguous(memory_format=torch.channels_last), kernels)


class FewChannelsConvolution(nn.Conv2d):
    """A convolution to fewer than eight channels: compiled the missing ones are computed too and thrown away, as GPUs
    take channels by eights and copy maps about where there are fewer.
    """

    def forward(self, features: Tensor) -> Tensor:
        return self.by_eights(features) if torch.compiler.is_compiling() else super().forward(features)

    def by_eights(self, features: Tensor) -> Tensor:
        assert self.bias is not None
        missing = -self.out_channels % 8
        weight = functional.pad(self.weight, (0, 0, 0, 0, 0, 0, 0, missing))
        weight = weight.contiguous(memory_format=torch.channels_last)
        bias = functional.pad(self.bias, (0, missing))
        return functional.conv2d(features, weight, bias, padding=self.padding)[:, : self.out_channels]  # type: ignore[arg-type]


def doubled(features: Tensor) -> Tensor:
    """(B, C, time, frequency) -> (B, C, 2 time, 2 frequency), every cell four times: nearest interpolation whose gradient is a sum
    (the compiler's has zeros to which it adds cell by cell).
    """
    cells = features.permute(0, 2, 3, 1)[:, :, None, :, None]  # channels last, as maps lie in memory
    batch, time, _, frequency, _, channels = cells.shape
    four = cells.expand(-1, -1, 2, -1, 2, -1).reshape(batch, 2 * time, 2 * frequency, channels)
    return four.permute(0, 3, 1, 2)


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
        convolution = OneChannelConvolution if inputs == 1 else nn.Conv2d
        self.conv = convolution(inputs, outputs, kernel, stride, padding, bias=False)
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
