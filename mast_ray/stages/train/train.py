"""Training stages: a task on Ray Train workers or in this interpreter, and the folder it leaves.

The checkpoints are our own (training/files/checkpoints.py), so a worker's death, a driver's death and another
number of workers are all the same thing: the task starts again and finds where it was. Ray only
restarts it. A user's mistake is not retried.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from typing import Literal

from mast_ray.config.errors import ConfigError, DataError
from mast_ray.config.loading import apply_overrides, config_to_yaml
from mast_ray.config.tree import Config
from mast_ray.stages.runner import ON_RAY, Runner
from mast_ray.stages.train.export import run_files
from mast_ray.stages.train.pool import (
    CONFIG,
    FeedChoice,
    Task,
    TaskPool,
    began_with,
    choose_feed,
    trains_on_pool,
)
from mast_ray.stages.train.summary import SUMMARY, TrainSummary, read_summary
from mast_ray.stages.train.work import (
    DetectorTask,
    PretrainTask,
    archive_inputs_of,
    identity_of,
    init_hash,
    run_identity,
)
from mast_ray.storage.outputs import remove_scratch
from mast_ray.storage.spread import Resources
from mast_ray.storage.stage_folders import text_hash
from mast_ray.storage.stage_run import open_output, stage_run
from mast_ray.storage.storage import Storage, full_url
from mast_ray.tables.joining import one_archive
from mast_ray.tables.prepared import Prepared, data_hash, open_prepared
from mast_ray.training.data.archive_inputs import refuse_unfit_starts, with_model_of
from mast_ray.training.data.labels import LabelSource, with_content
from mast_ray.training.files.checkpoints import refuse_another_run
from mast_ray.training.files.model_files import read_card

log = logging.getLogger("mast.training")


def run_pretrain(
    config: Config, prepared: str | Sequence[str], out: str, *, runner: Runner = ON_RAY
) -> TrainSummary:
    """Masked pretraining of the pool of a prepared archive, or of several, into a model folder."""
    refuse_unfit_starts(config, config.pretrain.init)
    archive = one_archive(prepared, out, "pretrain", config)
    task = PretrainTask(config, archive, full_url(out), init_encoder=full_url(config.pretrain.init))
    return run_task(task, "pretrain", runner)


def run_train_detector(
    config: Config,
    prepared: str | Sequence[str],
    out: str,
    *,
    section: Literal["detector", "self_train.stage1", "self_train.stage2"] = "detector",
    labels: LabelSource = LabelSource(),  # noqa: B008 (frozen)
    init_encoder: str = "",
    init_detector: str = "",
    runner: Runner = ON_RAY,
) -> TrainSummary:
    """Detector training into a model folder. `section` names the knobs in the config.

    From another detector: of its architecture, and with its statistics, whatever the archive.
    """
    refuse_unfit_starts(config, init_encoder, init_detector)
    if init_detector:
        config = with_model_of(config, read_card(init_detector, config.storage), init_detector)
    labels = with_content(replace(labels, folder=full_url(labels.folder)), config.storage)
    task = DetectorTask(
        config,
        one_archive(prepared, out, "train", config),
        full_url(out),
        section,
        labels,
        full_url(init_encoder),
        full_url(init_detector),
    )
    return run_task(task, "train", runner)


def run_task(task: Task, stage_name: str, runner: Runner) -> TrainSummary:
    """Run a task unless its folder already holds the result; one run at a time per folder."""
    stage = open_output(task.out, stage_name, task.config.storage)
    prepared = open_prepared(task.prepared, task.config.storage)
    with ExitStack() as stack:
        task, feed = with_feed(task, prepared, stage, runner, stack)
        key = text_hash(json.dumps([identity_of(task, prepared), task_inputs(task)], sort_keys=True))
        inputs = {"prepared": data_hash(prepared)}
        run = stack.enter_context(stage_run(stage, stage_name, task.config, key, inputs))
        if run.done is not None:
            log.info("%s is already trained: nothing to do", stage.url)
            return replace(read_summary(stage), was_done=True)
        checkpoints = run_files(stage, 1).checkpoints
        # before anything is written: a refused command must leave the record of the run that is there
        refuse_another_run(checkpoints.storage, checkpoints.newest_identity(), run_identity(task, prepared))
        archive_inputs_of(
            task, say=False
        )  # an older archive's backgrounds are measured here, not by every worker
        run.begin_anew()
        remove_scratch(stage)  # of a run that was killed while it wrote
        stage.write_atomic(CONFIG, config_to_yaml(task.config).encode())
        stage.delete(SUMMARY)
        log.info("feed %s (%s)", *feed)
        pool = TaskPool(task) if feed.name == "ray_data" else None
        try:
            runner.train(task.run, stage, task.config.cluster, pool, task.scorer)
        except (ConfigError, DataError):
            if not any(checkpoints.storage.list()):  # refused: nothing goes on as that command said
                stage.delete(CONFIG)
            raise
        summary = read_summary(stage)
        run.finish(summary.counts())
        return summary


def with_feed(
    task: Task, prepared: Prepared, stage: Storage, runner: Runner, stack: ExitStack
) -> tuple[Task, FeedChoice]:
    """The task with its feed settled: the order of samples is part of what a run is."""
    began, cluster = began_with(stage), None
    if runner.name == "ray":
        cluster = Resources(0.0, 0.0)
        if task.config.cluster.feed == "auto" and trains_on_pool(task) and not began:
            stack.enter_context(runner.session())  # the training's own, opened early
            cluster = runner.resources()
    choice = choose_feed(task, prepared, cluster, began)
    return replace(task, config=apply_overrides(task.config, {"cluster.feed": choice.name})), choice


def task_inputs(task: Task) -> list[str]:
    """What a task starts from, besides the prepared archive."""
    if isinstance(task, PretrainTask):
        return []
    return [task.labels.describe(), *(init_hash(task, name) for name in ("init_encoder", "init_detector"))]
