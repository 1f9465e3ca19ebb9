"""Thresholds by site are taken where recordings that had no part in choosing them say so."""

import numpy as np
import pytest

from mast_ray.evaluation.matching import match
from mast_ray.stages.search.site_thresholds import FEWEST_CALLS, thresholds_by_site
from mast_ray.training.files.post_processing import PostProcessing

CALLS = 10  # of a recording


def matches_of(levels: list[tuple[float | None, float]]):
    """A recording (= group) per pair: ten calls found with the first score, or not at all, ten false alarms with the second."""
    group, boxes, score, truth_group, truth = [], [], [], [], []
    for recording, (hit, miss) in enumerate(levels):
        for number in range(CALLS):
            call = [10.0 * number, 20.0, 10.0 * number + 5, 30.0]
            truth_group.append(recording)
            truth.append(call)
            nowhere = [call[0] + 1000.0, 20.0, call[2] + 1000.0, 30.0]
            for box, its_score in ((call, hit), (nowhere, miss)):
                if its_score is not None:
                    group.append(recording)
                    boxes.append(box)
                    score.append(its_score)
    return match(group, boxes, score, truth_group, truth)


def test_sites_of_other_levels_get_thresholds_of_their_own():
    """At site a false alarms score as calls do at site b: one threshold loses half of all, two lose nothing."""
    per_site = 2 * FEWEST_CALLS // CALLS
    levels = [(0.8, 0.5)] * per_site + [(0.4, 0.2)] * per_site
    found = thresholds_by_site(
        matches_of(levels), np.arange(len(levels)), ["a"] * per_site + ["b"] * per_site, 0.6
    )
    assert found.f1 == found.halves_f1 == 1.0
    # F1 is 1 at the calls' score and 2/3 at that of the false alarms: half-way between them, as one threshold would be
    assert found.thresholds == {"a": pytest.approx(0.65), "b": pytest.approx(0.3)}
    # one threshold: all calls and the false alarms of a (F1 2*80 / (120 + 80)), or the calls of a alone (2*40 / (40 + 80))
    assert found.halves_f1_of_one == pytest.approx(0.8)


def test_thresholds_that_hold_in_one_half_alone_are_not_taken():
    """What is right for the first and third recording of a site is wrong for the second and fourth."""
    levels = [(0.8, 0.5), (0.4, 0.2)] * FEWEST_CALLS
    sites = ["a"] * FEWEST_CALLS + ["b"] * FEWEST_CALLS
    found = thresholds_by_site(matches_of(levels), np.arange(len(levels)), sites, 0.4)
    assert found.thresholds == {} and found.halves_f1 <= found.halves_f1_of_one
    assert "one threshold for all sites" in found.text()


def test_a_site_where_nothing_right_is_found_keeps_the_threshold_of_all():
    """With the highest F1, 0 anywhere, it got the lowest threshold there is."""
    per_site = 2 * FEWEST_CALLS // CALLS
    levels = [(0.8, 0.5)] * per_site + [(0.4, 0.2)] * per_site + [(None, 0.1)] * per_site
    sites = [site for site in "abc" for _ in range(per_site)]
    found = thresholds_by_site(matches_of(levels), np.arange(len(levels)), sites, 0.6)
    assert found.thresholds == {"a": pytest.approx(0.65), "b": pytest.approx(0.3), "c": 0.6}


@pytest.mark.parametrize("sites", [["a"] * 8, ["a"] * 7 + ["b"], [""] * 8])
def test_one_site_or_sites_of_few_calls_or_without_a_name_have_one_threshold(sites):
    found = thresholds_by_site(matches_of([(0.8, 0.5)] * 8), np.arange(8), sites, 0.6)
    assert found.thresholds == {} and found.f1 == 1.0 and np.isnan(found.halves_f1)


def test_moved_scores_pass_the_one_threshold_where_they_passed_that_of_their_site():
    post = PostProcessing(0.5, 0.0, 1, 0.6, site_thresholds={"a": 0.3, "b": 0.9})
    score = np.array([0.29, 0.31, 0.89, 0.91, 0.59, 0.61, 0.0, 1.0])
    sites = ["a", "a", "b", "b", "elsewhere", "elsewhere", "a", "b"]
    moved = post.at_sites(score, sites)
    assert (moved >= post.threshold).tolist() == [False, True, False, True, False, True, False, True]
    assert moved[4:6].tolist() == [0.59, 0.61] and ((moved >= 0) & (moved <= 1)).all()
    # by hand: logit(0.31) - logit(0.3) + logit(0.6) = -0.8001 + 0.8473 + 0.4055 = 0.4527, whose sigmoid is 0.6113
    assert moved[1] == pytest.approx(0.6113, abs=1e-4)
    assert PostProcessing.from_dict(post.to_dict()) == post
    assert "site_thresholds" not in PostProcessing(0.5, 0.0, 1, 0.6).to_dict()
