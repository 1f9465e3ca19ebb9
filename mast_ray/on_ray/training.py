"""The only TorchTrainer: a train loop, handed in, on Ray's workers, started again when one dies.

Checkpoints are the loop's own affair, so Ray only restarts it. What no restart cures (a user's mistake, a full disk, a
store that stayed away) is not retried: the worker that meets it tells a tiny actor, because the output may be what is
full, and the driver raises it.
"""

from __future__ import annotations

import errno
import logging
import os
import secrets
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, TypeGuard

import ray
import ray.train
import ray.train.torch
import torch

from mast_ray.config.chatter import keep
from mast_ray.config.errors import MastError, TemporaryError
from mast_ray.config.signals import interruptible
from mast_ray.config.tree import ClusterConfig
from mast_ray.on_ray.beside import BesideOnRay, room_beside, start_scorer
from mast_ray.on_ray.dealing import Pool, datasets_of, deal_of_worker
from mast_ray.on_ray.ray_folder import clean_ray_folder, ray_storage
from mast_ray.on_ray.session import cluster_resources, ray_session, refuse_more_than_there_is
from mast_ray.on_ray.told_errors import Heard
from mast_ray.on_ray.units import raise_told, told
from mast_ray.on_ray.warm_workers import start_server
from mast_ray.storage.storage import Storage
from mast_ray.training.worker import GroupWorker, Scorer, Worker

log = logging.getLogger("mast.training")
# of an OSError: another start on the same disk meets the same
NO_CURE = {errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EPERM}
# where Ray Train writes the traceback of whatever ends a worker, also of what a restart cures or our error says
RAYS_PAGES = "ray.train.v2._internal.util"
TrainLoop = Callable[[Worker], object]  # importable, so that it travels


