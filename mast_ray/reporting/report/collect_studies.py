"""Side tables of a run, read tolerantly: self-training rounds, label budgets and search
trials, as JSON, CSV or Parquet.

A table is a list of rows. Columns are known by name; `x_low` and `x_high` beside `x` are its interval.
"""

from __future__ import annotations

import io
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import pyarrow.csv
import pyarrow.parquet as pq

from mast_ray.reporting.report.charts import Series
from mast_ray.reporting.report.collect_scores import SPLIT_NAMES
from mast_ray.reporting.report.contents import Cell, Interval, ResultTable, Trials
from mast_ray.storage.storage import Storage

Rows = list[dict[str, Any]]
BUDGET_X = ("num_chunks", "num_labels", "budget", "n", "N")
STRATEGY = ("strategy", "sampling", "method")
ROUND_SCORES = "/evaluation/metrics.json"  # of self-training: the table of rounds has them
THRESHOLDS = ("q", "threshold", "score_threshold", "confidence_threshold")


def read_rows(storage: Storage, key: str) -> Rows:
    """Rows of a small table; a JSON object with one list inside is that list."""
    data = storage.read_bytes(key)
    if key.endswith(".parquet"):
        return pq.read_table(io.BytesIO(data)).to_pylist()
    if key.endswith(".csv"):
        return pyarrow.csv.read_csv(io.BytesIO(data)).to_pylist()
    if key.endswith(".jsonl"):
        return [json.loads(line) for line in data.decode().splitlines() if line.strip()]
    tree = json.loads(data)
    if isinstance(tree, dict):
        lists = [value for value in tree.values() if isinstance(value, list)]
        tree = lists[0] if len(lists) == 1 else [tree]
    return [flat(row) for row in tree if isinstance(row, Mapping)]


