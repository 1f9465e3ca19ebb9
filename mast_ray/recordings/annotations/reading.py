"""Annotation files of any supported format, or a folder of them, as one AnnotationSet with recordings found
under a root.
"""

from __future__ import annotations

import json
import os
import posixpath
import unicodedata
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, get_args

from mast_ray.config.errors import DataError
from mast_ray.recordings.annotations.formats import (
    aoef,
    audacity,
    avianz,
    batdetect2,
    birdeep,
    coco,
    generic_csv,
    kaleidoscope,
    raven,
    sonic_visualiser,
    yolo,
)
from mast_ray.recordings.annotations.formats.yolo import ImageScale
from mast_ray.recordings.annotations.model import Annotation, AnnotationSet, Parsed, merge_annotations
from mast_ray.recordings.annotations.paths import (
    RecordingIndex,
    list_files,
    marks_no_calls,
    of_other_folders,
    own_stems,
    safe_reference,
)
from mast_ray.recordings.annotations.tabular import (
    MAX_ANNOTATION_BYTES,
    decoded,
    decoded_head,
    first_line,
    parse_table,
)
from mast_ray.recordings.clock_and_site.sites import is_junk, recordings_among

ReadFormat = Literal[
    "raven", "audacity", "csv", "birdeep", "kaleidoscope", "aoef", "coco", "batdetect2", "avianz", "sonic_visualiser", "yolo",
]  # fmt: skip
READ_FORMATS: tuple[str, ...] = get_args(ReadFormat)
JSON_FORMATS = ("aoef", "coco", "batdetect2", "avianz")
ANNOTATION_SUFFIXES = (".txt", ".csv", ".tsv", ".json", ".data", ".svl")
WORKBOOK_SUFFIXES = (".xlsx", ".xls", ".ods")  # cannot be read, which is said


def read_annotations(
    path: str | os.PathLike[str],
    format: ReadFormat | Literal["auto"] = "auto",
    *,
    root: str | os.PathLike[str] | None = None,
    recordings: Iterable[str] | None = None,
    columns: Mapping[str, str] | None = None,
    image_scale: ImageScale | None = None,
) -> AnnotationSet:
    """Read a local file or every annotation file of a folder.

    `recordings` are paths relative to the root; without them the local folder `root` is listed; without
    either, references are kept as written, reduced to something that cannot leave a root. `columns` maps
    fields to columns (see generic_csv.py).
    """
    index = _index(root, recordings)
    path = Path(path)
    if not path.exists():
        raise DataError(f"{path}: no such annotation file or folder:\ncheck the path")
    base = Path(root).resolve() if root is not None else None
    if not path.is_dir():
        return parse_annotations(
            _content(path),
            _relative(path, base),
            format,
            index=index,
            columns=columns,
            image_scale=image_scale,
        )
    names = annotation_files(list_files(path))
    files = {_relative(path / name, base) if base is not None else name: path / name for name in names}
    contents = ((name, _content(file)) for name, file in files.items())
    return parse_folder(
        contents,
        str(path),
        format,
        index=index,
        columns=columns,
        image_scale=image_scale,
        is_alone=len(names) == 1,
    )


def parse_folder(
    files: Iterable[tuple[str, bytes]],
    source: str,
    format: ReadFormat | Literal["auto"] = "auto",
    *,
    index: RecordingIndex | None = None,
    columns: Mapping[str, str] | None = None,
    image_scale: ImageScale | None = None,
    is_alone: bool = False,
) -> AnnotationSet:
    """Every annotation file of a folder, by name and content; a mapping of columns is for the tables that have them."""
    sets = []
    owners: dict[str, set[str]] = defaultdict(set)  # recording -> folders of tables that are called like it
    is_used = not columns
    class_names: dict[str, str] = {}
    refused: list[list[str]] = []  # what is wrong with a table, and what to do, line by line
    for name, content in files:
        if posixpath.basename(name).lower() == yolo.NAMES:
            class_names = yolo.class_names(decoded(content, name))
            continue
        try:
            fits = bool(columns) and has_columns(content, name, columns or {})
            is_used |= fits
            sets.append(
                parse_annotations(
                    content,
                    name,
                    format,
                    index=index,
                    columns=columns if fits else None,
                    image_scale=image_scale,
                    class_names=class_names,
                    is_alone=is_alone,
                )
            )
            owner = index.owner_of(name) if index is not None and not marks_no_calls(name) else None
            if owner and owner in sets[-1].annotated_paths:
                owners[owner].add(posixpath.dirname(name) or ".")
        except DataError as error:  # a folder also holds other tables: say so and go on
            refused.append(str(error).splitlines())
            sets.append(AnnotationSet(problems=(refused[-1][0].removesuffix(":"),)))
    if not is_used:
        raise DataError(
            f"{source}: no table has the columns {', '.join((columns or {}).values())}:\n"
            "write their names as in the header, e.g. --columns begin_s=T0 end_s=T1"
        )
    if not any(one.annotated_paths or one.unresolved for one in sets):
        kinds = f"supported are {', '.join(READ_FORMATS)}"
        why = "its tables name no recording" if sets else f"of {', '.join(ANNOTATION_SUFFIXES)} there is none"
        first, *remedy = refused[0] if refused else (why, kinds)
        raise DataError(
            f"{source}: no annotations in this folder ({first.removesuffix(':')}):\n"
            + "\n".join(remedy[:2] or [kinds])
        )
    merged = merge_annotations(sets)
    return replace(merged, notes=(*merged.notes, *_in_several_folders(owners)))


