"""Pictures of a search: parallel coordinates of its trials, and F1, precision
and recall over the threshold.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib import colormaps
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from numpy.typing import NDArray

SAMPLE = "config."  # how columns of parameters begin


def search_figure(rows: Sequence[Mapping[str, Any]], objective: str) -> Figure:
    """One line per trial over its parameters (columns config.NAME) and its objective; bright is good."""
    names = [name for name in rows[0] if name.startswith(SAMPLE)]
    columns = [*names, objective]
    values = np.array([[float(row[name]) for name in columns] for row in rows])
    low, high = values.min(axis=0), values.max(axis=0)
    place = (values - low) / np.where(high > low, high - low, 1.0)
    figure = Figure(figsize=(1.6 * len(columns) + 1.0, 4.2), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots()
    for row in np.argsort(place[:, -1]):  # the best on top
        axes.plot(
            place[row],
            color=colormaps["viridis"](place[row, -1]),
            linewidth=1.0 + 2.0 * place[row, -1],
            alpha=0.85,
        )
    axes.set_xticks(range(len(columns)), [name.removeprefix(SAMPLE).replace("_", "\n") for name in columns])
    axes.set_yticks([])
    axes.set_ylim(-0.12, 1.12)
    for at, (least, most) in enumerate(zip(low, high, strict=True)):
        axes.axvline(at, color="0.7", linewidth=0.8, zorder=0)
        axes.text(at, -0.03, f"{least:.3g}", ha="center", va="top", fontsize=8)
        axes.text(at, 1.03, f"{most:.3g}", ha="center", va="bottom", fontsize=8)
    for side in ("left", "right", "top"):
        axes.spines[side].set_visible(False)
    axes.set_title(f"{len(rows)} trials", loc="left")
    return figure


def threshold_figure(curve: Mapping[str, NDArray[np.float64]], split: str, chosen: float) -> Figure:
    """F1 over q with precision and recall beside it; the threshold of the curve that was chosen is marked."""
    figure = Figure(figsize=(6.0, 4.0), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots()
    threshold, f1 = curve["threshold"], np.nan_to_num(curve["f1"])
    axes.plot(threshold, curve["f1"], color="#0072b2", linewidth=2.2, label="F1")
    axes.plot(threshold, curve["precision"], color="#d55e00", linestyle="--", label="precision")
    axes.plot(threshold, curve["recall"], color="#009e73", linestyle=":", label="recall")
    at = int(np.searchsorted(threshold, chosen))
    axes.axvline(chosen, color="0.5", linewidth=0.8)
    axes.annotate(
        f"q = {chosen:.3f}, F1 = {f1[at]:.3f}",
        (chosen, f1[at]),
        (6, 6),
        textcoords="offset points",
    )
    axes.set(xlabel="score threshold q", ylabel=f"on {split}", xlim=(0, 1), ylim=(0, 1.05))
    axes.legend(frameon=False, loc="lower left")
    return figure
