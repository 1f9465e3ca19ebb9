"""Exact order statistics and quantiles of more scores than fit into memory, in a few passes over them.

Scores come in blocks, in any order, as often as they are asked for. Bins of their leading bits are counted first; then
the values of as many bins as memory may hold are gathered and sorted, until every wanted rank was met. Nothing is
approximated: a threshold made of a hundred million scores in fifty files is that of one array, to the last digit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Blocks = Callable[[], Iterable[NDArray[np.floating]]]
MOST_VALUES = 16_000_000  # sorted at once: 128 MB
BIN_BITS = 20  # sign, exponent and eight bits of the fraction: 256 bins from 0.5 to 1


class Scores(Protocol):
    """Scores, none of them negative, of which single ranks can be asked."""

    def __len__(self) -> int: ...
    def at(self, ranks: Ints) -> Floats:
        """The values of these ranks, 0 the lowest."""
        ...


@dataclass(frozen=True, eq=False)
class InMemory:
    """Scores of one array."""

    values: NDArray[np.floating]

    def __len__(self) -> int:
        return len(self.values)

    def at(self, ranks: Ints) -> Floats:
        return np.sort(self.values)[ranks].astype(np.float64)


def values_at(blocks: Blocks, count: int, ranks: Ints, most: int = MOST_VALUES) -> Floats:
    """(R,) values of some ranks of `count` values; at most about `most` of them are held at a time, or those of one bin."""
    if count <= most:
        return np.sort(np.concatenate(list(blocks())))[ranks].astype(np.float64)
    in_bin = np.zeros(1 << BIN_BITS, np.int64)
    for block in blocks():
        in_bin += np.bincount(_bins(block), minlength=len(in_bin))
    before = np.cumsum(in_bin) - in_bin  # values in lower bins
    bin_of_rank = np.searchsorted(before, ranks, side="right") - 1
    found, left = np.empty(len(ranks)), np.unique(bin_of_rank)
    while len(left):
        first = left[0]
        size = np.cumsum(in_bin[first : left[-1] + 1])
        last = first + max(0, int(np.searchsorted(size, most, side="right")) - 1)
        some = np.sort(np.concatenate([_between(block, first, last) for block in blocks()]))
        wanted = (bin_of_rank >= first) & (bin_of_rank <= last)
        found[wanted] = some[ranks[wanted] - before[first]]
        left = left[left > last]
    return found


def _bins(values: NDArray[np.floating]) -> Ints:
    """Numbers that are in the order of the values, which must not be negative."""
    whole = np.abs(values.astype(np.float64))  # -0.0 is 0
    return (whole.view(np.uint64) >> np.uint64(64 - BIN_BITS)).astype(np.int64)


def _between(values: NDArray[np.floating], first: int, last: int) -> NDArray[np.floating]:
    own = _bins(values)
    return values[(own >= first) & (own <= last)]


def quantiles(
    scores: Scores, shares: Floats, of: Callable[[Floats], Floats] = lambda values: values
) -> Floats:
    """np.quantile of scores, or of what a rising function makes of them: the same ranks, the same interpolation."""
    place = (len(scores) - 1) * shares
    below = np.floor(place).astype(np.int64)
    ranks, back = np.unique([below, np.minimum(below + 1, len(scores) - 1)], return_inverse=True)
    low, high = of(scores.at(ranks))[back.reshape(2, -1)]
    part = place - below
    return np.where(part >= 0.5, high - (high - low) * (1 - part), low + (high - low) * part)
