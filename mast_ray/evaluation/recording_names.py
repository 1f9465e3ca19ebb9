"""Which recordings of one table are which of another, by their paths; tables that speak of other recordings are told
apart by examples of both, never scored as if nothing had been found.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from mast_ray.config.errors import DataError
from mast_ray.recordings.annotations.paths import (
    RecordingIndex,
    is_of_other_folder,
    num_shared_parts,
)

Ints = NDArray[np.int64]
SHOWN_NAMES = 3


def numbers_by_path(paths: Sequence[str], others: Sequence[str]) -> Ints:
    """For every path of `others` its number in `paths`; -1: not there.

    Paths need not be equal: `D:\\card\\x.WAV` is `site/x.WAV` when only one recording ends so. `ridge/x.wav` is not
    `river/x.wav` where the same table has that one too, or another of its folder; a name without any folder (that of an
    empty Raven table) rules none out. Several recordings that would all become one are an error: `ridge/x.wav` and
    `river/x.wav` are not both `x.wav`, nor is `x.wav` one of them.
    """
    index, own = RecordingIndex(paths), RecordingIndex(others)
    place = {path: row for row, path in enumerate(paths)}
    meant: dict[str, set[str]] = defaultdict(set)
    for path in others:
        name = index.find(path) or _without_folder(index, path)
        if name is None and len(several := index.could_be(path)) > 1:
            raise DataError(
                f"{path} of one table can be {len(several)} recordings of the other ({_some(several)}):\n"
                "write the folder of every recording in both, as in ridge/x.wav"
            )
        if name is not None and not (is_of_other_folder(path, name) and own.rules_out(name, path)):
            meant[name].add(path)
    row_of: dict[str, int] = {}
    for name, same in meant.items():
        nearest = max(num_shared_parts(path, name) for path in same)
        same -= {p for p in same if is_of_other_folder(p, name) and num_shared_parts(p, name) < nearest}
        if len(same) > 1:
            raise DataError(
                f"{len(same)} recordings of one table ({_some(sorted(same))}) would all be {name} of the other:\n"
                "write the folder of every recording in both, as in ridge/x.wav"
            )
        row_of |= dict.fromkeys(same, place[name])
    return np.array([row_of.get(path, -1) for path in others], np.int64)


def _without_folder(index: RecordingIndex, path: str) -> str | None:
    """The one that is called like a path and is in no folder, beside others of its table that are."""
    name = index.find(path.replace("\\", "/").rpartition("/")[2])
    return name if name is not None and "/" not in name else None


def refuse_strangers(rows: Ints, truth: Sequence[str], detections: Sequence[str]) -> None:
    """Detections of which not one recording is annotated were made of other recordings, or name them otherwise."""
    if len(rows) and (rows < 0).all():
        raise DataError(
            f"no recording of the detections ({_some(detections)}) is one of the annotations ({_some(truth)}):\n"
            "give tables of the same recordings; names may differ in their folders and suffix only"
        )


def _some(names: Sequence[str]) -> str:
    return ", ".join(names[:SHOWN_NAMES]) + (", ..." if len(names) > SHOWN_NAMES else "")
