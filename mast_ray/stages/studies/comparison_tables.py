"""Per-recording sums of methods and seeds -> the paper's tables, with
intervals, standings and differences.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from mast_ray.config.tree import Config
from mast_ray.evaluation.figure_tables import without_nan
from mast_ray.evaluation.intervals import RecordingSums
from mast_ray.evaluation.seed_intervals import SeedInterval, seed_differences, seed_intervals
from mast_ray.reporting.paper_tables import (
    COLUMNS,
    COMPARISON,
    Column,
    Figure,
    Gain,
    MethodRow,
    PaperTable,
    csv_table,
    latex_table,
    markdown_gains,
    markdown_table,
)
from mast_ray.stages.studies.methods import Method

# table -> (split, title)
TABLES = {
    "in_domain": ("test", "In-domain detection"),
    "temporal": ("temporal_ood", "Temporal shift (seen sites, unseen dates)"),
    "cross_site": ("site_ood", "Cross-site shift (unseen sites)"),
}
COMPARED: tuple[Column, ...] = ("f1", "ap")


@dataclass(frozen=True)
class Scores:
    """What the runs of a comparison gave."""

    sums: dict[str, dict[str, dict[int, RecordingSums]]]  # method -> table -> seed -> sums
    samples: dict[str, list[int]]  # method -> training samples of every seed
    num_recordings: dict[str, int]  # by table
    num_calls: dict[str, int]

    def of(self, method: str, table: str, seeds: Sequence[int] | None = None) -> list[RecordingSums]:
        by_seed = self.sums.get(method, {}).get(table, {})
        return [by_seed[seed] for seed in (sorted(by_seed) if seeds is None else seeds)]

    def shared_seeds(self, first: str, second: str, table: str) -> list[int]:
        both = (
            self.sums.get(first, {}).get(table, {}).keys() & self.sums.get(second, {}).get(table, {}).keys()
        )
        return sorted(both)


def figure_names(config: Config) -> dict[Column, str]:
    """Column -> name of the evaluator's figure; which AP is a setting."""
    names: dict[Column, str] = {column: column for column in COLUMNS}
    return names | {"ap": f"ap_{config.evaluate.average_precision}"}


def comparison_table(key: str, methods: Sequence[Method], scores: Scores, config: Config) -> PaperTable:
    """One table: every method that was scored on its split."""
    names = figure_names(config)
    knobs = (config.evaluate.bootstrap, config.seed)
    scored = [method for method in methods if scores.of(method.name, key)]
    found = {method.name: seed_intervals(scores.of(method.name, key), *knobs) for method in scored}
    best: dict[Column, str] = {}
    for column, figure in names.items():
        known = [m.name for m in scored if math.isfinite(found[m.name][figure].estimate)]
        if known:
            best[column] = max(known, key=lambda name, figure=figure: found[name][figure].estimate)  # type: ignore[misc]
    rows = []
    for method in scored:
        cells: dict[Column, Figure] = {}
        for column, figure in names.items():
            one = found[method.name][figure]
            standing = _standing(method.name, best.get(column), key, figure, scores, knobs)
            cells[column] = Figure(one.estimate, one.low, one.high, standing)
        seen = scores.samples.get(method.name, [])
        num_seeds = len(scores.of(method.name, key))
        samples = round(sum(seen) / len(seen)) if seen else 0
        rows.append(MethodRow(method.name, method.title, method.group, cells, num_seeds, samples))
    notes = (
        ["One seed: noise of training is not in the intervals."]
        if any(r.num_seeds == 1 for r in rows)
        else []
    )
    if len({row.samples_seen for row in rows}) > 1:
        notes.append(
            "Methods that self-train see more samples: compare them with mast_long, trained as long."
        )
    return PaperTable(
        key, TABLES[key][1], tuple(rows), scores.num_recordings[key], scores.num_calls[key], tuple(notes)
    )


def _standing(
    name: str, best: str | None, key: str, figure: str, scores: Scores, knobs: tuple[int, int]
) -> Any:
    if best is None or name == best:
        return "best" if name == best else "behind"
    difference = _difference(best, name, key, scores, knobs).get(figure)
    return "within_noise" if difference is not None and difference.holds_zero else "behind"


def _difference(
    first: str, second: str, key: str, scores: Scores, knobs: tuple[int, int]
) -> dict[str, SeedInterval]:
    """Second minus first over the seeds that both have."""
    seeds = scores.shared_seeds(first, second, key)
    if not seeds:
        return {}
    return seed_differences(scores.of(first, key, seeds), scores.of(second, key, seeds), *knobs)


def gains_over(
    reference: str, keys: Sequence[str], methods: Sequence[Method], scores: Scores, config: Config
) -> list[Gain]:
    """Every method minus the reference, in F1 and AP."""
    names, knobs = figure_names(config), (config.evaluate.bootstrap, config.seed)
    gains = []
    for key in keys:
        for method in methods:
            found = (
                _difference(reference, method.name, key, scores, knobs) if method.name != reference else {}
            )
            for column in COMPARED if found else ():
                one = found[names[column]]
                cell = Figure(one.estimate, one.low, one.high)
                gains.append(Gain(key, method.title, column, cell, one.holds_zero))
    return gains


def comparison_files(
    methods: Sequence[Method], scores: Scores, config: Config
) -> tuple[dict[str, bytes], str]:
    """(name -> content of every file, the whole as Markdown)"""
    keys = [key for key in TABLES if key in scores.num_calls]
    tables = [comparison_table(key, methods, scores, config) for key in keys]
    parts = [markdown_table(table) for table in tables]
    missing = [f"{key} ({TABLES[key][0]})" for key in TABLES if key not in keys]
    if missing:
        parts.append(f"Not in this archive: {', '.join(missing)}; see split.ood_dates and split.ood_sites.\n")
    scored = [method for method in methods if method.name in scores.sums]
    reference = next((m for m in scored if m.name == "mast"), scored[0] if scored else None)
    gains = gains_over(reference.name, keys, methods, scores, config) if reference is not None else []
    if reference is not None and gains:
        parts.append(markdown_gains(gains, reference.title))
    text = "\n".join(parts)
    files = {"comparison.md": text.encode(), "tables.csv": csv_table(tables)}
    files[COMPARISON] = json.dumps(without_nan(_report_rows(tables)), indent=1).encode()
    for table in tables:
        files[f"{table.key}.md"] = markdown_table(table).encode()
        files[f"{table.key}.tex"] = latex_table(table).encode()
    return files, text


def _report_rows(tables: Sequence[PaperTable]) -> list[dict[str, Any]]:
    """Rows as the report reads them: {estimate, low, high} per figure."""
    rows = []
    for table in tables:
        for row in table.rows:
            figures = {
                COLUMNS[c]: {"estimate": one.estimate, "low": one.low, "high": one.high}
                for c, one in row.figures.items()
            }
            counts = {"seeds": row.num_seeds, "samples_seen": row.samples_seen}
            rows.append({"table": table.title, "method": row.title} | figures | counts)
    return rows
