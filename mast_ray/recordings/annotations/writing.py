"""AnnotationSets written as files that Raven, Audacity, whombat and spreadsheets open; times to
1 microsecond, frequencies to 1 mHz.

No frequency above the Nyquist frequency of the original recording is written when its rate is known.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path, PurePosixPath
from typing import Literal

from mast_ray.config.errors import DataError
from mast_ray.config.names import short_name
from mast_ray.recordings.annotations.formats import aoef, audacity, birdeep, coco, generic_csv, raven
from mast_ray.recordings.annotations.model import Annotation, AnnotationSet, AudioFacts

WriteFormat = Literal["raven", "audacity", "csv", "birdeep", "aoef", "coco"]
_ENDINGS = {"raven": ".Table.1.selections.txt", "audacity": ".txt"}


def write_annotations(
    annotations: AnnotationSet,
    path: str | os.PathLike[str],
    format: WriteFormat,
    *,
    facts: Mapping[str, AudioFacts] | None = None,
) -> list[Path]:
    """Write to a local file, or (Raven and Audacity) one table per recording into
    a folder; returns the files.
    """
    tables = files_to_write(annotations, path, format)
    for file, one in tables.items():
        _write_whole(file, annotations_as_text(one, format, facts=facts))
    return list(tables)


def _write_whole(file: Path, text: str) -> None:
    """A table that a full disk cut short would be read as one with fewer calls: it is renamed once it is whole."""
    file.parent.mkdir(parents=True, exist_ok=True)
    partial = file.with_name(short_name(f".{file.name}", ".tmp"))
    try:
        partial.write_text(text, encoding="utf-8", newline="")
        os.replace(partial, file)
    finally:
        partial.unlink(missing_ok=True)


def files_to_write(
    annotations: AnnotationSet, path: str | os.PathLike[str], format: WriteFormat
) -> dict[Path, AnnotationSet]:
    """Each file that `write_annotations` writes, and what goes into it.

    A path with a suffix is a file, one without (or a folder that exists) is a folder in which the folders of
    the recordings are repeated.
    """
    target = Path(path)
    if target.suffix and not target.is_dir():
        return {target: annotations}
    if format in _ENDINGS:
        by_path = annotations.by_path()
        names = _table_names(sorted(by_path), format)
        return {target / names[path]: AnnotationSet(own, frozenset({path})) for path, own in by_path.items()}
    raise DataError(
        f"{target}: {format} is one file for all recordings:\ngive the output a suffix, .csv or .json"
    )


def annotations_as_text(
    annotations: AnnotationSet,
    format: WriteFormat,
    *,
    facts: Mapping[str, AudioFacts] | None = None,
    root: str = "",
) -> str:
    """The content of one file, for stores that are not local; `root` stands before the paths of Raven's tables."""
    facts = facts or {}
    events = [_below_nyquist(annotation, facts) for annotation in annotations.annotations]
    paths = sorted(annotations.annotated_paths | {annotation.path for annotation in events})
    match format:
        case "raven":
            return raven.write(events, paths, facts, root)
        case "audacity":
            if len(paths) > 1:
                raise DataError(
                    "an Audacity label file belongs to one recording:\nname a folder as output, not a file"
                )
            return audacity.write(events)
        case "csv":
            return generic_csv.write(events, paths)
        case "birdeep":
            return birdeep.write(events, paths, facts)
        case "aoef":
            return aoef.write(events, paths, facts, spans=annotations.spans)
        case "coco":
            return coco.write(events, paths, facts)


def _below_nyquist(annotation: Annotation, facts: Mapping[str, AudioFacts]) -> Annotation:
    known = facts.get(annotation.path)
    if known is None or annotation.low_hz is None or annotation.high_hz is None:
        return annotation
    nyquist_hz = known.sample_rate_hz / 2
    return replace(
        annotation, low_hz=min(annotation.low_hz, nyquist_hz), high_hz=min(annotation.high_hz, nyquist_hz)
    )


def _table_names(recordings: Sequence[str], format: WriteFormat) -> dict[str, str]:
    """`site/x.wav` -> `site/x.Table.1.selections.txt`; a recording cannot name a place outside the folder.

    Where x.wav and x.flac lie side by side, their tables keep the suffix.
    """
    inside = {
        path: "/".join(part for part in PurePosixPath(path).parts if part not in ("..", "/"))
        for path in recordings
    }
    stems = {path: str(PurePosixPath(name).with_suffix("")) for path, name in inside.items()}
    shared = {stem for stem, count in Counter(stems.values()).items() if count > 1}
    return {
        path: (inside[path] if stem in shared else stem) + _ENDINGS[format] for path, stem in stems.items()
    }
