"""What to say when a GPU runs out of memory: the largest micro-batch that fits, as a
setting that keeps the global batch.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from mast_ray.boxes.batch import ChunkBatch, PaddedBoxes
from mast_ray.training.engine import Engine, autocast
from mast_ray.training.schedule import Schedule


def out_of_memory_advice(engine: Engine, batch: ChunkBatch, schedule: Schedule, section: str) -> str:
    """Three lines with a remedy. With several workers the fitting size is not tried
    out (it would need all of them).
    """
    size = len(batch.logmel)
    alone = not (torch.distributed.is_available() and torch.distributed.is_initialized()) or (
        torch.distributed.get_world_size() == 1
    )
    fitting = _fitting_size(engine, batch) if alone else size // 2
    if fitting < 1:
        return (
            f"out of memory with a single chunk: {section}.batch_size cannot be made small enough\n"
            "compute blocks again instead of keeping them (--set cluster.checkpoint_activations=on), use a smaller model\n"
            "(--set model.size=small) or a device with more memory"
        )
    parts = schedule.accumulate * -(-size // fitting)
    while schedule.batch_size % parts:
        parts += 1
    how = "fit" if alone else "are the next thing to try"
    return (
        f"out of memory with {size} chunks at once; {fitting} {how}\n"
        f"the same global batch of {schedule.batch_size} in smaller parts: --set {section}.accumulate={parts}\n"
        "or with less kept of each: --set cluster.checkpoint_activations=on"
    )


def _fitting_size(engine: Engine, batch: ChunkBatch) -> int:
    """Largest power-of-two part of the batch whose forward and backward fit; gradients are thrown away."""
    size = 1 << (len(batch.logmel).bit_length() - 1)
    if size == len(batch.logmel):
        size //= 2
    while size >= 1:
        try:
            _try(engine, first_chunks(batch, size))
            return size
        except torch.OutOfMemoryError:
            size //= 2
    return 0


def _try(engine: Engine, batch: ChunkBatch) -> None:
    device = batch.logmel.device
    engine.objective.zero_grad(set_to_none=True)
    if device.type == "cuda":
        torch.cuda.empty_cache()
    engine.objective.begin_step(
        []
    )  # a step of its own: what was counted and drawn for the whole batch does not fit
    engine.objective.seed_step(0)
    precision = engine.settings.precision  # type: ignore[attr-defined]
    with autocast(device, precision):
        loss: Tensor = engine.objective(batch)["loss"]
    loss.backward()
    engine.objective.zero_grad(set_to_none=True)


def first_chunks(batch: ChunkBatch, count: int) -> ChunkBatch:
    """The first chunks of a batch."""
    boxes = batch.boxes
    if boxes is not None:
        boxes = PaddedBoxes(boxes.corners[:count], boxes.is_object[:count], boxes.is_ignored[:count])
    return replace(
        batch,
        logmel=batch.logmel[:count],
        boxes=boxes,
        weight=batch.weight[:count],
        chunk_ids=batch.chunk_ids[:count],
        is_pseudo=None if batch.is_pseudo is None else batch.is_pseudo[:count],
    )
