"""Where the work of a stage is done, as a value handed down: in this process, or spread over Ray.

A verb makes one of the two from `--runner`; no stage asks which it got.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, Protocol

from mast_ray.config.tree import ClusterConfig
from mast_ray.storage.spread import Resources, Spread
from mast_ray.storage.stage_run import StageRun
from mast_ray.storage.storage import Storage
from mast_ray.storage.unit_progress import UnitProgress
from mast_ray.storage.unit_runner import UnitReport, Work, run_here
from mast_ray.storage.units import Unit
from mast_ray.training.worker import LocalWorker, Scorer, Worker, first_device

log = logging.getLogger("mast.runner")


class Runner(Protocol):
    """What a stage may ask for. Callables that are handed in must be importable, so that they travel."""

    @property
    def name(self) -> str: ...

    def session(self) -> AbstractContextManager[None]:
        """To be entered around the rest; entering it again inside is free."""
        ...

    def resources(self) -> Resources: ...

    def run_units(
        self, stage: Storage, units: Sequence[Unit], run: str, make_work: Callable[[], Work], spread: Spread
    ) -> Iterator[UnitReport]:
        """Every unit, reports as they come."""
        ...

    def train(
        self,
        loop: Callable[[Worker], object],
        stage: Storage,
        cluster: ClusterConfig,
        pool: Any = None,
        make_scorer: Callable[[], Scorer] | None = None,
    ) -> None:
        """A train loop to its end; what it has to say it leaves in `stage`. `pool`: what is dealt to its workers, if
        they do not read for themselves. `make_scorer`: scores weights beside the training, where there is room.
        """
        ...

    def run_tasks(
        self, tasks: Sequence[tuple[str, Callable[[Any], Any], str]], cluster: ClusterConfig
    ) -> Iterator[tuple[str, Any]]:
        """(name, result) of every (name, function, name of the task whose result it takes or "")."""
        ...


def usable_cores() -> int:
    """Cores that this process may use: those it is bound to, and no more than OMP_NUM_THREADS says where that is set."""
    bound = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    wanted = os.environ.get("OMP_NUM_THREADS", "")
    return min(bound, int(wanted)) if wanted.isdecimal() and int(wanted) > 0 else bound


@dataclass(frozen=True)
class Here:
    """This process alone."""

    name: str = "here"

    def session(self) -> AbstractContextManager[None]:
        return nullcontext()

    def resources(self) -> Resources:
        import torch

        return Resources(float(usable_cores()), float(torch.cuda.device_count()), is_one_process=True)

    def run_units(
        self, stage: Storage, units: Sequence[Unit], run: str, make_work: Callable[[], Work], spread: Spread
    ) -> Iterator[UnitReport]:
        limits = (spread.max_deaths, spread.timeout_s, spread.num_processes)
        return run_here(stage, units, run, make_work(), *limits, make_work=make_work)

    def train(
        self,
        loop: Callable[[Worker], object],
        stage: Storage,
        cluster: ClusterConfig,
        pool: Any = None,
        make_scorer: Callable[[], Scorer] | None = None,
    ) -> None:
        assert pool is None, "nobody deals here"
        if cluster.validate == "beside":
            log.warning("cluster.validate=beside: there is nothing beside one process, validation is inline")
        loop(LocalWorker(first_device(cluster.use_gpu)))

    def run_tasks(
        self, tasks: Sequence[tuple[str, Callable[[Any], Any], str]], cluster: ClusterConfig
    ) -> Iterator[tuple[str, Any]]:
        done: dict[str, Any] = {}
        for name, function, after in tasks:
            done[name] = function(done.get(after))
            yield name, done[name]


@dataclass(frozen=True)
class OnRay:
    """A Ray cluster: the one that RAY_ADDRESS names, or one that is started on this machine."""

    name: str = "ray"

    def session(self) -> AbstractContextManager[None]:
        from mast_ray.on_ray.session import ray_session

        return ray_session()

    def resources(self) -> Resources:
        from mast_ray.on_ray.session import cluster_resources

        return cluster_resources()

    def run_units(
        self, stage: Storage, units: Sequence[Unit], run: str, make_work: Callable[[], Work], spread: Spread
    ) -> Iterator[UnitReport]:
        from mast_ray.on_ray.units import run_units

        return run_units(stage, units, run, make_work, spread)

    def train(
        self,
        loop: Callable[[Worker], object],
        stage: Storage,
        cluster: ClusterConfig,
        pool: Any = None,
        make_scorer: Callable[[], Scorer] | None = None,
    ) -> None:
        from mast_ray.on_ray.training import train_on_workers

        train_on_workers(loop, stage, cluster, pool, make_scorer)

    def run_tasks(
        self, tasks: Sequence[tuple[str, Callable[[Any], Any], str]], cluster: ClusterConfig
    ) -> Iterator[tuple[str, Any]]:
        from mast_ray.on_ray.tasks import run_tasks

        return run_tasks(tasks, cluster)


def work_off(
    runner: Runner, run: StageRun, pending: Sequence[Unit], make_work: Callable[[], Work], spread: Spread
) -> None:
    """All units that are left, with a line of progress."""
    num_items, num_bytes = sum(len(unit.items) for unit in pending), sum(unit.num_bytes for unit in pending)
    progress = UnitProgress(run.name, num_items, num_bytes)
    for report in runner.run_units(run.stage, pending, run.run_id, make_work, spread):
        progress.add(report)
    progress.close()


HERE, ON_RAY = Here(), OnRay()
RUNNERS: dict[str, Runner] = {runner.name: runner for runner in (ON_RAY, HERE)}
