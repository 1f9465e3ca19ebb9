"""Any table with a column for begin and end, by well-known column names or by a mapping; also what this
package itself writes.

Mapping keys: file, begin_s, end_s, duration_s, low_hz, high_hz, low_khz, high_khz, label, score, verdict, listened_begin_s,
listened_end_s.
Frequencies are hertz unless the column says kHz or the table is warbleR's (bottom.freq, top.freq: kHz). A
row with a file but neither begin nor end says that the recording was gone through and holds no event.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

from mast_ray.config.errors import DataError
from mast_ray.recordings.annotations.model import Annotation, Parsed, Said, Span
from mast_ray.recordings.annotations.tabular import (
    column_lookup,
    defused,
    hertz,
    number,
    numbered,
    parse_table,
    pick,
    seconds,
    with_one_reading,
    written_table,
)

NUMBERS = (
    "begin_s", "end_s", "duration_s", "low_hz", "high_hz", "low_khz", "high_khz", "listened_begin_s", "listened_end_s",
)  # fmt: skip
ALIASES: dict[str, tuple[str, ...]] = {
    "file": (
        "file", "path", "filepath", "file_path", "filename", "file_name", "file name", "begin path", "begin file", "sound.files",
        "recording", "recording_path", "audio", "audio_file", "audio_filename", "audiofilename", "source_file", "wav",
        "rec", "recording_id",
    ),
    "begin_s": (
        "begin_s", "start_s", "begin time (s)", "start (s)", "begin (s)", "start_seconds", "begin_time", "start_time", "begin", "start",
        "onset_s", "onset", "min_t", "t_min", "x1", "annotation_start_s", "start_sec", "time",
    ),
    "end_s": (
        "end_s", "stop_s", "end time (s)", "end (s)", "end_seconds", "end_time", "end", "stop", "offset_s", "max_t", "t_max", "x2",
        "annotation_end_s", "end_sec",
    ),
    "duration_s": ("duration_s", "duration (s)", "duration"),
    "low_hz": (
        "low_hz", "low freq (hz)", "low_frequency", "low_freq", "low_f", "freq_low", "freqlow", "min_hz", "min_freq", "min_frequency",
        "freq_min", "fmin", "f_min", "y1", "annotation_low_hz", "low", "extent start",
    ),
    "high_hz": (
        "high_hz", "high freq (hz)", "high_frequency", "high_freq", "high_f", "freq_high", "freqhigh", "max_hz", "max_freq",
        "max_frequency", "freq_max", "fmax", "f_max", "y2", "annotation_high_hz", "high", "extent end",
    ),
    "low_khz": ("low_khz", "low freq (khz)", "bottom.freq", "fmin_khz", "min_khz"),
    "high_khz": ("high_khz", "high freq (khz)", "top.freq", "fmax_khz", "max_khz"),
    "label": (
        "label", "species", "specie", "scientific name", "scientific_name", "common name", "common_name", "class", "class_name",
        "annotation", "tag", "category", "ebird_code", "species_code", "sonotype", "call_type", "songtype", "elm", "label:species",
        "species_id",
    ),
    "score": ("score", "confidence", "probability"),
    "verdict": ("verdict", "detection.class", "validated"),
    "listened_begin_s": ("listened_begin_s", "listened_start_s", "listened_begin", "listened_start", "clip_begin_s", "clip_start_s"),
    "listened_end_s": ("listened_end_s", "listened_end", "clip_end_s"),
}  # fmt: skip

YES = frozenset({"y", "yes", "1", "true", "t", "right", "call"})  # verdicts of a reviewer
NO = frozenset({"n", "no", "0", "false", "f", "wrong", "no call"})
_TOOLS_YES = frozenset(
    {"present", "true.positive", "false.negative"}
)  # of Arbimon and ohun: a missed call is one
_TOOLS_NO = frozenset({"not present", "absent", "false.positive"})


def chosen_columns(header: Sequence[str], mapping: Mapping[str, str], source: str) -> dict[str, str]:
    """Field -> column as written; an explicit mapping outranks the well-known names and must exist."""
    lookup = column_lookup(header)
    unknown = set(mapping) - set(ALIASES)
    if unknown:
        raise DataError(
            f"{source}: {sorted(unknown)[0]!r} is no field of an annotation:\nmap some of {', '.join(ALIASES)}"
        )
    for field, column in mapping.items():
        if column not in header:
            raise DataError(
                f"{source}: no column {column!r} (mapped to {field}):\nthe table has {', '.join(header)}"
            )
    found = {field: pick(lookup, aliases) for field, aliases in ALIASES.items()}
    # columns that mean something else than their name says: `low` in kHz
    outranked: set[str | None] = set(mapping.values())
    if {"low_khz", "high_khz"} & mapping.keys():
        outranked |= {found["low_hz"], found["high_hz"]}
    if "duration_s" in mapping:
        outranked.add(found["end_s"])
    return {
        **{field: column for field, column in found.items() if column and column not in outranked},
        **mapping,
    }


# fields that a mapping may name in tables whose times and files are known; other tables are read by their mapping alone
MAPPED_FIELDS = {
    "raven": ("label", "score", "low_hz", "high_hz", "low_khz", "high_khz"),
    "kaleidoscope": ("label", "score"),
    "csv": tuple(ALIASES),
    "birdeep": tuple(ALIASES),
}


def refuse_unread(mapping: Mapping[str, str], format: str, header: str, source: str) -> None:
    """A mapping that would change nothing: of columns that are not there, or that the format is not read by."""
    known = MAPPED_FIELDS.get(format, ())
    if unread := [f"{field}={column}" for field, column in mapping.items() if field not in known]:
        raise DataError(
            f"{source} is read as {format}, and --columns {unread[0]} changes nothing there:\n"
            + (f"map some of {', '.join(known)}" if known else "leave it out")
        )
    chosen_columns(parse_table(header, source).columns, mapping, source)


def is_table(header: str, columns: Sequence[str]) -> bool:
    chosen = chosen_columns(columns, {}, header)
    return "begin_s" in chosen and ("end_s" in chosen or "duration_s" in chosen)


def parse(text: str, source: str, columns: Mapping[str, str]) -> Parsed:
    table = parse_table(text, source)
    chosen = chosen_columns(table.columns, columns, source)
    if "begin_s" not in chosen or not ({"end_s", "duration_s"} & set(chosen)):
        raise DataError(
            f"{source}: no columns for begin and end among {', '.join(table.columns) or 'nothing'}:\n"
            "map them, e.g. --columns file=recording begin_s=T0 end_s=T1 low_hz=F0 high_hz=F1 label=species"
        )
    table = with_one_reading(table, map(chosen.get, NUMBERS), source)
    if "verdict" in chosen and not _has_verdicts(chosen["verdict"], table.rows):
        del chosen["verdict"]
    annotations, mentioned, problems = [], [], []
    spans: dict[Span, None] = {}
    for where, values in numbered(table.rows, source):
        path = values.get(chosen.get("file", ""), "")
        try:
            if (span := _listened(values, chosen, path)) is not None:
                spans[span] = None
            annotation = _annotation(values, chosen, path)
        except ValueError as error:
            problems.append(f"{where}: {error}")
            continue
        mentioned.append(path)
        if annotation is not None:
            annotations.append(annotation)
    if not mentioned and "file" not in chosen:
        mentioned.append("")
    return Parsed(tuple(annotations), tuple(dict.fromkeys(mentioned)), tuple(problems), tuple(spans))


def _listened(values: Mapping[str, str], chosen: Mapping[str, str], path: str) -> Span | None:
    """The part of the recording that was gone through, where a row says so."""
    begin_s, end_s = (
        number(values.get(chosen.get(name, ""), "")) for name in ("listened_begin_s", "listened_end_s")
    )
    if begin_s is None or end_s is None:
        return None
    if end_s <= begin_s:
        raise ValueError("what was listened to ends before it begins")
    return Span(path, begin_s, end_s)


def parse_listened(text: str, source: str) -> Parsed:
    """A table whose rows say what was gone through: a recording, or a part of it, for all labels or for one."""
    table = parse_table(text, source)
    chosen = chosen_columns(table.columns, {}, source)
    if "file" not in chosen:
        raise DataError(
            f"{source}: no column names a file (found: {', '.join(table.columns) or 'nothing'}):\n"
            "give it a column 'file' with paths relative to the archive, and begin_s and end_s for parts of a recording"
        )
    table = with_one_reading(table, map(chosen.get, NUMBERS), source)
    labels_of: dict[tuple[str, float, float], list[str]] = {}  # "" among them: for all
    problems = []
    for where, values in numbered(table.rows, source):
        path, label = values[chosen["file"]], values.get(chosen.get("label", ""), "")
        try:
            begin_s, end_s = (number(values.get(chosen.get(name, ""), "")) for name in ("begin_s", "end_s"))
            if begin_s is None and end_s is None:
                begin_s, end_s = 0.0, math.inf
            if begin_s is None or end_s is None or end_s <= begin_s:
                raise ValueError("begin or end time is missing or in the wrong order")
        except ValueError as error:
            problems.append(f"{where}: {error}")
            continue
        labels_of.setdefault((path, begin_s, end_s), []).append(label)
    whole = {path for (path, _, end_s), labels in labels_of.items() if end_s == math.inf and "" in labels}
    spans = tuple(
        Span(*place, () if "" in labels else tuple(dict.fromkeys(labels)))
        for place, labels in labels_of.items()
        if place[0] not in whole
    )
    return Parsed((), tuple(dict.fromkeys(path for path, _, _ in labels_of)), tuple(problems), spans)


def _annotation(values: Mapping[str, str], chosen: Mapping[str, str], path: str) -> Annotation | None:
    def value(field: str) -> float | None:
        return number(values.get(chosen.get(field, ""), ""))

    begin_s, end_s, duration_s = value("begin_s"), value("end_s"), value("duration_s")
    if begin_s is None and end_s is None:
        return None
    if end_s is None and begin_s is not None and duration_s is not None:
        end_s = begin_s + duration_s
    if begin_s is None or end_s is None or end_s < begin_s:
        raise ValueError("begin or end time is missing or in the wrong order")
    low_hz, high_hz = value("low_hz"), value("high_hz")
    if (
        low_hz is None
        and high_hz is None
        and (low_khz := value("low_khz")) is not None
        and (high_khz := value("high_khz")) is not None
    ):
        low_hz, high_hz = low_khz * 1000.0, high_khz * 1000.0
    if low_hz is None or high_hz is None:
        low_hz = high_hz = None
    elif high_hz < low_hz:
        raise ValueError("the high frequency is below the low one")
    taken = set(chosen.values())
    extra = {name: text for name, text in values.items() if name not in taken and text}
    label = values.get(chosen.get("label", ""), "")
    said = _said(values[chosen["verdict"]]) if "verdict" in chosen else "call"
    return Annotation(path, begin_s, end_s, low_hz, high_hz, label, value("score"), extra, said)


def _said(verdict: str) -> Said:
    """What a reviewer wrote beside a detection; an open verdict is neither yes nor no."""
    word = verdict.strip().lower()
    return "call" if word in YES | _TOOLS_YES else "no_call" if word in NO | _TOOLS_NO else "uncertain"


def _has_verdicts(column: str, rows: Iterable[tuple[int, Mapping[str, str]]]) -> bool:
    """A column `verdict` is one; any other that is called like one must hold nothing but known words."""
    known = YES | NO | _TOOLS_YES | _TOOLS_NO | {""}
    return column.lower() == "verdict" or all(values[column].strip().lower() in known for _, values in rows)


OWN_HEADER = ("file", "begin_s", "end_s", "low_hz", "high_hz", "label", "score")


def write(annotations: Sequence[Annotation], paths: Sequence[str]) -> str:
    """One row per event, and one row without times for every recording in which nothing was found."""
    names = [
        name for name in dict.fromkeys(n for a in annotations for n in a.extra) if name not in OWN_HEADER
    ]
    rows = []
    for annotation in sorted(annotations, key=lambda a: (a.path, a.begin_s, a.end_s)):
        row = [defused(annotation.path), seconds(annotation.begin_s), seconds(annotation.end_s)]
        row += [hertz(annotation.low_hz), hertz(annotation.high_hz), defused(annotation.label)]
        row += ["" if annotation.score is None else f"{annotation.score:.6f}"]
        rows.append(row + [defused(annotation.extra.get(name, "")) for name in names])
    empty = sorted(set(paths) - {annotation.path for annotation in annotations})
    rows += [[defused(path), *("" for _ in range(len(OWN_HEADER) - 1 + len(names)))] for path in empty]
    return written_table([*OWN_HEADER, *(defused(name) for name in names)], rows, ",")
