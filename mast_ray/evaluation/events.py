"""Events of many recordings as arrays, from Arrow tables or annotation files of any format.

Legend: N events, R recordings. Events are in seconds and hertz; NaN in low_hz and
high_hz marks a time-only event.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from mast_ray.config.errors import DataError
from mast_ray.evaluation.recording_names import numbers_by_path
from mast_ray.recordings.annotations.model import AnnotationSet
from mast_ray.spectrogram.grid import HIGH_HZ, LOW_HZ
from mast_ray.tables.local_time import local_seconds

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]


@dataclass(frozen=True, eq=False)
class RecordingList:
    """R recordings by id or path (one of them may be ""), with what is known about them."""

    ids: tuple[str, ...]
    paths: tuple[str, ...]
    site: tuple[str, ...]
    start_local_s: Floats  # (R,) local time of the first sample, seconds since 1970; NaN when unknown
    num_chunks: Ints  # (R,) -1 when unknown
    duration_s: Floats  # (R,) NaN when unknown

    def __len__(self) -> int:
        return len(self.ids)

    def take(self, rows: Ints) -> RecordingList:
        def chosen(values: tuple[str, ...]) -> tuple[str, ...]:
            return tuple(values[row] for row in rows.tolist())

        arrays = self.start_local_s[rows], self.num_chunks[rows], self.duration_s[rows]
        return RecordingList(chosen(self.ids), chosen(self.paths), chosen(self.site), *arrays)

    def joined(self, other: RecordingList) -> RecordingList:
        """These recordings followed by others; ids are kept only when both lists have them."""
        has_ids = all(self.ids) and all(other.ids)
        return RecordingList(
            self.ids + other.ids if has_ids else ("",) * (len(self) + len(other)),
            self.paths + other.paths,
            self.site + other.site,
            np.concatenate([self.start_local_s, other.start_local_s]),
            np.concatenate([self.num_chunks, other.num_chunks]),
            np.concatenate([self.duration_s, other.duration_s]),
        )


@dataclass(frozen=True, eq=False)
class EventTable:
    """N events; `recording` numbers rows of `recordings`, which may hold more recordings than have events."""

    recordings: RecordingList
    recording: Ints
    chunk: Ints  # chunk of the recording for per-chunk tables, -1 for events of the whole recording
    begin_s: Floats
    end_s: Floats
    low_hz: Floats
    high_hz: Floats
    score: Floats
    label: NDArray[np.object_]

    def __len__(self) -> int:
        return len(self.recording)

    def take(self, rows: Ints | Bools) -> EventTable:
        columns = ("recording", "chunk", "begin_s", "end_s", "low_hz", "high_hz", "score", "label")
        return replace(self, **{name: getattr(self, name)[rows] for name in columns})

    @property
    def is_per_chunk(self) -> bool:
        return bool((self.chunk >= 0).any())

    @property
    def local_s(self) -> Floats:
        """(N,) local time of each event's begin, seconds since 1970; NaN when unknown."""
        return self.recordings.start_local_s[self.recording] + self.begin_s


def recordings_from_arrow(table: pa.Table, only_annotated: bool = False) -> RecordingList:
    """From a table of the RECORDINGS schema."""
    if only_annotated and "is_annotated" in table.column_names:
        table = table.filter(pc.fill_null(table.column("is_annotated"), False))
    return RecordingList(
        _strings(table, "recording_id"),
        _strings(table, "path"),
        _strings(table, "site"),
        local_seconds(table),
        _numbers(table, "num_chunks", -1.0).astype(np.int64),
        _numbers(table, "duration_s"),
    )


def events_from_arrow(table: pa.Table, recordings: RecordingList | None = None) -> EventTable:
    """From a table of the DETECTIONS or LABELS schema; other tables need
    recording_id or path, begin_s and end_s.

    With `recordings`, ids (or paths) must be among them: rows of other recordings are left out. Without,
    recordings are those of the table, with site and start time as the rows say.
    """
    missing = [name for name in ("begin_s", "end_s") if name not in table.column_names]
    key = next((name for name in ("recording_id", "path") if name in table.column_names), None)
    if missing or key is None:
        raise DataError(
            f"a table of events needs begin_s, end_s and recording_id or path; it has {', '.join(table.column_names)}:\n"
            "rename its columns, or give it as CSV with well-known names"
        )
    if recordings is None:
        recordings, row = _recordings_of_events(table, key)
    else:
        values = pa.array(recordings.ids if key == "recording_id" else recordings.paths, pa.string())
        found = pc.fill_null(pc.index_in(table.column(key).cast(pa.string()), value_set=values), -1)
        row = found.to_numpy(zero_copy_only=False).astype(np.int64)
    label = np.full(len(table), "", object)
    if "label" in table.column_names:
        label = np.array(table.column("label").fill_null("").to_pylist(), object)
    low_hz, high_hz = _numbers(table, "low_hz"), _numbers(table, "high_hz")
    time_only = np.isnan(low_hz) | np.isnan(high_hz)
    begin_s, end_s, score = (
        _numbers(table, "begin_s"),
        _numbers(table, "end_s"),
        _numbers(table, "score", 1.0),
    )
    if without := int(np.isnan(score).sum()):
        raise DataError(
            f"{without} of {len(table)} rows of a table of events have a score that is not a number:\n"
            "leave these rows out, or the column: boxes without a score count as sure"
        )
    if without := int((np.isnan(begin_s) | np.isnan(end_s)).sum()):
        raise DataError(
            f"{without} of {len(table)} rows of a table of events have no begin_s or no end_s: leave these rows out"
        )
    events = EventTable(
        recordings,
        row,
        _numbers(table, "chunk", -1.0).astype(np.int64),
        begin_s,
        end_s,
        np.where(time_only, np.nan, low_hz),
        np.where(time_only, np.nan, high_hz),
        score,
        label,
    )
    return events.take(row >= 0) if (row < 0).any() else events


