"""One place judged in several rounds: a new detector draws its own box around a call that was judged before, and the
last round's word counts. Boxes of one round never silence each other: there, two boxes are two.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime

from mast_ray.evaluation.review.review_state import (
    SAME_CALL_IOU,
    AgreedBox,
    ReviewedBox,
    overlap,
    recording_key,
)


def last_words(agreed: Iterable[AgreedBox], rounds: Sequence[str]) -> list[AgreedBox]:
    """Boxes without those that a later round judged again (overlap of at least half); `rounds` are the times at which
    earlier rounds ended, as ISO 8601.
    """
    agreed = list(agreed)
    if not rounds:
        return agreed
    number = [number_of_round(one.box, rounds) for one in agreed]
    by_recording: dict[str, list[int]] = defaultdict(list)
    for row, one in enumerate(agreed):
        by_recording[recording_key(one.box)].append(row)
    return [
        one
        for row, one in enumerate(agreed)
        if not any(
            number[other] > number[row] and is_same_place(agreed[other].box, one.box)
            for other in by_recording[recording_key(one.box)]
        )
    ]


def number_of_round(box: ReviewedBox, rounds: Sequence[str]) -> int:
    """How many rounds had ended when the last word on a box was said."""
    return bisect_right(sorted(map(_moment, rounds)), _moment(box.time)) if rounds else 0


def is_same_place(first: ReviewedBox, second: ReviewedBox) -> bool:
    """Whether two boxes of a recording overlap by at least half."""
    if first.begin_s >= second.end_s or second.begin_s >= first.end_s:
        return False
    return overlap(first, second) >= SAME_CALL_IOU


def _moment(text: str) -> datetime:
    found = datetime.fromisoformat(text)
    return found if found.tzinfo is not None else found.replace(tzinfo=UTC)
