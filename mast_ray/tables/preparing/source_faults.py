"""What an error while a recording is read means: the recording is rejected, or the archive is out of reach and the job stops.

A fault in the bytes concerns one file. A fault of the disk, the mount or the network may concern all of them: when
the archive's folder is gone, or several recordings in a row cannot be reached, going on would only write down
healthy recordings as lost.
"""

from __future__ import annotations

import os
from collections import Counter

from mast_ray.config.errors import MastError, TemporaryError
from mast_ray.recordings.decoding.faults import Reason, UnreadableRecording, fault_of_system
from mast_ray.storage.entries import BROKEN_LINK
from mast_ray.storage.s3_faults import OF_ONE_OBJECT, Refused
from mast_ray.storage.storage import Storage
from mast_ray.storage.units import Item

IN_A_ROW = (
    5  # recordings that cannot be reached: one card has bad sectors, a mount that is gone has nothing else
)
_UNREACHED: Counter[str] = (
    Counter()
)  # in a row, by archive, in this process: units are often shorter than a row


def meaning_of_fault(error: Exception) -> Exception:
    """An UnreadableRecording where the fault concerns one recording; else the error itself."""
    if isinstance(error, Refused) and error.code in OF_ONE_OBJECT:
        is_cold = error.code == "InvalidObjectState"
        reason = Reason.OFFLINE if is_cold else Reason.NO_PERMISSION
        what = "it lies in an archive storage class: restore it first" if is_cold else "may not be read"
        return UnreadableRecording(reason, f"{what} ({error.code})")
    if isinstance(error, UnreadableRecording | MastError):
        return error
    if isinstance(error, OSError):
        return fault_of_system(error)
    return UnreadableRecording(Reason.UNREADABLE, f"{type(error).__name__}: {error}"[:300])


def note_success(archive: Storage) -> None:
    """A recording was read: the archive is there."""
    _UNREACHED.pop(archive.url, None)


def stop_if_unreachable(archive: Storage, item: Item, fault: UnreadableRecording) -> None:
    """TemporaryError when this fault is one of many, or the whole archive is gone."""
    if fault.reason not in (Reason.MISSING, Reason.READ_ERROR) or item.version == BROKEN_LINK:
        if fault.is_final:
            note_success(archive)  # its bytes were read
        return
    _UNREACHED[archive.url] += 1
    count = _UNREACHED[archive.url]
    if not _is_there(archive):
        _stop(archive, f"{archive.url} is gone or empty: is its disk or share still mounted?")
    if count >= IN_A_ROW:
        _stop(archive, f"{count} recordings in a row cannot be read (last: {item.path}: {fault.detail})")


def _stop(archive: Storage, what: str) -> None:
    _UNREACHED.pop(archive.url, None)
    raise TemporaryError(
        f"{what}\nnothing is held against these recordings: mend the disk, mount or network and run the same command again,\n"
        "or leave out what cannot be mended with --exclude"
    )


def _is_there(archive: Storage) -> bool:
    """Whether a local archive still has a name in it; an empty folder is what an unmounted disk leaves behind."""
    local = archive.local_path("")
    if local is None:
        return True
    try:
        with os.scandir(local) as entries:
            return next(entries, None) is not None
    except OSError:
        return False
