"""AviaNZ's `x.wav.data` (read only): a JSON array of an optional description of the file and of segments
[begin, end, low, high, labels], in seconds and hertz.

Low and high of 0 mean that no band was drawn. A label is a species with a certainty in percent; a certainty under 100 is
AviaNZ's question mark and 0 its "Don't Know". A segment with several species gives a box for each.
"""

from __future__ import annotations

import math
from typing import Any

from mast_ray.config.errors import DataError
from mast_ray.recordings.annotations.model import Annotation, Parsed, Said


def is_avianz(document: Any) -> bool:
    if not isinstance(document, list) or not document:
        return False
    segments = [entry for entry in document if isinstance(entry, list)]
    if isinstance(document[0], dict):
        return "Operator" in document[0] or "Duration" in document[0]
    return len(segments) == len(document) and all(len(entry) == 5 for entry in segments)


def parse(document: Any, source: str) -> Parsed:
    annotations, problems = [], []
    for number, entry in enumerate(document, start=1):
        if not isinstance(entry, list) or _is_old_header(entry):
            continue
        try:
            annotations += _annotations(entry)
        except (ValueError, TypeError, KeyError, IndexError) as error:
            problems.append(f"{source}, segment {number}: {error}")
    if problems and not annotations:
        raise DataError(
            f"{source}: broken AviaNZ data ({problems[0]}):\nsave the annotations in AviaNZ again"
        )
    return Parsed(tuple(annotations), ("",), tuple(problems))


def _is_old_header(entry: list[Any]) -> bool:
    """Before version 2 the first segment described the file: it begins at -1."""
    return bool(entry) and entry[0] == -1


def _annotations(entry: list[Any]) -> list[Annotation]:
    begin_s, end_s, low_hz, high_hz = (float(value) for value in entry[:4])
    if not all(map(math.isfinite, (begin_s, end_s, low_hz, high_hz))) or end_s < begin_s:
        raise ValueError("times or frequencies that cannot be")
    has_band = high_hz > 0
    low, high = (low_hz, high_hz) if has_band else (None, None)
    found = []
    for label in entry[4] or [{"species": ""}]:
        if isinstance(label, str):  # before version 2: a name, with a question mark where it is doubtful
            name, said = label.rstrip("?"), "uncertain" if label.endswith("?") else "call"
        else:
            name, said = str(label["species"]), _said(label)
        found.append(Annotation("", begin_s, end_s, low, high, name, said=said))  # type: ignore[arg-type]
    return found


def _said(label: dict[str, Any]) -> Said:
    return "call" if float(label.get("certainty", 100)) >= 100 else "uncertain"
