"""Points of a 2-D map of embeddings, coloured by site, label, hour or number of
events; one panel per question.

Categories beyond the eight most common are grey ("other"). Hours run on a circle of colours, counts from dark
to bright. Squares are annotated boxes, circles everything else.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from numpy.typing import ArrayLike, NDArray

# Okabe and Ito's colours without yellow, which is lost on white.
COLOURS = ("#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00", "#000000", "#8c510a")
OTHER = "#bbbbbb"
# Night is dark blue, morning orange, noon gold, evening magenta: a circle
# without white, which paper swallows.
_HOURS = LinearSegmentedColormap.from_list("hours", ["#1b2a6b", "#d55e00", "#e6b800", "#a0307f", "#1b2a6b"])


@dataclass(frozen=True, eq=False)
class Panel:
    """One colouring of the same points; categories are text, hours and counts
    numbers (NaN: unknown, grey).
    """

    title: str
    kind: Literal["category", "hour", "count"]
    values: Sequence[str] | NDArray[np.float64]


def map_figure(
    points: ArrayLike, panels: Sequence[Panel], is_square: ArrayLike | None = None, title: str = ""
) -> Figure:
    """(N, 2) points, one panel beside the other."""
    places = np.asarray(points, np.float64)
    square = np.zeros(len(places), bool) if is_square is None else np.asarray(is_square, bool)
    figure = Figure(figsize=(4.6 * len(panels), 4.9), layout="constrained")
    FigureCanvasAgg(figure)
    for number, panel in enumerate(panels, 1):
        axes = figure.add_subplot(1, len(panels), number)
        axes.set_title(panel.title, loc="left", fontsize=10)
        axes.set_xticks([])
        axes.set_yticks([])
        if panel.kind == "category":
            _categories(axes, places, [str(value) for value in panel.values], square)
        else:
            _numbers(figure, axes, places, np.asarray(panel.values, np.float64), panel.kind, square)
    if title:
        figure.suptitle(title, fontsize=11)
    return figure


def _scatter(
    axes: Axes, places: NDArray[np.float64], square: NDArray[np.bool_], size: float, **style: Any
) -> Any:
    """Squares for annotated boxes, circles for the rest; what was drawn last."""
    drawn = None
    colours = style.pop("c", None)
    for marker, rows in (("s", square), ("o", ~square)):
        if rows.any():
            own: dict[str, Any] = (
                {"c": np.asarray(colours)[rows]} if isinstance(colours, np.ndarray) else {"color": colours}
            )
            drawn = axes.scatter(
                places[rows, 0],
                places[rows, 1],
                s=size,
                marker=marker,
                linewidths=0,
                alpha=0.8,
                **own,
                **style,
            )
    return drawn


def _categories(
    axes: Axes, places: NDArray[np.float64], values: list[str], square: NDArray[np.bool_]
) -> None:
    size = _size(len(places))
    shown = [name for name, _ in Counter(v for v in values if v).most_common(len(COLOURS))]
    colour_of = dict(zip(shown, COLOURS, strict=False))
    array = np.array(values, object)
    rest = ~np.isin(array, shown)
    if rest.any():
        _scatter(axes, places[rest], square[rest], size, c=OTHER)
    for name in shown:
        rows = array == name
        _scatter(axes, places[rows], square[rows], size, c=colour_of[name])
    handles = [Line2D([], [], ls="", marker="o", color=colour_of[name], label=_short(name)) for name in shown]
    if rest.any():
        num_other = len({value for value in values if value} - set(shown))
        text = ", ".join([f"{num_other} others"] * bool(num_other) + ["none"] * ("" in values))
        handles.append(Line2D([], [], ls="", marker="o", color=OTHER, label=text))
    axes.legend(
        handles=handles, fontsize=7, frameon=False, ncols=3, loc="upper center", bbox_to_anchor=(0.5, -0.01)
    )


def _numbers(
    figure: Figure,
    axes: Axes,
    places: NDArray[np.float64],
    values: NDArray[np.float64],
    kind: str,
    square: NDArray[np.bool_],
) -> None:
    known, size = np.isfinite(values), _size(len(places))
    if (~known).any():
        _scatter(axes, places[~known], square[~known], size, c=OTHER)
    if not known.any():
        return
    style: dict[str, Any] = {"cmap": _HOURS, "vmin": 0.0, "vmax": 24.0}
    if kind == "count":
        style = {"cmap": "viridis", "vmin": 0.0, "vmax": max(float(np.percentile(values[known], 98)), 1.0)}
    drawn = _scatter(axes, places[known], square[known], size, c=values[known], **style)
    ticks = [0, 6, 12, 18, 24] if kind == "hour" else None
    figure.colorbar(drawn, ax=axes, orientation="horizontal", shrink=0.8, pad=0.03, ticks=ticks)  # type: ignore[arg-type]


def _size(num_points: int) -> float:
    return float(np.clip(6000.0 / max(num_points, 1), 4.0, 30.0))


def _short(text: str) -> str:
    plain = text.replace("$", r"\$")  # matplotlib would set it as a formula
    return plain if len(plain) <= 18 else plain[:17] + "…"
