"""The next-site study as a picture: recall at the unseen sites by duration and by bandwidth of the calls, mean over seeds.

    python benchmarks/next_site_curves.py --results DIR [DIR ...] --rows field_full="field, 8,000 steps" ... --out curves.svg

A later DIR's runs stand for those of the same name in an earlier one, as when their files are copied over each other.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure
from next_site_scores import BANDWIDTH_EDGES_HZ, DURATION_EDGES_S, Run, read_runs

# Okabe and Ito's colours, which people who see no red or green can tell apart, and a marker each for print in grey
STYLES = (("#000000", "o"), ("#e69f00", "s"), ("#56b4e9", "^"), ("#009e73", "D"), ("#d55e00", "v"), ("#cc79a7", "P"))  # fmt: skip


def recall_by(runs: Sequence[Run], name: str) -> np.ndarray:
    """(E,) share of the calls at the unseen sites that are found, by `duration` or `bandwidth`, mean over seeds."""
    truth = runs[0].arrays[f"site_ood.{name}_truth"].sum(axis=0)
    found = np.mean([run.arrays[f"site_ood.{name}_found"].sum(axis=0) for run in runs], axis=0)
    return found / np.maximum(truth, 1)


def range_names(edges: Sequence[float], unit: str) -> list[str]:
    """What an axis says of every range between two edges."""
    return [
        f"≥ {low:g} {unit}" if np.isinf(high) else f"< {high:g} {unit}" if low == 0 else f"to {high:g} {unit}"
        for low, high in pairwise(edges)
    ]


def draw(axes: Axes, rows: dict[str, list[Run]], name: str, edges: Sequence[float], unit: str) -> None:
    """One panel."""
    for (colour, marker), (title, runs) in zip(STYLES, rows.items(), strict=False):
        axes.plot(
            recall_by(runs, name), color=colour, marker=marker, markersize=5, linewidth=1.5, label=title
        )
    counts = next(iter(rows.values()))[0].arrays[f"site_ood.{name}_truth"].sum(axis=0)
    names = [f"{text}\nn = {count:,}" for text, count in zip(range_names(edges, unit), counts, strict=True)]
    axes.set_xticks(range(len(names)), names, fontsize=8)
    axes.set_ylim(0, 1)
    axes.set_title(f"by {name} of the call", fontsize=10)
    axes.grid(axis="y", color="#dddddd", linewidth=0.7)
    axes.spines[["top", "right"]].set_visible(False)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--results", type=Path, nargs="+", required=True)
    parser.add_argument("--rows", nargs="+", required=True, metavar="ROW=TITLE")
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    if len(args.rows) > len(STYLES):
        parser.error(f"at most {len(STYLES)} rows can be told apart")
    latest = {(run.row, run.seed): run for folder in args.results for run in read_runs(folder)}
    rows: dict[str, list[Run]] = {}
    for item in args.rows:
        row, _, title = item.partition("=")
        rows[title or row] = [run for (name, _), run in sorted(latest.items()) if name == row]
        if not rows[title or row]:
            parser.error(f"no finished run of {row} in {', '.join(map(str, args.results))}")
    boxes = {tuple(run.arrays["site_ood.sums"][:, 2]) for runs in rows.values() for run in runs}
    if len(boxes) > 1:
        parser.error("these rows were not scored on the same calls: name rows and results of one archive")
    matplotlib.rcParams |= {"svg.fonttype": "none", "svg.hashsalt": "next_site", "font.family": "sans-serif"}
    figure = Figure(figsize=(11, 4), layout="constrained")
    left, right = figure.subplots(1, 2, sharey=True)
    draw(left, rows, "duration", DURATION_EDGES_S, "s")
    draw(right, rows, "bandwidth", BANDWIDTH_EDGES_HZ, "Hz")
    left.set_ylabel("share of calls found at the unseen sites", fontsize=9)
    handles, titles = left.get_legend_handles_labels()
    figure.legend(handles, titles, loc="outside lower center", ncols=3, frameon=False, fontsize=9)
    FigureCanvasSVG(figure).print_svg(args.out, metadata={"Date": None})


if __name__ == "__main__":
    main()
