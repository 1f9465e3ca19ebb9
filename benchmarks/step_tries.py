"""Changes of a detector's training step that are not in the package: `detector_speed.py --tries` times them beside the step as it is.

What is faster moves into the package and leaves this page, what is not leaves it too.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

import torch
from torch import Tensor, nn
from torch.nn import functional

from mast_ray.models.adapters import SIDE_STRIDES, SidePath
from mast_ray.models.convolutions import ConvNormAct, ResidualBlock, SharedBatchNorm
from mast_ray.models.detector import MastDetector

STEM_OF_RESNETS = 64  # channels


def narrow(detector: MastDetector) -> None:
    """The side path's first maps, 512 x 64, as wide as those of a ResNet: of ViT-B's 128 channels 64 are left."""
    path, channels = detector.adapter, detector.architecture.channels
    assert isinstance(path, SidePath)
    width = min(channels // 2, STEM_OF_RESNETS)
    first, second, third = SIDE_STRIDES[detector.architecture.finest]
    path.side = nn.Sequential(
        ConvNormAct(1, width, (7, 7), first, SharedBatchNorm),
        ResidualBlock(width, norm=SharedBatchNorm),
        ConvNormAct(width, width, (3, 3), second, SharedBatchNorm),
        ResidualBlock(width, norm=SharedBatchNorm),
        ConvNormAct(width, channels, (3, 3), third, SharedBatchNorm),
        *list(path.side)[5:],
    ).to(memory_format=torch.channels_last)


def unshuffled(detector: MastDetector) -> None:
    """The first convolution over four channels (every second frame and bin) in place of one, its stride gone."""
    _replace_stem(detector, over_four_channels)


def product(detector: MastDetector) -> None:
    """The first convolution as one matrix product over its 49 inputs."""
    _replace_stem(detector, as_product)


def over_four_channels(logmel: Tensor, kernel: Tensor) -> Tensor:
    """A 7 x 7 convolution of stride 2 over (B, 1, T, F) is one of 4 x 4 and stride 1 over the four phases."""
    phases = functional.pixel_unshuffle(functional.pad(logmel, (3, 3, 3, 3)), 2)
    kernels = functional.pixel_unshuffle(functional.pad(kernel, (0, 1, 0, 1)), 2)
    return functional.conv2d(phases.contiguous(memory_format=torch.channels_last), kernels)


def as_product(logmel: Tensor, kernel: Tensor) -> Tensor:
    """The same as a product of (B T/2 F/2, 49) and (49, C)."""
    size = kernel.shape[-1]
    patches = functional.pad(logmel[:, 0], (3, 3, 3, 3)).unfold(1, size, 2).unfold(2, size, 2).flatten(3)
    return functional.linear(patches, kernel.flatten(1)).permute(0, 3, 1, 2)


def _replace_stem(detector: MastDetector, convolve: Callable[[Tensor, Tensor], Tensor]) -> None:
    stem: nn.Conv2d = detector.adapter.side[0].conv  # type: ignore[union-attr, index, assignment]
    stem.forward = lambda logmel: convolve(logmel, stem.weight)  # type: ignore[method-assign]


@contextlib.contextmanager
def joined() -> Iterator[None]:
    """Small kernels that do not wait for one another (hundreds cast one weight each) run as one."""
    from torch._inductor import config

    with config.patch(combo_kernels=True):
        yield


# name -> what is done to a detector before it is compiled, and under what it is compiled and run
CHANGES: dict[str, Callable[[MastDetector], None]] = {
    "narrow": narrow,
    "unshuffled": unshuffled,
    "product": product,
}
SETTINGS: dict[str, Callable[[], contextlib.AbstractContextManager[None]]] = {"joined": joined}
TRIES = (*CHANGES, *SETTINGS)


@contextlib.contextmanager
def tried(names: str) -> Iterator[Callable[[MastDetector], None]]:
    """`as-is`, or names of tries with a plus between them: what to do to a detector, while their settings hold."""
    chosen = [name for name in names.split("+") if name != "as-is"]
    with contextlib.ExitStack() as held:
        for name in chosen:
            if name in SETTINGS:
                held.enter_context(SETTINGS[name]())
        changes = [CHANGES[name] for name in chosen if name in CHANGES]

        def change(detector: MastDetector) -> None:
            for one in changes:
                one(detector)

        yield change
