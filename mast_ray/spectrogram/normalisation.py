"""From stored log-mel to what a model sees: (S - background - mean) / (std + eps) / divisor, and the statistics.

Legend: B chunks, S segments per chunk, T frames, F bins. Mean and standard deviation are taken over valid
frames of the training pool only, as moments that merge exactly over shards in any order. The background is
0, or the median of the recording in every bin (spectrogram/background.py); the statistics are then those of
what is left.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor

from mast_ray.spectrogram.chunking import TAIL_FRAMES, Tail
from mast_ray.spectrogram.logmel import LOG_FLOOR

Background = Literal["none", "median"]
# Padding and gaps without a signal lie so far below a background, not further: how far they truly lie
# would tell the site. 26 dB; noise is that far below its own median in a frame of 600.
DEEPEST_BELOW_BACKGROUND = 6.0


@dataclass(frozen=True)
class Moments:
    """Count, mean and sum of squared deviations of a set of values; `a.merge(b)` are those of both sets."""

    count: int = 0
    mean: float = 0.0
    m2: float = 0.0

    @classmethod
    def of(cls, values: ArrayLike) -> Moments:
        """Moments of an array in float64, two passes: stable for values far from zero."""
        array = np.asarray(values, np.float64)
        if array.size == 0:
            return cls()
        mean = float(array.mean())
        return cls(int(array.size), mean, float(np.square(array - mean).sum()))

    def merge(self, other: Moments) -> Moments:
        """Moments of both sets together (Chan, Golub and LeVeque 1979)."""
        count = self.count + other.count
        if count == 0:
            return Moments()
        delta = other.mean - self.mean
        share = other.count / count
        return Moments(
            count, self.mean + delta * share, self.m2 + other.m2 + delta * delta * self.count * share
        )

    @property
    def std(self) -> float:
        """Standard deviation of the set itself (divided by count)."""
        return (self.m2 / self.count) ** 0.5 if self.count else 0.0

    def to_dict(self) -> dict[str, float]:
        return asdict(self)

    @classmethod
    def from_dict(cls, values: dict[str, float]) -> Moments:
        return cls(int(values["count"]), float(values["mean"]), float(values["m2"]))


@dataclass(frozen=True)
class Normalisation:
    """Part of every checkpoint; two are interchangeable only if they are equal.

    `divisor` is 2 when starting from AudioMAE's public weights, which expect division by 2 std.
    """

    mean: float
    std: float
    divisor: float = 1.0
    eps: float = 1e-6
    background: Background = "none"

    @classmethod
    def of_moments(
        cls, moments: Moments, divisor: float = 1.0, background: Background = "none"
    ) -> Normalisation:
        return cls(moments.mean, moments.std, divisor, background=background)

    @property
    def denominator(self) -> float:
        return (self.std + self.eps) * self.divisor

    @property
    def silence(self) -> float:
        """What a silent or padded frame becomes: the lowest value a model ever sees."""
        return self.of_value(LOG_FLOOR if self.background == "none" else -DEEPEST_BELOW_BACKGROUND)

    def scale_from(self, other: Normalisation) -> tuple[float, float]:
        """Gain and shift that make of values normalised by another those of this one."""
        return other.denominator / self.denominator, self.of_value(other.mean)

    def of_value(self, log_mel: float) -> float:
        return (log_mel - self.mean) / self.denominator

    def __call__(
        self,
        raw: Tensor,
        scale: Tensor | None = None,
        offset: Tensor | None = None,
        tail: Tail = "real",
        background: Tensor | None = None,
    ) -> Tensor:
        """(B, T, F) stored values (uint8, float16 or float32) -> (B, 1, T, F) float32 on the same device.

        `scale` and `offset` are (B,), or (B, S) where the segments of a chunk were quantised apart. One
        multiplication and one addition: dequantising is folded into the normalisation. Tail "zeros" makes
        the last two frames what 0 becomes (`paper`). `background`: (B, S, F), wanted when this
        normalisation is of values above it, and left alone when it is not.
        """
        num_chunks, num_frames, num_bins = raw.shape
        assert self.background == "none" or background is not None, "the chunks were read without background"
        if scale is None or offset is None:
            out = raw.to(torch.float32) * (1.0 / self.denominator) - self.mean / self.denominator
        else:
            gain = (scale.to(torch.float32) / self.denominator).reshape(num_chunks, -1, 1, 1)
            bias = ((offset.to(torch.float32) - self.mean) / self.denominator).reshape(num_chunks, -1, 1, 1)
            parts = raw.reshape(num_chunks, gain.shape[1], num_frames // gain.shape[1], num_bins)
            out = (parts.to(torch.float32) * gain + bias).reshape(num_chunks, num_frames, num_bins)
        if self.background == "median" and background is not None:
            level = (background.to(torch.float32) / self.denominator)[:, :, None, :]  # (B, S, 1, F)
            parts = out.reshape(num_chunks, level.shape[1], num_frames // level.shape[1], num_bins)
            out = (parts - level).clamp(min=self.silence).reshape(num_chunks, num_frames, num_bins)
        if tail == "zeros":
            out[:, num_frames - TAIL_FRAMES :] = self.of_value(0.0)
        return out.unsqueeze(1)

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Normalisation:
        numbers = {name: float(values[name]) for name in ("mean", "std", "divisor", "eps")}
        return cls(**numbers, background=values.get("background", "none"))
