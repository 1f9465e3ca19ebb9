"""The pseudo-label operator on hand-worked tables."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torchvision.ops import nms

from mast_ray.config.errors import DataError
from mast_ray.self_training import operator
from mast_ray.self_training.operator import (
    PoolDetections,
    Validity,
    chunk_weights,
    in_band,
    is_valid,
    pseudo_boxes,
    strongest,
    survives_suppression,
    weighed,
)

LONG = (100.0, 20.0, 200.0, 40.0)


def pool(rows, num_chunks=3):
    """rows of (chunk, box, score)."""
    return PoolDetections(
        np.array([r[0] for r in rows], np.int64),
        np.array([r[1] for r in rows], np.float64).reshape(-1, 4),
        np.array([r[2] for r in rows], np.float64),
        num_chunks,
    )


def test_raising_q_keeps_fewer_boxes_and_equal_scores_count_as_above():
    detections = pool([(0, LONG, 0.9), (1, LONG, 0.5), (2, LONG, 0.1)])
    for q, kept in [(0.05, 3), (0.1, 3), (0.11, 2), (0.5, 2), (0.6, 1), (0.95, 0)]:
        assert len(pseudo_boxes(detections, q, 0.5, Validity()).score) == kept


def test_a_threshold_per_chunk_acts_on_that_chunk_only():
    detections = pool([(0, LONG, 0.5), (1, LONG, 0.5)])
    kept = pseudo_boxes(detections, np.array([0.4, 0.6, 0.0]), 0.5, Validity())
    assert kept.chunk.tolist() == [0]


@pytest.mark.parametrize(
    ("box", "valid"),
    [
        ((10, 5, 20, 7), True),  # exactly 100 ms and 2 bins
        ((10, 5, 19.9, 7), False),  # too short
        ((10, 5, 20, 6.9), False),  # too low
        ((0, 5, 1024, 9), False),  # touches both borders
        ((0, 5, 1000, 9), True),  # touches one
        ((30, 5, 1024, 9), True),
    ],
)
def test_validity_rules(box, valid):
    assert is_valid(pool([(0, box, 0.9)]), Validity()).tolist() == [valid]


def test_suppression_acts_within_a_chunk_and_keeps_the_better_box():
    near = (102.0, 20.0, 202.0, 40.0)
    detections = pool([(0, LONG, 0.5), (0, near, 0.8), (1, LONG, 0.4), (0, (500.0, 1.0, 600.0, 9.0), 0.2)])
    assert survives_suppression(detections, 0.5).tolist() == [False, True, True, True]


def test_of_equal_scores_the_earlier_row_survives_suppression_wherever_it_lies():
    near = (102.0, 20.0, 202.0, 40.0)
    for first, second in ((LONG, near), (near, LONG)):
        assert survives_suppression(pool([(0, first, 0.5), (0, second, 0.5)]), 0.5).tolist() == [True, False]


@pytest.mark.parametrize("pairs_at_once", [operator.MOST_PAIRS, 50, 1])
def test_suppression_equals_torchvision_chunk_by_chunk(pairs_at_once, monkeypatch):
    monkeypatch.setattr(operator, "MOST_PAIRS", pairs_at_once)
    rng = np.random.default_rng(3)
    chunk = rng.integers(0, 40, 900)
    start = rng.uniform(0, [900, 100], (900, 2))
    boxes = np.concatenate([start, start + rng.uniform(10, [200, 40], (900, 2))], axis=1)
    detections = PoolDetections(chunk, boxes, rng.random(900), 40)
    kept = survives_suppression(detections, 0.3)
    for c in range(40):
        rows = np.flatnonzero(chunk == c)
        survivors = nms(torch.tensor(boxes[rows]), torch.tensor(detections.score[rows]), 0.3).numpy()
        assert set(np.flatnonzero(kept[rows])) == set(survivors)


def test_weight_of_a_chunk_is_the_mean_score_of_its_pseudo_boxes():
    pseudo = pool([(0, LONG, 0.9), (0, LONG, 0.5), (2, LONG, 0.2)])
    chunks, weight = chunk_weights(pseudo, "drop", 0.3)
    assert chunks.tolist() == [0, 2]
    np.testing.assert_allclose(weight, [0.7, 0.2])


def test_empty_chunks_stay_as_negatives_with_their_own_weight():
    chunks, weight = chunk_weights(pool([(1, LONG, 0.6)]), "negative", 0.25)
    assert chunks.tolist() == [0, 1, 2]
    np.testing.assert_allclose(weight, [0.25, 0.6, 0.25])


def test_no_detections_give_no_pseudo_boxes_and_no_error():
    empty = pool([])
    assert len(pseudo_boxes(empty, 0.1, 0.5, Validity()).score) == 0
    assert chunk_weights(empty, "drop", 0.3)[0].tolist() == []


def test_scores_are_made_anew_from_classification_and_centerness():
    stored = pool([(0, LONG, 0.6), (1, LONG, 0.36)])  # sqrt(0.9 x 0.4) and sqrt(0.16 x 0.81)
    stored = replace(stored, parts=np.array([[0.9, 0.4], [0.16, 0.81]]))
    assert weighed(stored, 0.5) is stored
    assert weighed(stored, 1.0).score.tolist() == [0.9, 0.16]
    assert weighed(stored, 0.0).score.tolist() == [0.4, 0.81]
    assert weighed(stored, 0.25).score == pytest.approx([0.9**0.25 * 0.4**0.75, 0.16**0.25 * 0.81**0.75])
    last = weighed(stored, 0.0).where(np.array([False, True]))
    assert last.parts.tolist() == [[0.16, 0.81]] and last.score.tolist() == [0.81]
    with pytest.raises(DataError, match=r"leave self_train\.score_weight at 0\.5"):
        weighed(replace(stored, parts=None), 0.7)


def test_between_two_thresholds_boxes_are_neither_object_nor_background():
    short = (100.0, 20.0, 105.0, 40.0)
    detections = pool(
        [(0, LONG, 0.9), (0, LONG, 0.5), (0, LONG, 0.2), (1, LONG, 0.5), (1, short, 0.9), (2, LONG, 0.4)]
    )
    is_object = (detections.score >= 0.7) & is_valid(detections, Validity())
    ignored = in_band(detections, np.array([0.3, 0.6, 0.4]), is_object)
    # 0.9 is an object, 0.2 background; chunk 1 begins its band at 0.6, and what is too short there was still heard; chunk 2 at 0.4
    assert list(zip(ignored.chunk.tolist(), ignored.score.tolist(), strict=True)) == [
        (0, 0.5),
        (1, 0.9),
        (2, 0.4),
    ]


def test_the_strongest_of_every_chunk_are_kept_and_of_equals_the_earlier():
    boxes = np.zeros((6, 4))
    found = PoolDetections(np.array([2, 0, 2, 0, 2, 0]), boxes, np.array([0.5, 0.1, 0.9, 0.3, 0.5, 0.2]), 3)
    assert strongest(found, 2).tolist() == [True, False, True, True, False, True]
    assert strongest(found, 9).all()
