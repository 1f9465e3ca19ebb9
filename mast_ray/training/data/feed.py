"""From the reader to the objective: raw chunks travel to the device in the
background and become batches there.

Values cross the bus as stored (one byte each); normalisation and augmentation run on the device. A batch
depends on the sample positions it holds, never on which worker holds it.
"""

from __future__ import annotations

import queue
import time
from collections.abc import Generator, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from typing import Literal, NamedTuple, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from mast_ray.boxes.batch import ChunkBatch, PaddedBoxes
from mast_ray.spectrogram.chunking import Tail
from mast_ray.spectrogram.normalisation import Normalisation
from mast_ray.tables.reading.handover import Handover
from mast_ray.tables.reading.reader import CHUNK_TENSORS, RawChunks
from mast_ray.training.loop import FeedNotes, MicroBatch
from mast_ray.training.objectives import mean_over_workers
from mast_ray.training.progress import Stopwatch
from mast_ray.training.schedule import Schedule
from mast_ray.training.worker import Worker

Weighting = Literal[
    "ones", "as_given", "mean_one", "ones_of_pseudo", "as_given_of_pseudo", "mean_one_of_pseudo"
]
LEAST_SLOTS, MOST_FIXED_SLOTS = 16, 64
AHEAD = 3  # batches on the device before they are needed
OPEN_EARLY_STEPS = 8  # the next epoch's reader starts this many steps before the current one ends


class Augmentation(Protocol):
    """Changes a normalised batch; draws depend on the step and the chunks'
    places in the global batch alone.
    """

    def __call__(self, batch: ChunkBatch, step: int, rows: Tensor) -> ChunkBatch: ...


class Labeller(Protocol):
    """Gives pseudo-labelled chunks of a normalised batch other boxes and weights, before they are augmented."""

    def __call__(self, batch: ChunkBatch, raw: RawChunks, step: int) -> ChunkBatch: ...


class Reader(Protocol):
    """Where raw chunks come from: the same global batch for a step whatever the number of workers."""

    @property
    def steps_per_epoch(self) -> int: ...

    def epoch(
        self, epoch: int, rank: int = 0, world_size: int = 1, start_step: int = 0
    ) -> Iterator[RawChunks]: ...


