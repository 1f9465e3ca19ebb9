"""What libraries write past Python (decoders about frames, Ray about itself) is kept apart, not between the lines meant for
people. Only an error makes a file of it, and names the file.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import IO

_kept: IO[bytes] | None = None  # of the running verb; it has no name, so nothing is left of a killed process
MOST_BYTES = 10 << 20  # of a file


@contextmanager
def chatter_apart() -> Iterator[None]:
    """For the length of a block; a process without a place to keep it goes on as it is."""
    global _kept
    try:
        kept = tempfile.TemporaryFile()  # noqa: SIM115
    except OSError:
        yield
        return
    outer, before, people = _kept, os.dup(2), sys.stderr
    people.flush()
    if _writes_to(people, 2):  # under a test's capture it does not, and stays
        sys.stderr = os.fdopen(os.dup(2), "w", buffering=1, errors="backslashreplace")
    os.dup2(kept.fileno(), 2)
    _kept = kept
    try:
        yield
    finally:
        with suppress(OSError, ValueError):
            sys.stderr.flush()
        os.dup2(before, 2)
        os.close(before)
        sys.stderr, _kept = people, outer
        kept.close()


def _writes_to(stream: object, number: int) -> bool:
    try:
        return stream.fileno() == number  # type: ignore[attr-defined]
    except (AttributeError, OSError, ValueError):
        return False


def chatter_is_apart() -> bool:
    """Whether a library may write what it likes."""
    return _kept is not None


def keep(line: str) -> None:
    """A line that is not for people, put with the rest."""
    if _kept is not None:
        with suppress(OSError):
            os.write(2, f"{line}\n".encode(errors="backslashreplace"))


def chatter_file() -> str:
    """The name of a new file with all that was said so far; "" if nothing was, or no file can be written."""
    if _kept is None:
        return ""
    try:
        size = os.fstat(_kept.fileno()).st_size
        said = os.pread(_kept.fileno(), MOST_BYTES, max(0, size - MOST_BYTES))
        if not said:
            return ""
        with tempfile.NamedTemporaryFile(prefix="mast-", suffix=".log", delete=False) as file:
            file.write(said)
        return file.name
    except OSError:
        return ""
