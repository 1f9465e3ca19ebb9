"""AOEF, the JSON of soundevent and whombat: annotation sets, projects and
prediction sets in; annotation sets out.

Times in AOEF are those of the animal: for a time-expanded recording they are divided by the factor, so they
are multiplied back to seconds of the file (and frequencies divided). Identifiers are derived from the
content: the same annotations give the same file.
"""

from __future__ import annotations

import json
import math
import uuid
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any

from mast_ray.config.errors import DataError
from mast_ray.recordings.annotations.model import Annotation, AudioFacts, Parsed, Span, least_facts

VERSION = "1.1.0"
LABEL_KEYS = (
    "label",
    "species",
    "dwc:scientificName",
    "scientific_name",
    "class",
    "event",
    "sonotype",
    "common_name",
    "order",
    "genus",
)
BESIDE = frozenset(
    {"Detection", "Queue", "Reviewer"}
)  # tags that `mast review --export` writes beside a name
ANNOTATIONS = (
    "clip_annotations", "clip_predictions", "sound_event_annotations", "sound_event_predictions",
)  # fmt: skip
DONE = frozenset({"completed", "verified"})  # states of an annotation task
EDGE_S = 0.01  # a clip may end a frame before its recording
_NAMESPACE = uuid.UUID("6f1e1c0a-7f5f-4f62-9d3e-3c2b8c0f6d11")


def is_aoef(document: Any) -> bool:
    return (
        isinstance(document, dict)
        and isinstance(document.get("data"), dict)
        and "collection_type" in document["data"]
    )


def parse(document: Any, source: str) -> Parsed:
    data = document["data"]
    if not any(data.get(key) for key in ANNOTATIONS):
        raise DataError(
            f"{source}: AOEF of a {str(data['collection_type']).replace('_', ' ')}, without any annotation in it:\n"
            "export the annotation project or the annotations from whombat"
        )
    try:
        recordings = {entry["uuid"]: entry for entry in data.get("recordings") or ()}
        tags = {entry["id"]: (str(entry["key"]), str(entry["value"])) for entry in data.get("tags") or ()}
        events = {entry["uuid"]: entry for entry in data.get("sound_events") or ()}
        clips = {entry["uuid"]: entry["recording"] for entry in data.get("clips") or ()}
        gone_through = [
            str(recordings[clips[entry["clip"]]]["path"])
            for key in ("clip_annotations", "clip_predictions")
            for entry in data.get(key) or ()
        ]
        spans = _spans(data, recordings)
        annotations, problems = [], []
        for key in ("sound_event_annotations", "sound_event_predictions"):
            for entry in data.get(key) or ():
                event = events[entry["sound_event"]]
                try:
                    annotations.append(_annotation(entry, event, recordings[event["recording"]], tags))
                except ValueError as error:
                    problems.append(f"{source}, sound event {entry['sound_event']}: {error}")
    except (KeyError, TypeError, AttributeError) as error:
        raise DataError(
            f"{source}: broken AOEF ({error!r}):\nexport it again from whombat or soundevent"
        ) from error
    mentioned = dict.fromkeys([*gone_through, *(annotation.path for annotation in annotations)])
    return Parsed(tuple(annotations), tuple(mentioned), tuple(problems), spans)


def _spans(data: Mapping[str, Any], recordings: Mapping[str, Any]) -> tuple[Span, ...]:
    """The clips that were gone through, of recordings that they do not cover wholly.

    In a project, a clip's task says whether it is done; where no task of a project says anything, all are.
    """
    clips = {entry["uuid"]: entry for entry in data.get("clips") or ()}
    states = {
        task["clip"]: {badge.get("state") for badge in task.get("status_badges") or ()}
        for task in data.get("tasks") or ()
    }
    says_done = any(state & DONE for state in states.values())
    spans: dict[str, list[Span]] = {}
    for key in ("clip_annotations", "clip_predictions"):
        for entry in data.get(key) or ():
            clip = clips[entry["clip"]]
            recording = recordings[clip["recording"]]
            own = spans.setdefault(clip["recording"], [])
            if says_done and not states.get(entry["clip"], set()) & DONE:
                continue
            factor = float(recording.get("time_expansion") or 1.0)
            begin_s, end_s = float(clip["start_time"]) * factor, float(clip["end_time"]) * factor
            own.append(Span(str(recording["path"]), begin_s, end_s))
    partly: list[Span] = []
    for identity, own in spans.items():
        factor = float(recordings[identity].get("time_expansion") or 1.0)
        duration_s = float(recordings[identity].get("duration") or 0.0) * factor
        if not _covers(own, duration_s):
            partly += own or [Span(str(recordings[identity]["path"]), 0.0, 0.0)]
    return tuple(partly)


