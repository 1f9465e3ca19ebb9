"""COCO JSON with recordings as images: bbox = [begin_s, low_hz, duration_s, bandwidth_hz], width = seconds,
height = Nyquist in hertz.

The frequency axis points up (low_hz is the smaller number), unlike pixels. A label without band has the
whole height and `"time_only": true`. Images without annotations were gone through and hold nothing.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

from mast_ray.config.errors import DataError
from mast_ray.recordings.annotations.model import Annotation, AudioFacts, Parsed, least_facts

CONVENTION = (
    "bbox = [begin_s, low_hz, duration_s, bandwidth_hz]; images are recordings, width in s, height in Hz"
)


def is_coco(document: Any) -> bool:
    return isinstance(document, dict) and "images" in document and "annotations" in document


def parse(document: Any, source: str) -> Parsed:
    try:
        files = {image["id"]: str(image["file_name"]) for image in document["images"]}
        labels = {category["id"]: str(category["name"]) for category in document.get("categories", ())}
        annotations = tuple(_annotation(entry, files, labels) for entry in document["annotations"])
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise DataError(
            f"{source}: not COCO as it is read here ({error!r}):\nexpected {CONVENTION}"
        ) from error
    return Parsed(annotations, tuple(files.values()))


def _annotation(entry: Mapping[str, Any], files: Mapping[Any, str], labels: Mapping[Any, str]) -> Annotation:
    begin_s, low_hz, duration_s, bandwidth_hz = (float(value) for value in entry["bbox"])
    if (
        not all(map(math.isfinite, (begin_s, low_hz, duration_s, bandwidth_hz)))
        or duration_s < 0
        or bandwidth_hz < 0
    ):
        raise ValueError(f"bbox {entry['bbox']}")
    is_time_only = bool(entry.get("time_only"))
    return Annotation(
        path=files[entry["image_id"]],
        begin_s=begin_s,
        end_s=begin_s + duration_s,
        low_hz=None if is_time_only else low_hz,
        high_hz=None if is_time_only else low_hz + bandwidth_hz,
        label=labels.get(entry.get("category_id"), ""),
        score=None if entry.get("score") is None else float(entry["score"]),
        extra={str(key): str(value) for key, value in entry.get("extra", {}).items()},
    )


def write(annotations: Sequence[Annotation], paths: Sequence[str], facts: Mapping[str, AudioFacts]) -> str:
    labels = sorted({annotation.label for annotation in annotations})
    category_ids = {label: index for index, label in enumerate(labels, start=1)}
    image_ids = {path: index for index, path in enumerate(sorted(paths), start=1)}
    known = {**least_facts(annotations, paths), **facts}
    heights = {path: known[path].sample_rate_hz / 2 for path in image_ids}
    document = {
        "info": {"description": "sound events", "convention": CONVENTION},
        "images": [
            {"id": index, "file_name": path, "width": known[path].duration_s, "height": heights[path]}
            for path, index in image_ids.items()
        ],
        "categories": [{"id": index, "name": label} for label, index in category_ids.items()],
        "annotations": [
            _entry(index, a, image_ids[a.path], category_ids[a.label], heights[a.path])
            for index, a in enumerate(
                sorted(annotations, key=lambda a: (a.path, a.begin_s, a.end_s)), start=1
            )
        ],
    }
    return json.dumps(document, indent=1, ensure_ascii=False)


def _entry(
    index: int, annotation: Annotation, image_id: int, category_id: int, height_hz: float
) -> dict[str, Any]:
    low_hz, high_hz = annotation.low_hz, annotation.high_hz
    is_time_only = low_hz is None or high_hz is None
    if low_hz is None or high_hz is None:
        low_hz, high_hz = 0.0, height_hz
    duration_s, bandwidth_hz = annotation.end_s - annotation.begin_s, high_hz - low_hz
    entry: dict[str, Any] = {
        "id": index,
        "image_id": image_id,
        "category_id": category_id,
        "bbox": [annotation.begin_s, low_hz, duration_s, bandwidth_hz],
        "area": duration_s * bandwidth_hz,
        "iscrowd": 0,
    }
    if is_time_only:
        entry["time_only"] = True
    if annotation.score is not None:
        entry["score"] = annotation.score
    if annotation.extra:
        entry["extra"] = dict(annotation.extra)
    return entry
