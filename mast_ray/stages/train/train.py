"""Training stages: a task on Ray Train workers or in this interpreter, and the folder it leaves.

The checkpoints are our own (training/checkpoints.py), so a worker's death, a driver's death and another
number of workers are all the same thing: the task starts again and finds where it was. Ray only
restarts it. A user's mistake is not retried.
"""

from __future__ import annotations

import json
import logging
import os
import secrets
from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any, Literal

from mast_ray.config.errors import MastError, TemporaryError
from mast_ray.config.loading import config_to_yaml
from mast_ray.config.tree import Config
from mast_ray.stages.prepare import lease_or_stop
from mast_ray.stages.train.work import (
    SUMMARY,
    DetectorTask,
    PretrainTask,
    data_hash,
    identity_of,
    init_hash,
    run_files,
    run_identity,
)
from mast_ray.storage.stage_folders import (
    is_current,
    read_manifest,
    refuse_foreign,
    text_hash,
    write_manifest,
)
from mast_ray.storage.storage import Storage, open_storage
from mast_ray.tables.prepared import open_prepared
from mast_ray.training.checkpoints import refuse_another_run
from mast_ray.training.labels import LabelSource
from mast_ray.training.worker import GroupWorker, LocalWorker, Worker, first_device

log = logging.getLogger("mast.training")

Runner = Literal["ray", "here"]  # spread over Ray, or stay in this process
Task = PretrainTask | DetectorTask
RAY_FOLDER = "ray"


def run_pretrain(config: Config, prepared: str, out: str, *, runner: Runner = "ray") -> dict[str, Any]:
    """Masked pretraining of a prepared archive's pool into a model folder; returns its summary."""
    return run_task(PretrainTask(config, full_url(prepared), full_url(out)), "pretrain", runner)


def run_train_detector(
    config: Config,
    prepared: str,
    out: str,
    *,
    section: Literal["detector", "self_train.stage1", "self_train.stage2"] = "detector",
    labels: LabelSource = LabelSource(),  # noqa: B008 (frozen)
    init_encoder: str = "",
    init_detector: str = "",
    runner: Runner = "ray",
) -> dict[str, Any]:
    """Detector training into a model folder; returns its summary. `section` names the knobs in the config."""
    labels = replace(labels, folder=full_url(labels.folder))
    task = DetectorTask(
        config,
        full_url(prepared),
        full_url(out),
        section,
        labels,
        full_url(init_encoder),
        full_url(init_detector),
    )
    return run_task(task, "train", runner)


def full_url(place: str) -> str:
    """A place as any process sees it: Ray Train moves its workers to a folder of their own,
    where relative paths lead astray.
    """
    return open_storage(place).url if place else ""


def run_task(task: Task, stage_name: str, runner: Runner) -> dict[str, Any]:
    """Run a task unless its folder already holds the result; one run at a time per folder."""
    stage = open_storage(task.out, task.config.storage)
    refuse_foreign(stage, stage_name)
    prepared = open_prepared(task.prepared, task.config.storage)
    key = text_hash(json.dumps([identity_of(task, prepared), task_inputs(task)], sort_keys=True))
    inputs = {"prepared": data_hash(prepared)}
    if is_current(read_manifest(stage), stage_name, key, inputs):
        log.info("%s is already trained: nothing to do", stage.url)
        return json.loads(stage.read_bytes(SUMMARY)) | {"was_done": True}
    with lease_or_stop(stage):
        checkpoints = run_files(stage, 1).checkpoints
        # before anything is written: a refused command must leave the record of the run that is there
        refuse_another_run(checkpoints.storage, checkpoints.newest_identity(), run_identity(task, prepared))
        stage.write_atomic("config.yaml", config_to_yaml(task.config).encode())
        match runner:
            case "here":
                summary = task.run(LocalWorker(first_device(task.config.cluster.use_gpu)))
            case "ray":
                summary = _run_on_ray(task, stage)
        counts = {name: summary[name] for name in ("steps", "samples", "train_chunks", "skipped_steps")}
        write_manifest(stage, stage_name, task.config, key, inputs, counts, datetime.now(UTC))
    return summary | {"was_done": False}


def task_inputs(task: Task) -> list[str]:
    """What a task starts from, besides the prepared archive."""
    if isinstance(task, PretrainTask):
        return []
    return [task.labels.describe(), *(init_hash(task, name) for name in ("init_encoder", "init_detector"))]


class RayWorker(GroupWorker):
    """A rank of Ray Train's process group; reports keep Ray informed, our own table keeps the numbers."""

    def report(self, metrics: Mapping[str, float]) -> None:
        import ray.train

        ray.train.report(dict(metrics))


