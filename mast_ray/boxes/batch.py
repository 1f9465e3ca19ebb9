"""What a model is handed and what it hands back, padded to rectangular tensors.

Legend: B chunks, M box slots per chunk, K detection slots per chunk, T frames, F bins.
Boxes are (t0, f0, t1, f1), half-open, in frames and bins.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

EVEN_WEIGHT = 0.5  # of classification and centerness in a score


@dataclass(frozen=True)
class PaddedBoxes:
    """Boxes of B chunks in M slots; a slot is an object, an ignore region, or empty (both flags false).

    Both flags true is a call that is known in time only: its box spans the whole band, its frequency sides teach
    nothing, and whatever else lies in its time is neither object nor background.
    """

    corners: Tensor  # (B, M, 4) float32; zeros in empty slots
    is_object: Tensor  # (B, M) bool
    is_ignored: Tensor  # (B, M) bool: neither object nor background

    @property
    def has_band(self) -> Tensor:
        """(B, M) whether a slot is an object with known frequencies."""
        return self.is_object & ~self.is_ignored

    @property
    def is_time_only(self) -> Tensor:
        """(B, M) whether a slot is a call that is known in time only."""
        return self.is_object & self.is_ignored

    def to(self, device: torch.device | str) -> PaddedBoxes:
        move = lambda tensor: tensor.to(device, non_blocking=True)  # noqa: E731
        return PaddedBoxes(move(self.corners), move(self.is_object), move(self.is_ignored))


@dataclass(frozen=True)
class ChunkBatch:
    """Normalised chunks with their boxes, as every detector and baseline takes them."""

    logmel: Tensor  # (B, 1, T, F) float, normalised
    boxes: PaddedBoxes
    weight: Tensor  # (B,) float32: weight of the detection loss of each chunk
    chunk_ids: tuple[str, ...] = ()
    is_pseudo: Tensor | None = None  # (B,) bool: boxes by a model, not by an expert; None: all by experts

    def to(self, device: torch.device | str) -> ChunkBatch:
        return replace(
            self,
            logmel=self.logmel.to(device, non_blocking=True),
            boxes=self.boxes.to(device),
            weight=self.weight.to(device, non_blocking=True),
            is_pseudo=None if self.is_pseudo is None else self.is_pseudo.to(device, non_blocking=True),
        )


@dataclass(frozen=True)
class Detections:
    """Scored boxes of B chunks in K slots, best first; `is_valid` false marks unused slots."""

    corners: Tensor  # (B, K, 4) float32
    score: Tensor  # (B, K) float32 in [0, 1]; 0 in unused slots
    is_valid: Tensor  # (B, K) bool
    parts: Tensor | None = None  # (B, K, 2) classification and centerness, where they were asked for


def pad_boxes(
    boxes: Sequence[Tensor], ignored: Sequence[Tensor] | None = None, slot_multiple: int = 8
) -> PaddedBoxes:
    """Pack one (N_i, 4) tensor per chunk (and optionally ignore regions) into rectangular tensors.

    The slot count is rounded up to `slot_multiple`, so that compiled code sees few shapes.
    """
    ignored = ignored if ignored is not None else [boxes[0].new_zeros((0, 4)) for _ in boxes]
    most = max((len(b) + len(i) for b, i in zip(boxes, ignored, strict=True)), default=0)
    slots = max(slot_multiple, -(-most // slot_multiple) * slot_multiple)
    corners = torch.zeros((len(boxes), slots, 4), dtype=torch.float32)
    is_object = torch.zeros((len(boxes), slots), dtype=torch.bool)
    is_ignored = torch.zeros((len(boxes), slots), dtype=torch.bool)
    for row, (objects, regions) in enumerate(zip(boxes, ignored, strict=True)):
        num_objects, num_regions = len(objects), len(regions)
        corners[row, :num_objects] = objects
        corners[row, num_objects : num_objects + num_regions] = regions
        is_object[row, :num_objects] = True
        is_ignored[row, num_objects : num_objects + num_regions] = True
    return PaddedBoxes(corners, is_object, is_ignored)
