"""Thresholds per group: mixtures, quantiles and the stated fallbacks."""

import numpy as np
import pytest

from mast_ray.self_training.order_statistics import InMemory
from mast_ray.self_training.policies import (
    FEWEST_KEPT,
    group_thresholds,
    kept_share,
    mixture_threshold,
    precision_threshold,
    quantile_threshold,
    saturation_threshold,
    two_parts,
)


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def two_kinds(rng, low, high, count=600):
    return sigmoid(np.concatenate([rng.normal(low, 0.4, count), rng.normal(high, 0.4, count)]))


def test_mixture_threshold_lies_between_the_two_kinds():
    score = two_kinds(np.random.default_rng(0), -3.0, 1.0)
    q = mixture_threshold(InMemory(score))
    assert sigmoid(-2.0) < q < sigmoid(0.0)
    assert abs(np.log(q / (1 - q)) - (-1.0)) < 0.15  # equal spread and count: the crossing is the midpoint


@pytest.mark.parametrize("score", [np.full(100, 0.2), np.linspace(0.1, 0.2, 5)])
def test_scores_without_two_kinds_give_no_threshold(score):
    assert mixture_threshold(InMemory(score)) is None


def test_quantile_threshold_keeps_the_asked_share():
    score = np.random.default_rng(1).random(10_000)
    assert (score >= quantile_threshold(InMemory(score), 0.25)).mean() == pytest.approx(0.25, abs=0.001)


def test_each_group_gets_its_own_threshold_and_thin_groups_fall_back_to_their_site():
    rng = np.random.default_rng(2)
    loud, quiet, thin = two_kinds(rng, -1.0, 3.0), two_kinds(rng, -4.0, 0.0), sigmoid(rng.normal(0, 1, 10))
    score = np.concatenate([loud, quiet, thin])
    group = np.repeat([0, 1, 2], [len(loud), len(quiet), len(thin)])
    result = group_thresholds("per_group_mixture", score, group, np.array([0, 1, 1]), 0.1, min_detections=100)
    assert result.source == ("group", "group", "site")
    assert result.threshold[0] > result.threshold[1]
    assert result.threshold[2] == pytest.approx(mixture_threshold(InMemory(score[group > 0])))


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
    assert mixture_threshold(InMemory(score)) == pytest.approx(mixture_threshold(InMemory(few)), abs=0.02)
    assert mixture_threshold(InMemory(score)) == mixture_threshold(InMemory(rng.permutation(score)))


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


def test_the_threshold_for_precision_is_the_lowest_at_which_enough_of_what_is_kept_is_right():
    score = np.repeat([0.9, 0.7, 0.5, 0.3], 10)
    is_hit = np.concatenate([np.arange(10) < hits for hits in (10, 10, 7, 1)])
    # kept 10 (too few to judge), 20, 30, 40: precision 1, 1, 0.9, 0.7
    # a silent split tells nothing
    assert precision_threshold(score, np.zeros_like(is_hit), 0.85, 0.3) == (0.3, False)
    assert precision_threshold(score, is_hit, 0.85) == (0.5, True)
    assert precision_threshold(score, is_hit, 0.9) == (0.5, True)
    assert precision_threshold(score, is_hit, 0.95) == (0.7, True)
    assert precision_threshold(score, is_hit, 0.5) == (0.3, True)
    assert precision_threshold(score, is_hit, 0.85, at_least=0.6) == (0.6, True)


def test_a_precision_out_of_reach_gives_the_most_precise_threshold_and_says_so():
    score, is_hit = np.repeat([0.8, 0.4], 20), np.arange(40) % 2 == 0
    is_hit[:20] = np.arange(20) < 12
    assert precision_threshold(score, is_hit, 0.85) == (0.8, False)  # 12 of 20, then 22 of 40
    few = FEWEST_KEPT - 1
    assert precision_threshold(np.full(few, 0.9), np.ones(few, bool), 0.5, at_least=0.4) == (0.4, False)


def test_the_band_begins_where_nineteen_of_twenty_hits_are_above():
    score = np.linspace(0.95, 0.0, 20)  # steps of 0.05
    assert saturation_threshold(score, np.ones(20, bool)) == pytest.approx(0.05)
    only_high = score >= 0.5  # ten hits: all of them are needed for 0.95
    assert saturation_threshold(score, only_high) == pytest.approx(0.5)
    assert np.isnan(saturation_threshold(score, np.zeros(20, bool)))


def test_precision_is_carried_to_a_site_by_the_share_it_keeps_and_thin_sites_take_that_of_the_pool():
    loud, quiet, thin = np.linspace(0.5, 1.0, 101), np.linspace(0.0, 0.5, 101), np.array([0.9])
    score, group = np.concatenate([loud, quiet, thin]), np.repeat([0, 1, 2], [101, 101, 1])
    found = group_thresholds("precision", score, group, np.arange(3), 0.7, kept_share=0.2, min_detections=50)
    assert found.threshold[:2] == pytest.approx([0.9, 0.4])
    assert found.source == ("group", "group", "pool") and found.threshold[2] == np.quantile(score, 0.8)
    alike = group_thresholds("precision_pool", score, group, np.arange(3), 0.7, 0.2, 50)
    assert alike.threshold.tolist() == [0.7] * 3


def test_the_share_kept_counts_a_score_at_the_threshold_and_is_0_of_nothing():
    assert kept_share(np.array([0.2, 0.5, 0.8, 0.9]), 0.5) == 0.75
    assert kept_share(np.zeros(0), 0.5) == 0.0
