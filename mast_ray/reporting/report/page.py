"""One self-contained HTML file from ReportData: opens from disk, asks the network for
nothing, treats all text as text.

jinja2 escapes every value; the content-security policy lets only this very script and this very style
sheet run (by their sha256), and pictures and sounds only from data: URIs. No style attributes are
used, so the policy need not allow them.
"""

from __future__ import annotations

import base64
import functools
import hashlib
import json
import math

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from mast_ray.reporting.report.calendars import diel_heat_map, effort_calendar
from mast_ray.reporting.report.charts import Series, histogram, line_chart, parallel_coordinates
from mast_ray.reporting.report.contents import Box, Cell, Example, Interval, ReportData, ResultTable
from mast_ray.spectrogram.grid import NUM_BINS, hertz_to_bin

KIND_NAMES = {
    "miss": "missed call",
    "false_alarm": "false alarm",
    "hit": "found call",
    "detection": "detection",
}
KHZ_TICKS = (0.2, 0.5, 1.0, 2.0, 4.0, 8.0)


def format_number(value: float) -> str:
    """Three decimals for scores and shares, fewer for large figures."""
    size = abs(value)
    return f"{value:.3f}" if size < 10 else f"{value:.1f}" if size < 100 else f"{value:,.0f}"


def format_cell(cell: Cell) -> Markup | str:
    """A cell as text: an interval shows its limits under the value, a missing value is a dash."""
    if isinstance(cell, Interval):
        if cell.value is None or not math.isfinite(cell.value):
            return "–"
        if cell.low is None or cell.high is None or not math.isfinite(cell.low + cell.high):
            return format_number(cell.value)
        limits = f"{format_number(cell.low)} – {format_number(cell.high)}"
        return Markup(f"{format_number(cell.value)}<small>{limits}</small>")
    if cell is None or (isinstance(cell, float) and not math.isfinite(cell)):
        return "–"
    if isinstance(cell, float):
        return format_number(cell)
    return f"{cell:,}" if isinstance(cell, int) and not isinstance(cell, bool) else str(cell)


def numeric_columns(table: ResultTable) -> list[bool]:
    """Which columns are set flush right: those that hold a figure and no text."""
    columns = [[row[i] for row in table.rows] for i in range(len(table.columns))]
    return [
        any(isinstance(c, int | float | Interval) for c in column)
        and not any(isinstance(c, str) for c in column)
        for column in columns
    ]


def percent(value: float) -> str:
    return f"{100 * value:.2f}%"


def place_box(example: Example, box: Box) -> dict[str, str]:
    """Position of a box inside its picture, in percent of width and height, clipped to the window."""
    length = example.window_end_s - example.window_begin_s
    left = min(max((box.begin_s - example.window_begin_s) / length, 0.0), 1.0)
    right = min(max((box.end_s - example.window_begin_s) / length, 0.0), 1.0)
    low, high = (min(max(float(hertz_to_bin(hz)) / NUM_BINS, 0.0), 1.0) for hz in (box.low_hz, box.high_hz))
    return {
        "x": percent(left),
        "y": percent(1 - high),
        "width": percent(max(right - left, 0.004)),
        "height": percent(max(high - low, 0.012)),
    }


def khz_ticks() -> list[tuple[str, str]]:
    """(position from the top, text) of the kilohertz axis; the picture is linear in mel bins."""
    spots = [(1 - float(hertz_to_bin(khz * 1000)) / NUM_BINS, f"{khz:g}") for khz in KHZ_TICKS]
    return [(percent(min(max(spot, 0.0), 1.0)), text) for spot, text in spots]


def mel_ticks() -> list[tuple[str, str]]:
    return [(percent(1 - b / NUM_BINS), str(b)) for b in (0, 32, 64, 96, 128)]


def second_ticks(example: Example) -> list[tuple[str, str]]:
    """(position, text) of whole seconds of the recording inside the window."""
    length = example.window_end_s - example.window_begin_s
    step = 1 if length <= 8 else 2 if length <= 16 else 5
    first = math.ceil(example.window_begin_s / step) * step
    ticks = range(int(first), math.floor(example.window_end_s) + 1, step)
    return [(percent((t - example.window_begin_s) / length), f"{t}") for t in ticks]


def box_name(box: Box) -> str:
    """What a screen reader and the tooltip say about a box."""
    score = "" if box.score is None else f", score {box.score:.2f}"
    label = f", {box.label}" if box.label else ""
    what = {"miss": "missed", "hit": "found", "false_alarm": "false alarm", "unknown": ""}[box.outcome]
    place = f"{box.begin_s:.2f} to {box.end_s:.2f} s, {box.low_hz / 1000:.2f} to {box.high_hz / 1000:.2f} kHz"
    return " ".join(filter(None, [box.kind, what])) + f", {place}{score}{label}"


