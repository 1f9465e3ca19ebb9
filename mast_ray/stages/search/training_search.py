"""The training search: Ray Tune runs the trials that are missing.

What is known of a search stands in the folders of its trials (self_training/trial_records.py), written whole
and at once. Tune's own snapshot of a search is several files written one after another, and a driver killed
between them restores to fewer trials than it had; so it is not used. A search that was killed begins a new
one with the rest: finished trials are told to the searcher and to the scheduler, those that were under way go
on in their folders, new ones fill up the number.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any

import ray
from ray import tune
from ray.tune.schedulers import ASHAScheduler, TrialScheduler

from mast_ray.config.errors import MastError, TemporaryError
from mast_ray.config.tree import Config
from mast_ray.on_ray.units import meaning_of
from mast_ray.self_training.trial_records import (
    EPOCHS,
    FOLDER,
    OBJECTIVE,
    TrialRecord,
    mark_stopped,
    read_trials,
    trial_name,
)
from mast_ray.stages.search.trial import (
    FACTORS,
    LOSSES,
    TrialTask,
    drop_checkpoints,
    run_trial,
    trial_settings,
)
from mast_ray.stages.train.train import ray_storage
from mast_ray.storage.outputs import refuse_other_settings
from mast_ray.storage.storage import Storage, open_storage
from mast_ray.training.progress import duration_text

log = logging.getLogger("mast.tune")

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
    """Run the trials that are missing; one row for each of all, oldest first. A search
    in which all broke is an error.
    """
    config, stage = task.config, open_storage(task.out, task.config.storage)
    refuse_other_settings(stage.at(FOLDER), trial_settings(task))
    known = read_trials(stage)
    finished = [record for record in known if record.is_finished]
    if known:
        print(f"resuming: {len(finished)} trials are finished", flush=True)
    wanted = max(0, config.tune.trials - len(finished))
    broken = _run_missing(task, threshold, known, wanted) if wanted else {}
    records = read_trials(stage)
    rows = [
        record.row("" if record.is_finished else "error")
        for record in records
        if record.is_finished or record.name in broken
    ]
    num_done = sum(row[OBJECTIVE] is not None for row in rows)
    if not num_done and broken:
        first = next(iter(broken.values()))
        raise _no_result(first) from first
    if num_done + len(broken) < config.tune.trials:
        raise TemporaryError(
            f"the search ended after {num_done} of {config.tune.trials} trials: run the same command again to go on"
        )
    for record in records:
        for step in ("stage1", "stage2", "union"):
            drop_checkpoints(stage.at(f"{FOLDER}/{record.name}/{step}"))
    return rows


def _run_missing(
    task: TrialTask, threshold: float, known: Sequence[TrialRecord], wanted: int
) -> dict[str, BaseException]:
    """What broke, by trial."""
    config, stage = task.config, open_storage(task.out, task.config.storage)
    os.environ["TUNE_DISABLE_SIGINT_HANDLER"] = "1"  # it would end the search as if it were finished
    os.environ.setdefault("RAY_AIR_NEW_OUTPUT", "0")  # our own lines say what matters
    os.environ.setdefault("TUNE_WARN_EXCESSIVE_EXPERIMENT_CHECKPOINT_SYNC_THRESHOLD_S", "0")
    resources, num_threads = _share_of_a_trial(config)
    trainable = tune.with_resources(
        tune.with_parameters(_trainable, task=replace(task, num_threads=num_threads)), resources
    )
    space = {name: tune.loguniform(*limits) for name, limits in search_ranges(config, threshold).items()}
    tuner = tune.Tuner(
        trainable,
        param_space={} if config.tune.search == "optuna" else space,
        tune_config=tune.TuneConfig(
            metric=OBJECTIVE,
            mode="max",
            num_samples=wanted,
            max_concurrent_trials=config.tune.concurrent,
            search_alg=searcher(config, space, threshold, known),
            scheduler=scheduler(config, stage, known),
            trial_dirname_creator=_folder_name,
        ),
        run_config=tune.RunConfig(
            name=f"{datetime.now(UTC):%Y%m%dT%H%M%S%f}",
            verbose=0,
            failure_config=tune.FailureConfig(max_failures=2),
            callbacks=[_Progress(config.tune.trials, known)],
            **ray_storage(stage),
        ),
    )
    grid = tuner.fit()
    return {
        trial_name(result.config): result.error
        for result in grid
        if result.error is not None and result.config is not None
    }


def _trainable(sample: dict[str, Any], task: TrialTask) -> None:
    """What Ray Tune runs: reports go to it, results to the trial's folder."""
    logging.basicConfig(level=logging.WARNING)
    run_trial(task, sample, lambda metrics: tune.report(dict(metrics)))


