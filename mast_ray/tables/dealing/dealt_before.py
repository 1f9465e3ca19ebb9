"""A prepared archive as it was dealt, kept aside while it is dealt again: whoever is killed in between, or finds the disk
full, leaves an archive that is as it was as soon as the next run looks at it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from mast_ray.storage.outputs import remove_folder
from mast_ray.storage.stage_folders import MANIFEST
from mast_ray.storage.storage import Storage

ASIDE = "dealt_before"
_DEALT = ("splits.parquet", "stats.json", MANIFEST)  # the manifest last: it makes the others whole


@contextmanager
def dealt_again(prepared: Storage) -> Iterator[None]:
    """A block that writes splits, statistics and manifest anew; left by an error, all three are as they were. To be called
    by the holder of the lease.
    """
    aside = prepared.at(ASIDE)
    for name in _DEALT:
        aside.write_atomic(name, prepared.read_bytes(name))
    prepared.delete(MANIFEST)
    try:
        yield
    except BaseException:
        bring_back(prepared)
        raise
    remove_folder(aside)


def bring_back(prepared: Storage) -> None:
    """What a run that was stopped in `dealt_again` had set aside; nothing happens where none was. To be called by the
    holder of the lease.
    """
    aside = prepared.at(ASIDE)
    if was_stopped(prepared):
        for name in _DEALT:
            prepared.write_atomic(name, aside.read_bytes(name))
    remove_folder(aside)


def was_stopped(prepared: Storage) -> bool:
    """Whether an archive waits to be brought back."""
    return prepared.stat(MANIFEST) is None and prepared.stat(f"{ASIDE}/{MANIFEST}") is not None
