"""The background of a recording: its median log-mel in every bin, the same wherever a window begins.

Legend: N segments, T frames, F bins. A recording is one stretch, or, from two hours on, stretches of an hour
counted from its beginning, the last one taking what is left. A segment of 512 frames belongs to one stretch,
and the median of a stretch is taken over every fourth of its valid frames (frames overlap: those between say
little new, and a histogram of all would cost prepare a third of its time). Medians are read from a histogram of fixed levels:
memory does not grow with the recording, and every stage that sees the same frames finds the same number.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from mast_ray.spectrogram.grid import NUM_BINS
from mast_ray.spectrogram.normalisation import Moments
from mast_ray.spectrogram.storage import FIXED_RANGE

STRETCH_SEGMENTS = 704  # of 5.12 s: one hour
EVERY_FRAMES = 4  # a segment has a multiple of it: the same frames, whatever the pieces
LEVELS = 2048
LEVEL_STEP = (FIXED_RANGE[1] - FIXED_RANGE[0]) / LEVELS  # 0.014: a hundredth of what log-mel values scatter


class Stretch(NamedTuple):
    """Consecutive segments of a recording with one background."""

    first_segment: int
    num_segments: int
    background: Tensor  # (F,) float32


class LevelCounts:
    """A histogram of log-mel values per bin, on any device."""

    def __init__(self, device: torch.device | str = "cpu") -> None:
        self._counts = torch.zeros(NUM_BINS, LEVELS, dtype=torch.int32, device=device)
        self._first = torch.arange(NUM_BINS, device=device) * LEVELS  # place of a bin's lowest level
        self._one = torch.ones((), dtype=torch.int32, device=device)

    def add(self, logmel: Tensor) -> None:
        """Count (..., F) log-mel values."""
        level = logmel.reshape(-1, NUM_BINS) - FIXED_RANGE[0]
        place = level.mul_(1 / LEVEL_STEP).clamp_(0, LEVELS - 1).to(torch.int64).add_(self._first)
        self._counts.view(-1).scatter_add_(0, place.view(-1), self._one.expand(place.numel()))

    def add_counts(self, other: LevelCounts) -> None:
        self._counts += other._counts

    def median(self) -> Tensor:
        """(F,) the middle of the level that holds the (lower) median of every bin."""
        below = self._counts.cumsum(dim=1, dtype=torch.int64)
        level = (below * 2 < below[:, -1:]).sum(dim=1)
        return (FIXED_RANGE[0] + (level + 0.5) * LEVEL_STEP).to(torch.float32)


class BackgroundStream:
    """Stretches of one recording whose segments are handed in by and by: `push`, then `finish`.

    A stretch is known when the hour after it is complete, or at the end: no more than two hours are open.
    """

    def __init__(self, device: torch.device | str = "cpu") -> None:
        self._device = device
        self._now = LevelCounts(device)
        self._after: LevelCounts | None = None  # only a recording of over an hour needs a second one
        self._first_segment, self._num_open = 0, 0

    def push(self, logmel: Tensor, valid_frames: int | None = None) -> list[Stretch]:
        """(N, 512, F) further segments, of which only the first `valid_frames` frames count; None: all."""
        done: list[Stretch] = []
        segment_frames = logmel.shape[1]
        left = len(logmel) * segment_frames if valid_frames is None else valid_frames
        while len(logmel):
            is_first = self._num_open < STRETCH_SEGMENTS
            room = STRETCH_SEGMENTS * (1 if is_first else 2) - self._num_open
            part, logmel = logmel[:room], logmel[room:]
            counts = self._now if is_first else self._counts_after()
            counts.add(part.reshape(-1, part.shape[-1])[: max(0, left) : EVERY_FRAMES])
            left -= len(part) * segment_frames
            self._num_open += len(part)
            if self._num_open == 2 * STRETCH_SEGMENTS:
                done.append(self._close(STRETCH_SEGMENTS))
                self._now, self._after = counts, None
        return done

    def finish(self) -> list[Stretch]:
        """The last stretch; none of a recording without segments."""
        if self._num_open == 0:
            return []
        if self._after is not None:
            self._now.add_counts(self._after)
        return [self._close(self._num_open)]

    def _counts_after(self) -> LevelCounts:
        if self._after is None:
            self._after = LevelCounts(self._device)
        return self._after

    def _close(self, num_segments: int) -> Stretch:
        stretch = Stretch(self._first_segment, num_segments, self._now.median())
        self._first_segment += num_segments
        self._num_open -= num_segments
        return stretch


@dataclass(frozen=True, eq=False)
class Backgrounds:
    """The background of every segment of an archive, and the statistics of what lies above it."""

    first: NDArray[np.int64]  # (recordings + 1,) rows of a recording
    levels: NDArray[np.float32]  # (N, F)
    moments: Moments  # over valid frames of the training pool

    def of_chunks(self, recording: NDArray[np.integer], chunk: NDArray[np.integer]) -> NDArray[np.float32]:
        """(B, 2, F) backgrounds of the two segments of every chunk."""
        segment = np.stack((chunk, chunk + 1), axis=1).astype(np.int64)
        last = (self.first[recording + 1] - self.first[recording] - 1)[:, None]
        return self.levels[self.first[recording][:, None] + np.minimum(segment // STRETCH_SEGMENTS, last)]
