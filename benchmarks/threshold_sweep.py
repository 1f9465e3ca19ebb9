"""A thousand thresholds over a million stored detections: matched once and asked often, beside
filtering and evaluating one by one.

    python benchmarks/threshold_sweep.py --out threshold_sweep.json
    python benchmarks/threshold_sweep.py --detections 20000 --thresholds 50 --one-by-one 50      # smoke check

sweep        suppression, validity, matching, then precision, recall and F1 at every threshold (stages/search/post_processing.py)
one by one   for every threshold: filter by score, suppress, check validity, match, count; timed on --one-by-one thresholds spread
             over the range, where its F1 must be equal
Seconds are of one core (process time, one thread).
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import time
from pathlib import Path

import numpy as np
import torch

from mast_ray.evaluation.matching import match
from mast_ray.evaluation.metrics import f1_over_thresholds, summarise
from mast_ray.self_training.operator import PoolDetections, Validity, candidates, pseudo_boxes

GOAL_S = 5.0


def main() -> None:
    args = arguments()
    torch.set_num_threads(1)
    rng = np.random.default_rng(0)
    num_chunks = max(1, args.detections // args.per_chunk)
    found, truth_chunk, truth = made_up(rng, num_chunks, args.per_chunk, args.truths)
    thresholds, validity = np.linspace(0.01, 1.0, args.thresholds), Validity()
    about = {
        "machine": platform.machine(), "cores_used": 1, "cores": os.cpu_count(), "numpy": np.__version__,
        "detections": len(found.score), "chunks": num_chunks, "truths": len(truth), "thresholds": args.thresholds,
    }  # fmt: skip
    print(json.dumps(about), flush=True)
    seconds = []
    for _ in range(args.repeats):
        begun_s = time.process_time()
        possible = candidates(found, 0.5, validity)
        suppressed_s = time.process_time() - begun_s
        matches = match(possible.chunk, possible.boxes, possible.score, truth_chunk, truth)
        curve = f1_over_thresholds(matches, thresholds)
        seconds.append((time.process_time() - begun_s, suppressed_s))
    sweep_s, suppressed_s = min(seconds)
    picked = np.unique(np.linspace(0, args.thresholds - 1, args.one_by_one).astype(int))
    begun_s, worst = time.process_time(), 0.0
    for row in picked.tolist():
        kept = pseudo_boxes(
            found.where(found.score >= thresholds[row]), float(thresholds[row]), 0.5, validity
        )
        one = summarise(match(kept.chunk, kept.boxes, kept.score, truth_chunk, truth), 0.0).f1
        worst = max(worst, abs(np.nan_to_num(one) - np.nan_to_num(curve.f1[row])))
    one_s = (time.process_time() - begun_s) / len(picked)
    result = {
        "configuration": about,
        "sweep_s": sweep_s,
        "of_which_suppression_s": suppressed_s,
        "goal_s": GOAL_S,
        "one_by_one_s_per_threshold": one_s,
        "one_by_one_s_extrapolated": one_s * args.thresholds,
        "thresholds_compared": len(picked),
        "largest_difference_of_f1": float(worst),
        "best_f1": float(np.nanmax(curve.f1)),
    }
    print(json.dumps({name: value for name, value in result.items() if name != "configuration"}, indent=1))
    assert worst == 0.0, "the sweep and one-by-one evaluation disagree"
    if args.out:
        Path(args.out).write_text(json.dumps(result, indent=1) + "\n")


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--detections", type=int, default=1_000_000)
    add("--per-chunk", type=int, default=50)
    add("--truths", type=int, default=5, help="per chunk")
    add("--thresholds", type=int, default=1_000)
    add("--one-by-one", type=int, default=20, help="thresholds on which the rival is timed and compared")
    add("--repeats", type=int, default=3)
    add("--out", default="", help="JSON to write")
    return parser.parse_args()


def made_up(
    rng: np.random.Generator, num_chunks: int, per_chunk: int, truths: int
) -> tuple[PoolDetections, np.ndarray, np.ndarray]:
    """Calls all over the chunks; half of the detections are near a call, several
    per call, the others anywhere.
    """

    def boxes(count: int) -> np.ndarray:
        corner = np.stack(
            [rng.uniform(0, 900, (num_chunks, count)), rng.uniform(0, 100, (num_chunks, count))], -1
        )
        size = np.stack(
            [rng.uniform(8, 120, (num_chunks, count)), rng.uniform(1, 28, (num_chunks, count))], -1
        )
        return np.concatenate([corner, corner + size], -1)

    truth, near = boxes(truths), per_chunk // 2
    of_call = truth[np.arange(num_chunks)[:, None], rng.integers(0, truths, (num_chunks, near))]
    moved = of_call + rng.normal(0, 1, of_call.shape) * np.array([6.0, 2.0, 6.0, 2.0])
    moved[..., 2:] = np.maximum(moved[..., 2:], moved[..., :2] + 1)
    all_boxes = np.concatenate([moved, boxes(per_chunk - near)], 1).reshape(-1, 4)
    score = np.concatenate(
        [rng.beta(4, 3, (num_chunks, near)), rng.beta(2, 6, (num_chunks, per_chunk - near))], 1
    ).ravel()
    found = PoolDetections(np.repeat(np.arange(num_chunks), per_chunk), all_boxes, score, num_chunks)
    return found, np.repeat(np.arange(num_chunks), truths), truth.reshape(-1, 4)


if __name__ == "__main__":
    main()
