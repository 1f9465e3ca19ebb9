"""Detections of a whole archive for `mast calibrate`, file by file: counted where they lie, added up by the driver.

A review sheet of two hundred rows and the precision they speak for need counts, and the rows that were drawn; no process
holds more than one file of detections. Few files are gone through in this process, many by the runner's workers.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence, Set
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from mast_ray.config.errors import DataError
from mast_ray.config.tree import ClusterConfig
from mast_ray.evaluation.breakdown import cells_of_hours
from mast_ray.evaluation.events import EventTable, events_from_arrow
from mast_ray.evaluation.review.sheet import (
    Cell,
    band_edges_of,
    band_of_score,
    cells_of,
    draw_places,
    num_above,
)
from mast_ray.reporting.detection_tables import OF_A_BOX, conform, read_parquet, split_uri
from mast_ray.reporting.exports.rows import detection_id
from mast_ray.spectrogram.grid import HIGH_HZ, LOW_HZ
from mast_ray.stages.runner import HERE, Runner
from mast_ray.stages.score.tables import is_annotation_file, read_events, refuse_no_scores
from mast_ray.storage.storage import open_storage
from mast_ray.tables.schemas import DETECTIONS

T = TypeVar("T")
Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
FEW_FILES = 64  # below, starting workers takes longer than reading
FILES_AT_ONCE = 64


@dataclass(frozen=True)
class Slice:
    """Some files of detections one after another; without keys the table or annotation file itself."""

    uri: str
    keys: tuple[str, ...] = ()

    def tables(self) -> Iterator[EventTable]:
        if not self.keys:
            yield read_events(self.uri, needs_scores=True)
            return
        storage = open_storage(self.uri)
        for key in self.keys:
            table = read_parquet(storage, key)
            refuse_no_scores(table, f"{storage.url}/{key}")
            yield events_from_arrow(conform(table, DETECTIONS, OF_A_BOX, f"{storage.url}/{key}"))


class Drawn(NamedTuple):
    """A detection to be judged."""

    path: str
    site: str
    hour: int  # -1: unknown
    begin_s: float
    end_s: float
    low_hz: float
    high_hz: float
    score: float


@dataclass(frozen=True)
class Detections:
    """A table of detections of any size, and who goes through it."""

    slices: tuple[Slice, ...]
    runner: Runner
    cluster: ClusterConfig

    @classmethod
    def at(cls, uri: str, runner: Runner, cluster: ClusterConfig) -> Detections:
        if is_annotation_file(uri):
            read_events(uri, says_problems=True, needs_scores=True)  # once, however often it is gone through
            return cls((Slice(uri),), HERE, cluster)
        if uri.endswith(".parquet"):
            return cls((Slice(uri),), HERE, cluster)
        keys = split_uri(uri)[1]
        slices = tuple(
            Slice(uri, tuple(keys[first : first + FILES_AT_ONCE]))
            for first in range(0, len(keys), FILES_AT_ONCE)
        )
        return cls(slices, runner if len(keys) > FEW_FILES else HERE, cluster)

    def limits(self) -> tuple[int, float, float]:
        """(number of detections, lowest and highest score)."""
        found = [one for one in self._over(score_limits) if one[0]]
        if not found:
            raise DataError(f"{self.slices[0].uri} holds no detection: nothing can be reviewed")
        count, low, high = zip(*found, strict=True)
        return sum(count), min(low), max(high)

    def above(self, thresholds: Floats, edges: Floats) -> Ints:
        """(H, B) how many detections of every band lie at or above each threshold."""
        found = self._over(partial(counts_above, thresholds=thresholds, edges=edges))
        return sum(found, np.zeros((len(thresholds), len(edges) - 1), np.int64))

    def drawn(self, size: int, seed: int) -> list[Drawn]:
        """The rows of a review sheet, spread over scores, sites and hours, in order of recording and time."""
        _, low, high = self.limits()
        edges = band_edges_of([low, high])
        counts = list(self._over(partial(cell_counts, edges=edges)))
        cells = sorted(set().union(*counts))
        in_slice = np.array([[one[cell] for cell in cells] for one in counts], np.int64)  # (slices, K)
        places = draw_places(cells, in_slice.sum(0), size, seed)
        ends = np.cumsum(in_slice, axis=0)
        wanted: dict[int, list[tuple[Cell, int]]] = {}
        for number, place in zip(places.cell.tolist(), places.place.tolist(), strict=True):
            own = int(np.searchsorted(ends[:, number], place, side="right"))
            before = int(ends[own, number] - in_slice[own, number])
            wanted.setdefault(own, []).append((cells[number], place - before))
        rows = [row for own, some in sorted(wanted.items()) for row in rows_at(self.slices[own], some, edges)]
        return sorted(rows, key=lambda row: (row.path, row.begin_s))

    def ids_of(self, paths: Set[str]) -> set[str]:
        """The ids of all detections in some recordings."""
        return set().union(*self._over(partial(ids_in, paths=frozenset(paths))))

    def _over(self, function: Callable[[Slice], T]) -> Iterator[T]:
        """What a function makes of every slice, in their order."""
        tasks: list[tuple[str, Callable[[Any], Any], str]] = [
            (f"{number:08d}", partial(_of_slice, function, one), "") for number, one in enumerate(self.slices)
        ]
        on_cpus = self.cluster.model_copy(update={"use_gpu": "no"})
        found = dict(self.runner.run_tasks(tasks, on_cpus))
        for _, result in sorted(found.items()):
            if isinstance(result, Exception):
                raise result
            yield result


def _of_slice(function: Callable[[Slice], T], one: Slice, before: None) -> T:
    return function(one)


def score_limits(some: Slice) -> tuple[int, float, float]:
    """(number, lowest score, highest score)."""
    found = [(len(table), table.score.min(), table.score.max()) for table in some.tables() if len(table)]
    if not found:
        return 0, np.inf, -np.inf
    count, low, high = zip(*found, strict=True)
    return sum(count), float(min(low)), float(max(high))


def counts_above(some: Slice, thresholds: Floats, edges: Floats) -> Ints:
    """(H, B) how many detections of every band lie at or above each threshold."""
    nothing = np.zeros((len(thresholds), len(edges) - 1), np.int64)
    return sum((num_above(thresholds, table.score, edges) for table in some.tables()), nothing)


def cell_counts(some: Slice, edges: Floats) -> Counter[Cell]:
    """How many detections every cell holds."""
    total: Counter[Cell] = Counter()
    for table in some.tables():
        cells, cell, _ = _cells(table, edges)
        total.update(dict(zip(cells, np.bincount(cell, minlength=len(cells)).tolist(), strict=True)))
    return total


def rows_at(some: Slice, wanted: Sequence[tuple[Cell, int]], edges: Floats) -> list[Drawn]:
    """The detections at some places of some cells."""
    rows: list[Drawn] = []
    before: Counter[Cell] = Counter()
    for table in some.tables():
        cells, cell, hour = _cells(table, edges)
        for number, one in enumerate(cells):
            own = np.flatnonzero(cell == number)
            first, before[one] = before[one], before[one] + len(own)
            rows += [
                _drawn(table, int(own[place - first]), hour)
                for of, place in wanted
                if of == one and first <= place < before[one]
            ]
    return rows


def ids_in(some: Slice, paths: Set[str]) -> set[str]:
    """The ids of detections in some recordings. A box without a band has two: on a sheet, and in a review."""
    found = set()
    for table in some.tables():
        names = [
            path or name for path, name in zip(table.recordings.paths, table.recordings.ids, strict=True)
        ]
        is_asked = np.array([*(name in paths for name in names), False])[table.recording]
        for row in np.flatnonzero(is_asked).tolist():
            path = names[table.recording[row]]
            begin_s, end_s, low_hz, high_hz = (float(c[row]) for c in _box_columns(table))
            found.add(detection_id(path, begin_s, end_s, low_hz, high_hz))
            if np.isnan(low_hz) or np.isnan(high_hz):
                low_hz = LOW_HZ if np.isnan(low_hz) else low_hz
                high_hz = HIGH_HZ if np.isnan(high_hz) else high_hz
                found.add(detection_id(path, begin_s, end_s, low_hz, high_hz))
    return found


def _box_columns(table: EventTable) -> tuple[Floats, Floats, Floats, Floats]:
    return table.begin_s, table.end_s, table.low_hz, table.high_hz


def _cells(table: EventTable, edges: Floats) -> tuple[list[Cell], Ints, Ints]:
    """(cells, (D,) cell of every detection, (D,) its hour)."""
    site = np.array([*table.recordings.site, ""], dtype=object)[table.recording]
    hour = cells_of_hours(table.local_s)[0]
    return *cells_of(band_of_score(table.score, edges), site, hour), hour


def _drawn(table: EventTable, row: int, hour: Ints) -> Drawn:
    recordings, number = table.recordings, int(table.recording[row])
    box = (float(c[row]) for c in (*_box_columns(table), table.score))
    path = recordings.paths[number] or recordings.ids[number]
    return Drawn(path, recordings.site[number], int(hour[row]), *box)
