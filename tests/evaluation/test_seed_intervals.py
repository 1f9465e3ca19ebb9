"""Means over seeds with noise of recordings and of training."""

import math

import numpy as np
import pytest
from chunk_lists import match_chunks
from scipy import sparse, stats

from mast_ray.evaluation.intervals import RecordingSums, bootstrap_intervals, recording_sums, wilson_limits
from mast_ray.evaluation.seed_intervals import seed_differences, seed_intervals


def sums(hits: list[int], truths: list[int], kept: list[int] | None = None) -> RecordingSums:
    """One recording per entry; every kept detection beyond the hits is a false alarm of lower score."""
    boxes = [np.array([[20.0 * i, 0, 20.0 * i + 10, 10] for i in range(n)]).reshape(-1, 4) for n in truths]
    found = []
    for own, hit, count in zip(boxes, hits, kept or hits, strict=True):
        wrong = np.array([[20.0 * i, 50, 20.0 * i + 10, 60] for i in range(count - hit)]).reshape(-1, 4)
        found.append(
            (np.concatenate([own[:hit], wrong]), np.r_[np.full(hit, 0.9), np.full(count - hit, 0.6)])
        )
    return recording_sums(match_chunks(boxes, found), 0.5, num_recordings=len(truths))


def test_one_seed_gives_the_plain_bootstrap_interval():
    one = sums([3, 1, 4, 2], [5, 5, 5, 5])
    assert isinstance(one.ranked_hits, sparse.csr_array)
    plain, found = bootstrap_intervals(one, 200, 3), seed_intervals([one], 200, 3)
    for name in ("precision", "recall", "f1"):
        assert found[name][:3] == pytest.approx(plain[name][:3])
        assert found[name].num_seeds == 1


def test_the_estimate_is_the_mean_over_seeds_and_seed_noise_adds_in_quadrature():
    # Recall is 2/4 with one seed and 3/4 with the other in every recording: what recordings bring are Wilson's limits.
    a, b = sums([2, 2, 2], [4, 4, 4]), sums([3, 3, 3], [4, 4, 4])
    recall = seed_intervals([a, b], 100)["recall"]
    half = stats.t.ppf(0.975, 1) * np.std([0.5, 0.75], ddof=1) / math.sqrt(2)
    assert half > 1  # two seeds say little about a mean
    assert recall == (0.625, 0.0, 1.0, 2)
    three = seed_intervals([a, b, sums([2, 2, 2], [4, 4, 4])], 100)["recall"]
    half = stats.t.ppf(0.975, 2) * np.std([0.5, 0.75, 0.5], ddof=1) / math.sqrt(3)
    by_recordings = three.estimate - float(wilson_limits(7.0, 12.0)[0])  # 6, 9 and 6 of 12 found
    assert three.low == pytest.approx(three.estimate - math.hypot(half, by_recordings))


def test_a_constant_gain_is_beyond_noise_and_a_gain_in_one_recording_only_is_within():
    base = [sums([2, 1, 3, 2, 1, 3], [5] * 6), sums([2, 1, 3, 2, 1, 3], [5] * 6)]
    better = [sums([3, 2, 4, 3, 2, 4], [5] * 6), sums([3, 2, 4, 3, 2, 4], [5] * 6)]
    lucky = [sums([5, 1, 3, 2, 1, 3], [5] * 6)] * 2
    gain = seed_differences(base, better, 300)["recall"]
    assert gain.estimate == pytest.approx(0.2) and not gain.holds_zero
    assert seed_differences(base, lucky, 300)["recall"].holds_zero
    assert seed_differences(base, base, 300)["f1"].holds_zero


def test_what_is_undefined_stays_undefined():
    nothing = sums([0, 0], [3, 2])
    found = seed_intervals([nothing], 50)
    assert math.isnan(found["precision"].estimate) and found["precision"].num_seeds == 0
    assert found["recall"].estimate == 0.0


def test_methods_on_different_recordings_are_refused():
    with pytest.raises(ValueError, match="same recordings"):
        seed_differences([sums([1], [2])], [sums([1, 1], [2, 2])])
    with pytest.raises(ValueError, match="paired"):
        seed_differences([sums([1], [2])], [sums([1], [2])] * 2)