def _in_several_folders(owners: Mapping[str, set[str]]) -> list[str]:
    """A note on recordings of which several folders have a table: two people, or two sites whose recorders keep one schedule."""
    several = [path for path, folders in owners.items() if len(folders) > 1]
    if not several:
        return []
    return [
        f"{len(several):,} recordings have tables in several folders (e.g. {several[0]} in "
        f"{', '.join(sorted(owners[several[0]])[:3])}): all are taken; if they are of other recordings of that name, give the "
        "folder above as the archive"
    ]


def _composed(annotation: Annotation) -> Annotation:
    """Its label with accents and letters in one, however a computer writes them: macOS takes them apart, and one species would be two."""
    label = unicodedata.normalize("NFC", annotation.label)
    return annotation if label == annotation.label else replace(annotation, label=label)


def has_columns(content: bytes, name: str, columns: Mapping[str, str]) -> bool:
    """Whether a table has every column of a mapping."""
    header = parse_table(first_line(decoded_head(content, name)), name).columns
    return set(columns.values()) <= set(header)


def annotation_files(names: Iterable[str]) -> list[str]:
    """Those of a listing that may hold annotations, by their suffix; names of classes come before what needs them."""
    suffixes = (*ANNOTATION_SUFFIXES, *WORKBOOK_SUFFIXES)
    found = [name for name in names if name.lower().endswith(suffixes) and not is_junk(name)]
    return sorted(found, key=lambda name: posixpath.basename(name).lower() != yolo.NAMES)


def read_listened(
    path: str | os.PathLike[str],
    *,
    root: str | os.PathLike[str] | None = None,
    recordings: Iterable[str] | None = None,
) -> AnnotationSet:
    """A table of what was gone through (a column `file`, or the like), events or not.

    With begin and end a row speaks of a part of its recording, without them of all of it; a label says that only
    this one was listened for.
    """
    path = Path(path)
    if not path.is_file():
        raise DataError(f"{path}: no such table of recordings that were gone through:\ncheck the path")
    base = Path(root).resolve() if root is not None else None
    return parse_listened(_content(path), _relative(path, base), _index(root, recordings))


def parse_listened(content: bytes, name: str, index: RecordingIndex | None = None) -> AnnotationSet:
    """The same from bytes."""
    return _resolved(generic_csv.parse_listened(decoded(content, name), name), name, index)


def parse_annotations(
    content: bytes,
    name: str,
    format: ReadFormat | Literal["auto"] = "auto",
    *,
    index: RecordingIndex | None = None,
    columns: Mapping[str, str] | None = None,
    image_scale: ImageScale | None = None,
    class_names: Mapping[str, str] | None = None,
    is_alone: bool = True,
) -> AnnotationSet:
    """The same from bytes; `name` is the file's path relative to the root, from which its own recording may be
    told. Only a table that stands alone is taken for that of the only recording whatever it is called.
    """
    text = decoded(content, name)
    # what Audacity and our own export write where nothing was found
    if format == "auto" and not text.strip():
        found = _resolved(Parsed((), ("",)), name, index, is_alone=False)
        if found.unresolved:
            raise DataError(
                f"{name} is empty, and no recording is called like it:\nremove it, or export it again"
            )
        return found
    document = (
        _json(text, name)
        if format in JSON_FORMATS or (format == "auto" and text.lstrip()[:1] in ("{", "["))
        else None
    )
    chosen = detect_format(text, document, name, columns or {}) if format == "auto" else format
    if columns:
        generic_csv.refuse_unread(columns, chosen, first_line(text), name)
    match chosen:
        case "raven":
            parsed = raven.parse(text, name, columns or {})
        case "audacity":
            parsed = audacity.parse(text, name, columns or {})
        case "birdeep":
            parsed = birdeep.parse(text, name, columns or {})
        case "kaleidoscope":
            parsed = kaleidoscope.parse(text, name, columns or {})
        case "csv":
            parsed = generic_csv.parse(text, name, columns or {})
        case "aoef":
            parsed = aoef.parse(document, name)
        case "coco":
            parsed = coco.parse(document, name)
        case "batdetect2":
            parsed = batdetect2.parse(document, name)
        case "avianz":
            parsed = avianz.parse(document, name)
        case "sonic_visualiser":
            read = (
                sonic_visualiser.parse_layer
                if sonic_visualiser.is_layer(text)
                else sonic_visualiser.parse_headerless
            )
            parsed = read(text, name)
        case "yolo":
            parsed = yolo.parse(text, name, image_scale, class_names or {})
    if parsed.problems and not parsed.annotations:  # not the same as "listened to, nothing there"
        raise DataError(
            f"{name}: not one of its {len(parsed.problems)} rows can be used ({parsed.problems[0]}):\n"
            "check its columns, or export it again"
        )
    return _resolved(
        replace(parsed, annotations=tuple(map(_composed, parsed.annotations))), name, index, is_alone
    )


