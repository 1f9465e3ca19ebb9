"""Kaleidoscope's id.csv and cluster.csv, and what PyHa and BirdNET write like it (read only): OFFSET and DURATION in seconds, Fmin and Fmax in hertz,
or kHz in bat mode.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import suppress

from mast_ray.recordings.annotations.model import Annotation, Parsed
from mast_ray.recordings.annotations.tabular import (
    column_lookup,
    number,
    numbered,
    parse_table,
    pick,
    with_one_reading,
)

LABEL_COLUMNS = (
    "manual id",
    "top1match",
    "top1match*",
    "auto id",
    "auto id*",
    "scientific_name",
    "common_name",
)  # a person's word before the program's
HIGHEST_KHZ = 250.0  # a table whose Fmax all lie below this is of bat mode: no recorder hears more


def is_kaleidoscope(header: str) -> bool:
    lowered = header.lower()
    return "in file" in lowered and "offset" in lowered and "duration" in lowered


def parse(text: str, source: str, columns: Mapping[str, str]) -> Parsed:
    table = parse_table(text, source)
    lookup = column_lookup(table.columns)
    table = with_one_reading(table, map(lookup.get, ("offset", "duration", "fmin", "fmax")), source)
    highest = pick(lookup, ("fmax",))
    label_columns = (
        [columns["label"]] if "label" in columns else [lookup[c] for c in LABEL_COLUMNS if c in lookup]
    )
    score = columns.get("score") or lookup.get("confidence", "")
    taken = {
        lookup.get(name)
        for name in ("folder", "in file", "offset", "duration", "fmin", "fmax", "confidence", *LABEL_COLUMNS)
    } | {score, *label_columns}
    factor = 1000.0 if _is_of_bat_mode([values.get(highest or "", "") for _, values in table.rows]) else 1.0
    annotations, mentioned, problems = [], [], []
    for where, values in numbered(table.rows, source):
        folder, name = values.get(lookup.get("folder", ""), ""), values[lookup["in file"]]
        path = f"{folder}/{name}" if folder else name
        try:
            begin_s, duration_s = number(values[lookup["offset"]]), number(values[lookup["duration"]])
            if begin_s is None or duration_s is None:
                mentioned.append(path)
                continue
            low = number(values.get(lookup.get("fmin", ""), ""))
            high = number(values.get(highest or "", ""))
            is_band = low is not None and high is not None and high > 0
            label = next((values[column] for column in label_columns if values[column]), "")
            annotations.append(
                Annotation(
                    path,
                    begin_s,
                    begin_s + duration_s,
                    low * factor if is_band and low is not None else None,
                    high * factor if is_band and high is not None else None,
                    label,
                    number(values.get(score, "")),
                    extra={key: value for key, value in values.items() if key not in taken and value},
                )
            )
            mentioned.append(path)
        except ValueError as error:
            problems.append(f"{where}: {error}")
    return Parsed(tuple(annotations), tuple(dict.fromkeys(mentioned)), tuple(problems))


def _is_of_bat_mode(written: Iterable[str]) -> bool:
    """Whether a table's highest frequencies are in kHz, all of them: an owl among songbirds is below every limit in hertz."""
    found = []
    for text in written:
        with suppress(ValueError):
            found.append(number(text) or 0.0)
    return 0 < max(found, default=0.0) < HIGHEST_KHZ
