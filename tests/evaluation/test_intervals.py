"""Intervals: exact figures from sums, stated coverage in simulation, and honest
silence about single recordings.
"""

import numpy as np
import pytest

from mast_ray.evaluation import intervals
from mast_ray.evaluation.figure_tables import difference_text
from mast_ray.evaluation.intervals import (
    FIGURES,
    Difference,
    bootstrap_intervals,
    drawn_weights,
    figures,
    paired_differences,
    recording_sums,
    widened_tail,
    wilson_limits,
)
from mast_ray.evaluation.matching import Matches, match, match_in_time
from mast_ray.evaluation.metrics import summarise
from mast_ray.evaluation.seed_intervals import seed_differences


def matches_from_counts(rng, num_truth, num_hits, num_alarms):
    """Matches of recordings whose counts are given; hits score higher than false alarms."""
    recordings = np.arange(len(num_truth))
    first = np.concatenate([[0], np.cumsum(num_truth)[:-1]])
    within = np.arange(num_hits.sum()) - np.repeat(np.cumsum(num_hits) - num_hits, num_hits)
    truth_index = np.concatenate([np.repeat(first, num_hits) + within, np.full(num_alarms.sum(), -1)])
    hit = truth_index >= 0
    score = np.where(hit, rng.beta(4, 2, len(hit)), rng.beta(2, 3, len(hit)))
    group = np.concatenate([np.repeat(recordings, num_hits), np.repeat(recordings, num_alarms)])
    truth_group = np.repeat(recordings, num_truth)
    detection_index = np.full(len(truth_group), -1)
    detection_index[truth_index[hit]] = np.flatnonzero(hit)
    iou = np.where(hit, rng.uniform(0.5, 1, len(hit)), 0)
    nothing = np.zeros(len(truth_group), bool)
    order = np.argsort(-score, kind="stable")
    return Matches(group, score, truth_index, iou, order, truth_group, detection_index, nothing)


def uneven_world(rng, num_recordings):
    """Recordings that differ in busyness, in how well calls are found, and in
    false alarms, as real ones do.
    """
    num_truth = rng.poisson(rng.gamma(1.5, 6.0, num_recordings))
    num_hits = rng.binomial(num_truth, rng.beta(6, 3, num_recordings))
    return matches_from_counts(rng, num_truth, num_hits, rng.poisson(rng.gamma(1.0, 3.0, num_recordings)))


def test_figures_from_sums_with_equal_weights_are_the_figures_of_the_evaluator():
    rng = np.random.default_rng(0)
    matches, in_time = uneven_world(rng, 60), uneven_world(rng, 60)
    metrics = summarise(matches, 0.5, in_time=in_time)
    from_sums = figures(recording_sums(matches, 0.5, in_time=in_time), np.ones((1, 60)))
    for name in FIGURES:
        assert from_sums[name][0] == pytest.approx(getattr(metrics, name), abs=1e-9), name


def test_figures_from_weights_equal_repeating_the_recordings():
    rng = np.random.default_rng(1)
    num_truth, num_alarms = rng.poisson(6, 5), rng.poisson(4, 5)
    matches = matches_from_counts(rng, num_truth, rng.binomial(num_truth, 0.6), num_alarms)
    weights = np.array([2, 0, 1, 3, 1])
    det_rows = np.concatenate([np.flatnonzero(matches.group == r) for r in np.repeat(np.arange(5), weights)])
    copies = np.concatenate(
        [np.full((matches.group == r).sum(), n) for n, r in enumerate(np.repeat(np.arange(5), weights))]
    )
    hit = matches.is_true_positive[det_rows]
    kept = matches.score[det_rows] >= 0.4
    truths = (weights * num_truth).sum()
    drawn = figures(recording_sums(matches, 0.4, num_recordings=5), weights[None].astype(float))
    assert drawn["precision"][0] == pytest.approx(hit[kept].mean())
    assert drawn["recall"][0] == pytest.approx(hit[kept].sum() / truths)
    per_copy = [
        2 * (hit & kept)[copies == n].sum() / (kept[copies == n].sum() + num_truth[r])
        for n, r in enumerate(np.repeat(np.arange(5), weights))
    ]
    assert drawn["f1_macro"][0] == pytest.approx(np.mean(per_copy))


@pytest.mark.parametrize("num_recordings", [300, 30_000])
def test_average_precision_in_score_cells_stays_within_a_thousandth_of_the_exact_one(num_recordings):
    rng = np.random.default_rng(2)
    matches = uneven_world(rng, num_recordings)
    assert len(matches.score) > intervals.MAX_CELLS
    exact = summarise(matches, 0.5)
    cells = figures(recording_sums(matches, 0.5), np.ones((1, num_recordings)))
    for name in ("ap_area", "ap_11_point", "ap_101_point"):
        assert cells[name][0] == pytest.approx(getattr(exact, name), abs=1e-3)


