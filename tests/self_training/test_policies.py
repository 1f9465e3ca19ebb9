"""Thresholds per group: mixtures, quantiles and the stated fallbacks."""

import numpy as np
import pytest

from mast_ray.self_training.policies import group_thresholds, mixture_threshold, quantile_threshold, two_parts


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def two_kinds(rng, low, high, count=600):
    return sigmoid(np.concatenate([rng.normal(low, 0.4, count), rng.normal(high, 0.4, count)]))


def test_mixture_threshold_lies_between_the_two_kinds():
    score = two_kinds(np.random.default_rng(0), -3.0, 1.0)
    q = mixture_threshold(score)
    assert sigmoid(-2.0) < q < sigmoid(0.0)
    assert abs(np.log(q / (1 - q)) - (-1.0)) < 0.15  # equal spread and count: the crossing is the midpoint


@pytest.mark.parametrize("score", [np.full(100, 0.2), np.linspace(0.1, 0.2, 5)])
def test_scores_without_two_kinds_give_no_threshold(score):
    assert mixture_threshold(score) is None


def test_quantile_threshold_keeps_the_asked_share():
    score = np.random.default_rng(1).random(10_000)
    assert (score >= quantile_threshold(score, 0.25)).mean() == pytest.approx(0.25, abs=0.001)


def test_each_group_gets_its_own_threshold_and_thin_groups_fall_back_to_their_site():
    rng = np.random.default_rng(2)
    loud, quiet, thin = two_kinds(rng, -1.0, 3.0), two_kinds(rng, -4.0, 0.0), sigmoid(rng.normal(0, 1, 10))
    score = np.concatenate([loud, quiet, thin])
    group = np.repeat([0, 1, 2], [len(loud), len(quiet), len(thin)])
    result = group_thresholds("per_group_mixture", score, group, np.array([0, 1, 1]), 0.1, min_detections=100)
    assert result.source == ("group", "group", "site")
    assert result.threshold[0] > result.threshold[1]
    assert result.threshold[2] == pytest.approx(mixture_threshold(score[group > 0]))


def test_without_enough_scores_anywhere_the_given_threshold_stands():
    result = group_thresholds("per_group_quantile", np.array([0.5]), np.array([0]), np.array([0]), 0.1, 0.2)
    assert (result.threshold.tolist(), result.source) == ([0.1], ("fixed",))


def test_fixed_and_tuned_are_one_value_for_all():
    for policy in ("fixed", "tuned"):
        result = group_thresholds(policy, np.array([]), np.array([], int), np.array([0, 0, 1]), 0.17)
        assert result.threshold.tolist() == [0.17] * 3 and set(result.source) == {policy}


def test_a_mixture_of_very_many_scores_is_fitted_to_their_quantiles():
    rng = np.random.default_rng(3)
    logit = np.concatenate([rng.normal(-3, 0.6, 60_000), rng.normal(1.5, 0.8, 9_000)])
    score = 1 / (1 + np.exp(-logit))
    few = rng.choice(score, 2_000, replace=False)
    assert mixture_threshold(score) == pytest.approx(mixture_threshold(few), abs=0.02)
    assert mixture_threshold(score) == mixture_threshold(rng.permutation(score))


def test_groups_are_found_in_any_order_of_the_scores():
    rng = np.random.default_rng(4)
    group = rng.integers(0, 5, 4_000)
    score = np.clip(rng.beta(1 + group, 4), 0.01, 0.99)
    found = group_thresholds("per_group_quantile", score, group, np.array([0, 0, 1, 1, 2, 2]), 0.3, 0.2, 100)
    expected = [np.quantile(score[group == index], 0.8) for index in range(5)]
    assert found.threshold[:5] == pytest.approx(expected) and found.source[:5] == ("group",) * 5
    # the sixth group is empty: its site's scores are those of the fifth
    assert (found.threshold[5], found.source[5]) == (pytest.approx(expected[4]), "site")


def test_two_parts_are_those_of_least_squared_distance():
    shares, means, variances = two_parts(np.array([9.0, 1.0, 2.0, 8.0, 3.0]))
    assert shares.tolist() == [0.6, 0.4] and means.tolist() == [2.0, 8.5]
    assert variances == pytest.approx([2 / 3, 0.25])
    values = np.random.default_rng(5).normal(size=40) ** 3
    cost = [
        np.var(np.sort(values)[:cut]) * cut + np.var(np.sort(values)[cut:]) * (40 - cut)
        for cut in range(1, 40)
    ]
    assert two_parts(values)[0][0] == pytest.approx((np.argmin(cost) + 1) / 40)
