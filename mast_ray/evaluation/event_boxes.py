"""Events as boxes to match, in a space chosen by name, and which of them lie in the blocks of a split.

"mel": frames and mel bins, as the model sees them (labels of an archive rounded to the grid as in training); "hertz":
seconds and hertz as written. Boxes are (t0, f0, t1, f1); time-only events have NaN for f0 and f1.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from mast_ray.evaluation.events import EventTable
from mast_ray.spectrogram.grid import Rounding, boxes_from_seconds_hertz

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]
Space = Literal["mel", "hertz"]


class Blocks(NamedTuple):
    """Parts of recordings to speak of, such as those of one split; blocks of one recording do not overlap."""

    recording: Ints
    begin_s: Floats
    end_s: Floats


def is_within(events: EventTable, blocks: Blocks) -> Bools:
    """(N,) whether the middle of each event lies in a block of its recording."""
    if len(events) == 0 or len(blocks.recording) == 0:
        return np.zeros(len(events), bool)
    middle = np.maximum((events.begin_s + events.end_s) / 2, 0.0)
    stride = max(float(middle.max()), float(blocks.end_s.max())) + 1.0
    order = np.lexsort((blocks.begin_s, blocks.recording))
    line = blocks.recording[order] * stride + blocks.begin_s[order]
    place = np.searchsorted(line, events.recording * stride + middle, side="right") - 1
    block = order[np.maximum(place, 0)]
    inside = (blocks.recording[block] == events.recording) & (middle <= blocks.end_s[block])
    return (place >= 0) & inside


def boxes_of_events(
    events: EventTable, space: Space = "mel", rounding: Rounding = "none"
) -> tuple[Floats, Bools]:
    """((N, 4) boxes in the space, (N,) whether the event can be seen there: mel ends at 20 and 8000 Hz).

    rounding "grid" puts boxes on whole frames and bins as training does with truths; "none" keeps
    fractions, as detections have them.
    """
    if space == "hertz":
        boxes = np.stack([events.begin_s, events.low_hz, events.end_s, events.high_hz], axis=1)
        return boxes, np.ones(len(events), bool)
    time_only = np.isnan(events.low_hz)
    low_hz, high_hz = np.where(time_only, 1000.0, events.low_hz), np.where(time_only, 2000.0, events.high_hz)
    boxes, visible = boxes_from_seconds_hertz(
        events.begin_s, events.end_s, low_hz, high_hz, rounding=rounding
    )
    boxes[time_only, 1::2] = np.nan
    return boxes, visible
