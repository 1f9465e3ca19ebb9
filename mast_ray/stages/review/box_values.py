"""Corners, names and verdicts as they are kept and as they travel to the page."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import numpy as np

from mast_ray.config.errors import DataError
from mast_ray.evaluation.review.corrections import Action
from mast_ray.evaluation.review.review_state import ReviewedBox
from mast_ray.spectrogram.grid import HIGH_HZ, LOW_HZ

MOST_LETTERS = 200  # of a name
SHORTEST_S = 0.01
NARROWEST_HZ = 20.0


def said_json(box: ReviewedBox | None) -> dict[str, Any]:
    """What a reviewer has said about a box, where it differs from the detector's word."""
    if box is None:
        return {}
    values = asdict(box)
    said = {name: values[name] for name in ("begin_s", "end_s", "low_hz", "high_hz", "label", "verdict")}
    if box.low_hz is None:  # an imported box that only knows its time is shown over the whole band
        said |= {"low_hz": LOW_HZ, "high_hz": HIGH_HZ}
    return said


def is_same_place(box: ReviewedBox, action: Action) -> bool:
    """Whether a box lies where an action puts one, in time and in frequency."""
    apart_hz = (abs((one or 0.0) - (other or 0.0)) for one, other in
                ((box.low_hz, action.low_hz), (box.high_hz, action.high_hz)))  # fmt: skip
    apart_s = abs(box.begin_s - action.begin_s) + abs(box.end_s - action.end_s)
    return apart_s < SHORTEST_S and max(apart_hz) < NARROWEST_HZ


def clean_name(text: str) -> str:
    """A name as it is kept: one line, without spaces around it."""
    name = " ".join(text.split())
    if len(name) > MOST_LETTERS or not name.isprintable():
        raise DataError(f"a name has at most {MOST_LETTERS} letters and no control characters")
    return name


def placed_inside(
    corners: tuple[float, float, float, float], duration_s: float
) -> tuple[float, float, float, float]:
    """Corners in order, inside the recording and the band that is shown; not thinner than can be seen."""
    if not all(np.isfinite(corners)):
        raise DataError("a box with corners that are no numbers")
    begin_s, end_s = sorted((corners[0], corners[2]))
    low_hz, high_hz = sorted((corners[1], corners[3]))
    begin_s = min(max(begin_s, 0.0), max(duration_s - SHORTEST_S, 0.0))
    end_s = max(min(end_s, duration_s), begin_s + SHORTEST_S)
    low_hz = min(max(low_hz, 0.0), HIGH_HZ - NARROWEST_HZ)
    high_hz = max(min(high_hz, HIGH_HZ), low_hz + NARROWEST_HZ)
    return round(begin_s, 4), round(low_hz, 2), round(end_s, 4), round(high_hz, 2)
