"""Batches out of bundles that somebody else deals to the workers (Ray Data): which worker gets which is not ours to say.

A window of bundles is kept and each batch is drawn from it at random, by seed. No chunk is drawn twice in an epoch, save
where a worker's bundles held fewer chunks than its share of the steps takes (tables/reading/bundles.py bounds that).
Which chunks an epoch has had goes into every checkpoint, one bit each: a run that was killed goes on with the others.
"""

from __future__ import annotations

import logging
from collections.abc import Generator, Iterator
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from mast_ray.config.errors import TemporaryError
from mast_ray.spectrogram.normalisation import Normalisation
from mast_ray.tables.reading.bundles import NO_CHUNK, Deal, DealtRows
from mast_ray.tables.reading.handover import made_ahead
from mast_ray.tables.reading.reader import ChunkReader, RawChunks
from mast_ray.tables.reading.sample_order import check_world, share_of
from mast_ray.training.data.feed import ReaderFeed
from mast_ray.training.loop import FeedNotes
from mast_ray.training.schedule import Schedule
from mast_ray.training.worker import Worker

log = logging.getLogger("mast.training")

WINDOW_BUNDLES = 8  # mixed with each other, and as many on their way


class DealtChunk(NamedTuple):
    """A chunk of the set and its two segments."""

    chunk: int
    segments: NDArray[np.generic]  # (2, 512, F)


class DealtWindow:
    """Chunks that have come and were not drawn yet."""

    def __init__(self, rng: np.random.Generator, is_done: NDArray[np.bool_] | None = None) -> None:
        self._rng, self._is_done = rng, is_done
        self._waiting: list[DealtChunk] = []
        self._last: DealtRows | None = None

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, rows: DealtRows) -> None:
        self._last = rows
        for row in np.flatnonzero(rows.chunk != NO_CHUNK).tolist():
            chunk = int(rows.chunk[row])
            if self._is_done is None or not self._is_done[chunk]:
                self._waiting.append(DealtChunk(chunk, rows.values[row : row + 2]))

    def draw(self, count: int) -> tuple[list[DealtChunk], int]:
        """(chunks at random, how many of them in front are drawn for the first time)."""
        drawn = []
        for draw in self._rng.random(min(count, len(self._waiting))).tolist():
            place = int(draw * len(self._waiting))
            self._waiting[place], self._waiting[-1] = self._waiting[-1], self._waiting[place]
            drawn.append(self._waiting.pop())
        return drawn + self._again(count - len(drawn)), len(drawn)

    def _again(self, count: int) -> list[DealtChunk]:
        """Chunks of the last bundle once more: there are no others."""
        if count <= 0:
            return []
        if self._last is None:
            raise TemporaryError(
                "no chunk was dealt to this worker: run the same command again, or with --set cluster.feed=reader"
            )
        rows = np.flatnonzero(self._last.chunk != NO_CHUNK)
        return [
            DealtChunk(int(self._last.chunk[row]), self._last.values[row : row + 2])
            for row in self._rng.choice(rows, count).tolist()
        ]


