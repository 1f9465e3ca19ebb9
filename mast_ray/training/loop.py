"""The one training loop. Pretraining, detector training, stage 1 and stage 2
differ only in what is handed in.

An objective gives the loss, an engine moves the weights, a feed brings batches by step number, a
schedule says when and how fast. Every random draw depends on seed and step alone, so a run that was
killed goes on exactly as an undisturbed one.
"""

from __future__ import annotations

import logging
import math
from collections import deque
from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from mast_ray.boxes.batch import ChunkBatch
from mast_ray.config.errors import ConfigError
from mast_ray.training.engine import Engine, Objective
from mast_ray.training.files.checkpoints import (
    KEPT,
    STORAGE_FAULTS,
    Checkpoints,
    Position,
    TrainingState,
    refuse_another_network,
    refuse_another_run,
)
from mast_ray.training.files.metrics_log import MetricsLog
from mast_ray.training.files.model_files import BestWeights
from mast_ray.training.files.selection import Selection, Validation
from mast_ray.training.memory import out_of_memory_advice
from mast_ray.training.progress import Pace, ProgressLine, Stopwatch, progress_text
from mast_ray.training.schedule import Schedule
from mast_ray.training.step_notes import StepNotes
from mast_ray.training.worker import Worker

log = logging.getLogger("mast.training")


class MicroBatch(NamedTuple):
    """Chunks of this worker and their places in the global batch of the step."""

    batch: ChunkBatch
    rows: Tensor  # (B,) int64


class FeedNotes(NamedTuple):
    """What a feed has to say after some steps."""

    seen: bytes = b""  # what the rest of this epoch depends on besides the step, for the checkpoint
    account: Mapping[str, float] = {}  # of the epoch that just ended, for the metrics


class Feed(Protocol):
    """Batches by step: the same global batch for a step whatever the number of workers."""

    def micro_batches(self, first_step: int, num_steps: int, watch: Stopwatch) -> Iterator[MicroBatch]:
        """This rank's micro-batches of steps [first_step, num_steps),
        `accumulate` per step, on its device.
        """
        ...

    def notes(self, steps_done: int) -> FeedNotes:
        """At a checkpoint, and at the end of every epoch; collective. Empty where the order of samples is computed."""
        ...

    def resume(self, steps_done: int, seen: bytes) -> None:
        """Go on after so many steps; before `micro_batches`."""
        ...


@dataclass(frozen=True)
class RunFiles:
    """Where a run keeps what outlives it. Opened on every rank, written by rank 0."""

    checkpoints: Checkpoints
    best: BestWeights
    metrics: MetricsLog | None  # None on ranks other than 0


@dataclass(frozen=True)
class FitOptions:
    """How a run behaves, apart from what it computes."""

    checkpoint_every_steps: int = 0  # 0: as the schedule says
    log_every_steps: int = 10
    flops_per_sample: float | None = None
    peak_flops: float | None = None
    section: str = "train"  # config section named in messages


@dataclass(frozen=True)
class FitResult:
    """How a run ended."""

    position: Position
    resumed_from_step: int
    validation: dict[str, float] = field(default_factory=dict)  # the last one
    pace: Pace | None = None


def fit(
    worker: Worker,
    engine: Engine,
    feed: Feed,
    schedule: Schedule,
    validation: Validation | None,
    files: RunFiles,
    identity: dict[str, Any],
    options: FitOptions = FitOptions(),  # noqa: B008 (frozen)
) -> FitResult:
    """Train from the newest good checkpoint (or the start) to the end of the schedule."""
    position, seen = resume(worker, engine, files.checkpoints, identity)
    feed.resume(position.steps_done, seen)
    if files.metrics is not None:
        files.metrics.begin(position.steps_done, position.unscored)
    with _Writer(files) as writer:
        result = _train(
            worker, engine, feed, schedule, validation, files, identity, options, position, writer
        )
    if files.metrics is not None:
        files.metrics.close()
    return result


def _train(
    worker: Worker,
    engine: Engine,
    feed: Feed,
    schedule: Schedule,
    validation: Validation | None,
    files: RunFiles,
    identity: dict[str, Any],
    options: FitOptions,
    position: Position,
    writer: _Writer,
) -> FitResult:
    first_step, pace = position.steps_done, None
    selection = Selection(
        worker, validation, files.best, files.metrics, schedule.batch_size, dict(position.extra)
    )
    position = selection.take_up(position)
    notes = StepNotes(worker.device)
    clock = Stopwatch(
        schedule.num_samples, flops_per_sample=options.flops_per_sample, peak_flops=options.peak_flops
    )
    line = ProgressLine()
    checkpoint_every = options.checkpoint_every_steps or schedule.checkpoint_interval
    batches = feed.micro_batches(first_step, schedule.num_steps, clock)
    clock.restart(position.samples_seen)
    for step in range(first_step, schedule.num_steps):
        joined = engine.set_epoch(schedule.epoch_of_step(step))
        if joined and worker.rank == 0:
            log.info("step %d: training %s", step, "; ".join(joined))
        losses, chunk_ids = _one_step(worker, engine, batches, step, schedule, options)
        norm = engine.step(schedule.rate_at(position.samples_seen))
        notes.add(step, losses, norm, chunk_ids)
        position = replace(
            position, steps_done=step + 1, samples_seen=position.samples_seen + schedule.batch_size
        )
        validates = validation is not None and schedule.is_validation_step(step + 1)
        saves = (step + 1) % checkpoint_every == 0 or step + 1 == schedule.num_steps
        if (step + 1) % options.log_every_steps == 0 or validates or saves:
            means, skipped = notes.read()
            position = replace(position, skipped_steps=position.skipped_steps + skipped)
            pace = clock.look(position.samples_seen)
            _log_training(files.metrics, position, schedule, means, pace)
            if worker.rank == 0:
                text = progress_text(
                    step + 1, schedule.num_steps, schedule.epoch_of_step(step + 1), means["loss"], pace
                )
                line.show(text, final=step + 1 == schedule.num_steps)
        if validation is not None and validates:
            position = selection.offer(position, engine.averaged_weights())
        elif saves:
            position = selection.collect(position)
        if saves or (step + 1) % schedule.steps_per_epoch == 0:
            fed = feed.notes(step + 1)
            if fed.account and files.metrics is not None:
                files.metrics.add("epoch", step + 1, position.samples_seen, fed.account)
        if saves:
            state = TrainingState(position, engine.state(), identity, fed.seen)
            if worker.rank == 0:
                if files.metrics is not None:
                    # first: a checkpoint never stands beside a table that ends before it
                    files.metrics.flush()
                writer.submit(state, is_last=step + 1 == schedule.num_steps)
        if validates or saves:
            worker.report(
                {"step": float(step + 1), **{k: v for k, v in selection.last.items() if math.isfinite(v)}}
            )
            clock.restart(position.samples_seen)
    position = selection.collect(position, waits="yes")
    return FitResult(position, first_step, selection.last, pace)


