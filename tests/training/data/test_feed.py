"""The feed gives every step the same global batch, augmented the same way, whoever holds which part of it."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from archive_of_noise import write_archive
from augmentations import EVERY_AUGMENTATION

from mast_ray.boxes.batch import ChunkBatch, PaddedBoxes, pad_boxes
from mast_ray.config.loading import apply_overrides
from mast_ray.config.recipes import field
from mast_ray.spectrogram.augmentation import AugmentStrength
from mast_ray.tables.reading.chunk_sets import chunks_of_split
from mast_ray.tables.reading.reader import ChunkReader
from mast_ray.training.data.augmenting import StepAugmentation, noise_bank, pool_bank, quietest
from mast_ray.training.data.feed import ReaderFeed, batch_of, bucketed, compiled_slots
from mast_ray.training.progress import Stopwatch
from mast_ray.training.schedule import Schedule
from mast_ray.training.worker import LocalWorker

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def prepared(tmp_path_factory):
    return write_archive(tmp_path_factory.mktemp("archive") / "prepared")


def make_reader(prepared, chunks=None):
    chunks = chunks if chunks is not None else chunks_of_split(prepared, "train")
    return ChunkReader(prepared, chunks, prepared.labels, batch_size=8, lanes=4, seed=3, num_threads=1)


class Member(LocalWorker):
    def __init__(self, rank, world_size):
        super().__init__()
        self.rank, self.world_size = rank, world_size


def steps_of(
    prepared, world_size, *, accumulate=1, first_step=0, num_steps=2, augmented=True, weighting="as_given"
):
    """Step -> row in the global batch -> (chunk id, values, boxes, weight)."""
    schedule = Schedule(25, 8, 10, 1.0, accumulate=accumulate)
    normalisation = prepared.normalisation()
    steps = [{} for _ in range(num_steps)]
    for rank in range(world_size):
        augmentation = None
        if augmented:
            augmentation = StepAugmentation(
                AugmentStrength(), 0.9, normalisation, batch_size=8, seed=5, device=CPU
            )
        worker = Member(rank, world_size)
        feed = ReaderFeed(
            make_reader(prepared),
            worker,
            schedule,
            normalisation,
            augmentation=augmentation,
            weighting=weighting,
        )
        batches = feed.micro_batches(first_step, num_steps, Stopwatch(1))
        for number, (batch, rows) in enumerate(batches):
            step = first_step + number // accumulate
            for place, row in enumerate(rows.tolist()):
                boxes = batch.boxes.corners[place][batch.boxes.is_object[place]]
                steps[step][row] = (
                    batch.chunk_ids[place],
                    batch.logmel[place],
                    boxes,
                    float(batch.weight[place]),
                )
    return steps


def same(first, second):
    return all(
        one.keys() == two.keys()
        and all(
            one[row][0] == two[row][0]
            and torch.equal(one[row][1], two[row][1])
            and torch.equal(one[row][2], two[row][2])
            for row in one
        )
        for one, two in zip(first, second, strict=True)
    )


def test_two_workers_hold_the_same_augmented_global_batches_as_one(prepared):
    alone = steps_of(prepared, 1)
    assert all(sorted(step) == list(range(8)) for step in alone)
    assert same(alone, steps_of(prepared, 2))
    assert same(alone, steps_of(prepared, 4))


def test_micro_batches_change_nothing_but_their_size(prepared):
    assert same(steps_of(prepared, 1), steps_of(prepared, 1, accumulate=2))


def test_a_feed_begun_in_mid_epoch_goes_on_where_the_first_one_was(prepared):
    whole = steps_of(prepared, 2, num_steps=5)
    resumed = steps_of(prepared, 2, first_step=4, num_steps=5)
    assert same(whole[4:], resumed[4:]) and resumed[:4] == [{}] * 4


def test_epochs_are_whole_and_in_different_orders(prepared):
    steps = steps_of(prepared, 1, num_steps=6, augmented=False)  # three steps of 8 out of 25 chunks an epoch
    epochs = [[step[row][0] for step in steps[start : start + 3] for row in sorted(step)] for start in (0, 3)]
    assert all(len(set(epoch)) == 24 for epoch in epochs)
    assert epochs[0] != epochs[1]


def test_stored_bytes_are_normalised_and_augmentation_changes_some_chunks(prepared):
    plain, changed = (
        steps_of(prepared, 1, num_steps=1, augmented=False)[0],
        steps_of(prepared, 1, num_steps=1)[0],
    )
    values = torch.cat([entry[1].flatten() for entry in plain.values()])
    # Stored values are uniform in [0, 255): mean 127 * 0.05 - 10 = -3.65; the
    # pool's mean is -4 and its std 3.
    assert float(values.mean()) == pytest.approx((-3.65 + 4) / 3, abs=0.01)
    assert sum(not torch.equal(plain[row][1], changed[row][1]) for row in plain) >= 5


def test_weights_are_left_alone_or_scaled_to_mean_one(prepared):
    chunks = chunks_of_split(prepared, "train")
    weighted = replace(chunks, weight=np.linspace(0.2, 0.9, len(chunks)).astype(np.float32))
    reader = make_reader(prepared, weighted)
    schedule = Schedule(25, 8, 1, 1.0)
    for weighting, expected in (("mean_one", 1.0), ("as_given", None)):
        feed = ReaderFeed(reader, LocalWorker(), schedule, prepared.normalisation(), weighting=weighting)
        batch, _ = next(feed.micro_batches(0, 1, Stopwatch(1)))
        if expected is None:
            assert 0.2 < float(batch.weight.mean()) < 0.9 and float(batch.weight.std()) > 0
        else:
            assert float(batch.weight.mean()) == pytest.approx(expected, abs=1e-6)


def test_without_confidence_a_chunk_with_a_call_weighs_one_and_an_empty_one_what_it_was_given(prepared):
    reader = make_reader(prepared)
    reader.chunks = replace(reader.chunks, weight=np.full(len(reader.chunks), 0.25, np.float32))
    feed = ReaderFeed(
        reader, LocalWorker(), Schedule(25, 8, 3, 1.0), prepared.normalisation(), weighting="ones"
    )
    batches = [part.batch for part in feed.micro_batches(0, 3, Stopwatch(1))]
    weight = torch.cat([batch.weight for batch in batches])
    has_call = torch.cat([batch.boxes.is_object.any(dim=1) for batch in batches])
    assert 0 < has_call.sum() < len(has_call)
    assert torch.equal(weight, torch.where(has_call, 1.0, 0.25))


def test_the_noise_bank_holds_quiet_chunks_normalised_or_is_none(prepared):
    quiet = make_reader(prepared).chunks.take(np.arange(3))
    bank = noise_bank(prepared, quiet, prepared.normalisation(), "real", CPU, seed=0)
    assert bank.shape == (3, 1024, 128)
    raw = next(ChunkReader(prepared, quiet, batch_size=3, num_threads=1).sequential())
    assert torch.equal(bank, prepared.normalisation()(raw.values, raw.scale, raw.offset).squeeze(1))
    assert (
        noise_bank(prepared, quiet.take(np.arange(0)), prepared.normalisation(), "real", CPU, seed=0) is None
    )


def test_a_reader_that_fails_is_heard_in_the_training_thread(prepared, tmp_path):
    broken = write_archive(tmp_path / "broken")
    (tmp_path / "broken" / "frames" / "r0.parquet").unlink()
    feed = ReaderFeed(make_reader(broken), LocalWorker(), Schedule(25, 8, 1, 1.0), broken.normalisation())
    with pytest.raises(Exception, match=r"r0\.parquet is missing"):
        list(feed.micro_batches(0, 3, Stopwatch(1)))


def test_slots_grow_to_a_power_of_two_and_the_boxes_stay(prepared):
    boxes = pad_boxes([torch.rand(17, 4), torch.rand(2, 4)])
    wide = bucketed(boxes)
    assert boxes.is_object.shape == (2, 24) and wide.is_object.shape == (2, 32)
    assert torch.equal(wide.corners[wide.is_object], boxes.corners[boxes.is_object])
    assert bucketed(pad_boxes([torch.rand(1, 4)])).corners.shape == (1, 16, 4)


def test_the_pool_bank_holds_quiet_unlabelled_whole_chunks_of_every_site(prepared):
    normalisation = prepared.normalisation()
    bank = pool_bank(prepared, normalisation, "real", CPU, seed=0)
    # of the pool (r0 to r4) chunks 2 and 4 have no label and are looked at; the last one's audio ends early
    # by the two frames that a whole chunk may lack: 3 + 2 recordings at two sites, a quarter of each kept
    assert bank.dtype == torch.float16 and bank.shape == (2, 1024, 128)
    chunks = chunks_of_split(prepared, "pool")
    raw = next(ChunkReader(prepared, chunks, batch_size=len(chunks), num_threads=1).sequential())
    every = normalisation(raw.values, raw.scale, raw.offset).squeeze(1).half()
    found = [int((every == kept).all(dim=(1, 2)).nonzero()[0, 0]) for kept in bank]
    recordings = {raw.chunk_ids[row].partition(":")[0] for row in found}
    assert len({int(name[1:]) % 2 for name in recordings}) == 2  # the site is the parity of the name
    assert {int(raw.chunk_ids[row].partition(":")[2]) for row in found} <= {2, 4}
    again = pool_bank(prepared, normalisation, "real", CPU, seed=0)
    assert torch.equal(again, bank)


def test_the_quietest_quarter_of_every_site_is_kept():
    loud = np.array([5, 1, 4, 3, 2, 9, 8, 7, 6.0])
    site = np.array([0, 0, 0, 0, 0, 0, 0, 0, 3])
    assert quietest(loud, site).tolist() == [1, 4, 8]  # none is quiet
    assert quietest(loud * 0.005, site).tolist() == [1, 4]  # at the last site the quietest is loud


def test_draws_of_new_kinds_do_not_depend_on_who_holds_a_chunk(prepared):
    config = apply_overrides(field(), EVERY_AUGMENTATION)
    bank = torch.randn(6, 1024, 128).half()
    make = lambda size: StepAugmentation(  # noqa: E731
        replace(AugmentStrength.of_config(config.augment), noise=0.0),
        1.0,
        prepared.normalisation(),
        batch_size=size,
        seed=1,
        device=CPU,
        noise_bank=bank,
    )
    raw = next(make_reader(prepared).epoch(0))
    batch = batch_of(raw, prepared.normalisation(), "real")
    whole = make(8)(batch, step=3, rows=torch.arange(8))
    some = torch.tensor([5, 2])
    part = ChunkBatch(
        batch.logmel[some],
        PaddedBoxes(*(getattr(batch.boxes, n)[some] for n in ("corners", "is_object", "is_ignored"))),
        batch.weight[some],
    )
    alone = make(8)(part, step=3, rows=some)
    assert torch.allclose(alone.logmel, whole.logmel[some], atol=1e-5)
    assert torch.equal(alone.boxes.corners, whole.boxes.corners[some])


def test_a_compiled_run_has_slots_for_its_fullest_chunk_but_not_for_a_rare_crowd():
    counts = [np.array(c, dtype=np.int64) for c in ([], [0, 3], [17, 2], [33], [5, 200])]
    assert [compiled_slots(c) for c in counts] == [16, 16, 32, 64, 64]
    assert bucketed(pad_boxes([torch.rand(3, 4)]), least=64).corners.shape == (1, 64, 4)
