"""A site's name from where a recording lies or what it is called, and which files of
a folder are recordings at all.

Paths are strings relative to the archive's root, with forward slashes, local and s3 alike.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import lru_cache
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
_NUMBER = re.compile(r"\d{1,3}")
CLASS_FOLDER = re.compile(
    r"^(pos|positives?|neg|negatives?|noises?|background|calls?|no[ _-]?calls?|present|presence|absent|absence|fps?|tps?|"
    r"(true|false)[ _-]?(positives?|negatives?|alarms?)|unknown|others?|labell?ed|unlabell?ed|annotated)$",
    re.IGNORECASE,
)


def site_of(path: str, prefix: str, site_from: SiteFrom) -> str:
    """Site of a recording; `prefix` is what its name has before the time. "" when there is nothing to go by.

    Folders that are dates, card numbers or generic words (audio, data, ...) name no site and are passed over; "auto"
    passes over classes (positive, noise, ...) as well. "folder" takes a number where there is nothing better.
    """
    folder = _folder_of_site(path.replace("\\", "/").rpartition("/")[0], site_from)
    match site_from:
        case "folder":
            return folder
        case "prefix":
            return prefix
        case "none":
            return ""
        case "auto":
            return folder or prefix


def telling_folders(path: str, site_from: SiteFrom) -> tuple[str, ...]:
    """Those folders of a path that can be names, outermost first: the last is the site, those above it say whose."""
    return _telling(path.replace("\\", "/").rpartition("/")[0], site_from)


@lru_cache(maxsize=4096)  # millions of recordings lie in few folders
def _telling(folder: str, site_from: SiteFrom) -> tuple[str, ...]:
    return tuple(
        part
        for part in _parts(folder)
        if not _UNINFORMATIVE.match(part) and not (site_from == "auto" and CLASS_FOLDER.match(part))
    )


def _folder_of_site(folder: str, site_from: SiteFrom) -> str:
    """The innermost folder that can be a site's name; "" when none can."""
    if telling := _telling(folder, site_from):
        return telling[-1]
    if site_from == "folder":  # asked for: where no folder has a name, a number is one
        return next((part for part in reversed(_parts(folder)) if _NUMBER.fullmatch(part)), "")
    return ""


def _parts(path: str) -> list[str]:
    """What pathlib gives, ten times as fast: an archive has millions of paths."""
    return [part for part in path.split("/") if part not in ("", ".")]


def stem_and_suffix(path: str) -> tuple[str, str]:
    """Of the last part of a path: x.y.wav is ("x.y", ".wav"), and .wav has no suffix."""
    name = path.replace("\\", "/").rstrip("/").rpartition("/")[2]
    dot = name.rfind(".")
    return (name[:dot], name[dot:]) if 0 < dot < len(name) - 1 else (name, "")


def is_junk(path: str) -> bool:
    """macOS resource forks, hidden files, and what operating systems leave on memory cards."""
    folder, _, name = path.replace("\\", "/").rstrip("/").rpartition("/")
    return not name or name.startswith(".") or _is_junk_folder(folder)


@lru_cache(maxsize=4096)
def _is_junk_folder(folder: str) -> bool:
    parts = [part.lower() for part in _parts(folder)]
    return any(part in JUNK_FOLDERS or part.startswith(".trash") for part in parts)


def is_recording_name(path: str) -> bool:
    """By suffix only; what the file holds is judged when it is opened (WAC is
    listed, to be refused with advice).
    """
    return stem_and_suffix(path)[1].lower() in AUDIO_SUFFIXES


def recordings_among(paths: Iterable[str]) -> list[str]:
    """The recordings of a listing, sorted, without junk."""
    return sorted(path for path in paths if is_recording_name(path) and not is_junk(path))
