"""Where to listen first: the stretches of time with most calls in them, as much of the recorded time as there are ears for.

A box says where one call is; a song of many syllables is many boxes with gaps, and a gust that looks like a call is one. Activity is
the best score at every tenth of a second, averaged over the two seconds around it: it bridges the gaps of a song and halves what
stands alone. Stretches are the times whose activity is highest, in all recordings together.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from mast_ray.config.errors import DataError
from mast_ray.reporting.detection_tables import conform
from mast_ray.reporting.restating import with_times_of
from mast_ray.tables.schemas import DETECTIONS

STEP_S = 0.1
WINDOW_S = 2.0
LABEL = "listen"
_LEVELS = 10_000  # of activity, 0 to 1: enough to count time without holding it

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Boxes:
    """Those of one recording, and its length."""

    row: int  # of the recordings table
    duration_s: float
    begin_s: Floats
    end_s: Floats
    low_hz: Floats
    high_hz: Floats
    score: Floats


def activity_of(begin_s: Floats, end_s: Floats, score: Floats, duration_s: float) -> Floats:
    """(steps,) of a recording: the best score at every step, averaged over the window around it, which ends with the recording."""
    num_steps = max(1, round(duration_s / STEP_S))
    best = np.zeros(num_steps)
    first = np.clip((begin_s / STEP_S).astype(int), 0, num_steps - 1)
    last = np.clip(np.ceil(end_s / STEP_S).astype(int), first + 1, num_steps)
    for number in np.argsort(score):  # the best is written last
        best[first[number] : last[number]] = score[number]
    half = round(WINDOW_S / STEP_S / 2)
    total = np.concatenate(([0.0], np.cumsum(best)))
    step = np.arange(num_steps)
    begin, end = np.maximum(step - half, 0), np.minimum(step + half, num_steps)
    return (total[end] - total[begin]) / (end - begin)


def busiest_stretches(detections: pa.Table, recordings: pa.Table, share: float) -> pa.Table:
    """Stretches that make up this share of the recorded time (or less, where less has any activity), as detections: a band
    around the boxes they come from, the highest activity as score, in the order of recordings and time.
    """
    if not 0.0 < share < 1.0:
        raise DataError(
            f"a share of {share:g} of the time cannot be chosen: give one between 0 and 1, e.g. 0.1"
        )
    level = _least_activity(detections, recordings, share)
    rows: dict[str, list[float]] = {name: [] for name in ("row", "begin_s", "end_s", "low_hz", "high_hz", "score")}  # fmt: skip
    for boxes in _by_recording(detections, recordings):
        activity = activity_of(boxes.begin_s, boxes.end_s, boxes.score, boxes.duration_s)
        for begin, end in _runs(activity >= level):
            begin_s, end_s = begin * STEP_S, min(end * STEP_S, boxes.duration_s)
            reach_s = WINDOW_S / 2 + STEP_S  # the busiest moment may lie between two boxes, in neither
            counted = (boxes.end_s > begin_s - reach_s) & (boxes.begin_s < end_s + reach_s)
            values = (boxes.row, begin_s, end_s, boxes.low_hz[counted].min(), boxes.high_hz[counted].max(),
                      activity[begin:end].max())  # fmt: skip
            for name, value in zip(rows, values, strict=True):
                rows[name].append(float(value))
    row = np.array(rows.pop("row"), np.int64)
    table = pa.table({name: pa.array(values, pa.float64()) for name, values in rows.items()})
    for name in ("recording_id", "path"):
        table = table.append_column(name, recordings.column(name).combine_chunks().take(pa.array(row)))
    table = table.append_column("label", pa.array([LABEL] * len(table), pa.string()))
    return with_times_of(conform(table, DETECTIONS, (), "stretches"), recordings)


def _least_activity(detections: pa.Table, recordings: pa.Table, share: float) -> float:
    """The lowest level of activity above which there is no more than this share of all time."""
    counts = np.zeros(_LEVELS + 1, np.int64)
    num_steps = sum(max(1, round(s / STEP_S)) for s in recordings.column("duration_s").to_pylist())
    for boxes in _by_recording(detections, recordings):
        activity = activity_of(boxes.begin_s, boxes.end_s, boxes.score, boxes.duration_s)
        counts += np.bincount((activity * _LEVELS).astype(int).clip(0, _LEVELS), minlength=_LEVELS + 1)
    above = np.cumsum(counts[::-1])[::-1]  # steps at each level or higher
    fits = np.flatnonzero(above <= share * num_steps)
    level = int(fits[0]) if len(fits) else _LEVELS
    return max(level, 1) / _LEVELS


def _by_recording(detections: pa.Table, recordings: pa.Table) -> Iterator[Boxes]:
    """Recordings that hold a detection."""
    place = {path: row for row, path in enumerate(recordings.column("path").to_pylist())}
    durations_s = recordings.column("duration_s").to_numpy()
    rows = np.array([place.get(path, -1) for path in detections.column("path").to_pylist()], np.int64)
    if (rows < 0).any():
        raise DataError(
            f"{int((rows < 0).sum()):,} detections lie in recordings that the table of recordings does not have:\n"
            "give the recordings of the same archive (--recordings)"
        )
    order = np.argsort(rows, kind="stable")
    values = {
        name: detections.column(name).to_numpy().astype(np.float64)[order]
        for name in ("begin_s", "end_s", "low_hz", "high_hz", "score")
    }
    rows = rows[order]
    edges = np.flatnonzero(np.diff(rows, prepend=-1, append=len(place)))
    for begin, end in pairwise(edges.tolist()):
        row = int(rows[begin])
        yield Boxes(row, float(durations_s[row]), **{name: v[begin:end] for name, v in values.items()})


def _runs(is_chosen: NDArray[np.bool_]) -> list[tuple[int, int]]:
    """Begin and end of every run of chosen steps."""
    edges = np.flatnonzero(np.diff(is_chosen.astype(np.int8), prepend=0, append=0))
    return [(int(begin), int(end)) for begin, end in zip(edges[::2], edges[1::2], strict=True)]
