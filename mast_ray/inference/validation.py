"""Held-out scores during training: shared out over the workers, equal on every rank.

Masked error uses the same mask for a chunk in every evaluation; detection figures tune their threshold on these
chunks, which is right for validation and wrong everywhere else.
"""

from __future__ import annotations

import copy
import logging
import math
from typing import Any, Literal

import torch
from torch import Tensor, nn

from mast_ray.config.recipes import RECIPES
from mast_ray.config.tree import Config
from mast_ray.evaluation.metrics import summarise
from mast_ray.evaluation.score_sheet import chosen_threshold
from mast_ray.evaluation.scoring import Scored, score_chunks
from mast_ray.inference.chunk_detector import ChunkDetector, Inputs
from mast_ray.inference.chunk_scores import as_detected, found_in_chunks
from mast_ray.self_training.operator import doubted
from mast_ray.tables.prepared import Prepared
from mast_ray.tables.reading.reader import ChunkReader
from mast_ray.training.data.feed import batch_of
from mast_ray.training.engine import autocast
from mast_ray.training.files.model_files import Card
from mast_ray.training.worker import Worker

log = logging.getLogger("mast.training")

JUDGED_BY = ("iou", "nms_overlap", "score_floor", "max_detections", "post")  # knobs that change F1
FIGURES = (
    "threshold", "precision", "recall", "f1", "f1_macro", "ap_area", "mean_iou", "time_f1", "num_truth", "num_detections",
)  # fmt: skip


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
                total += self.objective(batch)["masked_error"].double() * len(raw)
            count += len(raw)
        parts = worker.gather((float(total), count))
        return {"masked_error": sum(part[0] for part in parts) / max(1, sum(part[1] for part in parts))}


class DetectionValidation:
    """Figures of detections on held-out chunks at the threshold tuned for F1 on them."""

    metric: str = "f1"
    better: Literal["lower", "higher"] = "higher"

    def __init__(
        self,
        detector: nn.Module,
        prepared: Prepared,
        reader: ChunkReader,
        inputs: Inputs,
        config: Config,
        own: Card | None = None,
    ) -> None:
        """`own`: of the detector that training began with; its threshold is kept where there is nothing to tune one on."""
        self.prepared, self.reader, self.config, self.own = prepared, reader, config, own
        self.network = copy.deepcopy(detector)
        batch_size = config.evaluate.batch_size
        self.detector = ChunkDetector(self.network, inputs, batch_size, as_detected(config))

    def measure(self, weights: dict[str, Tensor], worker: Worker) -> dict[str, float]:
        self.network.load_state_dict({k.removeprefix("detector."): v for k, v in weights.items()})
        self.network.eval()
        found = found_in_chunks(self.prepared, self.detector, self.reader, worker)
        scored = score_chunks(self.prepared, self.reader.chunks, found, self.config)
        figures = validation_figures(scored, self.own)
        if self.config.evaluate.post == "card" and figures["num_truth"]:
            scored = score_chunks(self.prepared, self.reader.chunks, doubted(found), self.config)
            figures = max(figures, validation_figures(scored, self.own, True), key=lambda one: one["f1"])
        if not figures["num_truth"] and worker.rank == 0:
            log.warning(
                "no call is in the %d chunks that weights and threshold are chosen on (threshold %.3f): label more recordings",
                len(self.reader), figures["threshold"],
            )  # fmt: skip
        return figures


def judged_by(config: Config) -> dict[str, Any]:
    """The knobs by which weights are compared, those that are not as in the recipe: of runs that began before they were
    asked for nothing is known.
    """
    usual = RECIPES[config.recipe]().evaluate
    found = {name: getattr(config.evaluate, name) for name in JUDGED_BY}
    return {f"evaluate.{name}": value for name, value in found.items() if value != getattr(usual, name)}


def validation_figures(
    scored: Scored, own: Card | None = None, doubts_nested: bool = False
) -> dict[str, float]:
    """F1 and its companions at the best threshold of these very chunks."""
    chosen = chosen_threshold(None, None, scored)
    threshold = chosen.value
    if chosen.source == "fallback" and own is not None and own.score_threshold is not None:
        threshold, doubts_nested = own.score_threshold, own.doubts_nested
    metrics = summarise(scored.matches, threshold, in_time=scored.in_time)
    values = {name: float(getattr(metrics, name)) for name in FIGURES}
    values["doubts_nested"] = float(doubts_nested)
    if not math.isfinite(values["f1"]):
        values["f1"] = 0.0  # neither truth nor detections: nothing to prefer
    return values
