"""One call judged in several rounds is one call, and the last round's word counts."""

from mast_ray.evaluation.review.review_state import AgreedBox, ReviewedBox
from mast_ray.evaluation.review.rounds import last_words

ENDS = ("2026-01-01T12:00:00+00:00", "2026-01-02T12:00:00+00:00")
FIRST, SECOND, THIRD = ("2026-01-01T09:00:00+00:00", "2026-01-02T09:00:00.5+00:00", "2026-01-03T09:00:00")


def box(name, begin_s, time, verdict="right", path="x.wav", low_hz=1000.0):
    said = ReviewedBox(name, name, "", path, begin_s, begin_s + 1.0, low_hz, low_hz and 2000.0, "", verdict, 0.5,
                       "uncertain", "Ana", time)  # fmt: skip
    return AgreedBox(said, int(verdict == "right"), int(verdict == "wrong"), ())


def kept(*boxes, rounds=ENDS):
    return [one.box.box_id for one in last_words(boxes, rounds)]


def test_a_later_round_replaces_what_lies_in_the_same_place():
    assert kept(box("a", 0.0, FIRST), box("b", 0.1, SECOND), box("c", 5.0, FIRST)) == ["b", "c"]
    assert kept(box("a", 0.0, FIRST), box("b", 0.1, THIRD, "wrong")) == ["b"]  # no call after all
    assert kept(box("a", 0.0, FIRST), box("b", 0.1, SECOND), box("c", 0.0, THIRD)) == ["c"]
    assert kept(box("a", 0.0, FIRST, low_hz=None), box("b", 0.1, SECOND)) == ["b"]


def test_boxes_of_one_round_or_of_another_place_all_stand():
    assert kept(box("a", 0.0, SECOND), box("b", 0.1, SECOND, "wrong")) == ["a", "b"]
    assert kept(box("a", 0.0, FIRST), box("b", 0.9, SECOND), box("c", 0.0, THIRD, path="y.wav")) == [
        "a",
        "b",
        "c",
    ]
    assert kept(box("a", 0.0, FIRST), box("b", 0.1, THIRD), rounds=()) == ["a", "b"]
