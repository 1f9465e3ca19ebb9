"""SIGTERM (a scheduler's or a shell's way to end a job) stops work like Ctrl-C does: leases are
released, the same command goes on.
"""

from __future__ import annotations

import _thread
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def interruptible() -> Iterator[None]:
    """For the length of a block. Ray sets handlers of its own when it starts: begin a block after that. It sets
    one for Ctrl-C when it tunes, and leaves it there: after the block Ctrl-C means what it meant before.
    """

    def stop(signum: int, frame: object) -> None:
        raise KeyboardInterrupt

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before, before_int = signal.signal(signal.SIGTERM, stop), signal.getsignal(signal.SIGINT)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
        signal.signal(signal.SIGINT, before_int)


def interrupt_main() -> None:
    """Ctrl-C from another thread. A real signal, because a main thread that waits for a lock
    or a queue sleeps through Python's own; SIGTERM where SIGINT is ignored, as it is in what a
    script starts in the background.
    """
    for signum in (signal.SIGINT, signal.SIGTERM):
        if callable(signal.getsignal(signum)):
            signal.pthread_kill(threading.main_thread().ident or 0, signum)
            return
    _thread.interrupt_main()
