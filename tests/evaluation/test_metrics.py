"""Figures against pycocotools and faster-coco-eval, and against cases worked by hand."""

import contextlib
import io

import numpy as np
import pytest
from chunk_lists import evaluate_chunks, match_chunks

from mast_ray.evaluation.matching import Matches, match
from mast_ray.evaluation.metrics import (
    average_precision,
    best_threshold,
    f1_over_thresholds,
    summarise,
)


def random_chunks(seed, num_chunks=40, num_scores=12):
    """Integer boxes with tied scores, duplicates, empty chunks, chunks with
    only truths or only detections.
    """
    rng = np.random.default_rng(seed)

    def boxes(number):
        t0, f0 = rng.integers(0, 60, number), rng.integers(0, 20, number)
        return np.stack([t0, f0, t0 + rng.integers(1, 20, number), f0 + rng.integers(1, 10, number)], 1)

    truth, detections = [], []
    for _ in range(num_chunks):
        objects = boxes(rng.integers(0, 7)) if rng.random() < 0.8 else boxes(0)
        near = objects[rng.integers(0, len(objects), rng.integers(0, 9))] if len(objects) else boxes(0)
        near = near + rng.integers(-2, 3, near.shape)
        near[:, 2:] = np.maximum(near[:, 2:], near[:, :2] + 1)
        found = np.concatenate([near, near[: rng.integers(0, 3)], boxes(rng.integers(0, 4))])
        if rng.random() < 0.15:
            found = found[:0]
        truth.append(objects.astype(float))
        detections.append((found.astype(float), rng.integers(0, num_scores, len(found)) / num_scores))
    return truth, detections


def coco_tables(truth, detections):
    def record(box, image, number):
        t0, f0, t1, f1 = (float(v) for v in box)
        width, height = t1 - t0, f1 - f0
        return {
            "id": number,
            "image_id": image,
            "category_id": 1,
            "bbox": [t0, f0, width, height],
            "area": width * height,
            "iscrowd": 0,
        }

    images = [{"id": i + 1, "width": 200, "height": 200} for i in range(len(truth))]
    objects = [(box, i + 1) for i, boxes in enumerate(truth) for box in boxes]
    annotations = [record(box, image, n + 1) for n, (box, image) in enumerate(objects)]
    found = [
        (b, s, i + 1)
        for i, (boxes, scores) in enumerate(detections)
        for b, s in zip(boxes, scores, strict=True)
    ]
    results = [record(b, image, n + 1) | {"score": float(s)} for n, (b, s, image) in enumerate(found)]
    return {"images": images, "annotations": annotations, "categories": [{"id": 1, "name": "sound"}]}, results


def coco_evaluation(truth, detections, library, recall_levels=None):
    if library == "pycocotools":
        from pycocotools.coco import COCO
        from pycocotools.cocoeval import COCOeval
    else:
        from faster_coco_eval import COCO
        from faster_coco_eval import COCOeval_faster as COCOeval
    data, results = coco_tables(truth, detections)
    with contextlib.redirect_stdout(io.StringIO()):
        ground = COCO()
        ground.dataset = data
        ground.createIndex()
        evaluation = COCOeval(ground, ground.loadRes(results), iouType="bbox")
        evaluation.params.iouThrs = np.array([0.5])
        evaluation.params.maxDets = [10_000]
        evaluation.params.areaRng = [[0, 1e10]]
        evaluation.params.areaRngLbl = ["all"]
        if recall_levels is not None:
            evaluation.params.recThrs = recall_levels
        evaluation.evaluate()
        evaluation.accumulate()
    return evaluation


@pytest.mark.parametrize("library", ["pycocotools", "faster_coco_eval"])
@pytest.mark.parametrize("seed", range(5))
def test_average_precision_equals_the_coco_libraries_with_ties_duplicates_and_empty_chunks(seed, library):
    truth, detections = random_chunks(seed)
    metrics = evaluate_chunks(truth, detections)
    num_truth = sum(len(boxes) for boxes in truth)
    coco = coco_evaluation(truth, detections, library)
    assert metrics.ap_101_point == pytest.approx(coco.eval["precision"].mean(), abs=1e-9)
    levels = np.arange(1, num_truth + 1) / num_truth  # mean over all reachable levels is the exact area
    coco = coco_evaluation(truth, detections, library, recall_levels=levels)
    assert metrics.ap_area == pytest.approx(coco.eval["precision"].mean(), abs=1e-9)


