"""The search over post-processing gives what filtering and evaluating one by one gives,
and prefers the simpler of equals.
"""

from dataclasses import replace

import numpy as np
import pytest
from small_archive import make_prepared, small_config

from mast_ray.config.errors import DataError
from mast_ray.config.loading import apply_overrides
from mast_ray.evaluation.metrics import best_threshold, summarise
from mast_ray.evaluation.scoring import score_chunks
from mast_ray.self_training.operator import PoolDetections, pseudo_boxes
from mast_ray.stages.search.post_processing import SCORE_WEIGHTS, PostSetting, objective_chunks, search_post
from mast_ray.tables.prepared import open_prepared
from mast_ray.tables.reading.chunk_sets import box_table, chunks_of_split


@pytest.fixture(scope="module")
def prepared(tmp_path_factory):
    return open_prepared(str(make_prepared(tmp_path_factory.mktemp("small"), num_recordings=8, seconds=24)))


@pytest.fixture(scope="module")
def config():
    return small_config(**{"tune.thresholds": 60, "self_train.min_group_detections": 30})


@pytest.fixture(scope="module")
def stored(prepared):
    """Detections of the training chunks: each label three times, jittered, and
    boxes anywhere with lower scores.
    """
    chunks = chunks_of_split(prepared, "train")
    truth, rng = box_table(prepared, chunks, prepared.labels), np.random.default_rng(0)
    near = np.repeat(truth.corners.astype(float), 3, axis=0) + rng.normal(
        0, [8, 1, 8, 1], (3 * len(truth.corners), 4)
    )
    of_chunk = np.repeat(np.repeat(np.arange(len(chunks)), truth.counts()), 3)
    corner = np.stack([rng.uniform(0, 1000, 400), rng.uniform(0, 120, 400)], 1)
    anywhere = np.concatenate([corner, corner + rng.uniform(1, 40, (400, 2))], 1)
    boxes = np.concatenate([near, anywhere])
    boxes[:, 2:] = np.maximum(boxes[:, 2:], boxes[:, :2] + 0.5)
    score = np.concatenate([rng.beta(3, 2, len(near)), rng.beta(2, 4, 400)])
    return chunks, PoolDetections(
        np.concatenate([of_chunk, rng.integers(0, len(chunks), 400)]), boxes, score, len(chunks)
    )


def test_every_setting_has_the_threshold_that_is_frozen_elsewhere_and_the_f1_of_filtering_by_it(
    prepared, config, stored
):
    chunks, found = stored
    settings = [PostSetting(0.3, 0.0, 1), PostSetting(0.6, 0.1, 2)]
    search = search_post(config, prepared, chunks, found, settings)
    shown, best, curves = np.linspace(config.evaluate.score_floor, 1.0, 60), [], []

    def matches_at(threshold: float, setting: PostSetting):
        kept = pseudo_boxes(found, threshold, setting.nms_overlap, setting.validity)
        return score_chunks(prepared, chunks, kept, config).matches

    for setting in settings:
        frozen = best_threshold(matches_at(0.0, setting))
        at = sorted([*shown.tolist(), frozen])
        curves.append([summarise(matches_at(threshold, setting), 0.0).f1 for threshold in at])
        best.append((frozen, curves[-1][at.index(frozen)], max(curves[-1])))
    fixed = [row for row in search.rows if row["policy"] == "fixed" and not row["doubts_nested"]]
    assert [(row["threshold"], row["objective"], row["highest_f1"]) for row in fixed] == best
    of_best = 0 if search.best["nms_overlap"] == 0.3 else 1
    assert search.best["doubts_nested"] or search.curve["f1"].tolist() == curves[of_best]
    assert search.best["highest_f1"] == max(row["highest_f1"] for row in search.rows) > 0.3


