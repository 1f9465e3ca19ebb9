"""pamDP, the acoustic sister of Camtrap DP: deployments.csv, media.csv and
observations.csv with a datapackage.json.

A deployment is a site, a medium is a recording, an observation is a box. Column names and their order follow
the tables that pamflow documents; times are ISO 8601 with their offset, boxes are seconds and hertz.
Audiovisual Core's names stand in datapackage.json (startTime = bboxTime, freqLow = bboxFrequency, ...).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import datetime, timedelta
from pathlib import PurePosixPath
from typing import Any

import pyarrow as pa

from mast_ray.evaluation.naming.names import UNKNOWN
from mast_ray.recordings.annotations.tabular import defused, written_table
from mast_ray.reporting.exports.rows import audio_facts, clipped_box, detection_id, local_text, utc_text

DEPLOYMENTS = (
    "deploymentID", "locationID", "locationName", "latitude", "longitude", "coordinateUncertainty", "deploymentStart",
    "deploymentEnd", "setupBy", "recorderID", "recorderModel", "recorderHeight", "recorderConfiguration", "habitat",
    "deploymentGroups", "deploymentComments",
)  # fmt: skip
MEDIA = (
    "mediaID", "deploymentID", "captureMethod", "timestamp", "filePath", "filePublic", "fileName", "fileMediatype", "sampleRate",
    "bitDepth", "fileLength", "numChannels", "favorite", "mediaComments",
)  # fmt: skip
OBSERVATIONS = (
    "observationID", "deploymentID", "mediaID", "eventID", "observationLevel", "observationType", "scientificName", "eventStart",
    "eventEnd", "bboxTime", "bboxFrequency", "bboxDuration", "bboxBandwidth", "classificationMethod", "classifiedBy",
    "classificationTimestamp", "classificationProbability", "observationTags", "observationComments",
)  # fmt: skip
AUDIOVISUAL_CORE = {
    "bboxTime": "ac:startTime",
    "eventEnd": "ac:endTime",
    "bboxFrequency": "ac:freqLow",
    "bboxFrequency + bboxBandwidth": "ac:freqHigh",
}
_MEDIA_TYPES = {
    "wav": "audio/wav",
    "flac": "audio/flac",
    "ogg": "audio/ogg",
    "mp3": "audio/mpeg",
    "aiff": "audio/aiff",
}


def pamdp_files(detections: pa.Table, recordings: pa.Table | None) -> tuple[dict[str, str], tuple[str, ...]]:
    """Key -> text of the four files, and what is still missing for a valid package."""
    facts = audio_facts(recordings)
    rows = detections.drop_columns([c for c in ("embedding",) if c in detections.column_names]).to_pylist()
    known = recordings.to_pylist() if recordings is not None else []
    listed = {recording["path"] for recording in known}
    known += _recordings_of([row for row in rows if row["path"] not in listed])

    def stamp(moment: datetime | None, offset: int | None) -> str:
        return local_text(moment, offset) or utc_text(moment)

    sites: dict[str, list[dict[str, Any]]] = {}
    for recording in known:
        sites.setdefault(recording["site"] or "unknown", []).append(recording)
    media = []
    for recording in sorted(known, key=lambda r: r["path"]):
        name = PurePosixPath(recording["path"]).name
        kind = _MEDIA_TYPES.get(name.rpartition(".")[2].lower(), "application/octet-stream")
        comments = recording.get("time_flags") or ""
        media.append(
            [recording["recording_id"], recording["site"] or "unknown", "timeLapse",
             stamp(recording.get("start_utc"), recording.get("utc_offset_s")), recording["path"], "", name, kind,
             _text(recording.get("sample_rate_hz")), "", _text(recording.get("duration_s")), _text(recording.get("num_channels")),
             "", comments]
        )  # fmt: skip
    observations = []
    for row in rows:
        begin_s, end_s, low_hz, high_hz = clipped_box(row, facts.get(row["path"]))
        has_band = low_hz is not None and high_hz is not None
        name = detection_id(
            row["path"], row["begin_s"], row["end_s"], row["low_hz"] or 0.0, row["high_hz"] or 0.0
        )
        start = row["start_utc"]
        tags = f"start:{stamp(start, row['utc_offset_s'])}" if start is not None else ""
        label = row.get("label") or ""
        kind = "unknown" if label == UNKNOWN else "animal" if label else "unclassified"
        observations.append(
            [name, row["site"] or "unknown", row["recording_id"], "", "media", kind,
             "" if label == UNKNOWN else label, f"{begin_s:.3f}", f"{end_s:.3f}", f"{begin_s:.3f}", f"{low_hz:.1f}" if has_band else "",
             f"{end_s - begin_s:.3f}", f"{high_hz - low_hz:.1f}" if has_band else "", "machine",  # type: ignore[operator]
             f"mast_ray {row['model_sha'] or ''}".strip(), "",
             f"{row['score'] if row['probability'] is None else row['probability']:.4f}", tags, ""]
        )  # fmt: skip
    deployments = [_deployment(site, own, stamp) for site, own in sorted(sites.items())]
    files = {
        "deployments.csv": _table(DEPLOYMENTS, deployments),
        "media.csv": _table(MEDIA, media),
        "observations.csv": _table(OBSERVATIONS, observations),
    }
    files["datapackage.json"] = _datapackage()
    no_place = sum(not row[3] for row in deployments)
    notes = [
        f"{no_place} of {len(deployments)} deployments have no latitude and longitude, which pamDP requires"
    ] * bool(no_place)
    no_time = sum(not row[3] for row in media)
    notes += [
        f"{no_time} of {len(media)} media have no timestamp, as their clock or its zone is unknown: --timezone or --table says it"
    ] * bool(no_time)
    return files, (
        *notes,
        "recorderModel, recorderConfiguration and bitDepth are not known to mast: fill them in before publishing",
    )


def _deployment(site: str, recordings: list[dict[str, Any]], stamp: Any) -> list[str]:
    placed = next(
        (r for r in recordings if r.get("latitude") is not None and r.get("longitude") is not None), {}
    )
    timed = sorted((r for r in recordings if r.get("start_utc") is not None), key=lambda r: r["start_utc"])
    first = stamp(timed[0]["start_utc"], timed[0]["utc_offset_s"]) if timed else ""
    last = ""
    if timed:
        end = max(timed, key=lambda r: r["start_utc"] + timedelta(seconds=r.get("duration_s") or 0.0))
        last = stamp(end["start_utc"] + timedelta(seconds=end.get("duration_s") or 0.0), end["utc_offset_s"])
    place = [_text(placed.get("latitude")), _text(placed.get("longitude"))]
    return [site, site, site, *place, "", first, last, "", "", "", "", "", "", "", ""]


def _recordings_of(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """What detections alone say about their recordings: which there are, and when they began."""
    found: dict[str, dict[str, Any]] = {}
    for row in rows:
        start = row["start_utc"]
        if start is not None:
            start = start - timedelta(seconds=row["begin_s"])
        entry = {
            "recording_id": row["recording_id"],
            "path": row["path"],
            "site": row["site"],
            "start_utc": start,
        }
        found.setdefault(row["path"], entry | {"utc_offset_s": row["utc_offset_s"]})
    return list(found.values())


def _text(value: Any) -> str:
    return "" if value is None else str(value)


def _table(columns: tuple[str, ...], rows: list[list[str]]) -> str:
    # Longitudes and other numbers below zero are no formulas.
    safe = ([cell if _is_number(cell) else defused(cell) for cell in row] for row in rows)
    return written_table(columns, safe, ",")


def _is_number(cell: str) -> bool:
    try:
        float(cell)
    except ValueError:
        return False
    return True


def _datapackage() -> str:
    resources = [_resource(name, columns) for name, columns in
                 (("deployments", DEPLOYMENTS), ("media", MEDIA), ("observations", OBSERVATIONS))]  # fmt: skip
    package = {"name": "mast-detections", "profile": "tabular-data-package", "resources": resources}
    return json.dumps(package | {"audiovisualCore": AUDIOVISUAL_CORE}, indent=1)


def _resource(name: str, columns: tuple[str, ...]) -> Mapping[str, Any]:
    numbers = {"latitude", "longitude", "eventStart", "eventEnd", "bboxTime", "bboxFrequency", "bboxDuration", "bboxBandwidth",
               "sampleRate", "fileLength", "numChannels", "classificationProbability"}  # fmt: skip
    fields = [{"name": c, "type": "number" if c in numbers else "string"} for c in columns]
    return {
        "name": name,
        "path": f"{name}.csv",
        "profile": "tabular-data-resource",
        "schema": {"fields": fields},
    }
