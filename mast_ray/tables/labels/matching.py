"""Annotations for an archive, from a file or folder beside it or in a store, matched to its recordings."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from fnmatch import fnmatch
from pathlib import Path, PurePosixPath

from mast_ray.config.errors import DataError
from mast_ray.config.tree import StorageConfig
from mast_ray.recordings.annotations.model import AnnotationSet, merge_annotations
from mast_ray.recordings.annotations.paths import RecordingIndex, own_stems
from mast_ray.recordings.annotations.reading import ANNOTATION_SUFFIXES, parse_annotations, read_annotations
from mast_ray.storage.stage_folders import text_hash
from mast_ray.storage.storage import Storage, map_keys, open_beside, open_storage
from mast_ray.tables.preparing.inventory import SYNTHETIC_COPIES

log = logging.getLogger(__name__)
SHOWN_PROBLEMS = 5


def annotations_of(
    uri: str, recordings: Sequence[str], settings: StorageConfig, archive: Storage
) -> AnnotationSet:
    """Every annotation under `uri`, matched to the recordings of an archive."""
    if uri.startswith("s3://"):
        found = _from_store(uri, recordings, settings)
    else:
        root = archive.local_path("")
        inside = root is not None and Path(uri).resolve().is_relative_to(Path(root).resolve())
        found = read_annotations(uri, root=root if inside else None, recordings=recordings)
    for problem in found.problems[:SHOWN_PROBLEMS]:
        log.warning("%s", problem)
    if found.problems:
        log.warning("%s: %d rows or files cannot be used and are left out", uri, len(found.problems))
    for note in found.notes:
        log.warning("%s", note)
    if not found.annotated_paths and not found.unresolved:
        raise DataError(f"{uri} holds no annotations of these recordings: check the path and the format")
    return found


def refuse_unknown(
    found: AnnotationSet,
    source: str,
    archive: str,
    recordings: Sequence[str],
    exclude: Sequence[str] = SYNTHETIC_COPIES,
) -> None:
    """Labels of recordings the archive does not have, or has twice, are an error;
    those of excluded ones are not.
    """
    foreign = [name for name in found.unresolved if not any(fnmatch(name, pattern) for pattern in exclude)]
    if not foreign:
        return
    by_stem: dict[str, list[str]] = {}
    for path in recordings:
        by_stem.setdefault(PurePosixPath(path).stem.lower(), []).append(path)
    for name in foreign:
        is_table = name.lower().endswith(ANNOTATION_SUFFIXES)
        stems = (
            own_stems(PurePosixPath(name).name) if is_table else [PurePosixPath(name.replace("\\", "/")).stem]
        )
        same = next((by_stem[stem.lower()] for stem in stems if stem.lower() in by_stem), [])
        if len(same) > 1:
            raise DataError(
                f"{source}: {name} can be {len(same)} recordings ({', '.join(same[:3])}):\n"
                + (
                    "put the table beside its recording"
                    if is_table
                    else f"write the folder too, as in {same[0]}"
                )
            )
        if is_table:
            raise DataError(
                f"{source}: no recording in {archive} is called like the table {name}:\n"
                "name it after its recording, or give it a column 'Begin File' (CSV: 'file')"
            )
    raise DataError(
        f"{source}: {len(foreign)} annotated recordings are not in {archive} (e.g. {', '.join(foreign[:3])}):\n"
        "check that the archive is the right folder, or remove those rows"
    )


def _from_store(uri: str, recordings: Sequence[str], settings: StorageConfig) -> AnnotationSet:
    store = open_storage(uri, settings)
    index = RecordingIndex(recordings)
    keys = [e.key for e in store.list() if e.key.lower().endswith(ANNOTATION_SUFFIXES)]
    if not keys:  # one object, not a folder of them
        parent, name = open_beside(uri, settings)
        return parse_annotations(_content(parent, name, uri), name, index=index)
    sets = []
    for key, content in zip(keys, map_keys(store.read_bytes, keys), strict=True):
        try:
            sets.append(parse_annotations(content, key, index=index))
        except DataError as error:  # a folder also holds other tables: say so and go on
            sets.append(AnnotationSet(problems=(str(error).splitlines()[0],)))
    return merge_annotations(sets)


def _content(store: Storage, name: str, uri: str) -> bytes:
    try:
        return store.read_bytes(name)
    except FileNotFoundError:
        raise DataError(f"{uri}: no such annotation file or folder") from None


def annotations_hash(annotations: AnnotationSet) -> str:
    """Names the content of a set of annotations."""
    rows = sorted(
        (a.path, a.begin_s, a.end_s, str(a.low_hz), str(a.high_hz), a.label, str(a.score))
        for a in annotations.annotations
    )
    return text_hash(repr((rows, sorted(annotations.annotated_paths))))
