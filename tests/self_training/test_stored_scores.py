"""Scores of the groups of a site, read at once or a few at a time: the same ranks."""

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from mast_ray.self_training.stored_scores import ScoreRun, scores_of_groups
from mast_ray.storage.storage import open_storage


@pytest.fixture
def stage(tmp_path):
    """Two files with a row group per site; of the second site two groups, and a third without scores."""
    files = {"a": [[0.9], [0.1, 0.5, 0.2]], "b": [[0.8], [0.3, 0.4]]}
    for name, row_groups in files.items():
        with pq.ParquetWriter(tmp_path / name, pa.schema([("score", pa.float32())])) as writer:
            for scores in row_groups:
                writer.write_table(pa.table({"score": pa.array(scores, pa.float32())}))
    return open_storage(tmp_path)


GROUPS = [
    [ScoreRun("a", 1, 0, 2), ScoreRun("b", 1, 0, 1)],
    [ScoreRun("a", 1, 2, 1), ScoreRun("b", 1, 1, 1)],
    [],
]


@pytest.mark.parametrize("most", [1, 4, 100])
def test_ranks_are_the_same_whatever_memory_may_hold(stage, most):
    groups, whole = scores_of_groups(stage, GROUPS, most)
    assert [len(one) for one in (*groups, whole)] == [3, 2, 0, 5]
    assert groups[0].at(np.arange(3)).tolist() == np.float32([0.1, 0.3, 0.5]).tolist()
    assert groups[1].at(np.arange(2)).tolist() == np.float32([0.2, 0.4]).tolist()
    assert whole.at(np.array([4, 0])).tolist() == np.float32([0.5, 0.1]).tolist()


def test_what_fits_is_read_once(stage, monkeypatch):
    opened, read = [], pq.ParquetFile.read_row_group
    monkeypatch.setattr(
        pq.ParquetFile, "read_row_group", lambda file, number: opened.append(number) or read(file, number)
    )
    groups, whole = scores_of_groups(stage, GROUPS)
    for scores in (*groups[:2], whole):
        scores.at(np.array([0]))
    assert opened == [1, 1]
