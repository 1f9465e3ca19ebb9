"""ATSS and centre sampling against slow, obvious references."""

import pytest
import torch
from torchvision.ops import box_iou

from mast_ray.boxes.assignment import assign, atss, centre_sampling, is_learned, points_per_box
from mast_ray.boxes.batch import PaddedBoxes, pad_boxes
from mast_ray.boxes.points import PyramidLevel, pyramid_levels, pyramid_points

PYRAMIDS = {
    "upsampling": pyramid_levels(4, (8, 4)),
    "conv": pyramid_levels(3, (16, 16)),
    "few rows": pyramid_levels(3, (8, 32)),
    "small": pyramid_levels(3, (8, 4), num_frames=64, num_bins=16),
}


def random_boxes(generator: torch.Generator, count: int, frames: int, bins: int) -> torch.Tensor:
    """Integer corners, so that equal distances and equal overlaps do occur."""
    t = torch.randint(0, frames + 1, (count, 2), generator=generator).sort(dim=1).values
    f = torch.randint(0, bins + 1, (count, 2), generator=generator).sort(dim=1).values
    t[:, 1] = torch.maximum(t[:, 1], t[:, 0] + 1)
    f[:, 1] = torch.maximum(f[:, 1], f[:, 0] + 1)
    return torch.stack((t[:, 0], f[:, 0], t[:, 1], f[:, 1]), dim=1).float()


def iou_of_two(a: list[float], b: list[float]) -> float:
    time = max(0.0, min(a[2], b[2]) - max(a[0], b[0]))
    frequency = max(0.0, min(a[3], b[3]) - max(a[1], b[1]))
    shared = time * frequency
    return shared / ((a[2] - a[0]) * (a[3] - a[1]) + (b[2] - b[0]) * (b[3] - b[1]) - shared)


def slow_atss(boxes: torch.Tensor, levels: tuple[PyramidLevel, ...], topk: int, scale: float) -> list[int]:
    centres, strides, level_of = (part.tolist() for part in pyramid_points(levels))
    best: dict[int, tuple[float, int]] = {}
    for slot, box in enumerate(boxes.tolist()):
        candidates = []
        for level in range(len(levels)):
            members = [p for p in range(len(centres)) if level_of[p] == level]
            middle = ((box[0] + box[2]) / 2, (box[1] + box[3]) / 2)
            members.sort(
                key=lambda p: (
                    ((centres[p][0] - middle[0]) / strides[p][0]) ** 2
                    + ((centres[p][1] - middle[1]) / strides[p][1]) ** 2,
                    p,
                )
            )
            candidates += members[:topk]
        overlaps = []
        for p in candidates:
            (t, f), (dt, df) = centres[p], strides[p]
            half_t, half_f = dt * scale / 2, df * scale / 2
            overlaps.append(iou_of_two([t - half_t, f - half_f, t + half_t, f + half_f], box))
        values = torch.tensor(overlaps)
        threshold = (values.mean() + values.std()).item()
        inside = [
            overlap
            for p, overlap in zip(candidates, overlaps, strict=True)
            if box[0] < centres[p][0] < box[2] and box[1] < centres[p][1] < box[3]
        ]
        best_inside = max(inside, default=0.0)
        threshold = 0.9999 * best_inside if threshold > best_inside else threshold
        for p, overlap in zip(candidates, overlaps, strict=True):
            t, f = centres[p]
            if overlap >= threshold - 1e-7 and box[0] < t < box[2] and box[1] < f < box[3]:
                best[p] = max(best.get(p, (-1.0, 0)), (overlap, -slot))
    return [-best[p][1] if p in best else -1 for p in range(len(centres))]


@pytest.mark.parametrize("name", PYRAMIDS)
def test_atss_agrees_with_a_slow_obvious_reference(name: str) -> None:
    levels = PYRAMIDS[name]
    frames, bins = levels[0].stride[0] * levels[0].size[0], levels[0].stride[1] * levels[0].size[1]
    generator = torch.Generator().manual_seed(len(name))
    chunks = [random_boxes(generator, count, frames, bins) for count in (0, 1, 3, 8)]
    result = atss(pad_boxes(chunks), levels)
    for row, boxes in enumerate(chunks):
        expected = slow_atss(boxes, levels, topk=9, scale=8.0)
        assert result.box_index[row].tolist() == expected
    assert (result.box_index >= 0).any()


