"""The rules that benchmarks/site_threshold_rules.py compares, worked by hand."""

import numpy as np
import pytest
from site_threshold_rules import RULES, Heard, deals, f1_of, found_by

from mast_ray.evaluation.matching import match

CALL, NOWHERE = [0.0, 0.0, 5.0, 5.0], [100.0, 0.0, 105.0, 5.0]


def heard_at_two_sites() -> Heard:
    """Three recordings of 20 calls at each site: calls score 0.8 and false alarms 0.5 at the first, 0.4 and 0.2 at the second."""
    recording = np.repeat(np.arange(6), 20)
    site = recording // 3
    hits, alarms = np.where(site == 0, 0.8, 0.4), np.where(site == 0, 0.5, 0.2)
    chunk, boxes = np.tile(np.arange(120), 2), [CALL] * 120 + [NOWHERE] * 120
    matches = match(chunk, boxes, np.concatenate((hits, alarms)), np.arange(120), [CALL] * 120, 0.5)
    return Heard(matches, recording, site)


def test_sites_of_other_levels_get_thresholds_of_their_own():
    heard = heard_at_two_sites()
    found = found_by(heard, RULES["middle"], [(0, 1), (3, 4)])
    own = [pytest.approx(0.65), pytest.approx(0.3)]
    assert found["one per site"] == found["one per site where halves say so"] == own
    assert f1_of(heard, {2, 5}, found["one per site"]) == 1.0
    # all calls of the other two recordings, with the false alarms of the first
    assert f1_of(heard, {2, 5}, [0.3, 0.3]) == pytest.approx(2 * 40 / (60 + 40))


def test_two_of_three_recordings_of_each_site_choose_and_the_others_are_scored():
    found = list(deals(heard_at_two_sites()))
    assert len(found) == 9 and found[0] == ([(0, 1), (3, 4)], {2, 5})
