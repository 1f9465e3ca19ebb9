"""Corrections as Raven tables or AOEF and back, so that nobody is forced into the page.

OUT/tables/                   calls: a Raven table per recording, or calls.aoef.json; `mast prepare --annotations` reads it
OUT/tables/false_positives/   what was rejected, in the same format: every reader knows by the folder that it is no call
OUT/listened.csv              what was looked at (`mast prepare --listened`): elsewhere nothing is known

A column (a tag) `Detection` names the detection a box came from: a row that keeps it and has other corners is a box
that was moved, a row without it is a box that was drawn.
"""

from __future__ import annotations

import posixpath
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np

from mast_ray.config.errors import DataError
from mast_ray.config.tree import LabelsConfig
from mast_ray.evaluation.figure_tables import csv_bytes
from mast_ray.evaluation.naming.names import UNKNOWN
from mast_ray.evaluation.review.corrections import Action
from mast_ray.evaluation.review.review_state import (
    AgreedBox,
    ReviewState,
    agreed_boxes,
    looked_at,
    name_notes,
)
from mast_ray.evaluation.review.rounds import last_words
from mast_ray.recordings.annotations.model import (
    Annotation,
    AnnotationSet,
    AudioFacts,
    Span,
    least_facts,
    merge_annotations,
)
from mast_ray.recordings.annotations.paths import marks_no_calls
from mast_ray.recordings.annotations.reading import ANNOTATION_SUFFIXES, read_annotations, read_listened
from mast_ray.recordings.annotations.writing import files_to_write, write_annotations
from mast_ray.reporting.exports.rows import detection_id
from mast_ray.reporting.exports.writing import DEFAULT_LABEL
from mast_ray.spectrogram.grid import HIGH_HZ
from mast_ray.stages.review.found_boxes import FoundBoxes
from mast_ray.storage.storage import open_storage
from mast_ray.tables.labels.choice import is_no_animal
from mast_ray.tables.labels.cleaning import possible_boxes, single_boxes

ExchangeFormat = Literal["raven", "aoef"]
TABLES, REJECTED, LISTENED = "tables", "false_positives", "listened.csv"
SAME_S, SAME_HZ = 2e-3, 1.0  # tables are written with fewer digits
SEEN_RATE_HZ = int(2 * HIGH_HZ)  # of what was reviewed


class Exported(NamedTuple):
    files: tuple[Path, ...]
    num_calls: int
    num_rejected: int
    num_disputed: int  # left out
    num_looked_at: int  # recordings with stretches that were gone through
    name_notes: tuple[str, ...] = ()  # on calls with several names


def export_corrections(
    states: Mapping[str, ReviewState],
    found: FoundBoxes,
    out: Path,
    format: ExchangeFormat,
    rounds: Sequence[str] = (),
) -> Exported:
    """Write what reviewers agree on, if there is anything; as many for as against is nobody's word and left out.
    `rounds`: when earlier rounds of learning ended; of a place that several rounds judged, the last one's word is written.
    """
    agreed = last_words(agreed_boxes(states), rounds)
    kept = [one for one in agreed if not one.is_disputed and one.box.path in found.row_of_path]
    calls = [_annotation(one) for one in kept if one.box.verdict == "right"]
    rejected = [_annotation(one) for one in kept if one.box.verdict == "wrong"]
    looked = {
        found.recordings[row].path: spans
        for row, key in enumerate(r.recording_id for r in found.recordings)
        if (spans := looked_at(states).get(key))
    }
    # what was imported may lie above what the page shows: nothing is cut
    seen = {r.path: AudioFacts(r.duration_s, SEEN_RATE_HZ) for r in found.recordings}
    least = least_facts([*calls, *rejected], list(seen))
    facts = {
        path: replace(one, sample_rate_hz=max(one.sample_rate_hz, least[path].sample_rate_hz))
        for path, one in seen.items()
    }
    num_disputed = sum(one.is_disputed for one in agreed)
    if not (calls or rejected or looked):
        return Exported((), 0, 0, num_disputed, 0)
    parts = [
        part
        for part in (
            _part(calls, looked, out / TABLES, "calls", format),
            _part(rejected, {}, out / TABLES / REJECTED, "rejected", format),
        )
        if part is not None
    ]
    _refuse_leftovers(out / TABLES, [file for part in parts for file in files_to_write(*part, format)])
    files = [file for part in parts for file in write_annotations(*part, format, facts=facts)]
    rows = [(path, span.begin_s, span.end_s) for path, spans in looked.items() for span in spans]
    open_storage(out).write_atomic(LISTENED, csv_bytes(("file", "begin_s", "end_s"), rows))
    notes = tuple(name_notes(kept))
    return Exported((*files, out / LISTENED), len(calls), len(rejected), num_disputed, len(looked), notes)


