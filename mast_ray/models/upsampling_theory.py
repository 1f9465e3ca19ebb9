"""What the propositions about grids and upsampling say (docs/method.md), as functions of numbers.

Extents delta and strides are pairs (time, frequency) in frames and bins, as arrays (N, 2) or single pairs.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

Floats = NDArray[np.float64]
PATCH = (16.0, 16.0)


def iou_bound(extent: ArrayLike, stride: ArrayLike) -> Floats:
    """Proposition 1: some placement has IoU at most prod delta / (delta + s) with
    its tightest box on the grid.
    """
    extent, stride = np.asarray(extent, np.float64), np.asarray(stride, np.float64)
    return np.prod(extent / (extent + stride), axis=-1)


def worst_placement_iou(extent: ArrayLike, stride: ArrayLike) -> Floats:
    """The limit reached by the proof's placement: the snapped span is delta + s if s divides delta, else
    (floor(delta/s) + 2) s.
    """
    extent, stride = np.asarray(extent, np.float64), np.asarray(stride, np.float64)
    whole = np.floor(extent / stride)
    divides = np.isclose(whole * stride, extent)
    snapped = np.where(divides, extent + stride, (whole + 2) * stride)
    return np.prod(extent / snapped, axis=-1)


def optimal_ratio(extent: ArrayLike) -> Floats:
    """Proposition 3: the bound is largest for u_f / u_t = delta_t / delta_f."""
    extent = np.asarray(extent, np.float64)
    return extent[..., 0] / extent[..., 1]


@dataclass(frozen=True)
class UpsamplingAdvice:
    """One allocation of upsampling judged on a user's boxes."""

    factors: tuple[int, int]  # (time, frequency)
    strides: tuple[float, float]
    mean_bound: float  # mean over boxes of Proposition 1's bound
    mean_worst: float  # mean over boxes of the IoU at the worst placement itself
    share_at_least_half: float  # boxes whose bound reaches 0.5

    @property
    def ratio(self) -> float:
        """Frequency over time."""
        return self.factors[1] / self.factors[0]


def advise(extents: ArrayLike, budget: int) -> list[UpsamplingAdvice]:
    """Every allocation of a budget to powers of two, best mean bound first. Extents are (N, 2)."""
    extents = np.asarray(extents, np.float64).reshape(-1, 2)
    advice = []
    time = 1
    while time <= budget:
        frequency = budget // time
        strides = (PATCH[0] / time, PATCH[1] / frequency)
        bound = iou_bound(extents, strides)
        worst = float(worst_placement_iou(extents, strides).mean())
        share = float((bound >= 0.5).mean())
        advice.append(UpsamplingAdvice((time, frequency), strides, float(bound.mean()), worst, share))
        time *= 2
    return sorted(advice, key=lambda choice: -choice.mean_bound)
