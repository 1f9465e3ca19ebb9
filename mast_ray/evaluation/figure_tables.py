"""Figures as rows: for the terminal, as CSV and JSON, and the table of what became of every detection."""

from __future__ import annotations

import io
import json
import math
from collections.abc import Iterable, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from mast_ray.evaluation.intervals import FIGURES, Interval
from mast_ray.evaluation.metrics import APName, Metrics, f1_over_thresholds
from mast_ray.evaluation.scoring import Scored, outcomes
from mast_ray.recordings.annotations.tabular import defused, written_table
from mast_ray.storage.storage import Storage

COLUMNS = ("by", "cell", "figure", "estimate", "low", "high", "method", "num_truth", "num_detections", "num_true_positives",
           "num_recordings")  # fmt: skip
MOST_CURVE_POINTS = 1000
WILSON_NOTE = (
    "w: the same in every recording, so the limits are Wilson's, of the counts (calls taken as independent)"
)


def figure_rows(
    by: str, cell: str, metrics: Metrics, intervals: dict[str, Interval], num_recordings: int
) -> list[dict[str, Any]]:
    """One row per figure, long format."""
    counts = {
        "num_truth": metrics.num_truth,
        "num_detections": metrics.num_detections,
        "num_true_positives": metrics.num_true_positives,
        "num_recordings": num_recordings,
    }
    return [
        {"by": by, "cell": cell, "figure": name, "estimate": float(getattr(metrics, name)),
         "low": intervals[name].low, "high": intervals[name].high, "method": intervals[name].method} | counts
        for name in FIGURES
    ]  # fmt: skip


def figures_as_text(rows: Sequence[dict[str, Any]], average_precision: APName = "area") -> str:
    """The whole as a list with intervals, breakdowns as one line per cell with the named kind of AP."""
    shown = ("precision", "recall", "f1", "f1_macro", f"ap_{average_precision}", "mean_iou", "time_f1")
    lines = []
    whole = [row for row in rows if row["by"] == "all"]
    if whole:
        first = whole[0]
        lines.append(
            f"{first['num_truth']} annotations, {first['num_detections']} detections, "
            f"{first['num_true_positives']} right"
        )
        lines += [f"  {row['figure']:<14} {interval_text(row)}" for row in whole]
    for by in dict.fromkeys(row["by"] for row in rows if row["by"] != "all"):
        cells: dict[str, dict[str, dict[str, Any]]] = {}
        for row in rows:
            if row["by"] == by:
                cells.setdefault(row["cell"], {})[row["figure"]] = row
        width = max(len(by), *(len(name) for name in cells))
        lines.append(
            f"\n{by:<{width}}  {'rec.':>5} {'true':>6} {'found':>6}" + "".join(f"  {n:<20}" for n in shown)
        )
        for name, figures in cells.items():
            one = figures["f1"]
            head = f"{name:<{width}}  {one['num_recordings']:>5} {one['num_truth']:>6} {one['num_detections']:>6}"
            lines.append((head + "".join(f"  {interval_text(figures[n]):<20}" for n in shown)).rstrip())
    if any(row["method"] == "wilson" for row in rows):
        lines.append(WILSON_NOTE)
    return "\n".join(lines)


def interval_text(row: dict[str, Any]) -> str:
    """0.812 [0.774, 0.850]; a dash for what is undefined, a w behind Wilson's limits."""
    if not math.isfinite(row["estimate"]):
        return "-"
    mark = "w" if row.get("method") == "wilson" else ""
    limits = f" [{row['low']:.3f}, {row['high']:.3f}]{mark}" if math.isfinite(row["low"]) else ""
    return f"{row['estimate']:.3f}{limits}"


def write_results(
    folder: Storage,
    settings: dict[str, Any],
    metrics: Metrics,
    rows: Sequence[dict[str, Any]],
    scored: Scored,
    threshold: float,
) -> list[str]:
    """metrics.json, figures.csv and .parquet, outcomes.parquet, thresholds.csv; their names."""
    curve = f1_over_thresholds(scored.matches)
    step = max(1, len(curve.threshold) // MOST_CURVE_POINTS)
    points = zip(*(column[::step].tolist() for column in curve), strict=True)
    document = {"settings": settings, "metrics": metrics.as_dict(), "figures": list(rows)}
    files = {
        "metrics.json": json.dumps(without_nan(document), indent=1).encode(),
        "figures.csv": csv_bytes(COLUMNS, ([row[name] for name in COLUMNS] for row in rows)),
        "figures.parquet": _parquet_bytes(pa.Table.from_pylist(list(rows))),
        "outcomes.parquet": _parquet_bytes(pa.table(outcomes(scored, threshold))),
        "thresholds.csv": csv_bytes(curve._fields, points),
    }
    for name, content in files.items():
        folder.write_atomic(name, content)
    return list(files)


def csv_bytes(columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> bytes:
    """Comma-separated text; cells that a spreadsheet would run as formulas are defused."""
    return written_table(columns, ([_cell(value) for value in row] for row in rows), ",").encode()


def _parquet_bytes(table: pa.Table) -> bytes:
    sink = io.BytesIO()
    pq.write_table(table, sink, compression="zstd")
    return sink.getvalue()


def without_nan(value: Any) -> Any:
    """The same document with null for what is not a finite number: JSON has no NaN."""
    if isinstance(value, dict):
        return {key: without_nan(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [without_nan(inner) for inner in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _cell(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.6g}" if math.isfinite(value) else ""
    return defused(str(value))
