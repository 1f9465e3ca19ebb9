"""What a review teaches: judged boxes and what was gone through, and nothing else."""

from mast_ray.evaluation.review.review_state import AgreedBox, ReviewedBox, Span
from mast_ray.evaluation.review.taught import judged_columns, merged_bands, outside_bands, taught_by


def box(begin_s, end_s, low_hz, high_hz, verdict="right", label="", path="x.wav", right=1, wrong=0):
    found = ReviewedBox(
        "id", "id", "", path, begin_s, end_s, low_hz, high_hz, label, verdict, 0.5, "uncertain", "Ana", "t"
    )
    return AgreedBox(found, right, wrong, (label,) if label else ())


def test_a_right_box_is_a_call_and_the_rest_of_its_seconds_is_doubtful():
    found = taught_by([box(1.0, 2.0, 1000.0, 3000.0, label="wren")], {}, {})
    assert [(c.begin_s, c.end_s, c.low_hz, c.high_hz, c.label) for c in found.calls] == [
        (1.0, 2.0, 1000.0, 3000.0, "wren")
    ]
    assert found.listened == (("x.wav", 1.0, 2.0),)
    assert [(d.low_hz, d.high_hz) for d in found.doubtful] == [(0.0, 1000.0), (3000.0, 8000.0)]
    assert {(d.begin_s, d.end_s) for d in found.doubtful} == {(1.0, 2.0)}


def test_a_wrong_box_is_background_in_its_own_band_alone():
    found = taught_by([box(1.0, 2.0, 1000.0, 3000.0, "wrong", right=0, wrong=1)], {}, {})
    assert found.calls == () and (found.num_right, found.num_wrong) == (0, 1)
    assert found.listened == (("x.wav", 1.0, 2.0),)
    assert [(d.low_hz, d.high_hz) for d in found.doubtful] == [(0.0, 1000.0), (3000.0, 8000.0)]


def test_a_stretch_that_was_gone_through_is_known_over_its_whole_band():
    """From 0 to 1.5 s somebody looked at everything: only the later half of the box has doubtful neighbours."""
    found = taught_by([box(1.0, 2.0, 1000.0, 3000.0)], {"id7": [Span(0.0, 1.5)]}, {"id7": "x.wav"})
    assert found.listened == (("x.wav", 0.0, 1.5), ("x.wav", 1.5, 2.0))
    assert {(d.begin_s, d.end_s) for d in found.doubtful} == {(1.5, 2.0)}


def test_boxes_that_overlap_in_time_share_their_columns():
    columns = judged_columns([box(0.0, 2.0, 1000.0, 2000.0).box, box(1.0, 3.0, 1500.0, 4000.0).box], [])
    assert columns == [
        (0.0, 1.0, ((1000.0, 2000.0),)),
        (1.0, 2.0, ((1000.0, 4000.0),)),
        (2.0, 3.0, ((1500.0, 4000.0),)),
    ]
    same = judged_columns([box(0.0, 1.0, 1000.0, 2000.0).box, box(1.0, 2.0, 1000.0, 2000.0).box], [])
    assert same == [(0.0, 2.0, ((1000.0, 2000.0),))]


def test_what_people_disagree_about_is_doubtful_and_no_call():
    found = taught_by([box(1.0, 2.0, 1000.0, 3000.0, right=1, wrong=1)], {"x.wav": [Span(0.0, 9.0)]}, {})
    assert found.calls == () and found.num_disputed == 1
    assert [(d.begin_s, d.low_hz, d.high_hz) for d in found.doubtful] == [(1.0, 1000.0, 3000.0)]


def test_a_call_of_unknown_name_has_none_and_one_without_a_band_vouches_for_nothing_around_it():
    found = taught_by([box(1.0, 2.0, 1000.0, 3000.0, label="unknown"), box(5.0, 6.0, None, None)], {}, {})
    assert [c.label for c in found.calls] == ["", ""]
    assert found.listened == (("x.wav", 1.0, 2.0),)


def test_bands_and_their_gaps():
    assert merged_bands([(3000.0, 4000.0), (0.0, 500.0), (400.0, 900.0)]) == ((0.0, 900.0), (3000.0, 4000.0))
    assert outside_bands([(0.0, 900.0), (3000.0, 9000.0)]) == [(900.0, 3000.0)]
    assert outside_bands([]) == [(0.0, 8000.0)]


def test_rejected_boxes_are_told_so_that_labels_under_them_can_go():
    found = taught_by([box(1.0, 2.0, 1000.0, 3000.0, "wrong", right=0, wrong=1)], {}, {})
    assert [(one.path, one.begin_s, one.low_hz) for one in found.rejected] == [("x.wav", 1.0, 1000.0)]