def _refuse_leftovers(tables: Path, files: Iterable[Path]) -> None:
    """A table of an earlier export that this one does not write would be read beside it: calls that were rejected since."""
    there = {path for path in tables.rglob("*") if path.name.endswith(ANNOTATION_SUFFIXES)}
    if left := sorted(there - set(files)):
        raise DataError(
            f"{tables} holds {len(left)} tables that do not belong to the corrections as they are now (e.g. {left[0].name}):\n"
            "they would be read as calls: give --export a new folder, or take them away first"
        )


def _part(
    events: Sequence[Annotation],
    looked: Mapping[str, Iterable],
    folder: Path,
    name: str,
    format: ExchangeFormat,
) -> tuple[AnnotationSet, Path] | None:
    """What is written, and where; None where there is nothing."""
    paths = frozenset({event.path for event in events} | set(looked))
    if not paths:
        return None
    # a recording that was judged here and there, and looked through nowhere, has a clip of no length
    spans = tuple(
        Span(path, part.begin_s, part.end_s) if part else Span(path, 0.0, 0.0)
        for path in sorted(paths)
        for part in (looked.get(path) or (None,))
    )
    target = folder / f"{name}.aoef.json" if format == "aoef" else folder
    return AnnotationSet(tuple(events), paths, spans=spans), target


def _annotation(one: AgreedBox) -> Annotation:
    box = one.box
    extra = {"Reviewer": box.reviewer, "Queue": box.queue} | (
        {"Detection": box.detection_id} if box.detection_id else {}
    )
    label = "" if box.label == UNKNOWN else box.label  # or readers would take a call for a doubtful one
    return Annotation(box.path, box.begin_s, box.end_s, box.low_hz, box.high_hz, label, box.score, extra)


class Imported(NamedTuple):
    """Actions without time and reviewer's state; what could not be used."""

    actions: tuple[Action, ...]
    problems: tuple[str, ...]
    num_without_row: int = 0  # detections from the threshold on in recordings whose tables name others: deleted, or never in them


def told_new(new: Iterable[Action], read: Iterable[Action]) -> str:
    """How many of the boxes and stretches that were read are new: a box that is judged and named is two actions and one box."""
    counts = zip(_about(new), _about(read), ("boxes", "stretches"))
    told = (f"{len(own)} new of {len(every)} {what}" for own, every, what in counts if every)
    return " and ".join(told) or "0 boxes"


def _about(actions: Iterable[Action]) -> tuple[set[tuple], set[tuple]]:
    """What actions are about: boxes, and stretches that were gone through."""
    about: tuple[set[tuple], set[tuple]] = (set(), set())
    for a in actions:
        corners = (a.begin_s, a.end_s, a.low_hz, a.high_hz, a.label)
        about[a.action == "looked"].add((a.path, a.box_id) if a.box_id else (a.path, *corners))
    return about


def import_corrections(place: Path, found: FoundBoxes, reviewer: str) -> Imported:
    """What a folder that `export_corrections` wrote, or any annotation table, says about these detections.

    Only listened.csv and clips say what was looked at: that a table exists does not.
    """
    has_own_layout = (place / LISTENED).is_file()
    paths = [recording.path for recording in found.recordings]
    tables = place / TABLES if has_own_layout else place
    parts = []
    if not has_own_layout or tables.exists():
        read = read_annotations(tables, recordings=paths)
        parts.append(_said_by_layout(read, tables / REJECTED, paths) if has_own_layout else read)
    if has_own_layout:
        parts.append(read_listened(place / LISTENED, recordings=paths))
    read = merge_annotations(parts)
    if not read.annotations and not read.spans:
        raise DataError(
            f"{place} holds no box and no stretch of these recordings:\ncheck the names in its tables"
        )
    actions, problems = [], list(read.problems)
    problems += [f"{name} is none of the recordings, or several are called so" for name in read.unresolved]
    known = {*found.label}
    possible, notes = possible_boxes(_no_call_by_name(_above_zero_hz(a), known) for a in read.annotations)
    problems += map(str, notes)
    drawn: list[Annotation] = []
    others: list[Annotation] = []
    for annotation in possible:
        is_drawn = annotation.said == "call" and _detection_of(annotation, found) is None
        (drawn if is_drawn else others).append(annotation)
    once, merged = single_boxes(drawn)
    problems += [str(note) for note in merged]
    for annotation in (*others, *once):
        own = _actions_of(annotation, found, reviewer)
        if not own:
            problems.append(
                f"{annotation.path}, {annotation.begin_s:.2f} s: {_why_nothing(annotation, found)}"
            )
        actions += own
    for span in dict.fromkeys(span for part in parts for span in part.spans):
        recording = found.recordings[found.row_of_path[span.path]]
        end_s = min(span.end_s, recording.duration_s)
        if not span.labels and end_s > span.begin_s:
            actions.append(
                Action(
                    "looked", reviewer, recording.recording_id, span.path, begin_s=span.begin_s, end_s=end_s
                )
            )
    without_row = 0 if has_own_layout else _num_without_row(possible, read.annotated_paths, found)
    return Imported(
        tuple(replace(action, queue="import") for action in actions), tuple(problems), without_row
    )