@pytest.mark.slow
def test_intervals_of_95_percent_cover_the_truth_at_their_stated_rate():
    rng = np.random.default_rng(3)
    size = 100_000
    truth = figures(recording_sums(uneven_world(rng, size), 0.5), np.ones((1, size)))
    repeats, covered = 160, dict.fromkeys((name for name in FIGURES if not name.startswith("time")), 0)
    for repeat in range(repeats):
        sums = recording_sums(uneven_world(rng, 40), 0.5, num_recordings=40)
        for name, found in bootstrap_intervals(sums, 250, seed=repeat).items():
            if name not in covered:
                continue
            covered[name] += found.low <= truth[name][0] <= found.high
    # 160 repeats of a true 95 % rate stay above 90 % with probability 0.99; over all
    # figures the mean is sharper.
    assert all(count / repeats >= 0.89 for count in covered.values()), covered
    assert 0.925 <= np.mean(list(covered.values())) / repeats <= 0.985, covered


def test_paired_difference_finds_a_small_gain_that_separate_intervals_cannot_see():
    rng = np.random.default_rng(4)
    num_truth = rng.poisson(rng.gamma(1.5, 6.0, 40))
    num_hits, num_alarms = rng.binomial(num_truth, rng.beta(6, 3, 40)), rng.poisson(3, 40)
    worse = recording_sums(
        matches_from_counts(np.random.default_rng(0), num_truth, num_hits, num_alarms), 0.0
    )
    fewer_alarms = num_alarms - (num_alarms > 2)
    better = recording_sums(
        matches_from_counts(np.random.default_rng(0), num_truth, num_hits, fewer_alarms), 0.0
    )
    gain = paired_differences(worse, better)["precision"]
    assert gain.low > 0 and not gain.is_within_noise
    assert bootstrap_intervals(better)["precision"].low < bootstrap_intervals(worse)["precision"].high
    assert paired_differences(better, better)["f1"].is_within_noise


def test_single_recording_gives_an_estimate_without_limits():
    matches = match([0], [[0, 0, 1, 1]], [0.9], [0], [[0, 0, 1, 1]])
    found = bootstrap_intervals(recording_sums(matches, 0.5))["f1"]
    assert found.estimate == 1.0 and np.isnan([found.low, found.high]).all()


def test_chunks_of_one_recording_are_drawn_together():
    box = [[0.0, 0, 1, 1]]
    matches = match([0, 1, 2, 3], box * 4, [0.9] * 4, [0, 1, 2, 3], box * 4)
    sums = recording_sums(matches, 0.5, recording_of_group=[0, 0, 1, 1])
    assert sums.num_recordings == 2
    np.testing.assert_array_equal(sums.sums[:, :3], [[2, 2, 2], [2, 2, 2]])


def test_wilson_limits_of_a_published_example():
    low, high = wilson_limits([81], [263])  # Newcombe 1998, table I
    assert (low[0], high[0]) == (pytest.approx(0.2553, abs=5e-5), pytest.approx(0.3662, abs=5e-5))


def test_what_is_the_same_in_every_recording_gets_wilsons_limits_of_its_counts():
    """Three recordings with one call each, all found, no false alarm: resampling can only say [1, 1]."""
    box = [[0.0, 0, 1, 1]]
    matches = match([0, 1, 2], box * 3, [0.9] * 3, [0, 1, 2], box * 3)
    found = bootstrap_intervals(recording_sums(matches, 0.5))
    # Wilson, 3 of 3: low = 3 / (3 + 1.96 ** 2) = 0.4385
    assert found["recall"] == (1.0, pytest.approx(0.4385, abs=1e-4), 1.0, "wilson")
    assert found["precision"].low == found["ap_area"].low == found["f1_macro"].low == found["recall"].low
    # F1 = 2 J / (1 + J): 3 hits among 3 events that are hit, missed or falsely alarmed
    assert found["f1"].low == pytest.approx(2 * 0.4385 / 1.4385, abs=1e-4) and found["f1"].high == 1.0
    assert found["mean_iou"].method == "none" and np.isnan(found["mean_iou"].low)  # no share of a count
    assert found["time_f1"].method == "none"  # nobody matched by time


def test_nothing_found_is_no_certainty_either_and_uneven_recordings_are_resampled():
    box, far = [[0.0, 0, 1, 1]], [[50.0, 0, 51, 1]]
    missed = match([0, 1], far * 2, [0.9] * 2, [0, 1], box * 2)
    found = bootstrap_intervals(recording_sums(missed, 0.5))["f1"]
    # J: 0 of 2 missed and 2 false alarms; high = z^2 / (n + z^2) = 3.8415 / 7.8415 = 0.4899
    assert found == (0.0, 0.0, pytest.approx(2 * 0.4899 / 1.4899, abs=1e-4), "wilson")
    half = match([0, 1], box + far, [0.9] * 2, [0, 1], box * 2)
    assert bootstrap_intervals(recording_sums(half, 0.5))["f1"].method == "bootstrap"


