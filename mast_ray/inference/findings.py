"""Findings that say more about a model than about its recordings: nothing at all, nothing that counts, or the same boxes
wherever it looked. A model that learnt nothing gives just that, and its tables look like any other.
"""

from __future__ import annotations

from collections import Counter

import numpy as np
from numpy.typing import NDArray

FEWEST_PLACES = 3  # two copies of one recording are no sign
SHARE_OF_PLACES = 0.9  # the last chunk of a recording is cut and differs
REMEDY = "listen to a recording, and see in card.json what the model was trained on"


def same_everywhere(place: NDArray[np.int64], values: NDArray[np.float64], num_places: int) -> bool:
    """Whether nearly every place (a chunk, a recording) has one and the same set of boxes.

    (D,) the place of each box; (D, K) what a box is, measured from where its place begins, in units in which 0.1 is no
    difference.
    """
    if num_places < FEWEST_PLACES or len(place) == 0:
        return False
    order = np.argsort(place, kind="stable")
    rounded = np.round(values[order], 1)
    ends = np.flatnonzero(np.diff(place[order])) + 1
    sets = Counter(tuple(sorted(map(tuple, rows.tolist()))) for rows in np.split(rounded, ends) if len(rows))
    return sets.most_common(1)[0][1] >= SHARE_OF_PLACES * num_places


def doubts(
    num_found: int, num_kept: int, threshold: float | None, best_score: float, is_same: bool, where: str
) -> list[str]:
    """What to tell a user whose model found nothing, nothing above its threshold, or the same everywhere."""
    if num_found == 0:
        return [f"the model found nothing at all in {where}: {REMEDY}"]
    said = []
    if threshold is not None and num_kept == 0:
        said.append(
            f"nothing that the model found in {where} reaches the threshold {threshold:g} "
            f"(the highest score is {best_score:.3g}): {REMEDY}"
        )
    if is_same:
        said.append(
            f"the model found the same boxes everywhere in {where}, whatever is to be heard there: {REMEDY}"
        )
    return said
