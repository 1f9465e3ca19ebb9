"""`mast tune`: post-processing over stored detections, then loss weights and thresholds by short trainings on Ray Tune.

OUT/evaluation, detections       what the detector finds in the held-out splits and in the pool: inferred once
OUT/post.json, post_trials.parquet, thresholds.csv    the first search
OUT/trials/<id>, ray             the second: a folder per trial, and Tune's own bookkeeping (killed, the same command restores it)
OUT/trials.parquet, trials.csv   every trial with its sample and F1
OUT/best.yaml                    what `mast self-train --config` takes
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from datetime import UTC, datetime
from typing import Any, Literal

import pyarrow as pa

from mast_ray.config.errors import MastError, TemporaryError
from mast_ray.config.loading import apply_overrides, config_to_yaml, flatten
from mast_ray.config.tree import Config
from mast_ray.evaluation.figure_tables import csv_bytes
from mast_ray.on_ray.model_scores import evaluate_model
from mast_ray.on_ray.prepare import lease_or_stop
from mast_ray.on_ray.pseudo_label import Runner, run_pseudo_label
from mast_ray.on_ray.pseudo_stage import Teacher
from mast_ray.on_ray.self_train import as_trained
from mast_ray.on_ray.split_scores import ModelScores
from mast_ray.on_ray.training_work import data_hash
from mast_ray.on_ray.trial import (
    FACTORS,
    LOSSES,
    RESULT,
    TrialTask,
    drop_checkpoints,
    run_trial,
    sampled_overrides,
)
from mast_ray.on_ray.tune_post import objective_chunks, run_post_search
from mast_ray.reporting.figures import png_bytes
from mast_ray.reporting.search_figures import search_figure, threshold_figure
from mast_ray.self_training.operator import EVEN_WEIGHT
from mast_ray.self_training.pool import has_parts
from mast_ray.tables.outputs import refuse_other_settings
from mast_ray.tables.prepared import Prepared, open_prepared, write_table
from mast_ray.tables.stages import (
    is_current,
    read_manifest,
    refuse_foreign,
    sections_hash,
    text_hash,
    write_manifest,
)
from mast_ray.tables.storage import Storage, open_storage
from mast_ray.training.model_files import read_card

log = logging.getLogger("mast.tune")

STAGE, EXPERIMENT, BEST_CONFIG = "tune", "search", "best.yaml"
RANGES: dict[str, tuple[float, float]] = {
    "lambda_cls": (0.3, 3.0),
    "lambda_box": (0.05, 1.0),
    "lambda_iou": (0.5, 5.0),
    "lambda_con": (0.05, 1.0),
    "empty_weight": (0.02, 1.0),
    "backbone_multiplier": (0.2, 5.0),
    "learning_rate": (0.3, 3.0),
}  # all searched on a logarithmic scale; FACTORS are factors of the config's own values
What = Literal["both", "post", "training"]


def run_tune(
    config: Config,
    prepared: str,
    detector: str,
    out: str,
    *,
    what: What = "both",
    runner: Runner = "ray",
    self_trained: str = "",
) -> dict[str, Any]:
    """Search; returns {"best": config keys, "objective": F1, "trials": rows}. Finished, it has nothing to do.

    `self_trained` names a folder of self-training from this detector whose stored detections are used.
    """
    stage = open_storage(out, config.storage)
    refuse_foreign(stage, STAGE)
    archive = open_prepared(prepared, config.storage)
    card = read_card(detector, config.storage)
    config = as_trained(config, card)
    objective_chunks(archive, config.tune.objective_split)
    inputs = {"prepared": data_hash(archive), "detector": card.weights_sha256}
    key = text_hash(sections_hash(config, "tune", "self_train", "evaluate", "seed") + what)
    if is_current(read_manifest(stage), STAGE, key, inputs):
        log.info("%s is already tuned: nothing to do", stage.url)
        return json.loads(stage.read_bytes("best.json")) | {"was_done": True}
    with lease_or_stop(stage), ExitStack() as stack:
        knobs = flatten({"tune": config.tune.model_dump(mode="json", exclude={"trials", "concurrent"})})
        refuse_other_settings(stage, inputs | {"seed": config.seed} | knobs)
        if runner == "ray" or what != "post":
            from mast_ray.on_ray.session import ray_session

            stack.enter_context(ray_session())
        # absolute: trials run in folders of their own
        model = open_storage(detector, config.storage).url
        rounds = open_storage(self_trained, config.storage) if self_trained else None
        search = _Search(config, archive.storage.url, archive, model, stage, runner, rounds)
        found = search.run(what)
        best = apply_overrides(config, found["best"])
        stage.write_atomic(BEST_CONFIG, config_to_yaml(best).encode())
        stage.write_atomic("best.json", json.dumps(found, indent=1).encode())
        counts = {"trials": len(found["trials"]), "objective": found["objective"]}
        write_manifest(stage, STAGE, config, key, inputs, counts, datetime.now(UTC))
    return found | {"was_done": False}


class _Search:
    def __init__(
        self,
        config: Config,
        prepared: str,
        archive: Prepared,
        detector: str,
        stage: Storage,
        runner: Runner,
        rounds: Storage | None,
    ) -> None:
        self.config, self.prepared, self.archive = config, prepared, archive
        self.detector, self.stage, self.runner = detector, stage, runner
        # What self-training has stored of this detector is taken up; a store of another model refuses to be.
        self.evaluation = rounds.at("round0/evaluation") if rounds else stage.at("evaluation")
        self.pool = rounds.at("round1/detections") if rounds else stage.at("detections")

    def run(self, what: What) -> dict[str, Any]:
        evaluation = self.evaluation
        scores = evaluate_model(
            self.config,
            self.detector,
            self.prepared,
            evaluation.url,
            runner=self.runner,
            archive=self.archive,
        )
        best: dict[str, Any] = {}
        objective = None
        if what != "training":
            post = run_post_search(self.config, self.archive, evaluation, self.stage)
            best, objective = post.overrides(), post.best["objective"]
            self.stage.write_atomic(
                "thresholds.png", png_bytes(threshold_figure(post.curve, self.config.tune.objective_split))
            )
            log.info("post-processing: F1 %.4f with %s", objective, _text(best))
        if what == "post":
            return {"best": best, "objective": objective, "trials": []}
        rows = self._trained(apply_overrides(self.config, best), scores)
        top = max(rows, key=lambda row: row["objective"])
        sample = {
            name.removeprefix("config."): value for name, value in top.items() if name.startswith("config.")
        }
        best |= sampled_overrides(self.config, sample)
        log.info("training: F1 %.4f with %s", top["objective"], _text(sample))
        return {"best": best, "objective": top["objective"], "trials": rows}

    def _trained(self, config: Config, scores: ModelScores) -> list[dict[str, Any]]:
        is_reweighed = config.self_train.score_weight != EVEN_WEIGHT
        pool = usable_pool(self.pool, self.stage.at("detections"), is_reweighed)
        run_pseudo_label(config, self.detector, self.prepared, pool.url, runner=self.runner)
        card = read_card(self.detector, config.storage)
        threshold = config.self_train.threshold if is_reweighed else scores.threshold
        teacher = Teacher(card.weights_sha256, threshold, 0.0, 1)
        task = TrialTask(config, self.prepared, self.detector, pool.url, teacher, self.stage.url)
        rows = search_training(task, threshold)
        names = list(dict.fromkeys(name for row in rows for name in row))
        write_table(self.stage, "trials.parquet", pa.table({n: [row.get(n) for row in rows] for n in names}))
        self.stage.write_atomic(
            "trials.csv", csv_bytes(names, ([_cell(row.get(n)) for n in names] for row in rows))
        )
        self.stage.write_atomic("trials.png", png_bytes(search_figure(rows, "objective")))
        return rows


def usable_pool(stored: Storage, own: Storage, is_reweighed: bool) -> Storage:
    """Where trials find detections of the pool: those of self-training, unless they lack what another weight of the score needs."""
    if not is_reweighed or stored.url == own.url or has_parts(stored):
        return stored
    log.info("%s holds scores only, another weight needs their parts: detecting again", stored.url)
    return own


def search_training(task: TrialTask, threshold: float) -> list[dict[str, Any]]:
    """Run (or restore) the trials; one row each. Trials that broke are rows too; a search in which all broke is an error."""
    from ray import tune

    config = task.config
    os.environ.setdefault("TUNE_GLOBAL_CHECKPOINT_S", "1")  # trials in flight are known after a kill
    os.environ.setdefault("RAY_AIR_NEW_OUTPUT", "0")  # our own lines say what matters
    os.environ.setdefault("TUNE_WARN_EXCESSIVE_EXPERIMENT_CHECKPOINT_SYNC_THRESHOLD_S", "0")
    resources, num_threads = _share_of_a_trial(config)
    trainable = tune.with_resources(
        tune.with_parameters(_trainable, task=_with_threads(task, num_threads)), resources
    )
    filesystem, root = open_storage(task.out, config.storage).at("ray").arrow()
    is_local = not task.out.startswith("s3://")
    place = {"storage_path": root} if is_local else {"storage_path": root, "storage_filesystem": filesystem}
    path = f"{root}/{EXPERIMENT}"
    restorable = tune.Tuner.can_restore(path, storage_filesystem=None if is_local else filesystem)
    if restorable:
        print(f"resuming: {_finished_trials(task)} trials are finished", flush=True)
        tuner = tune.Tuner.restore(
            path, trainable, resume_errored=True, storage_filesystem=None if is_local else filesystem
        )
    else:
        space = {name: tune.loguniform(*limits) for name, limits in _ranges(config, threshold).items()}
        tuner = tune.Tuner(
            trainable,
            param_space={} if config.tune.search == "optuna" else space,
            tune_config=tune.TuneConfig(
                metric="objective",
                mode="max",
                num_samples=config.tune.trials,
                max_concurrent_trials=config.tune.concurrent,
                search_alg=_searcher(config, space, threshold),
                scheduler=_scheduler(config),
                trial_dirname_creator=_folder_name,
            ),
            run_config=tune.RunConfig(
                name=EXPERIMENT, verbose=0, failure_config=tune.FailureConfig(max_failures=2), **place
            ),
        )
    grid = tuner.fit()
    rows = [_row(task, result) for result in grid]
    done = [row for row in rows if row["objective"] is not None]
    if not done:
        error = next((result.error for result in grid if result.error is not None), None)
        cause = getattr(error, "cause", error)  # Ray wraps what a trial raised
        if isinstance(cause, MastError):
            raise cause
        raise TemporaryError(
            f"no trial came to an end: {_last_line(cause)}\nrun the same command again, or with --debug"
        ) from error
    for row in rows:
        folder = open_storage(task.out, config.storage).at(f"trials/{row['trial']}")
        for step in ("stage1", "stage2", "union"):
            drop_checkpoints(folder.at(step))
    return sorted(done, key=lambda row: row["trial"])


def _trainable(sample: dict[str, Any], task: TrialTask) -> None:
    """What Ray Tune runs: reports go to it, results to the trial's folder."""
    from ray import tune

    logging.basicConfig(level=logging.WARNING)
    run_trial(task, tune.get_context().get_trial_id(), sample, lambda metrics: tune.report(dict(metrics)))


