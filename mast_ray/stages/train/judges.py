"""Teaching the two judges of models/baselines/pieces.py by an expert's boxes: seconds on a laptop, without Ray."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import cycle
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn import functional

from mast_ray.boxes.geometry import pairwise_iou
from mast_ray.boxes.pieces import (
    CANDIDATE_FEATURES,
    PAIR_FEATURES,
    Floats,
    Pieces,
    belongs_to,
    pair_features,
    pairs_of,
)
from mast_ray.models.baselines.pieces import Judge, PiecesDetector, candidates

Bools = NDArray[np.bool_]
LEAST_IOU = 0.5  # with a true box, of a group that is a whole call
BATCH, PASSES, LEAST_STEPS, MOST_ROWS = 512, 4, 300, 200_000
LEARNING_RATE, WEIGHT_DECAY, LEAST_STD = 3e-3, 0.3, 1e-3


class Marked(NamedTuple):
    """What an expert said of a chunk."""

    calls: Floats  # (N, 4)
    ignored: Floats  # (M, 4) where nobody looked or was sure: neither call nor background


def taught(
    pieces: Sequence[Pieces], marked: Sequence[Marked], seed: int, num_threads: int = 1
) -> PiecesDetector:
    """The pieces of every chunk and what an expert said of it -> a detector.

    The second judge sees groups as the first makes them in chunks that it has not learned from: each half of the chunks by
    a first judge of the other half. Neighbouring chunks share sound, so that the chunks come in order and are cut once.
    """
    with ThreadPoolExecutor(max(1, num_threads)) as threads, torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        rng = np.random.default_rng([seed, 37])
        detector = PiecesDetector()
        teach(detector.same_call, *_pairs(pieces, marked), rng)
        middle = len(pieces) // 2
        first, second = slice(None, middle), slice(middle, None)
        seen, is_whole = [np.zeros((0, CANDIDATE_FEATURES), np.float32)], [np.zeros(0, bool)]
        for learned, judged in ((first, second), (second, first)):
            judge = teach(Judge(PAIR_FEATURES), *_pairs(pieces[learned], marked[learned]), rng)
            made = threads.map(candidates, cycle([judge]), pieces[judged])
            for (boxes, features), said in zip(made, marked[judged], strict=True):
                right = _best_iou(boxes, said.calls) >= LEAST_IOU
                known = right | (belongs_to(boxes, said.ignored) < 0)
                seen.append(features[known])
                is_whole.append(right[known])
        teach(detector.whole_call, np.concatenate(seen), np.concatenate(is_whole), rng)
    return detector.eval()


def teach(judge: Judge, features: Floats, answers: Bools, rng: np.random.Generator) -> Judge:
    """The judge, taught (N, C) features and (N,) right answers; as it was where there are none."""
    if not len(answers):
        return judge
    rows = rng.permutation(len(answers))[:MOST_ROWS]
    asked, right = torch.from_numpy(features[rows]), torch.from_numpy(answers[rows].astype(np.float32))
    judge.mean.copy_(asked.mean(0))
    judge.std.copy_(asked.std(0, correction=0).clamp(min=LEAST_STD))
    num_steps = max(LEAST_STEPS, PASSES * -(-len(rows) // BATCH))
    optimizer = torch.optim.AdamW(judge.parameters(), LEARNING_RATE, weight_decay=WEIGHT_DECAY)
    pace = torch.optim.lr_scheduler.OneCycleLR(optimizer, LEARNING_RATE, total_steps=num_steps)
    for _ in range(num_steps):
        batch = torch.from_numpy(rng.integers(len(rows), size=BATCH))
        loss = functional.binary_cross_entropy_with_logits(judge(asked[batch]), right[batch])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        pace.step()
    return judge


def _pairs(pieces: Sequence[Pieces], marked: Sequence[Marked]) -> tuple[Floats, Bools]:
    """Features of pairs of which one piece at least is of a call, and whether both are of the same."""
    seen, is_same = [np.zeros((0, PAIR_FEATURES), np.float32)], [np.zeros(0, bool)]
    for one, said in zip(pieces, marked, strict=True):
        call = belongs_to(one.corners, said.calls)
        known = (call >= 0) | (belongs_to(one.corners, said.ignored) < 0)
        pairs = pairs_of(one)
        pairs = pairs[known[pairs].all(axis=1) & (call[pairs] >= 0).any(axis=1)]
        seen.append(pair_features(one, pairs))
        is_same.append(call[pairs[:, 0]] == call[pairs[:, 1]])
    return np.concatenate(seen), np.concatenate(is_same)


def _best_iou(boxes: Floats, true: Floats) -> Floats:
    """(N,) with the true box that suits best"""
    if not len(boxes) or not len(true):
        return np.zeros(len(boxes), np.float32)
    best: Floats = pairwise_iou(torch.from_numpy(boxes), torch.from_numpy(true)).amax(1).numpy()
    return best
