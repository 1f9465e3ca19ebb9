"""Held-out scores during training, and detections of a whole split: shared out over
the workers, equal on every rank.

Legend: N chunks. Masked error uses the same mask for a chunk in every evaluation; detection metrics tune
their threshold on these chunks, which is right for validation and wrong everywhere else.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from mast_ray.config.tree import EvaluateConfig
from mast_ray.evaluation.matching import Matches
from mast_ray.evaluation.metrics import best_threshold, match_chunks, summarise
from mast_ray.models.build import Detector
from mast_ray.spectrogram.chunking import Tail
from mast_ray.spectrogram.normalisation import Normalisation
from mast_ray.tables.reading.chunk_sets import BoxTable
from mast_ray.tables.reading.reader import ChunkReader, RawChunks
from mast_ray.training.data.feed import batch_of
from mast_ray.training.engine import Precision, autocast
from mast_ray.training.worker import Worker


@dataclass(frozen=True)
class Inputs:
    """How stored chunks become a model's input."""

    normalisation: Normalisation
    tail: Tail
    device: torch.device
    precision: Precision = "fp32"


@dataclass(frozen=True, eq=False)
class SplitDetections:
    """Detections and truth of N chunks, in the order of the reader; boxes in frames and bins of the chunk."""

    chunk_ids: tuple[str, ...]
    truth: tuple[NDArray[np.float64], ...]  # (K, 4); time-only labels have NaN for both frequencies
    boxes: tuple[NDArray[np.float64], ...]
    score: tuple[NDArray[np.float64], ...]

    def matches(self, iou: float = 0.5) -> Matches:
        return match_chunks(self.truth, list(zip(self.boxes, self.score, strict=True)), iou)


class MaskedErrorValidation:
    """Mean squared error on masked patches of held-out chunks."""

    metric: str = "masked_error"
    better: Literal["lower", "higher"] = "lower"

    def __init__(self, objective: nn.Module, reader: ChunkReader, inputs: Inputs, batch_size: int) -> None:
        self.objective, self.reader, self.inputs, self.batch_size = (
            copy.deepcopy(objective),
            reader,
            inputs,
            batch_size,
        )

    @torch.no_grad()  # not inference_mode: cached grids must stay usable in training
    def measure(self, weights: dict[str, Tensor], worker: Worker) -> dict[str, float]:
        self.objective.load_state_dict(weights)
        self.objective.to(self.inputs.device).eval()
        total, count = torch.zeros((), dtype=torch.float64, device=self.inputs.device), 0
        for raw in self.reader.sequential(worker.rank, worker.world_size, self.batch_size):
            batch = batch_of(raw.to(self.inputs.device), self.inputs.normalisation, self.inputs.tail)
            with autocast(self.inputs.device, self.inputs.precision):
                total += self.objective(batch)["loss"].double() * len(raw)
            count += len(raw)
        parts = worker.gather((float(total), count))
        return {"masked_error": sum(part[0] for part in parts) / max(1, sum(part[1] for part in parts))}


class DetectionValidation:
    """Metrics of detections on held-out chunks at the threshold of highest F1."""

    metric: str = "f1"
    better: Literal["lower", "higher"] = "higher"

    def __init__(
        self, detector: nn.Module, reader: ChunkReader, inputs: Inputs, knobs: EvaluateConfig
    ) -> None:
        self.detector, self.reader, self.inputs, self.knobs = copy.deepcopy(detector), reader, inputs, knobs

    def measure(self, weights: dict[str, Tensor], worker: Worker) -> dict[str, float]:
        self.detector.load_state_dict({k.removeprefix("detector."): v for k, v in weights.items()})
        self.detector.to(self.inputs.device).eval()
        found = detect_split(self.detector, self.reader, self.inputs, self.knobs, worker)
        return validation_metrics(found, self.knobs.iou)


def validation_metrics(found: SplitDetections, iou: float = 0.5) -> dict[str, float]:
    """F1 and its companions at the best threshold of these very chunks."""
    matches = found.matches(iou)
    tuned = best_threshold(matches)
    metrics = summarise(matches, tuned if math.isfinite(tuned) else 1.0)
    names = (
        "threshold",
        "precision",
        "recall",
        "f1",
        "f1_macro",
        "ap_area",
        "mean_iou",
        "num_truth",
        "num_detections",
    )
    values = {name: float(getattr(metrics, name)) for name in names}
    if not math.isfinite(values["f1"]):
        values["f1"] = 0.0  # neither truth nor detections: nothing to prefer
    return values


def detect_split(
    detector: Detector | nn.Module,
    reader: ChunkReader,
    inputs: Inputs,
    knobs: EvaluateConfig,
    worker: Worker | None = None,
) -> SplitDetections:
    """Detections of every chunk of a reader above the score floor. With a worker, all ranks
    share the work and get the whole.
    """
    rank, world_size = (worker.rank, worker.world_size) if worker is not None else (0, 1)
    ids: list[str] = []
    boxes: list[NDArray[np.float64]] = []
    score: list[NDArray[np.float64]] = []
    for raw, corners, scores, counts in _detected(detector, reader, inputs, knobs, rank, world_size):
        ids.extend(raw.chunk_ids)
        split = np.cumsum(counts)[:-1]
        boxes.extend(np.split(corners, split))
        score.extend(np.split(scores, split))
    if worker is not None and world_size > 1:
        parts = worker.gather((ids, boxes, score))
        ids, boxes, score = ([item for part in parts for item in part[i]] for i in range(3))
    return SplitDetections(tuple(ids), truth_of(reader.boxes), tuple(boxes), tuple(score))


def truth_of(boxes: BoxTable) -> tuple[NDArray[np.float64], ...]:
    """Truth boxes per chunk; those of time-only labels with NaN frequencies, as the matcher wants them."""
    corners = boxes.corners.astype(np.float64)
    corners[boxes.is_time_only, 1] = corners[boxes.is_time_only, 3] = np.nan
    return tuple(np.split(corners, boxes.start[1:-1]))


@torch.no_grad()  # not inference_mode: cached grids must stay usable in training
def _detected(
    detector: Detector | nn.Module,
    reader: ChunkReader,
    inputs: Inputs,
    knobs: EvaluateConfig,
    rank: int,
    world_size: int,
) -> Iterator[tuple[RawChunks, NDArray[np.float64], NDArray[np.float64], NDArray[np.int64]]]:
    """Batches with (K, 4) boxes, (K,) scores and (B,) counts."""
    for raw in reader.sequential(rank, world_size, knobs.batch_size):
        moved = raw.to(inputs.device)
        logmel = batch_of(moved, inputs.normalisation, inputs.tail).logmel
        with autocast(inputs.device, inputs.precision):
            found = detector.detect(logmel, knobs.score_floor, knobs.nms_overlap, knobs.max_detections)
        valid = found.is_valid.cpu().numpy()
        corners = found.corners.double().cpu().numpy()[valid]
        yield raw, corners, found.score.double().cpu().numpy()[valid], valid.sum(axis=1)
