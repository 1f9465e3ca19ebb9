"""Boxes that cannot be, and the same box twice: what becomes of them before anything is learnt or scored.

Labels come from several tables at once: per recording and pooled, exported again by another program, rounded to
four decimals. Two boxes of a recording are the same when each side agrees within a frame and a bin. Everything
that is left out, cut or merged is counted, with an example.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from mast_ray.recordings.annotations.model import Annotation
from mast_ray.spectrogram.grid import boxes_on_open_grid

SAME_FRAMES, SAME_BINS = 1.0, 1.0


@dataclass(frozen=True)
class LabelNote:
    """What happened to some boxes, for people: `3 boxes have no length and are left out (e.g. a.wav at 1.5 s)`."""

    count: int
    what: str
    example: str

    def __str__(self) -> str:
        return f"{self.count:,} boxes {self.what} (e.g. {self.example})"


def place_of(annotation: Annotation) -> str:
    """Where a box lies, as a person would look for it."""
    text = f"{annotation.path} at {annotation.begin_s:g} to {annotation.end_s:g} s"
    if annotation.low_hz is None or annotation.high_hz is None:
        return text
    return f"{text}, {annotation.low_hz:g} to {annotation.high_hz:g} Hz"


def note_of(what: str, concerned: Sequence[Annotation]) -> list[LabelNote]:
    """One note, or none when nothing is concerned."""
    return [LabelNote(len(concerned), what, place_of(concerned[0]))] if concerned else []


def possible_boxes(annotations: Iterable[Annotation]) -> tuple[list[Annotation], list[LabelNote]]:
    """Boxes with a length and a height that lie in their recording; those that begin before it are cut."""
    kept, cut, before, no_length, no_height = [], [], [], [], []
    for annotation in annotations:
        if annotation.end_s <= annotation.begin_s:
            no_length.append(annotation)
        elif annotation.end_s <= 0:
            before.append(annotation)
        elif (
            annotation.low_hz is not None
            and annotation.high_hz is not None
            and annotation.high_hz <= annotation.low_hz
        ):
            no_height.append(annotation)
        elif annotation.begin_s < 0:
            cut.append(annotation)
            kept.append(replace(annotation, begin_s=0.0))
        else:
            kept.append(annotation)
    return kept, [
        *note_of("have no length and are left out", no_length),
        *note_of("have no height and are left out", no_height),
        *note_of("end before their recording begins and are left out", before),
        *note_of("begin before their recording and are cut there", cut),
    ]


def single_boxes(annotations: Sequence[Annotation]) -> tuple[list[Annotation], list[LabelNote]]:
    """Every box once, in the order given; of the same box twice the one with a label, else the first, is kept. Of two
    names it has the first.
    """
    sides = _sides(annotations).tolist()
    order = sorted(range(len(annotations)), key=lambda row: (annotations[row].path, sides[row][0], row))
    same_as: dict[int, int] = {}  # row -> row of the box that stands for it
    standing: list[int] = []  # boxes of the recording that begin within a frame of the current one
    path = ""
    for row in order:
        if annotations[row].path != path:
            path, standing = annotations[row].path, []
        standing = [other for other in standing if sides[row][0] - sides[other][0] <= SAME_FRAMES]
        twin = next((other for other in standing if _is_same(sides[row], sides[other])), None)
        if twin is None:
            standing.append(row)
        else:
            same_as[row] = twin
    merged = [annotations[row] for row in order if row in same_as]
    label_of: dict[int, str] = {}
    renamed: list[str] = []
    for row, twin in same_as.items():
        first = annotations[twin].label or label_of.setdefault(twin, annotations[row].label)
        if annotations[row].label and annotations[row].label.strip().casefold() != first.strip().casefold():
            renamed.append(f"{place_of(annotations[row])}: {first}, not {annotations[row].label}")
    kept = [
        replace(a, label=label_of[row]) if not a.label and row in label_of else a
        for row, a in enumerate(annotations)
        if row not in same_as
    ]
    notes = note_of("stand twice (same place within a frame and a bin) and are merged", merged)
    if renamed:
        what = "that stand twice have two names, of which the first is kept: take the row away that is wrong"
        notes.append(LabelNote(len(renamed), what, renamed[0]))
    return kept, notes


def _sides(annotations: Sequence[Annotation]) -> NDArray[np.float64]:
    """(N, 4) begin, low, end, high in frames and bins, beyond 8 kHz too; NaN for the band of a label in time."""
    nan = float("nan")
    columns = [
        [a.begin_s for a in annotations],
        [a.end_s for a in annotations],
        [nan if a.low_hz is None else a.low_hz for a in annotations],
        [nan if a.high_hz is None else a.high_hz for a in annotations],
    ]
    return boxes_on_open_grid(*(np.array(column, np.float64) for column in columns))


def _is_same(first: Sequence[float], second: Sequence[float]) -> bool:
    if abs(first[0] - second[0]) > SAME_FRAMES or abs(first[2] - second[2]) > SAME_FRAMES:
        return False
    low, high = abs(first[1] - second[1]), abs(first[3] - second[3])  # NaN where one of them has no band
    both_without_band = math.isnan(first[1]) and math.isnan(second[1])
    return both_without_band or (low <= SAME_BINS and high <= SAME_BINS)
