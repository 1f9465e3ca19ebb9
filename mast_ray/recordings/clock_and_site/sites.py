"""A site's name from where a recording lies or what it is called, and which files of
a folder are recordings at all.

Paths are strings relative to the archive's root, with forward slashes, local and s3 alike.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import PurePosixPath
from typing import Literal

SiteFrom = Literal["auto", "folder", "prefix", "none"]

AUDIO_SUFFIXES = frozenset(
    {".wav", ".wave", ".flac", ".ogg", ".oga", ".opus", ".mp3", ".aif", ".aiff", ".aifc", ".wac", ".rf64"}
)
JUNK_FOLDERS = frozenset(
    {
        "system volume information", "$recycle.bin", "recycler", "lost+found", "found.000", "__macosx",
        ".trash", ".trashes", ".spotlight-v100", ".fseventsd", ".temporaryitems", ".documentrevisions-v100",
    }
)  # fmt: skip
_UNINFORMATIVE = re.compile(
    r"^(audio|data|recordings?|wavs?|flacs?|sounds?|files?|raw|card ?\w?|sd ?\w*|dcim|train|test|val|"
    r"(19|20)\d{2}([-_.]?\d{2}){0,2}|\d{1,3})$",
    re.IGNORECASE,
)
CLASS_FOLDER = re.compile(
    r"^(pos|positives?|neg|negatives?|noises?|background|calls?|no[ _-]?calls?|present|presence|absent|absence|fps?|tps?|"
    r"(true|false)[ _-]?(positives?|negatives?|alarms?)|unknown|others?|labell?ed|unlabell?ed|annotated)$",
    re.IGNORECASE,
)


def site_of(path: str, prefix: str, site_from: SiteFrom) -> str:
    """Site of a recording; `prefix` is what its name has before the time. "" when there is nothing to go by.

    Folders that are dates, card numbers or generic words (audio, data, ...) name no site and are passed over; "auto"
    passes over classes (positive, noise, ...) as well.
    """
    folders = PurePosixPath(path.replace("\\", "/")).parts[:-1]
    folder = next(
        (
            part
            for part in reversed(folders)
            if not _UNINFORMATIVE.match(part) and not (site_from == "auto" and CLASS_FOLDER.match(part))
        ),
        "",
    )
    match site_from:
        case "folder":
            return folder
        case "prefix":
            return prefix
        case "none":
            return ""
        case "auto":
            return folder or prefix


def is_junk(path: str) -> bool:
    """macOS resource forks, hidden files, and what operating systems leave on memory cards."""
    parts = PurePosixPath(path.replace("\\", "/")).parts
    if not parts or parts[-1].startswith("."):
        return True
    return any(part.lower() in JUNK_FOLDERS or part.lower().startswith(".trash") for part in parts[:-1])


def is_recording_name(path: str) -> bool:
    """By suffix only; what the file holds is judged when it is opened (WAC is
    listed, to be refused with advice).
    """
    return PurePosixPath(path.replace("\\", "/")).suffix.lower() in AUDIO_SUFFIXES


def recordings_among(paths: Iterable[str]) -> list[str]:
    """The recordings of a listing, sorted, without junk."""
    return sorted(path for path in paths if is_recording_name(path) and not is_junk(path))
