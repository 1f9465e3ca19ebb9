"""Several detectors, or one that hears a chunk in several ways, as one detector: a better teacher than each of them.

Legend: B chunks, T frames, F bins, V hearings. The detector has learned calls of any height, length and width, so what it finds in one
hearing only is doubtful. Higher or lower: shifted by some mel bins, the edge repeated. Pressed in time or frequency, so that
very long and very wide calls come to a size that is better known: all of the chunk stays in it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from mast_ray.boxes.batch import Detections
from mast_ray.boxes.fusion import fused
from mast_ray.boxes.geometry import clip
from mast_ray.boxes.suppression import suppress
from mast_ray.models.detector import SUPPRESSION_STEPS
from mast_ray.spectrogram.stretching import zoomed

MOST_OF_A_HEARING = 128  # boxes of a chunk that a hearing brings in


class Hearing(NamedTuple):
    """One way to hear a chunk."""

    bins_up: int = 0
    time_factor: float = 1.0  # about the first frame
    frequency_factor: float = 1.0  # about the middle bin

    def heard(self, logmel: Tensor, silence: float) -> Tensor:
        """(B, 1, T, F) chunks as this hears them"""
        if self.bins_up:
            last = logmel.shape[-1] - 1
            source = (torch.arange(last + 1, device=logmel.device) - self.bins_up).clamp(0, last)
            logmel = logmel[..., source]
        if (self.time_factor, self.frequency_factor) == (1.0, 1.0):
            return logmel
        factors, about = (
            torch.tensor(pair, device=logmel.device).expand(len(logmel), 2)
            for pair in ((self.time_factor, self.frequency_factor), (0.0, logmel.shape[-1] / 2))
        )
        return zoomed(logmel[:, 0], factors, about, silence)[:, None]

    def taken_back(self, found: Detections, num_frames: int, num_bins: int) -> Detections:
        """Boxes in the chunk itself; what leaves the band is no detection."""
        if self == Hearing():
            return found
        options = {"device": found.corners.device, "dtype": torch.float32}
        about = torch.tensor([0.0, num_bins / 2, 0.0, num_bins / 2], **options)
        factors = torch.tensor([self.time_factor, self.frequency_factor] * 2, **options)
        up = torch.tensor([0.0, self.bins_up, 0.0, self.bins_up], **options)
        corners = clip((found.corners.float() - about) / factors + about - up, num_frames, num_bins)
        is_valid = found.is_valid & (corners[..., 3] > corners[..., 1]) & (corners[..., 2] > corners[..., 0])
        return Detections(
            torch.where(is_valid[..., None], corners, 0.0), torch.where(is_valid, found.score, 0.0), is_valid
        )


PRESSED = 0.7
HEARINGS = (
    Hearing(),
    Hearing(6),
    Hearing(-6),
    Hearing(0, PRESSED, 1.0),
    Hearing(0, 1.0, PRESSED),
    Hearing(0, PRESSED, PRESSED),
)


class Committee(nn.Module):
    """`detect` like any detector; every member hears a chunk in every way, and hearings are fused.

    `scales`: gain and shift that make of the committee's values those that a member was trained on.
    """

    def __init__(
        self,
        members: Sequence[nn.Module],
        num_hearings: int = 1,
        silence: float = 0.0,
        scales: Sequence[tuple[float, float]] = (),
    ) -> None:
        super().__init__()
        self.members, self.hearings, self.silence = nn.ModuleList(members), HEARINGS[:num_hearings], silence
        self.scales = tuple(scales) or ((1.0, 0.0),) * len(members)

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
        hearings: list[Detections] = []
        for place, hearing in enumerate(self.hearings):
            chunk = hearing.heard(logmel, self.silence)
            end = None if end_frames is None else end_frames * hearing.time_factor
            for number, (member, (gain, shift)) in enumerate(zip(self.members, self.scales, strict=True)):
                detector: Any = member
                # what hears the same in every way counts as often as the others
                if place and getattr(detector, "hears_once", False):
                    hearings.append(hearings[number])
                    continue
                own = chunk if (gain, shift) == (1.0, 0.0) else chunk * gain + shift
                found = detector.detect(own, score_floor, nms_overlap, most, end_frames=end)
                hearings.append(hearing.taken_back(found, *logmel.shape[-2:]))
        together = fused(hearings)
        together = replace(together, is_valid=together.is_valid & (together.score >= score_floor))
        on_host = logmel.device.type == "cpu" and not torch.compiler.is_compiling()
        return suppress(together, nms_overlap, max_detections, None if on_host else SUPPRESSION_STEPS)
