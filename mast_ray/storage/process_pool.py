"""Processes beside this one for work that must not share its lock or die with it, and that end when it is gone."""

from __future__ import annotations

import multiprocessing
import os
import threading
from concurrent.futures import ProcessPoolExecutor

TEMPORARY = 75


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
