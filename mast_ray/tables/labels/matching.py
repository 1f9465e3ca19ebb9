"""Annotations for an archive, from a file or folder beside it or in a store, matched to its recordings."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from fnmatch import fnmatch
from pathlib import Path, PurePosixPath

from mast_ray.config.errors import DataError
from mast_ray.config.tree import StorageConfig
from mast_ray.recordings.annotations.formats.yolo import ImageScale
from mast_ray.recordings.annotations.model import AnnotationSet
from mast_ray.recordings.annotations.paths import RecordingIndex, own_stems
from mast_ray.recordings.annotations.reading import (
    ANNOTATION_SUFFIXES,
    annotation_files,
    parse_annotations,
    parse_folder,
    parse_listened,
    read_annotations,
)
from mast_ray.storage.stage_folders import text_hash
from mast_ray.storage.storage import Storage, map_keys, open_beside, open_storage
from mast_ray.tables.labels.spans import with_listened
from mast_ray.tables.preparing.inventory import SYNTHETIC_COPIES

log = logging.getLogger(__name__)
SHOWN_PROBLEMS = 5
MOST_COMPARED = 20_000  # names; comparing one with all of a large archive would take minutes


@dataclass(frozen=True)
class AnnotationSource:
    """Where annotations come from, and how they are to be read."""

    uri: str = ""
    columns: tuple[tuple[str, str], ...] = ()  # field -> column of the user's tables
    listened: str = ""  # table of what was gone through
    skip_missing: bool = False  # go on without annotations whose recording is absent
    image_scale: ImageScale | None = None  # of YOLO label files


def annotations_of(
    source: AnnotationSource,
    recordings: Sequence[str],
    settings: StorageConfig,
    archive: Storage,
    exclude: Sequence[str] = SYNTHETIC_COPIES,
) -> AnnotationSet:
    """Every annotation of a source, matched to the recordings of an archive; what is left out is said."""
    found = _tables_of(source, recordings, settings, archive) if source.uri else AnnotationSet()
    if source.listened:
        content = _content(*open_beside(source.listened, settings), source.listened)
        listened = parse_listened(content, PurePosixPath(source.listened).name, RecordingIndex(recordings))
        found = with_listened(found, listened)
    for problem in found.problems[:SHOWN_PROBLEMS]:
        log.warning("%s", problem)
    uri = source.uri or source.listened
    if found.problems:
        log.warning("%s: %d rows or files cannot be used and are left out", uri, len(found.problems))
    for note in found.notes:
        log.warning("%s", note)
    if not found.annotated_paths and not found.unresolved:
        raise DataError(f"{uri} holds no annotations of these recordings: check the path and the format")
    refuse_unknown(found, uri, archive.url, recordings, exclude, source.skip_missing)
    return found


def _tables_of(
    source: AnnotationSource, recordings: Sequence[str], settings: StorageConfig, archive: Storage
) -> AnnotationSet:
    uri, columns = source.uri, dict(source.columns)
    if not uri.startswith("s3://"):
        root = archive.local_path("")
        inside = root is not None and Path(uri).resolve().is_relative_to(Path(root).resolve())
        return read_annotations(
            uri,
            root=root if inside else None,
            recordings=recordings,
            columns=columns,
            image_scale=source.image_scale,
        )
    store = open_storage(uri, settings)
    index = RecordingIndex(recordings)
    keys = annotation_files(entry.key for entry in store.list())
    if not keys:  # one object, not a folder of them
        parent, name = open_beside(uri, settings)
        return parse_annotations(
            _content(parent, name, uri), name, index=index, columns=columns, image_scale=source.image_scale
        )
    files = zip(keys, map_keys(store.read_bytes, keys), strict=True)
    return parse_folder(
        files, uri, index=index, columns=columns, image_scale=source.image_scale, is_alone=len(keys) == 1
    )


def refuse_unknown(
    found: AnnotationSet,
    source: str,
    archive: str,
    recordings: Sequence[str],
    exclude: Sequence[str] = SYNTHETIC_COPIES,
    skip_missing: bool = False,
) -> None:
    """Labels of recordings the archive does not have are an error unless they may be skipped, those of recordings
    it has twice are one in any case; those of excluded ones are not.
    """
    foreign = [name for name in found.unresolved if not any(fnmatch(name, pattern) for pattern in exclude)]
    if not foreign:
        return
    by_stem: dict[str, list[str]] = {}
    for path in recordings:
        by_stem.setdefault(PurePosixPath(path).stem.lower(), []).append(path)
    for name in foreign:
        is_table = name.lower().endswith(ANNOTATION_SUFFIXES)
        same = next((by_stem[stem] for stem in _stems(name) if stem in by_stem), [])
        if len(same) > 1:
            raise DataError(
                f"{source}: {name} can be {len(same)} recordings ({', '.join(same[:3])}):\n"
                + (
                    "put the table beside its recording"
                    if is_table
                    else f"write the folder too, as in {same[0]}"
                )
            )
    if skip_missing:
        if not found.annotated_paths:
            raise DataError(
                f"{source}: not one of its {len(foreign)} recordings is in {archive} (e.g. {foreign[0]}):\n"
                "check that the archive is the right folder"
            )
        log.warning(
            "%s: %d annotations of %d recordings that are not in %s are skipped (e.g. %s)",
            source, found.num_unresolved, len(foreign), archive, ", ".join(foreign[:3]),
        )  # fmt: skip
        return
    nearest = _nearest(foreign[0], by_stem)
    likeness = f"; the nearest name there is {nearest}" if nearest else ""
    if foreign[0].lower().endswith(ANNOTATION_SUFFIXES):
        raise DataError(
            f"{source}: no recording in {archive} is called like the table {foreign[0]}{likeness}:\n"
            "name it after its recording, give it a column 'Begin File' (CSV: 'file'), or go on without: --skip-missing"
        )
    raise DataError(
        f"{source}: {len(foreign)} annotated recordings are not in {archive} (e.g. {foreign[0]}{likeness}):\n"
        "check that the archive is the right folder, or go on without them: --skip-missing"
    )


def _stems(name: str) -> list[str]:
    """What a missing recording, or that of a table, may be called, in lower case."""
    if name.lower().endswith(ANNOTATION_SUFFIXES):
        return [stem.lower() for stem in own_stems(PurePosixPath(name).name)]
    return [PurePosixPath(name.replace("\\", "/")).stem.lower()]


def _nearest(name: str, by_stem: Mapping[str, list[str]]) -> str:
    for stem in _stems(name):
        if stem in by_stem:
            return by_stem[stem][0]
        if close := get_close_matches(stem, list(by_stem)[:MOST_COMPARED], n=1):
            return by_stem[close[0]][0]
    return ""


def _content(store: Storage, name: str, uri: str) -> bytes:
    try:
        return store.read_bytes(name)
    except FileNotFoundError:
        raise DataError(f"{uri}: no such annotation file or folder: check the path") from None


def annotations_hash(annotations: AnnotationSet) -> str:
    """Names the content of a set of annotations."""
    rows = sorted(
        (a.path, a.begin_s, a.end_s, str(a.low_hz), str(a.high_hz), a.label, str(a.score))
        for a in annotations.annotations
    )
    spans = sorted((s.path, s.begin_s, s.end_s, s.labels) for s in annotations.spans)
    said = sorted((a.path, a.begin_s, a.said) for a in annotations.annotations if a.said != "call")
    return text_hash(repr((rows, sorted(annotations.annotated_paths), spans, said)))
