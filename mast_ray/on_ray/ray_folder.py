"""Ray's own bookkeeping lies in a folder beside our results, because every node can reach that."""

from __future__ import annotations

from typing import Any

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
    for entry in list(stage.list(RAY_FOLDER)):
        stage.delete(entry.key)
    folder = stage.local_path(RAY_FOLDER)
    if folder is not None and folder.is_dir():
        for path in sorted(folder.rglob("*"), reverse=True):
            if path.is_dir() and not any(path.iterdir()):
                path.rmdir()
        if not any(folder.iterdir()):
            folder.rmdir()
