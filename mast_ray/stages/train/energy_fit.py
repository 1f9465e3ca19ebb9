"""What counts as one sound, by somebody's boxes: the level and the gaps of the energy detector (boxes/standing_out.py) that
find them best. Where every syllable is a call, a tenth of a second ends one; where phrases are, half a second does not.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from mast_ray.boxes.standing_out import StandOut, smoothed, sounds_of
from mast_ray.evaluation.matching import match
from mast_ray.evaluation.metrics import f1_over_thresholds

Floats = NDArray[np.float32]
CHOICES: dict[str, tuple[Any, ...]] = {  # the most telling first
    "gap_frames": (0, 2, 4, 8, 15, 25, 50, 100, 200),
    "level_db": (3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 10.0, 12.0),
    "gap_bins": (0, 1, 2, 4, 8, 16),
}
LEAST_BOXES = 20  # fewer say too little
LEAST_GAIN = 0.02  # in F1, of every change: less is as likely the chunks' as the settings'
MOST_TURNS = 3


class Fit(NamedTuple):
    """Settings, and the best F1 that a threshold gives with them and gave before, on the boxes they were fitted to."""

    settings: StandOut
    f1: float
    f1_before: float
    num_boxes: int


def fitted(
    level_db: Iterable[Floats], truths: Sequence[Floats], start: StandOut, num_threads: int = 1
) -> Fit:
    """Chunks of (T, F) decibels above their background and their (N, 4) boxes -> settings, one changed at a time for as long
    as F1 rises.
    """
    num_boxes = sum(map(len, truths))
    with ThreadPoolExecutor(max(1, num_threads)) as threads:
        chunks = list(threads.map(smoothed, level_db))
        known: dict[StandOut, float] = {}

        def f1_of(settings: StandOut) -> float:
            if settings not in known:
                found = list(threads.map(lambda chunk: sounds_of(chunk, settings), chunks))
                known[settings] = best_f1(found, truths)
            return known[settings]

        before = f1_of(start)
        if num_boxes < LEAST_BOXES:
            return Fit(start, before, before, num_boxes)
        best = start
        for _ in range(MOST_TURNS):
            turned = best
            for name, choices in CHOICES.items():
                other = max((best._replace(**{name: value}) for value in choices), key=f1_of)
                if f1_of(other) >= f1_of(best) + LEAST_GAIN:
                    best = other
            if best == turned:
                break
    return Fit(best, known[best], before, num_boxes)


def best_f1(found: Sequence[tuple[Floats, Floats]], truths: Sequence[Floats]) -> float:
    """The highest F1 over all thresholds of boxes with levels against true boxes, chunk by chunk."""
    group = np.repeat(np.arange(len(found)), [len(boxes) for boxes, _ in found])
    truth_group = np.repeat(np.arange(len(truths)), [len(boxes) for boxes in truths])
    boxes, level = (np.concatenate(parts) for parts in zip(*found, strict=True))
    curve = f1_over_thresholds(match(group, boxes, level, truth_group, np.concatenate(list(truths))))
    return float(np.nanmax(curve.f1, initial=0.0)) if len(curve.f1) else 0.0
