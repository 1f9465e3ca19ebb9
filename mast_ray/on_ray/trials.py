"""The only Tuner: trials of a search, each a function handed in, on Ray Tune.

What is known of a search stands in the folders of its trials (self_training/trial_records.py), written whole
and at once. Tune's own snapshot of a search is several files written one after another, and a driver killed
between them restores to fewer trials than it had; so it is not used: a search that goes on is a new one that
knows what the earlier one has found.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any, NamedTuple

from ray import tune
from ray.tune.schedulers import ASHAScheduler, MedianStoppingRule, TrialScheduler

from mast_ray.config.chatter import chatter_is_apart, keep
from mast_ray.config.errors import MastError
from mast_ray.config.tree import Config
from mast_ray.on_ray.ray_folder import clean_ray_folder, ray_storage
from mast_ray.on_ray.session import cluster_resources
from mast_ray.on_ray.units import worker_error
from mast_ray.self_training.trial_records import (
    EPOCHS,
    FOLDER,
    OBJECTIVE,
    RESULT,
    Diary,
    Report,
    TrialRecord,
    mark_stopped,
    trial_name,
)
from mast_ray.storage.storage import Storage
from mast_ray.training.progress import duration_text

Sample = dict[str, float]
Trial = Callable[[Mapping[str, float], Report, int], object]  # sample, where to report, its threads
Ranges = Mapping[str, tuple[float, float]]


def run_trials(
    trial: Trial,
    ranges: Ranges,
    first: Sample,
    wanted: int,
    known: Sequence[TrialRecord],
    stage: Storage,
    config: Config,
) -> dict[str, BaseException]:
    """Run as many trials as are wanted besides the known ones: what was under way, then `first` in a new search,
    then samples of `ranges` on a logarithmic scale. Returns what broke, by trial.
    """
    os.environ["TUNE_DISABLE_SIGINT_HANDLER"] = "1"  # it would end the search as if it were finished
    os.environ.setdefault("RAY_AIR_NEW_OUTPUT", "0")  # our own lines say what matters
    os.environ.setdefault("TUNE_WARN_EXCESSIVE_EXPERIMENT_CHECKPOINT_SYNC_THRESHOLD_S", "0")
    resources, num_threads = _share_of_a_trial(config)
    trainable = tune.with_resources(
        tune.with_parameters(_trainable, trial=trial, num_threads=num_threads), resources
    )
    tuner = tune.Tuner(
        trainable,
        param_space={} if config.tune.search == "optuna" else _space(ranges),
        tune_config=tune.TuneConfig(
            metric=OBJECTIVE,
            mode="max",
            num_samples=wanted,
            max_concurrent_trials=config.tune.concurrent,
            search_alg=searcher(config, ranges, first, known),
            scheduler=scheduler(config, stage, known),
            trial_dirname_creator=_folder_name,
        ),
        run_config=tune.RunConfig(
            name=f"{datetime.now(UTC):%Y%m%dT%H%M%S%f}",
            verbose=0,
            failure_config=tune.FailureConfig(max_failures=2),
            callbacks=[_Progress(config.tune.trials, known, stage)],
            **ray_storage(stage),
        ),
    )
    with _tunes_words_apart():
        grid = tuner.fit()
    clean_ray_folder(stage)
    return broken_trials(grid, stage)


def broken_trials(results: Iterable[Any], stage: Storage) -> dict[str, BaseException]:
    """What broke, by trial. One that died before its first line has a diary too: the table of trials names all."""
    broken = {}
    for result in results:
        if result.error is not None and result.config is not None:
            name = trial_name(result.config)
            broken[name] = result.error
            Diary(stage.at(f"{FOLDER}/{name}"), result.config, lambda told: None)
    return broken


def _trainable(sample: dict[str, Any], trial: Trial, num_threads: int) -> None:
    """What Ray Tune runs: reports go to it, results to the trial's folder."""
    logging.basicConfig(level=logging.WARNING, format="%(message)s")
    trial(sample, lambda metrics: tune.report(dict(metrics)), num_threads)


class _Kept(logging.Handler):
    """Tracebacks for who looks closer."""

    def emit(self, record: logging.LogRecord) -> None:
        keep(self.format(record))


@contextmanager
def _tunes_words_apart() -> Iterator[None]:
    """Tune writes a page for every trial that breaks, as often as it is begun again: our line says why it broke."""
    if not chatter_is_apart():
        yield
        return
    logger, kept = logging.getLogger("ray.tune"), _Kept()
    before, logger.propagate = logger.propagate, False
    logger.addHandler(kept)
    try:
        yield
    finally:
        logger.removeHandler(kept)
        logger.propagate = before


def reason_of(error: BaseException | None) -> str:
    """Why a trial broke, in a line."""
    cause = None if error is None else worker_error(error)
    lines = [line for line in str(cause or "").splitlines() if line.strip()]
    if not lines:
        return "no reason was given"
    return (lines[0] if isinstance(cause, MastError) else lines[-1]).strip().rstrip(":")[:200]