def _covers(spans: Sequence[Span], duration_s: float) -> bool:
    at_s = 0.0
    for span in sorted(spans, key=lambda span: span.begin_s):
        if span.begin_s > at_s + EDGE_S:
            return False
        at_s = max(at_s, span.end_s)
    return bool(spans) and at_s >= duration_s - EDGE_S


def _annotation(
    entry: Mapping[str, Any],
    event: Mapping[str, Any],
    recording: Mapping[str, Any],
    tags: Mapping[int, tuple[str, str]],
) -> Annotation:
    begin_s, low_hz, end_s, high_hz = _bounds(event["geometry"])
    expansion = float(recording.get("time_expansion") or 1.0)
    # A prediction's tags are pairs (tag, score), in any order: the likeliest names it.
    pairs = [tag if isinstance(tag, list) else (tag, 1.0) for tag in entry.get("tags") or ()]
    own = [tags[tag] for tag, _ in sorted(pairs, key=lambda pair: -float(pair[1]))]
    keys = [key for key, _ in own if key not in BESIDE]
    label_key = next((key for key in LABEL_KEYS if key in keys), keys[0] if keys else "")
    label = next((value for key, value in own if key == label_key), "")
    features = event.get("features") or {}
    score = entry.get("score", features.get("score"))
    extra = {key: value for key, value in own if key != label_key}
    return Annotation(
        path=str(recording["path"]),
        begin_s=begin_s * expansion,
        end_s=end_s * expansion,
        low_hz=None if low_hz is None else low_hz / expansion,
        high_hz=None if high_hz is None else high_hz / expansion,
        label=label,
        score=None if score is None else float(score),
        extra=extra,
    )


def _bounds(geometry: Mapping[str, Any]) -> tuple[float, float | None, float, float | None]:
    """(begin, low, end, high) of any geometry; times alone have no band."""
    coordinates = geometry["coordinates"]
    bounds: tuple[float, float | None, float, float | None]
    match geometry["type"]:
        case "TimeStamp":
            bounds = (coordinates, None, coordinates, None)
        case "TimeInterval":
            bounds = (coordinates[0], None, coordinates[1], None)
        case "BoundingBox":
            bounds = (coordinates[0], coordinates[1], coordinates[2], coordinates[3])
        case _:
            points = list(_points(coordinates))
            times, hertz = [point[0] for point in points], [point[1] for point in points]
            bounds = (min(times), min(hertz), max(times), max(hertz))
    if not all(value is None or math.isfinite(value) for value in bounds) or bounds[2] < bounds[0]:
        raise ValueError(f"geometry {geometry['type']} with coordinates that cannot be")
    return bounds


def _points(coordinates: Any) -> Iterator[tuple[float, float]]:
    """The (time, frequency) pairs of nested coordinate lists."""
    if len(coordinates) == 2 and all(isinstance(value, int | float) for value in coordinates):
        yield float(coordinates[0]), float(coordinates[1])
    else:
        for inner in coordinates:
            yield from _points(inner)


