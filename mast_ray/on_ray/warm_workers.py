"""Workers of trainings on a local Ray begin with torch imported: they are copies of one process that has it (worker_server.py).

Without GPUs alone: with them a training lasts, and CUDA does not bear to be copied.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from ray._private import ray_constants

from mast_ray.config.scratch import scratch_folder
from mast_ray.on_ray import setup_worker

END_S = 5.0
_NAME = "SETUP_WORKER_FILENAME"  # a private door of Ray: without it workers start as ever

_path = ""  # of the session that this process has started
_server: subprocess.Popen[bytes] | None = None


@contextmanager
def warm_workers() -> Iterator[None]:
    """For the length of a local session that is started inside."""
    global _path
    is_safe = sys.platform.startswith("linux") and not torch.cuda.device_count()
    ray_name = getattr(ray_constants, _NAME, None)
    if not is_safe or ray_name is None:
        yield
        return
    with scratch_folder() as folder:  # ours alone: whoever can write there starts processes as us
        _path = os.environ[setup_worker.SOCKET] = str(folder / "workers")
        setattr(ray_constants, _NAME, setup_worker.__file__)
        try:
            yield
        finally:
            setattr(ray_constants, _NAME, ray_name)
            _path = ""
            os.environ.pop(setup_worker.SOCKET, None)
            _stop_server()


def start_server() -> None:
    """Before the first training of a session; until then workers start as ever."""
    global _server
    if not _path or _server is not None:
        return
    with socket.socket(socket.AF_UNIX) as listener:
        try:
            listener.bind(_path)
        except OSError:  # a temporary folder whose name is too long for a socket: workers start as ever
            return
        listener.listen(128)  # workers wait while the server imports
        _server = subprocess.Popen(
            [sys.executable, "-m", "mast_ray.on_ray.worker_server", str(listener.fileno())],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,  # workers get streams of their own; where it fails, they start as ever
            stderr=subprocess.DEVNULL,
            pass_fds=(listener.fileno(),),
            start_new_session=True,  # Ctrl-C is the driver's
        )


def _stop_server() -> None:
    global _server
    server, _server = _server, None
    if server is None:
        return
    assert server.stdin is not None
    server.stdin.close()
    try:
        server.wait(END_S)
    except subprocess.TimeoutExpired:  # it still imports
        server.kill()
        server.wait()
