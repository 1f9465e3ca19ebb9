"""What a round changed: boxes gained, lost and renamed between two tables of detections of the same archive.

A box of one table is that of the other when they overlap by half, matched one to one as in scoring. Each table is read
from its own model's threshold on.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from mast_ray.evaluation.figure_tables import csv_bytes
from mast_ray.evaluation.matching import match
from mast_ray.inference.naming import table_boxes

COLUMNS = ("change", "path", "begin_s", "end_s", "low_hz", "high_hz", "score", "label", "label_before")
SAME_IOU = 0.5


@dataclass(frozen=True)
class Changes:
    """Rows of changes.csv, and how many boxes stayed."""

    rows: tuple[tuple[Any, ...], ...]
    num_before: int
    num_after: int

    @property
    def counts(self) -> dict[str, int]:
        found = Counter(row[0] for row in self.rows)
        return {name: found[name] for name in ("gained", "lost", "renamed")}

    def csv(self) -> bytes:
        return csv_bytes(COLUMNS, self.rows)

    def text(self) -> str:
        counts = self.counts
        same = self.num_after - counts["gained"] - counts["renamed"]
        return (
            f"{self.num_before:,} boxes before, {self.num_after:,} now: {counts['gained']:,} gained, "
            f"{counts['lost']:,} lost, {counts['renamed']:,} renamed, {same:,} as they were"
        )


def changes_between(before: pa.Table, after: pa.Table) -> Changes:
    """Detections of two models (schemas.DETECTIONS), at or above the threshold of each."""
    old_place, new_place = _recordings(before, after)
    matches = match(
        new_place, table_boxes(after), after.column("score").to_numpy().astype(np.float64), old_place,
        table_boxes(before), SAME_IOU,
    )  # fmt: skip
    old, new = (table.select([*COLUMNS[1:-1]]).to_pylist() for table in (before, after))
    rows = []
    for number, row in enumerate(new):
        origin = int(matches.truth_index[number])
        label = row["label"] or ""
        was = (old[origin]["label"] or "") if origin >= 0 else ""
        if origin < 0:
            rows.append(_row("gained", row, label, ""))
        elif label != was:
            rows.append(_row("renamed", row, label, was))
    for number in np.flatnonzero(matches.detection_index < 0).tolist():
        rows.append(_row("lost", old[number], "", old[number]["label"] or ""))
    return Changes(tuple(sorted(rows, key=lambda row: (row[1], row[2], row[0]))), len(before), len(after))


def _recordings(before: pa.Table, after: pa.Table) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    ids = [table.column("recording_id").to_pylist() for table in (before, after)]
    code = {name: number for number, name in enumerate(sorted({*ids[0], *ids[1]}))}
    return tuple(np.array([code[name] for name in own], np.int64) for own in ids)  # type: ignore[return-value]


def _row(change: str, row: dict[str, Any], label: str, before: str) -> tuple[Any, ...]:
    return (change, *(row[name] for name in COLUMNS[1:7]), label, before)


def is_found(boxes: pa.Table, detections: pa.Table) -> NDArray[np.bool_]:
    """(N,) whether each box has a detection of its own."""
    if not len(boxes):
        return np.zeros(0, bool)
    place, found = _recordings(boxes, detections)
    score = detections.column("score").to_numpy().astype(np.float64)
    return (
        match(found, table_boxes(detections), score, place, table_boxes(boxes), SAME_IOU).detection_index >= 0
    )
