"""Many independent runs, as Ray tasks or one after the other: those that wait for
others start when these are done.

A run is a function of plain values that skips what it has already done (stages with manifests), so a
grid that was stopped goes on where it was, and a task whose worker died is simply started again. A
run that fails does not stop the others.
"""

from __future__ import annotations

import contextlib
import io
import logging
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch

from mast_ray.config.errors import MastError, PartialError
from mast_ray.config.tree import Config

log = logging.getLogger("mast.grid")

Runner = Literal["ray", "here"]


@dataclass(frozen=True)
class Run:
    """One cell of a study."""

    name: str
    function: Callable[..., dict[str, Any]]  # importable, so that it travels
    arguments: tuple[Any, ...]
    after: str = ""  # name of a run that must have succeeded before


@dataclass(frozen=True)
class Outcome:
    name: str
    result: dict[str, Any] | None
    error: str = ""  # one line
    exit_code: int = 0


def run_grid(runs: Sequence[Run], config: Config, runner: Runner) -> dict[str, Outcome]:
    """Outcomes by name. Runs come in an order in which `after` is earlier."""
    known: set[str] = set()
    for run in runs:
        assert not run.after or run.after in known, f"{run.name} comes before {run.after}"
        known.add(run.name)
    outcomes: dict[str, Outcome] = {}
    log.info("%d runs", len(runs))
    for outcome in _here(runs) if runner == "here" else _on_ray(runs, config):
        outcomes[outcome.name] = outcome
        state = f"failed: {outcome.error}" if outcome.error else "done"
        log.info("[%d/%d] %s %s", len(outcomes), len(runs), outcome.name, state)
    return outcomes


def refuse_failures(outcomes: dict[str, Outcome], where: str) -> None:
    """PartialError naming what failed, once everything else is written; the run's own
    error when nothing succeeded.
    """
    failed = [outcome for outcome in outcomes.values() if outcome.error]
    if not failed:
        return
    first = f"{failed[0].name}: {failed[0].error}"
    if len(failed) == len(outcomes):
        error = MastError(
            f"every run failed; the first was {first}\n{where} keeps what was done: run the same command again"
        )
        error.exit_code = failed[0].exit_code
        raise error
    raise PartialError(
        f"{len(failed)} of {len(outcomes)} runs failed and are missing from the tables; the first was {first}\n"
        "run the same command again: what is done is skipped"
    )


def _here(runs: Sequence[Run]) -> Iterator[Outcome]:
    done: dict[str, Outcome] = {}
    for run in runs:
        before = done.get(run.after)
        done[run.name] = _attempt(run, before)
        yield done[run.name]


def _attempt(run: Run, before: Outcome | None) -> Outcome:
    if before is not None and before.error:
        return Outcome(run.name, None, f"{before.name} failed before it", before.exit_code)
    try:
        return Outcome(run.name, run.function(*run.arguments))
    except Exception as error:
        if os.environ.get("MAST_DEBUG"):
            raise
        lines = str(error).strip().splitlines() or [type(error).__name__]
        text = " ".join(lines) if isinstance(error, MastError) else f"{type(error).__name__}: {lines[0]}"
        return Outcome(run.name, None, text[:400], getattr(error, "exit_code", 1))


def _on_ray(runs: Sequence[Run], config: Config) -> Iterator[Outcome]:
    import ray

    from mast_ray.on_ray.session import cluster_resources, ray_session

    cluster = config.cluster
    with ray_session():
        num_gpus = 1 if cluster_resources().wants_gpus(cluster.use_gpu) else 0
        task = ray.remote(
            num_cpus=cluster.cpus_per_worker, num_gpus=num_gpus, max_retries=cluster.max_failures
        )(_attempt_on_worker)
        waiting: dict[str, Any] = {}
        for run in runs:  # Ray starts a task once the one it waits for has ended
            waiting[run.name] = task.remote(run, waiting.get(run.after), cluster.cpus_per_worker)
        name_of = {reference: name for name, reference in waiting.items()}
        left = list(name_of)
        try:
            while left:
                ready, left = ray.wait(left, num_returns=1)
                try:
                    yield ray.get(ready[0])
                except ray.exceptions.RayError as error:
                    text = str(error).strip().splitlines()[0][:300]
                    yield Outcome(name_of[ready[0]], None, f"its worker was lost: {text}", 75)
        finally:
            for reference in left:  # a cluster that we only joined would go on with them
                ray.cancel(reference, force=True)


def _attempt_on_worker(run: Run, before: Outcome | None, num_cpus: float) -> Outcome:
    logging.basicConfig(level=logging.WARNING, format="%(message)s")
    torch.set_num_threads(max(1, int(num_cpus)))
    # progress lines of several runs at once tell nobody anything
    with contextlib.redirect_stderr(io.StringIO()):
        return _attempt(run, before)
