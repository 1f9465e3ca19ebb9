"""Several prepared archives as one: a folder that names them, which every verb opens like a prepared archive.

OUT/archives/manifest.json says where they lie. Nothing is copied: pools, labels and splits are those of the archives as they
are when the folder is opened, so that an archive that has grown has grown here too.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime

from mast_ray.config.errors import ConfigError, DataError
from mast_ray.config.scratch import scratch_folder
from mast_ray.config.tree import Config
from mast_ray.storage.stage_folders import read_manifest, write_manifest
from mast_ray.storage.stage_run import open_output
from mast_ray.storage.storage import Storage, full_url, open_storage
from mast_ray.tables.dealing.leaks import audit_leaks, with_paths
from mast_ray.tables.dealing.splits import paths_of, recordings_of, rows_of_table
from mast_ray.tables.prepared import JOIN, Prepared, open_prepared

log = logging.getLogger("mast.tables")

FOLDER = "archives"


def one_archive(prepared: str | Sequence[str], out: str, stage_name: str, config: Config) -> str:
    """The address of the archive a stage is to work on: the one that is named, or OUT/archives, which joins several."""
    named = [prepared] if isinstance(prepared, str) else list(prepared)
    if len(named) == 1:
        return full_url(named[0])
    return join_archives(named, open_output(out, stage_name, config.storage).at(FOLDER), config).storage.url


@contextmanager
def archive_to_plan(prepared: str | Sequence[str], config: Config) -> Iterator[str]:
    """The same where nothing is to be written: several are joined in a folder that is gone afterwards."""
    with scratch_folder() as folder:
        named = [prepared] if isinstance(prepared, str) else list(prepared)
        if len(named) > 1:
            join_archives(named, open_storage(folder), config)
        yield str(folder) if len(named) > 1 else named[0]


def join_archives(uris: Sequence[str], folder: Storage, config: Config) -> Prepared:
    """Write a folder that stands for several archives, unless it does already, and open it."""
    urls = [open_storage(uri, config.storage).url for uri in uris]
    if len(set(urls)) < len(urls):
        twice = next(url for url in urls if urls.count(url) > 1)
        raise ConfigError(f"{twice} is named twice: name every archive once")
    before = read_manifest(folder)
    if before is not None and before.counts.get("archives") != urls:
        raise DataError(
            f"{folder.url} began with {', '.join(before.counts.get('archives', []))}:\n"
            "name the same archives in the same order, or choose another --out"
        )
    for url in urls:  # before anything is written
        if open_prepared(url, config.storage).members:
            raise DataError(f"{url} stands for several archives itself: name these instead")
    if before is None:
        write_manifest(folder, JOIN, config, "", {}, {"archives": urls}, datetime.now(UTC))
    joined = open_prepared(folder, config.storage)
    log.info("%s", joined_text(joined))
    if shared := shared_text(joined):
        log.warning("%s", shared)
    leaks = audit_leaks(rows_of_table(joined.splits), recordings_of(joined.recordings), "recording")
    for leak in with_paths(leaks, paths_of(joined.recordings)):
        log.warning("leak: %s", leak)
    return joined


def joined_text(joined: Prepared) -> str:
    """For people: what each archive brings, and the statistics of all."""
    lines = [
        f"{member.storage.url}: {len(member.recordings):,} recordings, {int(member.num_chunks.sum()):,} chunks, "
        f"{len(member.labels):,} labels, mean {member.moments.mean:.4f}, std {member.moments.std:.4f}"
        for member in joined.members
    ]
    all_of = joined.moments
    lines.append(f"together ({joined.storage.url}): mean {all_of.mean:.4f}, std {all_of.std:.4f}")
    return "\n".join(lines)


def shared_text(joined: Prepared) -> str:
    """For people: recordings that lie in several of the archives, whose calls count once for each; "" without any."""
    seen: set[str] = set()
    paths: list[str] = []
    num_labels = 0
    for member in joined.members:
        columns = (
            member.recordings.column(name).to_pylist() for name in ("recording_id", "path", "fingerprint")
        )
        again = {
            rid: path for rid, path, content in zip(*columns, strict=True) if content and content in seen
        }
        paths += again.values()
        num_labels += sum(rid in again for rid in member.labels.column("recording_id").to_pylist())
        seen |= set(member.recordings.column("fingerprint").to_pylist())
    if not paths:
        return ""
    return (
        f"{len(paths):,} recordings have the same audio as one of an archive before theirs (e.g. {paths[0]}): their {num_labels:,} "
        "labels are taught and tested twice; name only one of these archives, or prepare one without them (--exclude)"
    )