def test_figures_in_time_count_spans_that_agree_whatever_their_bands():
    """One detection in the right band, one an octave off, one at another time; the third call is missed."""
    truth = [[0.0, 0, 10, 10], [20, 0, 30, 10], [40, 0, 50, 10]]
    found = [[0.0, 0, 10, 10], [21, 50, 30, 60], [70, 0, 80, 10]]
    arguments = ([0, 0, 1], found, [0.9, 0.8, 0.7], [0, 0, 1], truth)
    matches, in_time = match(*arguments), match_in_time(*arguments)
    metrics = summarise(matches, 0.5, in_time=in_time)
    assert (metrics.precision, metrics.recall, metrics.f1) == pytest.approx((1 / 3, 1 / 3, 1 / 3))
    assert (metrics.time_precision, metrics.time_recall, metrics.time_f1) == pytest.approx((2 / 3,) * 3)
    assert in_time.iou.tolist() == [1.0, 0.9, 0.0]
    found = bootstrap_intervals(recording_sums(matches, 0.5, in_time=in_time), 50)["time_f1"]
    assert found.estimate == pytest.approx(2 / 3) and found.method == "bootstrap"
    assert np.isnan(summarise(matches, 0.5).time_f1)


@pytest.mark.parametrize(
    ("difference", "text"),
    [
        ((0.0312, -0.0101, 0.0719), "+0.031 [-0.010, +0.072]"),
        ((-0.875, np.nan, np.nan), "-0.875, too few recordings to be sure"),
        ((np.nan, np.nan, np.nan), "-"),
    ],
)
def test_a_difference_without_limits_is_not_said_to_have_some(difference, text):
    assert difference_text(Difference(*difference)) == text


@pytest.mark.parametrize("names", [(0, 1, 2, 3), (3, 2, 1, 0)])
def test_average_precision_of_a_table_without_scores_does_not_depend_on_the_names_of_recordings(names):
    """Ten calls in each of four recordings: all found in the first two, none in the others, and as many false alarms there."""
    begins = 10.0 * np.arange(10)
    group = np.repeat(names, 10)
    truth = np.tile(np.stack([begins, 0 * begins, begins + 5, 0 * begins + 4], axis=1), (4, 1))
    found = truth.copy()
    found[20:, 0::2] += 5.0
    matches = match(group, found, np.ones(40), group, truth)
    metrics = summarise(matches, 0.0)
    assert metrics.ap_area == pytest.approx(0.5 * 0.5)  # precision 0.5 up to a recall of 0.5
    assert metrics.ap_11_point == pytest.approx(0.5 * 6 / 11)
    estimate = figures(recording_sums(matches, 0.0), np.ones((1, 4)))
    for name in ("ap_area", "ap_11_point", "ap_101_point"):
        assert estimate[name][0] == pytest.approx(getattr(metrics, name))


def test_limits_of_few_recordings_lie_further_out():
    # Student's 97.5 % of nine degrees of freedom is 2.262157; times sqrt(10 / 9), 2.384523 deviations of a normal curve.
    assert widened_tail(10) == pytest.approx(0.008551, abs=1e-6)
    assert widened_tail(100_000) == pytest.approx(0.025, abs=1e-5)


def test_as_many_recordings_are_drawn_as_there_are_and_some_come_again():
    weights = drawn_weights(np.random.default_rng(0), 50, 7)
    assert weights.shape == (50, 7) and (weights.sum(axis=1) == 7).all() and weights.max() > 1


@pytest.mark.parametrize(("num", "limit"), [(2, 0.07), (3, 0.206), (40, 0.876)])
def test_a_gain_that_is_the_same_in_every_recording_is_not_certain(num, limit):
    """One method misses the call of every recording, the other finds it: Newcombe's limits of 0 and n of n."""
    rng = np.random.default_rng(0)
    one, none = np.ones(num, int), np.zeros(num, int)
    misses, finds = (
        recording_sums(matches_from_counts(rng, one, hits, none), 0.0, None, num) for hits in (none, one)
    )
    gain, loss = paired_differences(misses, finds)["recall"], paired_differences(finds, misses)["recall"]
    assert (gain.estimate, gain.high) == (1.0, 1.0) and gain.low == pytest.approx(limit, abs=2e-3)
    assert (loss.estimate, loss.low, loss.high) == (-1.0, -1.0, pytest.approx(-gain.low))
    assert seed_differences([misses], [finds])["recall"][:3] == gain
    assert paired_differences(finds, finds)["recall"] == (0.0, 0.0, 0.0)
    assert np.isnan(paired_differences(misses, finds)["mean_iou"].low)
