"""What a training leaves in its folder: checkpoints and metrics on the way, a model and a summary in the end."""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import Any

from mast_ray.config.errors import DataError
from mast_ray.config.tree import Config
from mast_ray.inference.chunk_detector import Inputs
from mast_ray.stages.train.summary import TrainSummary
from mast_ray.storage.stage_folders import code_version
from mast_ray.storage.storage import Storage
from mast_ray.tables.prepared import Prepared, data_hash
from mast_ray.training.assembly import network_weights
from mast_ray.training.engine import Objective
from mast_ray.training.files.checkpoints import Checkpoints
from mast_ray.training.files.metrics_log import MetricsLog
from mast_ray.training.files.model_files import BestWeights, Card, write_model
from mast_ray.training.files.origins import Origins
from mast_ray.training.loop import FitResult, RunFiles
from mast_ray.training.worker import Worker

log = logging.getLogger("mast.training")

CHECKPOINTS = "checkpoints"


def run_files(storage: Storage, rank: int) -> RunFiles:
    """Where a run below `storage` keeps its state."""
    folder = storage.at(CHECKPOINTS)
    return RunFiles(Checkpoints(folder), BestWeights(folder), MetricsLog(storage) if rank == 0 else None)


def card_of(
    kind: Any,
    config: Config,
    inputs: Inputs,
    prepared: Prepared,
    result: FitResult,
    own: Card | None = None,
    began_with: Origins = (),
) -> Card:
    """What is known of the model that a run made; where nothing was found to tune a threshold on, the one it began with
    holds.
    """
    best = result.position.extra
    is_tuned = best.get("f1", 0.0) > 0
    threshold = best.get("threshold") if is_tuned else own.score_threshold if own is not None else None
    doubts = best.get("doubts_nested", 0.0) > 0 if is_tuned else own is not None and own.doubts_nested
    takes = inputs.normalisation
    used = {"divisor": takes.divisor, "background": takes.background, "tail": inputs.tail}
    config = config.model_copy(update={"spectrogram": config.spectrogram.model_copy(update=used)})
    return Card(
        kind=kind,
        model=config.model.model_dump(mode="json"),
        normalisation=inputs.normalisation.to_dict(),
        tail=inputs.tail,
        score_threshold=threshold,
        doubts_nested=doubts,
        data_hash=data_hash(prepared),
        config=config.model_dump(mode="json"),
        metrics=best,
        began_with=began_with,
        code_version=code_version(),
    )


def export(
    storage: Storage,
    worker: Worker,
    objective: Objective,
    card: Card,
    result: FitResult,
    num_chunks: int,
) -> TrainSummary:
    """Export the best weights (the last ones where nothing was validated) and say how it went."""
    position, pace = result.position, result.pace
    summary = TrainSummary(
        position.steps_done,
        position.samples_seen,
        num_chunks,
        position.skipped_steps,
        position.best_step,
        position.extra,
        result.validation,
        result.resumed_from_step,
        worker.world_size,
        pace.chunks_per_s if pace is not None else None,
        pace.wait_share if pace is not None else None,
    )
    if worker.rank == 0:
        files = run_files(storage, 1)
        card = write_model(
            storage, network_weights(objective, _best_weights(files, position.best_step)), card
        )
        summary = replace(summary, weights_sha256=card.weights_sha256)
        summary.write(storage)
    return summary


def _best_weights(files: RunFiles, best_step: int) -> dict[str, Any]:
    if best_step >= 0:
        try:
            return files.best.read(best_step)
        except DataError as error:
            log.warning("%s: exporting the last weights instead", error)
    newest = files.checkpoints.newest_good()
    if newest is None:
        raise DataError(
            f"{files.checkpoints.storage.url} holds no good checkpoint to export: run the same command again"
        )
    engine = files.checkpoints.read(newest).engine
    return engine.average if engine.average is not None else engine.weights
