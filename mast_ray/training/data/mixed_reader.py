"""Batches of expert and pseudo-labelled chunks together: a fixed share of each in every step.

Legend: B chunks of a global batch, the first of them by experts. Two readers are read side by side: an epoch is a
pass over the pseudo-labelled chunks, and the experts' go round as often as that takes. Both orders are computed
from (seed, epoch), so a step holds the same chunks after a kill and for any number of workers.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import torch

from mast_ray.boxes.batch import PaddedBoxes
from mast_ray.config.errors import ConfigError
from mast_ray.tables.reading.reader import CHUNK_TENSORS, ChunkReader, RawChunks
from mast_ray.training.data.feed import with_slots


def expert_count(batch_size: int, expert_share: float) -> int:
    """Expert chunks in a batch: at least one of each kind."""
    if batch_size < 2:
        raise ConfigError(
            f"a batch of {batch_size} cannot hold expert and pseudo-labelled chunks: use a larger "
            "self_train.stage1.batch_size"
        )
    return min(max(round(batch_size * expert_share), 1), batch_size - 1)


class MixedReader:
    """What a feed asks of a reader, over two of them whose batch sizes add up to the global batch."""

    def __init__(self, expert: ChunkReader, pseudo: ChunkReader) -> None:
        self.expert, self.pseudo = expert, pseudo
        self.batch_size = expert.batch_size + pseudo.batch_size

    def __len__(self) -> int:
        return len(self.expert) + len(self.pseudo)

    @property
    def steps_per_epoch(self) -> int:
        return self.pseudo.steps_per_epoch

    @property
    def samples_per_epoch(self) -> int:
        """Chunks that the steps of an epoch hold, experts' included."""
        return self.steps_per_epoch * self.batch_size

    def epoch(
        self, epoch: int, rank: int = 0, world_size: int = 1, start_step: int = 0
    ) -> Iterator[RawChunks]:
        """This worker's part of every global batch of an epoch from `start_step` on, experts first."""
        first = epoch * self.steps_per_epoch + start_step
        experts = self._experts(first, rank, world_size)
        try:
            others = self.pseudo.epoch(epoch, rank, world_size, start_step)
            for step, other in enumerate(others, first):
                yield self._together(next(experts), other, step)
        finally:
            experts.close()  # type: ignore[attr-defined]

    def _experts(self, first_step: int, rank: int, world_size: int) -> Iterator[RawChunks]:
        """Expert chunks of every step from `first_step` on, epoch after epoch of their own, without end."""
        epoch, start = divmod(first_step, self.expert.steps_per_epoch)
        while True:
            yield from self.expert.epoch(epoch, rank, world_size, start)
            epoch, start = epoch + 1, 0

    def _together(self, expert: RawChunks, other: RawChunks, step: int) -> RawChunks:
        places = (
            expert.sample_index % self.expert.batch_size,
            other.sample_index % self.pseudo.batch_size + self.expert.batch_size,
        )
        joined = joined_chunks(expert, other)
        return replace(joined, sample_index=step * self.batch_size + torch.cat(places))


def joined_chunks(expert: RawChunks, other: RawChunks) -> RawChunks:
    """Expert chunks and, behind them, pseudo-labelled ones as one batch."""
    slots = max(expert.boxes.is_object.shape[1], other.boxes.is_object.shape[1])
    boxes = [with_slots(part.boxes, slots) for part in (expert, other)]
    tensors = {name: torch.cat([getattr(expert, name), getattr(other, name)]) for name in CHUNK_TENSORS[1:]}
    return RawChunks(
        values=_joined_values(expert, other),
        **tensors,
        boxes=PaddedBoxes(
            *(torch.cat([getattr(b, name) for b in boxes]) for name in ("corners", "is_object", "is_ignored"))
        ),
        chunk_ids=expert.chunk_ids + other.chunk_ids,
        background=_joined_background(expert, other),
        num_expert=len(expert),
    )


def _joined_background(expert: RawChunks, other: RawChunks) -> torch.Tensor | None:
    if expert.background is None or other.background is None:
        return None
    return torch.cat([expert.background, other.background])


def _joined_values(expert: RawChunks, other: RawChunks) -> torch.Tensor:
    """One copy, into pinned memory where the parts are pinned."""
    shape = (len(expert) + len(other), *expert.values.shape[1:])
    values = torch.empty(shape, dtype=expert.values.dtype, pin_memory=expert.values.is_pinned())
    return torch.cat([expert.values, other.values], out=values)
