"""The detector without weights: boxes around what stands out of the background, scored by how much it does.

What a biologist has today (an energy detector), and a teacher that needs no labels: `mast self-train PREPARED --detector
shipped:energy --set self_train.student=fresh`. Its few settings are its weights.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from mast_ray.boxes.standing_out import StandOut, standing_out
from mast_ray.models.baselines.on_host import Floats, HostDetector

MIDDLE_DB, SPREAD_DB = 15.0, 5.0  # a peak of 15 dB has a score of 0.5, one of 20 dB 0.73


class EnergyDetector(HostDetector):
    settings: Tensor  # (3,) level in decibels, gaps in frames and bins

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("settings", torch.tensor([float(value) for value in StandOut()]))

    def sounds(self, level_db: Floats) -> tuple[Floats, Floats]:
        level, frames, bins = self.settings.tolist()
        boxes, peak = standing_out(level_db, StandOut(level, round(frames), round(bins)))
        return boxes, (1.0 / (1.0 + np.exp((MIDDLE_DB - peak) / SPREAD_DB))).astype(np.float32)
