"""One driver at a time on an output: a lease in the store, ordered by the store
and never by comparing clocks.

lease/<generation>.json is put only if absent, so of several contenders one wins a generation. The holder
rewrites lease/<generation>.beat; a contender watches that object for `ttl_s` of its own time and takes
the next generation when it stands still. On the machine of the holder a dead process is seen at once. A
holder that finds a newer generation stops. A store that is away cannot be told that the work has ended:
nobody waits for that longer than RELEASE_S, and this process knows what it has let go.
"""

from __future__ import annotations

import json
import logging
import os
import secrets
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mast_ray.config.errors import MastError, RunActiveError
from mast_ray.config.signals import interrupt_main
from mast_ray.storage.storage import Storage

log = logging.getLogger(__name__)

# An unreleased lease costs the next run `ttl_s`; waiting for a store that is away costs minutes.
RELEASE_S = 5.0

_held_here: set[str] = set()  # runs of this process whose work goes on


@dataclass(frozen=True)
class Lease:
    """A held lease; `run` names this run in the ledger."""

    generation: int
    run: str


@contextmanager
def held_lease(
    stage: Storage, ttl_s: float = 20.0, beat_s: float = 3.0, on_loss: Callable[[], None] | None = None
) -> Iterator[Lease]:
    """Hold the output for the length of a block; RunActiveError when another run does.

    `on_loss` is called from the heartbeat's thread when a newer generation appears.
    """
    lease = _acquire(stage, ttl_s)
    stop = threading.Event()

    def keep() -> None:
        count = 0
        while not stop.wait(beat_s):
            count += 1
            try:
                if stage.stat(_key(lease.generation + 1)) is not None:
                    if stop.is_set():  # let go while the store was asked
                        return
                    log.error("another run has taken over %s; stopping", stage.url)
                    if on_loss is not None:
                        on_loss()
                    return
                stage.write_atomic(_beat_key(lease.generation), f"{lease.run} {count}".encode())
            except (MastError, OSError) as error:
                log.warning("the lease of %s could not be renewed: %s", stage.url, error)
        try:  # by the same thread: a late beat must not follow it
            stage.write_atomic(_beat_key(lease.generation), b"released")
        except (MastError, OSError) as error:
            log.warning("the lease of %s could not be released: %s", stage.url, error)

    thread = threading.Thread(target=keep, name="lease", daemon=True)
    thread.start()
    try:
        yield lease
    finally:
        stop.set()
        thread.join(timeout=RELEASE_S)
        _held_here.discard(lease.run)


@contextmanager
def lease_or_stop(stage: Storage) -> Iterator[Lease]:
    """Hold the output; when another run takes it over (this machine slept), the work here is stopped."""
    lost = threading.Event()

    def stop() -> None:
        lost.set()
        interrupt_main()

    try:
        with held_lease(stage, on_loss=stop) as lease:
            yield lease
    except KeyboardInterrupt:
        if not lost.is_set():
            raise
        raise RunActiveError(
            f"another run has taken over {stage.url}, because this one gave no sign of life for a while:\n"
            "what was done here counts; leave the rest to the other run"
        ) from None


def forget_lease(stage: Storage, lease: Lease) -> None:
    """Remove what a lease that has ended left in the store, and those before it; never that of a run that came after.

    Holders before beats: whoever looks meanwhile reads `released`, or nothing.
    """
    keys = [entry.key for entry in stage.list("lease") if entry.key.endswith((".json", ".beat"))]
    own = [key for key in keys if _generation_of(key) <= lease.generation]
    for key in sorted(own, key=lambda key: (key.endswith(".beat"), key)):
        stage.delete(key)
    folder = stage.local_path("lease")
    if folder is not None:
        with suppress(OSError):  # another run holds one
            folder.rmdir()


def _acquire(stage: Storage, ttl_s: float) -> Lease:
    run = secrets.token_hex(4)
    while True:
        generation = _latest_generation(stage)
        if generation and not _is_over(stage, generation, ttl_s):
            raise RunActiveError(_active_text(stage, generation))
        me = json.dumps({"run": run} | _identity()).encode()
        _held_here.add(run)  # before anybody can read it
        is_won = False
        try:
            is_won = stage.put_if_absent(_key(generation + 1), me)
        finally:
            if not is_won:  # also when the store failed: what it may have kept of us holds nothing
                _held_here.discard(run)
        if is_won:
            return Lease(generation + 1, run)


def _latest_generation(stage: Storage) -> int:
    keys = [entry.key for entry in stage.list("lease") if entry.key.endswith(".json")]
    return max(map(_generation_of, keys), default=0)


def _generation_of(key: str) -> int:
    return int(key.rsplit("/", 1)[-1].split(".")[0])


def _is_over(stage: Storage, generation: int, ttl_s: float) -> bool:
    """Whether the holder released, is known to be dead, or stays silent for `ttl_s`."""
    before = _beat(stage, generation)
    if before == b"released":
        return True
    holder = _holder(stage, generation)
    mine = _identity()
    if holder["place"] and holder["place"] == mine["place"]:
        if holder["pid"] == mine["pid"] and holder["started"] == mine["started"]:
            return holder["run"] not in _held_here
        return _start_of(holder["pid"]) != holder["started"]
    log.info("a run began on %s; waiting up to %.0f s for a sign of life", holder["host"], ttl_s)
    until_s = time.monotonic() + ttl_s
    while time.monotonic() < until_s:
        time.sleep(min(1.0, ttl_s / 10))
        now = _beat(stage, generation)
        if now != before:
            return now == b"released"
    return True


def _active_text(stage: Storage, generation: int) -> str:
    holder = _holder(stage, generation)
    return (
        f"run already active (lease {generation} on {stage.url}, host {holder['host']}, process {holder['pid']}):\n"
        "wait for it to end, or stop it, and run the same command again"
    )


def _holder(stage: Storage, generation: int) -> dict[str, Any]:
    """Who took a lease; one that is damaged or gone is held by nobody known, and ends when it gives no sign of life."""
    unknown = {"run": "", "host": "unknown", "place": "", "pid": 0, "started": ""}
    try:
        found = json.loads(stage.read_bytes(_key(generation)))
    except (ValueError, FileNotFoundError):
        return unknown
    return unknown | found if isinstance(found, dict) else unknown


def _key(generation: int) -> str:
    return f"lease/{generation:06d}.json"


def _beat_key(generation: int) -> str:
    return f"lease/{generation:06d}.beat"


def _beat(stage: Storage, generation: int) -> bytes:
    try:
        return stage.read_bytes(_beat_key(generation))
    except FileNotFoundError:
        return b""


def _identity() -> dict[str, Any]:
    """Who we are; `place` is equal only where a process number means the same process."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        place = f"{boot} {os.readlink('/proc/self/ns/pid')}"
    except OSError:
        place = ""
    pid = os.getpid()
    return {"host": socket.gethostname(), "place": place, "pid": pid, "started": _start_of(pid)}


def _start_of(pid: int) -> str:
    """Start time of a process in clock ticks since boot; "" when there is no
    such process or it is a zombie.
    """
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    except OSError:
        return ""
    return "" if fields[0] == "Z" else fields[19]
