"""What a listing says of one stored object."""

from __future__ import annotations

from typing import NamedTuple

# versions of entries that are no objects
FOLDER, LOCKED, BROKEN_LINK, NO_FILE = "folder", "locked folder", "broken link", "not a file"


class Entry(NamedTuple):
    """One stored object; `version` changes when its content may have changed (etag, or mtime in ns)."""

    key: str
    num_bytes: int
    version: str