@pytest.mark.parametrize("seed", range(5))
def test_f1_at_every_threshold_equals_counting_pycocotools_matches_of_the_kept_detections(seed):
    truth, detections = random_chunks(seed)
    curve = f1_over_thresholds(match_chunks(truth, detections))
    num_truth = sum(len(boxes) for boxes in truth)
    for threshold, f1 in zip(curve.threshold, curve.f1, strict=True):
        kept = [(boxes[scores >= threshold], scores[scores >= threshold]) for boxes, scores in detections]
        coco = coco_evaluation(truth, kept, "pycocotools")
        marks = [image["dtMatches"][0] for image in coco.evalImgs if image is not None]
        hits, found = sum((m > 0).sum() for m in marks), sum(len(m) for m in marks)
        assert f1 == pytest.approx(2 * hits / (found + num_truth), abs=1e-12)
        assert f1 == pytest.approx(evaluate_chunks(truth, kept, threshold).f1, abs=1e-12)


def test_eleven_point_average_precision_of_a_hand_worked_case():
    # 5 truths; hits at ranks 1, 2, 4: recall 0.2, 0.4, 0.6 with precision 1, 1, 3/4.
    # Levels 0 .. 0.4 (five of them) see 1, levels 0.5 and 0.6 see 0.75, the last four see 0.
    ranked = [True, True, False, True, False]
    assert average_precision(ranked, 5, "11_point") == pytest.approx((5 * 1 + 2 * 0.75) / 11)
    assert average_precision(ranked, 5, "area") == pytest.approx((1 + 1 + 0.75) / 5)
    assert average_precision(ranked, 5, "101_point") == pytest.approx((41 * 1 + 20 * 0.75) / 101)


def test_a_score_at_the_threshold_counts_in_time_too():
    call = [[0.0, 0, 8, 4]]
    matches = match([0, 0], call * 2, [0.9, 0.5], [0], call)
    figures = summarise(matches, 0.5, in_time=matches)
    assert (figures.precision, figures.f1_macro) == (0.5, pytest.approx(2 / 3))
    assert (figures.time_precision, figures.time_recall, figures.time_f1) == (0.5, 1.0, pytest.approx(2 / 3))


def test_one_eleventh_appears_when_a_precise_detector_ends_below_a_tenth_of_recall():
    # The paper's YOLO26 line: recall 0.0926, precision near 1, AP 0.0909.
    ranked = [True] * 9 + [False]
    assert average_precision(ranked, 100, "11_point") == pytest.approx(1 / 11)
    truth = [np.array([[10.0 * k, 0, 10.0 * k + 8, 4] for k in range(20)])]
    found = truth[0].copy()
    score = np.where(np.arange(20) == 3, 0.9, 0.2)
    matches = match_chunks(truth, [(found, score)])
    assert summarise(matches, 0.5, ap_over="kept").ap_11_point == pytest.approx(1 / 11)
    assert summarise(matches, 0.5, ap_over="all").ap_11_point == pytest.approx(1.0)


def test_counts_and_scores_of_two_chunks_worked_by_hand():
    truth = [np.array([[0, 0, 10, 10], [20, 0, 30, 10]]), np.zeros((0, 4)), np.zeros((0, 4))]
    detections = [
        (np.array([[0, 0, 10, 8], [0, 0, 10, 10], [50, 0, 60, 10]]), np.array([0.9, 0.8, 0.3])),
        (np.array([[0, 0, 5, 5]]), np.array([0.6])),
        (np.zeros((0, 4)), np.zeros(0)),
    ]
    metrics = evaluate_chunks(truth, detections, threshold=0.5)
    assert (metrics.num_truth, metrics.num_detections, metrics.num_true_positives) == (2, 3, 1)
    assert metrics.precision == pytest.approx(1 / 3)
    assert metrics.recall == pytest.approx(1 / 2)
    assert metrics.f1 == pytest.approx(2 / 5)
    # The third chunk, silent and left silent, is no evidence.
    assert metrics.f1_macro == pytest.approx((2 / 4 + 0) / 2)
    # The better-scored box took the truth, the better-fitting one came late.
    assert metrics.mean_iou == pytest.approx(0.8)


def many_calls(hits: dict[float, int], noise: dict[float, int], num_truth: int) -> Matches:
    """Score -> how many detections of it; every call lies in a chunk of its own, and so does what is none."""
    call, nowhere = [0.0, 0.0, 8.0, 4.0], [0.0, 50.0, 8.0, 54.0]
    score = [s for scores in (hits, noise) for s, count in scores.items() for _ in range(count)]
    num_hits = sum(hits.values())
    boxes = [call] * num_hits + [nowhere] * (len(score) - num_hits)
    return match(range(len(score)), boxes, score, range(num_truth), [call] * num_truth, 0.5)


