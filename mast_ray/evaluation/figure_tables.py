"""Sheets of scores for people: on the terminal, as CSV and Parquet, with the table of what became of every
detection and the curve over thresholds.
"""

from __future__ import annotations

import io
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from mast_ray.evaluation.intervals import Difference, Interval
from mast_ray.evaluation.metrics import APName, f1_over_thresholds
from mast_ray.evaluation.score_sheet import METRICS, ScoreRow, ScoreSheet
from mast_ray.evaluation.scoring import By, Scored, outcomes
from mast_ray.recordings.annotations.tabular import defused, written_table
from mast_ray.storage.storage import Storage

COUNTS = ("num_recordings", "num_truth", "num_detections", "num_true_positives")
COLUMNS = ("split", "unit", "by", "cell", "figure", "estimate", "low", "high", "method", *COUNTS)
CURVE_COLUMNS = ("split", "threshold", "num_detections", "num_true_positives", "precision", "recall", "f1")
OUTCOMES = pa.schema(
    [(name, pa.string()) for name in ("split", "recording")]
    + [(name, pa.float64()) for name in ("begin_s", "end_s", "low_hz", "high_hz", "score", "iou")]
    + [(name, pa.string()) for name in ("label", "outcome")]
)
MOST_CURVE_POINTS = 1000
WILSON_NOTE = (
    "w: the same in every recording, so the limits are Wilson's, of the counts (calls taken as independent)"
)


def figure_rows(rows: Iterable[ScoreRow]) -> list[dict[str, Any]]:
    """One row per figure, long format: what figures.csv holds."""
    return [
        {"split": row.split, "unit": row.unit, "by": row.by, "cell": row.cell, "figure": name}
        | one._asdict()
        | {count: getattr(row, count) for count in COUNTS}
        for row in rows
        for name, one in row.figures.items()
    ]


def shown_figures(average_precision: APName) -> tuple[str, ...]:
    """What a line has room for; AP of the headline's kind."""
    return ("precision", "recall", "f1", "f1_macro", f"ap_{average_precision}", "mean_iou", "time_f1")


def sheet_text(sheet: ScoreSheet) -> str:
    """The threshold, then one line per split, per chunk and stitched, and one per cell of every breakdown.

    What is scored as one whole is a list of all figures.
    """
    lines = [
        f"score >= {sheet.threshold.value:g} ({sheet.threshold.said}), IoU >= {sheet.iou:g} in {sheet.space} space"
    ]
    whole = [row for row in sheet.rows if row.is_whole]
    if len(whole) == 1:
        (row,) = whole
        lines.append(
            f"{row.num_recordings} recordings, matched per {row.unit}: {row.num_truth} annotations, "
            f"{row.num_detections} detections, {row.num_true_positives} right"
        )
        lines += [f"  {name:<14} {interval_text(one)}" for name, one in row.figures.items()]
    else:
        for unit, title in (("chunk", "split, per chunk"), ("recording", "split, per recording")):
            lines += _block(
                title, {row.split: row for row in whole if row.unit == unit}, sheet.average_precision
            )
    for by in dict.fromkeys(row.by for row in sheet.rows if not row.is_whole):
        cells = [r for r in sheet.rows if r.by == by and r.num_truth + r.num_detections]
        lines += _block(by, {f"{r.split} {r.cell}".strip(): r for r in cells}, sheet.average_precision)
    if any(one.method == "wilson" for row in sheet.rows for one in row.figures.values()):
        lines.append(WILSON_NOTE)
    return "\n".join(lines)


def unknown_text(sheet: ScoreSheet, by: By) -> str:
    """How many events are in no line of a breakdown, because nobody knows their site, hour, ...; "" where all are in one."""
    cells = [row for row in sheet.rows if row.by == by]
    if not cells:
        return f"the {by} of no event is known"
    units = {row.unit for row in cells}
    whole = [row for row in sheet.rows if row.is_whole and row.unit in units]
    said = []
    for name, title in (("num_truth", "annotations"), ("num_detections", "detections")):
        total, known = (sum(getattr(row, name) for row in rows) for rows in (whole, cells))
        # detections have no label, or a name that is no truth's: they are in no line, or in one of another name
        if known < total and (by != "label" or name == "num_truth"):
            said.append(f"{total - known} of {total} {title}")
    return f"the {by} of {' and '.join(said)} is not known, and they are in no line of it" if said else ""


def _block(title: str, rows: Mapping[str, ScoreRow], average_precision: APName) -> list[str]:
    if not rows:
        return []
    shown, width = shown_figures(average_precision), max(len(title), *map(len, rows))
    lines = [
        f"\n{title:<{width}}  {'rec.':>5} {'true':>6} {'found':>6}" + "".join(f"  {n:<21}" for n in shown)
    ]
    for name, row in rows.items():
        head = f"{name:<{width}}  {row.num_recordings:>5} {row.num_truth:>6} {row.num_detections:>6}"
        lines.append((head + "".join(f"  {interval_text(row.figures[n]):<21}" for n in shown)).rstrip())
    return lines


def interval_text(one: Interval) -> str:
    """0.812 [0.774, 0.850]; a dash for what is undefined, a w behind Wilson's limits."""
    if not math.isfinite(one.estimate):
        return "-"
    mark = "w" if one.method == "wilson" else ""
    limits = f" [{one.low:.3f}, {one.high:.3f}]{mark}" if math.isfinite(one.low) else ""
    return f"{one.estimate:.3f}{limits}"


def difference_text(one: Difference) -> str:
    """+0.031 [-0.010, +0.072]; where recordings are too few for limits it says so, a dash for what is undefined."""
    if not math.isfinite(one.estimate):
        return "-"
    limits = (
        f" [{one.low:+.3f}, {one.high:+.3f}]" if math.isfinite(one.low) else ", too few recordings to be sure"
    )
    return f"{one.estimate:+.3f}{limits}"


def write_sheet(folder: Storage, sheet: ScoreSheet, scored: Mapping[str, Scored]) -> list[str]:
    """metrics.json, figures.csv and .parquet, outcomes.parquet, thresholds.csv; their names.

    `scored` are the matches behind the rows, by split.
    """
    rows = figure_rows(sheet.rows)
    found = [
        {"split": [split] * len(columns["recording"])} | columns
        for split, one in scored.items()
        for columns in [outcomes(one, sheet.threshold.value)]
    ]
    points = [(split, *point) for split, one in scored.items() for point in _curve(one)]
    files = {
        METRICS: sheet.to_json(),
        "figures.csv": csv_bytes(COLUMNS, ([row[name] for name in COLUMNS] for row in rows)),
        "figures.parquet": _parquet_bytes(pa.Table.from_pylist(rows)),
        "outcomes.parquet": _parquet_bytes(
            pa.concat_tables([OUTCOMES.empty_table(), *(pa.table(one, schema=OUTCOMES) for one in found)])
        ),
        "thresholds.csv": csv_bytes(CURVE_COLUMNS, points),
    }
    for name, content in files.items():
        folder.write_atomic(name, content)
    return list(files)


def _curve(scored: Scored) -> list[tuple[float, ...]]:
    curve = f1_over_thresholds(scored.matches)
    step = max(1, len(curve.threshold) // MOST_CURVE_POINTS)
    return list(zip(*(column[::step].tolist() for column in curve), strict=True))


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
        if not math.isfinite(value):
            return ""
        # six digits of a figure; a time of some hours to the millisecond all the same
        return f"{value:.6g}" if abs(value) < 1000.0 else f"{value:.3f}".rstrip("0").rstrip(".")
    return defused(str(value))
