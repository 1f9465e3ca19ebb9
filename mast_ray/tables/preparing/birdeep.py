"""BIRDeep's layout: recorder folders, one or several annotation CSVs of its own format,
synthetic copies to be left out.
"""

from __future__ import annotations

from collections.abc import Sequence

from mast_ray.config.errors import DataError
from mast_ray.recordings.annotations.formats.birdeep import is_birdeep
from mast_ray.recordings.annotations.model import AnnotationSet, merge_annotations
from mast_ray.recordings.annotations.paths import RecordingIndex
from mast_ray.recordings.annotations.reading import parse_annotations
from mast_ray.recordings.annotations.tabular import MAX_ANNOTATION_BYTES
from mast_ray.storage.storage import Storage


def birdeep_labels(archive: Storage, recordings: Sequence[str]) -> AnnotationSet:
    """Every BIRDeep CSV of the archive; the same event in several of them counts once, rows
    of synthetic copies not at all.
    """
    index = RecordingIndex(recordings)
    sets = []
    for entry in archive.list():
        if entry.key.lower().endswith(".csv") and entry.num_bytes <= MAX_ANNOTATION_BYTES:
            content = archive.read_bytes(entry.key)
            if is_birdeep(content[:1000].decode("utf-8-sig", "replace").partition("\n")[0].strip()):
                sets.append(parse_annotations(content, entry.key, "birdeep", index=index))
    if not sets:
        raise DataError(
            f"{archive.url} holds no BIRDeep annotation table (columns path, specie, start_time, low_frequency, ...):\n"
            "name it with --annotations, or leave out --dataset birdeep"
        )
    return merge_annotations(sets)
