"""A model that finds nothing, nothing that counts, or the same everywhere is said so."""

import numpy as np

from mast_ray.inference.findings import doubts, same_everywhere

BOXES = np.array([[10.0, 5.0, 20.0, 9.0], [40.0, 5.0, 50.0, 9.0]])


def found(*sets):
    """(place, values) of one set of boxes for each place."""
    return np.repeat(np.arange(len(sets)), [len(one) for one in sets]), np.concatenate(sets)


def test_one_set_of_boxes_in_every_place_is_the_same_everywhere():
    assert same_everywhere(*found(*[BOXES] * 5), 5)
    shuffled = found(BOXES, BOXES[::-1], BOXES + 0.01)  # neither order nor rounding makes them others
    assert same_everywhere(*shuffled, 3)


def test_boxes_that_differ_or_are_in_few_places_are_findings():
    assert not same_everywhere(*found(BOXES, BOXES + 1.0, BOXES + 2.0), 3)
    assert not same_everywhere(*found(BOXES, BOXES, BOXES[:1]), 3)
    assert not same_everywhere(
        *found(*[BOXES] * 5), 6
    )  # one place is silent: 5 of 6 are fewer than nine tenths
    assert same_everywhere(*found(*[BOXES] * 18), 20)
    assert not same_everywhere(*found(BOXES, BOXES), 2)  # two copies of a recording
    assert not same_everywhere(np.empty(0, np.int64), np.empty((0, 4)), 9)


def test_what_is_said_names_where_the_threshold_and_the_highest_score():
    (nothing,) = doubts(0, 0, 0.3, 0.0, False, "7 recordings")
    assert nothing.startswith("the model found nothing at all in 7 recordings: ")
    weak, same = doubts(9, 0, 0.3, 0.0412, True, "7 recordings")
    assert "reaches the threshold 0.3 (the highest score is 0.0412)" in weak
    assert "the same boxes everywhere in 7 recordings" in same
    assert doubts(9, 4, 0.3, 0.9, False, "7 recordings") == []
    assert doubts(9, 0, None, 0.2, False, "7 recordings") == []  # no threshold to reach
