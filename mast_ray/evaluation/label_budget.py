"""Learning curves: figures of runs over label budgets, strategies and seeds,
summarised with intervals over seeds.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

import numpy as np
from scipy import special

from mast_ray.evaluation.intervals import LEVEL

CURVES = "label_budget.json"


@dataclass(frozen=True)
class CurveRow:
    """A point of a learning curve on one split, as label_budget.json and .csv hold it: means over seeds, with limits."""

    split: str
    strategy: str
    num_chunks: int
    num_seeds: int
    num_recordings: int
    f1: float
    f1_low: float
    f1_high: float
    precision: float
    precision_low: float
    precision_high: float
    recall: float
    recall_low: float
    recall_high: float
    ap_area: float
    ap_area_low: float
    ap_area_high: float
    mean_iou: float
    mean_iou_low: float
    mean_iou_high: float
    time_f1: float
    time_f1_low: float
    time_f1_high: float


def curves_to_json(rows: Sequence[CurveRow]) -> bytes:
    """JSON has no NaN: what is unknown is null."""
    known = [{name: None if value != value else value for name, value in asdict(row).items()} for row in rows]
    return json.dumps(known, indent=1).encode()


def curves_from_json(document: bytes) -> list[CurveRow]:
    rows = []
    for row in json.loads(document):
        known: dict[str, Any] = {n: math.nan if value is None else value for n, value in row.items()}
        rows.append(CurveRow(**known))
    return rows


class BudgetRun(NamedTuple):
    """One training run of the grid."""

    strategy: str
    num_chunks: int
    seed: int
    value: float  # of the figure in question, e.g. F1 on the test split


class CurvePoint(NamedTuple):
    strategy: str
    num_chunks: int
    mean: float
    low: float  # 95 % limits of the mean over seeds; NaN with a single seed
    high: float
    num_seeds: int


class StrategyGain(NamedTuple):
    """Second strategy minus first at one budget, paired by seed."""

    num_chunks: int
    mean: float
    low: float
    high: float
    num_seeds: int


def strategy_gains(runs: Sequence[BudgetRun], first: str, second: str) -> list[StrategyGain]:
    """How much the second strategy gains over the first at every budget both have, seed by seed."""
    value = {(r.strategy, r.num_chunks, r.seed): r.value for r in runs if np.isfinite(r.value)}
    gains: dict[int, list[float]] = {}
    for (strategy, num_chunks, seed), figure in sorted(value.items()):
        if strategy == second and (first, num_chunks, seed) in value:
            gains.setdefault(num_chunks, []).append(figure - value[first, num_chunks, seed])
    return [StrategyGain(n, *mean_limits(values), len(values)) for n, values in sorted(gains.items())]


def chunks_needed(curve: Sequence[CurvePoint], target: float) -> float:
    """Budget at which a strategy's mean first reaches the target, interpolated in log
    budget; NaN when it never does.
    """
    points = sorted(curve, key=lambda p: p.num_chunks)
    before = None
    for point in points:
        if point.mean >= target:
            if before is None or before.num_chunks <= 0:
                return float(point.num_chunks)
            share = (target - before.mean) / (point.mean - before.mean)
            return float(before.num_chunks * (point.num_chunks / before.num_chunks) ** share)
        before = point
    return float("nan")


def mean_limits(values: Sequence[float]) -> tuple[float, float, float]:
    """Mean and Student limits over seeds."""
    array = np.asarray(values, np.float64)
    mean = float(array.mean()) if len(array) else float("nan")
    if len(array) < 2:
        return mean, float("nan"), float("nan")
    half = float(special.stdtrit(len(array) - 1, (1 + LEVEL) / 2) * array.std(ddof=1) / np.sqrt(len(array)))
    return mean, mean - half, mean + half
