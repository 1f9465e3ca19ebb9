"""Boxes within better ones: hand-worked scores, and the same from columns of many chunks."""

import numpy as np
import pytest
import torch

from mast_ray.boxes.batch import Detections
from mast_ray.boxes.nesting import doubted_scores, with_doubt
from mast_ray.self_training import operator
from mast_ray.self_training.operator import PoolDetections, doubted

# a phrase, a syllable in it, one with 0.6 of itself in it, one beside it, and a box that holds the phrase
BOXES = [[0, 0, 100, 10], [10, 2, 30, 8], [88, 0, 108, 10], [200, 0, 220, 10], [0, 0, 140, 20]]
SCORES = [0.8, 0.6, 0.6, 0.6, 0.4]


def test_a_box_within_a_better_one_loses_half_of_its_score():
    corners, score = torch.tensor([BOXES], dtype=torch.float32), torch.tensor([SCORES])
    found = doubted_scores(corners, score, torch.ones(1, 5, dtype=torch.bool))
    # the syllable: 0.6 (1 - 0.8 / 2); who holds a better one, is beside it or only partly in it keeps its score
    assert found[0].tolist() == pytest.approx([0.8, 0.36, 0.6, 0.6, 0.4])


def test_of_several_that_hold_it_the_best_counts_and_unused_slots_hold_nothing():
    corners = torch.tensor(
        [[[0, 0, 100, 10], [0, 0, 90, 10], [10, 2, 30, 8], [0, 0, 200, 20]]], dtype=torch.float32
    )
    score = torch.tensor([[0.5, 0.9, 0.4, 0.95]])
    is_valid = torch.tensor([[True, True, True, False]])
    assert doubted_scores(corners, score, is_valid)[0, :3].tolist() == pytest.approx([0.275, 0.9, 0.22])


def test_equal_scores_do_not_doubt_each_other_and_no_box_is_lost():
    corners = torch.tensor([[[0, 0, 100, 10], [10, 2, 30, 8]]], dtype=torch.float32)
    found = with_doubt(Detections(corners, torch.tensor([[0.5, 0.5]]), torch.ones(1, 2, dtype=torch.bool)))
    assert found.score[0].tolist() == [0.5, 0.5] and found.is_valid.all()


def test_detections_come_best_first_with_their_parts():
    corners, score = torch.tensor([BOXES], dtype=torch.float32), torch.tensor([SCORES])
    parts = torch.arange(10.0).reshape(1, 5, 2)
    found = with_doubt(Detections(corners, score, torch.ones(1, 5, dtype=torch.bool), parts))
    assert found.score[0].tolist() == pytest.approx([0.8, 0.6, 0.6, 0.4, 0.36])
    assert found.corners[0, -1].tolist() == BOXES[1] and found.parts[0, -1].tolist() == [2.0, 3.0]


@pytest.mark.parametrize("at_once", [1, 50, 10**6])
def test_columns_of_many_chunks_have_the_same_scores(monkeypatch, at_once):
    monkeypatch.setattr(operator, "MOST_AT_ONCE", at_once)
    random = np.random.default_rng(0)
    low = random.uniform(0, [800, 100], (7, 40, 2))
    corners = np.concatenate((low, low + random.uniform(4, [300, 40], (7, 40, 2))), -1).round(1)
    score = random.uniform(0.01, 1, (7, 40)).astype(np.float32).astype(np.float64)
    wanted = doubted_scores(
        torch.from_numpy(corners), torch.from_numpy(score), torch.ones(7, 40, dtype=torch.bool)
    )
    shuffled = random.permutation(280)
    chunk = np.repeat(np.arange(7), 40)[shuffled]
    pool = PoolDetections(chunk, corners.reshape(-1, 4)[shuffled], score.reshape(-1)[shuffled], 9)
    found = doubted(pool)
    np.testing.assert_allclose(found.score, wanted.numpy().reshape(-1)[shuffled], rtol=1e-6)
    assert (found.score < pool.score - 1e-3).sum() > 30
    assert found.chunk is pool.chunk and found.boxes is pool.boxes


def test_nothing_is_found_in_nothing():
    empty = PoolDetections(np.zeros(0, np.int64), np.zeros((0, 4)), np.zeros(0), 3)
    assert len(doubted(empty).score) == 0