def test_the_threshold_of_few_calls_is_the_middle_of_all_that_are_as_good_that_of_many_is_the_best():
    # F1 by score: 0.9 0.990, 0.7 1.0, 0.6 0.995, 0.1 0.663. Of 100 calls 0.980 is two standard errors from 1.
    few = many_calls({0.9: 98, 0.7: 2}, {0.6: 1, 0.1: 100}, 100)
    assert best_threshold(few) == pytest.approx((0.1 + 0.9) / 2)
    many = many_calls({0.9: 3920, 0.7: 80}, {0.6: 40, 0.1: 4000}, 4000)
    assert best_threshold(many) == pytest.approx((0.6 + 0.7) / 2)


def test_chance_is_two_standard_errors_of_the_share_that_is_right():
    # F1 by score: 0.95 0, 0.9 290 / 375 = 0.773, 0.7 320 / 400 = 0.8, 0.5 320 / 460 = 0.696. Of 200 calls, 161 of 202
    # right, two standard errors are 0.057: as good as 0.8 is what is above 0.743.
    matches = many_calls({0.9: 145, 0.7: 15}, {0.95: 5, 0.9: 25, 0.7: 10, 0.5: 60}, 200)
    assert best_threshold(matches) == pytest.approx((0.5 + 0.9) / 2)


def test_of_a_handful_of_calls_only_what_is_nearly_the_best_counts_as_good():
    # F1 by score: 0.9 0.4, 0.8 0.667, 0.7 0.857, 0.6 1.0, 0.5 0.889
    matches = many_calls({0.9: 1, 0.8: 1, 0.7: 1, 0.6: 1}, {0.5: 1, 0.4: 1}, 4)
    assert best_threshold(matches) == pytest.approx(0.55)


def test_there_may_be_nothing_below_to_keep_away_from_and_nothing_to_tune_on():
    assert best_threshold(many_calls({0.9: 300, 0.6: 300}, {}, 600)) == 0.6
    assert np.isnan(best_threshold(many_calls({}, {0.5: 4}, 4)))


def test_without_truth_or_detections_figures_are_undefined_rather_than_flattering():
    empty = evaluate_chunks([np.zeros((0, 4))], [(np.zeros((0, 4)), np.zeros(0))])
    assert np.isnan([empty.precision, empty.recall, empty.f1, empty.f1_macro, empty.ap_area]).all()
    missed = evaluate_chunks([np.array([[0, 0, 1, 1]])], [(np.zeros((0, 4)), np.zeros(0))])
    assert (missed.recall, missed.f1, missed.f1_macro, missed.ap_area) == (0, 0, 0, 0)
    alarms = evaluate_chunks([np.zeros((0, 4))], [(np.array([[0, 0, 1, 1]]), np.array([0.9]))], threshold=0.5)
    assert (alarms.precision, alarms.f1) == (0, 0) and np.isnan(alarms.recall)
    assert np.isnan([alarms.ap_area, alarms.ap_11_point, alarms.ap_101_point]).all()


def test_a_thousand_thresholds_over_many_detections_agree_with_counting_one_by_one():
    rng = np.random.default_rng(0)
    start = rng.uniform(0, 1e4, 3000)
    boxes = np.stack([start, np.zeros(3000), start + 10, np.full(3000, 4.0)], 1)
    matches = match(
        np.zeros(3000), boxes + rng.normal(0, 2, (3000, 1)), rng.random(3000), np.zeros(1500), boxes[:1500]
    )
    thresholds = np.linspace(0, 1, 1000)
    curve = f1_over_thresholds(matches, thresholds)
    for k in range(0, 1000, 111):
        kept = matches.score >= thresholds[k]
        assert curve.num_detections[k] == kept.sum()
        hits = (kept & matches.is_true_positive).sum()
        assert curve.num_true_positives[k] == hits
        assert curve.recall[k] == hits / 1500
        assert curve.precision[k] == hits / kept.sum() if kept.any() else np.isnan(curve.precision[k])


def test_of_thresholds_with_the_same_f1_the_highest_is_taken():
    # F1 is 2 / 3 for the first hits alone, and for all hits with the false alarms between them.
    matches = many_calls({0.9: 500, 0.3: 500}, {0.5: 500, 0.4: 500}, 1000)
    assert best_threshold(matches) == pytest.approx(0.7)


def test_detections_without_scores_have_one_precision_whatever_their_order():
    for hits in ([True, False], [False, True]):
        assert average_precision(hits, num_truth=1, is_ranked=False) == 0.5
    truth = [np.array([[0.0, 0, 8, 4]])]
    boxes = np.concatenate([truth[0], truth[0] + np.array([0, 50, 0, 50])])
    for order in ([0, 1], [1, 0]):
        matches = match_chunks(truth, [(boxes[order], np.ones(2))])
        assert summarise(matches, 0.0).ap_area == 0.5
