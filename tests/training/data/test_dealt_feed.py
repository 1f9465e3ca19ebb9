"""Batches of dealt bundles: no chunk twice in an epoch beyond the bound, and a resumed epoch has the others."""

from threading import Barrier, Event, Thread

import numpy as np
import pytest
import torch
from archive_of_noise import write_archive

from mast_ray.tables.reading.blocks import BlockReader
from mast_ray.tables.reading.bundles import (
    Deal,
    DealtRows,
    dealt_rows,
    most_repeated,
    num_bundles,
    read_bundle,
)
from mast_ray.tables.reading.chunk_sets import chunks_of_split
from mast_ray.tables.reading.reader import ChunkReader
from mast_ray.training.data.dealt_feed import DealtFeed, DealtWindow, account_of, bits_of
from mast_ray.training.progress import Stopwatch
from mast_ray.training.schedule import Schedule
from mast_ray.training.worker import LocalWorker

CHUNKS = 25


@pytest.fixture(scope="module")
def prepared(tmp_path_factory):
    return write_archive(tmp_path_factory.mktemp("archive") / "prepared")


class Member(LocalWorker):
    """One of several workers in threads of this process."""

    def __init__(self, rank, world_size, shared):
        super().__init__()
        self.rank, self.world_size, self._shared = rank, world_size, shared

    def gather(self, value):
        values, barrier = self._shared
        values[self.rank] = value
        barrier.wait()
        found = list(values)
        barrier.wait()
        return found


class Dealer:
    """Bundles in turn, in another order every time, as Ray deals them."""

    def __init__(self, bundles, storage, rank, world_size, seed=0):
        self.bundles, self.reader, self.seed = bundles, BlockReader((storage,)), seed
        self.rank, self.world_size = rank, world_size

    def __iter__(self):
        order = np.random.default_rng(self.seed).permutation(len(self.bundles))
        self.seed += 1
        for number in order[self.rank :: self.world_size]:
            yield dealt_rows(read_bundle(self.bundles[number], self.reader))


def run(prepared, world_size, batch_size, first_step=0, last_step=0, seen=b"", num_workers=None):
    """(chunk ids by step, what is remembered at the end) of a crew that stops after `last_step`."""
    shared = ([None] * world_size, Barrier(world_size))
    schedule = Schedule(CHUNKS, batch_size, 10, 1.0)
    steps, remembered = [[] for _ in range(last_step)], [b""] * world_size

    def member(rank):
        reader = ChunkReader(
            prepared, chunks_of_split(prepared, "pool"), batch_size=batch_size, num_threads=1
        )
        count = num_bundles(CHUNKS, num_workers or world_size)
        left = ~bits_of(seen, CHUNKS) if seen else np.ones(CHUNKS, bool)
        deal = Deal(
            *(Dealer(reader.bundles(count, wanted).bundles, prepared.storage, rank, world_size)
              for wanted in (np.ones(CHUNKS, bool), left))
        )  # fmt: skip
        worker = Member(rank, world_size, shared)
        feed = DealtFeed(reader, deal, worker, schedule, prepared.normalisation())
        feed.resume(first_step, seen)
        batches = feed.micro_batches(first_step, schedule.num_steps, Stopwatch(1))
        for step in range(first_step, last_step):
            batch, rows = next(batches)
            steps[step].extend(zip(rows.tolist(), batch.chunk_ids, strict=True))
            if step + 1 == last_step or (step + 1) % schedule.steps_per_epoch == 0:
                remembered[rank] = feed.notes(step + 1).seen
        batches.close()

    threads = [Thread(target=member, args=(rank,)) for rank in range(world_size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert all(part == remembered[0] for part in remembered)
    return steps, remembered[0]


def ids(steps):
    return [name for step in steps for _, name in step]


@pytest.mark.parametrize("world_size", [1, 2, 3])
def test_an_epoch_has_every_place_of_every_batch_and_hardly_a_chunk_twice(prepared, world_size, caplog):
    caplog.set_level("INFO")
    steps, remembered = run(prepared, world_size, batch_size=5, last_step=10)
    assert all(sorted(row for row, _ in step) == list(range(5)) for step in steps)
    assert remembered == b""  # ten steps are two whole epochs
    for epoch in (steps[:5], steps[5:]):
        repeated = 25 - len(set(ids(epoch)))
        assert repeated <= world_size * most_repeated(CHUNKS, world_size, world_size)
        if world_size == 1:
            assert repeated == 0
        assert (
            f"{25 - repeated} chunks done + {repeated} skipped = 25 offered ({repeated} seen twice)"
            in caplog.text
        )
    assert ids(steps[:5]) != ids(steps[5:])


def test_a_run_killed_in_mid_epoch_goes_on_with_the_chunks_it_has_not_had(prepared):
    before, seen = run(prepared, 2, batch_size=4, last_step=3)
    assert int(bits_of(seen, CHUNKS).sum()) == 12 == len(set(ids(before)))
    # other workers take over: three of them, with the other half of the epoch
    after, _ = run(prepared, 3, batch_size=4, first_step=3, last_step=6, seen=seen)
    assert not set(ids(before)) & set(ids(after[3:]))
    assert len(set(ids(before) + ids(after[3:]))) == 24  # of 25: six batches of four


def test_a_feed_that_is_left_does_not_wait_for_an_epoch_that_never_begins(prepared):
    """The next epoch begins when all workers have asked for it, and the others may be gone."""
    asked, may_go, has_gone = Event(), Event(), Event()
    reader = ChunkReader(prepared, chunks_of_split(prepared, "pool"), batch_size=5, num_threads=1)

    class OneEpoch(Dealer):
        def __iter__(self):
            if self.seed == 0:
                yield from super().__iter__()
                return
            asked.set()
            may_go.wait(60)
            has_gone.set()

    deal = Deal(*[OneEpoch(reader.bundles(3).bundles, prepared.storage, 0, 1)] * 2)
    feed = DealtFeed(reader, deal, LocalWorker(), Schedule(25, 5, 2, 1.0), prepared.normalisation())
    batches = feed.micro_batches(0, 10, Stopwatch(1))
    next(batches)
    assert asked.wait(60)
    batches.close()
    assert not has_gone.is_set()
    may_go.set()


def rows_of(chunks):
    values = np.arange(len(chunks), dtype=np.uint8).repeat(512 * 128).reshape(-1, 512, 128)
    return DealtRows(np.array(chunks), values)


def test_a_window_gives_each_chunk_once_and_then_those_of_the_last_bundle_again():
    window = DealtWindow(np.random.default_rng(0), is_done=np.array([False, True, False, False]))
    window.add(rows_of([0, 1, -1]))
    window.add(rows_of([2, 3, -1]))
    assert len(window) == 3  # chunk 1 was done before
    drawn, num_new = window.draw(5)
    assert num_new == 3 and {chunk for chunk, _ in drawn[:3]} == {0, 2, 3}
    assert {chunk for chunk, _ in drawn[3:]} <= {2, 3}
    for chunk, segments in drawn:
        first = {0: 0, 2: 0, 3: 1}[chunk]  # the row where it begins, which is what the values say
        assert torch.equal(
            torch.from_numpy(segments[:, 0, 0].copy()), torch.tensor([first, first + 1], dtype=torch.uint8)
        )


def test_the_account_of_an_epoch_adds_up():
    is_done = np.array([True] * 20 + [False] * 5)
    account = account_of(is_done, 24)
    assert account == (20, 5, 25, 4)
    assert account.text() == "20 chunks done + 5 skipped = 25 offered (4 seen twice)"
