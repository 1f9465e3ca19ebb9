"""The moving average of the student's weights as its teacher: it labels the pseudo-labelled chunks of a batch on the
device, before they are augmented for the student.

Legend: B chunks, K detection slots. Boxes scored at or above a chunk's upper threshold are objects, those between its
two thresholds are ignored, the rest is background. The number of slots is fixed and nothing is read back to the host.
The teacher's parameters are the engine's averages themselves, so a checkpoint that holds the average holds the teacher.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from mast_ray.boxes.batch import ChunkBatch, Detections, PaddedBoxes
from mast_ray.boxes.nesting import with_doubt
from mast_ray.boxes.validity import is_valid_box
from mast_ray.spectrogram.grid import end_of_sound
from mast_ray.tables.reading.reader import RawChunks
from mast_ray.training.data.feed import with_slots
from mast_ray.training.engine import Precision, autocast
from mast_ray.training.step_graph import InferenceGraphs


@dataclass(frozen=True)
class TeacherSettings:
    """What makes a detection a pseudo-box."""

    score_floor: float = 0.01
    nms_overlap: float = 0.5
    max_boxes: int = 64
    shortest_frames: float = 10.0
    lowest_bins: float = 2.0
    empty_weight: float = 0.0  # of a chunk without pseudo-boxes; 0: it teaches nothing
    every_steps: int = 1
    doubts_nested: bool = False  # boxes within better ones (boxes/nesting.py)
    has_band: bool = True  # of ignored boxes; False: what is no object is background


def banded(
    found: Detections, high: Tensor, low: Tensor, settings: TeacherSettings, num_frames: float
) -> tuple[PaddedBoxes, Tensor]:
    """Detections of B chunks and their (B,) thresholds -> boxes, and the (B,) mean score of those that are objects.

    A detection above the upper threshold that is no valid pseudo-box is ignored too, as in stored labels, also where a
    site's upper threshold has come down to the lower one.
    """
    high, low = high[:, None], low[:, None]
    is_valid = is_valid_box(found.corners, num_frames, settings.shortest_frames, settings.lowest_bins)
    is_object = found.is_valid & is_valid & (found.score >= high)
    is_ignored = found.is_valid & (found.score >= low) & ~is_object & settings.has_band
    corners = found.corners.float() * (is_object | is_ignored)[..., None]
    count = is_object.sum(1)
    mean_score = (found.score * is_object).sum(1) / count.clamp(min=1)
    return PaddedBoxes(corners, is_object, is_ignored), torch.where(
        count > 0, mean_score, torch.full_like(mean_score, settings.empty_weight)
    )


class OnlineTeacher:
    """Labels chunks behind the experts' in a batch. Called with the batch as read, before weights are normalised."""

    def __init__(
        self,
        detector: nn.Module,
        averages: Mapping[str, Tensor],
        settings: TeacherSettings,
        precision: Precision,
        *,
        recorded: bool = False,
    ) -> None:
        self.settings, self.precision = settings, precision
        self.detector = sharing(detector, averages)
        self._infer: Callable[[Tensor, Tensor], Detections] = self._detect
        if (
            recorded
        ):  # some hundred small kernels a batch: launched one by one they take longer than the student's step
            self._infer = InferenceGraphs(self._detect)

    @torch.no_grad()  # not inference_mode: cached grids must stay usable in training
    def __call__(self, batch: ChunkBatch, raw: RawChunks, step: int) -> ChunkBatch:
        if step % self.settings.every_steps:
            return batch
        assert raw.num_expert is not None, "which chunks are pseudo-labelled must be known on the host"
        first, chunks = raw.num_expert, batch.logmel[raw.num_expert :]
        found = self._infer(chunks, end_of_sound(raw.valid_frames[first:]))
        made, weight = banded(
            found, raw.limits[first:, 0], raw.limits[first:, 1], self.settings, float(chunks.shape[2])
        )
        slots = max(batch.boxes.is_object.shape[1], made.is_object.shape[1])
        own, made = with_slots(batch.boxes, slots), with_slots(made, slots)
        boxes = PaddedBoxes(
            *(
                torch.cat([getattr(own, name)[:first], getattr(made, name)])
                for name in ("corners", "is_object", "is_ignored")
            )
        )
        return replace(batch, boxes=boxes, weight=torch.cat([batch.weight[:first], weight.to(batch.weight)]))

    def _detect(self, logmel: Tensor, end_frames: Tensor) -> Detections:
        settings, detector = self.settings, self.detector
        with autocast(logmel.device, self.precision):
            found = detector.detect(  # type: ignore[operator]
                logmel,
                settings.score_floor,
                settings.nms_overlap,
                settings.max_boxes,
                end_frames=end_frames,
            )
        return with_doubt(found) if settings.doubts_nested else found


def sharing(detector: nn.Module, averages: Mapping[str, Tensor]) -> Any:
    """A copy of a detector in evaluation mode whose parameters and running statistics are the given tensors
    themselves; what is not averaged is shared with the detector.
    """
    twin = copy.deepcopy(detector).eval().requires_grad_(False)
    own = dict(detector.named_parameters())
    for name, parameter in twin.named_parameters():
        parameter.data = averages[name] if name in averages else own[name].data
    for prefix, module in twin.named_modules():
        source = detector.get_submodule(prefix)
        for name, buffer in source._buffers.items():
            module._buffers[name] = averages.get(f"{prefix}.{name}" if prefix else name, buffer)
    return twin
