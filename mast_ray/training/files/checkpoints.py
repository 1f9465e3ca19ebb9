"""Training state on disk: whole or not at all, and never trusted without its checksums.

A checkpoint is a folder of safetensors and JSON (no pickle anywhere) whose manifest, written last,
holds size and sha256 of every file. A folder without a manifest is an orphan; one that fails its
checksums is damaged; neither is ever loaded.
"""

from __future__ import annotations

import hashlib
import json
import logging
import re
from base64 import b64decode, b64encode
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from io import BytesIO
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load as tensors_from_bytes
from safetensors.torch import save_file
from torch import Tensor, nn

from mast_ray.config.errors import ConfigError, DataError, TemporaryError
from mast_ray.storage.outputs import remove_folder
from mast_ray.storage.storage import Storage
from mast_ray.training.engine import EngineState

log = logging.getLogger("mast.training")

MANIFEST = "manifest.json"
STATE, WEIGHTS, AVERAGE, MOMENTS = (
    "state.json",
    "weights.safetensors",
    "average.safetensors",
    "moments.safetensors",
)
_NAME = re.compile(r"^step-(\d{10})$")
KEPT = 2  # a damaged newest one leaves its predecessor
MOST_FAILED_WRITES = 3
STORAGE_FAULTS = (
    OSError,
    TemporaryError,
    SafetensorError,
)  # safetensors reports a full disk in its own error


@dataclass(frozen=True)
class Position:
    """Where a run stands. Samples seen fix the data order, the learning rate and
    every random draw that follows.
    """

    steps_done: int = 0
    samples_seen: int = 0
    skipped_steps: int = 0
    best_step: int = -1  # step of the best validation so far, -1: none
    best_value: float = 0.0
    extra: dict[str, float] = field(
        default_factory=dict
    )  # metrics at the best step, e.g. the tuned threshold
    unscored: list[int] = field(default_factory=list)  # steps whose weights wait for their figures


@dataclass(frozen=True)
class TrainingState:
    """What a checkpoint holds. `identity` names the run: a checkpoint of other
    data or settings is refused.
    """

    position: Position
    engine: EngineState
    identity: dict[str, Any]
    seen: bytes = b""  # what a feed has to know to go on in mid-epoch


