"""Detection losses against torchvision and slow, obvious references."""

import math
from dataclasses import replace

import pytest
import torch
from torchvision.ops import generalized_box_iou_loss, sigmoid_focal_loss

from mast_ray.boxes.assignment import Assignment, atss
from mast_ray.boxes.batch import pad_boxes
from mast_ray.boxes.points import boxes_of_distances, pyramid_levels, pyramid_points
from mast_ray.losses.detection import detection_sums, focal, quality_focal

LEVELS = pyramid_levels(2, (8, 4), 128, 32)
POINTS = pyramid_points(LEVELS)
NUM_POINTS = len(POINTS.centres)
BOXES = [
    torch.tensor([[10.0, 4.0, 60.0, 20.0], [70.0, 8.0, 120.0, 30.0]]),
    torch.tensor([[20.0, 2.0, 100.0, 12.0]]),
    torch.zeros(0, 4),
]


def outputs(seed: int = 0, batch: int = 3) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    shapes = ((batch, NUM_POINTS), (batch, NUM_POINTS), (batch, NUM_POINTS, 4))
    score, centerness, raw = (torch.randn(shape, generator=generator) for shape in shapes)
    return [t.requires_grad_() for t in (score, centerness, (raw.exp() * 2).detach())]


def test_focal_equals_torchvision():
    logit = torch.randn(200)
    target = torch.rand(200) < 0.3
    expected = sigmoid_focal_loss(logit, target.float(), alpha=0.25, gamma=2.0, reduction="none")
    assert torch.allclose(focal(logit, target), expected, atol=1e-6)


@pytest.mark.parametrize(("logit", "quality"), [(0.3, 0.8), (-2.0, 0.0), (5.0, 1.0), (0.0, 0.5)])
def test_quality_focal_equals_the_printed_formula(logit, quality):
    p = 1 / (1 + math.exp(-logit))
    expected = -(abs(quality - p) ** 2) * ((1 - quality) * math.log(1 - p) + quality * math.log(p))
    assert float(quality_focal(torch.tensor(logit), torch.tensor(quality))) == pytest.approx(
        expected, abs=1e-6
    )


def test_quality_focal_is_zero_where_the_score_is_the_quality():
    quality = torch.tensor([0.1, 0.5, 0.9])
    assert torch.allclose(quality_focal(quality.logit(), quality), torch.zeros(3), atol=1e-7)


def test_sums_equal_loops_over_chunks_and_points():
    score, centerness, distances = outputs()
    boxes = pad_boxes(BOXES, [torch.zeros(0, 4), torch.tensor([[0.0, 20.0, 60.0, 32.0]]), torch.zeros(0, 4)])
    assignment = atss(boxes, LEVELS)
    weight = torch.tensor([1.0, 0.5, 2.0])
    sums = detection_sums(score, centerness, distances, POINTS, boxes, assignment, weight)

    classification = corners = overlap = centre = positives = 0.0
    for chunk in range(3):
        for point in range(NUM_POINTS):
            slot = int(assignment.box_index[chunk, point])
            at, stride = POINTS.centres[point], POINTS.strides[point]
            quality = torch.tensor(0.0)
            if slot >= 0:
                positives += 1
                box = boxes.corners[chunk, slot]
                predicted = boxes_of_distances(distances[chunk, point], at, stride)
                giou_loss = generalized_box_iou_loss(predicted, box)
                overlap += (weight[chunk] * giou_loss).item()
                corners += (weight[chunk] * ((predicted - box) / stride.repeat(2)).abs().sum()).item()
                shared = (
                    torch.minimum(predicted[2:], box[2:]) - torch.maximum(predicted[:2], box[:2])
                ).clamp(min=0)
                union = (predicted[2:] - predicted[:2]).prod() + (box[2:] - box[:2]).prod() - shared.prod()
                quality = (shared.prod() / union).detach()
                left, right = at - box[:2], box[2:] - at
                target = torch.sqrt((torch.minimum(left, right) / torch.maximum(left, right)).prod())
                p = centerness[chunk, point].sigmoid()
                centre += (-weight[chunk] * (target * p.log() + (1 - target) * (1 - p).log())).item()
            if not assignment.is_ignored[chunk, point]:
                classification += (weight[chunk] * quality_focal(score[chunk, point], quality)).item()
    assert positives > 10 and bool(assignment.is_ignored.any())
    assert int(sums.num_positives) == positives
    assert sums.classification.item() == pytest.approx(classification, rel=1e-4)
    assert sums.corners.item() == pytest.approx(corners, rel=1e-4)
    assert sums.overlap.item() == pytest.approx(overlap, rel=1e-4)
    assert sums.centerness.item() == pytest.approx(centre, rel=1e-4)


