"""The user's table of recordings or sites (`--table`), read from wherever it lies."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from mast_ray.config.errors import ConfigError, DataError
from mast_ray.config.tree import StorageConfig
from mast_ray.recordings.annotations.tabular import decoded
from mast_ray.recordings.clock_and_site.site_tables import SiteTable, parse_site_table, refuse_unclear
from mast_ray.storage.storage import open_beside


def site_table_of(
    uri: str, paths: Sequence[str], settings: StorageConfig, group_column: str = ""
) -> tuple[SiteTable | None, str]:
    """The user's table of recordings or sites and its text, local or s3://;
    (None, "") where none is given.
    """
    if not uri:
        if group_column:
            raise ConfigError(f"--group {group_column} names a column of --table, which is not given")
        return None, ""
    folder, name = open_beside(uri, settings)
    try:
        text = decoded(folder.read_bytes(name), f"--table {uri}")
    except FileNotFoundError:
        raise DataError(f"--table {uri}: no such file") from None
    sites = parse_site_table(text, uri, group_column)
    if note := refuse_unclear(sites, paths, uri):
        print(f"note: {note}", file=sys.stderr)
    return sites, f"{text}\n{group_column}" if group_column else text
