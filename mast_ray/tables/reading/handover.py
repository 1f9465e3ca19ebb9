"""From a thread that makes things to the one that takes them: a few ahead and no more.

A maker never waits for a taker who has left, and what breaks in the maker is raised where it would have been taken.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from typing import Generic, NamedTuple, TypeVar

T = TypeVar("T")
LOOK_EVERY_S = 0.1  # for a taker who has left


class _Broken(NamedTuple):
    error: BaseException


class Handover(Generic[T]):
    """A bounded queue with an end."""

    def __init__(self, most: int) -> None:
        self._queue: queue.Queue[T | _Broken | None] = queue.Queue(most)
        self._stop = threading.Event()

    @contextmanager
    def fed_by(
        self, source: Generator[T, None, None], name: str, waits: bool = True
    ) -> Iterator[Handover[T]]:
        """A thread goes through `source`, which is closed there, for the length of a block; with `waits` the block
        ends when the thread has.
        """
        thread = threading.Thread(target=self._feed, args=(source,), name=name, daemon=True)
        thread.start()
        try:
            yield self
        finally:
            self.stop()
            if waits:
                thread.join()

    def stop(self) -> None:
        """Nothing will be taken any more."""
        self._stop.set()

    def take(self, timeout_s: float | None = None) -> T | None:
        """The next thing, None at the end; queue.Empty when nothing came in time."""
        item = self._queue.get() if timeout_s is None else self._queue.get(timeout_s > 0, timeout_s or None)
        if isinstance(item, _Broken):
            raise item.error
        return item

    def _feed(self, source: Generator[T, None, None]) -> None:
        try:
            for item in source:
                if not self._put(item):
                    return
            self._put(None)
        except BaseException as error:  # the taker raises it
            self._put(_Broken(error))
        finally:
            source.close()

    def _put(self, item: T | _Broken | None) -> bool:
        """False when nobody will take it: a plain put would wait for ever in a full queue."""
        while not self._stop.is_set():
            try:
                self._queue.put(item, timeout=LOOK_EVERY_S)
                return True
            except queue.Full:
                continue
        return False


def made_ahead(
    source: Generator[T, None, None], most: int, name: str, waits: bool = True
) -> Generator[T, None, None]:
    """The same things, made in a thread of their own. Without `waits` who leaves early does not wait for it: the next
    thing may depend on others who will never come.
    """
    with Handover[T](most).fed_by(source, name, waits) as handover:
        while (item := handover.take()) is not None:
            yield item
