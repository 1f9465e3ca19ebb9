"""Residual networks of torchvision on one-channel spectrograms, and their stages as maps
whose strides suit a spectrogram.

Legend: maps (B, C, time, frequency).
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from mast_ray.boxes.points import FinestLevel
from mast_ray.models.encoder import EncoderSize
from mast_ray.models.layers import BasicBlock, Bottleneck, ResNet


class _NarrowResNet(ResNet):
    """Half of every stage's channels: the smallest size is for CPUs."""

    def _make_layer(self, block, planes, *args, **kwargs):  # type: ignore[no-untyped-def]
        if planes == 64:  # the first stage follows the stem
            self.inplanes = 32
        return super()._make_layer(block, planes // 2, *args, **kwargs)


def residual_network(size: EncoderSize) -> ResNet:
    """ResNet-101 (`large`, `huge`), ResNet-50 (`base`), ResNet-18 (`small`, `compact`) or a ResNet-10 of half the width (`tiny`), with
    one input channel and fresh weights.
    """
    match size:
        case "large" | "huge":
            network = ResNet(Bottleneck, [3, 4, 23, 3])
        case "base":
            network = ResNet(Bottleneck, [3, 4, 6, 3])
        case "small" | "compact":
            network = ResNet(BasicBlock, [2, 2, 2, 2])
        case "tiny":
            network = _NarrowResNet(BasicBlock, [1, 1, 1, 1])
            network.bn1 = nn.BatchNorm2d(32)
    network.conv1 = nn.Conv2d(1, network.bn1.num_features, 7, 2, 3, bias=False)
    return network


class ResidualStages(nn.Module):
    """A ResNet without its classifier: the maps of its last stages, finest first, strides doubling.

    A ResNet strides alike on both axes: 4, 8, 16, 32. The max-pooling strides on one axis only
    where the finest level is 8x4 (time, the finest being the second stage) or 2x4 (frequency, the first).
    """

    def __init__(self, size: EncoderSize, finest: FinestLevel = "8x4") -> None:
        super().__init__()
        network = residual_network(size)
        pool_stride = {"8x4": (2, 1), "4x4": (2, 2), "2x4": (1, 2)}[finest]
        self.stem = nn.Sequential(
            network.conv1, network.bn1, network.relu, nn.MaxPool2d(3, pool_stride, padding=1)
        )
        self.stages = nn.ModuleList((network.layer1, network.layer2, network.layer3, network.layer4))
        self.first = 1 if finest == "8x4" else 0
        self.widths = tuple(network.inplanes // 8 * 2**stage for stage in range(self.first, 4))

    def forward(self, logmel: Tensor) -> list[Tensor]:
        """(B, 1, T, F) -> maps of the widths named in `widths`"""
        features = self.stem(logmel.contiguous(memory_format=torch.channels_last))
        maps = []
        for stage in self.stages:
            features = stage(features)
            maps.append(features)
        return maps[self.first :]
