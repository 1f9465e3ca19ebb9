"""Pieces of what stands out, and the tree of their groups, worked out by hand."""

import numpy as np
import pytest

from mast_ray.boxes import pieces as pieces_room
from mast_ray.boxes.pieces import (
    CANDIDATE_FEATURES,
    PAIR_FEATURES,
    belongs_to,
    candidate_features,
    candidates_of,
    groups_of,
    pair_features,
    pairs_of,
    pieces_of,
)

BLOCKS = ((10, 10, 20, 14, 9.0), (30, 10, 40, 14, 8.0), (100, 40, 105, 44, 20.0))  # boxes and decibels


def drawn(blocks=BLOCKS, shape=(400, 64)) -> np.ndarray:
    smooth = np.zeros(shape, np.float32)
    for t0, f0, t1, f1, level in blocks:
        smooth[t0:t1, f0:f1] = level
    return smooth


def test_pieces_are_connected_cells_above_the_level_with_their_traits():
    smooth = drawn()
    smooth[12, 11] = 12.0
    found = pieces_of(smooth)
    assert found.corners.tolist() == [list(block[:4]) for block in BLOCKS]
    assert found.peak_db.tolist() == [12.0, 8.0, 20.0]
    assert found.peak_bin[0] == 11
    assert found.cells.tolist() == [40, 40, 20]
    assert found.mean_db[0] == pytest.approx((39 * 9.0 + 12.0) / 40)


def test_silence_a_single_frame_and_a_hole():
    assert len(pieces_of(drawn(())).cells) == 0
    assert len(pieces_of(drawn([(10, 10, 11, 20, 9.0)])).cells) == 0, "shorter than a piece may be"
    holed = pieces_of(drawn([(10, 10, 20, 14, 9.0), (22, 10, 30, 14, 9.0)]))
    assert holed.corners.tolist() == [[10, 10, 30, 14]], "two frames part nothing"


def test_of_too_many_pieces_the_largest_are_kept_in_order(monkeypatch):
    monkeypatch.setattr(pieces_room, "MOST_PIECES", 2)
    assert pieces_of(drawn()).corners[:, 0].tolist() == [10, 30]


def test_pairs_are_near_in_time_and_name_the_smaller_first():
    assert pairs_of(pieces_of(drawn())).tolist() == [[0, 1], [2, 0], [2, 1]]
    far = pieces_of(drawn([*BLOCKS[:1], (350, 10, 360, 14, 9.0)]))
    assert not len(pairs_of(far))
    assert pair_features(far, pairs_of(far)).shape == (0, PAIR_FEATURES)


def test_features_of_a_pair():
    smooth = drawn()
    smooth[35, 13] = 8.5
    found = pieces_of(smooth)
    features = pair_features(found, np.array([[0, 1]]))[0]
    assert len(features) == PAIR_FEATURES
    assert features[:2].tolist() == [10, 0], "frames between them, bins between them"
    assert features[2:6].tolist() == [0, 1, 0, 1], "share of the smaller that is common, and of both together"
    assert features[6:12] == pytest.approx(np.log([10, 4, 10, 4, 30, 4]))
    alike = [0.5, found.peak_bin[0] - 13, 9.0 - (39 * 8.0 + 8.5) / 40, 0]
    assert features[12:] == pytest.approx([*alike, 9.0, 8.5, 13])


def test_features_of_a_pair_that_sounds_together():
    """Frames 10-20 and 16-36: 4 are common, of 10 of the shorter and of 26 of both."""
    found = pieces_of(drawn([(10, 10, 20, 14, 9.0), (16, 30, 36, 40, 8.0)]))
    features = pair_features(found, pairs_of(found))[0]
    assert features[:2].tolist() == [0, 16], "frames between them, bins between them"
    assert features[2:6] == pytest.approx([4 / 10, 0, 4 / 26, 0])


def test_two_groups_belong_together_as_their_pieces_do_on_average():
    found = pieces_of(drawn([(20 * n, 10, 20 * n + 10, 14, 9.0) for n in range(4)]))
    pairs = np.array([[0, 1], [2, 3], [0, 2], [0, 3], [1, 2], [1, 3]])
    groups = groups_of(found, pairs, np.array([0.9, 0.8, 0.4, 0.3, 0.2, 0.1], np.float32))
    assert groups.members[4:].tolist() == [[True, True, False, False], [False, False, True, True], [True] * 4]
    assert groups.together[4:] == pytest.approx([0.9, 0.8, (0.4 + 0.3 + 0.2 + 0.1) / 4])


def test_groups_are_joined_from_those_that_belong_together_most():
    found = pieces_of(drawn())
    pairs = pairs_of(found)
    groups = groups_of(found, pairs, np.array([0.9, 0.3, 0.1], np.float32))
    assert groups.members.tolist() == [
        [True, False, False],
        [False, True, False],
        [False, False, True],
        [True, True, False],
        [True, True, True],
    ]
    assert groups.together == pytest.approx([1, 1, 1, 0.9, 0.2]), "the third with the mean over equal pieces"
    assert groups.beyond == pytest.approx([0.9, 0.9, 0.2, 0.2, 0])
    assert candidates_of(found, groups).boxes[3:].tolist() == [[10, 10, 40, 14], [10, 10, 105, 44]]
    apart = groups_of(found, pairs, np.array([0.9, 0.01, 0.01], np.float32))
    assert len(apart.members) == 4, "what does not belong together stays apart"


