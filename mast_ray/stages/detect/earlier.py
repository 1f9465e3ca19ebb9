"""Results of recordings that are not offered any more: kept in OUT/earlier, out of every table of OUT, until they are
offered again or a user has them removed.

A card that is not in its reader, a half-mounted disk and a second archive into the same folder all look alike: names
that were there and are not. OUT/earlier has the shape of OUT itself, so any verb reads it when asked to.
"""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from mast_ray.config.errors import ConfigError
from mast_ray.stages.detect.tables import (
    UnitResult,
    gathered_recordings,
    read_unit_file,
    restricted,
    write_recordings,
)
from mast_ray.storage.lease import lease_or_stop
from mast_ray.storage.outputs import remove_folder, remove_leftovers
from mast_ray.storage.stage_folders import MANIFEST
from mast_ray.storage.storage import Storage
from mast_ray.storage.units import Commit, Item, commit_to_json, read_commit, read_commits

EARLIER, FOLDERS = "earlier", ("detections", "recordings")


def set_aside(stage: Storage, items: Sequence[Item], results: Sequence[UnitResult]) -> int:
    """Copy the rows of recordings whose names are gone to OUT/earlier; returns how many. Recordings that were changed
    are replaced by what they are now, and not kept. A run that was killed leaves commits of a recording before and after it
    was changed: one of them is kept.
    """
    earlier, num_kept = stage.at(EARLIER), 0
    if not any(result.stale for result in results):
        return 0
    elsewhere = {item.path for item in items}  # offered, or set aside already
    for before in read_commits(earlier):
        elsewhere |= set(_paths_of(earlier, before).values())
    for result in results:
        commit = read_commit(stage, result.unit_id) if result.stale else None
        if commit is None:
            continue
        paths = _paths_of(stage, commit)
        gone = {item_id for item_id in result.stale & paths.keys() if paths[item_id] not in elsewhere}
        if gone:
            _put(earlier, restricted(stage, earlier, commit, gone))
            elsewhere |= {paths[item_id] for item_id in gone}
            num_kept += len(gone)
    return num_kept


def bring_back(stage: Storage, items: Sequence[Item]) -> int:
    """Results of recordings that are offered again, unchanged, count again; returns how many. To be called by the
    holder of the lease, before anything is planned. A recording that stands there twice, because a run was killed just
    here, stands there once after it. Files that nobody names any more go in the end (write_earlier_table).
    """
    earlier, num_back = stage.at(EARLIER), 0
    commits = read_commits(earlier)
    if not commits:
        return 0
    versions, elsewhere = {item.item_id: item.version for item in items}, {item.path for item in items}
    written: set[str] = set()  # units, by the way
    for commit in commits:
        if commit.unit_id in written:
            continue
        paths = _paths_of(earlier, commit)
        back = {item_id for item_id in paths if versions.get(item_id) == commit.versions[item_id]}
        kept = {item_id for item_id in paths if paths[item_id] not in elsewhere}
        elsewhere |= {paths[item_id] for item_id in kept}
        if len(kept) == len(paths):
            continue
        if back:
            _put(stage, restricted(earlier, stage, commit, back))
            num_back += len(back)
        if kept:
            left = restricted(earlier, earlier, commit, kept)
            _put(earlier, left)
            written.add(left.unit_id)
        earlier.delete(f"commit/{commit.unit_id}.json")
    return num_back


def write_earlier_table(stage: Storage) -> int:
    """OUT/earlier/recordings.parquet, as its commits say, beside the files that they name; returns its number of recordings."""
    earlier = stage.at(EARLIER)
    commits = read_commits(earlier)
    remove_leftovers(earlier, (file.key for commit in commits for file in commit.files), FOLDERS)
    if not commits:
        earlier.delete("recordings.parquet")
        earlier.delete(MANIFEST)
        return 0
    results = [UnitResult(0, commit.unit_id, commit.files, frozenset()) for commit in commits]
    return sum(len(table) for table in write_recordings(earlier, gathered_recordings(earlier, results)))


def forget_earlier(stage: Storage, is_sure: bool) -> int:
    """Delete OUT/earlier; returns how many recordings it held. Nothing is deleted unless the user is sure. Files that no commit
    names are what is left of a run that was sure, and was killed.
    """
    earlier = stage.at(EARLIER)
    num_recordings = sum(len(commit.outcomes) for commit in read_commits(earlier))
    if next(iter(earlier.list()), None) is None:
        return 0
    if num_recordings and not is_sure:
        raise ConfigError(
            f"this deletes the detections of {num_recordings:,} recordings that the last run was not offered ({earlier.url}):\n"
            "add --yes if they are not wanted; nothing was deleted"
        )
    with lease_or_stop(stage):
        remove_folder(earlier)
    return num_recordings


def _put(target: Storage, commit: Commit) -> None:
    target.write_atomic(f"commit/{commit.unit_id}.json", commit_to_json(commit))


def _paths_of(stage: Storage, commit: Commit) -> dict[str, str]:
    """recording_id -> path of every recording of a commit that has rows."""
    keys = [file.key for file in commit.files if file.key.startswith("recordings/")]
    tables = [read_unit_file(stage, key).select(["recording_id", "path"]) for key in keys]
    if not tables:
        return {}
    table = pa.concat_tables(tables)
    return dict(zip(table.column("recording_id").to_pylist(), table.column("path").to_pylist(), strict=True))