def _run_on_ray(task: Task, stage: Storage) -> dict[str, Any]:
    """Start (or join) Ray, train with restarts, and return the summary that rank 0 left."""
    import ray.train
    import ray.train.torch

    from mast_ray.on_ray.session import ray_session

    cluster = task.config.cluster
    attempt = secrets.token_hex(4)
    stage.delete(SUMMARY)
    os.environ.setdefault("RAY_TRAIN_ENABLE_PRINT_PATCH", "0")
    os.environ.setdefault("RAY_TRAIN_ENABLE_PREEMPTION_WATCHER", "0")
    with ray_session():
        use_gpu = cluster.use_gpu == "yes" or (cluster.use_gpu == "auto" and _cluster_has_gpus())
        trainer = ray.train.torch.TorchTrainer(
            run_worker,
            train_loop_config={"task": task, "attempt": attempt},
            torch_config=ray.train.torch.TorchConfig(backend="nccl" if use_gpu else "gloo"),
            scaling_config=ray.train.ScalingConfig(
                num_workers=_num_workers(task.config),
                use_gpu=use_gpu,
                resources_per_worker={"CPU": cluster.cpus_per_worker} | ({"GPU": 1} if use_gpu else {}),
            ),
            run_config=ray.train.RunConfig(
                name=f"mast-{attempt}",
                failure_config=ray.train.FailureConfig(max_failures=cluster.max_failures),
                **ray_storage(stage),
            ),
        )
        try:
            trainer.fit()
        except Exception as error:
            _raise_told(stage, attempt)
            raise TemporaryError(
                f"training stopped after {cluster.max_failures} restarts: {_first_line(error)}\n"
                "the checkpoints are kept: run the same command again, or with --debug for the whole story"
            ) from error
    _raise_told(stage, attempt)
    _clean_ray_folder(stage)
    try:
        return json.loads(stage.read_bytes(SUMMARY))
    except FileNotFoundError as error:
        raise TemporaryError("training ended without a result: run the same command again") from error


def run_worker(settings: dict[str, Any]) -> None:
    """The train loop of one Ray Train worker. A user's mistake is told to the
    driver instead of being retried.
    """
    import ray.train.torch

    task: Task = settings["task"]
    stage = open_storage(task.out, task.config.storage)
    if stage.stat(_told_key(settings["attempt"])) is not None:
        return  # another worker met a mistake that a restart does not cure
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    worker: Worker = RayWorker(ray.train.torch.get_device())
    try:
        task.run(worker)
    except TemporaryError:
        raise
    except MastError as error:
        told = {"text": str(error), "exit_code": error.exit_code}
        stage.write_atomic(_told_key(settings["attempt"]), json.dumps(told).encode())
        raise


class ToldError(MastError):
    """A MastError that a worker met, with its exit code."""

    def __init__(self, text: str, exit_code: int) -> None:
        super().__init__(text)
        self.exit_code = exit_code


def _raise_told(stage: Storage, attempt: str) -> None:
    key = _told_key(attempt)
    if stage.stat(key) is not None:
        told = json.loads(stage.read_bytes(key))
        stage.delete(key)
        _clean_ray_folder(stage)
        raise ToldError(told["text"], told["exit_code"])


def _told_key(attempt: str) -> str:
    return f"{RAY_FOLDER}/mistake-{attempt}.json"


def _num_workers(config: Config) -> int | tuple[int, int]:
    """A fixed number, or a range when `cluster.min_workers` allows fewer: an elastic
    run goes on with what is left.
    """
    least = getattr(config.cluster, "min_workers", 0)
    return (
        (least, config.cluster.num_workers)
        if 0 < least < config.cluster.num_workers
        else config.cluster.num_workers
    )


def _cluster_has_gpus() -> bool:
    import ray

    return ray.cluster_resources().get("GPU", 0) > 0


def ray_storage(stage: Storage) -> dict[str, Any]:
    """Where Ray keeps its own bookkeeping: beside ours, because every node can reach that."""
    filesystem, path = stage.at(RAY_FOLDER).arrow()
    if stage.local_path("") is not None:
        return {"storage_path": path}
    return {"storage_filesystem": filesystem, "storage_path": path}


def _clean_ray_folder(stage: Storage) -> None:
    for entry in list(stage.list(RAY_FOLDER)):
        stage.delete(entry.key)
    folder = stage.local_path(RAY_FOLDER)
    if folder is not None and folder.is_dir():
        for path in sorted(folder.rglob("*"), reverse=True):
            if path.is_dir() and not any(path.iterdir()):
                path.rmdir()
        if not any(folder.iterdir()):
            folder.rmdir()


def _first_line(error: BaseException) -> str:
    cause = error.__cause__ or error
    lines = [line for line in str(cause).strip().splitlines() if line.strip()]
    return lines[-1][:200] if lines else type(cause).__name__
