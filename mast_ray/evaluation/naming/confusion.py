"""Which label was called what: truths against the names of the detections that hit them.

Boxes are matched once, whatever their names. A row is a true label, the last one detections that hit nothing; a
column is a given name, the last two `unknown` and what was missed.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mast_ray.evaluation.figure_tables import csv_bytes
from mast_ray.evaluation.naming.names import UNKNOWN
from mast_ray.evaluation.scoring import Scored, has_names
from mast_ray.storage.storage import Storage

NO_CALL, MISSED, UNNAMED = "(no call)", "(missed)", "(no label)"
CONFUSION = "confusion.json"
MOST_LABELS = 10  # of a table on the screen
MOST_MISTAKES = 12


@dataclass(frozen=True, eq=False)
class Confusion:
    """Counts of a split at a threshold."""

    split: str
    truth: tuple[str, ...]  # rows
    given: tuple[str, ...]  # columns
    counts: NDArray[np.int64]

    @property
    def num_found(self) -> int:
        """Calls with a label that were found."""
        return int(self.counts[: len(self.truth) - 1, : len(self.given) - 1].sum())

    @property
    def num_right(self) -> int:
        """Those of them that were called by their name."""
        column = {name: place for place, name in enumerate(self.given)}
        return sum(
            int(self.counts[row, column[name]]) for row, name in enumerate(self.truth[:-1]) if name in column
        )

    def mistakes(self) -> list[tuple[str, str, int]]:
        """(true label, given name, count) of what went wrong, the most frequent first; missed calls are no mistake of
        a name."""
        cells = [
            (self.truth[row], self.given[column], int(self.counts[row, column]))
            for row, column in np.argwhere(self.counts > 0).tolist()
        ]
        wrong = [cell for cell in cells if cell[0] != cell[1] and cell[1] != MISSED]
        return sorted(wrong, key=lambda cell: (-cell[2], cell[:2]))

    def rows(self) -> list[dict[str, Any]]:
        """For a table of the report."""
        return [
            {"split": self.split, "label": name}
            | {given: int(self.counts[row, column]) for column, given in enumerate(self.given)}
            for row, name in enumerate(self.truth)
        ]


def confusion_of(scored: Scored, split: str, threshold: float) -> Confusion | None:
    """The table of one split; None where detections have no names that the truth knows."""
    if not has_names(scored):
        return None
    kept = scored.matches.score >= threshold
    found = [str(name) or UNNAMED for name in scored.detections.label]
    true = [str(name) or UNNAMED for name in scored.truth.label]
    truth = (*sorted(set(true)), NO_CALL)
    named = sorted({name for name, is_kept in zip(found, kept, strict=True) if is_kept} - {UNKNOWN})
    given = (*dict.fromkeys([*sorted(set(true) & set(named)), *named]), UNKNOWN, MISSED)
    row_of = {name: place for place, name in enumerate(truth)}
    column_of = {name: place for place, name in enumerate(given)}
    counts = np.zeros((len(truth), len(given)), np.int64)
    for number in np.flatnonzero(kept).tolist():
        hit = int(scored.matches.truth_index[number])
        counts[row_of[true[hit]] if hit >= 0 else -1, column_of[found[number]]] += 1
    taken = scored.matches.detection_index
    missed = (taken < 0) | ~kept[taken] if len(kept) else np.ones(len(true), bool)
    for number in np.flatnonzero(missed).tolist():
        counts[row_of[true[number]], -1] += 1
    return Confusion(split, truth, given, counts)


def confusion_csv(tables: Sequence[Confusion]) -> bytes:
    """All splits in long format: a matrix of 200 labels is for programs."""
    cells = [
        (one.split, one.truth[row], one.given[column], int(one.counts[row, column]))
        for one in tables
        for row, column in np.argwhere(one.counts > 0).tolist()
    ]
    return csv_bytes(("split", "label", "given", "count"), cells)


def write_confusion(folder: Storage, tables: Sequence[Confusion]) -> list[str]:
    """confusion.csv, and confusion.json for the report; their names. Nothing where there is none."""
    if not tables:
        return []
    rows = [row for one in tables for row in one.rows()]
    files = {"confusion.csv": confusion_csv(tables), CONFUSION: json.dumps(rows, indent=1).encode()}
    for name, content in files.items():
        folder.write_atomic(name, content)
    return list(files)


def confusion_text(one: Confusion) -> str:
    """For the screen: the whole table where it fits, else the most frequent mistakes."""
    share = f"{one.num_right} of {one.num_found} found calls have their right name"
    head = f"\nnames, {one.split or 'all recordings'}: {share}"
    if len(one.truth) - 1 <= MOST_LABELS and len(one.given) - 2 <= MOST_LABELS:
        width = max(len("label"), *map(len, one.truth))
        sizes = [max(len(name), 5) for name in one.given]
        lines = [
            f"{'label':<{width}}" + "".join(f"  {n:>{s}}" for n, s in zip(one.given, sizes, strict=True))
        ]
        for row, name in enumerate(one.truth):
            cells = "".join(f"  {c:>{s}}" for c, s in zip(one.counts[row].tolist(), sizes, strict=True))
            lines.append(f"{name:<{width}}{cells}")
        return "\n".join([head, *lines])
    wrong = one.mistakes()
    lines = [f"  {count:>5}  {label} called {given}" for label, given, count in wrong[:MOST_MISTAKES]]
    return "\n".join([head, "most frequent mistakes (all in confusion.csv):", *lines])