class Checkpoints:
    """The checkpoints of one run in one folder, newest kept last. Only rank 0 writes."""

    def __init__(self, storage: Storage) -> None:
        self.storage = storage
        self._failures_in_a_row = 0

    def write(self, state: TrainingState, is_last: bool = False) -> bool:
        """Write and prune. A failed write is counted and survived up to three times in
        a row, then it ends the run. That of the last step ends it at once: there is no later one to make up for it.
        """
        name = f"step-{state.position.steps_done:010d}"
        try:
            self._remove(name)
            self._write_files(name, state)
        except STORAGE_FAULTS as error:
            self._failures_in_a_row += 1
            log.warning("checkpoint %s not written to %s (%s)", name, self.storage.url, error)
            self._try_to_remove(name)
            if is_last or self._failures_in_a_row >= MOST_FAILED_WRITES:
                failed = (
                    "the checkpoint of the last step"
                    if is_last
                    else f"{self._failures_in_a_row} checkpoints in a row"
                )
                raise TemporaryError(
                    f"{failed} could not be written to {self.storage.url}: {error}\nThe last good one is kept: make room or restore the storage, then run the same command"
                ) from error
            return False
        self._failures_in_a_row = 0
        try:
            self._prune()
        except STORAGE_FAULTS as error:  # the new one stands: an old one too many is no reason to stop
            log.warning("old checkpoints stay in %s for now (%s)", self.storage.url, error)
        return True

    def newest_good(self) -> str | None:
        """Name of the newest checkpoint whose every file matches its manifest;
        damaged ones are named in the log.
        """
        for name in reversed(self.names()):
            fault = self.fault_of(name)
            if fault is None:
                return name
            log.warning("checkpoint %s is damaged (%s): using the one before it", name, fault)
        return None

    def names(self) -> list[str]:
        """Folders that look like checkpoints, oldest first, whether whole or not."""
        folders = {entry.key.split("/", 1)[0] for entry in self.storage.list()}
        return sorted(name for name in folders if _NAME.match(name))

    def newest_identity(self) -> dict[str, Any] | None:
        """Whose run the folder holds, by the newest checkpoint that can say it:
        two small files, no weights.
        """
        for name in reversed(self.names()):
            try:
                return json.loads(self._verified(name, only={STATE})[STATE])["identity"]
            except DataError:
                continue
        return None

    def fault_of(self, name: str) -> str | None:
        """Why a checkpoint must not be used, or None when every byte is as written."""
        try:
            self._verified(name)
        except DataError as error:
            return str(error)
        return None

    def read(self, name: str) -> TrainingState:
        """Load a checkpoint; the bytes that are parsed are the bytes that were checked."""
        files = self._verified(name)
        state = json.loads(files[STATE])
        moments = tensors_from_bytes(files[MOMENTS])
        engine = EngineState(
            weights=tensors_from_bytes(files[WEIGHTS]),
            average=tensors_from_bytes(files[AVERAGE]) if AVERAGE in files else None,
            first_moment=_with_prefix(moments, "first."),
            second_moment=_with_prefix(moments, "second."),
            optimizer_steps=state["optimizer_steps"],
            loss_scale=tuple(state["loss_scale"]),
        )
        return TrainingState(
            Position(**state["position"]), engine, state["identity"], b64decode(state.get("seen", ""))
        )

    def clean(self) -> list[str]:
        """Remove folders that were never finished (a kill or a full disk in
        mid-write); returns their names.
        """
        orphans = [name for name in self.names() if self.storage.stat(f"{name}/{MANIFEST}") is None]
        for name in orphans:
            log.info("removing unfinished checkpoint %s", name)
            self._remove(name)
        folder = self.storage.local_path("")
        for scratch in folder.glob(".tmp-*") if folder is not None else ():
            scratch.unlink(missing_ok=True)
        return orphans

    def _write_files(self, name: str, state: TrainingState) -> None:
        tensors: dict[str, dict[str, Tensor]] = {WEIGHTS: state.engine.weights}
        if state.engine.average is not None:
            tensors[AVERAGE] = state.engine.average
        tensors[MOMENTS] = {f"first.{key}": value for key, value in state.engine.first_moment.items()} | {
            f"second.{key}": value for key, value in state.engine.second_moment.items()
        }
        entries = {}
        for file, content in tensors.items():
            with self.storage.scratch_file() as path:
                save_file({key: value.contiguous() for key, value in content.items()}, path)
                with open(path, "rb") as stream:
                    entries[file] = _entry(stream)
                self.storage.publish(path, f"{name}/{file}")
        text = json.dumps(
            {
                "position": asdict(state.position),
                "optimizer_steps": state.engine.optimizer_steps,
                "loss_scale": list(state.engine.loss_scale),
                "identity": state.identity,
                "seen": b64encode(state.seen).decode(),
            }
        ).encode()
        self.storage.write_atomic(f"{name}/{STATE}", text)
        entries[STATE] = _entry(BytesIO(text))
        self.storage.write_atomic(f"{name}/{MANIFEST}", manifest_text(entries))

    def _verified(self, name: str, only: set[str] | None = None) -> dict[str, bytes]:
        def read(file: str) -> bytes:
            try:
                return self.storage.read_bytes(f"{name}/{file}")
            except FileNotFoundError as error:
                raise DataError(f"{file} is missing") from error

        entries = parse_manifest(read(MANIFEST))
        if not {STATE, WEIGHTS, MOMENTS} <= entries.keys():
            raise DataError("the manifest lists too few files")
        files = {}
        for file, entry in entries.items():
            if only is not None and file not in only:
                continue
            data = read(file)
            if len(data) != entry["num_bytes"]:
                raise DataError(f"{file} has {len(data)} of {entry['num_bytes']} bytes")
            if hashlib.sha256(data).hexdigest() != entry["sha256"]:
                raise DataError(f"{file} does not match its sha256")
            files[file] = data
        return files

    def _prune(self) -> None:
        """Keep the newest `keep` finished checkpoints; older ones and damaged leftovers go."""
        finished = [name for name in self.names() if self.storage.stat(f"{name}/{MANIFEST}") is not None]
        for name in finished[:-KEPT]:
            self._remove(name)

    def _remove(self, name: str) -> None:
        # The manifest goes first: from then on the folder is an orphan, whatever happens to the rest.
        remove_folder(self.storage.at(name))

    def _try_to_remove(self, name: str) -> None:
        try:
            self._remove(name)
        except STORAGE_FAULTS as error:
            log.warning("what was written of %s could not be removed: %s", name, error)


