"""Audacity label files: `begin, end, label` by tabs, and a second line `\\\\, low, high` for labels with a
band. One file per recording.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace

from mast_ray.recordings.annotations.model import Annotation, Parsed
from mast_ray.recordings.annotations.tabular import (
    defused,
    first_line,
    in_one_line,
    lines_of,
    number,
    restored,
)

_LABEL_LINE = re.compile(r"^-?[\d.,]+\t-?[\d.,]+(\t|$)")


def is_audacity(text: str) -> bool:
    first = first_line(text)
    return not first or _LABEL_LINE.match(first) is not None


def parse(text: str, source: str, columns: Mapping[str, str]) -> Parsed:
    annotations: list[Annotation] = []
    problems = []
    is_label_kept = False  # the last one: a band belongs to the label above it, and to no other
    for line_number, line in enumerate(lines_of(text), start=1):
        cells = line.split("\t")
        try:
            if not line.strip():
                continue
            if cells[0] == "\\":
                low_hz, high_hz = number(cells[1]), number(cells[2])
                # Audacity writes -1 for a bound that was not set.
                is_band = low_hz is not None and high_hz is not None and 0 <= low_hz <= high_hz
                if is_band and is_label_kept:
                    annotations[-1] = replace(annotations[-1], low_hz=low_hz, high_hz=high_hz)
                continue
            is_label_kept = False
            begin_s, end_s = number(cells[0]), number(cells[1])
            if begin_s is None or end_s is None or end_s < begin_s:
                raise ValueError("begin or end time is missing or in the wrong order")
            label, score = _label_and_score(cells[2:])
            annotations.append(Annotation("", begin_s, end_s, label=label, score=score))
            is_label_kept = True
        except (ValueError, IndexError) as error:
            problems.append(f"{source}, line {line_number}: {error}")
    return Parsed(tuple(annotations), ("",), tuple(problems))


def _label_and_score(cells: Sequence[str]) -> tuple[str, float | None]:
    """BirdNET writes its confidence as a fourth column."""
    if len(cells) == 2 and re.fullmatch(r"[01]?\.\d+|[01]", cells[1].strip()):
        return restored(cells[0]), float(cells[1])
    return restored("\t".join(cells)), None


def write(annotations: Sequence[Annotation]) -> str:
    """Labels of one recording, in order of time; scores and other columns have no place in this format."""
    lines = []
    for annotation in sorted(annotations, key=lambda a: (a.begin_s, a.end_s)):
        lines.append(
            f"{annotation.begin_s:.6f}\t{annotation.end_s:.6f}\t{in_one_line(defused(annotation.label))}\n"
        )
        if annotation.low_hz is not None and annotation.high_hz is not None:
            lines.append(f"\\\t{annotation.low_hz:.6f}\t{annotation.high_hz:.6f}\n")
    return "".join(lines)
