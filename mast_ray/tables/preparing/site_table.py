"""The user's table of recordings or sites (`--table`), read from wherever it lies."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence

from mast_ray.config.errors import ConfigError, DataError
from mast_ray.config.tree import AudioConfig, StorageConfig
from mast_ray.recordings.annotations.tabular import decoded
from mast_ray.recordings.clock_and_site.clock import parse_name_metadata
from mast_ray.recordings.clock_and_site.site_tables import SiteTable, parse_site_table, refuse_unclear
from mast_ray.storage.entries import BROKEN_LINK
from mast_ray.storage.stage_folders import text_hash
from mast_ray.storage.storage import open_beside
from mast_ray.storage.units import Item


def site_table_of(
    uri: str,
    paths: Sequence[str],
    settings: StorageConfig,
    site_at: Callable[[str], str],
    group_column: str = "",
) -> tuple[SiteTable | None, str]:
    """The user's table of recordings or sites and its text, local or s3://; (None, "") where none is given. `site_at` gives
    the site that a path has without the table.
    """
    if not uri:
        if group_column:
            raise ConfigError(f"--group {group_column} names a column of --table, which is not given")
        return None, ""
    folder, name = open_beside(uri, settings)
    try:
        text = decoded(folder.read_bytes(name), f"--table {uri}")
    except FileNotFoundError:
        raise DataError(f"--table {uri}: no such file: check the path") from None
    sites = parse_site_table(text, uri, group_column)
    at_sites = set(map(site_at, paths)) if sites.by_site else set[str]()
    if note := refuse_unclear(sites, paths, at_sites, uri):
        print(f"note: {note}", file=sys.stderr)
    return sites, f"{text}\n{group_column}" if group_column else text


def site_by_name(audio: AudioConfig) -> Callable[[str], str]:
    """The site of a recording by its path alone."""
    return lambda path: parse_name_metadata(path, audio.timezone, audio.site_from).site


def versions_with_rows(
    items: Sequence[Item], sites: SiteTable | None, audio: AudioConfig
) -> tuple[Item, ...]:
    """The recordings, each in a version of its own for what the table says about it: a row that is new or was corrected
    does that recording again, and no other.
    """
    if sites is None:
        return tuple(items)
    told, site_at = [], site_by_name(audio)
    for item in items:
        row = sites.row_of(item.path, site_at(item.path))
        is_told = row is not None and item.version != BROKEN_LINK
        told.append(item._replace(version=f"{item.version} {text_hash(repr(row))}") if is_told else item)
    return tuple(told)