def flat(row: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested objects as dotted columns; {estimate, low, high} and [estimate, low,
    high] become x, x_low, x_high.
    """
    out: dict[str, Any] = {}
    for name, value in row.items():
        full = f"{prefix}{name}"
        if isinstance(value, Mapping) and {"low", "high"} <= value.keys():
            out[full] = value.get("estimate", value.get("value"))
            out[f"{full}_low"], out[f"{full}_high"] = value["low"], value["high"]
        elif isinstance(value, Mapping):
            out |= flat(value, f"{full}.")
        elif isinstance(value, list) and len(value) == 3 and all(isinstance(v, int | float) for v in value):
            out[full], out[f"{full}_low"], out[f"{full}_high"] = value
        elif not isinstance(value, list):
            out[full] = value
    return out


def is_figure(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _columns(rows: Rows) -> list[str]:
    names = dict.fromkeys(name for row in rows for name in row)
    return [n for n in names if not (n.endswith(("_low", "_high")) and n.rsplit("_", 1)[0] in names)]


def table_of(title: str, rows: Rows, note: str = "") -> ResultTable:
    """Rows as a table; x_low and x_high fold into x as its interval."""
    columns = _columns(rows)

    def cell(row: Mapping[str, Any], name: str) -> Cell:
        value: Any = row.get(name)
        if is_figure(value) and is_figure(row.get(f"{name}_low")) and is_figure(row.get(f"{name}_high")):
            return Interval(float(value), float(row[f"{name}_low"]), float(row[f"{name}_high"]))
        return value if isinstance(value, int | float | str | None) else str(value)

    titles = tuple(name.replace("_", " ") for name in columns)
    return ResultTable(title, titles, tuple(tuple(cell(row, n) for n in columns) for row in rows), note)


def _first(names: Iterable[str], columns: Sequence[str]) -> str | None:
    return next((name for name in names if name in columns), None)


def series_over(rows: Rows, x: str, name: str, title: str) -> Series:
    """One line over column x, with its band when the rows carry one."""
    usable = sorted((r for r in rows if is_figure(r.get(x)) and is_figure(r.get(name))), key=lambda r: r[x])
    has_band = bool(usable) and all(
        is_figure(r.get(f"{name}_{end}")) for r in usable for end in ("low", "high")
    )
    xs, ys = tuple(float(r[x]) for r in usable), tuple(float(r[name]) for r in usable)
    if not has_band:
        return Series(title, xs, ys)
    low, high = (tuple(float(r[f"{name}_{end}"]) for r in usable) for end in ("low", "high"))
    return Series(title, xs, ys, low, high)


def round_series(rows: Rows) -> tuple[Series, ...]:
    """Every share (F1, precision, coverage, ...) over the rounds."""
    columns = _columns(rows)
    if "round" not in columns:
        rows, columns = [row | {"round": number} for number, row in enumerate(rows)], [*columns, "round"]
    shares = [
        name
        for name in columns
        if name != "round"
        and any(is_figure(row.get(name)) for row in rows)
        and all(0 <= row[name] <= 1 for row in rows if is_figure(row.get(name)))
        and any(word in name.lower() for word in ("f1", "precision", "recall", "coverage", "ap", "share"))
    ]
    found = [series_over(rows, "round", name, name.replace("_", " ")) for name in shares[:6]]
    return tuple(one for one in found if one.x)


def budget_series(rows: Rows) -> tuple[tuple[Series, ...], str]:
    """One line per strategy over the number of labels, and the name of the figure."""
    rows = [
        row | {f"mean_{end}": row.get(end) for end in ("low", "high")} if "mean" in row else row
        for row in rows
    ]
    columns = _columns(rows)
    x, strategy = _first(BUDGET_X, columns), _first(STRATEGY, columns)
    figure = _first(("f1", "F1", "ap_area", "ap", "AP", "mean", "value"), columns)
    if x is None or figure is None:
        return (), "F1"
    kinds = dict.fromkeys(str(row.get(strategy, "")) if strategy else "" for row in rows)
    lines = []
    for kind in kinds:
        own = [row for row in rows if not strategy or str(row.get(strategy, "")) == kind]
        lines.append(series_over(_averaged(own, x, figure), x, figure, kind or figure))
    return tuple(lines), {"f1": "F1", "ap_area": "AP", "ap": "AP", "mean": "F1", "value": "F1"}.get(
        figure, figure
    )


def _averaged(rows: Rows, x: str, figure: str) -> Rows:
    """Several seeds at one budget: their mean, with the smallest and largest as
    band when no interval is given.
    """
    if any(f"{figure}_low" in row for row in rows):
        return rows
    out: Rows = []
    for budget in sorted({row[x] for row in rows if is_figure(row.get(x))}):
        values = [float(row[figure]) for row in rows if row.get(x) == budget and is_figure(row.get(figure))]
        if values:
            spread = {f"{figure}_low": min(values), f"{figure}_high": max(values)} if len(values) > 1 else {}
            out.append({x: budget, figure: sum(values) / len(values)} | spread)
    return out


def trials_of(rows: Rows) -> Trials | None:
    """Parameters and objective of a search: columns named config/x, config.x or
    params.x, or all that differ.
    """
    columns = _columns(rows)
    objective = _first(("objective", "f1", "F1", "val_f1", "value", "score"), columns)
    if objective is None or not rows:
        return None
    marked = [c for c in columns if c.startswith(("config/", "config.", "params.", "params/", "params_"))]
    ignored = (
        "time",
        "date",
        "pid",
        "hostname",
        "node_ip",
        "trial",
        "iteration",
        "done",
        "checkpoint",
        "timestamp",
        "experiment",
    )
    plain = [c for c in columns if c != objective and not any(word in c for word in ignored)]
    names = [c for c in marked or plain if len({str(row.get(c)) for row in rows}) > 1][:10]
    if not names:
        return None

    def short(name: str) -> str:
        return (
            name.replace("config/", "")
            .replace("config.", "")
            .replace("params_", "")
            .replace("params.", "")
            .replace("params/", "")
        )

    kept = [row for row in rows if is_figure(row.get(objective))]
    cells = tuple(
        tuple(
            row.get(c) if isinstance(row.get(c), int | float | str | None) else str(row.get(c))
            for c in (*names, objective)
        )
        for row in kept
    )
    titles = tuple(short(n) for n in names)
    threshold = next((t for t in titles if t.rsplit(".", 1)[-1] in THRESHOLDS), None)
    return Trials((*titles, objective), cells, objective, threshold) if kept else None


def figure_tables(tree: Mapping[str, Any], source: str) -> tuple[ResultTable, ...]:
    """The tables of a metrics.json as `mast evaluate` writes it: long rows (by, cell,
    figure, estimate, low, high) made wide.
    """
    settings = tree.get("settings") or {}
    split = f", split {settings['split']}" if settings.get("split") else ""
    note = f"{source}: threshold {settings.get('threshold', '?')} ({settings.get('threshold_from', '?')}), IoU {settings.get('iou', '?')}."
    tables: dict[str, dict[str, dict[str, Any]]] = {}
    for row in tree["figures"]:
        cell = tables.setdefault(row["by"], {}).setdefault(
            row["cell"], {row["by"]: row["cell"], "recordings": row["num_recordings"]}
        )
        cell |= {
            row["figure"]: row["estimate"],
            f"{row['figure']}_low": row["low"],
            f"{row['figure']}_high": row["high"],
        }
    return tuple(
        table_of(f"Evaluation by {by}{split}", list(cells.values()), note) for by, cells in tables.items()
    )


def models_table(metrics: dict[str, Any]) -> tuple[ResultTable, ...]:
    """Scored models side by side, split by split; nothing where fewer than two were scored."""
    scored = {
        key.split("/")[-2]: tree["splits"]
        for key, tree in metrics.items()
        if not key.endswith(ROUND_SCORES) and "/" in key
        if isinstance(tree, dict) and isinstance(tree.get("splits"), dict)
    }
    if len(scored) < 2:
        return ()
    splits = list(dict.fromkeys(split for own in scored.values() for split in own))
    rows = [
        {"model": model}
        | {f"F1, {SPLIT_NAMES.get(split, split)}": own.get(split, {}).get("f1") for split in splits}
        for model, own in scored.items()
    ]
    sizes = {SPLIT_NAMES.get(n, n): row for own in scored.values() for n, row in own.items()}
    counted = "; ".join(
        f"{n}: {r['num_truth']} calls in {r['recordings']} recordings" for n, r in sizes.items()
    )
    note = (
        "As `mast evaluate` scores them, chunk by chunk: a call that lies in two chunks counts in both, so these differ a "
        "little from the figures per recording. Below each its 95 % interval; where they overlap, a difference may be noise. "
        f"{counted}."
    )
    return (table_of("Models side by side", [flat(row) for row in rows], note),)
