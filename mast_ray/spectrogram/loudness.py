"""How much of a chunk stands out of its own background.

Legend: B chunks, T frames, F bins. The background of a bin is its median over time.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from mast_ray.spectrogram.normalisation import Normalisation

EVERY_FRAMES = 8  # a median over 128 of 1024 frames is near enough, and a sort of an eighth
# Times the background, averaged over 5 frames and 3 bins: single cells of noise reach that, such averages do not.
SMOOTH = (5, 3)
FAINT, CLEAR = 3.0, 5.0


def loudness(logmel: Tensor, normalisation: Normalisation) -> Tensor:
    """(B, T, F) -> (B,) share of the cells of every chunk that stand out of its background"""
    level = median_level(logmel, normalisation.silence)[:, None, :]
    times = ((logmel - level) * normalisation.denominator).clamp(max=20.0).exp()
    return clearness(times).mean(dim=(1, 2))


def clearness(times: Tensor) -> Tensor:
    """(B, T, F) power over the background -> 0 where it is noise, 1 where it is clearly more"""
    padding = (SMOOTH[0] // 2, SMOOTH[1] // 2)
    mean = functional.avg_pool2d(times[:, None], SMOOTH, stride=1, padding=padding, count_include_pad=False)
    return ((mean[:, 0] - FAINT) / (CLEAR - FAINT)).clamp(0, 1)


def median_level(logmel: Tensor, silence: float) -> Tensor:
    """(B, T, F) -> (B, F) median over the frames that are not padding; 0 where all are"""
    frames = logmel[:, ::EVERY_FRAMES]
    is_sound = (frames > silence + 1e-3).any(dim=2)  # (B, frames)
    sorted_up = frames.masked_fill(~is_sound[:, :, None], torch.inf).sort(dim=1).values
    middle = ((is_sound.sum(dim=1) - 1) // 2).clamp(min=0)
    level = sorted_up.gather(1, middle[:, None, None].expand(-1, 1, frames.shape[2]))[:, 0]
    return level.masked_fill(level.isinf(), 0.0)