def test_perfect_boxes_cost_nothing_in_corners_and_overlap():
    boxes = pad_boxes(BOXES)
    assignment = atss(boxes, LEVELS)
    slot = assignment.box_index.clamp(min=0)
    target = boxes.corners.gather(1, slot[..., None].expand(-1, -1, 4))
    distances = torch.cat(
        [
            (POINTS.centres - target[..., :2]) / POINTS.strides,
            (target[..., 2:] - POINTS.centres) / POINTS.strides,
        ],
        -1,
    )
    score, centerness, _ = outputs()
    sums = detection_sums(score, centerness, distances, POINTS, boxes, assignment, torch.ones(3))
    assert sums.corners.item() == pytest.approx(0.0, abs=1e-4)
    assert sums.overlap.item() == pytest.approx(0.0, abs=1e-4)


@pytest.mark.parametrize("classification", ["quality_focal", "focal"])
def test_a_batch_without_boxes_has_finite_losses_and_gradients(classification):
    score, centerness, distances = outputs()
    boxes = pad_boxes([torch.zeros(0, 4)] * 3)
    sums = detection_sums(
        score, centerness, distances, POINTS, boxes, atss(boxes, LEVELS), torch.ones(3), classification
    )
    assert int(sums.num_positives) == 0
    assert sums.corners.item() == sums.overlap.item() == sums.centerness.item() == 0.0
    (sums.classification + sums.corners + sums.overlap + sums.centerness).backward()
    for tensor in (score, centerness, distances):
        assert bool(tensor.grad.isfinite().all())
    assert float(score.grad.abs().sum()) > 0


def test_an_ignored_point_has_no_classification_gradient():
    score, centerness, distances = outputs()
    boxes = pad_boxes([torch.zeros(0, 4)] * 3)
    is_ignored = torch.zeros((3, NUM_POINTS), dtype=torch.bool)
    is_ignored[1, 17] = True
    assignment = Assignment(torch.full((3, NUM_POINTS), -1), is_ignored)
    detection_sums(
        score, centerness, distances, POINTS, boxes, assignment, torch.ones(3)
    ).classification.backward()
    assert float(score.grad[1, 17]) == 0.0
    assert float(score.grad[1, 16]) != 0.0


def test_weight_of_a_chunk_scales_its_share_only():
    score, centerness, distances = outputs()
    boxes = pad_boxes(BOXES)
    assignment = atss(boxes, LEVELS)

    def overlap(weight: list[float]) -> float:
        values = detection_sums(score, centerness, distances, POINTS, boxes, assignment, torch.tensor(weight))
        return values.overlap.item()

    assert overlap([1, 1, 1]) == pytest.approx(overlap([1, 0, 0]) + overlap([0, 1, 0]), rel=1e-5)
    assert overlap([0.25, 0, 0]) == pytest.approx(0.25 * overlap([1, 0, 0]), rel=1e-5)


def test_a_call_known_in_time_only_teaches_time_and_no_band():
    """A point at frame 28 and bin 14 predicts 16 to 48 and some band; the call lasts from 24 to 56."""
    boxes = pad_boxes([torch.tensor([[24.0, 0.0, 56.0, 32.0]])])
    boxes = replace(boxes, is_ignored=boxes.is_object.clone())  # both flags: the band is unknown
    point = int(((POINTS.centres - torch.tensor([28.0, 14.0])).abs().sum(-1) + 1e9 * POINTS.level).argmin())
    centre, stride = POINTS.centres[point], POINTS.strides[point]
    box_index = torch.full((1, NUM_POINTS), -1)
    box_index[0, point] = 0
    assignment = Assignment(box_index, box_index < 0)
    results = []
    for band in ((2.0, 30.0), (10.0, 20.0)):
        low = torch.tensor([16.0, band[0]])
        high = torch.tensor([48.0, band[1]])
        distances = torch.ones((1, NUM_POINTS, 4))
        distances[0, point] = torch.cat(((centre - low) / stride, (high - centre) / stride))
        distances.requires_grad_()
        zeros = torch.zeros((1, NUM_POINTS))
        sums = detection_sums(zeros, zeros, distances, POINTS, boxes, assignment, torch.ones(1))
        (sums.corners + sums.overlap).backward()
        assert distances.grad[0, point, 1::2].abs().sum() == 0  # neither side of the band learns
        assert distances.grad[0, point, 0::2].abs().min() > 0
        results.append([value.item() for value in sums[:4]])
    assert results[0] == pytest.approx(results[1])
    classification, corners, overlap, centerness = results[0]
    # 24 of 40 frames are shared; both sides in time are 8 frames, one stride, off
    assert overlap == pytest.approx(1 - 24 / 40) and corners == pytest.approx(2.0)
    assert classification == pytest.approx(float(quality_focal(torch.tensor(0.0), torch.tensor(0.6))))
    near, far = (float(centre[0]) - 24) / 8, (56 - float(centre[0])) / 8
    expected = math.sqrt(min(near, far) / max(near, far))
    assert centerness == pytest.approx(
        float(torch.nn.functional.binary_cross_entropy(torch.tensor(0.5), torch.tensor(expected)))
    )
