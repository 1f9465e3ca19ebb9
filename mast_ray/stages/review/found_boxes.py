"""The detections of a run as a review holds them: columns in memory, sorted by recording and time.

Legend: D detections, R recordings. Rows below half the threshold are left out, as in the report's gallery: hundreds
of faint boxes would hide the calls. A hundred thousand rows take about 30 MB and a second.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from mast_ray.config.errors import ConfigError, DataError
from mast_ray.evaluation.breakdown import cells_of_hours
from mast_ray.recordings.decoding.reading import Channel
from mast_ray.reporting.clips import channel_heard
from mast_ray.reporting.detection_tables import (
    chosen_threshold,
    read_detections,
    read_recordings,
    recordings_beside,
    recordings_of_audio,
    refuse_unfinished,
    stitched,
    with_paths,
)
from mast_ray.reporting.exports.rows import detection_id
from mast_ray.reporting.report.gallery import absolute_time
from mast_ray.spectrogram.grid import HIGH_HZ, LOW_HZ
from mast_ray.storage.stage_folders import read_manifest
from mast_ray.storage.storage import Storage, open_storage
from mast_ray.tables.local_time import local_seconds

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
DEFAULT_THRESHOLD = 0.5  # where neither the user nor a model says one


@dataclass(frozen=True)
class Recording:
    recording_id: str
    path: str
    site: str
    duration_s: float
    when: str  # local time of its beginning, "" when unknown


@dataclass(frozen=True, eq=False)
class FoundBoxes:
    """D detections and the R recordings they were looked for in."""

    recordings: tuple[Recording, ...]
    recording: Ints  # (D,) row of its recording, ascending
    begin_s: Floats  # (D,) ascending within a recording
    end_s: Floats
    low_hz: Floats
    high_hz: Floats
    score: Floats
    hour: Ints  # (D,) local hour of day, -1 when unknown
    label: tuple[str, ...]  # (D,) by the model, "" for none
    ids: tuple[str, ...]  # (D,)
    threshold: float
    embedding: NDArray[np.float32] | None = None  # (D, C)

    def __len__(self) -> int:
        return len(self.ids)

    @cached_property
    def row_of_id(self) -> dict[str, int]:
        return {name: row for row, name in enumerate(self.ids)}

    @cached_property
    def row_of_path(self) -> dict[str, int]:
        return {recording.path: row for row, recording in enumerate(self.recordings)}

    @cached_property
    def site(self) -> NDArray[np.object_]:
        """(D,)"""
        names = np.array([recording.site for recording in self.recordings], object)
        return names[self.recording] if len(names) else np.zeros(0, object)

    def within(self, recording: int, begin_s: float, end_s: float) -> Ints:
        """Rows of a recording that touch a stretch, in order of time."""
        first, last = np.searchsorted(self.recording, [recording, recording + 1])
        own = slice(int(first), int(last))
        touching = (self.begin_s[own] < end_s) & (self.end_s[own] > begin_s)
        return np.flatnonzero(touching) + int(first)


def detections_of(place: str) -> str:
    """The detections that RUN|DETECTIONS means: itself, or what a run keeps in `detections`."""
    if place.endswith(".parquet"):
        return place
    run = open_storage(place)
    for folder in ("", "detections"):
        own = run.at(folder) if folder else run
        has_tables = any(entry.key.endswith(".parquet") for entry in own.list("detections"))
        if own.stat("manifest.json") is not None and has_tables:
            return own.url
    for folder in ("", "detections"):
        refuse_unfinished(run.at(folder) if folder else run)
    for folder in ("detections", ""):
        own = run.at(folder) if folder else run
        if any(entry.key.endswith(".parquet") for entry in own.list()):
            return own.url
    raise DataError(f"{place} holds no detections:\ngive a run folder, or what `mast detect` wrote")


def audio_of(place: str, detections: str, wanted: str) -> Storage:
    """Where the recordings lie: what the user says, what `mast detect` noted, or that of a demo run."""
    if wanted:
        audio = open_storage(wanted)
        if next(iter(audio.list()), None) is None:
            raise DataError(
                f"{audio.url} holds no file:\ncheck the path, and whether the disk or card is there"
            )
        return audio
    manifest = None if detections.endswith(".parquet") else read_manifest(open_storage(detections))
    noted = "" if manifest is None else str(manifest.counts.get("archive", ""))
    own = "" if place.endswith(".parquet") else open_storage(place).at("archive/audio").url
    for root in (noted, own):
        if root and next(iter(open_storage(root).list()), None) is not None:
            return open_storage(root)
    raise ConfigError("where are the recordings? give their folder: --audio ROOT")


def channel_of(detections: str) -> Channel:
    """The channel in which `mast detect` found them."""
    manifest = None if detections.endswith(".parquet") else read_manifest(open_storage(detections))
    return channel_heard({} if manifest is None else manifest.config)


def load_boxes(detections: str, audio: Storage, threshold: float | None) -> FoundBoxes:
    """Everything there is to review."""
    chosen = chosen_threshold(threshold, detections)
    chosen = DEFAULT_THRESHOLD if chosen is None else chosen
    table = stitched(read_detections(detections, chosen / 2))
    beside = recordings_beside(detections)
    recordings = read_recordings(beside, needs_lengths=True) if beside else None
    table = with_paths(table, recordings)
    if table.column("path").null_count:
        raise DataError(
            f"{detections} does not say which file a detection lies in:\ngive the folder that `mast detect` wrote"
        )
    recordings = recordings_of_audio(table, audio) if recordings is None else recordings
    paths = pc.unique(table.column("path"))
    if missing := sorted({*paths.to_pylist()} - {*recordings.column("path").to_pylist()}):
        print(
            f"note: detections of {len(missing)} recordings are left out, which are not in {audio.url} or cannot be read "
            f"(e.g. {missing[0]})",
            file=sys.stderr,
        )
    return boxes_of_tables(table, recordings, chosen)


def boxes_of_tables(detections: pa.Table, recordings: pa.Table, threshold: float) -> FoundBoxes:
    """Detections (schemas.DETECTIONS) of known recordings (schemas.RECORDINGS) as columns."""
    recordings = recordings.take(pc.sort_indices(recordings, [("path", "ascending")]))
    listed = tuple(
        Recording(
            row["recording_id"] or row["path"], row["path"], row["site"] or "", float(row["duration_s"]),
            absolute_time(row["start_utc"], row["utc_offset_s"], 0.0)
            or (f"{row['start_local']:%Y-%m-%d %H:%M:%S}" if row["start_local"] else ""),
        )
        for row in recordings.select(
            ["recording_id", "path", "site", "duration_s", "start_utc", "utc_offset_s", "start_local"]
        ).to_pylist()
    )  # fmt: skip
    place = pc.fill_null(
        pc.index_in(detections.column("path"), recordings.column("path").combine_chunks()), -1
    ).to_numpy(zero_copy_only=False)
    known = place >= 0
    detections, place = detections.filter(pa.array(known)), place[known].astype(np.int64)
    begin_s, end_s, score = (_numbers(detections, name) for name in ("begin_s", "end_s", "score"))
    low_hz = np.nan_to_num(_numbers(detections, "low_hz"), nan=LOW_HZ)
    high_hz = np.nan_to_num(_numbers(detections, "high_hz"), nan=HIGH_HZ)
    order = np.lexsort((end_s, begin_s, place))
    begin_s, end_s, low_hz, high_hz = (c[order] for c in (begin_s, end_s, low_hz, high_hz))
    place, score, detections = place[order], score[order], detections.take(pa.array(order))
    local_s = local_seconds(recordings)[place] + begin_s if len(place) else np.zeros(0)
    label = (
        detections.column("label").to_pylist() if "label" in detections.column_names else [""] * len(place)
    )
    corners = zip(begin_s.tolist(), end_s.tolist(), low_hz.tolist(), high_hz.tolist())
    ids = tuple(detection_id(listed[row].path, *box) for row, box in zip(place.tolist(), corners))
    return FoundBoxes(
        listed, place, begin_s, end_s, low_hz, high_hz, score, cells_of_hours(local_s)[0],
        tuple(text or "" for text in label), ids, threshold, _vectors(detections),
    )  # fmt: skip


def _numbers(table: pa.Table, name: str) -> Floats:
    return table.column(name).to_numpy(zero_copy_only=False).astype(np.float64)


def _vectors(table: pa.Table) -> NDArray[np.float32] | None:
    """(D, C) embeddings where `mast detect` was asked for them."""
    if "embedding" not in table.column_names or not len(table):
        return None
    column = table.column("embedding").combine_chunks()
    if column.null_count:
        return None
    return column.flatten().to_numpy(zero_copy_only=False).reshape(len(table), -1).astype(np.float32)
