"""Expert and pseudo-labelled chunks in every batch: their shares, their order, their weights, and going on after a stop."""

import numpy as np
import pytest
import torch
from archive_of_noise import write_archive

from mast_ray.boxes.batch import ChunkBatch, pad_boxes
from mast_ray.config.errors import ConfigError
from mast_ray.tables.reading.chunk_sets import chunks_of_split
from mast_ray.tables.reading.reader import ChunkReader
from mast_ray.training.data.feed import ReaderFeed, parts_of
from mast_ray.training.data.mixed_reader import MixedReader, expert_count
from mast_ray.training.progress import Stopwatch
from mast_ray.training.schedule import Schedule
from mast_ray.training.worker import LocalWorker


@pytest.fixture(scope="module")
def prepared(tmp_path_factory):
    return write_archive(tmp_path_factory.mktemp("archive") / "prepared")


def mixed(prepared, num_expert=5, expert_batch=2, other_batch=6):
    """The first chunks of the train split as experts', the others as pseudo-labelled ones of weight 0.5."""
    chunks = chunks_of_split(prepared, "train")
    parts = (chunks.take(np.arange(num_expert)), chunks.take(np.arange(num_expert, len(chunks))))
    expert, pseudo = (
        ChunkReader(prepared, part, prepared.labels, batch_size=size, lanes=2, seed=3, num_threads=1)
        for part, size in zip(parts, (expert_batch, other_batch), strict=True)
    )
    pseudo.is_pseudo[:] = True
    pseudo.chunks.weight[:] = np.linspace(0.2, 0.8, len(pseudo))
    return MixedReader(expert, pseudo)


def ids_of_steps(reader, epochs=3, start=0, rank=0, world_size=1):
    """(step, place in the global batch) -> chunk id."""
    per_epoch, found = reader.steps_per_epoch, {}
    for epoch in range(start // per_epoch, epochs):
        first = start % per_epoch if epoch == start // per_epoch else 0
        for batch in reader.epoch(epoch, rank, world_size, first):
            for index, name in zip(batch.sample_index.tolist(), batch.chunk_ids, strict=True):
                found[divmod(index, reader.batch_size)] = name
    return found


@pytest.mark.parametrize(
    ("size", "share", "count"), [(32, 0.5, 16), (4, 0.3, 1), (4, 0.0, 1), (4, 1.0, 3), (2, 0.5, 1)]
)
def test_a_batch_holds_its_share_of_experts_and_at_least_one_chunk_of_each_kind(size, share, count):
    assert expert_count(size, share) == count


def test_a_batch_of_one_cannot_be_mixed():
    with pytest.raises(ConfigError, match="larger"):
        expert_count(1, 0.5)


def test_experts_are_in_front_of_every_batch_and_go_round_while_the_pool_is_passed_once(prepared):
    reader = mixed(prepared)
    experts = set(reader.expert.chunks.ids(prepared))
    assert (reader.steps_per_epoch, reader.samples_per_epoch, len(reader)) == (
        3,
        24,
        25,
    )  # 20 pool chunks by 6
    found = ids_of_steps(reader)
    assert len(found) == 3 * 3 * 8
    for (_, place), name in found.items():
        assert (name in experts) == (place < 2)
    an_epoch = [name for (step, place), name in found.items() if step < 3 and place >= 2]
    assert len(set(an_epoch)) == 18  # no pseudo-labelled chunk twice in an epoch
    turns = [[found[step, place] for place in (0, 1)] for step in range(9)]
    for first in (0, 2, 4):  # five expert chunks: two steps of two are a pass
        assert len({*turns[first], *turns[first + 1]}) == 4


def test_any_step_can_be_taken_up_again_and_workers_share_the_same_batches(prepared):
    whole = ids_of_steps(mixed(prepared))
    for start in (1, 4, 8):
        rest = ids_of_steps(mixed(prepared), start=start)
        assert rest == {key: name for key, name in whole.items() if key[0] >= start}
    halves = [ids_of_steps(mixed(prepared), rank=rank, world_size=2) for rank in (0, 1)]
    assert not halves[0].keys() & halves[1].keys() and halves[0] | halves[1] == whole


def test_parts_of_a_batch_hold_experts_in_front_and_every_chunk_once(prepared):
    raw = next(mixed(prepared, expert_batch=4, other_batch=8).epoch(0))
    parts = parts_of(raw, 3)
    assert [(len(part), part.num_expert) for part in parts] == [(4, 1), (4, 1), (4, 2)]
    for part in parts:
        assert part.is_pseudo.tolist() == [n >= part.num_expert for n in range(4)]
    together = torch.cat([part.sample_index for part in parts])
    assert sorted(together.tolist()) == sorted(raw.sample_index.tolist())


class FiveChunks:
    is_pseudo = torch.tensor([False, False, True, True, True])

    def __len__(self):
        return 5


@pytest.mark.parametrize(
    ("weighting", "want"),
    [
        ("ones_of_pseudo", [1, 1, 0.5, 0.05, 0]),
        ("as_given_of_pseudo", [1, 1, 0.4, 0.05, 0]),
        ("mean_one_of_pseudo", [1, 1, 1.3333, 0.1667, 0]),
    ],
)
def test_in_mixed_batches_a_dropped_chunk_teaches_nothing_however_the_others_are_weighed(
    prepared, weighting, want
):
    """And an empty one that is kept as a negative weighs as it is told to, also where confidence does not count."""
    feed = ReaderFeed(
        mixed(prepared), LocalWorker(), Schedule(24, 8, 3, 1.0), prepared.normalisation(),
        weighting=weighting, pseudo_weight=0.5,
    )  # fmt: skip
    call, none = torch.tensor([[1.0, 2.0, 30.0, 40.0]]), torch.zeros(0, 4)
    boxes = pad_boxes([call, none, call, none, none])
    batch = ChunkBatch(torch.zeros(5, 1, 1, 1), boxes, torch.tensor([1.0, 1.0, 0.8, 0.1, 0.0]))
    (weight,) = feed._weights([batch], [FiveChunks()])
    assert weight.tolist() == pytest.approx(want, abs=1e-4)


@pytest.mark.parametrize("accumulate", [1, 2])
def test_confidence_goes_to_pseudo_labelled_chunks_only_with_mean_one_over_them(prepared, accumulate):
    reader = mixed(prepared)
    feed = ReaderFeed(
        reader, LocalWorker(), Schedule(24, 8, 3, 1.0, accumulate=accumulate), prepared.normalisation(),
        weighting="mean_one_of_pseudo", pseudo_weight=2.0,
    )  # fmt: skip
    batches = list(feed.micro_batches(0, 1, Stopwatch(1)))
    weight = torch.cat([part.batch.weight for part in batches])
    is_pseudo = torch.cat([part.batch.is_pseudo for part in batches])
    assert weight[~is_pseudo].tolist() == [1.0, 1.0]
    assert weight[is_pseudo].mean().item() == pytest.approx(2.0) and weight[is_pseudo].std() > 0.1