def json_block(value: object) -> Markup:
    """JSON that is safe inside a <script type="application/json"> element."""
    text = json.dumps(value, separators=(",", ":"), ensure_ascii=True, allow_nan=False)
    return Markup(text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026"))


def _charts(data: ReportData) -> dict[str, list[tuple[str, Markup]]]:
    """Section name -> (caption, picture) pairs."""
    out: dict[str, list[tuple[str, Markup]]] = {
        "curves": [],
        "rounds": [],
        "budget": [],
        "trials": [],
        "diel": [],
    }
    if data.curves:
        pr = [Series(_with_ap(c.name, c.average_precision), c.recall, c.precision) for c in data.curves]
        unit = (0.0, 1.0)
        out["curves"].append(
            (
                "Precision over recall",
                line_chart("Precision over recall", pr, "recall", "precision", unit, unit),
            )
        )
        f1 = [Series(c.name, c.thresholds, c.f1) for c in data.curves]
        picture = line_chart(
            "F1 over score threshold", f1, "score threshold", "F1", unit, unit, data.threshold
        )
        out["curves"].append(("F1 over score threshold; the dashed line is the threshold in use", picture))
    if data.reliability:
        lines = [Series(r.name, r.stated, r.observed) for r in data.reliability]
        title = "Share of true detections over stated probability"
        picture = line_chart(
            title, lines, "stated probability", "share true", (0, 1), (0, 1), diagonal=True, drawn="both"
        )
        errors = [
            f"{r.name} {r.expected_error:.3f}" for r in data.reliability if r.expected_error is not None
        ]
        note = f" Expected calibration error: {', '.join(errors)}." if errors else ""
        out["curves"].append((f"Calibration: on the diagonal, a score means what it says.{note}", picture))
    if data.overlap:
        title = "Overlap (IoU) of found calls with the truth"
        out["curves"].append(
            (title, histogram(title, data.overlap.edges, data.overlap.counts, "IoU", "found calls"))
        )
    if data.round_curves:
        title = "Self-training round by round"
        picture = line_chart(title, data.round_curves, "round", "value", None, (0, 1), drawn="both")
        out["rounds"].append((title, picture))
    if data.label_budget:
        title = f"{data.label_budget_metric} over the number of annotated chunks"
        picture = line_chart(
            title, data.label_budget, "annotated chunks", data.label_budget_metric, drawn="both"
        )
        out["budget"].append((f"{title}; bands are 95 % intervals", picture))
    if data.trials:
        trials = data.trials
        title = f"{len(trials.rows)} trials; the stronger the colour the better, the thick line is the best"
        out["trials"].append(
            (title, parallel_coordinates(title, trials.names, trials.rows, trials.objective))
        )
        if trials.threshold_name:
            out["trials"].append(_objective_over_threshold(data))
    if data.diel:
        out["diel"] = [(m.site or "(no site)", diel_heat_map(m)) for m in data.diel]
    return out


def _with_ap(name: str, ap: float | None) -> str:
    return name if ap is None else f"{name} (AP {ap:.3f})"


def _objective_over_threshold(data: ReportData) -> tuple[str, Markup]:
    trials = data.trials
    assert trials is not None and trials.threshold_name is not None
    at, value = trials.names.index(trials.threshold_name), trials.names.index(trials.objective)
    pairs = sorted(
        (float(row[at]), float(row[value]))  # type: ignore[arg-type]
        for row in trials.rows
        if isinstance(row[at], int | float) and isinstance(row[value], int | float)
    )
    line = Series(trials.objective, tuple(p[0] for p in pairs), tuple(p[1] for p in pairs))
    title = f"{trials.objective} over {trials.threshold_name}"
    return title, line_chart(title, [line], trials.threshold_name, trials.objective, drawn="dots")


def _slider(data: ReportData) -> dict[str, object]:
    """What the threshold slider needs: the histogram, hours for a rate, and the
    first curve for its figures.
    """
    if data.scores is None:
        return {}
    slider: dict[str, object] = {"edges": list(data.scores.edges), "counts": list(data.scores.counts)}
    slider["hours"] = data.analysed_hours_of_scores
    if data.curves:
        one = data.curves[0]
        keep = [
            i
            for i, v in enumerate(zip(one.precision, one.recall, one.f1, strict=True))
            if all(map(math.isfinite, v))
        ]
        slider["curve"] = {
            "name": one.name,
            **{
                k: [round(getattr(one, k)[i], 4) for i in keep]
                for k in ("thresholds", "precision", "recall", "f1")
            },
        }
    return slider


def _digest(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


@functools.cache
def _environment() -> tuple[Environment, str, str]:
    """The template's environment, the style sheet and the script."""
    loader = PackageLoader("mast_ray.reporting.report.page")
    environment = Environment(
        loader=loader, autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters["cell"] = format_cell
    style, script = (loader.get_source(environment, name)[0] for name in ("report.css", "report.js"))
    return environment, style, script


def render_report(data: ReportData) -> str:
    """The report as one HTML document."""
    environment, style, script = _environment()
    policy = (
        f"default-src 'none'; script-src '{_digest(script)}'; style-src '{_digest(style)}'; img-src data:; "
        "media-src data:; base-uri 'none'; form-action 'none'"
    )
    histogram_picture = None
    if data.scores is not None:
        title = "Detections by score"
        mark = data.threshold if data.threshold is not None else data.scores.edges[0]
        histogram_picture = histogram(
            title, data.scores.edges, data.scores.counts, "score", "detections", mark, "scores"
        )
    return environment.get_template("report.html.j2").render(
        data=data,
        policy=policy,
        style=Markup(style),
        script=Markup(script),
        charts=_charts(data),
        score_picture=histogram_picture,
        calendar=effort_calendar(list(data.diel[1:]) or list(data.diel)) if data.diel else None,
        slider=json_block(_slider(data)),
        report_key=hashlib.sha256(repr((data.title, data.facts, data.made_at)).encode()).hexdigest()[:16],
        kind_names=KIND_NAMES,
        numeric_columns=numeric_columns,
        place_box=place_box,
        box_name=box_name,
        khz_ticks=khz_ticks(),
        mel_ticks=mel_ticks(),
        second_ticks=second_ticks,
    )


def report_file(data: ReportData) -> bytes:
    """The report as a file holds it; what is no Unicode in a name becomes a question mark."""
    return render_report(data).encode("utf-8", errors="replace")
