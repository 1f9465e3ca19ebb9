"""What can be wrong with a recording: stable reason codes, rejection and salvage.

A rejected recording raises `UnreadableRecording`; a salvaged one is read as far as it
can be and ends with a `Salvage`.

| fault | what is done |
|---|---|
| EMPTY_FILE, HEADER_ONLY, NO_CHANNELS, NO_SAMPLE_RATE, RATE_TOO_LOW, RATE_TOO_HIGH, BAD_HEADER | rejected |
| NOT_AUDIO, APPLE_DOUBLE, UNSUPPORTED_FORMAT, NOT_A_FILE, UNREADABLE | rejected, by magic bytes or by the file system |
| MISSING, READ_ERROR, NO_PERMISSION, OFFLINE | rejected for now: the fault is not in the bytes, so every run tries again |
| SILENT (every byte of the body is zero), TOO_SHORT (under one analysis window) | rejected |
| TOO_LONG, DECOMPRESSION_BOMB | rejected, before decoding when the header admits it, else in the middle of the stream |
| TRUNCATED | salvaged: the part that is there |
| DATA_SIZE_ZERO, DATA_SIZE_UNKNOWN (0, FFFFFFFF or too little, written by an interrupted recorder or a pipe; a FLAC that goes on behind its stated end) | salvaged: the whole body |
| ZERO_TAIL (space reserved on the card and never written) | salvaged: up to the last non-zero byte |
| NON_FINITE (NaN, infinity, absurd amplitude) | salvaged: up to the first such sample |
| CORRUPT_STREAM | salvaged: a damaged stretch of FLAC becomes zeros of the same length, other codecs end there |
| CHANNELS_CANCEL (channels in opposite phase, in all or for ten seconds and more: next to nothing is left in their mean) | salvaged: the mean as it is, and said in a warning |
| CRASH, TIMEOUT | given by whoever runs the decoder in a process of its own, never raised here |

A salvageable recording of which less than one analysis window is left is rejected with the same reason.
"""

from __future__ import annotations

import errno
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any


class Reason(StrEnum):
    """Stable codes; they stand in tables that outlive this version, so they are
    added to and never renamed.
    """

    EMPTY_FILE = "EMPTY_FILE"
    HEADER_ONLY = "HEADER_ONLY"
    BAD_HEADER = "BAD_HEADER"
    NO_CHANNELS = "NO_CHANNELS"
    NO_SAMPLE_RATE = "NO_SAMPLE_RATE"
    RATE_TOO_LOW = "RATE_TOO_LOW"
    RATE_TOO_HIGH = "RATE_TOO_HIGH"
    NOT_AUDIO = "NOT_AUDIO"
    APPLE_DOUBLE = "APPLE_DOUBLE"
    UNSUPPORTED_FORMAT = "UNSUPPORTED_FORMAT"
    NOT_A_FILE = "NOT_A_FILE"
    MISSING = "MISSING"
    READ_ERROR = "READ_ERROR"
    NO_PERMISSION = "NO_PERMISSION"
    OFFLINE = "OFFLINE"
    UNREADABLE = "UNREADABLE"
    SILENT = "SILENT"
    TOO_SHORT = "TOO_SHORT"
    TOO_LONG = "TOO_LONG"
    DECOMPRESSION_BOMB = "DECOMPRESSION_BOMB"
    TRUNCATED = "TRUNCATED"
    DATA_SIZE_ZERO = "DATA_SIZE_ZERO"
    DATA_SIZE_UNKNOWN = "DATA_SIZE_UNKNOWN"
    ZERO_TAIL = "ZERO_TAIL"
    NON_FINITE = "NON_FINITE"
    CORRUPT_STREAM = "CORRUPT_STREAM"
    CHANNELS_CANCEL = "CHANNELS_CANCEL"
    CRASH = "CRASH"
    TIMEOUT = "TIMEOUT"


# Disk, mount, network or permission: what lies there may be sound, and the next run may reach it.
NOT_IN_THE_BYTES = frozenset({Reason.MISSING, Reason.READ_ERROR, Reason.NO_PERMISSION, Reason.OFFLINE})
_OF_THE_NAME = {errno.ENAMETOOLONG, errno.ELOOP, errno.EISDIR, errno.EINVAL, errno.EFBIG, errno.EOVERFLOW}


class UnreadableRecording(Exception):
    """Nothing of this recording can be used; `reason` is for tables, `detail`
    is one sentence for a person.
    """

    def __init__(self, reason: Reason, detail: str) -> None:
        super().__init__(
            reason, detail
        )  # both in args: the exception must survive pickling between processes
        self.reason = reason
        self.detail = detail

    def __str__(self) -> str:
        return f"{self.reason}: {self.detail}"

    @property
    def is_final(self) -> bool:
        """Whether the same bytes would be rejected by any other run."""
        return self.reason not in NOT_IN_THE_BYTES


def fault_of_system(error: OSError) -> UnreadableRecording:
    """What the operating system's refusal of a file means for the recording in it."""
    if isinstance(error, FileNotFoundError | NotADirectoryError):
        return UnreadableRecording(Reason.MISSING, "it was listed and is gone")
    what = error.strerror or str(error) or type(error).__name__
    if isinstance(error, PermissionError):
        return UnreadableRecording(Reason.NO_PERMISSION, f"may not be read: {what}")
    reason = Reason.UNREADABLE if error.errno in _OF_THE_NAME else Reason.READ_ERROR
    return UnreadableRecording(reason, f"cannot be read: {what}"[:300])


@dataclass(frozen=True)
class Fault:
    """A fault that leaves something to read."""

    reason: Reason
    detail: str


@dataclass(frozen=True)
class Salvage:
    """How much of a damaged recording was read, and why not all of it."""

    reason: Reason
    detail: str
    readable_s: float


EXAMPLES = 3  # paths that a line names
KNOBS = {
    Reason.RATE_TOO_LOW: "audio.min_sample_rate_hz",
    Reason.TOO_SHORT: "audio.min_seconds",
    Reason.TOO_LONG: "audio.max_hours",
}  # what would take such a recording


def reasons_line(reasons: Iterable[str], rejects: str) -> str:
    """Why recordings were not taken, most common first, with the setting that would, and where each is named."""
    counts = Counter(map(str, reasons))
    return f"rejected: {reasons_text(counts)}; see {rejects}" if counts else ""


def reasons_text(counts: Mapping[str, int]) -> str:
    """Reasons with their counts, most common first, each with the setting that would take such a recording."""
    return ", ".join(
        f"{reason} {count:,}" + (f" ({KNOBS[Reason(reason)]})" if reason in KNOBS else "")
        for reason, count in Counter(counts).most_common()
    )


def cancelling_text(rejects: Iterable[Mapping[str, Any]]) -> str:
    """How many recordings are next to silent, if only in a part, because their channels cancel each other, and what to do;
    "" for none.
    """
    paths = [row["path"] for row in rejects if row["reason"] == Reason.CHANNELS_CANCEL]
    if not paths:
        return ""
    return (
        f"{len(paths):,} recording{'s have' if len(paths) > 1 else ' has'} channels in opposite phase, if only in a part "
        "(rejects.parquet says which): their mean holds next to nothing, and calls there are not heard "
        f"(e.g. {', '.join(paths[:EXAMPLES])})\n"
        "take the first channel alone, into another folder: --set audio.channel=first"
    )
