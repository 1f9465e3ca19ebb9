"""Charts as hand-made inline SVG strings: no scripts, no styles, only class names
that the report's CSS colours.

Every function returns safe markup whose texts are escaped, with a <title> that says what the picture
shows. Colours are the classes s0..s7 (Okabe and Ito's palette, distinguishable without red-green
vision; lines also differ by dashes).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from markupsafe import Markup, escape

WIDTH, HEIGHT = 460, 300
LEFT, RIGHT, TOP, BOTTOM = 52, 14, 12, 42


@dataclass(frozen=True)
class Series:
    """One line of a chart; `low` and `high` draw a band around it."""

    name: str
    x: tuple[float, ...]
    y: tuple[float, ...]
    low: tuple[float, ...] = ()
    high: tuple[float, ...] = ()


def nice_ticks(low: float, high: float, count: int = 5, smallest: float = 0.0) -> list[float]:
    """About `count` round numbers covering [low, high], at least `smallest` apart."""
    if not math.isfinite(low) or not math.isfinite(high) or high <= low:
        return [low]
    raw = (high - low) / max(count, 1)
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(m * power for m in (1, 2, 2.5, 5, 10) if m * power >= raw * 0.999)
    step = max(step, smallest)
    first = math.ceil(low / step - 1e-9)
    last = math.floor(high / step + 1e-9)
    return [round(i * step, 12) for i in range(first, last + 1)]


def number(value: float) -> str:
    """A number as short as a reader needs it."""
    if value == 0:
        return "0"
    if abs(value) >= 1e6 or abs(value) < 1e-4:
        return f"{value:.2g}"
    if abs(value) >= 1000:
        return f"{value:,.0f}"
    return f"{value:.4g}"


def _frame(title: str, body: list[str], width: int = WIDTH, height: int = HEIGHT, kind: str = "") -> Markup:
    head = (
        f'<svg class="chart {kind}" viewBox="0 0 {width} {height}" role="img"><title>{escape(title)}</title>'
    )
    return Markup(head + "".join(body) + "</svg>")


class _Plot:
    """Maps data to a rectangle and draws the axes once."""

    def __init__(self, x_range: tuple[float, float], y_range: tuple[float, float]) -> None:
        self.x0, self.x1 = x_range if x_range[1] > x_range[0] else (x_range[0] - 0.5, x_range[0] + 0.5)
        self.y0, self.y1 = y_range if y_range[1] > y_range[0] else (y_range[0] - 0.5, y_range[0] + 0.5)

    def x(self, value: float) -> float:
        return round(LEFT + (value - self.x0) / (self.x1 - self.x0) * (WIDTH - LEFT - RIGHT), 1)

    def y(self, value: float) -> float:
        return round(HEIGHT - BOTTOM - (value - self.y0) / (self.y1 - self.y0) * (HEIGHT - TOP - BOTTOM), 1)

    def axes(self, x_label: str, y_label: str, smallest_x: float = 0.0) -> list[str]:
        out = []
        for tick in nice_ticks(self.y0, self.y1):
            y = self.y(tick)
            out.append(f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y}" y2="{y}"/>')
            out.append(f'<text class="tick end" x="{LEFT - 7}" y="{y + 4}">{number(tick)}</text>')
        for tick in nice_ticks(self.x0, self.x1, 6, smallest_x):
            x = self.x(tick)
            out.append(
                f'<line class="axis" x1="{x}" x2="{x}" y1="{HEIGHT - BOTTOM}" y2="{HEIGHT - BOTTOM + 4}"/>'
            )
            out.append(f'<text class="tick mid" x="{x}" y="{HEIGHT - BOTTOM + 17}">{number(tick)}</text>')
        base = HEIGHT - BOTTOM
        out.append(f'<line class="axis" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{base}" y2="{base}"/>')
        middle_x, middle_y = (LEFT + WIDTH - RIGHT) / 2, (TOP + base) / 2
        out.append(f'<text class="label mid" x="{middle_x}" y="{HEIGHT - 6}">{escape(x_label)}</text>')
        turn = f'transform="rotate(-90 13 {middle_y})"'
        out.append(f'<text class="label mid" x="13" y="{middle_y}" {turn}>{escape(y_label)}</text>')
        return out


def _finite(pairs: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    return [
        (x, y) for x, y in pairs if x is not None and y is not None and math.isfinite(x) and math.isfinite(y)
    ]


def _extent(values: list[float]) -> tuple[float, float]:
    finite = [v for v in values if v is not None and math.isfinite(v)]
    return (min(finite), max(finite)) if finite else (0.0, 1.0)


def line_chart(
    title: str,
    series: Sequence[Series],
    x_label: str,
    y_label: str,
    x_range: tuple[float, float] | None = None,
    y_range: tuple[float, float] | None = None,
    mark_x: float | None = None,
    diagonal: bool = False,
    drawn: Literal["line", "dots", "both"] = "line",
) -> Markup:
    """Lines with optional bands; `mark_x` is a labelled vertical line, `diagonal` the line y = x."""
    x_range = x_range or _extent([v for s in series for v in s.x])
    y_range = y_range or _extent([v for s in series for v in (*s.y, *s.low, *s.high)])
    plot = _Plot(x_range, y_range)
    all_whole = all(float(v).is_integer() for s in series for v in s.x if v is not None)
    body = plot.axes(x_label, y_label, 1.0 if all_whole else 0.0)
    if diagonal:
        low, high = max(plot.x0, plot.y0), min(plot.x1, plot.y1)
        ends = f'x1="{plot.x(low)}" y1="{plot.y(low)}" x2="{plot.x(high)}" y2="{plot.y(high)}"'
        body.append(f'<line class="reference" {ends}/>')
    for index, one in enumerate(series):
        colour = f"s{index % 8}"
        if one.low and one.high:
            there = _finite(list(zip(one.x, one.low, strict=True)))
            back = _finite(list(zip(one.x, one.high, strict=True)))[::-1]
            ring = " ".join(f"{plot.x(x)},{plot.y(y)}" for x, y in there + back)
            body.append(f'<polygon class="band {colour}" points="{ring}"/>')
        dots = _finite(list(zip(one.x, one.y, strict=True)))
        way = " ".join(f"{plot.x(x)},{plot.y(y)}" for x, y in dots)
        if drawn != "dots":
            body.append(f'<polyline class="line {colour}" points="{way}"/>')
        if drawn != "line":
            for x, y in dots:
                tip = f"{one.name}: {number(x)}, {number(y)}"
                body.append(f'<circle class="dot {colour}" cx="{plot.x(x)}" cy="{plot.y(y)}" r="3.5">')
                body.append(f"<title>{escape(tip)}</title></circle>")
    if mark_x is not None and plot.x0 <= mark_x <= plot.x1:
        x, anchor, shift = plot.x(mark_x), "", 5
        if x > WIDTH * 0.75:
            anchor, shift = " end", -5
        body.append(f'<line class="mark" x1="{x}" x2="{x}" y1="{TOP}" y2="{HEIGHT - BOTTOM}"/>')
        body.append(f'<text class="tick{anchor}" x="{x + shift}" y="{TOP + 10}">{number(mark_x)}</text>')
    return _frame(title, body) + legend([s.name for s in series])


def legend(names: Sequence[str]) -> Markup:
    """Coloured keys under a chart; nothing for a single unnamed or lone series."""
    if len(names) < 2:
        return Markup("")
    keys = "".join(
        f'<li><svg class="key" viewBox="0 0 22 10" aria-hidden="true"><line class="line s{i % 8}" x1="1" x2="21" '
        f'y1="5" y2="5"/></svg>{escape(name)}</li>'
        for i, name in enumerate(names)
    )
    return Markup(f'<ul class="legend">{keys}</ul>')


def histogram(
    title: str,
    edges: Sequence[float],
    counts: Sequence[float],
    x_label: str,
    y_label: str = "count",
    mark_x: float | None = None,
    name: str = "",
) -> Markup:
    """Bars over bins; `name` makes it addressable for the threshold slider (each
    bar carries its lower edge).
    """
    top = max(counts, default=0) or 1
    plot = _Plot((edges[0], edges[-1]), (0, top))
    body = plot.axes(x_label, y_label)
    base = HEIGHT - BOTTOM
    for low, high, count in zip(edges[:-1], edges[1:], counts, strict=True):
        x, y = plot.x(low), plot.y(count)
        width = max(round(plot.x(high) - x - 0.8, 1), 0.4)
        tip = f"{number(low)} to {number(high)}: {number(count)}"
        body.append(
            f'<rect class="bar s0" data-low="{low:.6g}" x="{x}" y="{y}" width="{width}" '
            f'height="{round(base - y, 1)}"><title>{tip}</title></rect>'
        )
    if mark_x is not None:
        x = plot.x(min(max(mark_x, plot.x0), plot.x1))
        body.append(f'<line class="mark" data-left="{LEFT}" data-right="{WIDTH - RIGHT}" x1="{x}" x2="{x}" ')
        body.append(f'y1="{TOP}" y2="{base}"/>')
    return _frame(title, body, kind=f"histogram {name}")


def parallel_coordinates(
    title: str, names: Sequence[str], rows: Sequence[Sequence[float | str | None]], objective: str
) -> Markup:
    """One line per trial across one axis per parameter; the objective is the last axis,
    the best trial is drawn on top.
    """
    order = [n for n in names if n != objective] + [objective]
    columns = {name: [row[list(names).index(name)] for row in rows] for name in order}
    width, height, top, bottom = max(460, 120 * len(order)), 330, 48, 30
    step = (width - 120) / max(len(order) - 1, 1)
    body: list[str] = []
    places: dict[str, list[float | None]] = {}
    for index, name in enumerate(order):
        x = 60 + index * step
        places[name], ends = _unit_positions(columns[name])
        body.append(f'<line class="axis" x1="{x:.1f}" x2="{x:.1f}" y1="{top}" y2="{height - bottom}"/>')
        body.append(f'<text class="label mid" x="{x:.1f}" y="{14}">{escape(name)}</text>')
        body.append(f'<text class="tick mid" x="{x:.1f}" y="{height - bottom + 16}">{escape(ends[0])}</text>')
        body.append(f'<text class="tick mid" x="{x:.1f}" y="{top - 8}">{escape(ends[1])}</text>')
    values = places[objective]
    ranked = sorted(range(len(rows)), key=lambda i: -1.0 if (v := values[i]) is None else v)
    for place, row in enumerate(ranked):
        dots = [
            f"{60 + i * step:.1f},{top + (1 - p) * (height - top - bottom):.1f}"
            for i, name in enumerate(order)
            if (p := places[name][row]) is not None
        ]
        shade = min(int(8 * (place + 1) / (len(ranked) + 1)), 7)
        best = " best" if place == len(ranked) - 1 else ""
        tip = ", ".join(f"{n} = {_short(columns[n][row])}" for n in order)
        body.append(
            f'<polyline class="trial q{shade}{best}" points="{" ".join(dots)}"><title>{escape(tip)}</title>'
        )
        body.append("</polyline>")
    return _frame(title, body, width, height, kind="wide")


def _short(value: float | str | None) -> str:
    if value is None:
        return "none"
    return number(value) if isinstance(value, int | float) and not isinstance(value, bool) else str(value)


def _unit_positions(values: Sequence[float | str | None]) -> tuple[list[float | None], tuple[str, str]]:
    """Values -> positions in [0, 1] (log scale over more than two decades, categories
    evenly), and the labels of the ends.
    """
    numbers = [_as_number(v) for v in values]
    if any(n is not None for n in numbers) and all(
        n is not None or v is None for n, v in zip(numbers, values, strict=True)
    ):
        known = [n for n in numbers if n is not None]
        low, high = min(known), max(known)
        scale = math.log if low > 0 and high / low > 100 else float
        span = (scale(high) - scale(low)) or 1.0
        spots = [None if n is None else (scale(n) - scale(low)) / span for n in numbers]
        return spots, (number(low), number(high))
    kinds = sorted({str(v) for v in values if v is not None})
    spread = max(len(kinds) - 1, 1)
    spots = [None if v is None else kinds.index(str(v)) / spread for v in values]
    return spots, (kinds[0] if kinds else "", kinds[-1] if len(kinds) > 1 else "")


def _as_number(value: float | str | None) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return None
    return float(value)
