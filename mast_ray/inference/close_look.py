"""A second look at short calls: each half of a chunk stretched twofold in time, through the same detector.

Legend: B chunks, K detection slots, T frames, F bins. A click of 50 ms is less than a cell of the finest level; stretched, it is as long
as what the detector has learned to find (augmentation stretches by as much). Only short boxes are taken from there, and
none that the cut has reached: everything else is seen better in the whole chunk. Three times the work of one look.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from mast_ray.boxes.batch import Detections
from mast_ray.boxes.suppression import suppress
from mast_ray.models.detector import SUPPRESSION_STEPS, PointDetector
from mast_ray.spectrogram.stretching import zoomed

FACTOR = 2.0
SHORT_FRAMES = 10.0  # calls under 0.1 s
CUT_FRAMES = 3.0  # from the middle of the chunk, where a half is cut off


class CloseLook(nn.Module):
    """`detect` like any detector."""

    def __init__(self, detector: nn.Module, silence: float) -> None:
        super().__init__()
        self.detector, self.silence = detector, silence
        if hasattr(detector, "embed_boxes"):
            self.embed_boxes: Any = detector.embed_boxes

    def detect(
        self,
        logmel: Tensor,
        score_floor: float = 0.01,
        nms_overlap: float = 0.5,
        max_detections: int = 300,
        end_frames: Tensor | None = None,
        **more: Any,
    ) -> Detections:
        """Boxes of (B, 1, T, F) chunks; short ones as the better of both looks has them."""
        wanted = (score_floor, nms_overlap, max_detections)
        detector: Any = self.detector
        looks = [detector.detect(logmel, *wanted, end_frames=end_frames, **more)]
        num_frames, num_bins = logmel.shape[-2:]
        for first in (0.0, num_frames / 2):
            # the half that begins there comes to fill the chunk
            fixed = 0.0 if first == 0.0 else float(num_frames)
            factors, about = (
                torch.tensor(pair, device=logmel.device).expand(len(logmel), 2)
                for pair in ((FACTOR, 1.0), (fixed, num_bins / 2))
            )
            half = zoomed(logmel[:, 0], factors, about, self.silence)[:, None]
            end = None if end_frames is None else ((end_frames - first) * FACTOR).clamp(0, num_frames)
            looks.append(_short(detector.detect(half, *wanted, end_frames=end, **more), fixed, num_frames))
        every = _joined(looks)
        on_host = logmel.device.type == "cpu" and not torch.compiler.is_compiling()
        return suppress(every, nms_overlap, max_detections, None if on_host else SUPPRESSION_STEPS)


def _short(found: Detections, fixed: float, num_frames: int) -> Detections:
    """Short boxes of a half, as they lie in the chunk."""
    corners = found.corners.float()
    t0, t1 = ((corners[..., side] - fixed) / FACTOR + fixed for side in (0, 2))
    middle = num_frames / 2
    is_cut = (t0 - middle).abs().minimum((t1 - middle).abs()) < CUT_FRAMES
    is_valid = found.is_valid & (t1 - t0 < SHORT_FRAMES) & ~is_cut
    corners = torch.stack((t0, corners[..., 1], t1, corners[..., 3]), dim=-1)
    return replace(
        found,
        corners=torch.where(is_valid[..., None], corners, 0.0),
        score=torch.where(is_valid, found.score, 0.0),
        is_valid=is_valid,
    )


def _joined(looks: list[Detections]) -> Detections:
    parts = [look.parts for look in looks if look.parts is not None]
    corners, score, is_valid = (
        torch.cat([getattr(look, name) for look in looks], dim=1) for name in ("corners", "score", "is_valid")
    )
    return Detections(corners.float(), score, is_valid, torch.cat(parts, dim=1) if parts else None)


def looking(detector: nn.Module, is_close: bool, silence: float) -> nn.Module:
    """The detector, looking twice where that is wanted; one without a network sees no more in the stretched."""
    if not is_close or getattr(detector, "hears_once", False):
        return detector
    return CloseLook(detector, silence)


def has_parts(detector: Any) -> bool:
    """Whether scores can be given with their parts."""
    return isinstance(detector.detector if isinstance(detector, CloseLook) else detector, PointDetector)
