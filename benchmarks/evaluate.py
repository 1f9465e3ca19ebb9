"""Evaluator against pycocotools (and faster-coco-eval) on the same boxes in the same run;
thresholds over stored detections.

    python benchmarks/evaluate.py --chunks 50000 --detections 20 --out evaluate.json

Unit: CPU seconds of one core (all contestants use one thread), from arrays in memory to AP and F1.
pycocotools starts from its own in-memory COCO objects; building them is timed apart and not held against it.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import platform
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from mast_ray.evaluation.intervals import bootstrap_intervals, recording_sums
from mast_ray.evaluation.matching import match
from mast_ray.evaluation.metrics import best_threshold, f1_over_thresholds, summarise


def random_boxes(chunks: int, truths: int, detections: int, seed: int) -> tuple[np.ndarray, ...]:
    """Integer boxes of 1024 x 128 chunks: most detections near a truth, the rest
    anywhere, scores with ties.
    """
    rng = np.random.default_rng(seed)

    def anywhere(size: int) -> np.ndarray:
        t0, f0 = rng.integers(0, 980, size), rng.integers(0, 110, size)
        return np.stack([t0, f0, t0 + rng.integers(4, 44, size), f0 + rng.integers(2, 18, size)], 1).astype(
            float
        )

    truth_group = np.repeat(np.arange(chunks), truths)
    truth = anywhere(chunks * truths)
    det_group = np.repeat(np.arange(chunks), detections)
    near = truth[det_group * truths + rng.integers(0, truths, len(det_group))]
    near = near + rng.integers(-2, 3, near.shape)
    near[:, 2:] = np.maximum(near[:, 2:], near[:, :2] + 1)
    is_near = rng.random(len(det_group)) < 0.6
    boxes = np.where(is_near[:, None], near, anywhere(len(det_group)))
    score = np.round(np.where(is_near, rng.beta(4, 2, len(det_group)), rng.beta(2, 4, len(det_group))), 3)
    return det_group, boxes, score, truth_group, truth


def coco_objects(arrays: tuple[np.ndarray, ...], chunks: int, library: str) -> Callable[[], float]:
    """A call that evaluates and returns AP at IoU 0.5, 101 points, all detections."""
    if library == "pycocotools":
        from pycocotools.coco import COCO
        from pycocotools.cocoeval import COCOeval
    else:
        from faster_coco_eval import COCO
        from faster_coco_eval import COCOeval_faster as COCOeval
    det_group, boxes, score, truth_group, truth = arrays

    def records(groups: np.ndarray, corners: np.ndarray) -> list[dict]:
        sizes = corners[:, 2:] - corners[:, :2]
        columns = zip(groups.tolist(), corners[:, :2].tolist(), sizes.tolist(), strict=True)
        return [
            {
                "id": n,
                "image_id": g + 1,
                "category_id": 1,
                "bbox": [*p, *s],
                "area": s[0] * s[1],
                "iscrowd": 0,
            }
            for n, (g, p, s) in enumerate(columns, start=1)
        ]

    with contextlib.redirect_stdout(io.StringIO()):
        ground = COCO()
        ground.dataset = {
            "images": [{"id": n + 1, "width": 1024, "height": 128} for n in range(chunks)],
            "annotations": records(truth_group, truth),
            "categories": [{"id": 1, "name": "sound"}],
        }
        ground.createIndex()
        results = records(det_group, boxes)
        for record, value in zip(results, score.tolist(), strict=True):
            record["score"] = value
        found = ground.loadRes(results)

    def evaluate() -> float:
        with contextlib.redirect_stdout(io.StringIO()):
            evaluation = COCOeval(ground, found, iouType="bbox")
            evaluation.params.iouThrs = np.array([0.5])
            evaluation.params.maxDets = [1000]
            evaluation.params.areaRng = [[0, 1e10]]
            evaluation.params.areaRngLbl = ["all"]
            evaluation.evaluate()
            evaluation.accumulate()
        return float(evaluation.eval["precision"].mean())

    return evaluate


def seconds_of(work: Callable[[], object]) -> tuple[float, object]:
    start = time.process_time()  # not wall time: neighbours on the machine shall not decide
    result = work()
    return time.process_time() - start, result


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--chunks", type=int, default=50_000)
    parser.add_argument("--detections", type=int, default=20, help="per chunk")
    parser.add_argument("--truths", type=int, default=8, help="per chunk")
    parser.add_argument("--repeats", type=int, default=3, help="of ours, the median counts; rivals run once")
    parser.add_argument("--rivals", default="pycocotools,faster_coco_eval")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    arrays = random_boxes(args.chunks, args.truths, args.detections, args.seed)
    print(
        f"{args.chunks} chunks x {args.detections} detections, {args.truths} truths each; numpy {np.__version__}, {platform.machine()}"
    )

    def ours() -> tuple:
        matches = match(*arrays)
        return matches, summarise(matches, best_threshold(matches))

    match(*random_boxes(100, 4, 8, 1))  # warm-up
    times = [seconds_of(ours) for _ in range(args.repeats)]
    our_s = float(np.median([t for t, _ in times]))
    matches, metrics = times[-1][1]  # type: ignore[misc]
    print(
        f"mast_ray          {our_s:8.2f} s  AP101 {metrics.ap_101_point:.6f}  F1 {metrics.f1:.4f} (all figures, threshold tuned)"
    )
    result = {
        "config": vars(args) | {"out": None},
        "mast_ray_s": our_s,
        "ap_101_point": metrics.ap_101_point,
        "rivals": {},
    }

    sweep_s, _ = seconds_of(lambda: f1_over_thresholds(matches, np.linspace(0, 1, 1000)))
    match_s, _ = seconds_of(lambda: match(*arrays))
    print(
        f"1,000 thresholds over {len(matches.score):,} detections: {sweep_s:.3f} s, and {match_s:.2f} s to match them once"
    )
    recording = np.arange(args.chunks) // 50
    interval_s, intervals = seconds_of(
        lambda: bootstrap_intervals(recording_sums(matches, metrics.threshold, recording))
    )
    print(
        f"1,000 resamples of {recording.max() + 1} recordings, all figures: {interval_s:.2f} s, F1 {intervals['f1']}"
    )  # type: ignore[index]
    result |= {"thresholds_1000_s": sweep_s, "match_s": match_s, "bootstrap_1000_s": interval_s}

    for name in filter(None, args.rivals.split(",")):
        build_s, evaluate = seconds_of(lambda name=name: coco_objects(arrays, args.chunks, name))
        rival_s, rival_ap = seconds_of(evaluate)  # type: ignore[arg-type]
        print(
            f"{name:<17} {rival_s:8.2f} s  AP101 {rival_ap:.6f}  -> {rival_s / our_s:.1f} x ours (and {build_s:.1f} s to build objects)"
        )
        result["rivals"][name] = {
            "seconds": rival_s,
            "build_s": build_s,
            "ap_101_point": rival_ap,
            "ratio": rival_s / our_s,
        }
        if abs(rival_ap - metrics.ap_101_point) > 1e-9:  # type: ignore[operator]
            raise SystemExit(f"{name} disagrees: {rival_ap} against {metrics.ap_101_point}")
    if args.out:
        args.out.write_text(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
