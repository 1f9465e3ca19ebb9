"""Boxes of windows -> rows of the detection table: stitched, in seconds, hertz and absolute time.

Legend: K boxes of windows, M detections of the recording, D numbers of an embedding. Frames become seconds in
float64 with the window's start added there: float32 would be off by half a frame at hour 24.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from mast_ray.boxes.stitching import merge_songs, stitch
from mast_ray.evaluation.review.calibration import Calibration
from mast_ray.inference.naming import ModelNames
from mast_ray.inference.window_detector import WindowBoxes
from mast_ray.spectrogram.grid import (
    SAMPLE_RATE_HZ,
    SEGMENT_FRAMES,
    below_half_rate,
    end_of_sound,
    fractional_frames,
    seconds_hertz_from_boxes,
)
from mast_ray.tables.preparing.recording_record import RecordingRecord
from mast_ray.tables.schemas import DETECTIONS
from mast_ray.training.files.post_processing import PostProcessing

# `site` and `date` are the names of the folders the rows lie in, as Hive partitions are read everywhere.
ROWS = pa.schema(
    [
        *(field for field in DETECTIONS if field.name != "site"),
        ("start_local", pa.timestamp("us")),  # the recorder's own clock at begin_s; null when unknown
        ("time_source", pa.string()),  # table, guano, header, filename, none
    ]
)


@dataclass(frozen=True)
class RowKnobs:
    """What is kept of the detections of a recording."""

    threshold: float = 0.0  # after stitching
    song_gap_s: float = 0.0
    model_sha: str = ""
    calibration: Calibration | None = None
    names: ModelNames | None = None
    keeps_embeddings: bool = True  # where they are computed for the names alone, they are not stored
    post: PostProcessing | None = None  # of the model's card, for thresholds by site


class RecordingBoxes(NamedTuple):
    """Detections of a recording, in frames and bins of it."""

    boxes: NDArray[np.float64]  # (M, 4)
    score: NDArray[np.float64]  # (M,)
    embedding: NDArray[np.float16] | None  # (M, D) of the strongest part of each


def stitched_boxes(
    found: Sequence[WindowBoxes],
    num_frames: int,
    knobs: RowKnobs,
    site: str = "",
    sample_rate_hz: float = SAMPLE_RATE_HZ,
) -> RecordingBoxes:
    """One box per call, wherever windows begin; calls of one song joined where wanted. What lies above half the rate is cut
    before, as in scores (evaluation/scoring.py).
    """
    found = [part for part in found if len(part.score)]
    if not found:
        return RecordingBoxes(np.zeros((0, 4)), np.zeros(0), None)
    start = np.concatenate([part.window for part in found]) * float(SEGMENT_FRAMES)
    boxes = np.concatenate([part.boxes for part in found]).astype(np.float64)
    score = np.concatenate([part.score for part in found]).astype(np.float64)
    if knobs.post is not None and site in knobs.post.site_thresholds:
        score = knobs.post.at_sites(score, [site] * len(score))
    # as in chunks: the last whole frame reaches 1.5 further
    boxes[:, 0::2] = np.clip(boxes[:, 0::2] + start[:, None], 0, end_of_sound(num_frames))
    boxes, has_band = below_half_rate(boxes, sample_rate_hz)
    usable = np.flatnonzero((boxes[:, 2] > boxes[:, 0]) & has_band)
    # A box, its window and its place within it decide the order, not the batch it came with.
    order = usable[np.lexsort((boxes[usable, 1], boxes[usable, 0], -score[usable], start[usable]))]
    result = stitch(start[order], boxes[order], score[order], num_frames)
    source = order[result.source]
    kept = result.scores >= knobs.threshold
    boxes, score, source = result.boxes[kept], result.scores[kept], source[kept]
    if knobs.song_gap_s > 0 and len(boxes):
        songs = merge_songs(boxes, score, float(fractional_frames(knobs.song_gap_s)))
        boxes, score, source = songs.boxes, songs.scores, source[songs.source]
    if found[0].embedding is None:
        return RecordingBoxes(boxes, score, None)
    return RecordingBoxes(boxes, score, np.concatenate([part.embedding for part in found])[source])  # type: ignore[misc]


def detection_rows(
    found: RecordingBoxes, record: RecordingRecord, clock: datetime | None, knobs: RowKnobs, item_id: str
) -> pa.Table:
    """(M,) rows inside the recording and below its Nyquist frequency; boxes wholly above it are left out."""
    begin_s, low_hz, end_s, high_hz = seconds_hertz_from_boxes(found.boxes).T
    end_s = np.minimum(end_s, record.duration_s)
    high_hz = np.minimum(high_hz, record.sample_rate_hz / 2)
    inside = np.flatnonzero((begin_s < end_s) & (low_hz < high_hz))
    begin_s, end_s, low_hz, high_hz = begin_s[inside], end_s[inside], low_hz[inside], high_hz[inside]
    score, count = found.score[inside], len(inside)
    label, label_score = _names(found, inside, knobs.names)
    begin = np.round(begin_s * 1e6).astype("timedelta64[us]")
    start_utc = record.start_utc
    columns: dict[str, Any] = {
        "recording_id": [item_id] * count,
        "path": [record.path] * count,
        "chunk": pa.nulls(count, pa.int32()),
        "begin_s": begin_s,
        "end_s": end_s,
        "low_hz": low_hz,
        "high_hz": high_hz,
        "score": score,
        "probability": knobs.calibration.probability(score)
        if knobs.calibration
        else pa.nulls(count, pa.float32()),
        "start_utc": _moments(start_utc.replace(tzinfo=None) if start_utc else None, begin),
        "utc_offset_s": [record.utc_offset_s] * count,
        "model_sha": [knobs.model_sha] * count,
        "label": label,
        "label_score": label_score,
        "start_local": _moments(clock, begin),
        "time_source": [record.time_source] * count,
    }
    arrays = [pa.array(columns[field.name]).cast(field.type) for field in ROWS]
    table = pa.Table.from_arrays(arrays, schema=ROWS)
    if found.embedding is None or not knobs.keeps_embeddings:
        return table
    flat = pa.array(found.embedding[inside].astype(np.float32).reshape(-1), pa.float32())
    return table.append_column("embedding", pa.FixedSizeListArray.from_arrays(flat, found.embedding.shape[1]))


def _names(
    found: RecordingBoxes, rows: NDArray[np.int64], names: ModelNames | None
) -> tuple[pa.Array, pa.Array]:
    """(M,) labels and their chances by the model's names; null where it has none."""
    if names is None or found.embedding is None:
        return pa.nulls(len(rows), pa.string()), pa.nulls(len(rows), pa.float32())
    named = names.names.named(found.embedding[rows].astype(np.float32), found.boxes[rows])
    return pa.array(named.label, pa.string()), pa.array(named.confidence, pa.float32())


def _moments(start: datetime | None, begin: NDArray[np.timedelta64]) -> pa.Array:
    if start is None:
        return pa.nulls(len(begin), pa.timestamp("us"))
    return pa.array(np.datetime64(start, "us") + begin, pa.timestamp("us"))


def dates_of(table: pa.Table) -> NDArray[np.str_]:
    """(M,) local date of each row as text; "" where no clock is known."""
    local = table.column("start_local").to_numpy()
    return np.where(np.isnat(local), "", np.datetime_as_string(local, unit="D"))