def test_policies_by_group_are_tried_beside_a_fixed_threshold(prepared, config, stored):
    search = search_post(config, prepared, *stored, [PostSetting(0.5, 0.1, 2)])
    policies = [row["policy"] for row in search.rows if not row["doubts_nested"]]
    assert policies == ["fixed", "per_group_mixture", "per_group_quantile"]
    keys = search.overrides()
    changed = apply_overrides(config, keys)
    assert changed.self_train.nms_overlap == changed.evaluate.nms_overlap == 0.5
    assert changed.self_train.threshold == search.best["threshold"]


def test_a_better_weighing_of_classification_and_centerness_is_found(prepared, config, stored):
    chunks, found = stored
    truth = box_table(prepared, chunks, prepared.labels)
    is_near = np.arange(len(found.score)) < 3 * len(truth.corners)  # the first ones lie on labels
    rng = np.random.default_rng(3)
    classification = np.where(is_near, 0.9, 0.2)  # tells them apart
    centerness = rng.uniform(0.01, 1.0, len(is_near))  # tells nothing
    split = replace(
        found,
        score=np.sqrt(classification * centerness),
        parts=np.stack([classification, centerness], axis=1),
    )
    search = search_post(config, prepared, chunks, split, [PostSetting(0.5, 0.0, 1)])
    fixed = [row for row in search.rows if row["policy"] == "fixed" and not row["doubts_nested"]]
    assert [row["score_weight"] for row in fixed] == [0.5, *SCORE_WEIGHTS]
    by_weight = {row["score_weight"]: row["highest_f1"] for row in fixed}
    assert by_weight[1.0] > by_weight[0.5] > by_weight[0.0]
    assert search.best["score_weight"] > 0.5
    assert search.best["policy"] != "fixed" or search.best["objective"] in search.curve["f1"]
    changed = apply_overrides(config, search.overrides())
    assert changed.self_train.score_weight == search.best["score_weight"]


@pytest.mark.parametrize("labelled", ["wholes", "parts"])
def test_doubt_about_boxes_within_better_ones_follows_the_habit_of_the_labels(
    prepared, config, stored, labelled
):
    chunks, _ = stored
    truth = box_table(prepared, chunks, prepared.labels)
    own, of_chunk = truth.corners.astype(float), np.repeat(np.arange(len(chunks)), truth.counts())
    times, bins = own[:, 2::-2], own[:, 3::-2]
    length = times[:, :1] - times[:, 1:]
    if labelled == "wholes":  # beside every call its first third
        other = np.concatenate((own[:, :2], own[:, :1] + length / 3, bins[:, :1]), axis=1)
        scores = 0.8, 0.7
    else:  # around every call what is three times as long
        other = np.concatenate((own[:, :1] - length, own[:, 1:2], own[:, 2:3] + length, bins[:, :1]), axis=1)
        scores = 0.7, 0.8
    score = np.repeat(scores, len(own)) + np.tile(np.linspace(-0.3, 0.1, len(own)), 2)
    found = PoolDetections(np.tile(of_chunk, 2), np.concatenate((own, other)), score, len(chunks))
    search = search_post(config, prepared, chunks, found, [PostSetting(0.5, 0.0, 1)])
    plain, with_doubt = (row["highest_f1"] for row in search.rows if row["policy"] == "fixed")
    post = search.delivered("val")
    if labelled == "wholes":
        assert with_doubt > plain + 0.1 and post.doubts_nested
        assert post.f1 == search.rows[3]["objective"] <= with_doubt
    else:
        assert with_doubt <= plain and not post.doubts_nested


def test_a_search_on_a_split_that_is_not_there_is_refused_with_a_remedy(prepared):
    with pytest.raises(DataError, match="has no split ood_dev to search on: it has val, test"):
        objective_chunks(prepared, "ood_dev")


def test_a_search_on_a_split_without_a_call_is_refused_before_anything_is_detected(prepared):
    """Every setting is as good as any other there: the first, a threshold of 0.01, went into the detector's card."""
    with pytest.raises(DataError, match=r"none of the labels .* lies in val: there is nothing to search by"):
        objective_chunks(replace(prepared, labels=prepared.labels.slice(0, 0)), "val")
    assert len(objective_chunks(prepared, "val"))
