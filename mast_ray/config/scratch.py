"""Scratch folders of a process in the machine's folder for temporary files: gone when the process has done with them, or,
where it was killed, when another process of this machine makes one.

Whose process lives is told by a lock, which the system lets go of when a process ends however it ends. The name of the
locked file has the machine's: where several machines share a folder, none judges the locks of another.
"""

from __future__ import annotations

import logging
import os
import shutil
import socket
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import IO

log = logging.getLogger(__name__)

PREFIX = "mast-tmp-"


@contextmanager
def scratch_folder() -> Iterator[Path]:
    """An empty folder but for its lock."""
    _remove_abandoned_once(tempfile.gettempdir())
    with (
        tempfile.TemporaryDirectory(prefix=PREFIX, ignore_cleanup_errors=True) as name,
        open(Path(name, "unlocked"), "wb") as lock,
    ):
        with suppress(OSError):  # a disk without locks: nobody removes it
            _lock(lock)
            os.rename(lock.name, Path(name, _lock_name()))  # not before: it would look abandoned
        yield Path(name)


def remove_abandoned(place: str) -> int:
    """Scratch folders in `place` that processes of this machine have left behind; returns how many."""
    removed = num_bytes = 0
    for lock_path in Path(place).glob(f"{PREFIX}*/{_lock_name()}"):
        folder = lock_path.parent
        with suppress(OSError), open(lock_path, "rb") as lock:  # somebody else's, or just gone, or in use
            _lock(lock)
            size = sum(path.lstat().st_size for path in folder.rglob("*") if not path.is_dir())
            shutil.rmtree(folder)
            removed, num_bytes = removed + 1, num_bytes + size
    if removed:
        log.warning(
            "removed %d scratch folder%s (%.1f MB) in %s that killed processes have left",
            removed, "s" * (removed > 1), num_bytes / 1e6, place,
        )  # fmt: skip
    return removed


_remove_abandoned_once = cache(remove_abandoned)  # at the start of a process


def _lock_name() -> str:
    return f"lock-{socket.gethostname()}"


def _lock(file: IO[bytes]) -> None:
    """OSError where another process holds it, and where nothing can be locked."""
    try:
        from fcntl import LOCK_EX, LOCK_NB, flock
    except ImportError:  # not a Unix
        raise OSError("no locks here") from None
    flock(file, LOCK_EX | LOCK_NB)
