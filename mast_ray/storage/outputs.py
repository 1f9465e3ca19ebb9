"""Where a stage may write, what was damaged since it was written, and what must go in the end.

A manifest holds a seal: how many files the stage wrote, their bytes, and a hash of their names and sizes, which one
listing checks. Commits hold the size and sha256 of every data file: a unit whose commit cannot be read, or whose files
are missing or changed, loses its commit, and the run does it again like one that was never done.
"""

from __future__ import annotations

import hashlib
import logging
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

from mast_ray.config.errors import ConfigError
from mast_ray.storage.entries import Entry
from mast_ray.storage.stage_folders import MANIFEST, Manifest, text_hash
from mast_ray.storage.storage import Storage, is_being_written, map_keys
from mast_ray.storage.units import Commit, DataFile, commit_from_json, read_commits, take_back

log = logging.getLogger(__name__)
READ_BYTES = 4 << 20
# The only names that an attempt gives its files (unit, then content; see publish_file) and its scratch. Whatever else lies in a
# folder is somebody's own, and is neither deleted nor counted.
_OF_AN_ATTEMPT = re.compile(r"[0-9a-f]{12}-[0-9a-f]{12}\.(parquet|arrow)")
_SCRATCH = re.compile(r"\.tmp-[0-9a-f]{16}")


def refuse_mixing(archive: Storage, stage: Storage, folders: Iterable[str] = ()) -> None:
    """Nothing is ever written among the user's recordings, nor into the results of a run: `folders` are those that the stage will
    write to.
    """
    out, around = (_true_url(storage).rstrip("/") + "/" for storage in (stage, archive))
    if out.startswith(around):
        raise ConfigError(
            f"--out {stage.url} lies inside the archive:\nchoose a folder outside {archive.url}"
        )
    for folder in (*folders, "commit", "attempts"):
        if around.startswith(f"{out}{folder}/"):
            raise ConfigError(
                f"{archive.url} is where --out {stage.url} would write its own files:\n"
                "choose another --out, e.g. a new folder"
            )
        if stage.stat(f"{folder}/{MANIFEST}") is not None:
            raise ConfigError(
                f"--out {stage.url} holds a finished result of its own in {folder}/:\n"
                f"give {stage.url}/{folder} to go on with that one, or choose another folder"
            )


def _true_url(storage: Storage) -> str:
    """Where a folder really is, past links and `..`."""
    local = storage.local_path("")
    return storage.url if local is None else os.path.realpath(local)


def remove_leftovers(stage: Storage, named: Iterable[str], folders: Iterable[str]) -> int:
    """What dead attempts left behind: files below `folders` that no commit names, and scratch files."""
    keep, removed = set(named), 0
    for folder in folders:
        for entry in list(_data_files(stage, folder)):
            if entry.key not in keep:
                stage.delete(entry.key)
                removed += 1
    remove_scratch(stage, ".tmp-*")
    return removed


def remove_scratch(stage: Storage, pattern: str = "**/.tmp-*") -> None:
    """What was being written when a process was killed, in a folder and below it. To be called by the holder of the lease, when
    nobody else is at work there.
    """
    root = stage.local_path("")
    for scratch in list(root.glob(pattern)) if root is not None else ():
        if _SCRATCH.fullmatch(scratch.name) and not is_being_written(scratch.name):
            scratch.unlink(missing_ok=True)


def remove_folder(folder: Storage) -> None:
    """It and all that is in it: manifests first, then attempts, then commits, then what commits name. Whoever is killed in
    between leaves work that is done again, never a result that promises a file that is gone or an attempt that looks
    like a death.
    """

    def rank(key: str) -> int:
        names = key.split("/")
        return next((rank for rank, name in enumerate((MANIFEST, "attempts", "commit")) if name in names), 3)

    for key in sorted((entry.key for entry in folder.list()), key=rank):
        folder.delete(key)
    local = folder.local_path("")
    for emptied, _, _ in os.walk(local, topdown=False) if local is not None else ():
        with suppress(OSError):  # somebody's own file is in it
            os.rmdir(emptied)


