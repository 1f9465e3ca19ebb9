"""What the page asks of a queue: how many items, some of them, and the next that is still open.

A queue holds boxes (random, uncertain, recording, one cell of site_hour), stretches (plan) or groups (cluster). Items
are plain values for the page; the first index is 0.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mast_ray.config.errors import DataError
from mast_ray.stages.review.found_boxes import FoundBoxes
from mast_ray.stages.review.queues import (
    Cell,
    Cluster,
    Task,
    look_alikes,
    random_order,
    recording_order,
    site_hour_cells,
    uncertain_order,
)
from mast_ray.stages.review.session import ReviewSession

Ints = NDArray[np.int64]
SHOWN_MEMBERS = 60
MOST_ITEMS = 500  # in one answer


class AskedQueues:
    """The queues of one review; orders are made when they are first asked for."""

    def __init__(self, session: ReviewSession, tasks: Sequence[Task] = ()) -> None:
        self.session, self.found, self.tasks = session, session.found, tuple(tasks)
        self._orders: dict[str, Ints] = {}
        self._cells: list[Cell] | None = None
        self._clusters: list[Cluster] | None = None
        self._lock = threading.Lock()

    def available(self) -> list[str]:
        """Names of the queues that hold something."""
        names = ["uncertain", "random", "site_hour", "recording"]
        if self.found.embedding is not None:
            names.append("cluster")
        return names + ["plan"] * bool(self.tasks)

    def items(self, name: str, part: int, first: int, count: int) -> dict[str, Any]:
        count = min(max(count, 0), MOST_ITEMS)
        if name == "plan":
            found = [self._task(number) for number in range(len(self.tasks))[first : first + count]]
            return {"total": len(self.tasks), "items": found}
        if name == "cluster":
            groups = self.clusters()
            found = [self._cluster(number) for number in range(len(groups))[first : first + count]]
            return {"total": len(groups), "items": found}
        rows = self.rows(name, part)
        found = [{"kind": "box"} | self.session.box_json(row) for row in rows[first : first + count].tolist()]
        return {"total": len(rows), "items": found}

    def next_open(self, name: str, part: int, after: int) -> int:
        """The first index beyond `after` that is not judged yet, from the beginning where none is left; -1 when all are."""
        if name == "plan":
            is_open = np.array([not self._task(number)["looked"] for number in range(len(self.tasks))], bool)
        elif name == "cluster":
            is_open = np.array(
                [bool((self.session.verdict[group.rows] == 0).any()) for group in self.clusters()], bool
            )
        else:
            rows = self.rows(name, part)
            # A box that was judged elsewhere is still to be met here: leaving it out would bend the sample.
            done = self.session.met_at_random if name == "random" else self.session.verdict > 0
            is_open = ~done[rows]
        places = np.flatnonzero(is_open)
        beyond = places[places > after]
        return int(beyond[0]) if len(beyond) else int(places[0]) if len(places) else -1

    def rows(self, name: str, part: int) -> Ints:
        """Rows of the detections in the order of a queue; `part` is the cell of site_hour."""
        if name == "site_hour":
            cells = self.cells()
            if not cells and part == 0:  # no detection reaches the threshold
                return np.zeros(0, np.int64)
            if not 0 <= part < len(cells):
                raise DataError(f"there is no site and hour number {part}")
            return cells[part].rows
        with self._lock:
            if name not in self._orders:
                self._orders[name] = _order(name, self.found)
            return self._orders[name]

    def cells(self) -> list[Cell]:
        with self._lock:
            if self._cells is None:
                found = self.found
                self._cells = site_hour_cells(found.site.tolist(), found.hour, found.score, found.threshold)
            return self._cells

    def clusters(self) -> list[Cluster]:
        with self._lock:
            if self._clusters is None:
                found = self.found
                self._clusters = (
                    []
                    if found.embedding is None
                    else look_alikes(found.embedding, found.recording, found.score, found.threshold)
                )
            return self._clusters

    def cells_json(self) -> list[dict[str, Any]]:
        verdict = self.session.verdict
        return [
            {"part": number, "site": c.site, "hour": c.hour, "num": len(c.rows), "judged": int((verdict[c.rows] > 0).sum())}
            for number, c in enumerate(self.cells())
        ]  # fmt: skip

    def members(self, number: int) -> list[dict[str, Any]]:
        """The boxes of a group, the most typical first."""
        groups = self.clusters()
        if not 0 <= number < len(groups):
            raise DataError(f"there is no group number {number}")
        return [self.session.box_json(row) for row in groups[number].rows[:SHOWN_MEMBERS].tolist()]

    def _cluster(self, number: int) -> dict[str, Any]:
        group = self.clusters()[number]
        judged = int((self.session.verdict[group.rows] > 0).sum())
        return {"kind": "cluster", "number": number, "num": len(group.rows), "judged": judged,
                "num_recordings": group.num_recordings}  # fmt: skip

    def _task(self, number: int) -> dict[str, Any]:
        task = self.tasks[number]
        recording = self.found.row_of_path[task.path]
        looked = self.session.has_looked(recording, task.begin_s, task.end_s)
        return {"kind": "task", "recording": recording, "begin_s": task.begin_s, "end_s": task.end_s,
                "reason": task.reason, "looked": looked}  # fmt: skip


def _order(name: str, found: FoundBoxes) -> Ints:
    match name:
        case "uncertain":
            return uncertain_order(found.score, found.threshold)
        case "random":
            return random_order(found.ids, found.score, found.threshold)
        case "recording":
            return recording_order(found.score, found.threshold)
    raise DataError(f"there is no queue {name!r}")
