"""One unit from ledger to commit in this process, under a watchdog that turns a hang into a death.

`work(attempt, items)` writes files named by `attempt.token`, calls `attempt.begin_item(item_id)` before each item (or goes
through `attempt.groups(items)`), and returns every item's outcome with the files it wrote. What it raises fails the job;
what is wrong with one recording must be an outcome. Ray runs this in its workers; `run_here` runs it in a plain loop,
or in several processes of this machine where there is no Ray.
"""

from __future__ import annotations

import faulthandler
import hashlib
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue
from typing import NamedTuple

from mast_ray.config.errors import TemporaryError
from mast_ray.storage.ledger import Attempt, begin_attempt, order_of_work, read_ledger
from mast_ray.storage.spread import process_pool
from mast_ray.storage.storage import Storage
from mast_ray.storage.units import Commit, DataFile, Item, Outcome, Unit, put_commit, read_commit

GRACE_S = 30.0  # between the watchdog that leaves a note and the one that cannot be stopped by a held GIL


class WorkDone(NamedTuple):
    """What an attempt produced; `notes` are sums for the progress line (JSON numbers)."""

    outcomes: list[Outcome]
    files: list[DataFile]
    notes: dict[str, float]


Work = Callable[[Attempt, Sequence[Item]], WorkDone]


class UnitReport(NamedTuple):
    """What the driver hears of a unit; the commit itself travels only when the driver must write it."""

    unit_id: str
    num_items: int
    num_rejected: int
    num_bytes: int
    seconds: float
    notes: dict[str, float]
    commit: Commit | None = None


def run_unit(
    stage: Storage,
    unit: Unit,
    run: str,
    work: Work,
    max_deaths: int = 3,
    timeout_s: float = 900.0,
    commit_here: bool = True,
) -> UnitReport:
    """Attempt a unit and commit it; a unit that is committed already costs one look."""
    present = read_commit(stage, unit.unit_id)
    if present is not None:
        return _report(unit, present)
    ledger = read_ledger(stage, unit.unit_id, run)
    if ledger.attempts_of_run >= max_deaths * (1 + len(unit.items)):
        raise TemporaryError(
            f"unit {unit.unit_id} of {stage.url} died {ledger.attempts_of_run} times and no single recording is to blame:\n"
            "look for exhausted memory or disk in the logs, then run the same command again"
        )
    attempt = begin_attempt(stage, unit, run, ledger)
    items, quarantined = order_of_work(unit.items, ledger, max_deaths)
    started_s = time.monotonic()
    try:
        with watchdog(attempt, timeout_s):
            done = work(attempt, items)
    except (Exception, KeyboardInterrupt):
        with suppress(Exception):  # the store may be what failed
            attempt.withdraw()
        raise
    _check_outcomes(unit, [*done.outcomes, *quarantined])
    outcomes = {outcome.item_id: outcome for outcome in (*done.outcomes, *quarantined)}
    commit = Commit(
        unit.unit_id,
        attempt.token,
        tuple(done.files),
        tuple(outcomes[item.item_id] for item in unit.items),
        {item.item_id: item.version for item in unit.items},
        round(time.monotonic() - started_s, 3),
        done.notes,
    )
    if not commit_here:
        return _report(unit, commit)._replace(commit=commit)
    if not put_commit(stage, commit):
        commit = read_commit(stage, unit.unit_id) or commit
    return _report(unit, commit)


def _check_outcomes(unit: Unit, outcomes: Sequence[Outcome]) -> None:
    offered = sorted(item.item_id for item in unit.items)
    given = sorted(outcome.item_id for outcome in outcomes)
    assert offered == given, f"unit {unit.unit_id}: outcomes for {len(given)} of {len(offered)} items"


def _report(unit: Unit, commit: Commit) -> UnitReport:
    rejected = sum(outcome.status == "rejected" for outcome in commit.outcomes)
    return UnitReport(
        unit.unit_id, len(commit.outcomes), rejected, unit.num_bytes, commit.seconds, commit.notes
    )


