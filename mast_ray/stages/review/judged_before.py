"""What earlier rounds have said, for detections of a new model: a box that lies where one was judged or drawn before
needs no second look.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from mast_ray.evaluation.review.review_state import SAME_CALL_IOU, ReviewedBox
from mast_ray.evaluation.review.rounds import number_of_round
from mast_ray.stages.review.found_boxes import FoundBoxes


def judged_before(
    found: FoundBoxes, boxes: Iterable[ReviewedBox], rounds: Sequence[str] = ()
) -> dict[int, str]:
    """Row of a detection -> id of the box that was judged or drawn in its place (overlap of at least half) before the
    last of the `rounds` ended, each at most once; boxes that are detections of this run speak for themselves.
    """
    near: list[tuple[float, int, str]] = []
    for box in boxes:
        recording = found.row_of_path.get(box.path, -1)
        if recording < 0 or box.low_hz is None or box.high_hz is None or box.box_id in found.row_of_id:
            continue
        if not box.detection_id and not number_of_round(box, rounds) < len(rounds):
            continue  # drawn in this round: the reviewer has seen what lies beside it
        rows = found.within(recording, box.begin_s, box.end_s)
        in_time = np.minimum(found.end_s[rows], box.end_s) - np.maximum(found.begin_s[rows], box.begin_s)
        in_band = np.minimum(found.high_hz[rows], box.high_hz) - np.maximum(found.low_hz[rows], box.low_hz)
        both = np.maximum(in_time, 0.0) * np.maximum(in_band, 0.0)
        own = (found.end_s[rows] - found.begin_s[rows]) * (found.high_hz[rows] - found.low_hz[rows])
        iou = both / (own + (box.end_s - box.begin_s) * (box.high_hz - box.low_hz) - both)
        near += [(float(iou[n]), int(rows[n]), box.box_id) for n in np.flatnonzero(iou >= SAME_CALL_IOU)]
    told: dict[int, str] = {}
    for _, row, box_id in sorted(near, key=lambda one: (-one[0], one[1], one[2])):
        if row not in told and box_id not in told.values():
            told[row] = box_id
    return told
