"""Work that meets bad items: some raise nothing and kill or hang the process that holds them."""

import ctypes
import errno
import os
import threading

from mast_ray.config.errors import TemporaryError
from mast_ray.storage.unit_runner import WorkDone
from mast_ray.storage.units import Outcome


def work(attempt, items):
    outcomes = []
    for item in items:
        attempt.begin_item(item.item_id)
        if "segfault" in item.path:
            with open(os.environ.get("POISON_LOG", os.devnull), "a") as log:
                log.write("death\n")
            ctypes.string_at(0)
        if "hang" in item.path:
            threading.Event().wait()
        outcomes.append(Outcome(item.item_id, "done", record={"pid": os.getpid()}))
    return WorkDone(outcomes, [], {"audio_s": 60.0 * len(items)})


class HeldModel:
    """Stands for something expensive that a process builds once."""

    def __init__(self):
        self.built_in, self.name = os.getpid(), os.urandom(8).hex()

    def __call__(self, attempt, items):
        done = work(attempt, items)
        assert os.getpid() == self.built_in
        named = [o._replace(record=o.record | {"built": self.name}) for o in done.outcomes]
        return done._replace(outcomes=named)


class FullDisk:
    """Stands for work on a disk that fills up."""

    def __call__(self, attempt, items):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "/output/frames")


class StoreAway:
    """Cannot even be made: the store does not answer."""

    def __init__(self):
        raise TemporaryError(
            "cannot read s3://model/card.json after 9 attempts (SlowDown):\nrun it again later"
        )
