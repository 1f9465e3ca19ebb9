"""The student of a round averaged with its teacher: a stage of its own, cheap beside a training.

OUT holds the averaged model and grid.json: share of the teacher's weights -> F1 on the split that selects. The models
in between are tried one by one, each as a resumable stage below OUT/tried, and removed when the choice is made.
"""

from __future__ import annotations

import json
import logging
import math
from dataclasses import replace
from typing import Literal

from mast_ray.config.tree import Config
from mast_ray.evaluation.split_truth import scored_splits, selection_split
from mast_ray.self_training.curriculum import averaged_weights
from mast_ray.stages.runner import Runner
from mast_ray.stages.score.evaluate import Wanted, evaluate_model
from mast_ray.storage.outputs import remove_folder
from mast_ray.storage.stage_folders import text_hash
from mast_ray.storage.stage_run import open_output, stage_run
from mast_ray.storage.storage import Storage
from mast_ray.tables.prepared import Prepared
from mast_ray.training.files.model_files import read_card, read_model, write_model

log = logging.getLogger("mast.self_train")

STAGE, GRID, TRIED = "average", "grid.json", "tried"
TEACHER_SHARES = (0.0, 0.25, 0.5, 0.75)  # 0: the student as it was trained


def average_with_teacher(
    config: Config,
    archive: Prepared,
    teacher: str,
    student: str,
    out: str,
    share: float | Literal["auto"],
    runner: Runner,
) -> str:
    """A model between teacher and student into OUT, which is returned; `auto` tries TEACHER_SHARES."""
    stage = open_output(out, STAGE, config.storage)
    cards = [read_card(model, config.storage) for model in (teacher, student)]
    inputs = {"teacher": cards[0].weights_sha256, "student": cards[1].weights_sha256}
    key = text_hash(json.dumps([share, config.evaluate.model_dump(mode="json")], sort_keys=True))
    with stage_run(stage, STAGE, config, key, inputs, lease="of_caller") as run:
        if run.done is not None:
            return out
        grid: dict[str, float] = {}
        if share == "auto":
            grid = _try_shares(config, archive, teacher, student, stage, runner)
            chosen = max(TEACHER_SHARES, key=lambda value: (grid.get(str(value), -1.0), -value))
        else:
            chosen = share
        run.begin_anew()
        _write_average(config, teacher, student, stage, chosen)
        stage.write_atomic(GRID, json.dumps({"teacher_share": chosen, "f1": grid}, indent=1).encode())
        log.info("averaged: %.2f of the teacher's weights%s", chosen, f" (F1 {grid})" if grid else "")
        remove_folder(stage.at(TRIED))
        run.finish({"tried": len(grid)})
        return out


def _try_shares(
    config: Config, archive: Prepared, teacher: str, student: str, stage: Storage, runner: Runner
) -> dict[str, float]:
    """F1 at its own best threshold of every share, on the split that selects; empty without such a split."""
    split = selection_split(archive)
    if split not in scored_splits(archive):
        log.warning(
            "self_train.average_with_teacher=auto needs a labelled split to choose on: none is averaged"
        )
        return {}
    grid = {}
    for share in TEACHER_SHARES:
        folder = stage.at(f"{TRIED}/{share:.2f}")
        _write_average(config, teacher, student, folder.at("model"), share)
        places = (folder.at("model").url, archive.storage.url, folder.at("evaluation").url)
        row = evaluate_model(config, *places, Wanted((split,)), runner=runner).sheet.whole(split)
        f1 = row.figures["f1"].estimate if row is not None else 0.0
        grid[str(share)] = f1 if math.isfinite(f1) else 0.0
    return grid


def _write_average(config: Config, teacher: str, student: str, folder: Storage, share: float) -> None:
    (before, _), (after, card) = (
        read_model(model, "detector", config.storage) for model in (teacher, student)
    )
    # the student's own threshold is not that of the average
    write_model(
        folder, averaged_weights(before, after, share), replace(card, metrics={}, score_threshold=None)
    )