class _Progress(tune.Callback):
    """A line for every trial that ends."""

    def __init__(self, num_trials: int, known: Sequence[TrialRecord], stage: Storage) -> None:
        finished = [record for record in known if record.is_finished]
        self._num_trials, self._num_before, self._num_ended = num_trials, len(finished), 0
        ended = [record.objective or 0.0 for record in finished if record.status == "done"]
        self._best, self._stage = max(ended, default=0.0), stage
        self._began_s = time.monotonic()

    def on_trial_complete(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        last = trial.last_result or {}
        found = float(last.get(OBJECTIVE) or 0.0)
        if self._stage.stat(f"{FOLDER}/{trial_name(trial.config)}/{RESULT}") is None:
            self._say(trial, f"stopped early at F1 {found:.4f} of {last.get('stage', 'its first stage')}")
            return
        self._best = max(self._best, found)
        self._say(trial, f"F1 {found:.4f}, best {self._best:.4f}")

    def on_trial_error(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        self._say(trial, f"broke ({reason_of(trial.get_pickled_error())})")

    def _say(self, trial: Any, what: str) -> None:
        self._num_ended += 1
        number = self._num_before + self._num_ended
        left = (time.monotonic() - self._began_s) / self._num_ended * max(0, self._num_trials - number)
        print(
            f"[{number}/{self._num_trials}] trial {trial_name(trial.config)}: {what}, {duration_text(left)} left",
            flush=True,
        )


def _share_of_a_trial(config: Config) -> tuple[dict[str, float], int]:
    """Resources of one trial, so that `tune.concurrent` fit at once, and its threads.
    Trainings run inside the trial's own process: a trial that asked for workers of its own
    would wait for cores that other trials hold.
    """
    found = cluster_resources()
    cpus, gpus = found.num_cpus, found.num_gpus
    gpus = gpus if config.cluster.use_gpu != "no" else 0.0
    share = max(0.1, min(config.cluster.cpus_per_worker, cpus / config.tune.concurrent))
    resources = {"cpu": round(share, 2)}
    if gpus:
        resources["gpu"] = min(1.0, gpus / config.tune.concurrent)
    return resources, max(1, int(cpus // config.tune.concurrent))


def _space(ranges: Ranges) -> dict[str, Any]:
    return {name: tune.loguniform(*limits) for name, limits in ranges.items()}


def searcher(config: Config, ranges: Ranges, first: Sample, known: Sequence[TrialRecord]) -> Any:
    """Proposes first what was under way when a search was killed (or, in a new one, `first`), then samples.

    Its seed moves on with the number of trials: a search that goes on must not propose again what it had.
    """
    points = [record.sample for record in known if not record.is_finished]
    if not known:
        points = [first]
    seed = config.seed + len(known)
    match config.tune.search:
        case "optuna":
            import optuna
            from ray.tune.search.optuna import OptunaSearch

            optuna.logging.set_verbosity(optuna.logging.WARNING)
            found = OptunaSearch(
                OptunaSearch.convert_search_space(_space(ranges)),
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


class _MarksStops(TrialScheduler):
    """Before a scheduler of Tune: what it stops is written down before the trial is ended."""

    stage: Storage

    def set_search_properties(self, metric: str | None, mode: str | None, **spec: Any) -> bool:
        return True  # Tune offers its own, which are the same

    def on_trial_result(self, tune_controller: Any, trial: Any, result: dict[str, Any]) -> str:
        action = super().on_trial_result(tune_controller, trial, result)
        if action == TrialScheduler.STOP:
            mark_stopped(self.stage, trial.config)
        return action


class _Halving(_MarksStops, ASHAScheduler):
    """ASHA over epochs as the diaries count them."""


class _Median(_MarksStops, MedianStoppingRule):
    """Stops a trial whose best is below the median of what others had on average by then."""

    def _on_insufficient_samples(self, tune_controller: Any, trial: Any, time: float) -> str:
        return (
            TrialScheduler.CONTINUE
        )  # Tune's own would take turns between trials, each of which starts a process


class _Past(NamedTuple):
    """A trial of an earlier start, as far as a scheduler asks."""

    trial_id: str


def scheduler(config: Config, stage: Storage, known: Sequence[TrialRecord]) -> Any:
    """Early stopping that knows what trials of earlier starts have reported."""
    epochs = config.tune.epochs_stage1 + config.tune.epochs_stage2 + 1
    options: dict[str, Any] = {"time_attr": EPOCHS, "metric": OBJECTIVE, "mode": "max"}
    options["grace_period"] = max(1, config.tune.epochs_stage1 // 2)
    found: _Halving | _Median
    match config.tune.scheduler:
        case "none":
            return None
        case "asha":
            found = _Halving(max_t=max(2, epochs), reduction_factor=3, **options)
        case "median":
            found = _Median(min_samples_required=3, **options)
    found.stage = stage
    for record in known:
        if record.is_finished and record.objectives:
            _tell(found, record)
    return found


def _tell(found: _Halving | _Median, record: TrialRecord) -> None:
    trial: Any = _Past(record.name)
    controller: Any = None
    found.on_trial_add(controller, trial)
    reports: list[Mapping[str, float]] = [
        {EPOCHS: epoch, OBJECTIVE: value} for epoch, value in enumerate(record.objectives, 1)
    ]
    for report in reports:
        super(_MarksStops, found).on_trial_result(controller, trial, dict(report))  # type: ignore[misc]
    found.on_trial_complete(controller, trial, dict(reports[-1]))


def _folder_name(trial: Any) -> str:
    return str(trial.trial_id)
