"""Verdicts of people on detections: the CSV that the report's gallery saves and
that `mast calibrate` hands out.

Columns: detection_id, path, begin_s, end_s, low_hz, high_hz, score, verdict (y or n; empty or ? is undecided); a column
`sheet` says that the rows were drawn at random, by `mast calibrate` or in the queue `random` of a review.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from mast_ray.config.errors import DataError
from mast_ray.evaluation.figure_tables import csv_bytes
from mast_ray.evaluation.review.review_state import ReviewedBox
from mast_ray.recordings.annotations.formats.generic_csv import NO, YES
from mast_ray.recordings.annotations.tabular import (
    HEAD_BYTES,
    decoded,
    decoded_head,
    first_line,
    number,
    parse_table,
)
from mast_ray.storage.storage import open_beside

COLUMNS = ("detection_id", "path", "begin_s", "end_s", "low_hz", "high_hz", "score", "sheet", "verdict")
_ID = re.compile("[0-9a-f]{16}")
UNDECIDED = frozenset({"", "?", "u", "unsure"})


@dataclass(frozen=True, eq=False)
class Verdicts:
    """n decided rows, and how many were left undecided."""

    score: NDArray[np.float64]
    is_right: NDArray[np.bool_]
    rows: tuple[Mapping[str, str], ...]  # all columns as written
    num_undecided: int
    is_drawn: bool  # a random sample, not a choice

    def path_of_id(self) -> dict[str, str]:
        """detection_id -> path of the rows that name one. Ids of digits alone are passed over: a spreadsheet may have
        rounded them.
        """
        columns = {name.lower(): name for name in self.rows[0]} if self.rows else {}
        if not {"detection_id", "path"} <= columns.keys():
            return {}
        named = ((_id_of(row[columns["detection_id"]]), row[columns["path"]]) for row in self.rows)
        return {name: path for name, path in named if name}


def _id_of(text: str) -> str:
    """The id in a cell; "" where there is none to rely on."""
    name = text.strip()
    return name if _ID.fullmatch(name) and not name.isdigit() else ""


def verdicts_csv(boxes: Iterable[ReviewedBox]) -> bytes:
    """Verdicts on detections that were drawn at random in a review, as `read_verdicts` and `mast calibrate` take them."""
    names = COLUMNS[:7]
    rows = [
        [*(getattr(box, name) for name in names), "random queue", "y" if box.verdict == "right" else "n"]
        for box in boxes
    ]
    return csv_bytes(COLUMNS, rows)


def has_verdicts(path: Path) -> bool:
    """Whether a file is a table with a column `verdict`."""
    if not path.is_file() or path.suffix.lower() not in (".csv", ".tsv", ".txt"):
        return False
    with path.open("rb") as file:
        header = first_line(decoded_head(file.read(HEAD_BYTES), path.name))
    return "verdict" in {name.strip().lower() for name in parse_table(header, path.name).columns}


def read_verdicts(path: Path | str) -> Verdicts:
    """Read a verdict table; a row whose verdict is neither yes, no nor undecided is refused by line."""
    folder, name = open_beside(str(path))
    table = parse_table(decoded(folder.read_bytes(name), str(path)), str(path))
    names = {name.lower(): name for name in table.columns}
    if "verdict" not in names or "score" not in names:
        raise DataError(
            f"{path} has no column {'verdict' if 'verdict' not in names else 'score'}:\n"
            "give the CSV that the report or `mast calibrate` wrote"
        )
    scores, right, rows, undecided = [], [], [], 0
    judged: set[str] = set()
    for line, values in table.rows:
        verdict = values[names["verdict"]].strip().lower()
        if verdict in UNDECIDED:
            undecided += 1
            continue
        if verdict not in YES | NO:
            raise DataError(
                f"{path}, line {line}: verdict {verdict!r} is neither y nor n:\nwrite y, n or nothing"
            )
        try:
            score = number(values[names["score"]])
        except ValueError:
            score = None
        if score is None:
            raise DataError(f"{path}, line {line}: no score:\nkeep the score column as it was written")
        name = _id_of(values[names["detection_id"]]) if "detection_id" in names else ""
        if name in judged:
            raise DataError(
                f"{path}, line {line}: detection {name} is judged a second time, which would count as two:\n"
                "keep one row of each detection"
            )
        judged |= {name} - {""}
        scores.append(score)
        right.append(verdict in YES)
        rows.append(values)
    is_drawn = "sheet" in names and all(values[names["sheet"]] for values in rows)
    return Verdicts(np.array(scores, float), np.array(right, bool), tuple(rows), undecided, is_drawn)