class DealtFeed(ReaderFeed):
    """A feed of one worker whose chunks are dealt; the reader knows what belongs to them, and is not read from."""

    def __init__(
        self,
        reader: ChunkReader,
        deal: Deal,
        worker: Worker,
        schedule: Schedule,
        normalisation: Normalisation,
        **options: Any,
    ) -> None:
        super().__init__(reader, worker, schedule, normalisation, **options)
        check_world(schedule.batch_size, worker.world_size)
        self._chunks, self._deal = reader, deal
        self._done_before = np.zeros(len(reader), bool)  # of the epoch that was interrupted
        self._first_step = 0
        self._taken: dict[int, NDArray[np.int64]] = {}  # step -> chunks drawn for the first time

    def resume(self, steps_done: int, seen: bytes) -> None:
        self._first_step = steps_done
        if seen:
            self._done_before = bits_of(seen, len(self._chunks))

    def notes(self, steps_done: int) -> FeedNotes:
        """One bit per chunk of the epoch so far, or its account at its end; collective."""
        per_epoch = self.schedule.steps_per_epoch
        begin = (steps_done - 1) // per_epoch * per_epoch
        for step in list(self._taken):  # a copy of the keys, and in place: the feed's thread goes on adding
            if step < begin:
                del self._taken[step]
        mine = np.zeros(len(self._chunks), bool)
        if begin <= self._first_step:
            mine |= self._done_before
        for step in range(max(begin, self._first_step), steps_done):
            mine[self._taken[step]] = True
        parts = [bits_of(part, len(mine)) for part in self.worker.gather(np.packbits(mine).tobytes())]
        done = np.logical_or.reduce(parts)
        if steps_done - begin < per_epoch:
            return FeedNotes(np.packbits(done).tobytes())
        account = account_of(done, per_epoch * self.schedule.batch_size)
        if self.worker.rank == 0:
            log.info("epoch %d: %s", steps_done // per_epoch, account.text())
        return FeedNotes(account=account._asdict())

    def _raw(self, first_step: int, num_steps: int) -> Iterator[RawChunks]:
        return made_ahead(self._steps(first_step, num_steps), 3, "dealt-chunks", waits=False)

    def _steps(self, first_step: int, num_steps: int) -> Generator[RawChunks, None, None]:
        per_epoch = self.schedule.steps_per_epoch
        epochs = range(first_step // per_epoch, -(-num_steps // per_epoch))
        source = self._bundles(epochs, is_interrupted=first_step % per_epoch > 0)
        bundles = made_ahead(source, WINDOW_BUNDLES, "dealt-bundles", waits=False)
        try:
            for epoch in epochs:
                steps = range(max(epoch * per_epoch, first_step), min((epoch + 1) * per_epoch, num_steps))
                yield from self._epoch(
                    epoch, steps, bundles, self._done_before if epoch == epochs[0] else None
                )
        finally:
            bundles.close()

    def _epoch(
        self, epoch: int, steps: range, bundles: Iterator[_Came], is_done: NDArray[np.bool_] | None
    ) -> Generator[RawChunks, None, None]:
        """Batches of the steps of an epoch; all its bundles are taken if another one follows."""
        batch_size, rank, world_size = self.schedule.batch_size, self.worker.rank, self.worker.world_size
        window = DealtWindow(np.random.default_rng([self._chunks.seed, epoch, 3, rank]), is_done)
        has_more, most_waiting = True, 0
        for step in steps:
            # shares that differ by a chunk go round, so that all workers need as many in an epoch
            share = share_of(batch_size, (rank + step) % world_size, world_size)
            while has_more and len(window) < max(most_waiting, len(share)):
                rows = next(bundles).rows
                has_more = rows is not None
                if rows is not None:
                    window.add(rows)
                    most_waiting = max(most_waiting, WINDOW_BUNDLES * int((rows.chunk != NO_CHUNK).sum()))
            drawn, num_new = window.draw(len(share))
            chunks = np.array([chunk for chunk, _ in drawn], np.int64)
            self._taken[step] = chunks[:num_new]
            batch = self._chunks.assembled(chunks, (segments for _, segments in drawn))
            yield replace(batch, sample_index=torch.arange(share.start, share.stop) + step * batch_size)
        while (
            has_more and steps.stop % self.schedule.steps_per_epoch == 0
        ):  # not where a run ends in mid-epoch
            has_more = next(bundles).rows is not None

    def _bundles(self, epochs: range, is_interrupted: bool) -> Generator[_Came, None, None]:
        """Bundles of all epochs, and nothing after each. The next epoch is asked for when all of one has come."""
        for epoch in epochs:
            whole, rest = self._deal
            for rows in rest if is_interrupted and epoch == epochs[0] else whole:
                yield _Came(rows)
            yield _Came(None)


class _Came(NamedTuple):
    rows: DealtRows | None  # None: the epoch has no more


class Account(NamedTuple):
    """How many chunks an epoch had: done + skipped = offered."""

    done: int
    skipped: int
    offered: int
    seen_twice: int

    def text(self) -> str:
        return (
            f"{self.done:,} chunks done + {self.skipped:,} skipped = {self.offered:,} offered"
            f" ({self.seen_twice:,} seen twice)"
        )


def account_of(is_done: NDArray[np.bool_], drawn: int) -> Account:
    """Of the chunks of an epoch, and how many were drawn in it, again or for the first time."""
    offered, done = len(is_done), int(is_done.sum())
    return Account(done, offered - done, offered, drawn - done)


def bits_of(packed: bytes, count: int) -> NDArray[np.bool_]:
    return np.unpackbits(np.frombuffer(packed, np.uint8), count=count).astype(bool)
