"""Pictures over dates as inline SVG: the diel heat map (hour x date) and the effort calendar (site x date).

Grey means that nothing was recorded; the palest colour means recorded, and no call.
Cells of one colour are one path, so that a year of hours stays small; the figures of each cell
ride along as JSON for the read-out.
"""

from __future__ import annotations

import json
from datetime import date, timedelta

import numpy as np
from markupsafe import Markup, escape
from numpy.typing import NDArray

from mast_ray.reporting.activity import HOUR_S, DielMap
from mast_ray.reporting.report.charts import number

NUM_SHADES = 8
MOST_COLUMNS = 400  # more dates than this are put together to weeks
LEFT, TOP, BOTTOM = 52, 8, 34


def _merge_dates(values: NDArray, days: int) -> NDArray:
    """(dates, ...) -> sums over runs of `days` dates."""
    return np.add.reduceat(values, np.arange(0, len(values), days), axis=0)


def _shades(
    rate: NDArray[np.float64], has_effort: NDArray[np.bool_]
) -> tuple[NDArray[np.int64], list[float]]:
    """Class of each cell (-1 no effort, 0 no call, 1..8 by square root of the rate)
    and the upper rate of each class.
    """
    top = float(rate[has_effort].max()) if has_effort.any() else 0.0
    shade = np.full(rate.shape, -1, np.int64)
    if top > 0:
        shade[has_effort] = np.ceil(np.sqrt(rate[has_effort] / top) * NUM_SHADES).astype(np.int64)
        shade = np.minimum(shade, NUM_SHADES)
    else:
        shade[has_effort] = 0
    return shade, [top * (i / NUM_SHADES) ** 2 for i in range(NUM_SHADES + 1)]


def _cells(shade: NDArray[np.int64], width: float, height: float) -> str:
    """(columns, rows) classes -> one path per class; row 0 is at the bottom."""
    out = []
    gap_x, gap_y = min(width * 0.12, 1.0), min(height * 0.12, 1.0)
    for value in np.unique(shade):
        columns, rows = np.nonzero(shade == value)
        name = "none" if value < 0 else f"q{value - 1}" if value else "zero"
        way = "".join(
            f"M{LEFT + c * width:.1f} {TOP + (shade.shape[1] - 1 - r) * height:.1f}h{width - gap_x:.1f}"
            f"v{height - gap_y:.1f}h-{width - gap_x:.1f}z"
            for c, r in zip(columns, rows, strict=True)
        )
        out.append(f'<path class="cell {name}" d="{way}"/>')
    return "".join(out)


