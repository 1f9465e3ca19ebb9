"""The archive a round learns from: the recordings that were corrected, with what people said about them, and those
that were labelled before.

Recordings are dealt by their own name: whatever is reviewed later, a recording never changes sides, so that no model
is judged on what an earlier round has learned from. Of a recording only the neighbourhood of what was looked at is used.
"""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import pyarrow as pa

from mast_ray.config.errors import OK, PARTIAL, DataError
from mast_ray.config.tree import Config, SplitConfig
from mast_ray.evaluation.review.taught import Region, Taught
from mast_ray.evaluation.split_truth import selection_split
from mast_ray.recordings.annotations.model import Annotation, AnnotationSet, Span
from mast_ray.spectrogram.grid import (
    CHUNK_S,
    FRAME_SHIFT_S,
    HOP_S,
    fractional_hops,
    middle_chunk,
    seconds_of_hops,
)
from mast_ray.stages.prepare import PrepareInputs, prepare
from mast_ray.stages.runner import Runner
from mast_ray.tables.dealing.resplit import deal_as
from mast_ray.tables.dealing.splits import BlockRow
from mast_ray.tables.labels.spans import complement
from mast_ray.tables.prepared import Prepared, open_prepared

HELD_OUT_SHARE = 0.3
SAME_BOX_IOU = 0.5
Stretch = tuple[float, float]


@dataclass(frozen=True)
class Lesson:
    """Annotations to learn from, and what is known about who may learn from them."""

    annotations: AnnotationSet
    sides: Mapping[str, str]  # path -> train or val, where an earlier deal has said so
    num_tested: int  # corrections left out: in recordings of test splits, or of their groups
    groups: Mapping[str, str] = field(default_factory=dict)  # path -> group; its recordings are never parted


def lesson_of(
    taught: Taught,
    labels: Prepared | None,
    dealt: Prepared | None = None,
    groups: Mapping[str, str] | None = None,
) -> Lesson:
    """Corrections, beside the labels that the run was trained on; `dealt` is the archive of the round before. `groups` are
    those that the run states, in which those of the labels come first.
    """
    known, sides, tested = _labelled_before(labels) if labels is not None else (AnnotationSet(), {}, set())
    groups = {**(groups or {}), **(groups_of(labels.recordings) if labels is not None else {})}
    held = {groups[path] for path in tested if path in groups}
    tested |= {path for path, group in groups.items() if group in held and path not in sides}
    if dealt is not None:
        sides = _sides_of(dealt)[0] | sides
    corrected = AnnotationSet(
        tuple(_annotation(one) for one in taught.calls if one.path not in tested)
        + tuple(_annotation(one, "uncertain") for one in taught.doubtful if one.path not in tested),
        frozenset(taught.paths) - tested,
        spans=tuple(Span(*one) for one in taught.listened if one[0] not in tested),
    )
    num_tested = sum(one.path in tested for one in taught.calls)
    rejected = [_annotation(one) for one in taught.rejected]
    return Lesson(_together(known, corrected, rejected), sides, num_tested, groups)


def _annotation(one: Region, said: str = "call") -> Annotation:
    return Annotation(one.path, one.begin_s, one.end_s, one.low_hz, one.high_hz, one.label, said=said)  # type: ignore[arg-type]


def _together(
    known: AnnotationSet, corrected: AnnotationSet, rejected: Sequence[Annotation] = ()
) -> AnnotationSet:
    """Both; where a correction (also a rejection) lies on an earlier box, the correction counts. What was gone through wholly before is
    still gone through wholly, whatever is doubtful about a part of it.
    """
    whole = known.annotated_paths - {span.path for span in known.spans}
    new = [a for a in corrected.annotations if a.said == "call" or a.path not in whole]
    by_path: dict[str, list[Annotation]] = defaultdict(list)
    for annotation in (*new, *rejected):
        if annotation.said == "call":
            by_path[annotation.path].append(annotation)
    kept = [
        a
        for a in known.annotations
        if not any(_overlap(a, other) >= SAME_BOX_IOU for other in by_path.get(a.path, ()))
    ]
    spans = [*known.spans, *(span for span in corrected.spans if span.path not in whole)]
    return AnnotationSet(
        (*kept, *new), known.annotated_paths | corrected.annotated_paths, spans=tuple(dict.fromkeys(spans))
    )


