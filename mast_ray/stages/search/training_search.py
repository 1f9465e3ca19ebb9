"""The training search: what is searched, which trials are missing, what came of all.

A search that was killed begins a new one with the rest: finished trials are told to the searcher and to the
scheduler, those that were under way go on in their folders, new ones fill up the number.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from mast_ray.config.errors import MastError, TemporaryError
from mast_ray.config.tree import Config
from mast_ray.on_ray.trials import Ranges, Trial, run_trials
from mast_ray.on_ray.units import worker_error
from mast_ray.self_training.curriculum import steps_of
from mast_ray.self_training.trial_records import (
    FOLDER,
    OBJECTIVE,
    read_trials,
)
from mast_ray.stages.search.loss_trial import SECTION, LossTask, run_loss_trial
from mast_ray.stages.search.trial import (
    FACTORS,
    LOSSES,
    TrialTask,
    drop_checkpoints,
    run_trial,
    trial_settings,
)
from mast_ray.storage.outputs import remove_scratch
from mast_ray.storage.stage_run import refuse_other_settings
from mast_ray.storage.storage import open_storage

RANGES: dict[str, tuple[float, float]] = {
    "lambda_cls": (0.3, 3.0),
    "lambda_box": (0.05, 1.0),
    "lambda_iou": (0.5, 5.0),
    "lambda_con": (0.05, 1.0),
    "empty_weight": (0.02, 1.0),
    "backbone_multiplier": (0.2, 5.0),
    "learning_rate": (0.3, 3.0),
}  # all searched on a logarithmic scale; FACTORS are factors of the config's own values


def search_training(task: TrialTask, threshold: float) -> list[dict[str, Any]]:
    """The trials of self-training."""
    ranges, first = search_ranges(task.config, threshold), first_point(task.config, threshold)
    return search_trials(task, partial(run_trial, task), trial_settings(task), ranges, first)


def search_losses(task: LossTask) -> list[dict[str, Any]]:
    """The trials of supervised training."""
    own = task.first_point()
    ranges = {name: RANGES[name] for name in own}
    first = {name: min(max(own[name], low), high) for name, (low, high) in ranges.items()}
    return search_trials(task, partial(run_loss_trial, task), task.settings(), ranges, first)


def search_trials(
    task: TrialTask | LossTask,
    trial: Trial,
    settings: dict[str, Any],
    ranges: Ranges,
    first: dict[str, float],
) -> list[dict[str, Any]]:
    """Run the trials that are missing; one row for each of all, oldest first. A search
    in which all broke is an error.
    """
    config, stage = task.config, open_storage(task.out, task.config.storage)
    refuse_other_settings(stage.at(FOLDER), settings)
    remove_scratch(stage.at(FOLDER))  # of a search that was killed
    known = read_trials(stage)
    finished = [record for record in known if record.is_finished]
    if known:
        print(f"resuming: {len(finished)} trials are finished", flush=True)
    wanted = max(0, config.tune.trials - len(finished))
    broken: dict[str, BaseException] = {}
    if wanted:
        broken = run_trials(trial, ranges, first, wanted, known, stage, config)
        remove_scratch(stage.at(FOLDER))  # of trials that were stopped while they wrote
    records = read_trials(stage)
    rows = [
        record.row("" if record.is_finished else "error")
        for record in records
        if record.is_finished or record.name in broken
    ]
    num_done = sum(row[OBJECTIVE] is not None for row in rows)
    if not num_done and broken:
        error = next(iter(broken.values()))
        raise _no_result(error) from error
    if num_done + len(broken) < config.tune.trials:
        raise TemporaryError(
            f"the search ended after {num_done} of {config.tune.trials} trials: run the same command again to go on"
        )
    trainings = {step.name for step in steps_of(config.self_train.curriculum)} | {SECTION}
    for record in records:
        for step in sorted(trainings):
            drop_checkpoints(stage.at(f"{FOLDER}/{record.name}/{step}"))
    return rows


def _no_result(error: BaseException) -> Exception:
    """What to say when every trial broke."""
    cause = worker_error(error)
    if isinstance(cause, MastError):
        return cause
    return TemporaryError(
        f"no trial came to an end: {_last_line(cause)}\nrun the same command again, or with --debug"
    )


def search_ranges(config: Config, threshold: float) -> dict[str, tuple[float, float]]:
    """Limits of every searched parameter; the threshold's lie around what validation says."""
    floor = config.evaluate.score_floor
    around = (max(1.5 * floor, threshold / 4), min(0.95, threshold + 0.6 * (1 - threshold)))
    limits = RANGES | {"threshold": (min(around), max(around))}
    return {name: limits[name] for name in config.tune.parameters}


def first_point(config: Config, threshold: float) -> dict[str, float]:
    """The settings as they are, as far as one value serves both stages (stage 1's weights, a fixed
    threshold, empty chunks as negatives).
    """
    ranges = search_ranges(config, threshold)
    own = {name: getattr(config.self_train.stage1, name) for name in LOSSES}
    own |= dict.fromkeys(FACTORS, 1.0) | {
        "threshold": threshold,
        "empty_weight": config.self_train.empty_weight,
    }
    return {name: min(max(own[name], low), high) for name, (low, high) in ranges.items()}


def _last_line(error: BaseException | None) -> str:
    lines = [line for line in str(error).strip().splitlines() if line.strip()]
    return lines[-1][:200] if lines else "no reason was given"
