"""A cluster whose head is gone is said so, in half a minute: Ray's own driver tries for a minute, then ends without a word. So
does a driver whose own machine's raylet has died, within seconds, and one that Ray ends while it starts.

A head that comes back (a cluster with a fault-tolerant control store) is waited for as long as
RAY_gcs_rpc_server_reconnect_timeout_s says, where it is set.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from mast_ray.config.errors import TEMPORARY, TemporaryError
from mast_ray.config.signals import interrupt_main

CHECK_EVERY_S, SILENT_S = 1.0, 10.0
LAST_S = (
    15.0  # for what is left to do: stopping Ray takes eight seconds, waiting for what was lost takes for ever
)
LAST_AFTER_RAYLET_S = 5.0  # after ten Ray ends the process itself, with 1
RAYLET_ENDED = (
    "Ray's own process on this machine (raylet) was killed:\n"
    "look for exhausted memory in the system's log, then run the same command to go on where it was"
)
ENDED_AT_START = (
    "error: this process was ended while Ray started, by Ray itself or from outside (a starved machine, too little memory):\n"
    "run the same command again; small archives can do without (--runner here), and `mast doctor` looks closer"
)
RECONNECT = "RAY_gcs_rpc_server_reconnect_timeout_s"


@contextmanager
def watched_head(address: str, raylet_ended: Callable[[], bool] = lambda: False) -> Iterator[None]:
    """While the block runs, see that a cluster's head at HOST:PORT answers, and that the raylet of this machine lives; the block
    is interrupted when one does not.
    """
    over, lost = threading.Event(), threading.Event()
    text, last_s = (
        (
            f"the head of the Ray cluster at {address} went away:\n"
            "start the cluster again, then run the same command to go on where it was"
        ),
        LAST_S,
    )

    def watch() -> None:
        nonlocal text, last_s
        heard_s = time.monotonic()
        while not over.wait(CHECK_EVERY_S):
            if raylet_ended():
                text, last_s = RAYLET_ENDED, LAST_AFTER_RAYLET_S
                break
            if silence_of(address) is None:
                heard_s = time.monotonic()
            elif time.monotonic() - heard_s > silent_s():
                break
        if over.is_set():
            return
        lost.set()
        interrupt_main()
        if not over.wait(last_s):  # the main thread waits inside Ray for an answer that will not come
            print(f"error: {text}", file=sys.stderr, flush=True)
            os._exit(TEMPORARY)

    try:
        threading.Thread(target=watch, name="head-watch", daemon=True).start()
        yield
    except BaseException as error:  # what else may fail once the head is gone says nothing about why
        if lost.is_set():
            raise TemporaryError(text) from error
        raise
    finally:
        over.set()


@contextmanager
def last_words(text: str = ENDED_AT_START) -> Iterator[None]:
    """A text on the error stream, should this process end within the block without leaving it: a driver that its raylet does not
    answer is ended by Ray with 1 and without a word. A shell says it: it waits for a line that only a living process sends.
    """
    says = 'trap "" INT TERM; read -r _ || printf "%s\\n" "$0" >&2'
    try:
        people = sys.stderr.fileno()
    except (AttributeError, OSError):  # a stream of Python's alone
        people = 2
    beside = subprocess.Popen(["/bin/sh", "-c", says, text], stdin=subprocess.PIPE, stderr=people)
    try:
        yield
    finally:
        beside.communicate(b"\n")


def silent_s() -> float:
    """How long a head may be away."""
    return float(os.environ.get(RECONNECT) or SILENT_S)


def silence_of(address: str, timeout_s: float = 3.0) -> OSError | None:
    """Why nothing answers at HOST:PORT; None when something does."""
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout_s).close()
    except OSError as error:
        return error
    return None
