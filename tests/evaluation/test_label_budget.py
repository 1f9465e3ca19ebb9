"""Learning curves over budgets and seeds."""

from dataclasses import fields, replace

import numpy as np
import pytest

from mast_ray.evaluation.label_budget import (
    BudgetRun,
    CurvePoint,
    CurveRow,
    chunks_needed,
    curves_from_json,
    curves_to_json,
    mean_limits,
    strategy_gains,
)


def test_limits_of_a_mean_over_three_seeds_worked_by_hand():
    # Values 1, 2, 3: mean 2, standard error 1/sqrt(3), Student quantile 4.3027 at two degrees of freedom.
    mean, low, high = mean_limits([1.0, 2.0, 3.0])
    assert (mean, low, high) == (
        2.0,
        pytest.approx(2 - 4.3027 / 3**0.5, abs=1e-4),
        pytest.approx(2 + 4.3027 / 3**0.5, abs=1e-4),
    )
    assert np.isnan(mean_limits([1.0])[1:]).all()


def test_rows_of_a_curve_read_back_are_those_that_were_written_and_unknown_limits_are_null():
    numbers = {name: 0.1 + place / 7 for place, name in enumerate(f.name for f in fields(CurveRow))}
    known = numbers | {
        "split": "test",
        "strategy": "random",
        "num_chunks": 50,
        "num_seeds": 1,
        "num_recordings": 8,
    }
    row = CurveRow(**(known | {"time_f1_low": float("nan")}))
    (again,) = curves_from_json(curves_to_json([row]))
    assert b"null" in curves_to_json([row]) and np.isnan(again.time_f1_low)
    assert replace(again, time_f1_low=0.0) == replace(row, time_f1_low=0.0)


def test_gain_is_paired_by_seed_so_that_seed_noise_cancels():
    runs = [BudgetRun("random", 10, s, 0.1 * s) for s in range(4)]
    runs += [BudgetRun("time_balanced", 10, s, 0.1 * s + 0.05) for s in range(4)]
    (gain,) = strategy_gains(runs, "random", "time_balanced")
    assert (gain.mean, gain.low, gain.num_seeds) == (pytest.approx(0.05), pytest.approx(0.05), 4)


def test_labels_needed_for_a_target_are_interpolated_in_log_budget():
    curve = [CurvePoint("random", n, mean, 0, 0, 3) for n, mean in ((10, 0.2), (100, 0.4), (1000, 0.6))]
    assert chunks_needed(curve, 0.5) == pytest.approx(100 * 10**0.5)
    assert chunks_needed(curve, 0.1) == 10
    assert np.isnan(chunks_needed(curve, 0.9))
