"""The moving average as teacher: what its boxes become, whose weights it has, and what it leaves alone."""

import dataclasses

import numpy as np
import pytest
import torch

from mast_ray.boxes.batch import ChunkBatch, Detections, pad_boxes
from mast_ray.boxes.nesting import with_doubt
from mast_ray.config.stage_knobs import SelfTrainConfig
from mast_ray.models.detector import DetectorArchitecture, MastDetector
from mast_ray.self_training.operator import PoolDetections
from mast_ray.stages.self_train.operator_shards import labelled
from mast_ray.tables.reading.reader import RawChunks
from mast_ray.training.data.online_teacher import OnlineTeacher, TeacherSettings, banded, sharing
from mast_ray.training.ema import MovingAverage

LONG, SHORT, WHOLE = [100.0, 20.0, 200.0, 40.0], [100.0, 20.0, 105.0, 40.0], [0.0, 20.0, 1024.0, 40.0]


def found(*rows):
    """Detections of one chunk: (box, score)."""
    corners, score = torch.tensor([[row[0] for row in rows]]), torch.tensor([[row[1] for row in rows]])
    return Detections(corners, score, torch.ones_like(score, dtype=torch.bool))


def test_above_both_thresholds_is_an_object_between_them_ignored_below_background():
    detections = found(
        (LONG, 0.9), (SHORT, 0.8), (WHOLE, 0.75), (LONG, 0.7), (LONG, 0.5), (LONG, 0.3), (LONG, 0.2)
    )
    boxes, weight = banded(detections, torch.tensor([0.7]), torch.tensor([0.3]), TeacherSettings(), 1024.0)
    assert boxes.is_object.tolist() == [[True, False, False, True, False, False, False]]
    assert boxes.is_ignored.tolist() == [[False, True, True, False, True, True, False]]
    assert boxes.corners[0, 6].tolist() == [0.0] * 4 and boxes.corners[0, 0].tolist() == LONG
    assert weight.item() == pytest.approx(0.8)  # mean of 0.9 and 0.7


def test_without_a_band_the_rest_is_background_and_an_empty_chunk_has_the_weight_of_the_settings():
    detections = found((SHORT, 0.9), (LONG, 0.5))
    settings = TeacherSettings(empty_weight=0.3, has_band=False)
    boxes, weight = banded(detections, torch.tensor([0.7]), torch.tensor([0.7]), settings, 1024.0)
    assert (
        not boxes.is_object.any() and not boxes.is_ignored.any() and weight.tolist() == pytest.approx([0.3])
    )


@pytest.mark.parametrize("high", [0.45, 0.35, 0.3])
def test_what_is_too_short_for_a_pseudo_box_is_ignored_as_in_stored_labels_whatever_a_sites_threshold(high):
    knobs = SelfTrainConfig(ignore_above=0.35)
    limit, low = np.array([high]), np.array([min(0.35, high)])
    detections = found((LONG, 0.6), (SHORT, 0.5), (LONG, 0.2))
    corners, score = detections.corners[0].double().numpy(), detections.score[0].double().numpy()
    stored = labelled(knobs, PoolDetections(np.zeros(3, np.int64), corners, score, 1), limit, low)
    boxes, _ = banded(detections, torch.tensor(limit), torch.tensor(low), TeacherSettings(), 1024.0)
    assert boxes.corners[boxes.is_object].tolist() == stored.boxes.boxes.tolist() == [LONG]
    assert boxes.corners[boxes.is_ignored].tolist() == stored.ignored.boxes.tolist() == [SHORT]


@pytest.fixture(scope="module")
def detector():
    torch.manual_seed(0)
    return MastDetector(DetectorArchitecture(size="tiny"))


def test_the_teacher_moves_with_the_average_and_shares_what_is_not_averaged(detector):
    student = dict(detector.named_parameters())
    head = [name for name in student if name.startswith("head.")]
    average = MovingAverage([student[name] for name in head], decay=0.5)
    teacher = dict(sharing(detector, dict(zip(head, average.averages, strict=True))).named_parameters())
    assert teacher[head[0]].data_ptr() != student[head[0]].data_ptr()
    encoder = next(name for name in student if name.startswith("encoder."))
    assert teacher[encoder].data_ptr() == student[encoder].data_ptr()
    before = student[head[0]].detach().clone()
    moved = [student[name].detach() + 1.0 for name in head]
    average.update(moved)
    assert torch.allclose(teacher[head[0]], before + 0.5, atol=1e-6)
    assert torch.equal(student[head[0]], before)


def example(num_expert):
    logmel = torch.randn((3, 1, 1024, 128), generator=torch.Generator().manual_seed(0))
    boxes = pad_boxes([torch.tensor([LONG])] * 3)
    one = torch.ones(3)
    raw = RawChunks(
        logmel.squeeze(1), one, one, torch.full((3,), 1024), boxes, one, one, torch.arange(3) >= num_expert,
        torch.tensor([[1.0, 1.0], [0.0, 0.0], [2.0, 2.0]]), ("a", "b", "c"), num_expert=num_expert,
    )  # fmt: skip
    return ChunkBatch(logmel, boxes, one, ("a", "b", "c"), raw.is_pseudo), raw


def test_only_pseudo_labelled_chunks_are_labelled_anew_and_only_in_their_turn(detector):
    batch, raw = example(num_expert=1)
    settings = TeacherSettings(max_boxes=12, every_steps=2)
    teacher = OnlineTeacher(detector, {}, settings, "fp32")
    labelled = teacher(batch, raw, step=4)
    assert labelled.boxes.corners.shape[1] == 12
    assert labelled.boxes.corners[0, 0].tolist() == LONG and labelled.boxes.is_object[0].sum() == 1
    expected = detector.eval().detect(batch.logmel[1:], 0.01, 0.5, 12)
    detector.train()
    assert torch.allclose(labelled.boxes.corners[1][labelled.boxes.is_object[1]],
                          expected.corners[0][labelled.boxes.is_object[1]])  # fmt: skip
    assert labelled.boxes.is_object[1].any()  # a threshold of 0 takes everything that is valid
    assert not labelled.boxes.is_object[2].any() and labelled.weight[2] == 0  # one of 2 takes nothing
    assert torch.equal(labelled.logmel, batch.logmel) and labelled.weight[0] == 1
    assert teacher(batch, raw, step=5) is batch


def test_a_teacher_that_doubts_boxes_within_better_ones_does_so_in_training_too(detector):
    batch, _ = example(num_expert=1)
    found = {}
    for doubts in (False, True):
        teacher = OnlineTeacher(detector, {}, TeacherSettings(max_boxes=12, doubts_nested=doubts), "fp32")
        found[doubts] = teacher._detect(batch.logmel[1:], torch.tensor([1024.0, 1024.0]))
    expected = with_doubt(found[False])
    assert torch.equal(found[True].score, expected.score) and torch.equal(
        found[True].corners, expected.corners
    )


def test_a_batch_whose_composition_is_not_known_is_not_guessed(detector):
    batch, raw = example(num_expert=1)
    with pytest.raises(AssertionError, match="known on the host"):
        OnlineTeacher(detector, {}, TeacherSettings(), "fp32")(
            batch, dataclasses.replace(raw, num_expert=None), 0
        )
