"""Tables of methods as the paper prints them, in Markdown, CSV and LaTeX, every
figure with its 95 % interval and n.

The best estimate of a column is bold. A dagger marks figures that cannot be told from the
best: their difference is within noise.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from mast_ray.evaluation.figure_tables import csv_bytes

Column = Literal["precision", "recall", "f1", "ap", "mean_iou"]
COMPARISON = "comparison.json"  # the tables as rows, for the report
COLUMNS: dict[Column, str] = {
    "precision": "Precision", "recall": "Recall", "f1": "F1", "ap": "AP", "mean_iou": "mIoU",
}  # fmt: skip
DAGGER_NOTE = (
    "Bold: best estimate. Dagger: the difference from the best is within noise (its 95 % interval holds 0)."
)


@dataclass(frozen=True)
class Figure:
    """A cell: estimate and limits (NaN where unknown), and how it stands to the best of its column."""

    estimate: float
    low: float
    high: float
    standing: Literal["best", "within_noise", "behind"] = "behind"


@dataclass(frozen=True)
class MethodRow:
    """A method on one split."""

    name: str  # as on the command line
    title: str
    group: str  # rows of one group stand together
    figures: dict[Column, Figure]
    num_seeds: int
    samples_seen: int  # training chunks, repetitions counted; 0 when unknown


@dataclass(frozen=True)
class PaperTable:
    """All methods on one split."""

    key: str  # in_domain, temporal, cross_site
    title: str
    rows: tuple[MethodRow, ...]
    num_recordings: int
    num_calls: int
    notes: tuple[str, ...] = ()

    @property
    def caption(self) -> str:
        return f"{self.title}. n = {self.num_calls} calls in {self.num_recordings} recordings. {DAGGER_NOTE}"


@dataclass(frozen=True)
class Gain:
    """One method minus the reference on one split."""

    table: str
    title: str
    column: Column
    difference: Figure  # of the estimates; standing is unused
    is_within_noise: bool


def markdown_table(table: PaperTable) -> str:
    """A pipe table with heading and notes; empty cells are dashes."""
    head = ["Method", *COLUMNS.values(), "seeds", "samples seen"]
    lines = [f"### {table.title}", "", _piped(head), _piped(["---"] + ["---:"] * (len(head) - 1))]
    for row in table.rows:
        cells = [_markdown_cell(row.figures.get(column)) for column in COLUMNS]
        lines.append(_piped([_plain(row.title), *cells, str(row.num_seeds), _count(row.samples_seen)]))
    lines += ["", f"n = {table.num_calls} calls in {table.num_recordings} recordings. {DAGGER_NOTE}"]
    return "\n".join([*lines, *table.notes]) + "\n"


def markdown_gains(gains: Sequence[Gain], reference: str) -> str:
    """Differences from a reference method, in words where they are within noise."""
    lines = [f"### Differences from {_plain(reference)}", ""]
    lines += [
        _piped(["Split", "Method", "Figure", "Difference", ""]),
        _piped(["---", "---", "---", "---:", "---"]),
    ]
    for gain in gains:
        verdict = (
            "within noise"
            if gain.is_within_noise
            else ("better" if gain.difference.estimate > 0 else "worse")
        )
        cells = [gain.table, _plain(gain.title), COLUMNS[gain.column], _signed(gain.difference), verdict]
        lines.append(_piped(cells))
    return "\n".join(lines) + "\n"


def csv_table(tables: Sequence[PaperTable]) -> bytes:
    """All tables as one, a row per split and method: figure, figure_low, figure_high, figure_standing."""
    columns = ["table", "method", "title", "group"]
    for column in COLUMNS:
        columns += [column, f"{column}_low", f"{column}_high", f"{column}_standing"]
    columns += ["num_seeds", "samples_seen", "num_recordings", "num_calls"]
    rows: list[list[object]] = []
    for table in tables:
        for row in table.rows:
            cells: list[object] = [table.key, row.name, row.title, row.group]
            for column in COLUMNS:
                one = row.figures.get(column, Figure(math.nan, math.nan, math.nan))
                standing = one.standing if math.isfinite(one.estimate) else ""
                cells += [one.estimate, one.low, one.high, standing]
            counts = [row.num_seeds, row.samples_seen, table.num_recordings, table.num_calls]
            rows.append([*cells, *counts])
    return csv_bytes(columns, rows)


def latex_table(table: PaperTable) -> str:
    """A booktabs table; intervals stand small under nothing but their own figure."""
    body = []
    for number, row in enumerate(table.rows):
        if number and table.rows[number - 1].group != row.group:
            body.append(r"\midrule")
        cells = [_latex_cell(row.figures.get(column)) for column in COLUMNS]
        body.append(" & ".join([_latex_text(row.title), *cells, str(row.num_seeds)]) + r" \\")
    head = " & ".join(["Method", *COLUMNS.values(), "seeds"]) + r" \\"
    lines = [
        r"\begin{table}[tb]",
        rf"\caption{{{_latex_text(table.caption)}}}",
        rf"\label{{tab:{table.key}}}",
        r"\centering",
        r"\small",
        r"\begin{tabular}{@{}l" + "c" * (len(COLUMNS) + 1) + r"@{}}",
        r"\toprule",
        head,
        r"\midrule",
        *body,
        r"\bottomrule",
        r"\end{tabular}",
        r"\end{table}",
    ]
    return "\n".join(lines) + "\n"


def _interval(one: Figure) -> str:
    return f"[{one.low:.3f}, {one.high:.3f}]" if math.isfinite(one.low) and math.isfinite(one.high) else ""


def _markdown_cell(one: Figure | None) -> str:
    if one is None or not math.isfinite(one.estimate):
        return "–"
    value = f"{one.estimate:.3f}"
    value = {"best": f"**{value}**", "within_noise": f"{value}†", "behind": value}[one.standing]
    return f"{value} {_interval(one)}".rstrip()


def _latex_cell(one: Figure | None) -> str:
    if one is None or not math.isfinite(one.estimate):
        return "--"
    value = f"{one.estimate:.3f}"
    value = {"best": rf"\textbf{{{value}}}", "within_noise": rf"{value}$^\dagger$", "behind": value}[
        one.standing
    ]
    limits = _interval(one)
    return rf"{value} {{\scriptsize {limits}}}" if limits else value


def _signed(one: Figure) -> str:
    if not math.isfinite(one.estimate):
        return "–"
    limits = (
        f" [{one.low:+.3f}, {one.high:+.3f}]" if math.isfinite(one.low) and math.isfinite(one.high) else ""
    )
    return f"{one.estimate:+.3f}{limits}"


def _piped(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def _plain(text: str) -> str:
    """Text that stays in its Markdown cell."""
    return " ".join(text.split()).replace("\\", "\\\\").replace("|", "\\|").replace("<", "&lt;")


def _count(samples: int) -> str:
    return f"{samples:,}" if samples else "–"


_LATEX = {
    "\\": r"\textbackslash{}", "&": r"\&", "%": r"\%", "$": r"\$", "#": r"\#", "_": r"\_", "{": r"\{", "}": r"\}",
    "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "−": "$-$", "†": r"$\dagger$",
}  # fmt: skip


def _latex_text(text: str) -> str:
    return "".join(_LATEX.get(character, character) for character in " ".join(text.split()))
