"""Which weights of a run are the best so far: scored at once by the workers themselves, or beside the training.

Inline, all workers stop training until the figures are there. Beside, averaged weights are put where the best ones are kept
and training goes on; somebody else (a `Beside`) reads and scores them, and figures are taken up in the order of their
steps whenever they arrive. Weights that wait for figures are named in the checkpoints: a run that was killed has them
scored when it goes on. Either way the same weights get the same figures, and the same ones are chosen in the end.
"""

from __future__ import annotations

import logging
import math
from dataclasses import dataclass, field, replace
from typing import Literal, Protocol

from torch import Tensor

from mast_ray.config.errors import DataError
from mast_ray.training.files.checkpoints import STORAGE_FAULTS, Position
from mast_ray.training.files.metrics_log import MetricsLog
from mast_ray.training.files.model_files import BestWeights
from mast_ray.training.worker import Worker

log = logging.getLogger("mast.training")


class Validation(Protocol):
    """Scores weights on held-out data; collective over the workers. Returns the
    metrics, the same on every rank.
    """

    metric: str  # what selects the best weights
    better: Literal["lower", "higher"]

    def measure(self, weights: dict[str, Tensor], worker: Worker) -> dict[str, float]: ...


@dataclass
class Selection:
    """Offers weights to be scored and keeps the best of them. Only rank 0 writes; every rank calls it equally often."""

    worker: Worker
    validation: Validation | None
    best: BestWeights
    metrics: MetricsLog | None
    samples_per_step: int
    last: dict[str, float] = field(default_factory=dict)  # the newest figures

    def take_up(self, position: Position) -> Position:
        """Have weights scored that an earlier start had put aside."""
        for step in position.unscored:
            if self.worker.beside is None:
                position = self._taken(position, step, self._measured(step))
            elif self.worker.rank == 0:
                self.worker.beside.submit(step)
        return position

    def _measured(self, step: int) -> dict[str, float]:
        """Figures of weights that were put aside; none where they are gone."""
        assert self.validation is not None
        try:
            return self.validation.measure(self.best.read(step), self.worker)
        except DataError:
            return {}

    def offer(self, position: Position, weights: dict[str, Tensor]) -> Position:
        """The weights of this step."""
        assert self.validation is not None
        step = position.steps_done
        if self.worker.beside is None:
            return self._judged(position, step, self.validation.measure(weights, self.worker), weights)
        if self._write(step, weights):
            if self.worker.rank == 0:
                self.worker.beside.submit(step)
            position = replace(position, unscored=[*position.unscored, step])
        return self.collect(position)

    def collect(self, position: Position, waits: Literal["no", "yes"] = "no") -> Position:
        """Take up figures that have arrived since, or wait for all of them."""
        if self.worker.beside is None:
            return position
        found = self.worker.gather(self.worker.beside.ready(waits) if self.worker.rank == 0 else [])[0]
        for step, measured in found:
            position = self._taken(position, step, measured)
        return position

    def _taken(self, position: Position, step: int, measured: dict[str, float]) -> Position:
        """Figures of weights that had been put aside."""
        position = replace(position, unscored=[one for one in position.unscored if one != step])
        if measured:
            return self._judged(position, step, measured, None)
        if self.worker.rank == 0:
            log.warning("the weights of step %d are gone: they were not scored", step)
        return position

    def _judged(
        self, position: Position, step: int, measured: dict[str, float], weights: dict[str, Tensor] | None
    ) -> Position:
        """Log figures and keep the weights (None: they are kept already) when they are the best so far."""
        assert self.validation is not None
        self.last = measured
        value = measured.get(self.validation.metric, math.nan)
        sign = 1.0 if self.validation.better == "higher" else -1.0
        improves = math.isfinite(value) and (
            position.best_step < 0 or sign * value >= sign * position.best_value
        )
        if self.metrics is not None:
            self.metrics.add("validation", step, step * self.samples_per_step, measured)
            log.info("step %d: %s", step, ", ".join(f"{k} {v:.4g}" for k, v in measured.items()))
        if not improves or (weights is not None and not self._write(step, weights)):
            return position
        return replace(position, best_step=step, best_value=value, extra=measured)

    def _write(self, step: int, weights: dict[str, Tensor]) -> bool:
        is_kept = True
        if self.worker.rank == 0:
            try:
                self.best.write(step, weights)
            except STORAGE_FAULTS as error:  # the checkpoints decide when a failing storage is too much
                is_kept = False
                log.warning(
                    "best weights not written to %s (%s): the ones before stay the best",
                    self.best.storage.url,
                    error,
                )
        return self.worker.gather(is_kept)[0]
