"""Work units on Ray Data: one block per unit (of thousands, a few units per block), so that a death costs one unit
and Ray's retry meets our ledger.

The units mechanism itself (ledger, commits, quarantine) is in storage/; this only spreads it over a cluster.
What is expensive to build (a model) is built once in every process: in actors on GPUs, whose memory is free again
when they end, and in Ray's own worker processes otherwise, which live on from stage to stage and have torch
imported already when the next one begins. Interrupted by SIGINT or SIGTERM it stops within seconds. A full disk or a store that is away is handed to the driver as a result:
what a worker raises comes out of Ray wrapped, printed over a hundred lines, and without its cause.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import ray
import ray.data

from mast_ray.config.errors import (
    ConfigError,
    DataError,
    MastError,
    PartialError,
    RunActiveError,
    TemporaryError,
)
from mast_ray.on_ray.session import quiet_ray_data, refuse_more_than_there_is
from mast_ray.storage.spread import Spread
from mast_ray.storage.storage import Storage
from mast_ray.storage.unit_runner import UnitReport, Work, run_unit
from mast_ray.storage.units import (
    Unit,
    commit_from_json,
    commit_to_json,
    put_commit,
    unit_from_json,
    unit_to_json,
)

# of Ray's own errors: a process, a machine or what lay in its memory is gone, and another start may find others
LOST = (
    ray.exceptions.LocalRayletDiedError,
    ray.exceptions.WorkerCrashedError,
    ray.exceptions.RayActorError,
    ray.exceptions.RaySystemError,
    ray.exceptions.NodeDiedError,
    ray.exceptions.ObjectLostError,
    ray.exceptions.ObjectStoreFullError,
    ray.exceptions.OutOfDiskError,
    ray.exceptions.OutOfMemoryError,
)
# Ray Data keeps books of every block: a hundred thousand units go several to a block, each still committed alone
MOST_BLOCKS = 4_000
TOLD = "error "  # a result that begins so is an error


def run_units(
    stage: Storage,
    units: Sequence[Unit],
    run: str,
    make_work: Callable[[], Work],
    spread: Spread,
) -> Iterator[UnitReport]:
    """Run every unit somewhere on the cluster and yield reports as they come. Work is made once in every process
    that holds it; where none does (`spread.num_actors` 0) it is made here and travels.
    """
    if not units:
        return
    refuse_more_than_there_is(1, spread.num_cpus, spread.num_gpus)  # with one of them it goes on, if slowly
    quiet_ray_data()
    commit_here = stage.has_conditional_put()
    options = {
        "stage": stage, "run": run, "max_deaths": spread.max_deaths, "timeout_s": spread.timeout_s,
        "commit_here": commit_here,
    }  # fmt: skip
    rows = [{"unit": unit_to_json(unit)} for unit in units]
    # Where the driver commits, a block that dies takes all its units with it.
    num_blocks = min(len(rows), MOST_BLOCKS) if commit_here else len(rows)
    dataset = ray.data.from_items(rows, override_num_blocks=num_blocks)
    del (
        rows
    )  # they are in the object store: 170 bytes for each of ten million recordings need not be here too
    resources: dict[str, Any] = {"num_cpus": spread.num_cpus, "num_gpus": spread.num_gpus or None}
    if spread.num_actors and spread.num_gpus:
        dataset = dataset.map_batches(
            _UnitActor, fn_constructor_kwargs={"make_work": make_work, **options}, batch_size=1,
            compute=ray.data.ActorPoolStrategy(size=spread.num_actors), **resources,
        )  # fmt: skip
    elif spread.num_actors:
        held = {"make_work": make_work, "held_for": secrets.token_hex(8), **options}
        dataset = dataset.map_batches(
            _run_held_batch, fn_kwargs=held, batch_size=1,
            compute=ray.data.TaskPoolStrategy(size=spread.num_actors), **resources,
        )  # fmt: skip
    else:
        dataset = dataset.map_batches(
            _run_batch, fn_kwargs={"work": make_work(), **options}, batch_size=1, **resources
        )
    try:
        for batch in dataset.iter_batches(batch_size=None, prefetch_batches=0):
            for text in batch["report"]:
                raise_told(text)
                report = _report_from_json(text)
                if report.commit is not None:
                    put_commit(stage, report.commit)
                yield report._replace(commit=None)
    except (ray.exceptions.RayError, RuntimeError) as error:
        raise worker_error(error) from error


def _run_batch(batch: dict[str, np.ndarray], work: Work, **options: Any) -> dict[str, list[str]]:
    try:
        reports = [run_unit(unit=unit_from_json(text), work=work, **options) for text in batch["unit"]]
    except (MastError, OSError) as error:
        return {"report": [told(error)]}
    return {"report": [_report_to_json(report) for report in reports]}


_held: tuple[str, Work] | None = (
    None  # the work of one run_units, in a worker's process, until another's is made
)


def _run_held_batch(
    batch: dict[str, np.ndarray], make_work: Callable[[], Work], held_for: str, **options: Any
) -> dict[str, list[str]]:
    global _held
    if _held is None or _held[0] != held_for:
        _held = None  # two models need not fit into memory
        try:
            _held = (held_for, make_work())
        except (MastError, OSError) as error:
            return {"report": [told(error)]}
    return _run_batch(batch, _held[1], **options)


def told(error: MastError | OSError) -> str:
    """An error that means something to a user, as a result that travels."""
    if isinstance(error, MastError):
        return TOLD + json.dumps({"text": str(error), "exit_code": error.exit_code})
    where = None if error.filename is None else str(error.filename)
    return TOLD + json.dumps({"errno": error.errno, "text": error.strerror or str(error), "where": where})


def raise_told(text: str) -> None:
    """Raise the error that a result holds, if it holds one."""
    if not text.startswith(TOLD):
        return
    met = json.loads(text.removeprefix(TOLD))
    if "exit_code" not in met:
        raise OSError(met["errno"], met["text"], met["where"])
    kinds = (ConfigError, DataError, PartialError, RunActiveError, TemporaryError)
    kind = next((kind for kind in kinds if kind.exit_code == met["exit_code"]), MastError)
    error = kind(met["text"])
    error.exit_code = met["exit_code"]
    raise error


def _report_to_json(report: UnitReport) -> str:
    commit = commit_to_json(report.commit).decode() if report.commit is not None else None
    return json.dumps(report._replace(commit=commit))  # type: ignore[arg-type]


def _report_from_json(text: str) -> UnitReport:
    report = UnitReport(*json.loads(text))
    return report._replace(commit=commit_from_json(report.commit) if report.commit else None)  # type: ignore[arg-type]


class _UnitActor:
    """Holds what is expensive to build."""

    def __init__(self, make_work: Callable[[], Work], **options: Any) -> None:
        self._options, self._error = options, ""
        try:
            self._work = make_work()
        except (MastError, OSError) as error:
            self._error = told(error)

    def __call__(self, batch: dict[str, np.ndarray]) -> dict[str, list[str]]:
        if self._error:
            return {"report": [self._error]}
        return _run_batch(batch, self._work, **self._options)


def worker_error(error: BaseException) -> BaseException:
    """The error a worker raised, out of Ray's wrapping (a full disk stays an
    OSError); a lost cluster is temporary.
    """
    chain: list[BaseException] = []
    seen: BaseException | None = error
    while seen is not None and seen not in chain:
        chain.append(seen)
        cause = getattr(seen, "cause", None)
        seen = cause if isinstance(cause, BaseException) else seen.__cause__
    wanted = [
        e for e in chain if isinstance(e, MastError | OSError) and not isinstance(e, ray.exceptions.RayError)
    ]
    if wanted:
        return wanted[0]
    lost = next((e for e in chain if isinstance(e, LOST)), None)
    if lost is not None or "GCS" in str(error)[:2000]:
        return TemporaryError(
            f"Ray lost processes or machines that the work needed ({type(lost or error).__name__}):\n"
            "run the same command again to go on where it was"
        )
    return error
