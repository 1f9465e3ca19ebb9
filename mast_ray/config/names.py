"""Names of files and folders made from names that people gave: any script, any length, never longer than a disk takes."""

from __future__ import annotations

import hashlib

MOST_BYTES = 255  # of one name, on every file system in use


def short_name(name: str, ending: str = "") -> str:
    """`name` + `ending`; where that is too long, as much of the name as fits and eight digits that tell it from others."""
    whole = name + ending
    if len(whole.encode("utf-8", "surrogateescape")) <= MOST_BYTES:
        return whole
    mark = f"~{hashlib.sha256(name.encode('utf-8', 'surrogateescape')).hexdigest()[:8]}"
    room = MOST_BYTES - len((mark + ending).encode())
    return _within(name, room) + mark + ending


def _within(name: str, room: int) -> str:
    """The longest beginning of a text that fits into so many bytes, never half a letter."""
    return name.encode("utf-8", "surrogateescape")[:room].decode("utf-8", "ignore")