def train_on_workers(
    loop: TrainLoop,
    stage: Storage,
    cluster: ClusterConfig,
    pool: Pool | None = None,
    make_scorer: Callable[[], Scorer] | None = None,
) -> None:
    """Start (or join) Ray and run `loop` on every worker, with restarts, until it has come to its end. A pool is dealt
    to the workers by Ray Data; weights are scored beside them where there is room.
    """
    attempt = secrets.token_hex(4)
    os.environ.setdefault("RAY_TRAIN_ENABLE_PRINT_PATCH", "0")
    os.environ.setdefault("RAY_TRAIN_ENABLE_PREEMPTION_WATCHER", "0")
    if "RAY_ADDRESS" not in os.environ:  # few workers, close by: asked oftener, their end is seen sooner
        os.environ.setdefault("RAY_TRAIN_HEALTH_CHECK_INTERVAL_S", "0.5")
    with ray_session():
        start_server()
        use_gpu = cluster_resources().wants_gpus(cluster.use_gpu)
        refuse_more_than_there_is(_least_workers(cluster), cluster.cpus_per_worker, 1.0 if use_gpu else 0.0)
        heard = Told(_heard_of_session(), attempt)
        room = room_beside(cluster, cluster_resources(), use_gpu) if make_scorer is not None else None
        scorer = None
        if make_scorer is not None and room is not None:
            log.info("validation beside the training, %s", room.where)
            scorer = start_scorer(make_scorer, room)
        gpus = 1.0 if room is None else room.gpus_per_worker
        datasets = None if pool is None else datasets_of(pool, cluster)
        trainer = Trainer(
            run_worker,
            train_loop_config={
                "loop": loop,
                "heard": heard,
                "is_dealt": datasets is not None,
                "scorer": scorer,
            },
            **({} if datasets is None else {"datasets": datasets.made, "dataset_config": datasets.config}),
            torch_config=ray.train.torch.TorchConfig(backend="nccl" if use_gpu else "gloo"),
            scaling_config=ray.train.ScalingConfig(
                num_workers=_num_workers(cluster),
                use_gpu=use_gpu,
                resources_per_worker={"CPU": cluster.cpus_per_worker} | ({"GPU": gpus} if use_gpu else {}),
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
            keep(str(error))
            _raise_heard(stage, heard)
            raise TemporaryError(
                f"training stopped after {cluster.max_failures} restarts: {_last_line(error)}\n"
                "the checkpoints are kept: run the same command again, or with --debug for the whole story"
            ) from error
        finally:
            if scorer is not None:  # a cluster that we only joined would keep it
                with suppress(ray.exceptions.RayError):
                    ray.kill(scorer)
        _raise_heard(stage, heard)
    clean_ray_folder(stage)


class Trainer(ray.train.torch.TorchTrainer):
    """Ctrl-C is our own while it trains, as SIGTERM is: Ray's handler ends the process with 1 and without a word."""

    def _register_sigint_handler(self, controller: Any) -> None:
        pass


@dataclass(frozen=True)
class Told:
    """What the workers of one training told, in an actor that serves all trainings of a session."""

    heard: Any
    training: str

    def tell(self, text: str) -> None:
        ray.get(self.heard.tell.remote(self.training, text))

    def ask(self, timeout_s: float | None = None) -> str:
        return ray.get(self.heard.ask.remote(self.training), timeout=timeout_s)


_heard: tuple[str, Any] | None = None  # of the session that this process is in


def _heard_of_session() -> Any:
    """Every process that Ray starts costs a second: one actor for all trainings; Ray starts it again when it is lost."""
    global _heard
    session = ray.get_runtime_context().get_node_id() + ray.get_runtime_context().get_job_id()
    if _heard is None or _heard[0] != session:
        _heard = (session, ray.remote(num_cpus=0, max_restarts=-1, max_task_retries=-1)(Heard).remote())
    return _heard[1]


class RayWorker(GroupWorker):
    """A rank of Ray Train's process group; reports keep Ray informed, our own table keeps the numbers."""

    def __init__(self, device: torch.device, is_dealt: bool = False, scorer: Any = None) -> None:
        super().__init__(device)
        if is_dealt:
            self.deal = deal_of_worker()
        if scorer is not None:
            self.beside = BesideOnRay(scorer)

    def report(self, metrics: Mapping[str, float]) -> None:
        ray.train.report(dict(metrics))


def run_worker(settings: dict[str, Any]) -> None:
    """What one Ray Train worker does."""
    heard: Told = settings["heard"]
    if heard.ask():
        return  # another worker met what a restart does not cure
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    if not os.environ.get("MAST_DEBUG"):
        logging.getLogger(RAYS_PAGES).setLevel(logging.CRITICAL)
    threads = os.environ.get("OMP_NUM_THREADS", "")
    if threads.isdigit():  # Ray has set it: too late where torch was there before (worker_server.py)
        torch.set_num_threads(int(threads))
    worker = RayWorker(ray.train.torch.get_device(), settings["is_dealt"], settings["scorer"])
    try:
        settings["loop"](worker)
    except Exception as error:
        if not _has_no_cure(error):
            log.warning("training interrupted: %s", _last_line(error))
            raise
        heard.tell(told(error))
        if worker.world_size > 1:
            raise  # the others wait for this one: Ray ends them, and the next start finds what was told


def _has_no_cure(error: Exception) -> TypeGuard[MastError | OSError]:
    return isinstance(error, MastError) or (isinstance(error, OSError) and error.errno in NO_CURE)


def _raise_heard(stage: Storage, heard: Told) -> None:
    """Raise what a worker told, if one did."""
    try:
        text = heard.ask(timeout_s=10.0)
    except ray.exceptions.RayError:  # the cluster is gone, and what it knew
        return
    if text:
        with suppress(OSError, TemporaryError):  # the disk that is full, the store that is away
            clean_ray_folder(stage)
        raise_told(text)


def _num_workers(cluster: ClusterConfig) -> int | tuple[int, int]:
    """A fixed number, or a range when `cluster.min_workers` allows fewer: an elastic run goes on with what is left."""
    if 0 < cluster.min_workers < cluster.num_workers:
        return cluster.min_workers, cluster.num_workers
    return cluster.num_workers


def _least_workers(cluster: ClusterConfig) -> int:
    """With how many a training begins."""
    wanted = _num_workers(cluster)
    return wanted if isinstance(wanted, int) else wanted[0]


def _last_line(error: BaseException) -> str:
    cause = error.__cause__ or error
    lines = [line for line in str(cause).strip().splitlines() if line.strip()]
    return lines[-1][:200] if lines else type(cause).__name__
