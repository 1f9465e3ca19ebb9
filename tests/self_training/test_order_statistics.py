"""Ranks and quantiles of scores in many blocks are those of one array, whatever memory may hold."""

import numpy as np
import pytest

from mast_ray.self_training.order_statistics import InMemory, quantiles, values_at


def blocks_of(values, rng):
    return np.split(values, np.sort(rng.integers(0, len(values), 7)))


@pytest.mark.parametrize("kind", ["spread", "repeated", "constant", "from zero"])
@pytest.mark.parametrize("most", [1, 100, 10**9])
def test_every_rank_is_that_of_the_sorted_whole(kind, most):
    rng = np.random.default_rng(0)
    values = {
        "spread": rng.beta(0.4, 4.0, 3_000).astype(np.float32),
        "repeated": rng.choice(np.array([0.01, 0.2, 0.2000001, 1.0], np.float32), 3_000),
        "constant": np.full(3_000, 0.25, np.float32),
        "from zero": np.concatenate([np.zeros(1_500), rng.random(1_500) * 1e-9]),
    }[kind]
    blocks = blocks_of(values, rng)
    ranks = np.array([2_999, 0, 1, 1_499, 1_500, 7, 7])
    found = values_at(lambda: iter(blocks), len(values), ranks, most)
    assert found.tolist() == np.sort(values.astype(np.float64))[ranks].tolist()


def test_few_values_are_held_at_a_time(monkeypatch):
    values, gathered, join = np.random.default_rng(1).random(20_000), [], np.concatenate
    monkeypatch.setattr(np, "concatenate", lambda parts: gathered.append(sum(map(len, parts))) or join(parts))
    ranks = np.linspace(0, 19_999, 50).astype(np.int64)
    found = values_at(lambda: np.split(values, 20), len(values), ranks, most=1_500)
    assert found.tolist() == np.sort(values)[ranks].tolist()
    assert len(gathered) > 10 and max(gathered) <= 1_500


@pytest.mark.parametrize("count", [1, 2, 3, 1_000, 4_097])
def test_quantiles_are_numpys_to_the_last_digit(count):
    rng = np.random.default_rng(count)
    values = rng.random(count)
    shares = np.concatenate([[0.0, 0.5, 1.0], rng.random(200)])
    assert quantiles(InMemory(values), shares).tolist() == np.quantile(values, shares).tolist()
    logit = lambda score: np.log(score / (1 - score))  # noqa: E731
    assert quantiles(InMemory(values), shares, logit).tolist() == np.quantile(logit(values), shares).tolist()