def _data_files(stage: Storage, folder: str) -> Iterator[Entry]:
    """The files below a folder that attempts have written."""
    return (e for e in stage.list(folder) if _OF_AN_ATTEMPT.fullmatch(e.key.rpartition("/")[2]))


def copy_work(source: Storage, target: Storage) -> None:
    """The units that one stage has committed, into another that would do just the same: files first, then commits, so
    that a copy that is cut short leaves only less.
    """
    files = {file.key for commit in read_commits(source) for file in commit.files}
    commits = [entry.key for entry in source.list("commit")]
    for keys in (sorted(files), commits):
        map_keys(lambda key: target.write_atomic(key, source.read_bytes(key)), keys)


def seal_of(
    stage: Storage, folders: Sequence[str], tables: Sequence[str], present: Sequence[str] = ()
) -> dict[str, Any]:
    """What a listing of a finished stage says of the files below `folders` and commit/, of `tables`, and that
    `present` (which other verbs may rewrite) are there.
    """
    sizes = {entry.key: entry.num_bytes for folder in folders for entry in _data_files(stage, folder)}
    sizes |= {entry.key: entry.num_bytes for entry in stage.list("commit")}
    for name in (*tables, *present):
        entry = stage.stat(name)
        if entry is not None:
            sizes[name] = entry.num_bytes if name in tables else 0
    lines = [f"{key} {size}" for key, size in sorted(sizes.items())]
    return {"files": len(sizes), "bytes": sum(sizes.values()), "names_and_sizes": text_hash("\n".join(lines))}


def is_whole(
    stage: Storage,
    manifest: Manifest,
    folders: Sequence[str],
    tables: Sequence[str],
    present: Sequence[str] = (),
) -> bool:
    """Whether all that a finished stage wrote is still there in its size; stages from before there were seals are."""
    seal = manifest.counts.get("seal")
    if seal is None or seal == seal_of(stage, folders, tables, present):
        return True
    log.warning("%s was damaged after it was finished: what is missing or changed is done again", stage.url)
    return False


def mend(stage: Storage, folders: Sequence[str], reads_all: bool = False) -> int:
    """Take back the commits of damaged units; returns how many. To be called by the holder of the lease."""
    sizes = {entry.key: entry.num_bytes for folder in folders for entry in stage.list(folder)}
    keys = [entry.key for entry in stage.list("commit") if entry.key.endswith(".json")]
    num_damaged = 0
    for first in range(0, len(keys), 64):
        some = keys[first : first + 64]
        for key, data in zip(some, map_keys(stage.read_bytes, some), strict=True):
            fault = _fault_of(stage, data, sizes, reads_all)
            if fault:
                log.warning("%s/%s: %s; its recordings are done again", stage.url, key, fault)
                take_back(stage, key.removeprefix("commit/").removesuffix(".json"))
                num_damaged += 1
    return num_damaged


def _fault_of(stage: Storage, data: bytes, sizes: Mapping[str, int], reads_all: bool) -> str:
    """What is wrong with a unit's result; "" for nothing."""
    try:
        commit: Commit = commit_from_json(data)
    except (ValueError, TypeError, KeyError, AttributeError):
        return "the record of the unit cannot be read"
    for file in commit.files:
        if file.key not in sizes:
            return f"{file.key} is missing"
        if file.num_bytes and sizes[file.key] != file.num_bytes:
            return f"{file.key} has {sizes[file.key]:,} bytes instead of {file.num_bytes:,}"
        if reads_all and not _is_as_written(stage, file):
            return f"{file.key} does not have the content it was written with"
    return ""


def _is_as_written(stage: Storage, file: DataFile) -> bool:
    digest = hashlib.sha256()
    with stage.open_read(file.key, READ_BYTES) as source:
        while block := source.read(READ_BYTES):
            digest.update(block)
    return digest.hexdigest() == file.sha256
