"""The box of a clean call: where its energy stays within 20 dB of its peak, along time and along frequency.

Measured on the call alone (after reverberation and recorder response, before any background), so it is tight
by construction: nothing of it depends on what else sounds at the same time.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

CONTOUR_DB = 20.0
_TIME_WINDOW_S = 0.006
_BAND_WINDOW_HZ = 40.0


class CallBox(NamedTuple):
    """Extent of one call, seconds from the first sample of its waveform."""

    begin_s: float
    end_s: float
    low_hz: float
    high_hz: float


def measured_box(
    call: NDArray[np.floating],
    sample_rate_hz: int,
    spectrum: NDArray[np.complexfloating] | None = None,
    contour_db: float = CONTOUR_DB,
) -> CallBox:
    """-20 dB contour of the two marginals of a clean call; `spectrum` is its (zero-padded) rfft if known."""
    window = max(int(_TIME_WINDOW_S * sample_rate_hz), 1)
    envelope = _smoothed(np.square(call, dtype=np.float64), window)
    first, last = _contour(envelope, contour_db)
    if spectrum is None:
        spectrum = np.fft.rfft(call, 1 << max(len(call) - 1, 511).bit_length())
    hertz_per_bin = 0.5 * sample_rate_hz / (len(spectrum) - 1)
    density = _smoothed(
        np.abs(spectrum).astype(np.float64) ** 2, max(int(_BAND_WINDOW_HZ / hertz_per_bin), 1)
    )
    lowest, highest = _contour(density, contour_db)
    return CallBox(
        first / sample_rate_hz,
        (last + 1) / sample_rate_hz,
        max(lowest - 0.5, 0.0) * hertz_per_bin,
        min((highest + 0.5) * hertz_per_bin, 0.5 * sample_rate_hz),
    )


def _contour(marginal: NDArray[np.float64], contour_db: float) -> tuple[int, int]:
    """First and last index within `contour_db` of the maximum."""
    above = np.flatnonzero(marginal >= marginal.max() * 10.0 ** (-contour_db / 10.0))
    return int(above[0]), int(above[-1])


def _smoothed(values: NDArray[np.float64], window: int) -> NDArray[np.float64]:
    """Centred moving average of the same length, zeros outside."""
    if window < 2:
        return values
    total = np.concatenate([[0.0], np.cumsum(values)])
    centre = np.arange(len(values))
    low = np.maximum(centre - window // 2, 0)
    high = np.minimum(centre + (window - window // 2), len(values))
    return (total[high] - total[low]) / window
