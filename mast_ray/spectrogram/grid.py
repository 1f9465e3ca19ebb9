"""The only translator between seconds and hertz (tables) and frames and mel bins (tensors).

Spectrograms are (B, 1, T, F): time first, then frequency. Boxes are (t0, f0, t1, f1), half-open floats in
frames and bins. There is no x, y, height or width. Frames are 10 ms apart; bins are the 128 HTK-mel filters
of Kaldi's filterbank between 20 and 8000 Hz, whose centres are mel(20) + (i + 1) (mel(8000) - mel(20)) /
129.
"""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

SAMPLE_RATE_HZ = 16_000
FRAME_SHIFT_S = 0.010
FRAME_SHIFT_SAMPLES = 160
FRAME_LENGTH_SAMPLES = 400
NUM_BINS = 128
LOW_HZ = 20.0
HIGH_HZ = 8_000.0
CHUNK_FRAMES = 1024
SEGMENT_FRAMES = 512  # half a chunk: what is stored once and what neighbouring chunks share
CHUNK_S = CHUNK_FRAMES * FRAME_SHIFT_S
HOP_S = SEGMENT_FRAMES * FRAME_SHIFT_S
CHUNK_SAMPLES = CHUNK_FRAMES * FRAME_SHIFT_SAMPLES
HOP_SAMPLES = SEGMENT_FRAMES * FRAME_SHIFT_SAMPLES
_FRAME_DECIMALS = 7  # a nanosecond
_BIN_DECIMALS = 7  # whole bins come back whole from a table of hertz

Floats = NDArray[np.float64]
Integers = NDArray[np.integer]
Rounding = Literal["grid", "none"]


def hertz_to_mel(hertz: Floats | float) -> Floats:
    """HTK mel of a frequency: 1127 ln(1 + f / 700), the natural-log form of 2595 log10."""
    return 1127.0 * np.log1p(np.asarray(hertz, np.float64) / 700.0)


def mel_to_hertz(mel: Floats | float) -> Floats:
    """Inverse of hertz_to_mel."""
    return 700.0 * np.expm1(np.asarray(mel, np.float64) / 1127.0)


_LOW_MEL = float(hertz_to_mel(LOW_HZ))
_MEL_STEP = (float(hertz_to_mel(HIGH_HZ)) - _LOW_MEL) / (NUM_BINS + 1)


def hertz_to_bin(hertz: Floats | float) -> Floats:
    """Fractional bin whose centre lies at a frequency; integers are filter centres. Not clipped."""
    return (hertz_to_mel(hertz) - _LOW_MEL) / _MEL_STEP - 1.0


def bin_to_hertz(bins: Floats | float) -> Floats:
    """Frequency of a (fractional) bin position; inverse of hertz_to_bin."""
    return mel_to_hertz(_LOW_MEL + (np.asarray(bins, np.float64) + 1.0) * _MEL_STEP)


def frames_of_seconds(seconds: Floats | float) -> NDArray[np.int64]:
    """floor(seconds / 10 ms), immune to 0.29 / 0.01 = 28.999...: times are first rounded to a nanosecond."""
    return np.floor(_rounded_frames(np.asarray(seconds, np.float64))).astype(np.int64)


def _rounded_frames(seconds: Floats) -> Floats:
    return np.round(seconds / FRAME_SHIFT_S, _FRAME_DECIMALS)


def _rounded_bins(hertz: Floats) -> Floats:
    return np.round(hertz_to_bin(hertz), _BIN_DECIMALS)


def fractional_frames(seconds: Floats | float) -> Floats:
    """Frames of a time or a length with every fraction of it, as a model's own boxes have them."""
    return np.asarray(seconds, np.float64) / FRAME_SHIFT_S


def end_of_sound(valid_frames: Any) -> Any:
    """Where the sound of a chunk or recording ends, in frames: with the samples of its last whole frame, 2.5 frames long.

    Numbers, arrays or tensors of whole frames inside the audio. A full chunk's sound ends behind it.
    """
    return valid_frames + (FRAME_LENGTH_SAMPLES / FRAME_SHIFT_SAMPLES - 1.0)


def seconds_of_frames(frames: Floats | float) -> Floats:
    """Start time of a (fractional) frame; the length of so many."""
    return np.asarray(frames, np.float64) * FRAME_SHIFT_S


