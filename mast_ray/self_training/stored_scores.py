"""Scores that lie in files, a stretch per group and file, as one sequence of which ranks can be asked."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import pyarrow.parquet as pq
from numpy.typing import NDArray

from mast_ray.self_training.order_statistics import MOST_VALUES, Floats, InMemory, Ints, Scores, values_at
from mast_ray.storage.storage import Storage


class ScoreRun(NamedTuple):
    """Where the scores of a group lie in one file."""

    key: str
    row_group: int
    first: int
    num_scores: int


@dataclass(frozen=True, eq=False)
class StoredScores:
    """Scores of a group, a site or the pool in the files of all shards."""

    stage: Storage
    runs: Sequence[ScoreRun]

    def __len__(self) -> int:
        return sum(run.num_scores for run in self.runs)

    def at(self, ranks: Ints) -> Floats:
        return values_at(self._blocks, len(self), ranks)

    def _blocks(self) -> Iterator[NDArray[np.floating]]:
        yield np.zeros(0, np.float32)
        for _, block in _read(self.stage, self.runs):
            yield block


def scores_of_groups(
    stage: Storage, groups: Sequence[Sequence[ScoreRun]], most: int = MOST_VALUES
) -> tuple[list[Scores], Scores]:
    """(scores of every group of a site, those of the whole site). What memory may hold is read once: the groups of a
    site share row groups, and a day's 24 would read all of them 24 times.
    """
    runs = [run for own in groups for run in own]
    whole = StoredScores(stage, runs)
    if len(whole) > most:
        return [StoredScores(stage, own) for own in groups], whole
    group_of = {run: number for number, own in enumerate(groups) for run in own}
    parts: list[list[NDArray[np.floating]]] = [[np.zeros(0, np.float32)] for _ in groups]
    for run, block in _read(stage, runs):
        parts[group_of[run]].append(block)
    arrays = [np.concatenate(own) for own in parts]
    return [InMemory(one) for one in arrays], InMemory(np.concatenate([np.zeros(0, np.float32), *arrays]))


def _read(stage: Storage, runs: Sequence[ScoreRun]) -> Iterator[tuple[ScoreRun, NDArray[np.floating]]]:
    """Runs with their scores, a row group at a time."""
    filesystem, root = stage.arrow()
    by_group: dict[tuple[str, int], list[ScoreRun]] = {}
    for run in runs:
        by_group.setdefault((run.key, run.row_group), []).append(run)
    for (key, row_group), own in by_group.items():
        with filesystem.open_input_file(f"{root}/{key}") as source:
            column = pq.ParquetFile(source).read_row_group(row_group).column("score").to_numpy()
        for run in own:
            yield run, column[run.first : run.first + run.num_scores]
