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
        ([0.9939, 0.9940], 0),  # nor is what one box moves
        ([0.5000, 0.5008, 0.5016], 2),  # but small gains add up
        ([0.50, math.nan, 0.51], 2),
        ([math.nan, 0.3], 1),
        ([math.nan, math.nan], 0),
        ([0.4], 0),
    ],
)
def test_the_best_round_is_kept_and_the_earlier_of_equals(f1, place):
    assert best_round(f1, [0.7] * len(f1), range(len(f1)), "val").place == place


@pytest.mark.parametrize(
    ("ap", "place"),
    [
        ([0.80, 0.82], 1),
        ([0.9994, 0.9999], 0),  # equal too: the teacher stays
        ([0.82, 0.80], 0),
        ([math.nan, 0.80], 1),
        ([0.80, math.nan], 0),
    ],
)
def test_between_rounds_of_equal_f1_the_average_precision_decides(ap, place):
    assert best_round([0.9939, 0.9940], ap, [0, 1], "val").place == place


def test_average_precision_does_not_outweigh_f1():
    assert best_round([0.50, 0.52], [0.9, 0.1], [0, 1], "val").place == 1
    assert best_round([0.52, 0.50], [0.1, 0.9], [0, 1], "val").place == 0


def test_the_reason_names_the_split_and_every_figure():
    why = best_round([0.55, 0.5512, math.nan], [0.6, 0.6, math.nan], [0, 1, 3], "ood_dev").why
    assert why == (
        "round 1 is the best on ood_dev: F1 0.5512 in round 1, against 0.5500 in round 0, - in round 3"
    )


def test_the_reason_of_a_tie_names_what_decided():
    why = best_round([0.9939, 0.9940], [0.9994, 0.9999], [0, 1], "val").why
    assert why == (
        "round 0 is the best on val: F1 0.9939 in round 0, against 0.9940 in round 1 "
        "(F1 less than 0.001 apart is equal: AP 0.9994, against 0.9999 in round 1)"
    )


def test_where_no_call_is_held_out_the_teacher_stays():
    """A silent split: the teacher rightly finds nothing (no F1 at all), the student ten boxes (F1 0)."""
    choice = best_round([math.nan, 0.0], [math.nan, math.nan], [0, 1], "val")
    assert choice == (0, "round 0 stays: val holds no call to choose by")


def test_small_steps_do_not_lead_away_from_the_highest_f1():
    """Each round is as good as the one before and has a higher AP, but the last is worse than the first."""
    chosen = best_round([0.5018, 0.5009, 0.5000], [0.5, 0.6, 0.7], [0, 1, 2], "val")
    assert chosen.place == 1
    assert chosen.why.endswith("(F1 less than 0.001 apart is equal: AP 0.6000, against 0.5000 in round 0)")
    assert best_round([0.5000, 0.5009, 0.5018], [0.5] * 3, [0, 1, 2], "val").place == 2
    # the last is equal to the first, but not to the highest between them, which was not chosen itself
    assert best_round([0.5000, 0.5009, 0.4995], [0.5, 0.4, 0.6], [0, 1, 2], "val").place == 0
