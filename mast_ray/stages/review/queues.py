"""In which order boxes are offered for review: pure functions from columns to rows.

Legend: D detections. Every order is the same for all reviewers and after a restart. `random` ranks a box by a
hash of its name, so the order does not depend on what else is in the table.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from mast_ray.evaluation.review.planner import doubt
from mast_ray.evaluation.similarity.clusters import cluster_embeddings, novelty_queue
from mast_ray.recordings.annotations.tabular import number, parse_table

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


class Cell(NamedTuple):
    """The detections of one site in one hour of the day."""

    site: str
    hour: int  # -1 when unknown
    rows: Ints  # the highest score first


class Cluster(NamedTuple):
    """Boxes that sound alike."""

    num_recordings: int
    rows: Ints  # the most typical first


class Task(NamedTuple):
    """A stretch that the annotation plan asks to be gone through."""

    path: str
    begin_s: float
    end_s: float
    reason: str


def uncertain_order(score: Floats, threshold: float) -> Ints:
    """Rows, the most doubtful first."""
    return np.argsort(-doubt(score, threshold), kind="stable").astype(np.int64)


def random_order(ids: Sequence[str], score: Floats, threshold: float) -> Ints:
    """Rows at or above the threshold, in an order that has nothing to do with what they are."""
    kept = np.flatnonzero(score >= threshold)
    rank = [
        hashlib.sha1(f"review|{ids[row]}".encode(), usedforsecurity=False).digest() for row in kept.tolist()
    ]
    return kept[sorted(range(len(kept)), key=rank.__getitem__)].astype(np.int64)


def recording_order(score: Floats, threshold: float) -> Ints:
    """Rows at or above the threshold as they lie: by recording and time."""
    return np.flatnonzero(score >= threshold).astype(np.int64)


def site_hour_cells(site: Sequence[str], hour: Ints, score: Floats, threshold: float) -> list[Cell]:
    """Cells that hold detections at or above the threshold, by site and hour."""
    groups: dict[tuple[str, int], list[int]] = {}
    for row in np.flatnonzero(score >= threshold).tolist():
        groups.setdefault((site[row], int(hour[row])), []).append(row)
    cells = []
    for (name, at), rows in sorted(groups.items()):
        own = np.array(rows, np.int64)
        cells.append(Cell(name, at, own[np.argsort(-score[own], kind="stable")]))
    return cells


def look_alikes(
    embedding: NDArray[np.float32], recording: Ints, score: Floats, threshold: float
) -> list[Cluster]:
    """Groups of detections at or above the threshold that sound alike, the largest first."""
    kept = np.flatnonzero(score >= threshold)
    vectors = embedding[kept]
    cluster = cluster_embeddings(vectors)
    groups = novelty_queue(vectors, cluster, recording[kept], vectors[:0], device="cpu")
    return [Cluster(group.num_recordings, kept[group.members]) for group in groups]


def plan_tasks(
    text: str, duration_of: Mapping[str, float], source: str = "plan.csv"
) -> tuple[list[Task], int]:
    """The tasks of a plan.csv, also as a spreadsheet saved it, for known recordings in their order, and how many rows name
    none or no stretch.
    """
    tasks, num_left_out = [], 0
    for _, row in parse_table(text, source).rows:
        path = row.get("path", "")
        try:
            begin_s, end_s = (number(row.get(name, "")) for name in ("begin_s", "end_s"))
        except ValueError:
            begin_s = end_s = None
        end_s = min(end_s or 0.0, duration_of.get(path, 0.0))
        if begin_s is not None and 0.0 <= begin_s < end_s:
            tasks.append(Task(path, begin_s, end_s, row.get("reason", "")))
        else:
            num_left_out += 1
    return tasks, num_left_out
