"""What a training will not learn, said before it begins: boxes that no point learns, and an encoder that stays as it was drawn."""

from __future__ import annotations

import logging

import numpy as np
import torch
from torch import nn

from mast_ray.boxes.assignment import is_learned
from mast_ray.config.stage_knobs import DetectorTrainConfig
from mast_ray.config.tree import ModelConfig
from mast_ray.tables.reading.reader import ChunkReader
from mast_ray.training.assembly import groups_of
from mast_ray.training.engine import Objective
from mast_ray.training.objectives import DetectionObjective

log = logging.getLogger("mast.training")

MOST_BOXES_LOOKED_AT = 4096  # a share is wanted, not a list
WORTH_SAYING = 0.01


def durations_of(reader: ChunkReader) -> np.ndarray:
    """(N,) frames of every labelled box, as cut by the chunks."""
    corners = reader.boxes.corners[reader.boxes.teaches]
    return corners[:, 2] - corners[:, 0]


def warn_of_unlearned_boxes(objective: nn.Module, reader: ChunkReader) -> None:
    """Say it when many boxes lie between the points of the pyramid: they are
    kept, and yet nothing learns them.
    """
    if not isinstance(objective, DetectionObjective):
        return
    corners = torch.from_numpy(reader.boxes.corners[reader.boxes.teaches])
    corners = corners[:: max(1, len(corners) // MOST_BOXES_LOOKED_AT)]
    levels = objective.detector.levels
    lost = float((~is_learned(corners, levels, objective.assignment)).float().mean()) if len(corners) else 0.0
    if lost >= WORTH_SAYING:
        log.warning(
            "%.0f %% of the boxes are so short or narrow that no point of the pyramid (every %d frames and %d bins) lies inside: "
            "no point learns them, and they count neither as call nor as background; "
            "a network of your own looks closer: --start scratch --set model.adapter=hybrid --set model.finest_level=auto",
            100 * lost,
            *levels[0].stride,
        )


def warn_of_random_encoder(
    objective: Objective, knobs: DetectorTrainConfig, model: ModelConfig, section: str
) -> None:
    """Say it when a training from nothing leaves a part of its encoder as it was drawn: what is kept frozen is meant to be
    pretrained.
    """
    trained = {name for group in groups_of(objective, knobs, model) for name in group.names}
    sizes = {name: value.numel() for name, value in objective.named_parameters() if value.requires_grad}
    frozen = sum(size for name, size in sizes.items() if "encoder." in name and name not in trained)
    if frozen:
        log.warning(
            "nothing is pretrained, and %.1f M weights of the encoder stay as they were drawn (%s.unfrozen_blocks=%d): "
            "start from something (--encoder, --start), or train all of it, "
            "--set %s.unfrozen_blocks=99 --set %s.backbone_multiplier=1",
            frozen / 1e6,
            section,
            knobs.unfrozen_blocks,
            section,
            section,
        )
