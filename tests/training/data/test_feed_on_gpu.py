"""Batches that are made while a step runs are those made in turn, and what a step holds is not written over (GPU only)."""

import pytest
import torch
from archive_of_noise import write_archive
from augmentations import EVERY_AUGMENTATION

from mast_ray.config.loading import apply_overrides
from mast_ray.config.recipes import field
from mast_ray.spectrogram.augmentation import AugmentStrength
from mast_ray.tables.reading.chunk_sets import chunks_of_split
from mast_ray.tables.reading.reader import ChunkReader
from mast_ray.training.data.augmenting import StepAugmentation
from mast_ray.training.data.feed import ReaderFeed
from mast_ray.training.progress import Stopwatch
from mast_ray.training.schedule import Schedule
from mast_ray.training.worker import LocalWorker

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="streams need a GPU"),
]
NUM_STEPS = 30


@pytest.fixture(scope="module")
def prepared(tmp_path_factory):
    return write_archive(tmp_path_factory.mktemp("archive") / "prepared")


def batches_of(prepared, monkeypatch, is_beside, accumulate=1):
    """What every step saw, read after work that takes the device longer than a batch takes to be made."""
    monkeypatch.setattr(ReaderFeed, "_can_work_beside", property(lambda _: is_beside))
    device, normalisation = torch.device("cuda"), prepared.normalisation()
    chunks = chunks_of_split(prepared, "train")
    reader = ChunkReader(prepared, chunks, prepared.labels, batch_size=8, lanes=4, seed=3, num_threads=1)
    bank = torch.randn((4, 1024, 128), generator=torch.Generator().manual_seed(0)).to(device)
    strength = AugmentStrength.of_config(apply_overrides(field(), EVERY_AUGMENTATION).augment)
    augmentation = StepAugmentation(
        strength, 0.9, normalisation, batch_size=8, seed=5, device=device, noise_bank=bank
    )
    feed = ReaderFeed(
        reader,
        LocalWorker(device),
        Schedule(25, 8, NUM_STEPS, 1.0, accumulate=accumulate),
        normalisation,
        augmentation=augmentation,
        least_slots=16,
    )
    seen = []
    busy = torch.randn((4096, 4096), device=device)
    for batch, rows in feed.micro_batches(0, NUM_STEPS, Stopwatch(1)):
        for _ in range(20):
            busy = (busy @ busy).clamp(-1, 1)
        boxes = batch.boxes
        held = (batch.logmel, boxes.corners, boxes.is_object, boxes.is_ignored, batch.weight, rows)
        seen.append([tensor.sum(dtype=torch.float64) for tensor in held] + [batch.logmel.clone()])
    return [[tensor.cpu() for tensor in step] for step in seen]


@pytest.mark.parametrize("accumulate", [1, 2])
def test_batches_made_beside_a_step_are_those_made_in_turn(prepared, monkeypatch, accumulate):
    in_turn = batches_of(prepared, monkeypatch, is_beside=False, accumulate=accumulate)
    beside = batches_of(prepared, monkeypatch, is_beside=True, accumulate=accumulate)
    assert len(in_turn) == len(beside) == NUM_STEPS * accumulate
    for one, other in zip(in_turn, beside, strict=True):
        assert all(torch.equal(a, b) for a, b in zip(one, other, strict=True))
