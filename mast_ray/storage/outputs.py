"""What every stage over work units does around its work: refuse wrong outputs and
mixed settings, sweep up in the end.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from typing import Any

from mast_ray.config.errors import ConfigError
from mast_ray.storage.storage import Storage

BEGUN = "begun.json"


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


def refuse_other_settings(stage: Storage, mine: Mapping[str, Any]) -> None:
    """Units that were worked on with other settings cannot be mixed with new ones;
    the first run leaves its own.
    """
    if stage.put_if_absent(BEGUN, json.dumps(mine, indent=1, sort_keys=True).encode()):
        return
    begun = json.loads(stage.read_bytes(BEGUN))
    different = [name for name in mine if begun.get(name) != mine[name]]
    if different:
        name = different[0]
        raise ConfigError(
            f"{stage.url} was begun with {name}={begun.get(name)!r}, now it is {mine[name]!r}:\n"
            "choose another --out, or go on with the settings it was begun with"
        )


def sweep(stage: Storage, named: Iterable[str], folders: Iterable[str]) -> int:
    """Remove what dead attempts left behind: files below `folders` that no
    commit names, and scratch files.
    """
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
