"""The one place where our boxes become an image library's and back: rows are time, columns are frequency.

Ours are (t0, f0, t1, f1); torchvision's xyxy are (f0, t0, f1, t1); DETR's and YOLO's are centres and sizes
as shares of the image, column first. Single-channel spectrograms are images of one channel. Ignore regions
and chunk weights are not known to these libraries: regions are left out, and all chunks count alike.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from mast_ray.boxes.batch import Detections, PaddedBoxes


def xyxy_of(corners: Tensor) -> Tensor:
    """(..., 4) ours <-> (..., 4) xyxy: the same swap of axes both ways."""
    return corners[..., [1, 0, 3, 2]]


def object_xyxy(boxes: PaddedBoxes) -> list[Tensor]:
    """One (N_i, 4) xyxy tensor per chunk, objects with known frequencies only. The host waits
    once for the device, not once per chunk.
    """
    first = (~boxes.has_band).byte().argsort(dim=1, stable=True)  # objects before all other slots
    corners = xyxy_of(boxes.corners.gather(1, first[..., None].expand(-1, -1, 4)))
    counts = boxes.has_band.sum(1).tolist()
    return [row[:count] for row, count in zip(corners, counts, strict=True)]


def shares_of(xyxy: Tensor, extent: tuple[int, int]) -> Tensor:
    """(..., 4) xyxy -> (..., 4) centre and size as shares of an image of `extent` (frames, bins)."""
    size = xyxy.new_tensor((extent[1], extent[0]))
    return torch.cat(
        ((xyxy[..., :2] + xyxy[..., 2:]) / 2 / size, (xyxy[..., 2:] - xyxy[..., :2]) / size), dim=-1
    )


def corners_of_shares(shares: Tensor, extent: tuple[int, int]) -> Tensor:
    """Inverse of shares_of, back to our corner order."""
    size = shares.new_tensor((extent[1], extent[0]))
    centre, half = shares[..., :2] * size, shares[..., 2:] * size / 2
    return xyxy_of(torch.cat((centre - half, centre + half), dim=-1))


def padded_detections(xyxy: Sequence[Tensor], score: Sequence[Tensor], num_slots: int) -> Detections:
    """Lists of one tensor per chunk, best first -> rectangular detections."""
    corners = torch.zeros((len(xyxy), num_slots, 4), device=xyxy[0].device)
    scores = torch.zeros((len(xyxy), num_slots), device=xyxy[0].device)
    is_valid = torch.zeros((len(xyxy), num_slots), dtype=torch.bool, device=xyxy[0].device)
    for row, (boxes, values) in enumerate(zip(xyxy, score, strict=True)):
        count = min(len(boxes), num_slots)
        corners[row, :count] = xyxy_of(boxes[:count].float())
        scores[row, :count] = values[:count].float()
        is_valid[row, :count] = True
    return Detections(corners, scores, is_valid)


@contextmanager
def inference(module: nn.Module) -> Iterator[None]:
    """Evaluation mode inside, the former mode after."""
    was_training = module.training
    module.eval()
    try:
        yield
    finally:
        module.train(was_training)
