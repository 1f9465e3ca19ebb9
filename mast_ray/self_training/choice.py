"""Which round of self-training is delivered, and why: a student that is worse than its teacher never is."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple


class Choice(NamedTuple):
    """Place in the list of rounds, and the reason for people."""

    place: int
    why: str


def best_round(f1: Sequence[float], rounds: Sequence[int], split: str) -> Choice:
    """The round of highest F1 on a split; the earliest among equals, so that a student must earn its place.

    Rounds without a figure (NaN) count as worse than any other.
    """
    known = [-1.0 if math.isnan(value) else value for value in f1]
    place = max(range(len(known)), key=lambda index: (known[index], -index))
    text = [
        f"{'-' if math.isnan(value) else f'{value:.4f}'} in round {number}"
        for value, number in zip(f1, rounds, strict=True)
    ]
    others = [part for index, part in enumerate(text) if index != place]
    against = f", against {', '.join(others)}" if others else ""
    return Choice(place, f"round {rounds[place]} is the best on {split}: F1 {text[place]}{against}")