def run_here(
    stage: Storage,
    units: Sequence[Unit],
    run: str,
    work: Work,
    max_deaths: int = 3,
    timeout_s: float = 900.0,
    num_processes: int = 1,
    make_work: Callable[[], Work] | None = None,
) -> Iterator[UnitReport]:
    """Every unit on this machine: one after another in this process, or several at once in their own. A unit in which
    an earlier driver ended is worked on in a process beside this one, which makes its own work with `make_work`.
    """
    if num_processes > 1 and len(units) > 1:
        yield from _run_in_processes(stage, units, run, work, max_deaths, timeout_s, num_processes)
        return
    for unit in units:
        if make_work is not None and read_ledger(stage, unit.unit_id, run).unexplained:
            made = MadeWork(make_work)
            yield from _run_in_processes(stage, [unit], run, made, max_deaths, timeout_s, 1)
        else:
            yield run_unit(stage, unit, run, work, max_deaths, timeout_s)


@dataclass
class MadeWork:
    """Work that is made in the process that does it: models do not travel."""

    make: Callable[[], Work]
    made: Work | None = None

    def __call__(self, attempt: Attempt, items: Sequence[Item]) -> WorkDone:
        if self.made is None:
            self.made = self.make()
        return self.made(attempt, items)


def _run_in_processes(
    stage: Storage,
    units: Sequence[Unit],
    run: str,
    work: Work,
    max_deaths: int,
    timeout_s: float,
    num_processes: int,
) -> Iterator[UnitReport]:
    """Units in order of completion. Every process has its own pool: a death costs the unit it worked on, which begins again in a
    new process and finds its ledger, while its neighbours go on.
    """
    commit_here = stage.has_conditional_put()
    idle: SimpleQueue[ProcessPoolExecutor] = SimpleQueue()
    for _ in range(num_processes):
        idle.put(process_pool(1))

    def report_of(unit: Unit) -> UnitReport:
        process = idle.get()
        try:
            for _ in range(2 + max_deaths * (1 + len(unit.items))):
                try:
                    return process.submit(
                        run_unit, stage, unit, run, work, max_deaths, timeout_s, commit_here
                    ).result()
                except BrokenProcessPool:
                    process = process_pool(1)
            raise TemporaryError(
                f"the processes that should work on {unit.items[0].path} end before they begin:\n"
                "look for exhausted memory or disk in the logs, then run the same command again"
            )
        finally:
            idle.put(process)

    threads = ThreadPoolExecutor(num_processes, thread_name_prefix="unit")
    try:
        for future in as_completed([threads.submit(report_of, unit) for unit in units]):
            report = future.result()
            if report.commit is not None:
                put_commit(stage, report.commit)
            yield report._replace(commit=None)
    finally:
        threads.shutdown(wait=True, cancel_futures=True)
        for _ in range(num_processes):
            idle.get().shutdown()


@contextmanager
def watchdog(attempt: Attempt, timeout_s: float) -> Iterator[None]:
    """End this process when the attempt has not beaten for `timeout_s`.

    A Python thread leaves a note and kills; should a C library hold the GIL,
    faulthandler's own thread exits later.
    """
    stop = threading.Event()

    def watch() -> None:
        while not stop.wait(min(1.0, timeout_s / 4)):
            silent_s = time.monotonic() - attempt.last_beat_s
            if silent_s < 1.0:
                faulthandler.dump_traceback_later(timeout_s + GRACE_S, exit=True, file=sys.__stderr__ or 2)
            if silent_s > timeout_s:
                try:
                    attempt.report_timeout()
                finally:
                    os.kill(os.getpid(), signal.SIGKILL)

    thread = threading.Thread(target=watch, name="unit-watchdog", daemon=True)
    faulthandler.dump_traceback_later(timeout_s + GRACE_S, exit=True, file=sys.__stderr__ or 2)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()
        faulthandler.cancel_dump_traceback_later()


def publish_file(stage: Storage, path: Path, folder: str, unit: Unit, num_rows: int) -> DataFile:
    """Publish a finished file under a name made of unit and content: two
    attempts with one result share it.
    """
    digest = hashlib.sha256()
    with open(path, "rb") as source:
        while block := source.read(1 << 22):
            digest.update(block)
    key, num_bytes = f"{folder}/{unit.stem}-{digest.hexdigest()[:12]}.parquet", path.stat().st_size
    stage.publish(path, key)
    return DataFile(key, num_rows, digest.hexdigest(), num_bytes)
