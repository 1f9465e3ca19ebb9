"""Raven selection tables: one per recording, or one over many with Begin Path (or File) and File Offset.

In a table over many files, Begin Time runs on through the sequence and File Offset is the time inside the
file; a recording without selections cannot be named in it. A selection that exists only in the waveform
view and begins at 0 Hz has no band: it is how a label in time is read and written.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from mast_ray.config.errors import DataError
from mast_ray.recordings.annotations.model import Annotation, AudioFacts, Parsed
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

LABEL_COLUMNS = (
    "label", "species", "annotation", "scientific name", "common name", "species code", "class", "tags", "tag",
    "sound type", "call type", "call variant", "type", "id",
)  # fmt: skip
SCORE_COLUMNS = ("score", "confidence")
_OWN_COLUMNS = (
    "selection", "view", "channel", "begin time (s)", "end time (s)", "low freq (hz)", "high freq (hz)", "low freq (khz)",
    "high freq (khz)", "begin path", "begin file", "end path", "end file", "file offset (s)", "delta time (s)", "delta freq (hz)",
    "begin file samp (samples)",
)  # fmt: skip
SAME_TIME_S = 1e-3
_UNITS = {"hz": 1.0, "khz": 1000.0}


def is_raven(header: str) -> bool:
    lowered = header.lower()
    return "begin time (s)" in lowered and ("selection" in lowered or "end time (s)" in lowered)


def parse(text: str, source: str, columns: Mapping[str, str]) -> Parsed:
    """Rows of a selection table; the waveform twin of a spectrogram row is dropped."""
    table = parse_table(text, source)
    lookup = column_lookup(table.columns)
    begin, end = pick(lookup, ("begin time (s)",)), pick(lookup, ("end time (s)",))
    if begin is None:
        raise DataError(
            f"{source}: no column 'Begin Time (s)':\nexport the selection table from Raven with its standard columns"
        )
    label = columns.get("label") or pick(lookup, LABEL_COLUMNS)
    score = columns.get("score") or pick(lookup, SCORE_COLUMNS)
    named = [lookup[name] for name in ("begin path", "begin file") if name in lookup]
    offset = pick(lookup, ("file offset (s)",))
    delta = pick(lookup, ("delta time (s)",))
    band = _band_columns(lookup, columns)
    table = with_one_reading(table, (begin, end, offset, delta, *(band or ())[:2]), source)
    taken = {lookup[name] for name in _OWN_COLUMNS if name in lookup} | {label, score, *(band or ())}
    files = {_file_of(values, named) for _, values in table.rows} if named else set()
    if len(files) > 1 and offset is None:
        raise DataError(
            f"{source}: selections of {len(files)} files without 'File Offset (s)':\nadd that column in Raven and export again"
        )

    kept: dict[tuple[object, ...], Annotation] = {}
    views: dict[tuple[object, ...], str] = {}
    problems = []
    for where, values in numbered(table.rows, source):
        try:
            begin_s = number(values[begin])
            end_s = number(values.get(end or "", ""))
            if (
                end_s is None
                and begin_s is not None
                and delta
                and (delta_s := number(values[delta])) is not None
            ):
                end_s = begin_s + delta_s
            if begin_s is None or end_s is None or end_s < begin_s:
                raise ValueError("begin or end time is missing or in the wrong order")
            offset_s = number(values.get(offset or "", ""))
            if offset_s is None and len(files) > 1:
                raise ValueError("no File Offset, and the times of several files run on")
            if offset_s is not None and named and abs(offset_s - begin_s) > SAME_TIME_S:
                begin_s, end_s = offset_s, offset_s + (end_s - begin_s)
            low_hz, high_hz = _band(values, band)
            annotation = Annotation(
                path=_file_of(values, named),
                begin_s=begin_s,
                end_s=end_s,
                low_hz=low_hz,
                high_hz=high_hz,
                label=values.get(label or "", ""),
                score=number(values.get(score or "", "")),
                extra={name: value for name, value in values.items() if name not in taken and value},
            )
        except ValueError as error:
            problems.append(f"{where}: {error}")
            continue
        view = values.get(lookup.get("view", ""), "")
        selection = values.get(lookup.get("selection", ""), "") or where
        twin = (selection, annotation.path, annotation.begin_s, annotation.end_s)
        if twin not in kept or views[twin].startswith("Waveform"):
            kept[twin], views[twin] = annotation, view
        elif not view.startswith("Waveform") and view == views[twin] and annotation != kept[twin]:
            kept[(*twin, where)], views[(*twin, where)] = annotation, view
    events = tuple(
        replace(event, low_hz=None, high_hz=None)
        if views[twin].startswith("Waveform") and event.low_hz == 0
        else event
        for twin, event in kept.items()
    )
    read = {event.path for event in events}
    return Parsed(events, tuple(sorted(read)) if files else ("",), tuple(problems))


def _file_of(values: Mapping[str, str], columns: Sequence[str]) -> str:
    """What the first of these columns says that says anything: tables put together have the one here, the other there."""
    return next((values[name] for name in columns if values[name]), "")


def _band_columns(lookup: Mapping[str, str], columns: Mapping[str, str]) -> tuple[str, str, str] | None:
    """(low, high, unit): a unit that the user has mapped comes first, then hertz."""
    for unit in sorted(_UNITS, key=lambda unit: not {f"low_{unit}", f"high_{unit}"} & columns.keys()):
        low = columns.get(f"low_{unit}") or lookup.get(f"low freq ({unit})")
        high = columns.get(f"high_{unit}") or lookup.get(f"high freq ({unit})")
        if low is not None and high is not None:
            return low, high, unit
    return None


def _band(
    values: Mapping[str, str], columns: tuple[str, str, str] | None
) -> tuple[float | None, float | None]:
    if columns is None:
        return None, None
    low, high, unit = columns
    low_hz, high_hz = number(values[low]), number(values[high])
    if low_hz is None or high_hz is None:
        return None, None
    if high_hz < low_hz:
        raise ValueError("the high frequency is below the low one")
    return low_hz * _UNITS[unit], high_hz * _UNITS[unit]


def write(
    annotations: Sequence[Annotation], paths: Sequence[str], facts: Mapping[str, AudioFacts], root: str = ""
) -> str:
    """One table. The durations in `facts` (needed for several recordings) make Begin Time run on from file to file,
    past those without a selection too. `root` is where Raven finds the recordings: it stands before every Begin Path.
    """
    has_score = any(annotation.score is not None for annotation in annotations)
    names = list(dict.fromkeys(name for annotation in annotations for name in annotation.extra))
    header = [
        "Selection",
        "View",
        "Channel",
        "Begin Time (s)",
        "End Time (s)",
        "Low Freq (Hz)",
        "High Freq (Hz)",
    ]
    header += ["Begin File", "Begin Path", "File Offset (s)", "Label"] + ["Score"] * has_score + names
    starts_s = _sequence_starts(paths, facts)
    place = {path: index for index, path in enumerate(paths)}
    rows: list[list[str]] = []
    for annotation in sorted(annotations, key=lambda a: (place[a.path], a.begin_s, a.end_s)):
        start_s = starts_s[annotation.path]
        row = [str(len(rows) + 1), *_view_and_times(annotation, start_s), *_band_cells(annotation, facts)]
        row += [
            _path_cell(annotation.path.rpartition("/")[2]),
            _path_cell(_below(root, annotation.path)),
            seconds(annotation.begin_s),
            defused(annotation.label),
        ]
        row += ["" if annotation.score is None else f"{annotation.score:.6f}"] * has_score
        rows.append(row + [defused(annotation.extra.get(name, "")) for name in names])
    return written_table(header, rows, "\t")


def _view_and_times(annotation: Annotation, start_s: float) -> list[str]:
    view = "Waveform 1" if annotation.is_time_only else "Spectrogram 1"
    return [view, "1", seconds(start_s + annotation.begin_s), seconds(start_s + annotation.end_s)]


def _band_cells(annotation: Annotation, facts: Mapping[str, AudioFacts]) -> list[str]:
    if not annotation.is_time_only:
        return [hertz(annotation.low_hz), hertz(annotation.high_hz)]
    known = facts.get(annotation.path)
    return [hertz(0.0), hertz(known.sample_rate_hz / 2)] if known else ["", ""]


def _below(root: str, path: str) -> str:
    """A path below a root, in the root's own way of writing paths."""
    if not root:
        return path
    mark = "\\" if "\\" in root and "/" not in root else "/"
    return root.rstrip("/\\") + mark + path.replace("/", mark)


def _path_cell(path: str) -> str:
    return f"./{path}" if defused(path) != path else path  # still the same path, and no formula


def _sequence_starts(paths: Sequence[str], facts: Mapping[str, AudioFacts]) -> dict[str, float]:
    starts_s: dict[str, float] = {}
    next_s = 0.0
    for path in paths:
        starts_s[path] = next_s
        if len(paths) > 1:
            if path not in facts:
                raise DataError(
                    f"one Raven table over several recordings needs the duration of {path}:\n"
                    "write one table per recording instead (name a folder as output)"
                )
            next_s += facts[path].duration_s
    return starts_s
