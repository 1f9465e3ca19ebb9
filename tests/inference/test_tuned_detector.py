"""A model with the post-processing of its card gives the boxes that the search over stored detections chose."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from mast_ray.boxes.batch import Detections
from mast_ray.boxes.suppression import suppress
from mast_ray.config.recipes import field, paper
from mast_ray.inference.detection_rows import RowKnobs, stitched_boxes
from mast_ray.inference.tuned_detector import (
    DoubtingDetector,
    TunedDetector,
    as_delivered,
    delivered_post,
    doubts_nested,
)
from mast_ray.inference.window_detector import InferenceKnobs, WindowBoxes, WindowDetector
from mast_ray.self_training.operator import (
    PoolDetections,
    Validity,
    doubted,
    is_valid,
    survives_suppression,
    weighed,
)
from mast_ray.spectrogram.normalisation import Normalisation
from mast_ray.training.files.model_files import Card
from mast_ray.training.files.post_processing import PostProcessing


class Fixed(torch.nn.Module):
    """A detector whose candidates are given: three chunks of sixty boxes."""

    def __init__(self) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(0)
        corner = torch.rand((3, 60, 2), generator=generator) * torch.tensor([300.0, 60.0])
        size = torch.rand((3, 60, 2), generator=generator) * torch.tensor([80.0, 12.0]) + 1
        self.corners = torch.cat((corner, corner + size), -1)
        self.parts = torch.rand((3, 60, 2), generator=generator) * 0.98 + 0.01

    def detect(self, logmel, score_floor, nms_overlap, max_detections, with_parts=False, end_frames=None):
        score = self.parts.prod(-1).sqrt()
        found = Detections(self.corners, score, score >= score_floor, self.parts if with_parts else None)
        return suppress(found, nms_overlap, max_detections, end_frames=end_frames)


def stored_candidates():
    """What a stage stores of it: all candidates above the floor, as columns."""
    stored = Fixed().detect(torch.zeros(3, 1, 8, 8), 0.05, 1.0, 1000, with_parts=True)
    valid = stored.is_valid.numpy()
    columns = (part.double().numpy()[valid] for part in (stored.corners, stored.score))
    return PoolDetections(np.nonzero(valid)[0], *columns, 3, stored.parts.double().numpy()[valid])


def same_boxes(found, pool):
    for chunk in range(3):
        own = found.is_valid[chunk].numpy()
        want = pool.where(pool.chunk == chunk)
        order = np.argsort(-want.score, kind="stable")
        np.testing.assert_allclose(found.score[chunk].numpy()[own], want.score[order], rtol=1e-6)
        np.testing.assert_allclose(found.corners[chunk].numpy()[own], want.boxes[order], rtol=1e-6)


@pytest.mark.parametrize("score_weight", [0.5, 0.25, 1.0])
@pytest.mark.parametrize(("nms_overlap", "min_duration_s", "min_bins"), [(0.3, 0.1, 3), (0.6, 0.0, 1)])
def test_boxes_are_those_of_the_search_over_stored_candidates(
    score_weight, nms_overlap, min_duration_s, min_bins
):
    post = PostProcessing(nms_overlap, min_duration_s, min_bins, 0.3, score_weight)
    logmel = torch.zeros(3, 1, 8, 8)
    found = TunedDetector(Fixed(), post).detect(logmel, 0.05, 0.5, 300)

    pool = stored_candidates()
    num_stored = len(pool.score)
    pool = weighed(pool, score_weight)
    pool = pool.where(survives_suppression(pool, nms_overlap))
    pool = pool.where(is_valid(pool, Validity(min_duration_s * 100, min_bins)))
    assert 20 < len(pool.score) < num_stored
    same_boxes(found, pool)


class Loud(torch.nn.Module):
    """Finds the one box that holds whatever is loud in a chunk."""

    def detect(self, logmel, score_floor, nms_overlap, max_detections, with_parts=False, end_frames=None):
        corners, is_valid = torch.zeros(len(logmel), 1, 4), torch.zeros(len(logmel), 1, dtype=torch.bool)
        for row, chunk in enumerate(logmel[:, 0]):
            loud = (chunk > 0).nonzero()
            if len(loud):
                corners[row, 0] = torch.cat((loud.amin(0), loud.amax(0) + 1)).float()
                is_valid[row] = True
        return Detections(corners, is_valid * 0.9, is_valid)


@pytest.mark.parametrize("post", [None, PostProcessing(0.5, 0.1, 2, 0.3)])
def test_a_call_longer_than_a_window_is_one_with_and_without_a_tuned_card(post):
    """Its middle pieces touch both borders of their windows, and are joined with those before and behind."""
    recording = np.full((8, 512, 128), -1.0, np.float32)
    recording.reshape(-1, 128)[700:3300, 40:60] = 1.0
    detector = Loud() if post is None else TunedDetector(Loud(), post)
    windows = WindowDetector(detector, Normalisation(0.0, 1.0), "real", InferenceKnobs(batch_size=4))
    found = []
    windows.begin(lambda _, boxes: found.append(boxes))
    windows.push("a", 0, recording, is_last=True, num_frames=8 * 512)
    windows.flush()
    assert stitched_boxes(found, 8 * 512, RowKnobs()).boxes.tolist() == [[700, 40, 3300, 60]]


def test_a_call_at_the_end_of_a_recording_ends_with_the_sound_as_it_does_in_a_chunk():
    """12 s are 1198 whole frames, and the last of them reaches to frame 1199.5."""
    box = np.array([[1189.5 - 512, 20, 1199.5 - 512, 30], [1189.5 - 512, 60, 1020, 70]], np.float32)
    found = WindowBoxes(2, np.array([1, 1]), box, np.array([0.9, 0.8], np.float32), None)
    boxes = stitched_boxes([found], 1198, RowKnobs()).boxes
    assert boxes.tolist() == [[1189.5, 20, 1199.5, 30], [1189.5, 60, 1199.5, 70]]


def test_the_card_is_followed_unless_it_is_not_wanted():
    post = PostProcessing(0.4, 0.05, 1, 0.2)
    card = Card("detector", {}, {}, post=post.to_dict())
    assert delivered_post(card, field().evaluate) == post
    assert delivered_post(card, paper().evaluate) is None
    assert delivered_post(Card("detector", {}, {}), field().evaluate) is None
    plain, knobs = Fixed(), field().evaluate
    assert as_delivered(plain, Card("detector", {}, {}), knobs) is plain
    assert isinstance(as_delivered(plain, card, knobs), TunedDetector)
    doubting = Card("detector", {}, {}, doubts_nested=True)
    assert isinstance(as_delivered(plain, doubting, knobs), DoubtingDetector)
    assert as_delivered(plain, doubting, paper().evaluate) is plain
    assert not doubts_nested(replace(doubting, post=post.to_dict()), knobs), (
        "post-processing says it for itself"
    )


@pytest.mark.parametrize("score_weight", [0.5, 0.25])
def test_doubt_about_nested_boxes_is_that_of_the_search(score_weight):
    post = PostProcessing(0.5, 0.1, 3, 0.3, score_weight, doubts_nested=True)
    assert PostProcessing.from_dict(post.to_dict()) == post
    logmel = torch.zeros(3, 1, 8, 8)
    found = TunedDetector(Fixed(), post).detect(logmel, 0.05, 0.5, 300)
    pool = stored_candidates()
    pool = weighed(pool, score_weight)
    pool = pool.where(survives_suppression(pool, 0.5))
    plain = pool.where(is_valid(pool, Validity(10, 3)))
    pool = doubted(pool)
    pool = pool.where(is_valid(pool, Validity(10, 3)))
    assert len(pool.score) == len(plain.score) and (pool.score < plain.score - 1e-6).any()
    same_boxes(found, pool)
