"""Pieces of what stands out, put together as an expert puts them: the energy detector with two small judges, which some of the
expert's chunks have taught within seconds (stages/train/pieces.py): which pieces belong to one call, and which groups of
them are a whole one. What the judges see are gaps, sizes and levels, nothing of how an animal sounds, so that they know animals
that the expert has not heard.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn

from mast_ray.boxes.pieces import (
    CANDIDATE_FEATURES,
    PAIR_FEATURES,
    Pieces,
    candidate_features,
    candidates_of,
    groups_of,
    pair_features,
    pairs_of,
    pieces_of,
)
from mast_ray.boxes.standing_out import smoothed
from mast_ray.models.baselines.on_host import Floats, HostDetector

HIDDEN = 64


class Judge(nn.Module):
    """(N, C) features -> (N,) logits"""

    mean: Tensor
    std: Tensor

    def __init__(self, num_features: int) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(num_features))
        self.register_buffer("std", torch.ones(num_features))
        self.layers = nn.Sequential(
            nn.Linear(num_features, HIDDEN), nn.SiLU(), nn.Linear(HIDDEN, HIDDEN), nn.SiLU(), nn.Linear(HIDDEN, 1)
        )  # fmt: skip

    def forward(self, features: Tensor) -> Tensor:
        logits: Tensor = self.layers((features - self.mean) / self.std)[:, 0]
        return logits

    @torch.no_grad()
    def says(self, features: Floats) -> Floats:
        """(N,) probabilities"""
        said: Floats = torch.sigmoid(self(torch.from_numpy(features).to(self.mean))).float().cpu().numpy()
        return said


class PiecesDetector(HostDetector):
    def __init__(self) -> None:
        super().__init__()
        self.same_call = Judge(PAIR_FEATURES)
        self.whole_call = Judge(CANDIDATE_FEATURES)

    def sounds(self, level_db: Floats) -> tuple[Floats, Floats]:
        boxes, features = candidates(self.same_call, pieces_of(smoothed(level_db)))
        return boxes, self.whole_call.says(features)


def candidates(same_call: Judge, pieces: Pieces) -> tuple[Floats, Floats]:
    """(C, 4) boxes that may be calls, and their features"""
    if not len(pieces.cells):
        return np.zeros((0, 4), np.float32), np.zeros((0, CANDIDATE_FEATURES), np.float32)
    pairs = pairs_of(pieces)
    groups = groups_of(pieces, pairs, same_call.says(pair_features(pieces, pairs)))
    found = candidates_of(pieces, groups)
    return found.boxes, candidate_features(pieces, groups, found)
