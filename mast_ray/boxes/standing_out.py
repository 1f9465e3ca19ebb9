"""Boxes around what stands out of the background, found without any training: cells some decibels above the level of their
bin, joined over short gaps. What Raven's band-limited energy detector does, in every band at once.

Legend: T frames, F bins. Boxes are (t0, f0, t1, f1).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import ndimage

SMOOTHED = (5, 3)  # frames and bins: single cells of noise stand out, such averages do not
LEAST = (5, 2)  # frames and bins of a box


class StandOut(NamedTuple):
    """What counts as one sound. Set on the labelled day and the development site of the next-site study."""

    level_db: float = 6.0  # above the background
    gap_frames: int = 50  # a longer silence ends a sound
    gap_bins: int = 4


def standing_out(
    level_db: NDArray[np.float32],
    settings: StandOut = StandOut(),  # noqa: B008 (frozen)
) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """(T, F) decibels above the background of every bin -> (N, 4) boxes and (N,) the highest level in each"""
    smooth = smoothed(level_db)
    labels, _ = ndimage.label(closed(smooth > settings.level_db, settings.gap_frames, settings.gap_bins))
    corners, peak = [], []
    for number, (frames, bins) in enumerate(ndimage.find_objects(labels), start=1):
        if frames.stop - frames.start < LEAST[0] or bins.stop - bins.start < LEAST[1]:
            continue
        corners.append((frames.start, bins.start, frames.stop, bins.stop))
        peak.append(smooth[frames, bins][labels[frames, bins] == number].max())
    return np.asarray(corners, np.float32).reshape(-1, 4), np.asarray(peak, np.float32)


def smoothed(level_db: NDArray[np.float32]) -> NDArray[np.float32]:
    """(T, F) what is compared with a level.

    In a frame of which half of the bins stand out, that half is wind, rain or a knock: what is common to the bins goes.
    """
    smooth = level_db.astype(np.float32, copy=True)
    for axis, size in enumerate(SMOOTHED):
        smooth = ndimage.uniform_filter1d(smooth, size, axis=axis)
    smooth -= np.maximum(np.median(smooth, axis=1, keepdims=True), 0.0)
    return smooth


def closed(mask: NDArray[np.bool_], gap_frames: int, gap_bins: int) -> NDArray[np.bool_]:
    """A mask with its gaps of up to so many frames and bins filled; nothing grows beyond it."""
    sizes = (gap_frames + 1, gap_bins + 1)
    grown = np.pad(mask, [(size, size) for size in sizes]).astype(np.uint8)
    for filtered in (ndimage.maximum_filter1d, ndimage.minimum_filter1d):
        for axis, size in enumerate(sizes):
            # an even window lies one cell aside: there and back again it is in its place
            origin = 0 if size % 2 or filtered is ndimage.maximum_filter1d else -1
            grown = filtered(grown, size, axis=axis, origin=origin)
    inside = tuple(slice(size, -size) for size in sizes)
    return grown[inside] > 0
