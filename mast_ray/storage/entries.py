"""What a listing says of one stored object."""

from __future__ import annotations

from typing import NamedTuple

FOLDER, LOCKED = "folder", "locked folder"  # versions of entries that are no objects


class Entry(NamedTuple):
    """One stored object; `version` changes when its content may have changed (etag, or mtime in ns)."""

    key: str
    num_bytes: int
    version: str
