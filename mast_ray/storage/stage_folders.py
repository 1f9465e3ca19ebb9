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
import logging
import subprocess
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

import mast_ray
from mast_ray.config.tree import Config
from mast_ray.storage.storage import Storage

log = logging.getLogger(__name__)
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


@dataclass(frozen=True)
class Manifest:
    """What manifest.json says."""

    stage: str
    key: str  # names everything the content depends on besides the inputs
    inputs: Mapping[str, str]  # content hashes
    counts: Mapping[str, Any]  # figures of the stage's own
    config: Mapping[str, Any]  # resolved, as it was
    code: str = ""
    packages: Mapping[str, str] = field(default_factory=dict)
    finished_utc: str = ""
    schema_version: int = SCHEMA_VERSION

    @classmethod
    def from_json(cls, found: Mapping[str, Any]) -> Manifest:
        """Of a file as read; what an older or a foreign one lacks is empty."""
        empty: dict[str, Any] = {
            "stage": "", "key": "", "inputs": {}, "counts": {}, "config": {}, "schema_version": 0
        }  # fmt: skip
        known = {name: found[name] for name in cls.__dataclass_fields__ if name in found}
        return cls(**(empty | known))

    def is_of(self, stage: str, key: str, inputs: Mapping[str, str]) -> bool:
        """Whether a command with this key and these inputs would make just this."""
        mine = (self.stage, self.schema_version, self.key, dict(self.inputs))
        return mine == (stage, SCHEMA_VERSION, key, dict(inputs))


def read_manifest(stage: Storage) -> Manifest | None:
    """The manifest of a finished stage; None while there is none."""
    try:
        found = json.loads(stage.read_bytes(MANIFEST))
        if not isinstance(found, dict):
            raise ValueError("it is no manifest")
        return Manifest.from_json(found)
    except FileNotFoundError:
        return None
    except ValueError:  # the stage goes on from its commits, as if it had not finished
        log.warning("%s/%s is damaged: the stage is taken for unfinished", stage.url, MANIFEST)
        return None


def write_manifest(
    stage: Storage,
    name: str,
    config: Config,
    key: str,
    inputs: Mapping[str, str],
    counts: Mapping[str, Any],
    now: datetime,
) -> Manifest:
    """Declare a stage whole."""
    finished = now.isoformat(timespec="seconds")
    settings = config.model_dump(mode="json")
    manifest = Manifest(
        name, key, dict(inputs), dict(counts), settings, code_version(), package_versions(), finished
    )
    put_manifest(stage, manifest)
    return manifest


def put_manifest(stage: Storage, manifest: Manifest) -> None:
    """Write a manifest as it is."""
    stage.write_atomic(MANIFEST, json.dumps(asdict(manifest), indent=1, sort_keys=True).encode())
