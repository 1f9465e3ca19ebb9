"""FCOS head shared by all levels: a score, a centerness and four distances per
point (docs/method.md).

Legend: B chunks, P points over all levels (finest first, time-major). Distances are in strides of each
axis, as in boxes/points.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from mast_ray.models.convolutions import ConvNormAct, FewChannelsConvolution

PRIOR_SCORE = 0.01
# A chunk is 128 strides long at the finest level; more is never right, and exp() must not overflow.
_LARGEST_LOG_DISTANCE = math.log(256.0)


class FcosHead(nn.Module):
    """Two towers of 3 x 3 convolutions with group norm, and a learned scale of the distances per level."""

    def __init__(self, channels: int, num_levels: int, tower_depth: int) -> None:
        super().__init__()
        self.score_tower = nn.Sequential(*(ConvNormAct(channels, channels) for _ in range(tower_depth)))
        self.box_tower = nn.Sequential(*(ConvNormAct(channels, channels) for _ in range(tower_depth)))
        self.score = FewChannelsConvolution(channels, 1, 3, padding=1)
        self.box = FewChannelsConvolution(channels, 5, 3, padding=1)  # four log distances, centerness
        self.scale = nn.Parameter(torch.ones(num_levels))
        for part in self.modules():
            if isinstance(part, nn.Conv2d):
                nn.init.normal_(part.weight, std=0.01)
        nn.init.constant_(self.score.bias, -math.log((1 - PRIOR_SCORE) / PRIOR_SCORE))
        # Boxes start 8 strides long, the size of the anchors that ATSS assigns by.
        nn.init.constant_(self.box.bias, math.log(4.0))
        nn.init.zeros_(self.box.bias[4:])

    def forward(self, maps: list[Tensor]) -> tuple[Tensor, Tensor, Tensor]:
        """One map per level -> score logit (B, P), centerness logit (B, P),
        distances (B, P, 4), all float32
        """
        scores, boxes = [], []
        for index, features in enumerate(maps):
            scores.append(self.score(self.score_tower(features)).flatten(1).float())
            box = self.box(self.box_tower(features)).flatten(2).transpose(1, 2).float()  # (B, P_l, 5)
            boxes.append(torch.cat([box[..., :4] * self.scale[index].float(), box[..., 4:]], dim=-1))
        joined = torch.cat(boxes, dim=1)
        distances = joined[..., :4].clamp(max=_LARGEST_LOG_DISTANCE).exp()
        return torch.cat(scores, dim=1), joined[..., 4], distances