def _overlap(a: Annotation, b: Annotation) -> float:
    """Intersection over union in seconds and hertz; by time where one has no band."""
    in_time = min(a.end_s, b.end_s) - max(a.begin_s, b.begin_s)
    both, first, second = in_time, a.end_s - a.begin_s, b.end_s - b.begin_s
    if a.low_hz is not None and a.high_hz is not None and b.low_hz is not None and b.high_hz is not None:
        in_band = min(a.high_hz, b.high_hz) - max(a.low_hz, b.low_hz)
        both *= max(in_band, 0.0)
        first, second = first * (a.high_hz - a.low_hz), second * (b.high_hz - b.low_hz)
    return max(both, 0.0) / max(first + second - max(both, 0.0), 1e-12) if in_time > 0 else 0.0


def _labelled_before(prepared: Prepared) -> tuple[AnnotationSet, dict[str, str], set[str]]:
    """(labels of the training and selection recordings, their sides, paths of recordings that are tested on)"""
    path_of = _paths_of(prepared)
    duration_of = dict(
        zip(path_of.values(), prepared.recordings.column("duration_s").to_pylist(), strict=True)
    )
    sides, tested = _sides_of(prepared)
    calls = [_of_row(row, path_of) for row in prepared.labels.to_pylist()]
    unsure = [row for row in prepared.ignored.to_pylist() if row["why"] == "uncertain"]
    gaps: dict[str, list[Stretch]] = defaultdict(list)
    for row in prepared.ignored.to_pylist():
        if row["why"] != "uncertain":
            gaps[path_of[row["recording_id"]]].append((row["begin_s"], row["end_s"]))
    spans = [
        Span(path, *stretch)
        for path, own in gaps.items()
        for stretch in complement(own, duration_of[path])
        if path in sides
    ]
    annotations = [
        a for a in calls + [replace(_of_row(r, path_of), said="uncertain") for r in unsure] if a.path in sides
    ]
    return AnnotationSet(tuple(annotations), frozenset(sides), spans=tuple(spans)), sides, tested


def _paths_of(prepared: Prepared) -> dict[str, str]:
    return dict(zip(prepared.recording_ids, prepared.recordings.column("path").to_pylist(), strict=True))


def groups_of(recordings: pa.Table) -> dict[str, str]:
    """path -> group, of the recordings that have one; archives of early releases know none."""
    if "group" not in recordings.column_names:
        return {}
    columns = (recordings.column(name).to_pylist() for name in ("path", "group"))
    return {path: group for path, group in zip(*columns, strict=True) if group}


def _sides_of(prepared: Prepared) -> tuple[dict[str, str], set[str]]:
    """(path -> train or val, paths of recordings that are tested on)"""
    path_of, chooses = _paths_of(prepared), selection_split(prepared)
    sides: dict[str, str] = {}
    tested: set[str] = set()
    for row in prepared.splits.to_pylist():
        path = path_of.get(row["recording_id"])
        if path is None or not row["split"]:
            continue
        side = {"train": "train", chooses: "val"}.get(row["split"])
        if side is None:
            tested.add(path)
        else:
            sides.setdefault(path, side)
    return {path: side for path, side in sides.items() if path not in tested}, tested


def _of_row(row: Mapping, path_of: Mapping[str, str]) -> Annotation:
    return Annotation(
        path_of[row["recording_id"]],
        row["begin_s"],
        row["end_s"],
        row["low_hz"],
        row["high_hz"],
        row["label"] or "",
    )


def prepare_lesson(lesson: Lesson, audio: str, out: str, config: Config, runner: Runner) -> Prepared:
    """The recordings of a lesson as a prepared archive, dealt into train and val by their names."""
    paths = lesson.annotations.annotated_paths
    inputs = PrepareInputs(audio, out, only=frozenset(paths))
    config = config.model_copy(update={"split": SplitConfig()})  # dealt below
    code = prepare(inputs, config, runner=runner, given=lesson.annotations)
    if code not in (OK, PARTIAL):
        raise DataError(
            f"the corrected recordings of {audio} could not be prepared (exit code {code}):\n"
            "what is wrong with them stands above; mend it and run the same command again"
        )
    archive = open_prepared(out, config.storage)
    deal_as(out, dealt_rows(archive, lesson, config.seed), config)
    return open_prepared(out, config.storage)


