"""Chooses what to look at and to listen to: hardest misses and most confident false alarms first.

Detections follow schemas.DETECTIONS, truth follows schemas.LABELS, recordings follow schemas.RECORDINGS. With
truth, only annotated recordings are judged: in the others nobody knows what a false alarm is.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta, timezone
from itertools import zip_longest
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from mast_ray.evaluation.matching import Matches, match
from mast_ray.recordings.decoding.faults import UnreadableRecording
from mast_ray.recordings.decoding.reading import Channel
from mast_ray.reporting.clips import OutsideAudioError, channel_heard, clip_uris, read_window
from mast_ray.reporting.detection_tables import stitched
from mast_ray.reporting.exports.rows import detection_id
from mast_ray.reporting.report.contents import Box, Example, Kind, Neighbour
from mast_ray.spectrogram.grid import (
    HIGH_HZ,
    HOP_S,
    LOW_HZ,
    SAMPLE_RATE_HZ,
    boxes_from_seconds_hertz,
    fractional_frames,
    hertz_to_bin,
)
from mast_ray.spectrogram.logmel import LogMel
from mast_ray.storage.storage import Storage

log = logging.getLogger("mast.report")

LONGEST_WINDOW_S = 15.0
MARKUP_BYTES = 3000  # of one example besides its picture, its sound and its boxes
BOX_BYTES = 450  # of one box in the page
MIN_CLIP_BYTES = 20_000  # for a picture and a sound one can still judge


@dataclass(frozen=True)
class GallerySettings:
    num_examples: int = 200
    window_s: float = HOP_S
    threshold: float = 0.0  # detections under it count as not made; those down to half of it are shown
    iou: float = 0.5
    max_bytes: int = 9_000_000  # of pictures and sounds, so that the whole file stays under 10 MB
    num_neighbours: int = 5
    channel: Channel = "mean"  # that the detector has heard


@dataclass(frozen=True)
class Gallery:
    examples: tuple[Example, ...]
    note: str


@dataclass(frozen=True)
class _Pick:
    """A box to show: row of the detections (or of the truth, for a miss)."""

    kind: Kind
    row: int


@dataclass(frozen=True)
class _Boxes:
    """Columns of a table of boxes as arrays, with the row of the recording each belongs to."""

    recording: NDArray[np.int64]
    corners: NDArray[np.float64]  # (N, 4) begin_s, low_hz, end_s, high_hz
    score: NDArray[np.float64]
    label: list[str]


def _boxes(table: pa.Table, row_of: dict[str, int]) -> _Boxes:
    ids = table.column("recording_id").to_pylist()
    columns = [
        table.column(c).to_numpy(zero_copy_only=False) for c in ("begin_s", "low_hz", "end_s", "high_hz")
    ]
    corners = np.stack(columns, axis=1).astype(np.float64) if len(table) else np.zeros((0, 4))
    label = table.column("label").to_pylist() if "label" in table.column_names else [""] * len(table)
    score = table.column("score").to_numpy(zero_copy_only=False).astype(np.float64)
    recording = np.array([row_of.get(i, -1) for i in ids], np.int64)
    return _Boxes(recording, corners, score, [text or "" for text in label])


def match_boxes(detections: _Boxes, truth: _Boxes, iou: float) -> Matches:
    """The evaluator's matching, in frames and mel bins: truth on the grid as in
    training, detections as they are.
    """
    seen_truth, _ = boxes_from_seconds_hertz(*truth.corners.T[[0, 2, 1, 3]])
    seen_truth[np.isnan(truth.corners[:, 1]), 1::2] = np.nan  # time-only
    seen = detections.corners.copy()
    seen[:, 0::2] = fractional_frames(seen[:, 0::2])
    seen[:, 1::2] = hertz_to_bin(np.clip(seen[:, 1::2], LOW_HZ, HIGH_HZ))
    return match(detections.recording, seen, detections.score, truth.recording, seen_truth, iou)


def channel_of_run(manifests: Mapping[str, Mapping[str, Any]]) -> Channel:
    """The channel that was listened to: by the stage that detected, else by the one that prepared."""
    configs = {str(m.get("stage")): m.get("config") or {} for m in manifests.values()}
    return channel_heard(configs.get("detect") or configs.get("prepare") or {})


def build_gallery(
    detections: pa.Table,
    truth: pa.Table | None,
    recordings: pa.Table,
    audio: Storage | None,
    settings: GallerySettings,
    say: Callable[[str], None] = lambda text: None,
) -> Gallery:
    """Examples with picture and sound; unreadable recordings are passed over and counted in the note."""
    detections = stitched(detections)
    row_of = {name: row for row, name in enumerate(recordings.column("recording_id").to_pylist())}
    found = _boxes(detections, row_of)
    known = _boxes(truth, row_of) if truth is not None else None
    if known is not None:
        heard = ~(
            (known.corners[:, 1] >= HIGH_HZ) | (known.corners[:, 3] <= LOW_HZ)
        )  # true for time-only labels
        known = _take(known, np.flatnonzero((known.recording >= 0) & heard))
    matches = None
    if known is not None and len(known.score):
        annotated = _annotated_rows(recordings, known)
        judged = np.flatnonzero(annotated[found.recording] & (found.recording >= 0))
        found = _take(found, judged)
        detections = detections.take(pa.array(judged))
        matches = match_boxes(found, known, settings.iou)
        picks = _judged_picks(matches, known, settings.threshold, 20 * settings.num_examples)
    else:
        picks = _unjudged_picks(found, settings.threshold, settings.num_examples)
    if audio is None:
        return Gallery((), "")
    shown, passed_over = _render(picks, found, known, matches, detections, recordings, audio, settings, say)
    note = f"{len(shown)} examples."
    if passed_over:
        note += f" {passed_over} more were left out because their recording could not be read."
    return Gallery(tuple(shown), note)


def _annotated_rows(recordings: pa.Table, known: _Boxes) -> NDArray[np.bool_]:
    flag = (
        pc.fill_null(recordings.column("is_annotated"), False)
        .to_numpy(zero_copy_only=False)
        .astype(bool)
        .copy()
    )
    flag[known.recording[known.recording >= 0]] = True
    return flag


def _take(boxes: _Boxes, rows: NDArray[np.int64]) -> _Boxes:
    return _Boxes(
        boxes.recording[rows], boxes.corners[rows], boxes.score[rows], [boxes.label[i] for i in rows]
    )


def _judged_picks(matches: Matches, known: _Boxes, threshold: float, most: int) -> list[_Pick]:
    """Misses (lowest best score first, then largest) and false alarms (highest
    score first) in turn, then hits.

    `most` of each kind: more than are shown, because several often lie in one window.
    """
    taken_by = matches.detection_index
    best = np.where(taken_by >= 0, matches.score[taken_by] if len(matches.score) else 0.0, 0.0)
    missed = np.flatnonzero((best < threshold) | (taken_by < 0))
    size = np.nan_to_num(
        (known.corners[:, 2] - known.corners[:, 0]) * (known.corners[:, 3] - known.corners[:, 1])
    )
    missed = missed[np.lexsort((-size[missed], best[missed]))]
    kept = matches.order[matches.score[matches.order] >= threshold]
    is_hit = matches.is_true_positive[kept]
    alarms, hits = kept[~is_hit], kept[is_hit]
    hits = hits[np.argsort(matches.iou[hits], kind="stable")]  # the loosest boxes first
    wrong = zip_longest(
        (_Pick("miss", int(i)) for i in missed[:most]), (_Pick("false_alarm", int(i)) for i in alarms[:most])
    )
    return [pick for pair in wrong for pick in pair if pick is not None] + [
        _Pick("hit", int(i)) for i in hits[:most]
    ]


def _unjudged_picks(found: _Boxes, threshold: float, num_examples: int) -> list[_Pick]:
    """Spread evenly over the ranks of the scores from half the threshold on, best first: to see what it lets through.

    Most of a table lies far below, and nobody wants to hear that; where it holds nothing else, that is shown.
    """
    order = np.argsort(-found.score, kind="stable")
    order = order[found.recording[order] >= 0]
    shown = order[found.score[order] >= threshold / 2]
    order = shown if len(shown) else order
    if len(order) > num_examples:
        order = order[np.unique(np.linspace(0, len(order) - 1, num_examples).round().astype(int))]
    return [_Pick("detection", int(i)) for i in order]


def window_of(begin_s: float, end_s: float, duration_s: float, window_s: float) -> tuple[float, float]:
    """A window around a box with a second on both sides, inside the recording, not longer than 15 s."""
    length = min(max(window_s, end_s - begin_s + 2.0), LONGEST_WINDOW_S, duration_s)
    middle = (begin_s + end_s) / 2 if end_s - begin_s + 2.0 <= length else begin_s - 1.0 + length / 2
    first = min(max(middle - length / 2, 0.0), max(duration_s - length, 0.0))
    return round(first, 2), round(first + length, 2)


def _render(
    picks: list[_Pick],
    found: _Boxes,
    known: _Boxes | None,
    matches: Matches | None,
    detections: pa.Table,
    recordings: pa.Table,
    audio: Storage,
    settings: GallerySettings,
    say: Callable[[str], None],
) -> tuple[list[Example], int]:
    rows = recordings.to_pylist() if len(recordings) < 100_000 else None
    logmel = LogMel()
    neighbours = _Neighbours(detections, settings.num_neighbours)
    shown: list[Example] = []
    windows: dict[tuple[int, str], list[tuple[float, float]]] = {}
    num_bytes, passed_over, is_told = 0, 0, False
    kept_for_hits = min(sum(pick.kind == "hit" for pick in picks), settings.num_examples // 5)
    for pick in picks:
        if len(shown) >= settings.num_examples - (0 if pick.kind == "hit" else kept_for_hits):
            continue
        source = known if pick.kind == "miss" else found
        assert source is not None
        row, (begin_s, _, end_s, _) = int(source.recording[pick.row]), source.corners[pick.row]
        middle = (begin_s + end_s) / 2
        if any(first <= middle <= last for first, last in windows.get((row, pick.kind), [])):
            continue  # already in sight in an earlier example
        recording = rows[row] if rows is not None else recordings.slice(row, 1).to_pylist()[0]
        window = window_of(begin_s, end_s, recording["duration_s"], settings.window_s)
        try:
            samples = read_window(audio, recording["path"], *window, settings.channel)
        except (UnreadableRecording, OutsideAudioError, OSError) as error:
            if isinstance(error, OutsideAudioError) and not is_told:
                log.warning("%s", error)
                is_told = True
            passed_over += 1
            continue
        if len(samples) < SAMPLE_RATE_HZ // 10:
            passed_over += 1
            continue
        boxes, focus = _boxes_in(
            window, row, pick, found, known, matches, recording["path"], settings.threshold
        )
        markup = MARKUP_BYTES + BOX_BYTES * len(boxes)
        share = max(MIN_CLIP_BYTES, settings.max_bytes // max(settings.num_examples, 1) - markup)
        image, sound = clip_uris(samples, logmel, share)
        num_bytes += len(image) + len(sound) + markup
        if num_bytes > settings.max_bytes:
            break
        example = Example(
            kind=pick.kind,
            path=recording["path"],
            site=recording["site"] or "",
            window_begin_s=window[0],
            window_end_s=round(window[0] + len(samples) / SAMPLE_RATE_HZ, 3),
            boxes=boxes,
            focus=focus,
            image_uri=image,
            audio_uri=sound,
            when=absolute_time(recording["start_utc"], recording["utc_offset_s"], window[0]),
            neighbours=neighbours.of(pick.row) if pick.kind != "miss" else (),
        )
        shown.append(example)
        say(f"report: {len(shown):,} of up to {settings.num_examples:,} pictures")
        windows.setdefault((row, pick.kind), []).append(window)
    return shown, passed_over


def absolute_time(start_utc: datetime | None, utc_offset_s: int | None, seconds: float) -> str:
    """Local time with its zone and UTC beside it; empty when unknown."""
    if start_utc is None:
        return ""
    moment = start_utc.astimezone(UTC) + timedelta(seconds=float(seconds))
    if utc_offset_s is None:
        return f"{moment:%Y-%m-%d %H:%M:%S} UTC"
    local = moment.astimezone(timezone(timedelta(seconds=int(utc_offset_s))))
    zone = local.strftime("%z")
    return f"{local:%Y-%m-%d %H:%M:%S} {zone[:3]}:{zone[3:5]} ({moment:%H:%M:%S} UTC)"


def _boxes_in(
    window: tuple[float, float],
    row: int,
    pick: _Pick,
    found: _Boxes,
    known: _Boxes | None,
    matches: Matches | None,
    path: str,
    threshold: float,
) -> tuple[tuple[Box, ...], int]:
    """Every box of the recording that touches the window, the picked one marked."""
    boxes: list[Box] = []
    focus = 0
    for kind, source in (("truth", known), ("prediction", found)):
        if source is None:
            continue
        touching = (
            (source.recording == row)
            & (source.corners[:, 0] < window[1])
            & (source.corners[:, 2] > window[0])
        )
        # tables reach far below the threshold: hundreds of faint boxes would hide the call
        if kind == "prediction":
            touching &= (source.score >= threshold / 2) | (np.arange(len(touching)) == pick.row)
        for i in np.flatnonzero(touching):
            begin_s, low_hz, end_s, high_hz = (float(v) for v in source.corners[i])
            low_hz = LOW_HZ if np.isnan(low_hz) else low_hz  # a time-only label spans the whole band
            high_hz = HIGH_HZ if np.isnan(high_hz) else high_hz
            name = detection_id(path, begin_s, end_s, low_hz, high_hz)
            box = Box(kind, begin_s, end_s, low_hz, high_hz, label=source.label[i], box_id=name)  # type: ignore[arg-type]
            if kind == "truth":
                box = replace(box, box_id=f"label-{name}")
                if matches is not None:
                    by = matches.detection_index[i]
                    is_found = by >= 0 and matches.score[by] >= threshold
                    box = replace(box, outcome="hit" if is_found else "miss")
            else:
                score = round(float(source.score[i]), 4)
                box = replace(box, score=score)
                if matches is not None:
                    box = replace(box, outcome="hit" if matches.truth_index[i] >= 0 else "false_alarm")
            if i == pick.row and (kind == "truth") == (pick.kind == "miss"):
                focus = len(boxes)
            boxes.append(box)
    return tuple(boxes), focus


class _Neighbours:
    """Nearest detections by cosine similarity of the `embedding` column, when there is one."""

    def __init__(self, detections: pa.Table, count: int) -> None:
        self._table, self._count, self._unit = detections, count, None
        if "embedding" in detections.column_names and len(detections) > 1 and count > 0:
            flat = np.array(detections.column("embedding").to_pylist(), np.float32)
            norm = np.linalg.norm(flat, axis=1, keepdims=True)
            self._unit = flat / np.maximum(norm, 1e-12)

    def of(self, row: int) -> tuple[Neighbour, ...]:
        if self._unit is None:
            return ()
        likeness = self._unit @ self._unit[row]
        likeness[row] = -np.inf
        best = np.argsort(-likeness)[: min(self._count, len(likeness) - 1)]
        rows = self._table.select(["path", "begin_s", "end_s"]).take(pa.array(best)).to_pylist()
        return tuple(
            Neighbour(r["path"], r["begin_s"], r["end_s"], float(likeness[i]))
            for r, i in zip(rows, best, strict=True)
        )
