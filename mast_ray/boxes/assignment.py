"""Which point of the pyramid learns which box: ATSS and centre sampling, without loops over chunks or boxes.

Legend: B chunks, M box slots, W window cells, C candidates per box, P points. Boxes are (t0, f0, t1, f1).

Points lie on regular grids, so the nearest ones to a box are found in a small window around its centre
instead of among all P points: memory grows with M x C (about 100) and not with M x P (several thousand).
Distances are measured in strides of each axis, because frames and bins are different units. Equal distances
are ordered by point index and equal preferences by slot index, so the result is the same on every device.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from mast_ray.boxes.batch import PaddedBoxes
from mast_ray.boxes.geometry import area, centres, paired_iou
from mast_ray.boxes.points import PyramidLevel

AssignmentName = Literal["atss", "centre"]
ANCHOR_SCALE = 8.0  # strides on each axis
LARGEST_DISTANCE = 8.0  # strides from a point to the farthest side of a box that its level takes
JUST_UNDER = 0.9999  # mirror images of the best candidate differ from it by rounding alone


class Assignment(NamedTuple):
    """What every point is to learn."""

    box_index: Tensor  # (B, P) int64: slot of the box it predicts, -1 for background
    is_ignored: Tensor  # (B, P) bool: unmatched and in an ignore region, so neither object nor background


def assign(boxes: PaddedBoxes, levels: Sequence[PyramidLevel], name: AssignmentName = "atss") -> Assignment:
    """Assignment by name with its default settings."""
    match name:
        case "atss":
            return atss(boxes, levels)
        case "centre":
            return centre_sampling(boxes, levels)


def atss(boxes: PaddedBoxes, levels: Sequence[PyramidLevel], topk: int = 9) -> Assignment:
    """Adaptive training sample selection (Zhang et al. 2020).

    Candidates are the `topk` nearest points of every level. A candidate is positive when the IoU of its
    anchor (8 strides on each axis) with the box reaches mean + standard deviation over the
    box's candidates, and its centre lies inside the box. A point wanted by several boxes goes to the one
    with the highest IoU.

    A long narrow box can tie over two levels: then mean + deviation lies above every candidate, and as
    published no point would learn it. The threshold stays just under the best candidate inside the box.
    """
    index, overlap, inside = [], [], []
    for level, first_point in zip(levels, _first_points(levels), strict=True):
        target = _in_cells(boxes.corners, level)  # IoU does not change when an axis is scaled
        cells, found = _window(target, level, _widths_holding(topk, level))  # (B, M, W, 2), (B, M, W)
        distance = (cells - centres(target)[:, :, None, :]).square().sum(-1)  # (B, M, W)
        nearest = distance.sort(dim=-1, stable=True).indices[..., : min(topk, level.num_points)]
        at = cells.gather(-2, nearest[..., None].expand(*nearest.shape, 2))
        anchor = torch.cat((at - ANCHOR_SCALE / 2, at + ANCHOR_SCALE / 2), dim=-1)
        index.append(found.gather(-1, nearest) + first_point)
        overlap.append(paired_iou(anchor, target[:, :, None, :]))
        inside.append(_is_inside(at, target[:, :, None, :]))
    iou = torch.cat(overlap, dim=-1)  # (B, M, C)
    is_inside = torch.cat(inside, dim=-1)
    threshold = iou.mean(-1, keepdim=True) + iou.std(-1, keepdim=True)
    best = torch.where(is_inside, iou, -1.0).amax(-1, keepdim=True)
    threshold = torch.where(threshold > best, best * JUST_UNDER, threshold)
    positive = (iou >= threshold) & is_inside & boxes.is_object[..., None]
    return _resolve(boxes, levels, torch.cat(index, dim=-1), positive, preference=iou)


def centre_sampling(
    boxes: PaddedBoxes,
    levels: Sequence[PyramidLevel],
    radius: float = 1.5,
) -> Assignment:
    """FCOS centre sampling (Tian et al. 2019): points inside a box near its centre.

    Near is within `radius` strides. A level takes a point's box when its farthest side lies within
    (4, 8] strides; the finest level takes smaller and the coarsest
    larger ones. Ambiguous points go to the smallest box.
    """
    index, positive = [], []
    width = 2 * int(-(-radius // 1)) + 1
    for number, (level, first_point) in enumerate(zip(levels, _first_points(levels), strict=True)):
        target = _in_cells(boxes.corners, level)
        cells, found = _window(target, level, (min(width, level.size[0]), min(width, level.size[1])))
        near = (cells - centres(target)[:, :, None, :]).abs().amax(-1) < radius
        target = target[:, :, None, :]
        farthest = torch.cat((cells - target[..., :2], target[..., 2:] - cells), dim=-1).amax(-1)
        low = 0.0 if number == 0 else LARGEST_DISTANCE / 2
        high = float("inf") if number == len(levels) - 1 else LARGEST_DISTANCE
        fits = (farthest > low) & (farthest <= high)
        index.append(found + first_point)
        positive.append(near & fits & _is_inside(cells, target) & boxes.is_object[..., None])
    candidates = torch.cat(index, dim=-1)
    smaller = (-area(boxes.corners))[..., None].expand_as(candidates)
    return _resolve(boxes, levels, candidates, torch.cat(positive, dim=-1), preference=smaller)


def points_per_box(assignment: Assignment, num_slots: int) -> Tensor:
    """(B, M) how many points learn each slot; 0 marks a box that the pyramid cannot see (and empty slots)."""
    slot = assignment.box_index.clamp(min=0)
    counts = torch.zeros((slot.shape[0], num_slots), dtype=torch.int64, device=slot.device)
    return counts.scatter_add_(1, slot, (assignment.box_index >= 0).long())


def is_learned(
    corners: Tensor, levels: Sequence[PyramidLevel], name: AssignmentName = "atss", boxes_at_once: int = 256
) -> Tensor:
    """(N, 4) boxes -> (N,) whether a point would learn each if it were alone in its chunk.

    A box that no point learns is left out of the loss: with points every (8, 4), a box under 8 frames or up
    to 4 bins may lie between them.
    """
    parts = [torch.zeros(0, dtype=torch.bool)]
    for one in corners.split(boxes_at_once):
        alone = one[:, None]  # (B, 1, 4)
        is_object = torch.ones(alone.shape[:2], dtype=torch.bool)
        boxes = PaddedBoxes(alone, is_object, torch.zeros_like(is_object))
        parts.append(points_per_box(assign(boxes, levels, name), 1)[:, 0] > 0)
    return torch.cat(parts)


def _first_points(levels: Sequence[PyramidLevel]) -> list[int]:
    starts = [0]
    for level in levels:
        starts.append(starts[-1] + level.num_points)
    return starts[:-1]


def _widths_holding(topk: int, level: PyramidLevel) -> tuple[int, int]:
    """Window that holds the `topk` nearest cells of a grid for any centre, also at its border.

    In an unbounded grid, a square of side s = ceil(sqrt(topk)) cells around the centre holds topk
    cells within s / sqrt(2) strides; in the corner of a grid the reach is s sqrt(2). 2 s + 1
    cells cover both once the window is pushed inside the grid. Where one axis is shorter than s,
    the other must hold up to topk cells.
    """
    side = int(-(-(topk**0.5) // 1))
    width = 2 * side + 1 if min(level.size) >= side else 2 * topk + 1
    return min(width, level.size[0]), min(width, level.size[1])


def _in_cells(corners: Tensor, level: PyramidLevel) -> Tensor:
    """Boxes in cells of a level. By scalars: a tensor of strides would be a copy the device waits for."""
    t0, f0, t1, f1 = corners.unbind(-1)
    time, frequency = 1 / level.stride[0], 1 / level.stride[1]
    return torch.stack((t0 * time, f0 * frequency, t1 * time, f1 * frequency), dim=-1)


def _window(target: Tensor, level: PyramidLevel, widths: tuple[int, int]) -> tuple[Tensor, Tensor]:
    """Cells around box centres, pushed inside the grid: ((B, M, W, 2) centres, (B, M, W) point index)."""
    axes = []
    for axis in range(2):
        centre = (target[..., axis] + target[..., axis + 2]) / 2  # (B, M)
        first = (centre.floor().long() - widths[axis] // 2).clamp(0, level.size[axis] - widths[axis])
        axes.append(first[..., None] + torch.arange(widths[axis], device=target.device))
    shape = (*target.shape[:2], widths[0], widths[1])
    time = axes[0][..., :, None].expand(shape).flatten(-2)
    frequency = axes[1][..., None, :].expand(shape).flatten(-2)
    return torch.stack((time, frequency), dim=-1) + 0.5, time * level.size[1] + frequency


def _is_inside(points: Tensor, boxes: Tensor) -> Tensor:
    return ((points > boxes[..., :2]) & (points < boxes[..., 2:])).all(-1)


def _resolve(
    boxes: PaddedBoxes, levels: Sequence[PyramidLevel], index: Tensor, positive: Tensor, preference: Tensor
) -> Assignment:
    """Give every point to its most preferred box (the first slot among equals) and mark ignored points."""
    num_chunks, num_slots, _ = index.shape
    num_points = sum(level.num_points for level in levels)
    point = index.flatten(1)  # (B, M C)
    wanted = torch.where(positive, preference, -torch.inf).flatten(1)
    best = wanted.new_full((num_chunks, num_points), -torch.inf).scatter_reduce(1, point, wanted, "amax")
    slot = torch.arange(num_slots, device=index.device)[None, :, None].expand_as(index).flatten(1)
    wins = positive.flatten(1) & (wanted == best.gather(1, point))
    owner = torch.full_like(best, num_slots, dtype=torch.int64)
    owner = owner.scatter_reduce(1, point, torch.where(wins, slot, num_slots), "amin")
    box_index = torch.where(owner == num_slots, -1, owner)
    is_unlearned = boxes.is_object & ~positive.any(-1)  # (B, M)
    return Assignment(box_index, _in_ignore_region(boxes, is_unlearned, levels) & (box_index < 0))


def _in_ignore_region(boxes: PaddedBoxes, is_unlearned: Tensor, levels: Sequence[PyramidLevel]) -> Tensor:
    """(B, P) whether a point lies in an ignore region: in time and frequency, joined by a product over M.

    A box that no point can learn is a call all the same, so it counts as an ignore region. It lies between
    the points: those of the finest level whose cell it touches are meant. Coarser ones keep learning
    background, else an archive of short calls would never teach them any. A call that is known in time only is an
    ignore region over the whole band, wherever it is sought.
    """
    is_region = (boxes.is_ignored | is_unlearned)[..., None]  # (B, M, 1)
    spans_band = boxes.is_time_only[..., None]
    parts = []
    for number, (stride, size) in enumerate(levels):
        inside = []
        for axis in range(2):
            at = (torch.arange(size[axis], device=boxes.corners.device) + 0.5) * stride[axis]
            reach = is_unlearned[..., None] * (stride[axis] / 2 if number == 0 else 0.0)
            low = boxes.corners[..., axis, None] - reach
            high = boxes.corners[..., axis + 2, None] + reach
            within = (at >= low) & (at < high)  # (B, M, size)
            if axis == 1:
                within = within | spans_band
            inside.append((within & is_region).float())
        parts.append((inside[0].transpose(1, 2) @ inside[1] > 0).flatten(1))
    return torch.cat(parts, dim=1)
