"""A detector on its device, run over batches of stored chunks of one shape; answers come one batch later.

Legend: B chunks, K boxes. Chunks travel to the device in the background (training/data/feed.py). The last batch
is padded by repeating its first chunk, so a compiled graph meets one shape; a GPU works on the next batch
while the answer to the last is unpacked.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from mast_ray.models.detector import PointDetector
from mast_ray.spectrogram.chunking import Tail
from mast_ray.spectrogram.grid import end_of_sound
from mast_ray.spectrogram.normalisation import Normalisation
from mast_ray.tables.reading.reader import ChunkReader, RawChunks
from mast_ray.training.data.feed import on_device
from mast_ray.training.engine import Precision, autocast
from mast_ray.training.progress import Stopwatch


@dataclass(frozen=True)
class Inputs:
    """How stored chunks become a model's input."""

    normalisation: Normalisation
    tail: Tail
    device: torch.device
    precision: Precision = "fp32"


@dataclass(frozen=True)
class StoredDetections:
    """What is kept of a chunk's detections. The score floor is low, so that thresholds can be searched later."""

    score_floor: float = 0.01
    nms_overlap: float = 0.5
    max_detections: int = 300
    with_parts: bool = False  # classification and centerness beside the score, where a detector has them


class BatchBoxes(NamedTuple):
    """Detections of consecutive chunks of a reader, chunk by chunk, best first."""

    chunk: NDArray[np.int64]  # (K,) row of reader.chunks
    boxes: NDArray[np.float32]  # (K, 4) frames and bins of the chunk
    score: NDArray[np.float32]  # (K,)
    num_chunks: int
    parts: NDArray[np.float32] | None = None  # (K, 2) classification and centerness


class _Answer(NamedTuple):
    num_chunks: int
    tensors: tuple[Tensor, ...]  # corners, score, is_valid, parts where wanted, on the host
    ready: torch.cuda.Event | None


class ChunkDetector:
    """`detections(reader)` goes through a reader once."""

    def __init__(
        self,
        detector: Any,
        inputs: Inputs,
        batch_size: int,
        stored: StoredDetections,
        compiled: Literal["yes", "no"] = "no",
    ) -> None:
        self.inputs, self.batch_size, self.stored = inputs, batch_size, stored
        self._detector = detector.to(inputs.device).eval()
        has_parts = isinstance(detector, PointDetector)  # a baseline has a score only
        self._more = {"with_parts": True} if stored.with_parts and has_parts else {}
        self._infer = torch.compile(self.inferred, dynamic=False) if compiled == "yes" else self.inferred

    def inferred(
        self,
        values: Tensor,
        scale: Tensor,
        offset: Tensor,
        valid_frames: Tensor,
        background: Tensor | None = None,
    ) -> tuple[Tensor, ...]:
        """(B, T, F) stored values -> corners, score, is_valid of every slot, and parts where wanted"""
        logmel = self.inputs.normalisation(values, scale, offset, self.inputs.tail, background)
        with autocast(self.inputs.device, self.inputs.precision):
            found = self._detector.detect(
                logmel,
                self.stored.score_floor,
                self.stored.nms_overlap,
                self.stored.max_detections,
                end_frames=end_of_sound(valid_frames),
                **self._more,
            )
        answer = (found.corners.float(), found.score.float(), found.is_valid)
        return answer if found.parts is None else (*answer, found.parts.float())

    @torch.no_grad()  # not inference_mode: cached grids must stay usable in training
    def answers(self, batches: Iterable[RawChunks]) -> Iterator[_Answer]:
        """One answer per batch, in order."""
        waiting: _Answer | None = None
        for raw in batches:
            parts = (raw.values, raw.scale, raw.offset, raw.valid_frames, raw.background)
            tensors = self._infer(*(padded(part, self.batch_size) for part in parts if part is not None))
            answer = _on_host(len(raw), tensors)
            if waiting is not None:
                yield waiting
            waiting = answer
        if waiting is not None:
            yield waiting

    def detections(self, reader: ChunkReader, rank: int = 0, world_size: int = 1) -> Iterator[BatchBoxes]:
        """Detections of every chunk of this worker's share of a reader, in its order."""
        first, clock = rank * len(reader) // world_size, Stopwatch(len(reader))
        source = reader.sequential(rank, world_size, self.batch_size)
        with closing(on_device(source, self.inputs.device, clock)) as batches:
            for answer in self.answers(batches):
                if answer.ready is not None:
                    answer.ready.synchronize()
                corners, score, is_valid, *rest = (t[: answer.num_chunks].numpy() for t in answer.tensors)
                chunk = np.nonzero(is_valid)[0] + first
                parts = rest[0][is_valid] if rest else None
                yield BatchBoxes(chunk, corners[is_valid], score[is_valid], answer.num_chunks, parts)
                first += answer.num_chunks


def padded(rows: Tensor, size: int) -> Tensor:
    """(n, ...) rows repeated up to `size` rows with the first one."""
    missing = size - len(rows)
    return rows if missing <= 0 else torch.cat([rows, rows[:1].expand(missing, *rows.shape[1:])])


def _on_host(num_chunks: int, tensors: tuple[Tensor, ...]) -> _Answer:
    """On a GPU: copies into pinned memory begin at once, and an event says when they are there."""
    if tensors[0].device.type != "cuda":
        return _Answer(num_chunks, tensors, None)
    copies = tuple(
        torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True).copy_(tensor, non_blocking=True)
        for tensor in tensors
    )
    ready = torch.cuda.Event()
    ready.record()
    return _Answer(num_chunks, copies, ready)
