"""Detections -> the tools that ecologists use: one file per recording or per
site, times relative and absolute.

Boxes are kept inside the recording and below the Nyquist frequency of its file where these are
known. Texts that a spreadsheet would take for formulas are defused. Absolute times are written
twice: UTC, and local with its offset.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Container, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import islice
from pathlib import PurePosixPath
from typing import Any, Literal, get_args

import pyarrow as pa
import pyarrow.compute as pc

from mast_ray.config.names import short_name
from mast_ray.recordings.annotations.model import Annotation, AnnotationSet, AudioFacts
from mast_ray.recordings.annotations.paths import safe_reference
from mast_ray.recordings.annotations.tabular import defused, written_table
from mast_ray.recordings.annotations.writing import annotations_as_text
from mast_ray.reporting.activity import ZONE_UNKNOWN
from mast_ray.reporting.exports.pamdp import pamdp_files
from mast_ray.reporting.exports.rows import audio_facts, clipped_box, detection_id, local_text, utc_text
from mast_ray.storage.storage import Storage

ExportFormat = Literal["raven", "audacity", "csv", "aoef", "coco", "kaleidoscope", "pamdp"]
EXPORT_FORMATS: tuple[str, ...] = get_args(ExportFormat)
Grouping = Literal["recording", "site"]
WITH_MARK = ("csv", "kaleidoscope", "pamdp")  # tables that a byte-order mark is for
WITHOUT_SITES = ("audacity", "pamdp")  # a label file belongs to one recording; pamDP is of the whole
DEFAULT_LABEL = "call"  # the detector has one class; an empty label would be invisible in Audacity
_ENDINGS = {
    "raven": ".Table.1.selections.txt", "audacity": ".txt", "csv": ".csv", "aoef": ".aoef.json", "coco": ".coco.json",
    "kaleidoscope": ".kaleidoscope.csv",
}  # fmt: skip
MOST_LISTED = 100_000  # files of a folder that are looked at for leftovers: it may be that of all the audio
_KALEIDOSCOPE = (
    "INDIR", "OUTDIR", "FOLDER", "IN FILE", "CHANNEL", "OFFSET", "DURATION", "Fmin", "Fmean", "Fmax", "DATE", "TIME", "HOUR",
    "DATE-12", "TIME-12", "HOUR-12", "AUTO ID*", "TOP1MATCH", "TOP1DIST", "MANUAL ID",
)  # fmt: skip


@dataclass(frozen=True)
class Exported:
    """What was written: keys below the output, and how many boxes and recordings they hold."""

    keys: tuple[str, ...]
    num_boxes: int
    num_recordings: int
    notes: tuple[str, ...] = ()


def annotation_of(
    row: Mapping[str, Any], facts: AudioFacts | None, time_source: str, is_table: bool
) -> Annotation:
    """One detection as an annotation; tables get every column, JSON formats only
    what repeats (site, model).
    """
    begin_s, end_s, low_hz, high_hz = clipped_box(row, facts)
    extra = {"site": row["site"] or "", "model_sha": row["model_sha"] or ""}
    if is_table:
        moment, offset = row["start_utc"], row["utc_offset_s"]
        local = local_text(moment, offset, row.get("start_local"))
        if moment is None and local:
            time_source = f"{time_source} ({ZONE_UNKNOWN})"
        extra = {
            "detection_id": detection_id(row["path"], row["begin_s"], row["end_s"], row["low_hz"] or 0.0, row["high_hz"] or 0.0),
            "recording_id": row["recording_id"] or "",
            "site": row["site"] or "",
            "probability": "" if row["probability"] is None else f"{row['probability']:.4f}",
            **({} if row.get("label_score") is None else {"label_score": f"{row['label_score']:.4f}"}),
            "start_utc": utc_text(moment),
            "start_local": local,
            "date": local[:10],
            "time": local[11:19],
            "time_source": time_source,
            "model_sha": row["model_sha"] or "",
        }  # fmt: skip
    return Annotation(
        row["path"],
        begin_s,
        end_s,
        low_hz,
        high_hz,
        row.get("label") or DEFAULT_LABEL,
        float(row["score"]),
        extra,
    )


def file_key(group: str, per: Grouping, taken: set[str], ending: str, shared: Container[str] = ()) -> str:
    """A key for a recording or a site: below the output whatever its name says, never the same twice, and each part
    of it a name that a disk takes.

    Recordings that differ in their suffix alone (`shared` stems) keep it: x.wav.txt is about x.wav.
    """
    if per == "recording":
        safe = safe_reference(group) or "recording"
        stem = _stem_of(safe)
        stem = safe if stem.lower() in shared else stem
    else:
        stem = re.sub(r"[^\w.-]+", "_", group).strip("._") or "no_site"
    folder, slash, last = stem.rpartition("/")
    key, number = f"{folder}{slash}{short_name(last, ending)}", 2
    while key.lower() in taken:
        key, number = f"{folder}{slash}{short_name(last, f'-{number}{ending}')}", number + 1
    taken.add(key.lower())
    return key


def _stem_of(path: str) -> str:
    return str(PurePosixPath(path).with_suffix("")) if PurePosixPath(path).name.strip(".") else path


def shared_stems(paths: Iterable[str]) -> frozenset[str]:
    """Names without suffix that several recordings have, in lower case."""
    counts = Counter(_stem_of(safe_reference(path) or "recording").lower() for path in set(paths))
    return frozenset(stem for stem, count in counts.items() if count > 1)


def groups_of(
    detections: pa.Table, recordings: pa.Table | None, per: Grouping
) -> Iterator[tuple[str, list[dict[str, Any]], list[str]]]:
    """(name, rows, paths gone through) of each recording or site, in order of name;
    recordings without a box appear too.
    """
    column = "path" if per == "recording" else "site"
    known = recordings if recordings is not None else detections
    members = known.select(list(dict.fromkeys(["path", column]))).group_by(["path", column]).aggregate([])
    by_group: dict[str, list[str]] = {}
    for row in members.to_pylist():
        by_group.setdefault(row[column] or "", []).append(row["path"])
    slim = detections.drop_columns([c for c in ("embedding",) if c in detections.column_names])
    slim = slim.sort_by([(column, "ascending"), ("path", "ascending"), ("begin_s", "ascending")])
    names = pc.fill_null(slim.column(column), "").combine_chunks()
    runs = pc.run_end_encode(names) if len(names) else None
    bounds: dict[str, tuple[int, int]] = {}
    if runs is not None:
        first = 0
        for value, end in zip(runs.values.to_pylist(), runs.run_ends.to_pylist(), strict=True):
            bounds[value] = (first, end)
            first = end
    for name in sorted(by_group.keys() | bounds.keys()):
        begin, end = bounds.get(name, (0, 0))
        rows = slim.slice(begin, end - begin).to_pylist()
        yield name, rows, sorted({*by_group.get(name, []), *(row["path"] for row in rows)})


def export_detections(
    detections: pa.Table,
    recordings: pa.Table | None,
    out: Storage,
    to: ExportFormat,
    per: Grouping = "recording",
    bom: bool = False,
    root: str = "",
    are_tasks: bool = False,
) -> Exported:
    """Write every box; `recordings` gives lengths, rates and the recordings in which nothing was found; `root` stands
    before the paths of Raven's tables. A recording without a task is not written: an empty table says that someone
    listened and heard nothing.
    """
    mark = "\ufeff" if bom and to in WITH_MARK else ""
    if to == "pamdp":
        files, notes = pamdp_files(detections, recordings)
        for key, text in files.items():
            out.write_atomic(key, _encoded((mark if key.endswith(".csv") else "") + text))
        paths = recordings if recordings is not None else detections
        return Exported(tuple(files), len(detections), len(pc.unique(paths.column("path"))), notes)
    if to in WITHOUT_SITES:
        per = "recording"
    facts = audio_facts(recordings)
    sources = _time_sources(recordings)
    keys, num_recordings, num_silent, taken = [], 0, 0, set[str]()
    known = detections if recordings is None else recordings
    shared = shared_stems(
        [*known.column("path").to_pylist(), *pc.unique(detections.column("path")).to_pylist()]
    )
    for name, rows, paths in groups_of(detections, recordings, per):
        key = file_key(name, per, taken, _ENDINGS[to], shared)
        # a table of a site is told from one of a recording by what its rows name
        if not rows and (are_tasks or (to == "raven" and per == "site")):
            out.delete(key)  # of an earlier choice
            num_silent += 1
            num_recordings += 0 if are_tasks else len(paths)
            continue
        if are_tasks and to != "raven":  # whose times run on through all recordings of a site
            paths = sorted({row["path"] for row in rows})
        if to == "kaleidoscope":
            text = kaleidoscope_text(rows, facts)
        else:
            is_table = to in ("raven", "csv")
            boxes = tuple(
                annotation_of(r, facts.get(r["path"]), sources.get(r["path"], ""), is_table) for r in rows
            )
            text = annotations_as_text(AnnotationSet(boxes, frozenset(paths)), to, facts=facts, root=root)
        out.write_atomic(key, _encoded(mark + text))
        keys.append(key)
        num_recordings += len({row["path"] for row in rows}) if are_tasks else len(paths)
    notes = _notes(detections, facts, "stretches" if are_tasks else "detections")
    if num_silent and not are_tasks:
        notes = (*notes, f"{num_silent} sites without a detection have no table: it would name no recording")
    return Exported(
        tuple(keys), len(detections), num_recordings, (*notes, *_left_beside(out, keys, _ENDINGS[to]))
    )


def _left_beside(out: Storage, keys: Iterable[str], ending: str) -> tuple[str, ...]:
    """A note about files of this format that were there before: who reads the folder reads them too."""
    there = (entry.key for entry in islice(out.list(), MOST_LISTED))
    if left := sorted({key for key in there if key.endswith(ending)} - {*keys}):
        return (
            f"{out.url} holds {len(left)} other *{ending} that are not of this export (e.g. {left[0]}): who reads the folder reads "
            "them too; take them away, or give a new --out",
        )
    return ()


def kaleidoscope_text(rows: list[dict[str, Any]], facts: Mapping[str, AudioFacts]) -> str:
    """Rows as in Kaleidoscope's cluster.csv: hertz, DATE and TIME of the file's beginning in
    local time (of the recorder's clock where its zone is unknown), TOP1DIST = 1 - score.
    """
    out = []
    for row in rows:
        begin_s, end_s, low_hz, high_hz = clipped_box(row, facts.get(row["path"]))
        place = PurePosixPath(row["path"])
        folder = "" if str(place.parent) == "." else str(place.parent)
        moment = _start_of_file(row)
        label = row.get("label") or DEFAULT_LABEL
        cells = [
            "",
            "",
            defused(folder),
            defused(place.name),
            "0",
            f"{begin_s:.3f}",
            f"{end_s - begin_s:.3f}",
        ]
        cells += ["" if hz is None else f"{hz:.1f}" for hz in (low_hz, _mean(low_hz, high_hz), high_hz)]
        for shift in (timedelta(0), timedelta(hours=12)):
            at = None if moment is None else moment - shift
            cells += ["", "", ""] if at is None else [f"{at:%Y-%m-%d}", f"{at:%H:%M:%S}", f"{at:%H}"]
        cells += [defused(label), defused(label), f"{1.0 - row['score']:.4f}", ""]
        out.append(cells)
    return written_table(_KALEIDOSCOPE, out, ",")


def _start_of_file(row: Mapping[str, Any]) -> datetime | None:
    """The clock of a detection's recording at its beginning, to the millisecond: what was rounded on the way may lie just
    before the second it means.
    """
    clock = row["start_utc"]
    if clock is None:
        clock = row.get("start_local")
    elif row["utc_offset_s"]:
        clock += timedelta(seconds=row["utc_offset_s"])
    if clock is None:
        return None
    start: datetime = clock - timedelta(seconds=row["begin_s"]) + timedelta(microseconds=500)
    return start.replace(microsecond=start.microsecond // 1000 * 1000)


def _mean(low_hz: float | None, high_hz: float | None) -> float | None:
    return None if low_hz is None or high_hz is None else (low_hz + high_hz) / 2


def _time_sources(recordings: pa.Table | None) -> dict[str, str]:
    if recordings is None:
        return {}
    return {r["path"]: r["time_source"] or "" for r in recordings.select(["path", "time_source"]).to_pylist()}


def _notes(detections: pa.Table, facts: Mapping[str, AudioFacts], what: str) -> tuple[str, ...]:
    """What a user should know about this export of detections, or of stretches."""
    notes = []
    unknown = set(pc.unique(detections.column("path")).to_pylist()) - facts.keys()
    if unknown:
        notes.append(
            f"{len(unknown)} recordings have no known rate: their boxes are not checked against the Nyquist frequency "
            "(give --recordings or --audio)"
        )
    undated = pc.is_null(detections.column("start_utc"))
    if "start_local" in detections.column_names:
        undated = pc.and_(undated, pc.is_null(detections.column("start_local")))
    if undated := pc.sum(undated).as_py():
        notes.append(f"{undated} {what} have no absolute time: the recorder's clock is unknown")
    return tuple(notes)


def _encoded(text: str) -> bytes:
    return text.encode("utf-8", errors="replace")
