"""Detections of chunks joined to detections of whole recordings, where a call in two overlapping chunks is one, and
their scores on a split.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from mast_ray.boxes.stitching import stitch
from mast_ray.config.tree import Config
from mast_ray.evaluation.event_boxes import boxes_of_events
from mast_ray.evaluation.events import EventTable, events_from_arrow, recordings_from_arrow
from mast_ray.evaluation.scoring import Scored, score_tables
from mast_ray.evaluation.split_truth import truth_of_split
from mast_ray.spectrogram.grid import SEGMENT_FRAMES, seconds_hertz_from_boxes
from mast_ray.tables.prepared import Prepared
from mast_ray.tables.schemas import DETECTIONS

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


def stitched_events(events: EventTable, num_frames: Ints) -> EventTable:
    """Events of chunks -> events of recordings, whose lengths in frames are `num_frames` (R,)."""
    source, boxes, score = _stitched(events, num_frames)
    begin_s, low_hz, end_s, high_hz = seconds_hertz_from_boxes(boxes).T
    measures = {"begin_s": begin_s, "end_s": end_s, "low_hz": low_hz, "high_hz": high_hz, "score": score}
    return replace(events.take(source), chunk=np.full(len(source), -1, np.int64), **measures)


def stitched_table(prepared: Prepared, detections: pa.Table) -> pa.Table:
    """The same for a table of the DETECTIONS schema; `chunk` becomes null."""
    events = events_from_arrow(detections, recordings_from_arrow(prepared.recordings))
    source, boxes, score = _stitched(events, prepared.num_frames)
    whole = detections.take(pa.array(source))
    begin_s, low_hz, end_s, high_hz = seconds_hertz_from_boxes(boxes).T
    changed = {"begin_s": begin_s, "end_s": end_s, "low_hz": low_hz, "high_hz": high_hz, "score": score}
    columns = {name: changed.get(name, whole.column(name)) for name in DETECTIONS.names}
    columns["chunk"] = pa.nulls(len(whole), pa.int32())
    return pa.table(columns).cast(DETECTIONS)


def _stitched(events: EventTable, num_frames: Ints) -> tuple[Ints, Floats, Floats]:
    """(strongest row of every stitched event, its (M, 4) box in frames and bins of the recording, its score)"""
    boxes, _ = boxes_of_events(events)
    source: list[Ints] = []
    merged: list[Floats] = []
    score: list[Floats] = []
    order = np.argsort(events.recording, kind="stable")
    for rows in np.split(order, np.flatnonzero(np.diff(events.recording[order])) + 1):
        if len(rows):
            length = int(num_frames[events.recording[rows[0]]])
            one = stitch(events.chunk[rows] * float(SEGMENT_FRAMES), boxes[rows], events.score[rows], length)
            source.append(rows[one.source])
            merged.append(one.boxes)
            score.append(one.scores)
    return (
        np.concatenate([*source, np.zeros(0, np.int64)]),
        np.concatenate([*merged, np.zeros((0, 4))]),
        np.concatenate([*score, np.zeros(0)]),
    )


def score_whole(prepared: Prepared, found: EventTable, split: str, config: Config) -> Scored:
    """Events of whole recordings against what is true in one split of an archive, in recordings that have chunks."""
    truth = truth_of_split(prepared, split, only_with_chunks=True)
    return score_tables(found, truth.events, config.evaluate.iou, blocks=truth.blocks, ignored=truth.ignored)


def score_stitched(prepared: Prepared, scored: Scored, split: str, config: Config) -> Scored:
    """What was scored chunk by chunk in a split, scored again on whole recordings."""
    found = scored.detections
    rows = prepared.rows_of(pa.array(found.recordings.ids, pa.string()))
    return score_whole(prepared, stitched_events(found, prepared.num_frames[rows]), split, config)
