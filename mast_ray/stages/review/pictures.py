"""What a window of a recording looks and sounds like: a grey spectrogram as WebP, 16 kHz sound as WAV.

Pictures are one column per frame (10 ms), fewer where a window is long, with high frequencies on top; rows are mel
bins, so the page needs the hertz of each bin (grid.py). The last pictures are kept in memory.
"""

from __future__ import annotations

import threading
from collections import OrderedDict

import numpy as np
from numpy.typing import NDArray
from PIL import Image
from scipy import signal

from mast_ray.recordings.decoding.reading import Channel
from mast_ray.reporting.clips import audible, grey_pixels, picture_bytes, read_window, wav_bytes
from mast_ray.spectrogram.grid import (
    FRAME_LENGTH_SAMPLES,
    FRAME_SHIFT_SAMPLES,
    HIGH_HZ,
    NUM_BINS,
    SAMPLE_RATE_HZ,
    frames_of_seconds,
)
from mast_ray.spectrogram.logmel import LogMel
from mast_ray.storage.storage import Storage

MOST_COLUMNS = 2_400  # of a picture; a wider one would not fit a screen
PICTURES_KEPT = 600  # about 20 kB each
QUALITY, EFFORT = 60, 1  # of WebP: seen to be clear, 3 ms
FILTER_ORDER = 6
LONGEST_S = 120.0

Samples = NDArray[np.float32]


class WindowPictures:
    """Draws windows of an archive; may be called from several threads."""

    def __init__(self, audio: Storage, channel: Channel = "mean") -> None:
        self._audio, self._channel, self._logmel = audio, channel, LogMel()
        self._kept: OrderedDict[tuple[str, float, float], bytes] = OrderedDict()
        self._lock = threading.Lock()
        grey_pixels(np.zeros(SAMPLE_RATE_HZ, np.float32), self._logmel)  # the first one pays for tables

    def picture(self, path: str, begin_s: float, seconds: float) -> bytes:
        key = (path, begin_s, seconds)
        with self._lock:
            if key in self._kept:
                self._kept.move_to_end(key)
                return self._kept[key]
        drawn = picture_bytes(self._pixels(path, begin_s, seconds), QUALITY, EFFORT)
        with self._lock:
            self._kept[key] = drawn
            if len(self._kept) > PICTURES_KEPT:
                self._kept.popitem(last=False)
        return drawn

    def _pixels(self, path: str, begin_s: float, seconds: float) -> NDArray[np.uint8]:
        """(F, columns) of exactly the window; dark where the recording is over."""
        columns = max(int(frames_of_seconds(seconds)), 1)
        # the last frame reaches beyond the window
        margin_s = (FRAME_LENGTH_SAMPLES - FRAME_SHIFT_SAMPLES) / SAMPLE_RATE_HZ
        samples = read_window(self._audio, path, begin_s, begin_s + seconds + margin_s, self._channel)
        pixels = np.zeros((NUM_BINS, columns), np.uint8)
        if len(samples) >= FRAME_LENGTH_SAMPLES:
            heard = grey_pixels(samples, self._logmel)[:, :columns]
            pixels[:, : heard.shape[1]] = heard
        if columns > MOST_COLUMNS:
            smaller = Image.fromarray(pixels).resize((MOST_COLUMNS, NUM_BINS), Image.Resampling.BOX)
            return np.asarray(smaller)
        return pixels

    def sound(self, path: str, begin_s: float, end_s: float, band_hz: tuple[float, float] | None) -> bytes:
        """A WAV file of a stretch, made audible; only of a band where one is given."""
        samples = read_window(self._audio, path, begin_s, end_s, self._channel)
        if band_hz is not None:
            samples = within_band(samples, *band_hz)
        return wav_bytes(audible(samples))


def within_band(samples: Samples, low_hz: float, high_hz: float) -> Samples:
    """The sound between two frequencies, without delay (Butterworth, forwards and backwards)."""
    low_hz, high_hz = max(low_hz, 1.0), min(high_hz, HIGH_HZ * 0.99)
    if not low_hz < high_hz or len(samples) < FRAME_LENGTH_SAMPLES:
        return samples
    sections = signal.butter(FILTER_ORDER, [low_hz, high_hz], "bandpass", fs=SAMPLE_RATE_HZ, output="sos")
    return signal.sosfiltfilt(sections, samples).astype(np.float32)
