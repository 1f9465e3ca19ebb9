"""Where a stage may write, and what must go in the end."""

from __future__ import annotations

import os
from collections.abc import Iterable

from mast_ray.config.errors import ConfigError
from mast_ray.storage.storage import Storage


def refuse_mixing(archive: Storage, stage: Storage) -> None:
    """Nothing is ever written among the user's recordings."""
    inside, around = (_true_url(storage).rstrip("/") + "/" for storage in (stage, archive))
    if inside.startswith(around):
        raise ConfigError(
            f"--out {stage.url} lies inside the archive:\nchoose a folder outside {archive.url}"
        )


def _true_url(storage: Storage) -> str:
    """Where a folder really is, past links and `..`."""
    local = storage.local_path("")
    return storage.url if local is None else os.path.realpath(local)


def remove_leftovers(stage: Storage, named: Iterable[str], folders: Iterable[str]) -> int:
    """What dead attempts left behind: files below `folders` that no commit names, and scratch files."""
    keep, removed = set(named), 0
    for folder in folders:
        for entry in list(stage.list(folder)):
            if entry.key not in keep:
                stage.delete(entry.key)
                removed += 1
    root = stage.local_path("")
    if root is not None:
        for scratch in root.glob(".tmp-*"):
            scratch.unlink(missing_ok=True)
    return removed
