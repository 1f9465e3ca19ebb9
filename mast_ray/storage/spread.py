"""What there is to work with, and how units of work are spread over it."""

from __future__ import annotations

import multiprocessing
import os
import threading
from concurrent.futures import ProcessPoolExecutor
from typing import NamedTuple

from mast_ray.config.errors import TEMPORARY


class Resources(NamedTuple):
    """Of a cluster, or of this machine where all work is done in one process."""

    num_cpus: float
    num_gpus: float
    is_one_process: bool = False
    cores_per_gpu: float | None = None  # of the machines that have GPUs; None: all machines are alike

    def wants_gpus(self, use_gpu: str) -> bool:
        """Whether `cluster.use_gpu` and what there is add up to work on GPUs."""
        return use_gpu == "yes" or (use_gpu == "auto" and self.num_gpus > 0)

    def has_core_beside(self, num_workers: int, cpus_per_worker: float) -> bool:
        """Whether workers leave a whole core for tasks beside them."""
        return self.num_cpus - num_workers * cpus_per_worker >= 1.0


class Spread(NamedTuple):
    """How many work on units, with what, and how long they may be silent."""

    num_actors: int = (
        0  # processes at once, each of which builds its work once (a model); 0: made here, it travels
    )
    num_cpus: float = 1.0  # of each
    num_gpus: float = 0.0
    num_processes: int = 1  # of this machine, where there is no cluster
    max_deaths: int = 3
    timeout_s: float = 900.0


def process_pool(num_processes: int) -> ProcessPoolExecutor:
    """Fresh interpreters: a fork would copy the locks of threads, and no threads."""
    context = multiprocessing.get_context("spawn")
    return ProcessPoolExecutor(num_processes, mp_context=context, initializer=_end_with_parent)


def _end_with_parent() -> None:
    """A killed parent closes no queue: its processes would wait for work for ever."""
    parent = multiprocessing.parent_process()
    assert parent is not None, "it runs in a process of a pool"

    def wait() -> None:
        parent.join()
        os._exit(TEMPORARY)

    threading.Thread(target=wait, name="parent-watch", daemon=True).start()