def spans_whole_band(events: EventTable) -> Bools:
    """(N,) whether a box reaches over all that a spectrogram shows: it says when, and nothing about the band."""
    return (events.low_hz <= LOW_HZ) & (events.high_hz >= HIGH_HZ)


def without_band(events: EventTable) -> EventTable:
    """The same events in time only."""
    nothing = np.full(len(events), np.nan)
    return replace(events, low_hz=nothing, high_hz=nothing)


def events_from_annotations(found: AnnotationSet) -> EventTable:
    """From annotation files of any format; recordings gone through without an
    event are kept as recordings.
    """
    paths = tuple(sorted(found.annotated_paths | {a.path for a in found.annotations}))
    number = {path: row for row, path in enumerate(paths)}
    nan = float("nan")

    def column(values: list[float | None]) -> Floats:
        return np.array([nan if v is None else v for v in values], np.float64)

    own = found.annotations
    low_hz, high_hz = column([a.low_hz for a in own]), column([a.high_hz for a in own])
    time_only = np.isnan(low_hz) | np.isnan(high_hz)
    return EventTable(
        _unknown_recordings(("",) * len(paths), paths),
        np.array([number[a.path] for a in own], np.int64),
        np.full(len(own), -1, np.int64),
        column([a.begin_s for a in own]),
        column([a.end_s for a in own]),
        np.where(time_only, nan, low_hz),
        np.where(time_only, nan, high_hz),
        column([1.0 if a.score is None else a.score for a in own]),
        np.array([a.label for a in own], dtype=object),
    )


def numbers_in(recordings: RecordingList, other: RecordingList) -> Ints:
    """For every recording of `other` its number in `recordings`, by id where both have ids, else by path; -1: not there."""
    if len(recordings) and len(other) and all(recordings.ids) and all(other.ids):
        place = {name: row for row, name in enumerate(recordings.ids)}
        return np.array([place.get(name, -1) for name in other.ids], np.int64)
    if not (all(recordings.paths) and all(other.paths)):
        raise DataError(
            "detections and annotations name recordings differently (one by id, the other by path):\n"
            "give --recordings with the recordings.parquet of the prepared archive, which knows both"
        )
    return numbers_by_path(recordings.paths, other.paths)


def renumbered(events: EventTable, recordings: RecordingList) -> EventTable:
    """The same events numbered by another list of recordings; events of recordings
    that are not in it are left out.
    """
    row = numbers_in(recordings, events.recordings)
    new = row[events.recording] if len(row) else events.recording
    return replace(events, recordings=recordings, recording=new).take(new >= 0)


def with_facts_of(recordings: RecordingList, other: RecordingList) -> RecordingList:
    """Sites, start times and lengths that `recordings` lacks, filled in from another list of recordings."""
    row = numbers_in(recordings, other)
    known = np.flatnonzero(row >= 0)
    site, start = list(recordings.site), recordings.start_local_s.copy()
    num_chunks, duration_s = recordings.num_chunks.copy(), recordings.duration_s.copy()
    for theirs, mine in zip(known.tolist(), row[known].tolist(), strict=True):
        site[mine] = site[mine] or other.site[theirs]
        if np.isnan(start[mine]):
            start[mine] = other.start_local_s[theirs]
        if num_chunks[mine] < 0:
            num_chunks[mine] = other.num_chunks[theirs]
        if np.isnan(duration_s[mine]):
            duration_s[mine] = other.duration_s[theirs]
    return replace(
        recordings, site=tuple(site), start_local_s=start, num_chunks=num_chunks, duration_s=duration_s
    )


def _recordings_of_events(table: pa.Table, key: str) -> tuple[RecordingList, Ints]:
    encoded = table.column(key).cast(pa.string()).combine_chunks().dictionary_encode()
    row = encoded.indices.to_numpy(zero_copy_only=False).astype(np.int64)
    names = tuple(encoded.dictionary.to_pylist())
    first = np.full(len(names), -1, np.int64)
    first[row[::-1]] = np.arange(len(row))[::-1]
    one = table.take(pa.array(first))
    paths = names if key == "path" else _strings(one, "path")
    start = local_seconds(one) - _numbers(one, "begin_s")
    ids = names if key == "recording_id" else ("",) * len(names)
    found = replace(_unknown_recordings(ids, paths), site=_strings(one, "site"), start_local_s=start)
    return found, row


def _unknown_recordings(ids: tuple[str, ...], paths: tuple[str, ...]) -> RecordingList:
    nothing = np.full(len(ids), np.nan)
    return RecordingList(ids, paths, ("",) * len(ids), nothing, np.full(len(ids), -1, np.int64), nothing)


def _strings(table: pa.Table, name: str) -> tuple[str, ...]:
    if name not in table.column_names:
        return ("",) * len(table)
    return tuple("" if value is None else str(value) for value in table.column(name).to_pylist())


def _numbers(table: pa.Table, name: str, default: float = float("nan")) -> Floats:
    if name not in table.column_names:
        return np.full(len(table), default)
    try:
        column = pc.fill_null(table.column(name).cast(pa.float64()), default)
    except pa.ArrowException as error:
        raise DataError(
            f"a table has values in its column {name} that are no numbers: {error}\ncorrect these values"
        ) from error
    return np.array(column.to_numpy(), np.float64)
