"""A run that dies, or whose disk is full, at its n-th change of a folder: every change after that fails too."""

import errno
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from mast_ray.storage.storage import LocalStorage


class Killed(BaseException):
    """A dead process writes nothing more, also not in `except` and `finally`."""


def full_disk() -> OSError:
    return OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@contextmanager
def stopped_at(monkeypatch, number: int, error: Callable[[], BaseException] = Killed) -> Iterator[list[str]]:
    """Changes from the `number`-th on (from 1) raise; yields the keys of those that were tried. Signs of life in leases are
    not counted, and end with the rest. A full disk still deletes.
    """
    tried: list[str] = []

    def guarded(name: str, place: int):
        real = getattr(LocalStorage, name)

        def changed(self, *args):
            key = str(args[place])
            is_beat = key.endswith(".beat")  # of a thread of its own, at any time
            if not is_beat:
                tried.append(f"{name} {Path(self.root).name}/{key}")
            if len(tried) >= number:
                if is_beat:
                    return None
                raise error()
            return real(self, *args)

        return changed

    with monkeypatch.context() as patch:
        patch.setattr(LocalStorage, "publish", guarded("publish", 1))
        patch.setattr(LocalStorage, "put_if_absent", guarded("put_if_absent", 0))
        if error is Killed:
            patch.setattr(LocalStorage, "delete", guarded("delete", 0))
        yield tried
