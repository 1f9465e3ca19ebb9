"""Which recording an annotation file means: a reference is looked up in the listing of the root and can mean
nothing else.

References come from other machines (`D:\\\\card\\\\x.WAV`, `/home/someone/x.wav`) and from strangers
(`../../etc/passwd`). The answer is always an element of the listing, so no reference can leave the root.
A folder that a table or a reference names is part of the name: `negative/x.txt` is not about `positive/x.wav`,
nor `ridge/x.txt` about `river/x.wav`, even where no other x is left.
"""

from __future__ import annotations

import os
import posixpath
import re
import unicodedata
from collections import defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path, PurePosixPath

_SCHEME_OR_DRIVE = re.compile(r"^([A-Za-z][A-Za-z0-9+.-]*://|[A-Za-z]:|~)")
_MACHINE = re.compile(r"^([A-Za-z][A-Za-z0-9+.-]*:|~)$")  # the first part of a path of some machine
# What programs append to a recording's name to name its table, longest first.
_TABLE_ENDINGS = re.compile(
    r"(\.Table\.\d+\.selections|\.BirdNET\.selection\.table|\.BirdNET\.results|\.selection\.table|\.selections|_selections|_labels?|\.labels?)$",
    re.IGNORECASE,
)
_NO_CALLS = re.compile(
    r"^(neg|negatives?|noises?|background|no[ _-]?calls?|absent|absence|fps?|false[ _-]?(positives?|alarms?))$",
    re.IGNORECASE,
)
_NO_CALLS_IN_STEM = re.compile(
    r"(^|[^a-z])(negatives?|fps?|false[ _-]?(positives?|alarms?))([^a-z]|$)", re.IGNORECASE
)


class RecordingIndex:
    """The recordings under a root, found by path, by the end of a path, by
    name, or by name without suffix.
    """

    def __init__(self, paths: Iterable[str]) -> None:
        self.paths = frozenset(paths)
        self._by_tail: dict[str, list[str]] = defaultdict(
            list
        )  # lower-case tail of the path, with and without suffix
        self._folders: set[str] = set()  # every folder's name that holds recordings, lower-case
        for path in sorted(self.paths):
            parts = PurePosixPath(path).parts
            self._folders |= {_folded(part) for part in parts[:-1]}
            for start in range(len(parts)):
                tail = _folded("/".join(parts[start:]))
                self._by_tail[tail].append(path)
                self._by_tail[_without_suffix(tail)].append(path)

    def find(self, reference: str, near: str = "") -> str | None:
        """The one recording a reference can mean, or None; `near` is the folder of the
        table, relative to the root.
        """
        written = reference
        reference = reference.strip().strip("\"'").replace("\\", "/")
        if not reference or "\0" in reference:
            return None
        is_foreign = reference.startswith("/") or _SCHEME_OR_DRIVE.match(reference) is not None
        if not is_foreign:
            for candidate in (posixpath.join(near, reference), reference, written):
                candidate = posixpath.normpath(candidate)
                if candidate in self.paths:
                    return candidate
        parts = _below_parents(reference)
        named = self._telling(parts[:-1]) or [part for part in near.split("/") if _NO_CALLS.match(part)]
        for keys in (parts, [*parts[:-1], _without_suffix(parts[-1])] if parts else []):
            for start in range(len(keys)):
                found = self._unique(_folded("/".join(keys[start:])), near)
                if found is not None:
                    return found if _lies_in(found, named) else None
        return None

    def could_be(self, reference: str) -> list[str]:
        """All recordings whose paths end as a reference reads, whatever their suffix."""
        tail = _folded("/".join(_below_parents(reference.strip().replace("\\", "/"))))
        return list(dict.fromkeys(self._by_tail.get(tail) or self._by_tail.get(_without_suffix(tail)) or ()))

    def rules_out(self, reference: str, path: str) -> bool:
        """Whether a reference is of another folder than a recording of its name: one that these recordings know."""
        return not _lies_in(path, self._telling(_parts(reference)[:-1]))

    def owner_of(self, table_path: str) -> str | None:
        """The recording a table belongs to by its own name (`x.Table.1.selections.txt` -> `x.wav`)."""
        table = PurePosixPath(table_path)
        near = "" if str(table.parent) == "." else str(table.parent)
        # a_labels.txt is of a_labels.wav where there is one
        for stem in (table.stem, *own_stems(table.name)):
            if (found := self._unique(_folded(stem), near)) is not None:
                return found if _lies_in(found, self._telling(near.split("/"))) else None
        return None

    def _telling(self, folders: Iterable[str]) -> list[str]:
        """Those of the folders that say which recording is meant: others of the archive are in one called so."""
        return [name for name in folders if _folded(name) in self._folders or _NO_CALLS.match(name)]

    def _unique(self, tail: str, near: str) -> str | None:
        matches = list(dict.fromkeys(self._by_tail.get(tail, ())))
        if len(matches) > 1:
            matches = [path for path in matches if posixpath.dirname(path) == near]
        return matches[0] if len(matches) == 1 else None


