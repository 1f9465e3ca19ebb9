"""Ray's own bookkeeping lies in a folder beside our results, because every node can reach that."""

from __future__ import annotations

from typing import Any

from mast_ray.storage.outputs import remove_folder
from mast_ray.storage.storage import Storage

RAY_FOLDER = "ray"


def ray_storage(stage: Storage) -> dict[str, Any]:
    """Arguments of Ray's RunConfig that put its bookkeeping there."""
    filesystem, path = stage.at(RAY_FOLDER).arrow()
    if stage.local_path("") is not None:
        return {"storage_path": path}
    return {"storage_filesystem": filesystem, "storage_path": path}


def clean_ray_folder(stage: Storage) -> None:
    """Remove it with all that is in it."""
    remove_folder(stage.at(RAY_FOLDER))
