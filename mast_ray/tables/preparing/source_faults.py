"""What an error while a recording is read means: the recording is rejected, or the archive is out of reach and the job stops.

A fault in the bytes concerns one file. A fault of the disk, the mount or the network may concern all of them: when
the archive's folder is gone, or several recordings in a row cannot be reached, going on would only write down
healthy recordings as lost. Access that is lost to all of them (credentials, the policy of a bucket) looks like a
folder that is somebody else's: the recording that was read last tells the two apart.
"""

from __future__ import annotations

import os
from collections import Counter, defaultdict

from mast_ray.config.errors import DataError, MastError, TemporaryError
from mast_ray.recordings.decoding.faults import Reason, UnreadableRecording, fault_of_system
from mast_ray.storage.entries import BROKEN_LINK
from mast_ray.storage.s3_faults import OF_ONE_OBJECT, Refused
from mast_ray.storage.storage import Storage
from mast_ray.storage.units import Item

# recordings that cannot be reached: one card has bad sectors, a mount that is gone has nothing else
IN_A_ROW = 5
REFUSED_IN_A_ROW = 20  # that may not be read
# by archive, in this process: units are often shorter than a row
_UNREACHED: Counter[str] = Counter()
_REFUSED: defaultdict[str, list[str]] = defaultdict(list)
_READ_LAST: dict[str, Item] = {}


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


def note_success(archive: Storage, item: Item) -> None:
    """A recording was read: the archive is there."""
    _begin_again(archive)
    _READ_LAST[archive.url] = item


def stop_if_unreachable(archive: Storage, item: Item, fault: UnreadableRecording) -> None:
    """An error when this fault is one of many, or the whole archive is gone."""
    if fault.reason == Reason.NO_PERMISSION:
        _stop_if_all_refused(archive, item, fault)
    if fault.reason not in (Reason.MISSING, Reason.READ_ERROR) or item.version == BROKEN_LINK:
        if fault.is_final:
            _begin_again(archive)  # its bytes were read
        return
    _UNREACHED[archive.url] += 1
    count = _UNREACHED[archive.url]
    if not _is_there(archive):
        _stop(archive, f"{archive.url} is gone or empty: is its disk or share still mounted?")
    if count >= IN_A_ROW:
        _stop(archive, f"{count} recordings in a row cannot be read (last: {item.path}: {fault.detail})")


def _stop_if_all_refused(archive: Storage, item: Item, fault: UnreadableRecording) -> None:
    """Where a process has read none yet, refusals within one folder concern that folder alone."""
    refused, before = _REFUSED[archive.url], _READ_LAST.get(archive.url)
    refused.append(item.path)
    count = len(refused)
    if count < REFUSED_IN_A_ROW:
        return
    _begin_again(archive)
    if before is not None and _may_be_read(archive, before):
        return
    if before is None and len({os.path.dirname(path) for path in refused}) == 1:
        return
    also = f", nor may {before.path}, which was read before" if before is not None else ""
    raise DataError(
        f"{archive.url}: {count} recordings in a row may not be read{also} (last: {item.path}: {fault.detail})\n"
        "nothing is held against them: renew the credentials or the permission and run the same command again,\n"
        "or leave out what may not be read with --exclude"
    )


def _may_be_read(archive: Storage, item: Item) -> bool:
    try:
        with archive.open_read(item.path, 1) as source:
            source.read(1)
    except (DataError, OSError):
        return False
    return True


def _begin_again(archive: Storage) -> None:
    _UNREACHED.pop(archive.url, None)
    _REFUSED.pop(archive.url, None)


def _stop(archive: Storage, what: str) -> None:
    _begin_again(archive)
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
