"""Detections of held-out recordings with the names a model gives them, scored on whole recordings."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pyarrow as pa

from mast_ray.config.tree import Config
from mast_ray.evaluation.events import EventTable
from mast_ray.evaluation.scoring import Scored
from mast_ray.evaluation.whole_recordings import score_whole, stitched_events
from mast_ray.inference.naming import names_of_boxes
from mast_ray.tables.prepared import Prepared


def score_named(
    prepared: Prepared, scored: Scored, split: str, model: str, threshold: float, config: Config
) -> Scored:
    """What was scored chunk by chunk in a split, scored again on whole recordings, with a name for every detection at or
    above the threshold.
    """
    found = scored.detections
    rows = prepared.rows_of(pa.array(found.recordings.ids, pa.string()))
    events = stitched_events(found, prepared.num_frames[rows])
    named = with_names(prepared, events, split, model, threshold, config)
    return replace(score_whole(prepared, named, split, config), are_named=True)


def with_names(
    prepared: Prepared, events: EventTable, split: str, model: str, threshold: float, config: Config
) -> EventTable:
    """Events of whole recordings with the names of a model from a score on; "" for those below."""
    kept = np.flatnonzero(events.score >= threshold)
    named = names_of_boxes(model, prepared, events_table(events.take(kept)), config, (split,))
    label = events.label.copy()
    if named is not None:
        place, names = named
        label[kept[place]] = np.array(names.label, object)
    return replace(events, label=label)


def events_table(events: EventTable) -> pa.Table:
    """Events with their boxes, as a table that can be embedded."""
    ids = np.array(events.recordings.ids, object)[events.recording]
    columns = {name: getattr(events, name) for name in ("begin_s", "end_s", "low_hz", "high_hz", "score")}
    return pa.table({"recording_id": pa.array(ids, pa.string())} | columns)