def seconds_of_hops(hops: Integers | float) -> Floats:
    """Where chunk (or segment) k begins; the sound that k of them add to each other."""
    return np.asarray(hops, np.float64) * HOP_S


def fractional_hops(seconds: Floats | float) -> Floats:
    """Inverse of seconds_of_hops, with every fraction."""
    return np.asarray(seconds, np.float64) / HOP_S


def middle_chunk(seconds: Floats) -> NDArray[np.int64]:
    """The chunk in whose middle half a time lies; the first one also has what comes before its middle."""
    return np.maximum(np.floor(fractional_hops(seconds - HOP_S / 2)), 0).astype(np.int64)


def boxes_from_seconds_hertz(
    begin_s: Floats, end_s: Floats, low_hz: Floats, high_hz: Floats, *, rounding: Rounding = "grid"
) -> tuple[Floats, NDArray[np.bool_]]:
    """Events -> ((N, 4) boxes in frames and bins of the recording, (N,) whether the event is representable).

    Events wholly above 8 kHz (or below 20 Hz) are not representable; partly outside ones are
    clipped. Every box is at least one frame long and one bin high. That is for
    annotations; rounding "none" keeps the fractions of boxes that a model found: rounded down
    again, each would begin and end half a frame early.
    """
    begin_s, end_s, low_hz, high_hz = (
        np.atleast_1d(np.asarray(v, np.float64)) for v in (begin_s, end_s, low_hz, high_hz)
    )
    representable = (low_hz < HIGH_HZ) & (high_hz > LOW_HZ) & (end_s >= begin_s) & (high_hz >= low_hz)
    if rounding == "none":
        bins = [_rounded_bins(np.clip(hertz, LOW_HZ, HIGH_HZ)) for hertz in (low_hz, high_hz)]
        frames = [_rounded_frames(seconds) for seconds in (begin_s, end_s)]
        return np.stack([frames[0], bins[0], frames[1], bins[1]], axis=1), representable
    t0 = frames_of_seconds(begin_s)
    t1 = np.maximum(frames_of_seconds(end_s), t0 + 1)
    f0 = np.clip(np.rint(hertz_to_bin(np.clip(low_hz, LOW_HZ, HIGH_HZ))), 0, NUM_BINS - 1)
    f1 = np.clip(np.rint(hertz_to_bin(np.clip(high_hz, LOW_HZ, HIGH_HZ))), f0 + 1, NUM_BINS)
    return np.stack([t0.astype(np.float64), f0, t1.astype(np.float64), f1], axis=1), representable


def boxes_on_open_grid(begin_s: Floats, end_s: Floats, low_hz: Floats, high_hz: Floats) -> Floats:
    """(N, 4) events in fractional frames and bins without limits: to compare boxes above 8 kHz or without band
    (NaN) too, never to be drawn on a spectrogram.
    """
    frames = [_rounded_frames(np.asarray(seconds, np.float64)) for seconds in (begin_s, end_s)]
    bins = [_rounded_bins(np.maximum(hertz, 0.0)) for hertz in (low_hz, high_hz)]
    return np.stack([frames[0], bins[0], frames[1], bins[1]], axis=1)


def below_half_rate(boxes: Floats, sample_rate_hz: Floats | float) -> tuple[Floats, NDArray[np.bool_]]:
    """(N, 4) boxes in frames and bins without what lies above half the sample rate of their recordings (one or (N,), NaN where
    unknown), where no sound can be, and (N,) whether anything is left of them.
    """
    boxes = np.array(boxes, np.float64).reshape(-1, 4)
    boxes[:, 3] = np.fmin(boxes[:, 3], hertz_to_bin(np.asarray(sample_rate_hz, np.float64) / 2))
    return boxes, boxes[:, 1] < boxes[:, 3]


def seconds_hertz_from_boxes(boxes: Floats) -> Floats:
    """(N, 4) boxes in frames and bins -> (N, 4) begin_s, low_hz, end_s, high_hz (same corner order)."""
    boxes = np.asarray(boxes, np.float64).reshape(-1, 4)
    out = np.empty_like(boxes)
    out[:, 0::2] = seconds_of_frames(boxes[:, 0::2])
    out[:, 1::2] = np.clip(bin_to_hertz(boxes[:, 1::2]), 0.0, HIGH_HZ)
    return out