def _date_ticks(first: date, num_dates: int, days: int, width: float, base: float) -> str:
    """A date under every column, or as many as do not touch."""
    columns = -(-num_dates // days)
    step = max(1, int(np.ceil(56.0 / width)))
    out = []
    for column in range(0, columns, step):
        day = first + timedelta(days=column * days)
        x = LEFT + (column + 0.5) * width
        out.append(f'<text class="tick mid" x="{x:.1f}" y="{base + 16}">{day.day} {day:%b}</text>')
        if column == 0 or (day.month <= 1 and step * days >= 20):
            out.append(f'<text class="tick mid" x="{x:.1f}" y="{base + 29}">{day.year}</text>')
    return "".join(out)


def diel_heat_map(diel: DielMap) -> Markup:
    """Calls per recorded hour for each date (across) and hour of the day
    (upwards), with sunrise and sunset.
    """
    days = 1 if len(diel.calls) <= MOST_COLUMNS else -(-len(diel.calls) // MOST_COLUMNS)
    calls, effort = _merge_dates(diel.calls, days), _merge_dates(diel.effort_s, days)
    hours = effort / HOUR_S
    rate = np.divide(calls, hours, out=np.zeros_like(hours), where=hours > 0)
    shade, steps = _shades(rate, hours > 0)
    num_columns, row_height = len(calls), 10.0
    width = min(max(660.0 / num_columns, 3.0), 72.0)
    total_width, base = LEFT + max(num_columns * width, 230) + 12, TOP + 24 * row_height
    body = [_cells(shade, width, row_height)]
    for hour in range(0, 25, 6):
        y = base - hour * row_height
        body.append(f'<text class="tick end" x="{LEFT - 7}" y="{y + 4:.1f}">{hour:02d}:00</text>')
    for name, line in (("sunrise", diel.sunrise_h), ("sunset", diel.sunset_h)):
        body.append(_sun_line(name, line, days, width, base, row_height))
    body.append(_date_ticks(diel.first_date, len(diel.calls), days, width, base))
    recorded, total = int((hours > 0).sum()), hours.size
    title = (
        f"Calls per recorded hour at {diel.site}, hour of day ({diel.clock}) by date; "
        f"{recorded} of {total} cells were recorded, the others are grey"
    )
    figures = json.dumps(
        {
            "first": diel.first_date.isoformat(),
            "days": days,
            "left": LEFT,
            "top": TOP,
            "width": round(width, 4),
            "height": row_height,
            "calls": calls.ravel().tolist(),
            "effort": np.round(hours, 6).ravel().tolist(),  # hours; a recording may last some seconds
        },
        separators=(",", ":"),
    )
    svg = (
        f'<svg class="chart calendar" data-cells="{escape(figures)}" viewBox="0 0 {total_width:.0f} {base + BOTTOM:.0f}" '
        f'width="{total_width:.0f}" role="img"><title>{escape(title)}</title>{"".join(body)}</svg>'
    )
    return Markup(svg) + _scale(steps, "calls per recorded hour", bool(diel.sunrise_h))


def _sun_line(
    name: str, hours: tuple[float | None, ...], days: int, width: float, base: float, row_height: float
) -> str:
    """A step-free line; it breaks where there is no sunrise and where it wraps around midnight."""
    runs: list[list[str]] = [[]]
    last: float | None = None
    for index, hour in enumerate(hours):
        if hour is None or (last is not None and abs(hour - last) > 12):
            runs.append([])
        if hour is not None:
            runs[-1].append(f"{LEFT + (index + 0.5) / days * width:.1f},{base - hour * row_height:.1f}")
        last = hour
    out = []
    for run in runs:
        if len(run) == 1:
            x, y = run[0].split(",")
            run = [f"{float(x) - width / 2:.1f},{y}", f"{float(x) + width / 2:.1f},{y}"]
        if run:
            out.append(
                f'<polyline class="sun {name}" points="{" ".join(run)}"><title>{name}</title></polyline>'
            )
    return "".join(out)


def _scale(steps: list[float], unit: str, has_sun: bool = False) -> Markup:
    """The legend: grey, zero, and the eight shades with the rate at the ends."""
    swatch = '<svg class="swatch" viewBox="0 0 14 14" aria-hidden="true"><rect class="cell {}" width="14" height="14"/></svg>'
    shades = "".join(swatch.format(f"q{i}") for i in range(NUM_SHADES))
    items = [
        f"<li>{swatch.format('none')}not recorded</li>",
        f"<li>{swatch.format('zero')}recorded, 0</li>",
        f'<li class="run">{shades}<span>up to {number(round(steps[-1], 2))} {escape(unit)}</span></li>',
    ]
    if has_sun:
        line = '<svg class="key" viewBox="0 0 22 10" aria-hidden="true"><line class="sun {}" x1="1" x2="21" y1="5" y2="5"/></svg>'
        items += [f"<li>{line.format(name)}{name}</li>" for name in ("sunrise", "sunset")]
    return Markup(f'<ul class="legend">{"".join(items)}</ul>')


def effort_calendar(maps: list[DielMap]) -> Markup:
    """Recorded hours per date (across) and site (one row each)."""
    first = min(m.first_date for m in maps)
    last = max(m.first_date + timedelta(days=len(m.calls) - 1) for m in maps)
    num_dates = (last - first).days + 1
    hours = np.zeros((num_dates, len(maps)))
    for row, one in enumerate(reversed(maps)):
        begin = (one.first_date - first).days
        hours[begin : begin + len(one.calls), row] = one.effort_s.sum(axis=1) / HOUR_S
    days = 1 if num_dates <= MOST_COLUMNS else -(-num_dates // MOST_COLUMNS)
    hours = _merge_dates(hours, days)
    shade, steps = _shades(hours, hours > 0)
    row_height = 18.0
    width = min(max(660.0 / len(hours), 3.0), 72.0)
    total_width, base = LEFT + 60 + max(len(hours) * width, 230), TOP + len(maps) * row_height
    body = [_cells(shade, width, row_height)]
    body.append(_date_ticks(first, num_dates, days, width, base))
    for row, one in enumerate(maps):
        y, name = TOP + (row + 0.7) * row_height, one.site or "(no site)"
        shown = name if len(name) <= 8 else name[:7] + "…"
        body.append(
            f'<text class="tick end" x="{LEFT - 7}" y="{y:.1f}">{escape(shown)}<title>{escape(name)}</title></text>'
        )
    title = f"Recorded hours per date at {len(maps)} sites; grey where nothing was recorded"
    svg = (
        f'<svg class="chart calendar" viewBox="0 0 {total_width:.0f} {base + BOTTOM:.0f}" width="{total_width:.0f}" '
        f'role="img"><title>{escape(title)}</title>{"".join(body)}</svg>'
    )
    return Markup(svg) + _scale(steps, "hours recorded")