@pytest.mark.parametrize("topk", [1, 4, 16, 25])
def test_atss_window_holds_the_nearest_points_for_any_topk(topk: int) -> None:
    levels = PYRAMIDS["small"]
    boxes = random_boxes(torch.Generator().manual_seed(topk), 6, 64, 16)
    result = atss(pad_boxes([boxes]), levels, topk=topk)
    assert result.box_index[0].tolist() == slow_atss(boxes, levels, topk, 8.0)


def slow_centre_sampling(boxes: torch.Tensor, levels: tuple[PyramidLevel, ...], radius: float) -> list[int]:
    centres, strides, level_of = pyramid_points(levels)
    owners = []
    for p in range(len(centres)):
        (t, f), (dt, df), level = centres[p].tolist(), strides[p].tolist(), int(level_of[p])
        fits = []
        for slot, (t0, f0, t1, f1) in enumerate(boxes.tolist()):
            near = abs(t - (t0 + t1) / 2) / dt < radius and abs(f - (f0 + f1) / 2) / df < radius
            farthest = max((t - t0) / dt, (t1 - t) / dt, (f - f0) / df, (f1 - f) / df)
            low = 0 if level == 0 else 4
            high = float("inf") if level == len(levels) - 1 else 8
            if near and t0 < t < t1 and f0 < f < f1 and low < farthest <= high:
                fits.append(((t1 - t0) * (f1 - f0), slot))
        owners.append(min(fits)[1] if fits else -1)
    return owners


@pytest.mark.parametrize(("radius", "name"), [(1.0, "small"), (1.5, "small"), (2.5, "small"), (1.5, "conv")])
def test_centre_sampling_agrees_with_a_slow_obvious_reference(radius: float, name: str) -> None:
    """Boxes of the small pyramid reach no farther than 8 strides; those of the other one use both limits of a level."""
    levels = PYRAMIDS[name]
    frames, bins = levels[0].stride[0] * levels[0].size[0], levels[0].stride[1] * levels[0].size[1]
    boxes = random_boxes(torch.Generator().manual_seed(3), 12, frames, bins)
    result = centre_sampling(pad_boxes([boxes]), levels, radius=radius)
    assert result.box_index[0].tolist() == slow_centre_sampling(boxes, levels, radius)
    assert (result.box_index >= 0).any()


@pytest.mark.parametrize("name", ["atss", "centre"])
def test_unmatched_points_in_an_ignore_region_are_ignored_and_matched_ones_are_not(name: str) -> None:
    levels = PYRAMIDS["upsampling"]
    call, region = torch.tensor([[100.0, 40, 180, 80]]), torch.tensor([[0.0, 0, 512, 64]])
    boxes = pad_boxes([call, torch.zeros(0, 4)], [region, region])
    result = assign(boxes, levels, name)
    centres = pyramid_points(levels).centres
    inside = (centres[:, 0] < 512) & (centres[:, 1] < 64)
    assert result.box_index[0].max() == 0 and (result.box_index[1] == -1).all()
    assert torch.equal(result.is_ignored[1], inside)
    assert torch.equal(result.is_ignored[0], inside & (result.box_index[0] < 0))


def test_empty_slots_and_ignore_regions_never_own_a_point() -> None:
    corners = torch.tensor([[[0.0, 0, 200, 100], [100, 20, 300, 60]]])
    boxes = PaddedBoxes(corners, torch.tensor([[False, True]]), torch.tensor([[True, False]]))
    for name in ("atss", "centre"):
        owners = assign(boxes, PYRAMIDS["upsampling"], name).box_index
        assert set(owners.unique().tolist()) == {-1, 1}


def test_points_per_box_counts_what_every_box_is_given() -> None:
    boxes = pad_boxes([torch.tensor([[100.0, 40, 180, 80], [1.0, 1, 3, 2]])])  # the second misses every point
    result = atss(boxes, PYRAMIDS["upsampling"])
    counts = points_per_box(result, boxes.corners.shape[1])[0]
    assert counts[0] == (result.box_index == 0).sum() > 0
    assert counts[1:].sum() == 0


@pytest.mark.parametrize("name", ["atss", "centre"])
def test_a_box_is_learned_when_a_point_lies_inside(name: str) -> None:
    """Points of the finest level lie at frames 4, 12, 20, ... and bins 2, 6, 10, ..."""
    seen = [[0.0, 0, 8, 4], [100, 40, 180, 80], [11, 5, 13, 7]]
    between = [[5.0, 0, 12, 4], [0, 2, 8, 4], [200, 30, 400, 31]]
    found = is_learned(torch.tensor(seen + between), PYRAMIDS["upsampling"], name, boxes_at_once=4)
    assert found.tolist() == [True] * 3 + [False] * 3


