"""What is true in a split of a prepared archive: its annotated recordings, their
events, and the blocks to score.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from mast_ray.config.errors import DataError
from mast_ray.evaluation.event_boxes import Blocks
from mast_ray.evaluation.events import EventTable, events_from_arrow, recordings_from_arrow, renumbered
from mast_ray.spectrogram.grid import Rounding
from mast_ray.tables.prepared import Prepared
from mast_ray.tables.reading.chunk_sets import box_table, chunks_of_split

SPLIT_ORDER = ("val", "test", "temporal_ood", "site_ood", "ood_dev")  # as they are reported


def scored_splits(prepared: Prepared) -> tuple[str, ...]:
    """The splits of an archive that can be scored: annotated ones but the training split, with a chunk or more."""
    present = set(prepared.splits.column("split").to_pylist())
    return tuple(name for name in SPLIT_ORDER if name in present and len(chunks_of_split(prepared, name)))


def selection_split(prepared: Prepared) -> str:
    """The split that may choose between models: `ood_dev` where it holds a labelled call, else `val`.

    A model is wanted for the next site, so unseen sites that were set aside for this purpose choose best.
    """
    try:
        chunks = chunks_of_split(prepared, "ood_dev")
    except DataError:
        return "val"
    return "ood_dev" if box_table(prepared, chunks, prepared.labels).counts().any() else "val"


class Truth(NamedTuple):
    """What is true: `events.recordings` are the annotated recordings."""

    events: EventTable
    blocks: Blocks | None = None  # parts of the recordings to speak of; None: all
    ignored: EventTable | None = None  # where nobody looked or was sure
    rounding: Rounding = "grid"  # labels of an archive lie on whole frames and bins, as a model learns them


def truth_of_split(prepared: Prepared, split: str | None, only_with_chunks: bool = False) -> Truth:
    """Events of the annotated recordings of a split and its blocks; of all annotated recordings when it is None. A model
    hears chunks: those of recordings too short for one (spectrogram.short_recordings=drop) are none that it could find.
    """
    everything = recordings_from_arrow(prepared.recordings)
    annotated = recordings_from_arrow(prepared.recordings, only_annotated=True)
    truth = events_from_arrow(prepared.labels, everything)
    if split is None:
        return Truth(renumbered(truth, annotated), None, events_from_arrow(prepared.ignored, annotated))
    rows = [row for row in prepared.splits.to_pylist() if row["split"] == split]
    names = {row["recording_id"] for row in rows}
    if only_with_chunks:
        names &= {name for name, count in zip(annotated.ids, annotated.num_chunks, strict=True) if count}
    chosen = annotated.take(np.array([n for n, name in enumerate(annotated.ids) if name in names], np.int64))
    if not len(chosen):
        known = sorted({name for name in prepared.splits.column("split").to_pylist() if name})
        raise DataError(
            f"no annotated recording in split {split!r} of {prepared.storage.url}:\nit has {', '.join(known)}"
        )
    place = {name: row for row, name in enumerate(chosen.ids)}
    rows = [row for row in rows if row["recording_id"] in place]
    blocks = Blocks(
        np.array([place[row["recording_id"]] for row in rows], np.int64),
        np.array([row["begin_s"] for row in rows], np.float64),
        np.array([row["end_s"] for row in rows], np.float64),
    )
    return Truth(renumbered(truth, chosen), blocks, events_from_arrow(prepared.ignored, chosen))
