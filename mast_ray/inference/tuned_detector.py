"""A detector with the post-processing of its card: the same boxes wherever the model is used.

As the search did it: candidates at a low floor, scores weighed anew, suppression among those, then what is long and high
enough. What reaches from one border of a chunk to the other stays: it may be the middle of a long call, for stitching to join.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from mast_ray.boxes.batch import EVEN_WEIGHT, Detections
from mast_ray.boxes.nesting import with_doubt
from mast_ray.boxes.suppression import suppress
from mast_ray.boxes.validity import is_valid_box
from mast_ray.config.tree import EvaluateConfig
from mast_ray.models.detector import NUM_CANDIDATES, SUPPRESSION_STEPS
from mast_ray.training.files.model_files import Card
from mast_ray.training.files.post_processing import PostProcessing


class TunedDetector(nn.Module):
    """`detect` like any detector; the suppression that is asked for gives way to the card's."""

    def __init__(self, detector: nn.Module, post: PostProcessing) -> None:
        super().__init__()
        self.detector, self.post = detector, post
        if hasattr(detector, "embed_boxes"):
            self.embed_boxes: Any = detector.embed_boxes

    def detect(
        self,
        logmel: Tensor,
        score_floor: float = 0.01,
        nms_overlap: float = 0.5,
        max_detections: int = 300,
        with_parts: bool = False,
        end_frames: Tensor | None = None,
    ) -> Detections:
        """Boxes of (B, 1, T, F) chunks."""
        post = self.post
        if post.score_weight == EVEN_WEIGHT:
            more = {"with_parts": True} if with_parts else {}
            kept = self.detector.detect(  # type: ignore[operator]
                logmel, score_floor, post.nms_overlap, max_detections, end_frames=end_frames, **more
            )
        else:
            kept = self._weighed(logmel, score_floor, max_detections, end_frames)
        kept = with_doubt(kept) if post.doubts_nested else kept
        is_valid = kept.is_valid & is_valid_box(kept.corners, math.inf, post.min_frames, post.min_bins)
        return replace(kept, score=torch.where(is_valid, kept.score, 0.0), is_valid=is_valid)

    def _weighed(
        self, logmel: Tensor, score_floor: float, max_detections: int, end_frames: Tensor | None
    ) -> Detections:
        """With scores of another weight: all candidates are asked for, and suppressed by these."""
        most = max(NUM_CANDIDATES, max_detections)
        found: Detections = self.detector.detect(  # type: ignore[operator]
            logmel, score_floor, 1.0, most, with_parts=True, end_frames=end_frames
        )
        assert found.parts is not None, "a weight is searched only where scores have parts"
        classification, centerness = found.parts.float().unbind(-1)
        weight = self.post.score_weight
        score = classification**weight * centerness ** (1 - weight)
        found = replace(found, score=torch.where(found.is_valid, score, 0.0))
        on_host = logmel.device.type == "cpu" and not torch.compiler.is_compiling()
        return suppress(found, self.post.nms_overlap, max_detections, None if on_host else SUPPRESSION_STEPS)


def delivered_post(card: Card, knobs: EvaluateConfig) -> PostProcessing | None:
    """The post-processing of a card, where it is wanted and there is one."""
    if knobs.post == "none" or card.post is None:
        return None
    return PostProcessing.from_dict(card.post)


def is_doubted(card: Card, knobs: EvaluateConfig) -> bool:
    """Whether a model's boxes within better ones are doubted, however they are made."""
    return card.doubts_nested and knobs.post == "card"


def doubts_nested(card: Card, knobs: EvaluateConfig) -> bool:
    """Whether that is still to be done to what a model gives: post-processing does it itself."""
    return is_doubted(card, knobs) and card.post is None


class DoubtingDetector(nn.Module):
    """`detect` like any detector, with doubt about boxes within better ones."""

    def __init__(self, detector: nn.Module) -> None:
        super().__init__()
        self.detector = detector
        if hasattr(detector, "embed_boxes"):
            self.embed_boxes: Any = detector.embed_boxes

    def detect(self, *args: Any, **more: Any) -> Detections:
        """Boxes of (B, 1, T, F) chunks."""
        return with_doubt(self.detector.detect(*args, **more))  # type: ignore[operator]


def as_delivered(detector: nn.Module, card: Card, knobs: EvaluateConfig) -> nn.Module:
    """The detector as it is to be used."""
    post = delivered_post(card, knobs)
    if post is not None:
        return TunedDetector(detector, post)
    return DoubtingDetector(detector) if doubts_nested(card, knobs) else detector