LONG_AND_NARROW = [(200, 20), (256, 16), (300, 12), (600, 6)]  # frames x bins


@pytest.mark.parametrize(("frames", "bins"), LONG_AND_NARROW)
def test_long_narrow_boxes_are_learned_in_every_placement(frames: int, bins: int) -> None:
    """Two levels tie for these, so mean + deviation lies above every candidate."""
    t0, f0 = torch.meshgrid(torch.arange(0, 1025 - frames, 3), torch.arange(0, 129 - bins), indexing="ij")
    t0, f0 = t0.flatten().float(), f0.flatten().float()
    boxes = torch.stack((t0, f0, t0 + frames, f0 + bins), dim=1)
    assert is_learned(boxes, PYRAMIDS["upsampling"]).all()


def log_uniform_boxes(count: int, seed: int = 0) -> torch.Tensor:
    """Boxes of 8 to 800 frames and 5 to 100 bins, anywhere in a chunk."""
    generator = torch.Generator().manual_seed(seed)
    size = torch.tensor([8.0, 5.0]) * torch.tensor([100.0, 20.0]) ** torch.rand(
        (count, 2), generator=generator
    )
    low = torch.rand((count, 2), generator=generator) * (torch.tensor([1024.0, 128.0]) - size)
    return torch.cat((low, low + size), dim=1)


def points_inside(boxes: torch.Tensor, levels: tuple[PyramidLevel, ...]) -> torch.Tensor:
    """(N, P)"""
    centres = pyramid_points(levels).centres
    return ((centres > boxes[:, None, :2]) & (centres < boxes[:, None, 2:])).all(-1)


@pytest.mark.parametrize("name", ["upsampling", "conv"])
def test_every_box_with_a_point_inside_is_learned_of_4000_log_uniform_ones(name: str) -> None:
    boxes = log_uniform_boxes(4000)
    has_point = torch.cat([points_inside(part, PYRAMIDS[name]).any(-1) for part in boxes.split(500)])
    assert torch.equal(is_learned(boxes, PYRAMIDS[name]), has_point)
    assert has_point.float().mean() > 0.5


def published_atss(box: torch.Tensor, levels: tuple[PyramidLevel, ...]) -> set[int]:
    """Positive points of one box by mean + deviation alone."""
    centres, strides, level_of = pyramid_points(levels)
    distance = ((centres - (box[:2] + box[2:]) / 2) / strides).square().sum(-1)
    nearest = [
        torch.where(level_of == number)[0][distance[level_of == number].sort(stable=True).indices[:9]]
        for number in range(len(levels))
    ]
    chosen = torch.cat(nearest)
    anchors = torch.cat((centres[chosen] - 4 * strides[chosen], centres[chosen] + 4 * strides[chosen]), dim=1)
    overlap = box_iou(anchors, box[None])[:, 0]
    inside = points_inside(box[None], levels)[0, chosen]
    return set(chosen[inside & (overlap >= overlap.mean() + overlap.std() - 1e-6)].tolist())


def test_boxes_that_atss_learns_as_published_keep_their_points() -> None:
    levels = PYRAMIDS["upsampling"]
    boxes = log_uniform_boxes(150, seed=1)
    found = atss(
        PaddedBoxes(
            boxes[:, None], torch.ones(150, 1, dtype=torch.bool), torch.zeros(150, 1, dtype=torch.bool)
        ),
        levels,
    )
    learned = 0
    for row, box in enumerate(boxes):
        expected = published_atss(box, levels)
        if expected:
            learned += 1
            assert set(torch.where(found.box_index[row] == 0)[0].tolist()) == expected
    assert 120 < learned < 150  # some boxes fall into the hole


@pytest.mark.parametrize("name", ["atss", "centre"])
def test_a_box_between_the_points_is_neither_object_nor_background(name: str) -> None:
    """Frames 13 to 19 hold no point of the finest level (12, 20), but touch the cells 8-16 and 16-24."""
    levels = PYRAMIDS["upsampling"]
    boxes = pad_boxes([torch.tensor([[13.0, 41, 19, 50]])])
    result = assign(boxes, levels, name)
    centres, _, level_of = pyramid_points(levels)
    near = (centres[:, 0] > 8) & (centres[:, 0] < 24) & (centres[:, 1] > 40) & (centres[:, 1] < 52)
    touched = near & (level_of == 0)
    assert (result.box_index == -1).all()
    assert torch.equal(result.is_ignored[0], touched)
    assert int(touched.sum()) == 6
