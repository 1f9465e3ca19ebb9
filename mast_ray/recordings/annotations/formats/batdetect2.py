"""batdetect2's JSON (read only): one file per recording, `id` names it, times in seconds and hertz of the animal.

A time-expanded recording (`time_exp`) is slower than the animal: times are multiplied back to seconds of the file, and
frequencies divided.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from mast_ray.config.errors import DataError
from mast_ray.recordings.annotations.model import Annotation, Parsed


def is_batdetect2(document: Any) -> bool:
    return isinstance(document, dict) and "annotation" in document and "id" in document


def parse(document: Any, source: str) -> Parsed:
    try:
        path, expansion = str(document["id"]), float(document.get("time_exp") or 1.0)
        annotations, problems = [], []
        for number, entry in enumerate(document["annotation"], start=1):
            try:
                annotations.append(_annotation(entry, path, expansion))
            except ValueError as error:
                problems.append(f"{source}, annotation {number}: {error}")
    except (KeyError, TypeError, AttributeError) as error:
        raise DataError(
            f"{source}: broken batdetect2 JSON ({error!r}):\nexport it again, or give its CSV"
        ) from error
    return Parsed(tuple(annotations), (path,), tuple(problems))


def _annotation(entry: Mapping[str, Any], path: str, expansion: float) -> Annotation:
    begin_s, end_s = float(entry["start_time"]) * expansion, float(entry["end_time"]) * expansion
    low_hz, high_hz = float(entry["low_freq"]) / expansion, float(entry["high_freq"]) / expansion
    if not all(map(math.isfinite, (begin_s, end_s, low_hz, high_hz))) or end_s < begin_s or high_hz < low_hz:
        raise ValueError("times or frequencies that cannot be")
    score = entry.get("det_prob")
    extra = {name: str(entry[name]) for name in ("event", "individual", "class_prob") if name in entry}
    label = str(entry.get("class") or "")
    return Annotation(
        path, begin_s, end_s, low_hz, high_hz, label, None if score is None else float(score), extra
    )
