"""Many independent runs: those that wait for others start when these are done.

A run is a function of plain values that skips what it has already done (stages with manifests), so a
grid that was stopped goes on where it was, and a task whose worker died is simply started again. A
run that fails does not stop the others.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from mast_ray.config.errors import CONFIG, DATA, MastError, PartialError
from mast_ray.config.tree import Config
from mast_ray.stages.runner import Runner

log = logging.getLogger("mast.grid")


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
    tasks = [(run.name, partial(attempt, run), run.after) for run in runs]
    for name, found in runner.run_tasks(tasks, config.cluster):
        outcome = found if isinstance(found, Outcome) else Outcome(name, None, str(found), found.exit_code)
        outcomes[name] = outcome
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
    refuse_all_failed(outcomes, where)
    raise PartialError(
        f"{len(failed)} of {len(outcomes)} runs failed and are missing from the tables; the first was {first}\n"
        f"{_again(failed[0])}: what is done is skipped"
    )


def refuse_all_failed(outcomes: dict[str, Outcome], where: str) -> None:
    """Before anything is written: tables of nothing would go over those of an earlier, finished study."""
    failed = [outcome for outcome in outcomes.values() if outcome.error]
    if failed and len(failed) == len(outcomes):
        error = MastError(
            f"every run failed; the first was {failed[0].name}: {failed[0].error}\n"
            f"{where} keeps what was done: {_again(failed[0])}"
        )
        error.exit_code = failed[0].exit_code
        raise error


def _again(first: Outcome) -> str:
    mend = "mend that, then " if first.exit_code in (CONFIG, DATA) else ""  # by itself it would fail again
    return f"{mend}run the same command again"


def attempt(run: Run, before: Outcome | None) -> Outcome:
    """What came of a run, given what came of the one it waits for."""
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
