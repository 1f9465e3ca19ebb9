"""The same figures per site, hour of day, duration or bandwidth, from one set of matches.

A false alarm belongs to the cell it lies in, a hit to the cell of its truth: so every truth and every
detection is counted in exactly one cell, and the cells of a breakdown add up to the whole.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from mast_ray.evaluation.intervals import FIGURES, Interval, bootstrap_intervals, recording_sums
from mast_ray.evaluation.matching import Matches
from mast_ray.evaluation.metrics import Metrics, summarise

Ints = NDArray[np.int64]

DURATION_EDGES_S = (0.0, 0.1, 0.3, 1.0, 3.0, np.inf)
BANDWIDTH_EDGES_HZ = (0.0, 500.0, 1000.0, 2000.0, 4000.0, np.inf)
OF_TRUTHS = ("recall", "time_recall", "mean_iou")  # figures that no false alarm changes


@dataclass(frozen=True)
class Cell:
    """One line of a breakdown."""

    name: str
    metrics: Metrics
    intervals: dict[str, Interval]
    num_recordings: int


def subset(matches: Matches, det_mask: NDArray[np.bool_], truth_mask: NDArray[np.bool_]) -> Matches:
    """Matches among chosen rows; a hit whose truth was left out must be left out with it."""
    new_truth = np.full(len(truth_mask) + 1, -1, np.int64)
    new_truth[:-1][truth_mask] = np.arange(truth_mask.sum())
    new_det = np.full(len(det_mask) + 1, -1, np.int64)
    new_det[:-1][det_mask] = np.arange(det_mask.sum())
    truth_index = new_truth[matches.truth_index[det_mask]]
    if (truth_index < 0).sum() != (matches.truth_index[det_mask] < 0).sum():
        raise ValueError("a hit is kept whose truth is not")
    return Matches(
        matches.group[det_mask],
        matches.score[det_mask],
        truth_index,
        matches.iou[det_mask],
        new_det[matches.order[det_mask[matches.order]]],
        matches.truth_group[truth_mask],
        new_det[matches.detection_index[truth_mask]],
        matches.truth_is_time_only[truth_mask],
    )


def breakdown(
    matches: Matches,
    det_cell: ArrayLike,
    truth_cell: ArrayLike,
    names: Sequence[str],
    threshold: float,
    recording_of_group: ArrayLike | None = None,
    num_resamples: int = 1000,
    seed: int = 0,
    in_time: Matches | None = None,
    sizes: Sequence[int] | None = None,
) -> list[Cell]:
    """Figures of every cell 0 .. len(names) - 1 that holds anything; cell -1 (unknown) is left out.

    `in_time` are the matches of the same events by time alone, for the figures in time; `sizes` how many recordings each
    cell has where that is known: those without any event were drawn too.
    """
    truth_cell = np.asarray(truth_cell, np.int64)
    own_cell, det_cell = np.asarray(det_cell, np.int64), _cells_of_hits(matches, det_cell, truth_cell)
    time_cell = own_cell if in_time is None else _cells_of_hits(in_time, own_cell, truth_cell)
    lookup = None if recording_of_group is None else np.asarray(recording_of_group, np.int64)
    cells = []
    for number, name in enumerate(names):
        det_mask, truth_mask = det_cell == number, truth_cell == number
        if not det_mask.any() and not truth_mask.any():
            continue
        part = subset(matches, det_mask, truth_mask)
        time_part = None if in_time is None else subset(in_time, time_cell == number, truth_mask)
        least = 0 if sizes is None else sizes[number]
        cells.append(_cell(name, part, time_part, threshold, lookup, num_resamples, seed, least))
    return cells


def breakdown_of_names(
    matches: Matches,
    det_label: NDArray[np.object_],
    truth_label: NDArray[np.object_],
    names: Sequence[str],
    threshold: float,
    recording_of_group: ArrayLike | None = None,
    num_resamples: int = 1000,
    seed: int = 0,
    in_time: Matches | None = None,
) -> list[Cell]:
    """Figures of every name: a detection counts for the name it was given, and is right when it hits a truth of that
    label. So a wrong name is a false alarm under one label and a miss under another.
    """
    lookup = None if recording_of_group is None else np.asarray(recording_of_group, np.int64)
    cells = []
    for name in names:
        det_mask, truth_mask = det_label == name, truth_label == name
        if not det_mask.any() and not truth_mask.any():
            continue
        part = subset(_parted(matches, det_mask, truth_mask), det_mask, truth_mask)
        time_part = (
            None if in_time is None else subset(_parted(in_time, det_mask, truth_mask), det_mask, truth_mask)
        )
        cells.append(_cell(name, part, time_part, threshold, lookup, num_resamples, seed))
    return cells


def of_truths_alone(cell: Cell) -> Cell:
    """A cell without the figures that ask for its false alarms: where detections have no names, no false alarm is of any
    label, and precision would be 1 whatever was found.
    """
    unknown = [name for name in FIGURES if name not in OF_TRUTHS]
    figures: dict[str, Any] = dict.fromkeys(unknown, np.nan)
    nothing = dict.fromkeys(unknown, Interval(np.nan, np.nan, np.nan, "none"))
    return replace(cell, metrics=replace(cell.metrics, **figures), intervals=cell.intervals | nothing)


def _parted(matches: Matches, det_mask: NDArray[np.bool_], truth_mask: NDArray[np.bool_]) -> Matches:
    """The same without hits between chosen and other rows, for `subset`, which leaves out who took a truth by itself."""
    hit = matches.truth_index
    is_cut = (hit >= 0) & (det_mask != truth_mask[hit]) if len(truth_mask) else np.zeros(len(hit), bool)
    return replace(
        matches,
        truth_index=np.where(is_cut, -1, hit),
        iou=np.where(is_cut, 0.0, matches.iou),
    )


def _cell(
    name: str,
    part: Matches,
    time_part: Matches | None,
    threshold: float,
    lookup: Ints | None,
    num_resamples: int,
    seed: int,
    least: int = 0,
) -> Cell:
    more = [] if time_part is None else [time_part.group]
    groups = np.concatenate([part.group, part.truth_group, *more])
    # Recordings are numbered anew: those present in the cell can be drawn, and those of `least` that are silent.
    _, dense = np.unique(groups if lookup is None else lookup[groups], return_inverse=True)
    distinct, first = np.unique(groups, return_index=True)
    local = np.zeros(distinct.max() + 1, np.int64)
    local[distinct] = dense[first]
    num_recordings = max(int(dense.max()) + 1, least)
    sums = recording_sums(part, threshold, local, num_recordings, time_part)
    intervals = bootstrap_intervals(sums, num_resamples, seed)
    return Cell(name, summarise(part, threshold, in_time=time_part), intervals, num_recordings)


def _cells_of_hits(matches: Matches, det_cell: ArrayLike, truth_cell: Ints) -> Ints:
    """(D,) cell of every detection: a hit lies in the cell of its truth."""
    cell, hit = np.array(det_cell, np.int64), matches.is_true_positive
    cell[hit] = truth_cell[matches.truth_index[hit]]
    return cell


def cells_of_values(values: ArrayLike, edges: Sequence[float], unit: str) -> tuple[Ints, tuple[str, ...]]:
    """Cell of every value between ascending edges (-1 for NaN), and the cells' names such as "0.1-0.3 s"."""
    values = np.asarray(values, np.float64)
    cell = np.searchsorted(np.asarray(edges), values, side="right") - 1
    cell = np.where(np.isnan(values), -1, np.minimum(cell, len(edges) - 2))
    names = tuple(
        f">= {low:g} {unit}" if np.isinf(high) else f"{low:g}-{high:g} {unit}"
        for low, high in pairwise(edges)
    )
    return cell, names


def cells_of_hours(local_seconds: ArrayLike) -> tuple[Ints, tuple[str, ...]]:
    """Hour of day of local times in seconds since any midnight (-1 for NaN)."""
    seconds = np.asarray(local_seconds, np.float64)
    hour = np.floor(np.mod(np.nan_to_num(seconds), 86_400) / 3_600).astype(np.int64)
    return np.where(np.isnan(seconds), -1, hour), tuple(f"{h:02d} h" for h in range(24))
