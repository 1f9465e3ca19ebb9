"""Scores that lie in files, a stretch per group and file, as one sequence of which ranks can be asked."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import pyarrow.parquet as pq
from numpy.typing import NDArray

from mast_ray.self_training.order_statistics import Floats, Ints, values_at
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
        filesystem, root = self.stage.arrow()
        by_group: dict[tuple[str, int], list[ScoreRun]] = {}
        for run in self.runs:
            by_group.setdefault((run.key, run.row_group), []).append(run)
        for (key, row_group), runs in by_group.items():
            with filesystem.open_input_file(f"{root}/{key}") as source:
                column = pq.ParquetFile(source).read_row_group(row_group).column("score").to_numpy()
            for run in runs:
                yield column[run.first : run.first + run.num_scores]