def write(
    annotations: Sequence[Annotation],
    paths: Sequence[str],
    facts: Mapping[str, AudioFacts],
    *,
    spans: Sequence[Span] = (),
    created_on: datetime = datetime(2000, 1, 1),
    name: str = "mast_ray",
) -> str:
    """An annotation set; the label is a tag `label`, other columns are tags, a score
    is a feature of the sound event. Where a recording was gone through in part, its clips are those `spans`.
    """
    tag_ids: dict[tuple[str, str], int] = {}
    events, event_annotations = [], []
    by_path: dict[str, list[tuple[float, str]]] = {path: [] for path in sorted(paths)}  # -> begin, id
    known = {**least_facts(annotations, paths), **facts}
    for index, annotation in enumerate(sorted(annotations, key=lambda a: (a.path, a.begin_s, a.end_s))):
        identity = f"{annotation.path}|{index}|{annotation.begin_s!r}|{annotation.end_s!r}|{annotation.label}"
        event_id, annotation_id = _identifier("event", identity), _identifier("annotation", identity)
        own = [("label", annotation.label)] * bool(annotation.label) + sorted(annotation.extra.items())
        event: dict[str, Any] = {
            "uuid": event_id,
            "recording": _identifier("recording", annotation.path),
            "geometry": _geometry(annotation),
        }
        if annotation.score is not None:
            event["features"] = {"score": annotation.score}
        events.append(event)
        event_annotations.append(
            {
                "uuid": annotation_id,
                "sound_event": event_id,
                "tags": [tag_ids.setdefault(tag, len(tag_ids)) for tag in own],
                "created_on": created_on.isoformat(),
            }
        )
        by_path[annotation.path].append((annotation.begin_s, annotation_id))
    recordings = [_recording(path, known[path]) for path in by_path]
    clips = [
        clip
        for r in recordings
        for clip in _clips(r, [s for s in spans if s.path == r["path"]], by_path[r["path"]])
    ]
    data = {
        "uuid": _identifier("set", "\n".join(by_path) + json.dumps(events)),
        "name": name,
        "collection_type": "annotation_set",
        "created_on": created_on.isoformat(),
        "tags": [{"id": index, "key": key, "value": value} for (key, value), index in tag_ids.items()],
        "recordings": recordings,
        "sound_events": events,
        "sound_event_annotations": event_annotations,
        "clips": [clip for clip, _ in clips],
        "clip_annotations": [
            {
                "uuid": _identifier("clip annotation", clip["uuid"]),
                "clip": clip["uuid"],
                "sound_events": ids,
            }
            for clip, ids in clips
        ],
    }
    return json.dumps(
        {"version": VERSION, "created_on": created_on.isoformat(), "data": data}, indent=1, ensure_ascii=False
    )


def _clips(
    recording: Mapping[str, Any], spans: Sequence[Span], events: Sequence[tuple[float, str]]
) -> list[tuple[dict[str, Any], list[str]]]:
    """The clips of a recording with the events that begin in each; those that begin in none are with the first."""
    stretches = [(span.begin_s, span.end_s) for span in spans] or [(0.0, recording["duration"])]
    ids: list[list[str]] = [[] for _ in stretches]
    for begin_s, identity in events:
        inside = [number for number, (begin, end) in enumerate(stretches) if begin <= begin_s < end]
        ids[inside[0] if inside else 0].append(identity)
    clips = [
        {
            "uuid": _identifier("clip", f"{recording['path']}|{begin!r}" if spans else recording["path"]),
            "recording": recording["uuid"],
            "start_time": begin,
            "end_time": end,
        }
        for begin, end in stretches
    ]
    return list(zip(clips, ids, strict=True))


def _geometry(annotation: Annotation) -> dict[str, Any]:
    if annotation.low_hz is None or annotation.high_hz is None:
        return {"type": "TimeInterval", "coordinates": [annotation.begin_s, annotation.end_s]}
    box = [annotation.begin_s, annotation.low_hz, annotation.end_s, annotation.high_hz]
    return {"type": "BoundingBox", "coordinates": box}


def _recording(path: str, known: AudioFacts) -> dict[str, Any]:
    return {
        "uuid": _identifier("recording", path),
        "path": path,
        "duration": known.duration_s,
        "channels": known.num_channels,
        "samplerate": known.sample_rate_hz,
    }


def _identifier(kind: str, identity: str) -> str:
    return str(uuid.uuid5(_NAMESPACE, f"{kind}|{identity}"))
