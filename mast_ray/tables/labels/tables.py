"""Chosen labels as tables of a prepared archive: labels.parquet (calls) and ignored.parquet (neither call nor
background), by the recordings that could be read.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import pyarrow as pa
import pyarrow.compute as pc

from mast_ray.config.tree import LabelsConfig
from mast_ray.recordings.annotations.model import Annotation
from mast_ray.spectrogram.grid import FRAME_SHIFT_S, HIGH_HZ, LOW_HZ
from mast_ray.tables.labels.choice import ChosenLabels
from mast_ray.tables.labels.cleaning import LabelNote, note_of
from mast_ray.tables.labels.spans import unheard_parts
from mast_ray.tables.schemas import IGNORED, LABELS


def inside_recordings(
    annotations: Iterable[Annotation], recordings: pa.Table
) -> tuple[list[Annotation], list[LabelNote]]:
    """Boxes of readable recordings, cut at their end; and what was left out: of rejected recordings, and beyond
    the end of theirs.
    """
    paths, durations_s = (recordings.column(name).to_pylist() for name in ("path", "duration_s"))
    duration_of = dict(zip(paths, durations_s, strict=True))
    kept, orphans, beyond, cut = [], [], [], []
    for annotation in annotations:
        duration_s = duration_of.get(annotation.path)
        if duration_s is None:
            orphans.append(annotation)
        elif annotation.begin_s >= duration_s:
            beyond.append(annotation)
        elif annotation.end_s > duration_s:
            if annotation.end_s > duration_s + ROUNDED_S:
                cut.append(annotation)
            kept.append(replace(annotation, end_s=duration_s))
        else:
            kept.append(annotation)
    return kept, [
        *note_of("belong to rejected recordings and are left out", orphans),
        *[
            replace(note, example=f"{a.path}: a box at {a.begin_s:g} s of {duration_of[a.path]:g} s")
            for a, note in zip(beyond[:1], note_of(BEYOND_THE_END, beyond), strict=True)
        ],
        *note_of("end after their recording and are cut there", cut),
    ]


def of_other_recordings(annotations: Iterable[Annotation], recordings: pa.Table) -> list[Annotation]:
    """Boxes after the end of recordings that have no box in them: what their table says is of another recording, and nothing
    is known about this one.
    """
    annotations = list(annotations)
    known = set(recordings.column("path").to_pylist())
    inside = {a.path for a in inside_recordings(annotations, recordings)[0]}
    return [a for a in annotations if a.path in known - inside]


BEYOND_THE_END = "begin after the end of their recording and are left out: is the table of another file, or its time that of several?"
ROUNDED_S = FRAME_SHIFT_S  # a box drawn to the very end of its recording


def labels_table(
    annotations: Iterable[Annotation], recordings: pa.Table, source: str
) -> tuple[pa.Table, list[LabelNote]]:
    """Calls of readable recordings, sorted, and what was left out."""
    kept, notes = inside_recordings(annotations, recordings)
    rows = {
        (a.path, a.begin_s, a.end_s, a.low_hz, a.high_hz, a.label, 1.0 if a.score is None else float(a.score))
        for a in kept
    }
    return _by_recording([(*row, source) for row in rows], recordings, LABELS), notes


def ignored_table(chosen: ChosenLabels, recordings: pa.Table, knobs: LabelsConfig) -> pa.Table:
    """Regions that are neither call nor background, with the reason."""
    kept, _ = inside_recordings(chosen.uncertain, recordings)
    rows: set[tuple] = {(a.path, a.begin_s, a.end_s, a.low_hz, a.high_hz, a.label, "uncertain") for a in kept}
    paths, durations_s = (recordings.column(name).to_pylist() for name in ("path", "duration_s"))
    parts = unheard_parts(chosen.calls, dict(zip(paths, durations_s, strict=True)), knobs)
    rows |= {
        (path, begin_s, end_s, None, None, "", "not_gone_through")
        for path, gaps in parts.items()
        for begin_s, end_s in gaps
    }
    return _by_recording(rows, recordings, IGNORED)


def count_out_of_band(labels: pa.Table, recordings: pa.Table) -> tuple[int, str]:
    """How many boxes lie wholly outside what the spectrogram shows, and one of them; they stay
    in the table, and train nothing.
    """
    low_hz, high_hz = labels.column("low_hz"), labels.column("high_hz")
    outside = pc.or_(pc.greater_equal(low_hz, HIGH_HZ), pc.less_equal(high_hz, LOW_HZ))
    found = labels.filter(pc.fill_null(outside, False))
    if not len(found):
        return 0, ""
    first = found.slice(0, 1).to_pylist()[0]
    row = pc.index(recordings.column("recording_id"), first["recording_id"]).as_py()
    path = recordings.column("path")[row].as_py()
    return len(found), f"{path}: {first['low_hz']:g} to {first['high_hz']:g} Hz"


def _by_recording(rows: Iterable[tuple], recordings: pa.Table, schema: pa.Schema) -> pa.Table:
    """Rows that begin with a path, in the order of the recordings and of time, with the recording's id instead."""
    paths, ids = (recordings.column(name).to_pylist() for name in ("path", "recording_id"))
    place = {path: number for number, path in enumerate(paths)}
    ordered = sorted(rows, key=lambda row: (place[row[0]], *(-1.0 if v is None else v for v in row[1:])))
    columns = list(zip(*((ids[place[row[0]]], *row[1:]) for row in ordered), strict=True)) or [()] * len(
        schema
    )
    arrays = [pa.array(column, field.type) for column, field in zip(columns, schema, strict=True)]
    return pa.Table.from_arrays(arrays, schema=schema)
