"""A model scored on every held-out split: inference as a resumable stage, figures from what it stored.

OUT holds the detections (as `mast pseudo-label` writes them) and metrics.json: {"threshold": ..., "splits":
{name: {figure: {estimate, low, high}}}}.
"""

from __future__ import annotations

import json

from mast_ray.config.tree import Config
from mast_ray.evaluation.figure_tables import without_nan
from mast_ray.stages.runner import ON_RAY, Runner
from mast_ray.stages.score.split_scores import ModelScores, score_model, splits_present
from mast_ray.stages.self_train.pseudo_label import run_pseudo_label
from mast_ray.storage.storage import open_storage
from mast_ray.tables.prepared import Prepared, open_prepared
from mast_ray.training.files.model_files import read_card

METRICS = "metrics.json"


def evaluate_model(
    config: Config,
    model: str,
    prepared: str,
    out: str,
    *,
    runner: Runner = ON_RAY,
    archive: Prepared | None = None,
) -> ModelScores:
    """Detections of a model on every held-out split, into OUT, and their scores."""
    archive = archive or open_prepared(prepared, config.storage)
    card = read_card(model, config.storage)
    names = splits_present(archive)
    if not names:
        return ModelScores(card.score_threshold or config.self_train.threshold, "card", {}, {})
    run_pseudo_label(config, model, prepared, out, splits=names, runner=runner)
    stage = open_storage(out, config.storage)
    scores = score_model(archive, stage, config, card.score_threshold)
    document = {
        "model_sha": card.weights_sha256,
        "threshold": scores.threshold,
        "threshold_from": scores.threshold_from,
        "iou": config.evaluate.iou,
        "splits": scores.table,
    }
    stage.write_atomic(METRICS, json.dumps(without_nan(document), indent=1).encode())
    return scores
