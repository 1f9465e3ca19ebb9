"""Detections against what is true: matching, figures with intervals, breakdowns.

Two ways in, one way on. `score_chunks`: what a model found in chunks of a prepared archive, chunk by chunk
(the paper's way: truths are cut at chunk borders as in training). `score_tables`: any table of detections of
whole recordings against any table of annotations. Only recordings that were annotated count; what was left
out is counted and said.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Literal, NamedTuple, Protocol

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from mast_ray.config.errors import DataError
from mast_ray.config.tree import Config
from mast_ray.evaluation.breakdown import (
    BANDWIDTH_EDGES_HZ,
    DURATION_EDGES_S,
    Cell,
    breakdown,
    breakdown_of_names,
    cells_of_hours,
    cells_of_values,
    of_truths_alone,
)
from mast_ray.evaluation.event_boxes import Blocks, Space, boxes_of_events, is_within
from mast_ray.evaluation.events import (
    EventTable,
    RecordingList,
    events_from_arrow,
    numbers_in,
    recordings_from_arrow,
    renumbered,
    with_facts_of,
)
from mast_ray.evaluation.ignored_regions import judged
from mast_ray.evaluation.intervals import Interval, RecordingSums, bootstrap_intervals, recording_sums
from mast_ray.evaluation.matching import Matches, match, match_in_time
from mast_ray.evaluation.metrics import Metrics, summarise
from mast_ray.evaluation.naming.names import UNKNOWN
from mast_ray.evaluation.recording_names import refuse_strangers
from mast_ray.spectrogram.grid import (
    SAMPLE_RATE_HZ,
    SEGMENT_FRAMES,
    Rounding,
    below_half_rate,
    seconds_hertz_from_boxes,
)
from mast_ray.tables.prepared import Prepared
from mast_ray.tables.reading.chunk_sets import BoxTable, ChunkSet, box_table

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
By = Literal["site", "hour", "duration", "bandwidth", "label"]
UNJUDGED = "detections where nobody looked or was sure"
ELSEWHERE = "detections in recordings that are not annotated or not in the split"
BREAKDOWNS: tuple[By, ...] = ("site", "hour", "duration", "bandwidth", "label")


class ChunkBoxes(Protocol):
    """Detections of a set of chunks as columns, in any order of chunks."""

    @property
    def chunk(self) -> Ints: ...  # (D,) index of the chunk in the set
    @property
    def boxes(self) -> Floats: ...  # (D, 4) frames and bins of the chunk
    @property
    def score(self) -> Floats: ...  # (D,)


class LeftOut(NamedTuple):
    """Events that were not scored."""

    row: Ints  # in the table that was given
    score: Floats  # of a detection; endless of an annotation, which counts at every threshold


@dataclass(frozen=True, eq=False)
class Scored:
    """Matches of detections to truths, and the rows they speak of."""

    matches: Matches
    boxes: Floats  # (D, 4) as they were matched
    truth_boxes: Floats  # (G, 4)
    iou: float
    recording_of_group: Ints
    num_recordings: int
    unit: Literal["chunk", "recording"]
    rows: Callable[[], tuple[EventTable, EventTable]]  # (D,) detections and (G,) truths, made when asked for
    left_out: dict[str, LeftOut]  # by the reason why
    are_named: bool = False  # a model with names called every detection something, be it `unknown`

    @cached_property
    def in_time(self) -> Matches:
        """The same events compared by time alone."""
        found, truth = (
            (self.matches.group, self.boxes, self.matches.score),
            (self.matches.truth_group, self.truth_boxes),
        )
        return match_in_time(*found, *truth, self.iou)

    @cached_property
    def _events(self) -> tuple[EventTable, EventTable]:
        return self.rows()

    @property
    def detections(self) -> EventTable:
        """Row d is detection d of the matches."""
        return self._events[0]

    @property
    def truth(self) -> EventTable:
        """Row g is truth g of the matches; a call in two chunks is in two rows."""
        return self._events[1]


@dataclass(frozen=True, eq=False)
class _Found:
    chunk: Ints
    boxes: Floats
    score: Floats


def score_chunks(
    prepared: Prepared, chunks: ChunkSet, found: ChunkBoxes, config: Config, truth: pa.Table | None = None
) -> Scored:
    """Match what was found in some chunks, as `mast detect` would write it, to the labels that touch these chunks.

    Truth are the archive's labels; what lies where nobody looked or was sure is left out. Another table of `truth` is
    taken to be whole.
    """
    labels, ignored = (prepared.labels, prepared.ignored) if truth is None else (truth, None)
    table = box_table(prepared, chunks, labels, min_remnant_s=config.spectrogram.min_remnant_s)
    corners = table.corners.astype(np.float64)
    corners[table.is_time_only, 1::2] = np.nan  # matched by time
    groups = np.repeat(np.arange(len(chunks)), table.counts())
    found = _below_half_rate(prepared, chunks, found)
    matches = match(found.chunk, found.boxes, found.score, groups, corners, config.evaluate.iou)
    left_out: dict[str, LeftOut] = {}
    if ignored is not None and len(ignored):
        regions = box_table(prepared, chunks, None, min_remnant_s=0.0, ignored=ignored)
        places = (np.repeat(np.arange(len(chunks)), regions.counts()), regions.corners.astype(np.float64))
        matches, left = judged(matches, found.boxes, *places)
        left_out[UNJUDGED] = LeftOut(np.flatnonzero(~left), found.score[~left])
        found = _Found(found.chunk[left], found.boxes[left], found.score[left])
    rows, recording = np.unique(chunks.recording, return_inverse=True)
    return Scored(
        matches,
        found.boxes,
        corners,
        config.evaluate.iou,
        recording.astype(np.int64),
        len(rows),
        "chunk",
        lambda: _events_of_chunks(prepared, chunks, found, labels, table),
        left_out,
    )


def has_low_rates(prepared: Prepared) -> bool:
    """Whether any recording of an archive has less than the rate that models hear."""
    return bool((_rates_hz(prepared) < SAMPLE_RATE_HZ).any())


def _rates_hz(prepared: Prepared) -> Floats:
    """(R,) of the original files; NaN where unknown."""
    return prepared.recordings.column("sample_rate_hz").to_numpy().astype(np.float64)


def _below_half_rate(prepared: Prepared, chunks: ChunkSet, found: ChunkBoxes) -> ChunkBoxes:
    """What is left of detections below half the rate of their recordings; the others are no detections."""
    rates_hz = _rates_hz(prepared)[chunks.recording[found.chunk]]
    if not (rates_hz < SAMPLE_RATE_HZ).any():
        return found
    boxes, has_band = below_half_rate(found.boxes, rates_hz)
    return _Found(found.chunk[has_band], boxes[has_band], found.score[has_band])


def _events_of_chunks(
    prepared: Prepared, chunks: ChunkSet, found: ChunkBoxes, labels: pa.Table, truth: BoxTable
) -> tuple[EventTable, EventTable]:
    """Detections and truths of chunks as events of the recordings that have any of the chunks."""
    rows, recording = np.unique(chunks.recording, return_inverse=True)
    recordings = recordings_from_arrow(prepared.recordings.take(pa.array(rows)))
    number = chunks.chunk.astype(np.int64)
    boxes = found.boxes.copy()
    boxes[:, 0::2] += (number[found.chunk] * SEGMENT_FRAMES)[:, None]
    begin_s, low_hz, end_s, high_hz = seconds_hertz_from_boxes(boxes).T
    no_label = np.full(len(boxes), "", object)
    detections = EventTable(
        recordings, recording[found.chunk].astype(np.int64), number[found.chunk], begin_s, end_s, low_hz, high_hz,
        found.score, no_label,
    )  # fmt: skip
    own = events_from_arrow(labels.take(pa.array(truth.label_row)), recordings)
    return detections, replace(own, chunk=np.repeat(number, truth.counts()))


def score_tables(
    detections: EventTable,
    truth: EventTable,
    iou: float = 0.5,
    space: Space = "mel",
    unlisted: Literal["skip", "silent"] = "skip",
    blocks: Blocks | None = None,
    ignored: EventTable | None = None,
    rounding: Rounding = "grid",
) -> Scored:
    """Match a table of detections of whole recordings to a table of annotations.

    `truth.recordings` are the annotated recordings. Detections in other recordings are left out ("skip"), or count as
    false alarms ("silent": whatever has no annotation was listened to and found silent). With `blocks` (of
    `truth.recordings`) only what lies in them is scored. `ignored` are regions of `truth.recordings` where nobody looked or
    was sure: what lies in them and hits nothing is left out. `rounding` "grid" puts truths on whole frames and bins, as models
    learn them; boxes of any other tool are compared with truths as they are written ("none").
    """
    if detections.is_per_chunk:
        raise DataError(
            "these detections are of single chunks, which overlap by half:\n"
            "give the prepared archive they were made from as annotations"
        )
    number = numbers_in(truth.recordings, detections.recordings)
    refuse_strangers(number, _names(truth.recordings), _names(detections.recordings))
    if unlisted == "silent":
        truth = _with_silent(truth, detections)
    truth = replace(truth, recordings=with_facts_of(truth.recordings, detections.recordings))
    is_elsewhere = (number[detections.recording] < 0) & (unlisted == "skip")
    left_out = {ELSEWHERE: _left_out(detections, is_elsewhere)}
    detections = renumbered(detections, truth.recordings)
    det_boxes, det_seen = boxes_of_events(detections, space)
    truth_boxes, truth_seen = boxes_of_events(truth, space, rounding)
    if not len(truth.recordings):
        raise DataError(
            "no annotated recording to score against:\ncheck that both tables speak of the same recordings"
        )
    asked = [np.ones(len(t), bool) if blocks is None else is_within(t, blocks) for t in (detections, truth)]
    left_out["detections outside 20-8000 Hz"] = _left_out(detections, ~det_seen & asked[0])
    hidden = _left_out(truth, ~truth_seen & asked[1])
    left_out["annotations outside 20-8000 Hz"] = LeftOut(hidden.row, np.full(len(hidden.row), np.inf))
    det_seen, truth_seen = det_seen & asked[0], truth_seen & asked[1]
    detections, det_boxes = detections.take(det_seen), det_boxes[det_seen]
    truth, truth_boxes = truth.take(truth_seen), truth_boxes[truth_seen]
    matches = match(detections.recording, det_boxes, detections.score, truth.recording, truth_boxes, iou)
    if ignored is not None and len(ignored):
        matches, left = judged(matches, det_boxes, ignored.recording, boxes_of_events(ignored, space)[0])
        left_out[UNJUDGED] = _left_out(detections, ~left)
        detections, det_boxes = detections.take(left), det_boxes[left]
    groups = np.arange(len(truth.recordings))
    return Scored(
        matches,
        det_boxes,
        truth_boxes,
        iou,
        groups,
        len(groups),
        "recording",
        lambda: (detections, truth),
        left_out,
    )


def _left_out(events: EventTable, chosen: NDArray[np.bool_]) -> LeftOut:
    return LeftOut(np.flatnonzero(chosen), events.score[chosen])


def left_out(scored: Iterable[Scored], threshold: float) -> dict[str, int]:
    """Why -> how many annotations, and detections from the threshold on, were not scored in any of several splits of one
    table: a detection of one split lies elsewhere for every other.
    """
    rows: dict[str, list[list[int]]] = {}
    for one in scored:
        for why, left in one.left_out.items():
            rows.setdefault(why, []).append(left.row[left.score >= threshold].tolist())
    return {
        why: len(set.intersection(*map(set, several))) if why == ELSEWHERE else sum(map(len, several))
        for why, several in rows.items()
    }


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
    """Figures per site, hour of day, duration, bandwidth or label (recall only, where detections have no names)."""
    both = (scored.detections, scored.truth)
    sizes = None
    match by:
        case "site":
            names = tuple(sorted(set(scored.truth.recordings.site) - {""}))
            place = {name: row for row, name in enumerate(names)}
            cell = np.array([place.get(name, -1) for name in scored.truth.recordings.site], np.int64)
            cells = [cell[table.recording] for table in both]
            sizes = np.bincount(cell[cell >= 0], minlength=len(names)).tolist()
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
            if has_names(scored):
                return _breakdown_of_names(scored, threshold, num_resamples, seed)
            names = tuple(sorted({str(label) for label in scored.truth.label} - {""}))
            place = {name: row for row, name in enumerate(names)}
            of_truth = np.array([place.get(str(label), -1) for label in scored.truth.label], np.int64)
            cells = [np.full(len(scored.detections), -1, np.int64), of_truth]
    knobs = (threshold, scored.recording_of_group, num_resamples, seed, scored.in_time, sizes)
    found = breakdown(scored.matches, cells[0], cells[1], names, *knobs)
    return [of_truths_alone(cell) for cell in found] if by == "label" else found


def has_names(scored: Scored) -> bool:
    """Whether detections carry names that the truth knows: an export of nameless boxes calls them all `call`. Those of a
    model with names do, also where all are called `unknown` or by wrong names: a recall without names would hide that.
    """
    return scored.are_named or bool(
        set(scored.detections.label.tolist()) & set(scored.truth.label.tolist()) - {""}
    )


def _breakdown_of_names(scored: Scored, threshold: float, num_resamples: int, seed: int) -> list[Cell]:
    found, true = scored.detections.label, scored.truth.label
    names = sorted({str(name) for name in (*found, *true)} - {"", UNKNOWN})
    knobs = (threshold, scored.recording_of_group, num_resamples, seed, scored.in_time)
    return breakdown_of_names(scored.matches, found, true, names, *knobs)


def outcomes(scored: Scored, threshold: float) -> dict[str, Any]:
    """Columns of one row per kept detection and per missed truth, for a table to look at: outcome is hit,
    false_alarm or miss."""
    kept = np.flatnonzero(scored.matches.score >= threshold)
    taken = scored.matches.detection_index
    missed = np.flatnonzero((taken < 0) | ~np.isin(taken, kept))
    parts = (scored.detections.take(kept), scored.truth.take(missed))
    hit = scored.matches.is_true_positive[kept]
    recordings = scored.truth.recordings
    names = np.array(_names(recordings), object)
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
