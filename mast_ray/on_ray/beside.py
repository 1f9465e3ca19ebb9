"""Weights scored beside the training: an actor on a GPU to spare, on a share of one, or on cores of its own.

It reads the weights where a run puts them aside, so nothing large travels, and answers in the order it was asked. Ray
starts it again when its machine is lost.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import ray
import torch

from mast_ray.config.tree import ClusterConfig
from mast_ray.on_ray.units import worker_error
from mast_ray.storage.spread import Resources
from mast_ray.training.worker import Scorer

SHARE = 0.1  # of a GPU that a training worker has: neither of them is alone on it


class Room(NamedTuple):
    """What the scorer gets, and what is left for a training worker."""

    num_cpus: float
    num_gpus: float
    gpus_per_worker: float
    where: str


def room_beside(cluster: ClusterConfig, offered: Resources, use_gpu: bool) -> Room | None:
    """Where weights are scored beside the training; None: the workers score them themselves."""
    if cluster.validate == "inline":
        return None
    spare_cpus = offered.num_cpus - cluster.num_workers * cluster.cpus_per_worker
    num_cpus = cluster.cpus_per_worker if spare_cpus >= cluster.cpus_per_worker else 0.0
    if use_gpu and offered.num_gpus >= cluster.num_workers + 1:
        return Room(num_cpus, 1.0, 1.0, "on a GPU to spare")
    if cluster.validate == "auto":
        return None
    if use_gpu:
        return Room(num_cpus, SHARE, 1.0 - SHARE, f"on {SHARE:g} of a worker's GPU")
    return Room(num_cpus, 0.0, 0.0, "on cores to spare" if num_cpus else "on the workers' cores")


class ScoringActor:
    """Makes the scorer when it is first asked: training does not wait for it."""

    def __init__(self, make_scorer: Callable[[], Scorer], num_threads: int) -> None:
        self._make, self._num_threads = make_scorer, num_threads
        self._made: Scorer | None = None

    def figures(self, step: int) -> dict[str, float]:
        if self._made is None:
            torch.set_num_threads(self._num_threads)
            self._made = self._make()
        return self._made(step)


def start_scorer(make_scorer: Callable[[], Scorer], room: Room) -> Any:
    """A handle that training workers may hold."""
    actor = ray.remote(num_cpus=room.num_cpus, num_gpus=room.num_gpus, max_restarts=-1, max_task_retries=-1)(
        ScoringActor
    )
    return actor.remote(make_scorer, max(1, int(room.num_cpus)))


class BesideOnRay:
    """What rank 0 knows of the scorer: what it was asked, in order."""

    def __init__(self, actor: Any) -> None:
        self._actor = actor
        self._asked: deque[tuple[int, Any]] = deque()

    def submit(self, step: int) -> None:
        self._asked.append((step, self._actor.figures.remote(step)))

    def ready(self, waits: Literal["no", "yes"]) -> list[tuple[int, dict[str, float]]]:
        found = []
        while self._asked:
            step, asked = self._asked[0]
            if waits == "no" and not ray.wait([asked], timeout=0)[0]:
                break
            try:
                found.append((step, ray.get(asked)))
            except ray.exceptions.RayError as error:
                raise worker_error(error) from error
            self._asked.popleft()
        return found
