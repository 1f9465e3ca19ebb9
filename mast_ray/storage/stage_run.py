"""The life of a stage: refused where it does not belong, skipped where it is done, its folder held while it works,
declared whole at its end.

    stage = open_output(out, "train", config.storage)      early: a folder of another stage is refused at once
    with stage_run(stage, "train", config, key, inputs, settings) as run:
        if run.done is not None:
            return ...                                     an earlier run has done just this
        ...
        run.finish(counts)

A block that is left in any other way leaves a folder without a manifest: the same command goes on with it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Literal, NamedTuple

from mast_ray.config.errors import ConfigError, DataError
from mast_ray.config.tree import Config, StorageConfig
from mast_ray.storage.lease import forget_lease, lease_or_stop
from mast_ray.storage.stage_folders import MANIFEST, Manifest, read_manifest, write_manifest
from mast_ray.storage.storage import Storage, open_storage

BEGUN = "begun.json"


@dataclass(frozen=True)
class StageRun:
    """A stage under way, or done before."""

    stage: Storage
    name: str
    config: Config
    key: str
    inputs: Mapping[str, str]
    done: Manifest | None = None
    run_id: str = ""  # names this run in the ledger of work units

    def begin_anew(self) -> None:
        """Before the first file is written over: what an earlier run with other settings declared whole is not any more. A kill
        in between would leave its manifest beside the files of this one.
        """
        self.stage.delete(MANIFEST)

    def finish(self, counts: Mapping[str, Any]) -> Manifest:
        """Declare the folder whole."""
        return write_manifest(
            self.stage, self.name, self.config, self.key, self.inputs, counts, datetime.now(UTC)
        )


class StageResult(NamedTuple):
    """What a stage gives back that has nothing more to say than its manifest."""

    manifest: Manifest
    was_done: bool  # by an earlier run


def open_output(uri: str, name: str, settings: StorageConfig) -> Storage:
    """The folder a stage will write to, refused early where it holds another stage's result."""
    stage = open_storage(uri, settings)
    refuse_foreign(stage, name)
    return stage


def refuse_foreign(stage: Storage, name: str) -> None:
    """A folder that holds another stage's result is a mistake, never something to overwrite."""
    manifest = read_manifest(stage)
    if manifest is not None and manifest.stage != name:
        raise DataError(f"{stage.url} holds the output of `{manifest.stage}`: choose another --out")


def done_before(stage: Storage, name: str, key: str, inputs: Mapping[str, str]) -> Manifest | None:
    """The manifest of an earlier run that has done just this."""
    found = read_manifest(stage)
    return found if found is not None and found.is_of(name, key, inputs) else None


@contextmanager
def stage_run(
    stage: Storage,
    name: str,
    config: Config,
    key: str,
    inputs: Mapping[str, str],
    settings: Mapping[str, Any] | None = None,
    *,
    when_done: Literal["skip", "again"] = "skip",
    lease: Literal["own", "of_caller"] = "own",
) -> Iterator[StageRun]:
    """`key` names everything the content depends on besides the inputs. `settings` are those that all work in the
    folder must share, also that of earlier runs. With `of_caller` the folder lies inside one that is held already.
    """
    refuse_foreign(stage, name)
    done = done_before(stage, name, key, inputs) if when_done == "skip" else None
    if done is not None:
        yield StageRun(stage, name, config, key, inputs, done)
        return
    held, is_bare = None, False
    try:
        with lease_or_stop(stage) if lease == "own" else nullcontext() as held:
            try:
                if settings is not None:
                    refuse_other_settings(stage, settings)
                run_id = held.run if held is not None else ""
                yield StageRun(stage, name, config, key, inputs, run_id=run_id)
            except (ConfigError, DataError):
                is_bare = _holds_no_work(stage)
                if is_bare:
                    stage.delete(BEGUN)
                raise
    finally:
        if held is not None and is_bare:
            forget_lease(stage, held)  # refused before any work: nothing is left of it


def _holds_no_work(stage: Storage) -> bool:
    return all(entry.key == BEGUN or entry.key.startswith("lease/") for entry in stage.list())


def refuse_other_settings(stage: Storage, mine: Mapping[str, Any]) -> None:
    """Work that was done with other settings cannot be mixed with new; the first run leaves its own. One that did no
    work (a model of the wrong kind was named) has nothing to be mixed with.
    """
    record = json.dumps(mine, indent=1, sort_keys=True).encode()
    if stage.put_if_absent(BEGUN, record):
        return
    try:
        begun = dict(json.loads(stage.read_bytes(BEGUN)))
    except (ValueError, TypeError) as error:
        raise DataError(
            f"{stage.url}/{BEGUN} is damaged, and with it the settings this folder was begun with:\n"
            "delete that file if they are the present ones, or choose another --out"
        ) from error
    different = [name for name in mine if begun.get(name) != mine[name]]
    if different and _holds_no_work(stage):
        stage.write_atomic(BEGUN, record)
    elif different:
        name = different[0]
        raise ConfigError(
            f"{stage.url} was begun with {name}={begun.get(name)!r}, now it is {mine[name]!r}:\n"
            "choose another --out, or go on with the settings it was begun with"
        )
