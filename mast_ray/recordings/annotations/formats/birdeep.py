"""BIRDeep's annotation CSV: seconds and hertz in columns of their own; the label "No
audio" marks a recording without birds.

Its `bbox` column describes a picture of the spectrogram (normalised centre and size, not linear in
frequency); it is kept as text and never used.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import PurePosixPath

from mast_ray.recordings.annotations.formats import generic_csv
from mast_ray.recordings.annotations.model import Annotation, AudioFacts, Parsed
from mast_ray.recordings.annotations.tabular import defused, hertz, seconds, written_table
from mast_ray.recordings.clock_and_site.names import read_name

NO_EVENT = "no audio"
HEADER = (
    "path", "annotator", "recorder", "date", "time", "audio_duration", "start_time", "end_time", "low_frequency", "high_frequency",
    "specie", "bbox",
)  # fmt: skip


def is_birdeep(header: str) -> bool:
    lowered = header.lower().replace('"', "").split(",")
    return {"path", "specie", "start_time", "low_frequency"} <= set(lowered)


def parse(text: str, source: str, columns: Mapping[str, str]) -> Parsed:
    parsed = generic_csv.parse(text, source, columns)
    events = tuple(a for a in parsed.annotations if a.label.strip().lower() != NO_EVENT)
    return Parsed(events, parsed.mentioned, parsed.problems)


def write(annotations: Sequence[Annotation], paths: Sequence[str], facts: Mapping[str, AudioFacts]) -> str:
    """Recorder, date and time are taken from file names where they say so; `bbox` stays empty."""
    by_path: dict[str, list[Annotation]] = {path: [] for path in sorted(paths)}
    for annotation in annotations:
        by_path[annotation.path].append(annotation)
    rows = []
    for path, events in by_path.items():
        name = read_name(PurePosixPath(path).stem)
        date, time = (f"{name.clock:%Y/%m/%d}", f"{name.clock:%H:%M:%S}") if name.clock else ("", "")
        total_s = round(facts[path].duration_s) if path in facts else None
        duration = (
            "" if total_s is None else f"{total_s // 3600:02d}:{total_s // 60 % 60:02d}:{total_s % 60:02d}"
        )
        about = [defused(path), "", defused(name.prefix), date, time, duration]
        for event in sorted(events, key=lambda a: (a.begin_s, a.end_s)):
            box = [seconds(event.begin_s), seconds(event.end_s), hertz(event.low_hz), hertz(event.high_hz)]
            rows.append([*about, *box, defused(event.label), ""])
        if not events:
            rows.append([*about, "", "", "", "", "No audio", ""])
    return written_table(HEADER, rows, ",")