def manifest_text(entries: dict[str, dict[str, Any]]) -> bytes:
    """A manifest that notices changes to itself: it carries the sha256 of its own entries."""
    return json.dumps({"files": entries, "sha256": _digest(entries)}, indent=1, sort_keys=True).encode()


def parse_manifest(data: bytes) -> dict[str, dict[str, Any]]:
    """The entries of a manifest, or DataError when it is not exactly what was written."""
    try:
        manifest = json.loads(data)
        entries = manifest["files"]
        is_whole = manifest["sha256"] == _digest(entries) and manifest_text(entries) == data
    except (ValueError, KeyError, TypeError) as error:
        raise DataError(f"{MANIFEST} cannot be read") from error
    if not is_whole:
        raise DataError(f"{MANIFEST} was changed after it was written")
    return entries


def _digest(entries: dict[str, dict[str, Any]]) -> str:
    return hashlib.sha256(json.dumps(entries, sort_keys=True).encode()).hexdigest()


def _entry(stream: Any) -> dict[str, Any]:
    digest, num_bytes = hashlib.sha256(), 0
    for block in _blocks(stream):
        digest.update(block)
        num_bytes += len(block)
    return {"num_bytes": num_bytes, "sha256": digest.hexdigest()}


def _blocks(stream: Any) -> Iterator[bytes]:
    while block := stream.read(1 << 22):
        yield block


def _with_prefix(tensors: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {key.removeprefix(prefix): value for key, value in tensors.items() if key.startswith(prefix)}


def refuse_another_run(storage: Storage, stored: dict[str, Any] | None, wanted: dict[str, Any]) -> None:
    """A folder belongs to one run: its checkpoints are never taken up, nor
    written over, with other settings.
    """
    different = same_identity(stored, wanted) if stored is not None else []
    different = ["data: recordings or labels" if name == "data" else name for name in different]
    if different:
        raise ConfigError(
            f"{_run_of(storage)} holds a run with other settings ({', '.join(different[:4])}):\n"
            "choose another --out, or delete that folder to start again"
        )


def refuse_another_network(storage: Storage, stored: dict[str, Tensor], network: nn.Module) -> None:
    """The same settings may mean another network in another version: its weights cannot go on."""
    own = {name: value.shape for name, value in network.state_dict().items()}
    for name, parameter in network.named_parameters(remove_duplicate=False):
        own[name] = getattr(parameter, "ds_shape", parameter.shape)  # DeepSpeed's, of what is in pieces
    theirs = {name: value.shape for name, value in stored.items()}
    different = sorted(name for name in own.keys() | theirs.keys() if own.get(name) != theirs.get(name))
    if different:
        raise ConfigError(
            f"{_run_of(storage)} holds a run of a network of another shape ({len(different)} weights: {', '.join(different[:2])}):\n"
            "finish it with the version of mast_ray that began it (CHANGELOG.md says which networks changed shape),\n"
            "choose another --out, or delete that folder to start again"
        )


def _run_of(checkpoints: Storage) -> str:
    """The folder of the whole run: what else it holds (scores of its model) is of those settings too."""
    return checkpoints.url.removesuffix("/checkpoints")


def same_identity(stored: dict[str, Any], wanted: dict[str, Any]) -> list[str]:
    """Names of the settings in which a stored run differs from the wanted one."""
    return sorted(key for key in stored.keys() | wanted.keys() if stored.get(key) != wanted.get(key))
