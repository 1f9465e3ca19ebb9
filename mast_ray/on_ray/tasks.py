"""Plain functions as Ray tasks, each of which may wait for the result of another."""

from __future__ import annotations

import contextlib
import io
import logging
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import ray
import torch

from mast_ray.config.errors import TemporaryError
from mast_ray.config.tree import ClusterConfig
from mast_ray.on_ray.session import cluster_resources, ray_session, refuse_more_than_there_is

Function = Callable[[Any], Any]


def run_tasks(
    tasks: Sequence[tuple[str, Function, str]], cluster: ClusterConfig
) -> Iterator[tuple[str, Any]]:
    """(name, result) as they come, of (name, function, name of the task whose result it takes or ""). A task whose
    workers were lost too often gives a TemporaryError as its result; so do those that wait for it.
    """
    with ray_session():
        num_gpus = 1 if cluster_resources().wants_gpus(cluster.use_gpu) else 0
        refuse_more_than_there_is(1, cluster.cpus_per_worker, num_gpus)
        remote = ray.remote(
            num_cpus=cluster.cpus_per_worker, num_gpus=num_gpus, max_retries=cluster.max_failures
        )(_run)
        waiting: dict[str, Any] = {}
        for name, function, after in tasks:  # Ray starts a task once the one it waits for has ended
            waiting[name] = remote.remote(function, waiting.get(after), cluster.cpus_per_worker)
        name_of = {reference: name for name, reference in waiting.items()}
        left = list(name_of)
        try:
            while left:
                ready, left = ray.wait(left, num_returns=1)
                try:
                    yield name_of[ready[0]], ray.get(ready[0])
                except ray.exceptions.RayError as error:
                    text = str(error).strip().splitlines()[0][:300]
                    yield name_of[ready[0]], TemporaryError(f"its worker was lost: {text}")
        finally:
            for reference in left:  # a cluster that we only joined would go on with them
                ray.cancel(reference, force=True)


def _run(function: Function, before: Any, num_cpus: float) -> Any:
    logging.basicConfig(level=logging.WARNING, format="%(message)s")
    torch.set_num_threads(max(1, int(num_cpus)))
    # progress lines of several tasks at once tell nobody anything
    with contextlib.redirect_stderr(io.StringIO()):
        return function(before)
