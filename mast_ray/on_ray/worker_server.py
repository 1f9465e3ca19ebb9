"""A process that has imported what the workers of a training need, and forks one for each that Ray starts on this machine.

    python -m mast_ray.on_ray.worker_server DESCRIPTOR

torch and its company take five CPU seconds to import, and a training starts six processes, which end with it: a copy of a process
that has them takes none. The server computes nothing and has one thread, so that a copy inherits neither locks nor threads. Ray
itself is left to the copies: it reads its settings and seeds its names when it is imported. DESCRIPTOR is of a socket that
listens already; the server ends with whoever holds the other end of its standard input.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import runpy
import selectors
import signal
import socket
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any, NoReturn

from mast_ray.on_ray.setup_worker import OOM_SCORE, STARTED

# what is not here, a worker imports for itself
IMPORTED = (
    "torch._dynamo",  # by every optimizer
    "torch.distributed",
    "torch.utils.flop_counter",
    "pandas",
    "pyarrow.dataset",
    "pyarrow.parquet",
    "mast_ray.training.assembly",
    "mast_ray.training.loop",
    "mast_ray.inference.validation",
)
THREADS = "OMP_NUM_THREADS"  # Ray sets it in a worker, too late for libraries that are there already


def serve(listener: socket.socket) -> None:
    """Answer until standard input ends."""
    import_all(IMPORTED)
    gc.freeze()  # a collection in a copy would write to every page that is shared
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for workers: they leave no zombies
    with listener, selectors.DefaultSelector() as selector:
        selector.register(listener, selectors.EVENT_READ)
        selector.register(0, selectors.EVENT_READ)
        while True:
            ready = {key.fd for key, _ in selector.select()}
            if 0 in ready:
                return
            connection, _ = listener.accept()
            with connection, suppress(OSError, ValueError):  # whoever asked has gone
                asked, streams = _asked(connection)
                if os.fork() == 0:
                    selector.close()
                    listener.close()
                    _become_worker(asked, streams, connection)
                for stream in streams:
                    os.close(stream)


def import_all(modules: tuple[str, ...]) -> None:
    """Import them with one thread for their products; a worker sets its own number."""
    chosen = os.environ.get(THREADS)
    os.environ.setdefault(THREADS, "1")
    for name in modules:
        with suppress(ImportError):  # a worker that needs it will say so
            importlib.import_module(name)
    assert "ray" not in sys.modules, "copies of one Ray would give their tasks and objects the same names"
    if chosen is None:
        del os.environ[THREADS]


def _asked(connection: socket.socket) -> tuple[dict[str, Any], list[int]]:
    head, streams, _, _ = socket.recv_fds(connection, 8, 3)
    body = b""
    while len(body) < int.from_bytes(head, "big"):
        part = connection.recv(1 << 16)
        if not part:
            break
        body += part
    return json.loads(body), streams


def _become_worker(asked: dict[str, Any], streams: list[int], connection: socket.socket) -> NoReturn:
    """The process that Ray has asked for; the connection is open until it ends."""
    code = 1
    try:
        os.setsid()  # Ray ends a lost worker with its whole group
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_SETMASK, asked["blocked"])
        for place, stream in enumerate(streams):
            os.dup2(stream, place)
            os.close(stream)
        with suppress(OSError):  # only root may ask for less of either
            os.setpriority(os.PRIO_PROCESS, 0, asked["nice"])
            Path(OOM_SCORE).write_text(asked["oom"], encoding="ascii")
        os.chdir(asked["cwd"])
        os.environ.clear()
        os.environ.update(asked["env"])
        sys.modules["numpy"].random.seed()  # Python's own is seeded anew in every copy, this one is not
        connection.sendall(STARTED)
        sys.argv = asked["argv"]
        sys.path[0] = str(Path(sys.argv[0]).resolve().parent)
        runpy.run_path(sys.argv[0], run_name="__main__")
        code = 0
    except SystemExit as stop:
        code = stop.code if isinstance(stop.code, int) else 1
    except BaseException:
        sys.excepthook(*sys.exc_info())
    finally:
        with suppress(OSError, ValueError):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code)


if __name__ == "__main__":
    serve(socket.socket(fileno=int(sys.argv[1])))