def detect_format(text: str, document: Any, name: str, columns: Mapping[str, str]) -> ReadFormat:
    """Format by content, never by suffix alone; a table whose times are mapped by the user is read by that mapping."""
    if document is None and {"begin_s", "end_s", "duration_s", "file"} & columns.keys():
        return "csv"
    if document is not None:
        if aoef.is_aoef(document):
            return "aoef"
        if coco.is_coco(document):
            return "coco"
        if batdetect2.is_batdetect2(document):
            return "batdetect2"
        if avianz.is_avianz(document):
            return "avianz"
        raise DataError(
            f"{name}: JSON, but of none of {', '.join(JSON_FORMATS)}:\nexport it as CSV from where it comes from"
        )
    header = first_line(text)
    if raven.is_raven(header):
        return "raven"
    if birdeep.is_birdeep(header):
        return "birdeep"
    if kaleidoscope.is_kaleidoscope(header):
        return "kaleidoscope"
    if sonic_visualiser.is_layer(text):
        return "sonic_visualiser"
    if yolo.is_yolo(text):
        return "yolo"
    if audacity.is_audacity(text):
        return "audacity"
    if sonic_visualiser.is_headerless(text):
        return "sonic_visualiser"
    if generic_csv.is_table(name, parse_table(header, name).columns):
        return "csv"
    raise DataError(
        f"{name}: not an annotation file that is known here (begins with {header[:60]!r}):\n"
        "call its columns file, begin_s, end_s, low_hz, high_hz and label, or map its columns: "
        "--columns file=recording begin_s=T0 end_s=T1 low_hz=F0 high_hz=F1"
    )


def _resolved(
    parsed: Parsed, name: str, index: RecordingIndex | None, is_alone: bool = False
) -> AnnotationSet:
    near = posixpath.dirname(name)
    notes = []
    found: dict[str, str | None] = {}
    for reference in dict.fromkeys((*parsed.mentioned, *(a.path for a in parsed.annotations))):
        if index is None:
            found[reference] = (
                safe_reference(reference)
                if reference
                else posixpath.join(near, own_stems(posixpath.basename(name))[0])
            )
        else:
            found[reference] = index.find(reference, near) if reference else index.owner_of(name)
    if index is not None and is_alone and len(index.paths) == 1 and found.get("", name) is None:
        found[""] = next(iter(index.paths))
        notes.append(f"{name} is taken for the table of {found['']}, the only recording")
    if index is not None:
        wrong, doubts = of_other_folders(found)
        found |= dict.fromkeys(wrong)
        notes += [f"{name}: {doubt}" for doubt in doubts]
    annotations = []
    for annotation in parsed.annotations:
        path = found[annotation.path]
        if path:
            own_name = marks_no_calls(posixpath.basename(path))  # a recording that is called so says nothing
            said = "no_call" if marks_no_calls(name) and not own_name else annotation.said
            annotations.append(replace(annotation, path=path, said=said))
    spans = [replace(span, path=path) for span in parsed.spans if (path := found.get(span.path))]
    return AnnotationSet(
        annotations=tuple(annotations),
        annotated_paths=frozenset(path for path in found.values() if path),
        unresolved=tuple(reference or name for reference, path in found.items() if not path),
        num_unresolved=len(parsed.annotations) - len(annotations),
        problems=parsed.problems,
        spans=tuple(spans),
        notes=tuple(notes),
    )


def _index(root: str | os.PathLike[str] | None, recordings: Iterable[str] | None) -> RecordingIndex | None:
    if recordings is None and root is not None:
        recordings = recordings_among(list_files(root))
    return RecordingIndex(recordings) if recordings is not None else None


def _content(path: Path) -> bytes:
    if path.stat().st_size > MAX_ANNOTATION_BYTES:
        raise DataError(f"{path}: too large for an annotation file ({path.stat().st_size} bytes):\nsplit it")
    return path.read_bytes()


def _relative(path: Path, base: Path | None) -> str:
    resolved = path.resolve()
    if base is not None and resolved.is_relative_to(base):
        return resolved.relative_to(base).as_posix()
    return path.name


def _json(text: str, name: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise DataError(f"{name}: broken JSON ({error}):\nexport it again") from error
