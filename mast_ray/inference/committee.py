"""Several detectors, or one that hears a chunk in several pitches, as one detector: a better teacher than each of them.

Legend: B chunks, T frames, F bins. A pitch is a shift by some mel bins, the edge repeated: the detector has learned calls at any
height, so what it finds at one height only is doubtful.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from mast_ray.boxes.batch import Detections
from mast_ray.boxes.fusion import fused
from mast_ray.boxes.geometry import clip
from mast_ray.boxes.suppression import suppress
from mast_ray.models.detector import SUPPRESSION_STEPS

PITCHES_BINS = (0, 6, -6, 3, -3, 9, -9)
MOST_OF_A_HEARING = 128  # boxes of a chunk that a hearing brings in


def pitched(logmel: Tensor, bins: int) -> Tensor:
    """(B, 1, T, F) higher by so many bins (lower by negative ones), its edge repeated."""
    if not bins:
        return logmel
    source = (torch.arange(logmel.shape[-1], device=logmel.device) - bins).clamp(0, logmel.shape[-1] - 1)
    return logmel[..., source]


class Committee(nn.Module):
    """`detect` like any detector; every member hears a chunk at every pitch, and hearings are fused."""

    def __init__(self, members: Sequence[nn.Module], num_pitches: int = 1) -> None:
        super().__init__()
        self.members, self.pitches = nn.ModuleList(members), PITCHES_BINS[:num_pitches]

    def detect(
        self,
        logmel: Tensor,
        score_floor: float = 0.01,
        nms_overlap: float = 0.5,
        max_detections: int = 300,
        end_frames: Tensor | None = None,
    ) -> Detections:
        """Boxes of (B, 1, T, F) chunks; a score is the mean of the hearings'."""
        most = min(max_detections, MOST_OF_A_HEARING)
        hearings = []
        for bins in self.pitches:
            chunk = pitched(logmel, bins)
            for member in self.members:
                detector: Any = member
                found = detector.detect(chunk, score_floor, nms_overlap, most, end_frames=end_frames)
                hearings.append(_at_pitch(found, -bins, *logmel.shape[-2:]))
        together = fused(hearings)
        together = replace(together, is_valid=together.is_valid & (together.score >= score_floor))
        on_host = logmel.device.type == "cpu" and not torch.compiler.is_compiling()
        return suppress(together, nms_overlap, max_detections, None if on_host else SUPPRESSION_STEPS)


def _at_pitch(found: Detections, bins: int, num_frames: int, num_bins: int) -> Detections:
    """Boxes as far up as a chunk was moved down; what leaves the band is no detection."""
    if not bins:
        return found
    moved = found.corners.float() + torch.tensor([0.0, bins, 0.0, bins], device=found.corners.device)
    moved = clip(moved, num_frames, num_bins)
    has_height = moved[..., 3] > moved[..., 1]
    is_valid = found.is_valid & has_height
    return Detections(
        torch.where(is_valid[..., None], moved, 0.0), torch.where(is_valid, found.score, 0.0), is_valid
    )
