"""A table of detections against a table of annotations: grouping, matching,
figures with intervals, breakdowns.

Per-chunk tables are scored chunk by chunk (the paper's way: truths are cut at chunk borders as in training),
others on whole recordings. Only recordings that were annotated count; what was left out is counted and said.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from mast_ray.config.errors import ConfigError, DataError
from mast_ray.evaluation.breakdown import (
    BANDWIDTH_EDGES_HZ,
    DURATION_EDGES_S,
    Cell,
    breakdown,
    cells_of_hours,
    cells_of_values,
)
from mast_ray.evaluation.event_boxes import Blocks, Space, boxes_of_events, chunks_within, is_within
from mast_ray.evaluation.events import EventTable, RecordingList, numbers_in, renumbered, with_facts_of
from mast_ray.evaluation.intervals import Interval, RecordingSums, bootstrap_intervals, recording_sums
from mast_ray.evaluation.matching import Matches, match, match_in_time
from mast_ray.evaluation.metrics import Metrics, summarise
from mast_ray.evaluation.recording_names import refuse_strangers
from mast_ray.spectrogram.chunking import boxes_of_chunks
from mast_ray.spectrogram.grid import FRAME_SHIFT_S, HOP_S

Ints = NDArray[np.int64]
By = Literal["site", "hour", "duration", "bandwidth", "label"]
BREAKDOWNS: tuple[By, ...] = ("site", "hour", "duration", "bandwidth", "label")


@dataclass(frozen=True, eq=False)
class Scored:
    """Matches of two tables, with the rows they speak of."""

    matches: Matches
    in_time: Matches  # the same events compared by time alone
    detections: EventTable  # row d is detection d of the matches
    truth: EventTable
    recording_of_group: Ints
    unit: Literal["chunk", "recording"]
    left_out: dict[str, int]  # why -> how many events were not scored

    @property
    def num_recordings(self) -> int:
        return len(self.truth.recordings)


def score_tables(
    detections: EventTable,
    truth: EventTable,
    iou: float = 0.5,
    space: Space = "mel",
    unlisted: Literal["skip", "silent"] = "skip",
    blocks: Blocks | None = None,
    min_remnant_s: float = 0.1,
) -> Scored:
    """Match a table of detections to a table of annotations.

    `truth.recordings` are the annotated recordings. Detections in other recordings are left out ("skip"), or count as
    false alarms ("silent": whatever has no annotation was listened to and found silent). With `blocks` (of
    `truth.recordings`) only what lies in them is scored. Truths that a chunk's border cuts to under `min_remnant_s` do not count.
    """
    left_out: dict[str, int] = {}
    refuse_strangers(
        numbers_in(truth.recordings, detections.recordings),
        _names(truth.recordings),
        _names(detections.recordings),
    )
    if unlisted == "silent":
        truth = _with_silent(truth, detections)
    truth = replace(truth, recordings=with_facts_of(truth.recordings, detections.recordings))
    before = len(detections)
    detections = renumbered(detections, truth.recordings)
    left_out["detections in recordings that are not annotated or not in the split"] = before - len(detections)
    det_boxes, det_seen = boxes_of_events(detections, space)
    truth_boxes, truth_seen = boxes_of_events(truth, space, rounding="grid")
    left_out["detections outside 20-8000 Hz"] = int((~det_seen).sum())
    left_out["annotations outside 20-8000 Hz"] = int((~truth_seen).sum())
    detections, det_boxes = detections.take(det_seen), det_boxes[det_seen]
    truth, truth_boxes = truth.take(truth_seen), truth_boxes[truth_seen]
    if not len(truth.recordings):
        raise DataError(
            "no annotated recording to score against:\ncheck that both tables speak of the same recordings"
        )
    if blocks is not None and not detections.is_per_chunk:
        in_truth, in_detections = is_within(truth, blocks), is_within(detections, blocks)
        truth, truth_boxes = truth.take(in_truth), truth_boxes[in_truth]
        detections, det_boxes = detections.take(in_detections), det_boxes[in_detections]
    if not detections.is_per_chunk:
        groups = np.arange(len(truth.recordings))
        pairs = (detections.recording, det_boxes, detections.score, truth.recording, truth_boxes, iou)
        return Scored(match(*pairs), match_in_time(*pairs), detections, truth, groups, "recording", left_out)
    if space != "mel":
        raise ConfigError(
            "per-chunk detections are scored in mel space:\nuse --space mel, or stitched detections"
        )
    return _scored_per_chunk(detections, det_boxes, truth, truth_boxes, iou, blocks, left_out, min_remnant_s)


def _scored_per_chunk(
    detections: EventTable,
    det_boxes: NDArray[np.float64],
    truth: EventTable,
    truth_boxes: NDArray[np.float64],
    iou: float,
    blocks: Blocks | None,
    left_out: dict[str, int],
    min_remnant_s: float,
) -> Scored:
    num_chunks = truth.recordings.num_chunks.copy()
    unknown = num_chunks < 0
    # Of a recording of unknown length only the chunks that surely exist are scored: those that hold a
    # detection and those whose second half begins before the last annotation ends.
    least = np.ones(len(num_chunks), np.int64)
    np.maximum.at(least, detections.recording, detections.chunk + 1)
    np.maximum.at(least, truth.recording, np.floor(truth.end_s / HOP_S).astype(np.int64))
    num_chunks[unknown] = least[unknown]
    first_group = np.concatenate([[0], np.cumsum(num_chunks)])
    cut = boxes_of_chunks(truth_boxes, int(num_chunks.max(initial=0)), min_remnant_s / FRAME_SHIFT_S)
    exists = cut.chunk < num_chunks[truth.recording[cut.origin]]
    origin, chunk, corners = cut.origin[exists], cut.chunk[exists], cut.corners[exists]
    truth_group = first_group[truth.recording[origin]] + chunk
    corners[:, 0::2] += (chunk * round(HOP_S * 100))[:, None]  # back to frames of the recording
    in_range = detections.chunk < num_chunks[detections.recording]
    left_out["detections in chunks that do not exist"] = int((~in_range).sum())
    detections, det_boxes = detections.take(in_range), det_boxes[in_range]
    det_group = first_group[detections.recording] + detections.chunk
    if blocks is not None:
        scored_chunk = chunks_within(truth.recordings, num_chunks, blocks)
        in_truth, in_detections = scored_chunk[truth_group], scored_chunk[det_group]
        origin, truth_group, corners = origin[in_truth], truth_group[in_truth], corners[in_truth]
        detections, det_boxes = detections.take(in_detections), det_boxes[in_detections]
        det_group = det_group[in_detections]
    pairs = (det_group, det_boxes, detections.score, truth_group, corners, iou)
    recording_of_group = np.repeat(np.arange(len(num_chunks)), num_chunks)
    return Scored(
        match(*pairs),
        match_in_time(*pairs),
        detections,
        truth.take(origin),
        recording_of_group,
        "chunk",
        left_out,
    )


def sums_of(scored: Scored, threshold: float) -> RecordingSums:
    """Per-recording sums, for intervals and for paired differences with another method."""
    place = (scored.recording_of_group, scored.num_recordings)
    return recording_sums(scored.matches, threshold, *place, scored.in_time)


def figures_of(
    scored: Scored, threshold: float, num_resamples: int = 1000, seed: int = 0
) -> tuple[Metrics, dict[str, Interval]]:
    """All figures at a threshold, and their intervals."""
    intervals = bootstrap_intervals(sums_of(scored, threshold), num_resamples, seed)
    return summarise(scored.matches, threshold, in_time=scored.in_time), intervals


def breakdown_by(
    scored: Scored, by: By, threshold: float, num_resamples: int = 1000, seed: int = 0
) -> list[Cell]:
    """Figures per site, hour of day, duration, bandwidth or (recall only,
    detections being classless) label.
    """
    both = (scored.detections, scored.truth)
    match by:
        case "site":
            names = tuple(sorted(set(scored.truth.recordings.site) - {""}))
            place = {name: row for row, name in enumerate(names)}
            cell = np.array([place.get(name, -1) for name in scored.truth.recordings.site], np.int64)
            cells = [cell[table.recording] for table in both]
        case "hour":
            cells = [cells_of_hours(table.local_s)[0] for table in both]
            names = cells_of_hours([])[1]
        case "duration":
            cells = [cells_of_values(table.end_s - table.begin_s, DURATION_EDGES_S, "s")[0] for table in both]
            names = cells_of_values([], DURATION_EDGES_S, "s")[1]
        case "bandwidth":
            cells = [cells_of_values(t.high_hz - t.low_hz, BANDWIDTH_EDGES_HZ, "Hz")[0] for t in both]
            names = cells_of_values([], BANDWIDTH_EDGES_HZ, "Hz")[1]
        case "label":
            names = tuple(sorted({str(label) for label in scored.truth.label} - {""}))
            place = {name: row for row, name in enumerate(names)}
            of_truth = np.array([place.get(str(label), -1) for label in scored.truth.label], np.int64)
            cells = [np.full(len(scored.detections), -1, np.int64), of_truth]
    arguments: tuple[Any, ...] = (names, threshold, scored.recording_of_group, num_resamples, seed)
    return breakdown(scored.matches, cells[0], cells[1], *arguments, in_time=scored.in_time)


def outcomes(scored: Scored, threshold: float) -> dict[str, Any]:
    """Columns of one row per kept detection and per missed truth, for a table to look at: outcome is hit,
    false_alarm or miss."""
    kept = np.flatnonzero(scored.matches.score >= threshold)
    taken = scored.matches.detection_index
    missed = np.flatnonzero((taken < 0) | ~np.isin(taken, kept))
    parts = (scored.detections.take(kept), scored.truth.take(missed))
    hit = scored.matches.is_true_positive[kept]
    recordings = scored.truth.recordings
    names = np.array(
        [path or name for path, name in zip(recordings.paths, recordings.ids, strict=True)], object
    )
    own_label = np.full(len(kept), "", object)
    own_label[hit] = scored.truth.label[scored.matches.truth_index[kept][hit]]
    columns: dict[str, Any] = {
        "recording": np.concatenate([names[part.recording] for part in parts]).tolist(),
    }
    for name in ("begin_s", "end_s", "low_hz", "high_hz"):
        columns[name] = np.concatenate([getattr(part, name) for part in parts])
    columns["score"] = np.concatenate([parts[0].score, np.full(len(missed), np.nan)])
    columns["iou"] = np.concatenate([scored.matches.iou[kept], np.zeros(len(missed))])
    columns["label"] = [*own_label.tolist(), *parts[1].label.tolist()]
    columns["outcome"] = ["hit" if h else "false_alarm" for h in hit] + ["miss"] * len(missed)
    return columns


def _names(recordings: RecordingList) -> list[str]:
    return [path or name for path, name in zip(recordings.paths, recordings.ids, strict=True)]


def _with_silent(truth: EventTable, detections: EventTable) -> EventTable:
    """Truth whose list of recordings also holds those that only the detections know."""
    new = np.flatnonzero(numbers_in(truth.recordings, detections.recordings) < 0)
    return replace(truth, recordings=truth.recordings.joined(detections.recordings.take(new)))
