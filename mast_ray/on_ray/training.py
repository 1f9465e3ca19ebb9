"""The only TorchTrainer: a train loop, handed in, on Ray's workers, started again when one dies.

Checkpoints are the loop's own affair, so Ray only restarts it. A user's mistake is not retried: the worker
that meets one leaves it in the output folder, and the driver raises it.
"""

from __future__ import annotations

import json
import logging
import os
import secrets
from collections.abc import Callable, Mapping
from typing import Any

import ray.train
import ray.train.torch

from mast_ray.config.errors import MastError, TemporaryError
from mast_ray.config.signals import interruptible
from mast_ray.config.tree import ClusterConfig
from mast_ray.on_ray.ray_folder import RAY_FOLDER, clean_ray_folder, ray_storage
from mast_ray.on_ray.session import cluster_resources, ray_session
from mast_ray.storage.storage import Storage
from mast_ray.training.worker import GroupWorker, Worker

TrainLoop = Callable[[Worker], object]  # importable, so that it travels


def train_on_workers(loop: TrainLoop, stage: Storage, cluster: ClusterConfig) -> None:
    """Start (or join) Ray and run `loop` on every worker, with restarts, until it has come to its end."""
    attempt = secrets.token_hex(4)
    os.environ.setdefault("RAY_TRAIN_ENABLE_PRINT_PATCH", "0")
    os.environ.setdefault("RAY_TRAIN_ENABLE_PREEMPTION_WATCHER", "0")
    with ray_session():
        use_gpu = cluster_resources().wants_gpus(cluster.use_gpu)
        trainer = ray.train.torch.TorchTrainer(
            run_worker,
            train_loop_config={"loop": loop, "stage": stage, "attempt": attempt},
            torch_config=ray.train.torch.TorchConfig(backend="nccl" if use_gpu else "gloo"),
            scaling_config=ray.train.ScalingConfig(
                num_workers=_num_workers(cluster),
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
            with interruptible():
                trainer.fit()
        except Exception as error:
            _raise_mistake(stage, attempt)
            raise TemporaryError(
                f"training stopped after {cluster.max_failures} restarts: {_last_line(error)}\n"
                "the checkpoints are kept: run the same command again, or with --debug for the whole story"
            ) from error
    _raise_mistake(stage, attempt)
    clean_ray_folder(stage)


class RayWorker(GroupWorker):
    """A rank of Ray Train's process group; reports keep Ray informed, our own table keeps the numbers."""

    def report(self, metrics: Mapping[str, float]) -> None:
        ray.train.report(dict(metrics))


def run_worker(settings: dict[str, Any]) -> None:
    """What one Ray Train worker does."""
    stage, mistake = settings["stage"], _mistake_key(settings["attempt"])
    if stage.stat(mistake) is not None:
        return  # another worker met a mistake that a restart does not cure
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    try:
        settings["loop"](RayWorker(ray.train.torch.get_device()))
    except TemporaryError:
        raise
    except MastError as error:
        met = {"text": str(error), "exit_code": error.exit_code}
        stage.write_atomic(mistake, json.dumps(met).encode())
        raise


class WorkerMistake(MastError):
    """A user's mistake that a worker met, with its exit code."""

    def __init__(self, text: str, exit_code: int) -> None:
        super().__init__(text)
        self.exit_code = exit_code


def _raise_mistake(stage: Storage, attempt: str) -> None:
    key = _mistake_key(attempt)
    if stage.stat(key) is not None:
        met = json.loads(stage.read_bytes(key))
        stage.delete(key)
        clean_ray_folder(stage)
        raise WorkerMistake(met["text"], met["exit_code"])


def _mistake_key(attempt: str) -> str:
    return f"{RAY_FOLDER}/mistake-{attempt}.json"


def _num_workers(cluster: ClusterConfig) -> int | tuple[int, int]:
    """A fixed number, or a range when `cluster.min_workers` allows fewer: an elastic run goes on with what is left."""
    if 0 < cluster.min_workers < cluster.num_workers:
        return cluster.min_workers, cluster.num_workers
    return cluster.num_workers


def _last_line(error: BaseException) -> str:
    cause = error.__cause__ or error
    lines = [line for line in str(cause).strip().splitlines() if line.strip()]
    return lines[-1][:200] if lines else type(cause).__name__
