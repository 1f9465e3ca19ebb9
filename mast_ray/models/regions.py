"""Features of boxes: the mean of RoIAlign's 7 x 7 bins (2 x 2 samples each), as two interpolation matrices
and a product.

Bilinear sampling on a grid that is a product of times and bins separates, so the mean over it is w_t' X
w_f. As a batched matrix product this is deterministic, differentiates without atomics, compiles, and takes
strides that are not square.
Legend: B chunks, R boxes per chunk, S samples per axis, C channels. Maps (B, C, time, frequency), boxes
(t0, f0, t1, f1).
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from mast_ray.models.layers import unit_length

SAMPLES_PER_AXIS = 14


def pooled_regions(features: Tensor, boxes: Tensor, stride: tuple[int, int]) -> Tensor:
    """(B, C, time, frequency) map, (B, R, 4) boxes -> (B, R, C)"""
    times, bins = features.shape[-2:]
    over_time = interpolation_weights(boxes[..., 0] / stride[0], boxes[..., 2] / stride[0], times)
    over_bins = interpolation_weights(boxes[..., 1] / stride[1], boxes[..., 3] / stride[1], bins)
    weights = (over_time[..., :, None] * over_bins[..., None, :]).flatten(-2)  # (B, R, time * frequency)
    cells = features.permute(0, 2, 3, 1).flatten(
        1, 2
    )  # (B, time * frequency, C); a view of a channels-last map
    return weights.to(cells.dtype) @ cells


def interpolation_weights(start: Tensor, end: Tensor, num_cells: int) -> Tensor:
    """(...) ends of a span in cells -> (..., num_cells): mean of linear interpolation at
    S samples (RoIAlign, aligned).
    """
    step = (end - start) / SAMPLES_PER_AXIS
    cells = torch.arange(num_cells, device=start.device)
    weights = torch.zeros((), device=start.device)
    # Added up one sample after the other: Triton 3.6 fails on Hopper over the same sum as a reduction of 14.
    for sample in range(SAMPLES_PER_AXIS):
        position = (start - 0.5 + (sample + 0.5) * step).clamp(0, num_cells - 1)  # in cell centres
        weights = weights + (1.0 - (position[..., None] - cells).abs()).clamp(min=0)
    return weights / SAMPLES_PER_AXIS


class ProjectionHead(nn.Module):
    """Region features -> unit vectors of 128 for the contrastive loss."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.hidden = nn.Linear(channels, channels)
        self.output = nn.Linear(channels, 128)

    def forward(self, regions: Tensor) -> Tensor:
        """(..., C) -> (..., 128) float32, unit length"""
        return unit_length(self.output(functional.relu(self.hidden(regions))))
