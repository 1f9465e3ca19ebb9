"""Which round of self-training is delivered, and why: a student that is worse than its teacher never is."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

EQUAL = 0.001


class Choice(NamedTuple):
    """Place in the list of rounds, and the reason for people."""

    place: int
    why: str


def best_round(f1: Sequence[float], ap: Sequence[float], rounds: Sequence[int], split: str) -> Choice:
    """The round of highest F1 on a split; of rounds with equal F1, that of highest AP; of equals in both, the earliest: a
    student must earn its place. Figures that are less than EQUAL apart are equal: one box more or less moves them as far.
    Steps smaller than that do not lead away from the highest F1, however many of them there are.

    Rounds without a figure (NaN) count as worse than any other. Where none has an AP the split holds no call, and nothing
    can be judged by it: the first stays.
    """
    if all(map(math.isnan, ap)):
        return Choice(0, f"round {rounds[0]} stays: {split} holds no call to choose by")
    place = top = 0
    for rival in range(1, len(f1)):
        by_f1, by_ap = (_compared(figures[rival], figures[place]) for figures in (f1, ap))
        if by_f1 > 0 or (by_f1 == 0 and by_ap > 0 and _compared(f1[rival], f1[top]) == 0):
            place = rival
        top = rival if f1[rival] > f1[top] or math.isnan(f1[top]) else top
    text = [f"{_shown(value)} in round {number}" for value, number in zip(f1, rounds, strict=True)]
    others = [part for index, part in enumerate(text) if index != place]
    against = f", against {', '.join(others)}" if others else ""
    why = f"round {rounds[place]} is the best on {split}: F1 {text[place]}{against}"
    ties = [
        index
        for index in range(len(f1))
        if index != place and not any(_compared(f1[index], f1[one]) for one in (place, top))
    ]
    if ties:
        rivals = ", ".join(f"{_shown(ap[index])} in round {rounds[index]}" for index in ties)
        why += f" (F1 less than {EQUAL:g} apart is equal: AP {_shown(ap[place])}, against {rivals})"
    return Choice(place, why)


def _compared(one: float, other: float) -> int:
    """1: better, 0: equal, -1: worse."""
    if math.isnan(one) or math.isnan(other):
        return int(math.isnan(other)) - int(math.isnan(one))
    return 0 if abs(one - other) < EQUAL else 1 if one > other else -1


def _shown(value: float) -> str:
    return "-" if math.isnan(value) else f"{value:.4f}"