def _with_threads(task: TrialTask, num_threads: int) -> TrialTask:
    from dataclasses import replace

    return replace(task, num_threads=num_threads)


def _share_of_a_trial(config: Config) -> tuple[dict[str, float], int]:
    """Resources of one trial, so that `tune.concurrent` fit at once, and its threads. Trainings run inside the trial's own
    process: a trial that asked for workers of its own would wait for cores that other trials hold."""
    import ray

    total = ray.cluster_resources()
    cpus, gpus = total.get("CPU", 1.0), total.get("GPU", 0.0) if config.cluster.use_gpu != "no" else 0.0
    share = max(0.1, min(config.cluster.cpus_per_worker, cpus / config.tune.concurrent))
    resources = {"cpu": round(share, 2)}
    if gpus:
        resources["gpu"] = min(1.0, gpus / config.tune.concurrent)
    return resources, max(1, int(cpus // config.tune.concurrent))


def _ranges(config: Config, threshold: float) -> dict[str, tuple[float, float]]:
    """Limits of every searched parameter; the threshold's lie around what validation says."""
    floor = config.evaluate.score_floor
    around = (max(1.5 * floor, threshold / 4), min(0.95, threshold + 0.6 * (1 - threshold)))
    limits = RANGES | {"threshold": (min(around), max(around))}
    return {name: limits[name] for name in config.tune.parameters}


def _first_point(config: Config, threshold: float) -> dict[str, float]:
    """The settings as they are: the search can only improve on them."""
    ranges = _ranges(config, threshold)
    own = {name: getattr(config.self_train.stage1, name) for name in LOSSES}
    own |= dict.fromkeys(FACTORS, 1.0) | {
        "threshold": threshold,
        "empty_weight": config.self_train.empty_weight,
    }
    return {name: min(max(own[name], low), high) for name, (low, high) in ranges.items()}


def _searcher(config: Config, space: dict[str, Any], threshold: float) -> Any:
    first = [_first_point(config, threshold)]
    match config.tune.search:
        case "optuna":
            import optuna
            from ray.tune.search.optuna import OptunaSearch

            optuna.logging.set_verbosity(optuna.logging.WARNING)
            resolved = OptunaSearch.convert_search_space(space)
            return OptunaSearch(
                resolved, metric="objective", mode="max", points_to_evaluate=first, seed=config.seed
            )
        case "random":
            from ray.tune.search.basic_variant import BasicVariantGenerator

            return BasicVariantGenerator(points_to_evaluate=first, random_state=config.seed)


def _scheduler(config: Config) -> Any:
    if config.tune.scheduler == "none":
        return None
    from ray.tune.schedulers import ASHAScheduler

    epochs = config.tune.epochs_stage1 + config.tune.epochs_stage2 + 1
    return ASHAScheduler(
        max_t=max(2, epochs), grace_period=max(1, config.tune.epochs_stage1 // 2), reduction_factor=3
    )


def _folder_name(trial: Any) -> str:
    return str(trial.trial_id)


def _row(task: TrialTask, result: Any) -> dict[str, Any]:
    metrics = result.metrics or {}
    trial = str(metrics.get("trial_id") or str(result.path).rstrip("/").rpartition("/")[2])
    stage = open_storage(task.out, task.config.storage)
    is_done = stage.stat(f"trials/{trial}/{RESULT}") is not None
    status = "error" if result.error is not None else "done" if is_done else "stopped early"
    row: dict[str, Any] = {"trial": trial, "status": status}
    row |= {
        f"config.{name}": float(value)
        for name, value in (result.config or {}).items()
        if name in task.config.tune.parameters
    }
    row["objective"] = metrics.get("objective") if result.error is None else None
    for name in ("stage1_f1", "stage2_f1", "score_threshold", "boxes_per_chunk"):
        row[name] = metrics.get(name)
    return row | {"epochs": metrics.get("training_iteration"), "seconds": metrics.get("time_total_s")}


def _finished_trials(task: TrialTask) -> int:
    stage = open_storage(task.out, task.config.storage)
    return sum(entry.key.endswith(f"/{RESULT}") for entry in stage.list("trials"))


def _last_line(error: BaseException | None) -> str:
    lines = [line for line in str(error).strip().splitlines() if line.strip()]
    return lines[-1][:200] if lines else "no reason was given"


def _text(values: Mapping[str, Any]) -> str:
    return ", ".join(
        f"{name} {value:.4g}" if isinstance(value, float) else f"{name} {value}"
        for name, value in values.items()
    )


def _cell(value: Any) -> Any:
    return "" if value is None else value


def best_rows(rows: Sequence[Mapping[str, Any]], count: int = 5) -> list[Mapping[str, Any]]:
    """The best trials, best first."""
    return sorted(rows, key=lambda row: -row["objective"])[:count]
