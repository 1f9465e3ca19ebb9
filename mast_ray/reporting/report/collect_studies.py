"""Side tables of a run as the report shows them: rounds of self-training, label budgets, search trials, sheets of scores,
comparisons and retrieval. Each is read by the names that its writer gives it.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

from mast_ray.evaluation.label_budget import CurveRow
from mast_ray.evaluation.score_sheet import ScoreRow, ScoreSheet
from mast_ray.reporting.report.charts import Series
from mast_ray.reporting.report.collect_scores import cell_of, split_name
from mast_ray.reporting.report.contents import Cell, Interval, ResultTable, Trials
from mast_ray.self_training.round_records import (
    PSEUDO_LABELS,
    flat,
    quality_column,
    score_column,
    splits_in,
)
from mast_ray.self_training.trial_records import OBJECTIVE, SAMPLE, STOPPED_EARLY

Rows = list[dict[str, Any]]
ROUND_SCORES = "evaluation"  # folder of a round's sheet of scores: the table of rounds has them
MOST_LINES = 6
MOST_AXES = 10


def is_figure(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def table_of(title: str, rows: Rows) -> ResultTable:
    """Rows as a table; x_low and x_high fold into x as its interval."""
    names = dict.fromkeys(name for row in rows for name in row)
    columns = [n for n in names if not (n.endswith(("_low", "_high")) and n.rsplit("_", 1)[0] in names)]

    def cell(row: Mapping[str, Any], name: str) -> Cell:
        value: Any = row.get(name)
        if is_figure(value) and is_figure(row.get(f"{name}_low")) and is_figure(row.get(f"{name}_high")):
            return Interval(float(value), float(row[f"{name}_low"]), float(row[f"{name}_high"]))
        return value if isinstance(value, int | float | str | None) else str(value)

    titles = tuple(name.replace("_", " ") for name in columns)
    return ResultTable(title, titles, tuple(tuple(cell(row, n) for n in columns) for row in rows))


def rows_table(title: str, document: bytes) -> ResultTable | None:
    """A JSON list of rows (comparison.json, retrieval.json) as a table."""
    rows = [flat(row) for row in json.loads(document)]
    return table_of(title, rows) if rows else None


def round_series(rounds: Rows) -> tuple[Series, ...]:
    """F1 of every split over the rounds, and how right and complete pseudo-labels are."""
    rows = [flat(row) for row in rounds]
    lines = {score_column(split, "f1"): f"F1, {split_name(split)}" for split in splits_in(rounds[0])}
    for part, title in PSEUDO_LABELS.items():
        lines |= {
            quality_column(part, name): f"pseudo-labels, {name}, {title}"
            for name in ("precision", "coverage")
        }
    found = [_line(rows, name, title) for name, title in lines.items()]
    return tuple(one for one in found if one.x)[:MOST_LINES]


def _line(rows: Rows, name: str, title: str) -> Series:
    """A column over the rounds, with its band where every row carries one."""
    usable = [row for row in rows if is_figure(row.get(name))]
    x, y = tuple(float(row["round"]) for row in usable), tuple(float(row[name]) for row in usable)
    ends = [tuple(row.get(f"{name}_{end}") for row in usable) for end in ("low", "high")]
    has_band = all(is_figure(value) for end in ends for value in end)
    return Series(title, x, y, *ends) if usable and has_band else Series(title, x, y)  # type: ignore[arg-type]


def budget_series(curves: list[CurveRow]) -> tuple[Series, ...]:
    """F1 of every strategy over the number of labelled chunks."""
    lines = []
    for strategy in dict.fromkeys(row.strategy for row in curves):
        own = sorted((row for row in curves if row.strategy == strategy), key=lambda row: row.num_chunks)
        x, y = tuple(float(row.num_chunks) for row in own), tuple(row.f1 for row in own)
        ends = (tuple(row.f1_low for row in own), tuple(row.f1_high for row in own))
        has_band = all(math.isfinite(value) for end in ends for value in end)
        lines.append(Series(strategy, x, y, *ends) if has_band else Series(strategy, x, y))
    return tuple(lines)


def trials_of(rows: Rows) -> Trials | None:
    """What was sampled, as far as it differs, and what came of it; nothing where no trial came to an end."""
    kept = [row for row in rows if is_figure(row.get(OBJECTIVE)) and row.get("status") != STOPPED_EARLY]
    sampled = [name for name in dict.fromkeys(n for row in kept for n in row) if name.startswith(SAMPLE)]
    names = [name for name in sampled if len({str(row.get(name)) for row in kept}) > 1][:MOST_AXES]
    if not names:
        return None
    cells = tuple(tuple(row.get(name) for name in (*names, OBJECTIVE)) for row in kept)
    titles = tuple(name.removeprefix(SAMPLE) for name in names)
    return Trials((*titles, OBJECTIVE), cells, OBJECTIVE, "threshold" if "threshold" in titles else None)


def sheet_tables(sheet: ScoreSheet, source: str) -> tuple[ResultTable, ...]:
    """A sheet of scores: one table of its splits, and one per breakdown."""
    note = f"{source}: threshold {sheet.threshold.value:.3g} ({sheet.threshold.said}), IoU {sheet.iou:g} in {sheet.space} space."
    tables = []
    for by in dict.fromkeys(row.by for row in sheet.rows):
        rows = [row for row in sheet.rows if row.by == by]
        columns = ("split", "matched per", by, "recordings", "calls", "kept detections")
        titles = (*columns, *(name.replace("_", " ") for name in rows[0].figures))
        tables.append(ResultTable(f"Scores by {by} of {source}", titles, tuple(map(_cells, rows)), note))
    return tuple(tables)


def _cells(row: ScoreRow) -> tuple[Cell, ...]:
    counts = (row.num_recordings, row.num_truth, row.num_detections)
    return (split_name(row.split), row.unit, row.cell, *counts, *map(cell_of, row.figures.values()))


def _name_of(folder: str) -> str:
    """What a scored model is called beside others: never the same for two; "" for figures that a stage chose by, and for
    those of another archive, whose calls are others.
    """
    model, _, last = folder.rpartition("/")
    if (
        last in ("", ROUND_SCORES)
        or last.startswith("there-")
        or (model.endswith("pieces") and "scores" in last)
    ):
        return ""
    owner = model.removesuffix("/adaptation")
    if owner != model:
        return f"{owner}, {'as it began' if last == 'here-before' else 'as it was trained'}"
    return folder.removeprefix("scores/")


def models_table(sheets: Mapping[str, ScoreSheet]) -> tuple[ResultTable, ...]:
    """Models that were scored (folder -> sheet) side by side, split by split; nothing where fewer than two were."""
    scored = {
        name: sheet for folder, sheet in sheets.items() if sheet.model_sha and (name := _name_of(folder))
    }
    if len(scored) < 2:
        return ()
    splits = list(dict.fromkeys(split for sheet in scored.values() for split in sheet.splits))
    rows: list[tuple[Cell, ...]] = []
    sizes: dict[str, tuple[int, int]] = {}
    for model, sheet in scored.items():
        found = [sheet.whole(split) for split in splits]
        rows.append((model, *(cell_of(row.figures["f1"]) if row else None for row in found)))
        sizes |= {row.split: (row.num_truth, row.num_recordings) for row in found if row}
    counted = "; ".join(
        f"{split_name(n)}: {calls} calls in {count} recordings" for n, (calls, count) in sizes.items()
    )
    note = (
        "As `mast evaluate` scores them, chunk by chunk: a call that lies in two chunks counts in both. Below each its 95 % "
        f"interval; where they overlap, a difference may be noise. {counted}."
    )
    columns = ("model", *(f"F1, {split_name(split)}" for split in splits))
    return (ResultTable("Models side by side", columns, tuple(rows), note),)
