"""Which round is delivered: the best one, and a student only when it has earned it."""

import math

import pytest

from mast_ray.self_training.choice import best_round


@pytest.mark.parametrize(
    ("f1", "place"),
    [
        ([0.50, 0.56, 0.55], 1),  # the second round loses some of what the first has won
        ([0.50, 0.49, 0.48], 0),  # every student is worse than the seed: the seed is delivered
        ([0.50, 0.50], 0),  # no better is not enough
        ([0.50, math.nan, 0.51], 2),
        ([math.nan, math.nan], 0),
        ([0.4], 0),
    ],
)
def test_the_best_round_is_kept_and_the_earlier_of_equals(f1, place):
    assert best_round(f1, range(len(f1)), "val").place == place


def test_the_reason_names_the_split_and_every_figure():
    why = best_round([0.55, 0.5512, math.nan], [0, 1, 3], "ood_dev").why
    assert why == (
        "round 1 is the best on ood_dev: F1 0.5512 in round 1, against 0.5500 in round 0, - in round 3"
    )
