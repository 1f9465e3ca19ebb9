"""Samples of stored segments, for log-mel on a device: row s gives the 512 frames of
segment s, and no other row does.

Legend: N samples. A row is the 5.12 s of its segment and the 240 samples its last frame
reaches into the next one. The end of a recording is centred and padded as SegmentStream does,
so that both ways give the same frames.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from mast_ray.spectrogram.chunking import ShortRecordings, num_segments_of
from mast_ray.spectrogram.grid import FRAME_LENGTH_SAMPLES, FRAME_SHIFT_SAMPLES, HOP_SAMPLES

ROW_SAMPLES = HOP_SAMPLES - FRAME_SHIFT_SAMPLES + FRAME_LENGTH_SAMPLES
Rows = NDArray[np.float32]


class SampleSegments:
    """Rows of one recording fed in blocks of any size: `push` samples, then `finish`."""

    def __init__(self, short_recordings: ShortRecordings = "pad") -> None:
        self.num_samples = 0
        self._short_recordings: ShortRecordings = short_recordings
        self._next_segment = 0
        self._held = np.zeros(0, np.float32)
        self._held_from = 0  # one hop before the next segment: the last chunk's mean may need it

    def push(self, samples: NDArray[np.float32]) -> Rows:
        """(N,) further samples -> (n, 82160) rows that are now complete."""
        self._held = np.concatenate((self._held, np.asarray(samples, np.float32)))
        self.num_samples += len(samples)
        count = (self.num_samples - self._next_segment * HOP_SAMPLES - ROW_SAMPLES) // HOP_SAMPLES + 1
        return self._taken(max(0, count))

    def finish(self) -> Rows:
        """The last rows: the audio that is left less the mean of the last chunk's, then zeros."""
        left = num_segments_of(self.num_samples, self._short_recordings) - self._next_segment
        if left <= 0:
            return np.zeros((0, ROW_SAMPLES), np.float32)
        whole_hops = self.num_samples // HOP_SAMPLES
        last_chunk = max(0, whole_hops - 1) * HOP_SAMPLES
        mean = np.float32(self._held[last_chunk - self._held_from :].mean(dtype=np.float64))
        tail = self._held[self._next_segment * HOP_SAMPLES - self._held_from :] - mean
        wanted = left * HOP_SAMPLES + ROW_SAMPLES
        self._held = np.concatenate((tail, np.zeros(max(0, wanted - len(tail)), np.float32)))
        self._held_from = self._next_segment * HOP_SAMPLES
        return self._taken(left)

    def _taken(self, count: int) -> Rows:
        rows = np.empty((count, ROW_SAMPLES), np.float32)
        begin = self._next_segment * HOP_SAMPLES - self._held_from
        for number in range(count):
            at = begin + number * HOP_SAMPLES
            rows[number] = self._held[at : at + ROW_SAMPLES]
        self._next_segment += count
        keep_from = max(0, self._next_segment - 1) * HOP_SAMPLES
        self._held = self._held[keep_from - self._held_from :].copy()
        self._held_from = keep_from
        return rows
