"""Figures of a model over splits, gains between models on the same recordings, and what
a model keeps at its threshold.
"""

import numpy as np
import pytest

from mast_ray.config.loading import apply_overrides
from mast_ray.evaluation.matching import match
from mast_ray.stages.score.split_scores import ModelScores, ScoredChunks
from mast_ray.stages.self_train.round_table import round_row, rounds_text
from mast_ray.stages.self_train.self_train import kept_figures

TRUTH = np.array(
    [[0, 0, 100, 10], [200, 0, 300, 10], [0, 0, 100, 10]], float
)  # two in chunk 0, one in chunk 2
TRUTH_CHUNK = np.array([0, 0, 2])


def scored(score):
    """Four chunks of two recordings: hits on the first and third call, one false alarm in chunk 1."""
    boxes = np.array([[0, 0, 100, 10], [500, 20, 600, 30], [0, 0, 90, 10]], float)
    matches = match(np.array([0, 1, 2]), boxes, np.array(score), TRUTH_CHUNK, TRUTH)
    return ScoredChunks(matches, np.array([0, 0, 1, 1]), 2)


def scores(threshold, score=(0.9, 0.4, 0.6)):
    one = scored(score)
    return ModelScores(threshold, "validation", {"val": one}, {"val": one.figures(threshold, 50, 0)})


def test_figures_are_counted_over_all_chunks_at_the_threshold():
    figures = scored((0.9, 0.4, 0.6)).figures(0.5, 50, 0)
    assert figures["precision"]["estimate"] == 1.0  # 2 of 2 kept
    assert figures["recall"]["estimate"] == pytest.approx(2 / 3)
    assert figures["f1"]["estimate"] == pytest.approx(0.8)
    assert figures["mean_iou"]["estimate"] == pytest.approx((1.0 + 0.9) / 2)
    assert (figures["num_truth"], figures["num_detections"], figures["recordings"]) == (3, 2, 2)


def test_gains_are_differences_each_model_at_its_own_threshold(config):
    better, worse = scores(0.5), scores(0.7)  # worse keeps the first hit only: F1 2 / (1 + 3) = 0.5
    assert better.gains_over(worse, config)["val"]["f1"]["estimate"] == pytest.approx(0.3)
    row = round_row(config, 1, better, worse)
    assert row["val_f1_gain"]["estimate"] == pytest.approx(0.3) and row["threshold"] == 0.5
    text = rounds_text([round_row(config, 0, worse, worse), row])
    assert "round 1   0.800 [" in text and "val" in text


def test_the_headline_of_rounds_is_the_average_precision_of_the_config(config):
    """Two of three calls are found before the false alarm: the area is 2 / 3, of
    eleven levels 0 to 0.6 are reached.
    """
    config = apply_overrides(config, {"evaluate.average_precision": "11_point"})
    better, worse = scores(0.5), scores(0.7)
    rows = [round_row(config, 0, worse, worse), round_row(config, 1, better, worse)]
    text = rounds_text(rows, config.evaluate.average_precision)
    assert "0.636 [" in text.split("AP 11 pt")[1] and "0.667 [" not in text  # 7 / 11
    assert "0.667 [" in rounds_text(rows)
    assert "val_ap_11_point_gain" in rows[1]


def test_what_a_model_keeps_is_counted_over_all_chunks_of_validation():
    kept = kept_figures(scores(0.5))
    assert (kept.boxes_per_chunk, kept.empty_share, kept.num_chunks) == (0.5, 0.5, 4)
    assert kept.mean_score == pytest.approx(0.75)


@pytest.fixture
def config():
    from small_archive import small_config

    return small_config(**{"evaluate.bootstrap": 50})
