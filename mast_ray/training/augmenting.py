"""Augmentation inside a training run: draws by place in the global batch, and the
noise bank of call-free chunks.
"""

from __future__ import annotations

import logging
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from mast_ray.boxes.batch import ChunkBatch
from mast_ray.spectrogram.augmentation import AugmentStrength, Draws, augment, draw_augmentation
from mast_ray.spectrogram.chunking import Tail
from mast_ray.spectrogram.normalisation import Normalisation
from mast_ray.tables.chunk_sets import ChunkSet
from mast_ray.tables.prepared import Prepared
from mast_ray.tables.reader import ChunkReader
from mast_ray.training.feed import batch_of

log = logging.getLogger("mast.training")

NOISE_BANK_CHUNKS = 64


class StepAugmentation:
    """Augments what a worker holds with the draws that its chunks have in the global batch of the step.

    All workers draw for the whole batch from the same generator and take their rows, so a chunk is
    changed in the same way whoever holds it. Mixup and CutMix (off by default) pair neighbours on a
    worker and do depend on how chunks were dealt out.
    """

    def __init__(
        self,
        strength: AugmentStrength,
        probability: float,
        normalisation: Normalisation,
        *,
        batch_size: int,
        seed: int,
        device: torch.device,
        noise_bank: Tensor | None = None,
        hidden_boxes: Literal["ignore", "remove"] = "ignore",
    ) -> None:
        self.strength, self.probability, self.normalisation = strength, probability, normalisation
        self.batch_size, self.seed, self.noise_bank, self.hidden_boxes = (
            batch_size,
            seed,
            noise_bank,
            hidden_boxes,
        )
        self._generator = torch.Generator(device)

    def __call__(self, batch: ChunkBatch, step: int, rows: Tensor) -> ChunkBatch:
        self._generator.manual_seed((self.seed * 1_000_003 + step) * 2 + 1)
        one = batch.logmel[:1]
        like_global = ChunkBatch(one.expand(self.batch_size, *one.shape[1:]), batch.boxes, batch.weight)
        bank_size = 0 if self.noise_bank is None else len(self.noise_bank)
        draws = draw_augmentation(like_global, self.strength, self.probability, self._generator, bank_size)
        return augment(
            batch,
            rows_of_draws(draws, rows),
            self.strength,
            self.normalisation,
            self.noise_bank,
            self.hidden_boxes,
        )


def rows_of_draws(draws: Draws, rows: Tensor) -> Draws:
    """The draws of some rows of a batch."""
    take = lambda value: None if value is None else value[rows]  # noqa: E731
    mixing = None if draws.mixing is None else type(draws.mixing)(*map(take, draws.mixing))
    return draws._replace(**{name: take(getattr(draws, name)) for name in draws._fields[:-1]}, mixing=mixing)


def noise_bank(
    prepared: Prepared,
    quiet: ChunkSet,
    normalisation: Normalisation,
    tail: Tail,
    device: torch.device,
    seed: int,
) -> Tensor | None:
    """(K, T, F) normalised chunks, at most 64 of the `quiet` ones; None (said in
    the log) when there are none.
    """
    if not len(quiet):
        log.info("no training chunk is free of calls: background mixing is off")
        return None
    chosen = np.sort(np.random.default_rng(seed).permutation(len(quiet))[:NOISE_BANK_CHUNKS])
    reader = ChunkReader(prepared, quiet.take(chosen), batch_size=NOISE_BANK_CHUNKS, num_threads=2)
    parts = [batch_of(raw.to(device), normalisation, tail).logmel.squeeze(1) for raw in reader.sequential()]
    return torch.cat(parts)