class _Progress(tune.Callback):
    """A line for every trial that ends."""

    def __init__(self, num_trials: int, known: Sequence[TrialRecord]) -> None:
        finished = [record for record in known if record.is_finished]
        self._num_trials, self._num_before, self._num_ended = num_trials, len(finished), 0
        self._best = max((record.objective or 0.0 for record in finished), default=0.0)
        self._began_s = time.monotonic()

    def on_trial_complete(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        found = float((trial.last_result or {}).get(OBJECTIVE) or 0.0)
        self._best = max(self._best, found)
        self._say(trial, f"F1 {found:.4f}, best {self._best:.4f}")

    def on_trial_error(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        self._say(trial, "broke")

    def _say(self, trial: Any, what: str) -> None:
        self._num_ended += 1
        number = self._num_before + self._num_ended
        left = (time.monotonic() - self._began_s) / self._num_ended * max(0, self._num_trials - number)
        print(
            f"[{number}/{self._num_trials}] trial {trial_name(trial.config)}: {what}, {duration_text(left)} left",
            flush=True,
        )


def _no_result(error: BaseException) -> Exception:
    """What to say when every trial broke."""
    cause = meaning_of(error)
    if isinstance(cause, MastError):
        return cause
    return TemporaryError(
        f"no trial came to an end: {_last_line(cause)}\nrun the same command again, or with --debug"
    )


def _share_of_a_trial(config: Config) -> tuple[dict[str, float], int]:
    """Resources of one trial, so that `tune.concurrent` fit at once, and its threads.
    Trainings run inside the trial's own process: a trial that asked for workers of its own
    would wait for cores that other trials hold.
    """
    total = ray.cluster_resources()
    cpus, gpus = total.get("CPU", 1.0), total.get("GPU", 0.0) if config.cluster.use_gpu != "no" else 0.0
    share = max(0.1, min(config.cluster.cpus_per_worker, cpus / config.tune.concurrent))
    resources = {"cpu": round(share, 2)}
    if gpus:
        resources["gpu"] = min(1.0, gpus / config.tune.concurrent)
    return resources, max(1, int(cpus // config.tune.concurrent))


def search_ranges(config: Config, threshold: float) -> dict[str, tuple[float, float]]:
    """Limits of every searched parameter; the threshold's lie around what validation says."""
    floor = config.evaluate.score_floor
    around = (max(1.5 * floor, threshold / 4), min(0.95, threshold + 0.6 * (1 - threshold)))
    limits = RANGES | {"threshold": (min(around), max(around))}
    return {name: limits[name] for name in config.tune.parameters}


def _first_point(config: Config, threshold: float) -> dict[str, float]:
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


def searcher(config: Config, space: dict[str, Any], threshold: float, known: Sequence[TrialRecord]) -> Any:
    """Proposes first what was under way when a search was killed (or, in a new one, the
    settings as they are), then samples.

    Its seed moves on with the number of trials: a search that goes on must not propose again what it had.
    """
    points = [record.sample for record in known if not record.is_finished]
    if not known:
        points = [_first_point(config, threshold)]
    seed = config.seed + len(known)
    match config.tune.search:
        case "optuna":
            import optuna
            from ray.tune.search.optuna import OptunaSearch

            optuna.logging.set_verbosity(optuna.logging.WARNING)
            found = OptunaSearch(
                OptunaSearch.convert_search_space(space),
                metric=OBJECTIVE,
                mode="max",
                points_to_evaluate=points or None,
                seed=seed,
            )
            for record in known:
                if record.is_finished and record.objective is not None:
                    found.add_evaluated_point(record.sample, record.objective)
            return found
        case "random":
            from ray.tune.search.basic_variant import BasicVariantGenerator

            return BasicVariantGenerator(points_to_evaluate=points or None, random_state=seed)


class _Halving(ASHAScheduler):
    """ASHA over epochs as the diaries count them; what it stops is written down before the trial is ended."""

    def __init__(self, stage: Storage, **options: Any) -> None:
        super().__init__(time_attr=EPOCHS, metric=OBJECTIVE, mode="max", **options)
        self._stage = stage

    def set_search_properties(self, metric: str | None, mode: str | None, **spec: Any) -> bool:
        return True  # Tune offers its own, which are the same

    def on_trial_result(self, tune_controller: Any, trial: Any, result: dict[str, Any]) -> str:
        action = super().on_trial_result(tune_controller, trial, result)
        if action == TrialScheduler.STOP:
            mark_stopped(self._stage, trial.config)
        return action


def scheduler(config: Config, stage: Storage, known: Sequence[TrialRecord]) -> Any:
    """Early stopping that knows what trials of earlier starts have reported."""
    if config.tune.scheduler == "none":
        return None
    epochs = config.tune.epochs_stage1 + config.tune.epochs_stage2 + 1
    found = _Halving(
        stage,
        max_t=max(2, epochs),
        grace_period=max(1, config.tune.epochs_stage1 // 2),
        reduction_factor=3,
    )
    for record in known:
        if record.is_finished and record.objectives:
            _tell(found, record)
    return found


def _tell(found: ASHAScheduler, record: TrialRecord) -> None:
    trial: Any = SimpleNamespace(trial_id=record.name)
    controller: Any = None
    found.on_trial_add(controller, trial)
    reports: list[Mapping[str, float]] = [
        {EPOCHS: epoch, OBJECTIVE: value} for epoch, value in enumerate(record.objectives, 1)
    ]
    for report in reports:
        ASHAScheduler.on_trial_result(found, controller, trial, dict(report))
    found.on_trial_complete(controller, trial, dict(reports[-1]))


def _folder_name(trial: Any) -> str:
    return str(trial.trial_id)


def _last_line(error: BaseException | None) -> str:
    lines = [line for line in str(error).strip().splitlines() if line.strip()]
    return lines[-1][:200] if lines else "no reason was given"