def resume(
    worker: Worker, engine: Engine, checkpoints: Checkpoints, identity: dict[str, Any]
) -> tuple[Position, bytes]:
    """Load the newest good checkpoint into the engine; rank 0 chooses, all ranks read the same one. Where the run
    stands, and what its feed has to know.
    """
    name = None
    if worker.rank == 0:
        checkpoints.clean()
        name = checkpoints.newest_good()
    name = worker.gather(name)[0]
    if name is None:
        return Position(), b""
    state = checkpoints.read(name)
    refuse_another_run(checkpoints.storage, state.identity, identity)
    refuse_another_network(checkpoints.storage, state.engine.weights, engine.objective)
    engine.load_state(state.engine)
    if worker.rank == 0:
        log.info("resuming: %d steps done (%s)", state.position.steps_done, name)
    return state.position, state.seen


def _one_step(
    worker: Worker,
    engine: Engine,
    batches: Iterator[MicroBatch],
    step: int,
    schedule: Schedule,
    options: FitOptions,
) -> tuple[dict[str, Tensor], list[str]]:
    """Forward and backward of one global batch on this rank; losses are means over its micro-batches."""
    total: dict[str, Tensor] = {}
    chunk_ids: list[str] = []
    parts = [next(batches) for _ in range(schedule.accumulate)]
    engine.objective.begin_step([part.batch for part in parts] if len(parts) > 1 else [])
    for part, (batch, rows) in enumerate(parts):
        chunk_ids.extend(batch.chunk_ids)
        seed_draws(engine.objective, step, rows, schedule.batch_size, part * worker.world_size + worker.rank)
        is_last, weight = part == schedule.accumulate - 1, 1.0
        if engine.objective.is_mean_of_chunks:
            weight = len(rows) * worker.world_size * schedule.accumulate / schedule.batch_size
        try:
            losses = engine.backward(batch, is_last=is_last, weight=weight)
        except torch.OutOfMemoryError as error:
            raise ConfigError(out_of_memory_advice(engine, batch, schedule, options.section)) from error
        for name, value in losses.items():
            share = value / schedule.accumulate
            total[name] = total[name] + share if name in total else share
    return total, chunk_ids


def seed_draws(objective: Objective, step: int, rows: Tensor, num_rows: int, part: int) -> None:
    """Make every draw depend on the step: masks and jitter by place in the global
    batch, dropout by part of it.
    """
    torch.manual_seed((step * 4096 + part) & 0x7FFF_FFFF)
    objective.seed_step(step, rows, num_rows)


def _log_training(
    metrics: MetricsLog | None, position: Position, schedule: Schedule, means: dict[str, float], pace: Pace
) -> None:
    if metrics is None:
        return
    values = dict(means)
    values["learning_rate"] = schedule.rate_at(position.samples_seen)
    values["skipped_steps"] = position.skipped_steps
    values["chunks_per_s"], values["wait_share"] = pace.chunks_per_s, pace.wait_share
    if pace.model_flops_share is not None:
        values["model_flops_share"] = pace.model_flops_share
    metrics.add("train", position.steps_done, position.samples_seen, values)


class _Writer:
    """Writes checkpoints in the background; the next one, or the end, waits for the one
    before and hears of its failure.
    """

    def __init__(self, files: RunFiles) -> None:
        self.files = files
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="checkpoint")
        self._pending: Future[None] | None = None
        # Best weights are pruned only once every checkpoint that may name them has been replaced by ours.
        self._named: deque[set[int]] = deque(maxlen=KEPT + 1)

    def submit(self, state: TrainingState, is_last: bool) -> None:
        self.wait()
        self._pending = self._pool.submit(self._write, state, is_last)

    def wait(self) -> None:
        if self._pending is not None:
            self._pending.result()
            self._pending = None

    def __enter__(self) -> _Writer:
        return self

    def __exit__(self, *exception: object) -> None:
        """A run that stops for another reason still finishes the checkpoint it began."""
        self._pool.shutdown(wait=True)
        if exception[0] is None:
            self.wait()

    def _write(self, state: TrainingState, is_last: bool) -> None:
        if not self.files.checkpoints.write(state, is_last):
            return
        self._named.append({state.position.best_step, *state.position.unscored})
        if len(self._named) == self._named.maxlen:
            try:
                self.files.best.keep_only(set().union(*self._named))
            except STORAGE_FAULTS as error:
                log.warning("old weights stay for now (%s)", error)
