"""A stage is a folder with a manifest: written last, it makes the folder whole,
and says what it was made from.

manifest.json holds the resolved config, inputs by content hash, code version, package versions and counts.
The same command on a folder whose manifest agrees has nothing to do and says so.
"""

from __future__ import annotations

import functools
import hashlib
import importlib.metadata
import json
import subprocess
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

import mast_ray
from mast_ray.config.errors import DataError
from mast_ray.config.tree import Config
from mast_ray.storage.storage import Storage

MANIFEST = "manifest.json"
SCHEMA_VERSION = 1  # of all tables that stages hand to each other (tables/schemas.py)
_PACKAGES = (
    "numpy",
    "pyarrow",
    "ray",
    "soundfile",
    "soxr",
    "torch",
    "torchaudio",
    "torchvision",
    "deepspeed",
)


def sections_hash(config: Config, *names: str) -> str:
    """Twelve hex digits naming some sections of the config (dotted names pick single knobs)."""
    picked = {}
    for name in names:
        value: Any = config
        for part in name.split("."):
            value = getattr(value, part)
        picked[name] = value.model_dump(mode="json") if hasattr(value, "model_dump") else value
    return text_hash(json.dumps(picked, sort_keys=True))


def text_hash(text: str | bytes) -> str:
    """Twelve hex digits of a text."""
    return hashlib.sha256(text.encode() if isinstance(text, str) else text).hexdigest()[:12]


@functools.lru_cache(maxsize=1)
def code_version() -> str:
    """Package version, with the git commit (and a + for local changes) where the code is a checkout."""
    root = Path(mast_ray.__file__).resolve().parent.parent
    try:
        run = functools.partial(
            subprocess.run, cwd=root, capture_output=True, text=True, timeout=10, check=True
        )
        sha = run(["git", "rev-parse", "--short=12", "HEAD"]).stdout.strip()
        changed = run(["git", "status", "--porcelain", "-uno", "--", "mast_ray"]).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return mast_ray.__version__
    return f"{mast_ray.__version__}+g{sha}{'+' if changed else ''}"


def package_versions() -> dict[str, str]:
    """Versions of what results depend on."""
    found = {}
    for name in _PACKAGES:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def read_manifest(stage: Storage) -> dict[str, Any] | None:
    """The manifest of a finished stage; None while there is none."""
    try:
        return json.loads(stage.read_bytes(MANIFEST))
    except FileNotFoundError:
        return None


def write_manifest(
    stage: Storage,
    name: str,
    config: Config,
    key: str,
    inputs: Mapping[str, str],
    counts: Mapping[str, Any],
    now: datetime,
) -> dict[str, Any]:
    """Declare a stage whole. `key` names everything its content depends on besides the inputs."""
    manifest = {
        "stage": name,
        "schema_version": SCHEMA_VERSION,
        "key": key,
        "inputs": dict(inputs),
        "counts": dict(counts),
        "code": code_version(),
        "packages": package_versions(),
        "finished_utc": now.isoformat(timespec="seconds"),
        "config": config.model_dump(mode="json"),
    }
    put_manifest(stage, manifest)
    return manifest


def put_manifest(stage: Storage, manifest: Mapping[str, Any]) -> None:
    """Write a manifest as it is."""
    stage.write_atomic(MANIFEST, json.dumps(manifest, indent=1, sort_keys=True).encode())


def is_current(manifest: Mapping[str, Any] | None, name: str, key: str, inputs: Mapping[str, str]) -> bool:
    """Whether a finished stage is what this command would make."""
    return (
        manifest is not None
        and manifest["stage"] == name
        and manifest["schema_version"] == SCHEMA_VERSION
        and manifest["key"] == key
        and manifest["inputs"] == dict(inputs)
    )


def refuse_foreign(stage: Storage, name: str) -> None:
    """An output folder that holds another stage's result is a mistake, never something to overwrite."""
    manifest = read_manifest(stage)
    if manifest is not None and manifest.get("stage") != name:
        raise DataError(f"{stage.url} holds the output of `{manifest.get('stage')}`: choose another --out")