def _no_call_by_name(annotation: Annotation, known: Container[str]) -> Annotation:
    """A row that was given a name for what is no animal (noise, no call) says so, unless the model has that name itself."""
    is_call = annotation.label in known or not is_no_animal(annotation.label, LabelsConfig())
    return annotation if is_call or annotation.said != "call" else replace(annotation, said="no_call")


def _num_without_row(rows: Iterable[Annotation], paths: Iterable[str], found: FoundBoxes) -> int:
    """Detections that the tables of their recordings do not have, where those tables hold detections at all."""
    named = [row for a in rows if (row := _detection_of(a, found)) is not None]
    if not named:
        return 0
    is_asked = np.isin(found.recording, [found.row_of_path[path] for path in paths])
    is_asked &= found.score >= found.threshold
    is_asked[named] = False
    return int(is_asked.sum())


def _above_zero_hz(annotation: Annotation) -> Annotation:
    """A box that was drawn over the lower edge of its spectrogram, cut there."""
    if annotation.low_hz is None or annotation.low_hz >= 0 or annotation.high_hz is None:
        return annotation
    return replace(annotation, low_hz=0.0, high_hz=max(annotation.high_hz, 0.0))


def _why_nothing(annotation: Annotation, found: FoundBoxes) -> str:
    duration_s = found.recordings[found.row_of_path[annotation.path]].duration_s
    if annotation.begin_s >= duration_s:
        return f"begins after the end of its recording ({duration_s:g} s)"
    return "neither a call nor a detection that was rejected"


def _said_by_layout(read: AnnotationSet, rejected: Path, paths: Sequence[str]) -> AnnotationSet:
    """In our own layout tables repeat the folders of recordings: that one lies in `negative/` makes its boxes no rejected ones."""
    wrong = read_annotations(rejected, recordings=paths).annotations if rejected.exists() else ()
    is_wrong = {(a.path, *_corners(a)) for a in wrong}
    events = [
        replace(a, said="call")
        if marks_no_calls(f"{posixpath.dirname(a.path)}/") and (a.path, *_corners(a)) not in is_wrong
        else a
        for a in read.annotations
    ]
    return replace(read, annotations=tuple(events))


def _corners(a: Annotation) -> tuple[float, float, float | None, float | None]:
    return a.begin_s, a.end_s, a.low_hz, a.high_hz


def _actions_of(annotation: Annotation, found: FoundBoxes, reviewer: str) -> list[Action]:
    """What one row says: nothing, a verdict, or a verdict and a name."""
    recording = found.recordings[found.row_of_path[annotation.path]]
    row = _detection_of(annotation, found)
    low_hz, high_hz = annotation.low_hz, annotation.high_hz
    plain = Action(
        "draw", reviewer, recording.recording_id, annotation.path, begin_s=max(annotation.begin_s, 0.0),
        end_s=min(annotation.end_s, recording.duration_s), low_hz=low_hz, high_hz=high_hz, label=annotation.label,
    )  # fmt: skip
    if annotation.said == "uncertain" or plain.begin_s >= plain.end_s:
        return []
    if row is None:
        return [plain] if annotation.said == "call" else []
    name = found.ids[row]
    score = float(found.score[row])
    label = "" if found.label[row] == UNKNOWN else found.label[row]
    plain = replace(plain, box_id=name, detection_id=name, score=score, label=label)
    if annotation.said == "no_call":
        return [replace(plain, action="reject")]
    moved = low_hz is not None and not _is_same(annotation, found, row)
    first = replace(plain, action="change" if moved else "accept")
    # what `mast export` writes for a detection without a name is none
    if annotation.label in (found.label[row], label, label or DEFAULT_LABEL):
        return [first]
    return [first, replace(plain, action="name", label=annotation.label)]


def _detection_of(annotation: Annotation, found: FoundBoxes) -> int | None:
    """The detection a row names, or whose corners it has to the last digit."""
    extra = {key.lower(): value for key, value in annotation.extra.items()}
    named = extra.get("detection") or extra.get("detection_id", "")  # of this export, or of `mast export`
    if named in found.row_of_id:
        row = found.row_of_id[named]
        return row if found.recordings[found.recording[row]].path == annotation.path else None
    if annotation.low_hz is None or annotation.high_hz is None:
        return None
    corners = (annotation.begin_s, annotation.end_s, annotation.low_hz, annotation.high_hz)
    return found.row_of_id.get(detection_id(annotation.path, *corners))


def _is_same(annotation: Annotation, found: FoundBoxes, row: int) -> bool:
    assert annotation.low_hz is not None and annotation.high_hz is not None
    return (
        abs(annotation.begin_s - found.begin_s[row]) <= SAME_S
        and abs(annotation.end_s - found.end_s[row]) <= SAME_S
        and abs(annotation.low_hz - found.low_hz[row]) <= SAME_HZ
        and abs(annotation.high_hz - found.high_hz[row]) <= SAME_HZ
    )
