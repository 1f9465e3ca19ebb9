"""The governor stops rounds whose pseudo-labels collapse, and says why."""

from dataclasses import replace

import numpy as np
import pytest

from mast_ray.self_training.governor import PoolFigures, judge, pool_figures
from mast_ray.self_training.operator import PoolDetections


def figures(density):
    return PoolFigures(boxes_per_chunk=density, empty_share=0.1, mean_score=0.5, num_chunks=100)


def test_figures_of_a_hand_worked_pool():
    pseudo = PoolDetections(np.array([0, 0, 2]), np.zeros((3, 4)), np.array([0.3, 0.6, 0.9]), 4)
    result = pool_figures(pseudo)
    assert (result.boxes_per_chunk, result.empty_share) == (0.75, 0.5)
    assert result.mean_score == pytest.approx(0.6)
    assert pool_figures(replace(pseudo, chunk=np.array([1, 1, 1]))).empty_share == 0.75
    nothing = PoolDetections(np.zeros(0, int), np.zeros((0, 4)), np.zeros(0), 4)
    assert pool_figures(nothing) == PoolFigures(0.0, 1.0, 0.0, 4)
    assert pool_figures(replace(nothing, num_chunks=0)) == PoolFigures(0.0, 1.0, 0.0, 0)


@pytest.mark.parametrize(
    ("now", "before", "agreement", "sane", "word"),
    [
        (2.0, None, None, True, ""),
        (0.0, None, None, False, "no pseudo-boxes"),
        (8.1, 2.0, 0.9, False, "2.00 to 8.10"),
        (0.4, 2.0, 0.9, False, "2.00 to 0.40"),
        (8.0, 2.0, 0.9, True, ""),
        (2.0, 2.0, 0.29, False, "agree"),
        (2.0, 2.0, 0.30, True, ""),
    ],
)
def test_verdicts(now, before, agreement, sane, word):
    verdict = judge(figures(now), figures(before) if before else None, agreement, 4.0, 0.3)
    assert verdict.is_sane is sane and word in verdict.reason