def dealt_rows(archive: Prepared, lesson: Lesson, seed: int) -> list[BlockRow]:
    """Blocks around what was looked at, on the side of their recording."""
    ids, paths = archive.recording_ids, archive.recordings.column("path").to_pylist()
    durations = archive.recordings.column("duration_s").to_pylist()
    by_group = {lesson.groups[path]: side for path, side in lesson.sides.items() if path in lesson.groups}
    sides = {path: by_group[lesson.groups[path]] for path in paths if lesson.groups.get(path) in by_group}
    sides |= lesson.sides
    new = [path for path in paths if path not in sides]
    names = {path: lesson.groups.get(path, path) for path in new}
    by_name = sides_by_name(list(dict.fromkeys(names.values())), seed, set(sides.values())) if new else {}
    sides |= {path: by_name[name] for path, name in names.items()}
    spans: dict[str, list[Stretch]] = defaultdict(list)
    for span in lesson.annotations.spans:
        spans[span.path].append((span.begin_s, span.end_s))
    rows = []
    for recording_id, path, duration_s in zip(ids, paths, durations, strict=True):
        stretches = _neighbourhoods(spans[path], duration_s) if path in spans else [(0.0, duration_s)]
        side = sides[path]
        rows += [
            BlockRow(recording_id, begin_s, end_s, side, side == "train") for begin_s, end_s in stretches
        ]
    return rows


def sides_by_name(paths: Sequence[str], seed: int, filled: Iterable[str] = ()) -> dict[str, str]:
    """train or val for every recording, by its name alone; where one side stays empty, the nearest of the other joins it."""
    place = {path: _place(path, seed) for path in sorted(paths)}
    sides = {path: "val" if at < HELD_OUT_SHARE else "train" for path, at in place.items()}
    found = set(sides.values()) | set(filled)
    if len(found) < 2 and len(sides) > 1:
        if "val" not in found:
            sides[min(place, key=place.__getitem__)] = "val"
        else:
            sides[max(place, key=place.__getitem__)] = "train"
    elif len(found) < 2:
        raise DataError(
            "the corrections lie in one recording, or in one group: nothing is left to see whether learning helped\n"
            "review boxes of at least two recordings of different groups (the queues of `mast review` spread them)"
        )
    return sides


def _place(path: str, seed: int) -> float:
    digest = hashlib.sha256(f"{seed}:{path}".encode()).digest()
    return int.from_bytes(digest[:8], "big") / 2**64


def _neighbourhoods(stretches: Iterable[Stretch], duration_s: float) -> list[Stretch]:
    """Of a short stretch the one chunk that shows it best, of a long one every chunk that shows some of it; what overlaps
    is one. A box that many chunks show would be looked at many times, and cost as much.
    """
    out: list[Stretch] = []
    for begin_s, end_s in sorted(_best_chunks(*one, duration_s) for one in _touching(stretches)):
        if out and begin_s < out[-1][1] - FRAME_SHIFT_S:
            out[-1] = (out[-1][0], max(out[-1][1], end_s))
        else:
            out.append((begin_s, end_s))
    return out


def _touching(stretches: Iterable[Stretch]) -> list[Stretch]:
    """The same seconds in order, stretches that touch made one."""
    out: list[Stretch] = []
    for begin_s, end_s in sorted(stretches):
        if out and begin_s <= out[-1][1] + FRAME_SHIFT_S:
            out[-1] = (out[-1][0], max(out[-1][1], end_s))
        else:
            out.append((begin_s, end_s))
    return out


def _best_chunks(begin_s: float, end_s: float, duration_s: float) -> Stretch:
    if end_s - begin_s > HOP_S:
        return max(begin_s - CHUNK_S, 0.0), min(end_s + CHUNK_S, duration_s)
    last = max(int(fractional_hops(duration_s)) - 1, 0)
    first_s = float(seconds_of_hops(min(int(middle_chunk(np.array((begin_s + end_s) / 2))), last)))
    return first_s, min(first_s + CHUNK_S, duration_s)