def test_large_pieces_count_for_more_when_groups_are_joined():
    found = pieces_of(
        drawn([(10, 10, 20, 14, 9.0), (30, 10, 70, 14, 8.0), (100, 40, 105, 44, 20.0)])
    )  # 40, 160 and 20 cells
    pairs = pairs_of(found)
    assert pairs.tolist() == [[0, 1], [2, 0], [2, 1]]
    groups = groups_of(found, pairs, np.array([0.9, 0.5, 0.1], np.float32))
    assert groups.together[-1] == pytest.approx((40 * 0.5 + 160 * 0.1) / 200)


def test_a_loud_group_may_end_where_it_is_far_below_its_peak():
    skirt = drawn([(10, 10, 60, 30, 9.0), (20, 15, 40, 25, 45.0), (200, 15, 220, 25, 25.0)])
    found = pieces_of(skirt)
    groups = groups_of(found, pairs_of(found), np.array([0.9], np.float32))
    made = candidates_of(found, groups)
    assert made.group.tolist() == [0, 1, 2, 0, 2] and made.level.tolist() == [0, 0, 0, 3, 3]
    assert made.boxes.tolist() == [
        [10, 10, 60, 30],
        [200, 15, 220, 25],
        [10, 10, 220, 30],
        [20, 15, 40, 25],  # above 20 dB: 25 below the peak
        [20, 15, 220, 25],
    ]
    deafening = pieces_of(drawn([(10, 10, 60, 30, 99.0)]))
    alone = groups_of(deafening, pairs_of(deafening), np.zeros(0, np.float32))
    assert candidates_of(deafening, alone).level.tolist() == [0, 8], "the highest contour there is"


def test_features_of_a_candidate():
    found = pieces_of(drawn())
    groups = groups_of(found, pairs_of(found), np.array([0.9, 0.3, 0.1], np.float32))
    made = candidates_of(found, groups)
    features = candidate_features(found, groups, made)
    assert features.shape == (5, CANDIDATE_FEATURES)
    pair = features[3]
    assert pair[:2].tolist() == [9.0, 8.5], "highest and mean level"
    assert pair[2:5] == pytest.approx([np.log(80), 80 / 120, np.log(2)])
    assert pair[5:9] == pytest.approx([0.9, 0.2, np.log(30), np.log(4)])
    assert pair[9:13].tolist() == [10, 14, 0, 0], "band; nothing strange in its box"
    assert pair[13:19] == pytest.approx([0.5, 0.5, 10, 20 / 30, 1.0, 10 / 30])
    assert pair[19] == 0, "its outermost contour"
    assert pair[20:22] == pytest.approx([(9 * 40 + 8 * 40) / 120, 80 / 120]), "mean, share that stands out"
    assert (pair[22:30] == 0).all(), "nothing around it"
    assert pair[30:32] == pytest.approx([9.0, 1.0]), "its first quarter"
    elsewhere = made._replace(boxes=np.array([[10, 10, 40, 14]] * 5, np.float32))
    assert candidate_features(found, groups, elsewhere)[0, 11:13].tolist() == [1.0, 8.0], (
        "another piece as large"
    )


def test_what_lies_around_a_candidate_and_in_its_outermost_quarters():
    """20 frames and 8 bins: half as much is beside it, and a quarter and one cell more are its ends."""
    around = [(0, 0, 100, 64, 2.0), (30, 20, 40, 28, 4.0), (60, 20, 70, 28, 1.0), (40, 28, 60, 32, 3.5),
              (40, 16, 60, 20, 2.5)]  # fmt: skip
    smooth = drawn(
        [*around, (40, 20, 46, 28, 10.0), (46, 20, 54, 28, 9.0), (54, 20, 60, 28, 12.0)], (100, 64)
    )
    smooth[40:60, 20:23] += 1.0
    smooth[40:60, 25:28] += 2.0
    found = pieces_of(smooth)
    groups = groups_of(found, pairs_of(found), np.zeros(0, np.float32))
    means = candidate_features(found, groups, candidates_of(found, groups))[0, 20:].reshape(9, 2)
    along = (6 * 10 + 8 * 9 + 6 * 12) / 20  # and (3 * 1 + 3 * 2) / 8 over the bins
    inside = [along + 1.125, 10 + 1.125, 12 + 1.125, along + 1, along + 2]
    assert means[:, 0] == pytest.approx([inside[0], 4.0, 1.0, 3.5, 2.5, *inside[1:]])
    assert means[:, 1].tolist() == [1, 1, 0, 1, 0, 1, 1, 1, 1], "above 3 dB"


def test_a_candidate_at_the_edge_of_the_chunk():
    """Beyond the chunk there is nothing to hear; what is within is a mean over what is within."""
    for box, silent in (((0, 0, 10, 4), [1, 4]), ((390, 60, 400, 64), [2, 3])):
        found = pieces_of(drawn([(0, 0, 400, 64, 2.0), (*box, 9.0)]))
        groups = groups_of(found, pairs_of(found), np.zeros(0, np.float32))
        features = candidate_features(found, groups, candidates_of(found, groups))
        assert features[0, 15] == 0 and np.isfinite(features).all()
        expected = np.array([9.0, 2, 2, 2, 2, 9, 9, 9, 9])
        expected[silent] = 0.0
        assert features[0, 20::2].tolist() == expected.tolist()


def test_a_piece_belongs_to_the_smallest_box_that_holds_half_of_it():
    corners = np.array([[10, 10, 20, 14], [100, 40, 105, 44]], np.float32)
    boxes = np.array([[0, 0, 90, 64], [14, 8, 30, 16], [16, 8, 30, 16]], np.float32)
    assert belongs_to(corners, boxes).tolist() == [1, -1]
    assert belongs_to(corners, boxes[:0]).tolist() == [-1, -1]
