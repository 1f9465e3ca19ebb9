"""Sonic Visualiser's layers (read only): .svl files, and the text it exports without a header.

In .svl a point has a frame, a duration in frames and, in a layer of boxes, a lowest frequency and an extent in hertz. In
text, a region is `time,value,duration,label` and a box `begin,end,low,high,label`. A value is no frequency. Numbers and a
label alone (`0.52,0.31,wren`) are read as begin and duration where the second is smaller than the first in some row;
else nobody can tell a duration from an end.
"""

from __future__ import annotations

import html
import re
from collections.abc import Mapping, Sequence

from mast_ray.config.errors import DataError
from mast_ray.recordings.annotations.model import Annotation, Parsed
from mast_ray.recordings.annotations.tabular import first_line, lines_of, number, restored

_POINT = re.compile(r"<point\b([^>]*?)/?>")
_MODEL = re.compile(r"<model\b([^>]*?)/?>")
_ATTRIBUTE = re.compile(r"(\w+)\s*=\s*\"([^\"]*)\"")
_LEADING_NUMBERS = re.compile(r"^\s*-?\d[\d.eE+-]*\s*,\s*-?\d[\d.eE+-]*\s*(,|$)")


def is_layer(text: str) -> bool:
    return "<sonic-visualiser>" in text[:2000].lower() or "<sonic-visualiser " in text[:2000].lower()


def is_headerless(text: str) -> bool:
    return _LEADING_NUMBERS.match(first_line(text)) is not None


def parse_layer(text: str, source: str) -> Parsed:
    rates = [_attributes(model).get("sampleRate") for model in _MODEL.findall(text)]
    rate_hz = next((float(rate) for rate in rates if rate and float(rate) > 0), None)
    if rate_hz is None:
        raise DataError(
            f"{source}: the layer does not say its sampling rate:\nexport it as text (CSV) instead"
        )
    annotations, problems = [], []
    for count, point in enumerate(_POINT.findall(text), start=1):
        try:
            annotations.append(_of_point(_attributes(point), rate_hz))
        except (ValueError, KeyError) as error:
            problems.append(f"{source}, point {count}: {error}")
    return Parsed(tuple(annotations), ("",), tuple(problems))


def _of_point(values: Mapping[str, str], rate_hz: float) -> Annotation:
    begin_s = float(values["frame"]) / rate_hz
    end_s = begin_s + float(values.get("duration", 0)) / rate_hz
    low_hz = high_hz = None
    if "extent" in values:
        low_hz = float(values.get("frequency", values.get("value", "0")))
        high_hz = low_hz + float(values["extent"])
    return Annotation("", begin_s, end_s, low_hz, high_hz, html.unescape(values.get("label", "")))


def _attributes(text: str) -> dict[str, str]:
    return dict(_ATTRIBUTE.findall(text))


def parse_headerless(text: str, source: str) -> Parsed:
    rows, problems = [], []
    for line, cells in enumerate((row.split(",") for row in lines_of(text)), start=1):
        if not any(cell.strip() for cell in cells):
            continue
        try:
            rows.append(_numbers_and_label(cells))
        except ValueError as error:
            problems.append(f"{source}, line {line}: {error}")
    count = min((len(numbers) for numbers, _ in rows), default=0)
    values = [(numbers[:count], label) for numbers, label in rows]
    annotations = [Annotation("", *_box(numbers, values, source), label) for numbers, label in values]
    return Parsed(tuple(annotations), ("",), tuple(problems))


def _numbers_and_label(cells: Sequence[str]) -> tuple[list[float], str]:
    """At most four leading numbers, and what follows them."""
    numbers: list[float] = []
    for cell in cells[:4]:
        try:
            value = number(cell)
        except ValueError:
            break
        if value is None:
            break
        numbers.append(value)
    if len(numbers) < 2:
        raise ValueError("does not begin with two numbers")
    label = ",".join(cells[len(numbers) :]).strip().strip('"')
    return numbers, restored(label)


def _box(
    numbers: Sequence[float], rows: Sequence[tuple[Sequence[float], str]], source: str
) -> tuple[float, float, float | None, float | None]:
    columns = list(zip(*(row for row, _ in rows), strict=True))
    match len(numbers):
        case 4 if all(a <= b for a, b in zip(columns[0], columns[1], strict=True)):
            return numbers[0], numbers[1], numbers[2], numbers[3]
        case 3:  # time, value, duration
            return numbers[0], numbers[0] + numbers[2], None, None
        case 2 if any(second < first for first, second in zip(*columns, strict=True)):
            return numbers[0], numbers[0] + numbers[1], None, None
    raise DataError(
        f"{source}: numbers without a header: is the second an end or a duration?\n"
        "give it a first line such as begin_s,end_s,label or begin_s,duration_s,label"
    )