def of_other_folders(found: Mapping[str, str | None]) -> tuple[set[str], list[str]]:
    """(references of one table that cannot mean what they were taken for, notes on those that may not) of reference -> recording.

    Recorders on one schedule write the same names. `river/x.wav` is not a recording of an archive without that folder where
    the same table has `ridge/x.wav` for it.
    """
    meant: dict[str, list[str]] = defaultdict(list)
    for reference, path in found.items():
        if reference and path:
            meant[path].append(reference)
    wrong: set[str] = set()
    elsewhere: dict[str, str] = {}
    several: dict[str, list[str]] = {}
    for path, references in meant.items():
        depth = len(_parts(path))
        shared = {reference: num_shared_parts(reference, path) for reference in references}
        best = max(shared.values())
        above: dict[str, str] = {}  # folder above the archive -> a reference
        for reference, number in shared.items():
            parts = _parts(reference)
            if number == depth < len(parts):
                above.setdefault(parts[-depth - 1], reference)
            elif number < len(parts) and number < best:
                wrong.add(reference)
            elif number < len(parts) and number < depth:
                elsewhere[reference] = path
        if len(above) > 1:
            several[path] = list(above.values())
    notes = []
    for reference, path in list(elsewhere.items())[:1]:
        notes.append(
            f"{len(elsewhere):,} recordings are named in folders that the archive does not have, and taken for those of the same "
            f"name (e.g. {reference} for {path})"
        )
    for path, references in list(several.items())[:1]:
        notes.append(
            f"{len(several):,} recordings are named in several folders (e.g. {path} in {', '.join(references[:3])}): if these are "
            "different ones, give the folder above as the archive"
        )
    return wrong, notes


def _parts(reference: str) -> list[str]:
    return [part for part in _folded(reference.replace("\\", "/")).split("/") if part not in ("", ".")]


def is_of_other_folder(reference: str, path: str) -> bool:
    """Whether two paths of one name part before either ends: `ridge/x.wav` and `river/x.wav`, not `x.wav` and `river/x.wav`."""
    return num_shared_parts(reference, path) < min(len(_parts(reference)), len(_parts(path)))


def num_shared_parts(reference: str, path: str) -> int:
    """How many parts two paths have in common from their ends on; names were found to be the same, whatever their suffix."""
    number = 1
    for own, other in zip(reversed(_parts(reference)[:-1]), reversed(_parts(path)[:-1]), strict=False):
        if own != other:
            break
        number += 1
    return number


def _lies_in(path: str, folders: Iterable[str]) -> bool:
    own = PurePosixPath(_folded(path)).parts[:-1]
    return all(
        _folded(name) in own or (_NO_CALLS.match(name) is not None and any(map(_NO_CALLS.match, own)))
        for name in folders
    )


def marks_no_calls(table_path: str) -> bool:
    """Whether a table says by its name or its folder that its boxes are no calls: `negative/x.txt`, `x_FP.txt`."""
    *folders, name = table_path.replace("\\", "/").split("/")
    return any(map(_NO_CALLS.match, folders)) or _NO_CALLS_IN_STEM.search(name.rsplit(".", 1)[0]) is not None


def own_stems(table_name: str) -> list[str]:
    """Possible names of a table's recording without suffix, the most likely first."""
    stem = table_name.rsplit(".", 1)[0] if "." in table_name else table_name
    stems = [stem]
    if (shorter := _TABLE_ENDINGS.sub("", stem)) != stem:
        stems = [
            shorter,
            shorter.rstrip("."),
            stem,
        ]  # `a..Table.1.selections.txt` is of `a..wav`, or of `a.wav`
    return list(dict.fromkeys(stems))


def safe_reference(reference: str) -> str:
    """A reference when there is no listing to look it up in, relative to any root: its folders stay, because
    `D:\\ridge\\x.wav` and `D:\\river\\x.wav` are two recordings.
    """
    parts = _below_parents(reference.replace("\0", "").strip().strip("\"'").replace("\\", "/"))
    return "/".join(parts[1:] if len(parts) > 1 and _MACHINE.match(parts[0]) else parts)


def _below_parents(reference: str) -> list[str]:
    """The parts of a reference after its last `..`."""
    parts = [part for part in reference.split("/") if part not in ("", ".")]
    above = max((place for place, part in enumerate(parts) if part == ".."), default=-1)
    return parts[above + 1 :]


def list_files(root: str | os.PathLike[str]) -> list[str]:
    """All files under a local folder, relative with forward slashes; links that
    lead out of it are left out.
    """
    base = Path(root).resolve()
    found = []
    for folder, _, names in os.walk(base):
        for name in names:
            path = Path(folder, name)
            if not path.is_symlink() or path.resolve().is_relative_to(base):
                found.append(path.relative_to(base).as_posix())
    return sorted(found)


def _folded(text: str) -> str:
    """Without the differences that file systems make: capitals, and accents taken apart."""
    return unicodedata.normalize("NFC", text).lower()


def _without_suffix(path: str) -> str:
    head, dot, suffix = path.rpartition(".")
    return head if dot and head and not head.endswith("/") and "/" not in suffix else path