class ReaderFeed:
    """Micro-batches of one worker, step by step, across epochs."""

    def __init__(
        self,
        reader: Reader,
        worker: Worker,
        schedule: Schedule,
        normalisation: Normalisation,
        *,
        tail: Tail = "real",
        augmentation: Augmentation | None = None,
        weighting: Weighting = "as_given",
        least_slots: int = 0,
        labeller: Labeller | None = None,
        pseudo_weight: float = 1.0,
    ) -> None:
        self.labeller, self.pseudo_weight = labeller, pseudo_weight
        self.reader, self.worker, self.schedule = reader, worker, schedule
        self.normalisation, self.tail = normalisation, tail
        self.augmentation, self.weighting = augmentation, weighting
        self.least_slots = least_slots  # 0: as many box slots as the chunks of a batch need

    def micro_batches(self, first_step: int, num_steps: int, watch: Stopwatch) -> Iterator[MicroBatch]:
        """This rank's micro-batches of steps [first_step, num_steps),
        `accumulate` per step, on its device.
        """
        beside = Beside(self.worker.device, self._can_work_beside)
        raws = on_device(self._raw(first_step, num_steps), self.worker.device, watch, beside.stream)
        for step, raw in enumerate(raws, first_step):
            with beside:
                parts = parts_of(raw, self.schedule.accumulate)
                batches = [self._labelled(step, part) for part in parts]
                weights = self._weights(batches, parts)
            for part, batch, weight in zip(parts, batches, weights, strict=True):
                with beside:
                    made = self._augmented(step, part, replace(batch, weight=weight))
                yield beside.handed_over(made)

    def notes(self, steps_done: int) -> FeedNotes:
        """None: the order of samples is computed from the step."""
        return FeedNotes()

    def resume(self, steps_done: int, seen: bytes) -> None:
        """Nothing to prepare."""

    @property
    def _can_work_beside(self) -> bool:
        """Whether a batch can be made while the step before it runs: a teacher waits for that step's weights, and workers agree on
        a mean in the order of their steps.
        """
        agrees = self.weighting.startswith("mean_one") and self.worker.world_size > 1
        return self.labeller is None and not agrees

    def _labelled(self, step: int, raw: RawChunks) -> ChunkBatch:
        batch = batch_of(raw, self.normalisation, self.tail)
        return batch if self.labeller is None else self.labeller(batch, raw, step)

    def _weights(self, batches: Sequence[ChunkBatch], parts: Sequence[RawChunks]) -> Sequence[Tensor]:
        """Weights of the chunks of every micro-batch, of the whole step on this worker. Without confidence a chunk with a call
        weighs 1; one without keeps what it was given: 1 by experts, of a pool what its empty chunks shall weigh.
        """
        weight = torch.cat([batch.weight for batch in batches])
        if self.weighting in ("ones", "ones_of_pseudo"):
            has_call = torch.cat([batch.boxes.is_object.any(dim=1) for batch in batches])
            weight = torch.where(has_call, 1.0, weight)
        match self.weighting:
            case "mean_one":
                share = len(weight) * self.worker.world_size / self.schedule.batch_size
                weight = weight / mean_over_workers(weight.mean() * share).clamp(min=1e-6)
            case "ones_of_pseudo" | "as_given_of_pseudo" | "mean_one_of_pseudo":
                is_pseudo = torch.cat([part.is_pseudo for part in parts])
                weight = torch.where(is_pseudo, self._of_pseudo(weight, is_pseudo) * self.pseudo_weight, 1.0)
        return weight.split([len(part) for part in parts])

    def _of_pseudo(self, weight: Tensor, is_pseudo: Tensor) -> Tensor:
        """What pseudo-labelled chunks weigh beside expert ones; a chunk that teaches nothing has weight 0 in every way."""
        if self.weighting != "mean_one_of_pseudo":
            return weight
        total, count = (weight * is_pseudo).sum(), is_pseudo.sum()
        mean = mean_over_workers(total) / mean_over_workers(count.float()).clamp(min=1e-6)
        return weight / mean.clamp(min=1e-6)

    def _augmented(self, step: int, raw: RawChunks, batch: ChunkBatch) -> MicroBatch:
        rows = raw.sample_index % self.schedule.batch_size
        if self.least_slots:
            batch = replace(batch, boxes=bucketed(batch.boxes, self.least_slots))
        if self.augmentation is not None:
            batch = self.augmentation(batch, step, rows)
        return MicroBatch(batch, rows)

    def _raw(self, first_step: int, num_steps: int) -> Iterator[RawChunks]:
        """Raw chunks of this worker on the host; the reader of the next epoch is
        opened before the current one ends.
        """
        per_epoch = self.reader.steps_per_epoch
        epochs = range(first_step // per_epoch, -(-num_steps // per_epoch))
        with ThreadPoolExecutor(1, thread_name_prefix="next-epoch") as pool:
            upcoming: Future[tuple[RawChunks, Iterator[RawChunks]]] | None = None
            for epoch in epochs:
                start = first_step - epoch * per_epoch if epoch == epochs[0] else 0
                stop = min(per_epoch, num_steps - epoch * per_epoch)
                first, rest = upcoming.result() if upcoming is not None else self._opened(epoch, start)
                upcoming = None
                for step in range(start, stop):
                    if upcoming is None and epoch + 1 < epochs.stop and step >= stop - OPEN_EARLY_STEPS:
                        upcoming = pool.submit(self._opened, epoch + 1, 0)
                    yield first if step == start else next(rest)

    def _opened(self, epoch: int, start_step: int) -> tuple[RawChunks, Iterator[RawChunks]]:
        batches = self.reader.epoch(epoch, self.worker.rank, self.worker.world_size, start_step)
        return next(batches), batches


def batch_of(raw: RawChunks, normalisation: Normalisation, tail: Tail) -> ChunkBatch:
    """Stored chunks -> normalised batch on the same device."""
    logmel = normalisation(raw.values, raw.scale, raw.offset, tail, raw.background)
    return ChunkBatch(logmel, raw.boxes, raw.weight, raw.chunk_ids, raw.is_pseudo)


def bucketed(boxes: PaddedBoxes, least: int = LEAST_SLOTS) -> PaddedBoxes:
    """Slots padded to `least`, or to a power of two above it: a compiled step is built for few shapes."""
    return with_slots(boxes, max(least, 1 << (boxes.is_object.shape[1] - 1).bit_length()))


def with_slots(boxes: PaddedBoxes, num_slots: int) -> PaddedBoxes:
    """Boxes in at least so many slots; the new ones are empty."""
    missing = num_slots - boxes.is_object.shape[1]
    if missing <= 0:
        return boxes
    return PaddedBoxes(
        functional.pad(boxes.corners, (0, 0, 0, missing)),
        functional.pad(boxes.is_object, (0, missing)),
        functional.pad(boxes.is_ignored, (0, missing)),
    )


def compiled_slots(boxes_per_chunk: NDArray[np.int64]) -> int:
    """Box slots that hold (nearly) every chunk of a set, so that a compiled step meets one shape.

    At most 64: a single crowded chunk must not make every batch wide.
    """
    most = int(boxes_per_chunk.max(initial=1))
    return min(MOST_FIXED_SLOTS, max(LEAST_SLOTS, 1 << (most - 1).bit_length()))


def parts_of(raw: RawChunks, count: int) -> list[RawChunks]:
    """A raw batch in `count` parts, equal or different by one; where experts' chunks are in front, they are so in every
    part.
    """
    if count == 1:
        return [raw]
    experts = raw.num_expert or 0
    parts, begin = [], experts
    for part in range(count):
        low, high = (experts * number // count for number in (part, part + 1))
        size = (part + 1) * len(raw) // count - part * len(raw) // count
        end = begin + size - (high - low)
        parts.append(_joined_rows(raw, slice(low, high), slice(begin, end)))
        begin = end
    return parts


def _joined_rows(raw: RawChunks, expert: slice, other: slice) -> RawChunks:
    take = lambda tensor: torch.cat([tensor[expert], tensor[other]])  # noqa: E731
    boxes = raw.boxes
    return replace(
        raw,
        **{name: take(getattr(raw, name)) for name in CHUNK_TENSORS},
        boxes=PaddedBoxes(take(boxes.corners), take(boxes.is_object), take(boxes.is_ignored)),
        chunk_ids=raw.chunk_ids[expert] + raw.chunk_ids[other],
        num_expert=None if raw.num_expert is None else expert.stop - expert.start,
        background=None if raw.background is None else take(raw.background),
    )


class Beside:
    """A stream of a GPU on which batches are made while the step before them runs: hundreds of small kernels, which fill what
    that step leaves free. Elsewhere, and where that must not be, they are made in turn.
    """

    def __init__(self, device: torch.device, is_wanted: bool) -> None:
        self._device = device
        self.stream: torch.cuda.Stream | None = None
        if is_wanted and device.type == "cuda":
            self.stream = torch.cuda.Stream(device)
            self.stream.wait_stream(torch.cuda.current_stream(device))  # banks of backgrounds are there
        self._context = torch.cuda.stream(self.stream)  # of no stream: it does nothing

    def __enter__(self) -> None:
        self._context.__enter__()

    def __exit__(self, *exception: object) -> None:
        self._context.__exit__(*exception)

    def handed_over(self, made: MicroBatch) -> MicroBatch:
        """The same batch, for which the present stream waits, and whose memory is not given away before that has used it."""
        if self.stream is not None:
            current = torch.cuda.current_stream(self._device)
            current.wait_stream(self.stream)
            batch, boxes = made.batch, made.batch.boxes
            shared = (batch.logmel, batch.weight, batch.is_pseudo, made.rows)
            for tensor in (*shared, boxes.corners, boxes.is_object, boxes.is_ignored):
                if tensor is not None:
                    tensor.record_stream(current)
        return made


class _Copied(NamedTuple):
    """Chunks on their way to the device, and when they are there."""

    raw: RawChunks
    arrival: torch.cuda.Event | None


def on_device(
    source: Iterator[RawChunks],
    device: torch.device,
    watch: Stopwatch,
    user: torch.cuda.Stream | None = None,
) -> Generator[RawChunks, None, None]:
    """Copy ahead in a thread (on its own stream for a GPU); waiting counts only while
    the device has nothing left to do. `user`: the stream that goes on with the copies, else the present one.
    """

    def copies() -> Generator[_Copied, None, None]:
        try:
            stream = torch.cuda.Stream(device) if device.type == "cuda" else None
            for raw in source:
                yield _copied(raw, device, stream)
        finally:
            source.close()  # type: ignore[attr-defined]

    done: torch.cuda.Event | None = None
    with Handover[_Copied](AHEAD).fed_by(copies(), "device-feed") as handover:
        while (item := _waited(handover, done, watch)) is not None:
            raw, copied = item
            if copied is not None:
                user_now = user or torch.cuda.current_stream(device)
                user_now.wait_event(copied)
                for tensor in _tensors(raw):
                    tensor.record_stream(user_now)
            yield raw
            if device.type == "cuda":
                if done is not None:
                    done.synchronize()  # the host stays at most one step ahead of the device
                done = torch.cuda.Event()
                done.record(torch.cuda.current_stream(device))


def _tensors(raw: RawChunks) -> tuple[Tensor, ...]:
    boxes = (raw.boxes.corners, raw.boxes.is_object, raw.boxes.is_ignored)
    background = () if raw.background is None else (raw.background,)
    return (*(getattr(raw, name) for name in CHUNK_TENSORS), *boxes, *background)


def _copied(raw: RawChunks, device: torch.device, stream: torch.cuda.Stream | None) -> _Copied:
    if stream is None:
        return _Copied(raw, None)
    with torch.cuda.stream(stream):
        moved = raw.to(device)
        event = torch.cuda.Event()
        event.record(stream)
    return _Copied(moved, event)


def _waited(handover: Handover[_Copied], done: torch.cuda.Event | None, watch: Stopwatch) -> _Copied | None:
    """The next item; seconds are counted as waiting only while the device is idle."""
    try:
        return handover.take(0.0)
    except queue.Empty:
        pass
    while True:
        begun = time.perf_counter()
        is_idle = done is None or done.query()
        try:
            return handover.take(0.002)
        except queue.Empty:
            continue
        finally:
            if is_idle:
                watch.waited(time.perf_counter() - begun)
