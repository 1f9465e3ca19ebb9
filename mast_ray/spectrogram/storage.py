"""Log-mel as it is stored: uint8 or float16 with value = offset + scale * stored.

uint8 halves an archive again (half a million chunks: 118 GiB in float16) at an error of at most half a
step, 0.055 with the fixed range; the standard deviation of log-mel values in field recordings is 2 to 4.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from mast_ray.spectrogram.logmel import LOG_FLOOR

Storage = Literal["uint8", "float16"]

# From silence to above a full-scale tone (9.2, and 1.4 more for the pre-emphasis at 8 kHz): known before
# the first frame is computed, so a 24 h recording is quantised while it streams through.
FIXED_RANGE = (LOG_FLOOR, 12.0)


class Stored(NamedTuple):
    """Stored values with what is needed to read them."""

    values: NDArray[np.uint8] | NDArray[np.float16]
    scale: float
    offset: float


def quantise(
    logmel: NDArray[np.float32],
    storage: Storage,
    value_range: tuple[float, float] | None = FIXED_RANGE,
) -> Stored:
    """Log-mel of any shape -> stored values. `value_range` None: that of this array, finer steps."""
    if storage == "float16":
        return Stored(logmel.astype(np.float16), 1.0, 0.0)
    if value_range is None:
        value_range = (float(logmel.min()), float(logmel.max())) if logmel.size else FIXED_RANGE
    low, high = value_range
    scale = float(np.float32((high - low) / 255)) or 1.0
    offset = float(np.float32(low))
    steps = np.rint((logmel - np.float32(offset)) * np.float32(1 / scale))
    return Stored(np.clip(steps, 0, 255, out=steps).astype(np.uint8), scale, offset)


def dequantise(values: NDArray, scale: float, offset: float) -> NDArray[np.float32]:
    """Inverse of quantise, up to half a step."""
    return values.astype(np.float32) * np.float32(scale) + np.float32(offset)
