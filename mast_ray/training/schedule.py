"""What changes while a model trains, as pure functions of samples seen: learning
rates and which blocks train.

Everything counts samples, never steps or wall time, so that another batch size or
number of workers keeps the curve.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from mast_ray.config.errors import ConfigError
from mast_ray.config.stage_knobs import DetectorTrainConfig, PretrainConfig

NEVER = math.inf
LEAST_STEPS_KEPT, MOST_VALIDATIONS = 50, 4  # between two checkpoints


@dataclass(frozen=True)
class Unfreezing:
    """When the blocks of an encoder begin to train, counted from the top; all of
    them from the start by default.
    """

    from_start: int = 10**6  # top blocks that train from the first step
    start_epoch: float = 0.0
    every_epochs: float = 0.0  # 0: no gradual unfreezing
    blocks_at_a_time: int = 0

    def epoch_of_block(self, block: int, num_blocks: int) -> float:
        """First epoch in which a block (0 = bottom) trains; NEVER when it stays frozen."""
        from_top = num_blocks - 1 - block
        if from_top < self.from_start:
            return 0.0
        if self.every_epochs <= 0 or self.blocks_at_a_time <= 0:
            return NEVER
        return self.start_epoch + ((from_top - self.from_start) // self.blocks_at_a_time) * self.every_epochs

    def epoch_of_stem(self, num_blocks: int) -> float:
        """Patch projection and class token of the encoder train with the last block that joins."""
        return max((self.epoch_of_block(block, num_blocks) for block in range(num_blocks)), default=0.0)


@dataclass(frozen=True)
class Schedule:
    """Length and shape of a training run. `batch_size` is global: over all workers and micro-batches."""

    samples_per_epoch: int
    batch_size: int
    epochs: int
    learning_rate: float
    min_learning_rate: float = 0.0
    warmup_epochs: float = 0.0
    accumulate: int = 1
    max_steps: int = 0  # 0: no limit
    validate_every_epochs: float = 1.0

    @property
    def steps_per_epoch(self) -> int:
        return max(1, self.samples_per_epoch // self.batch_size)

    @property
    def num_steps(self) -> int:
        whole = self.epochs * self.steps_per_epoch
        return min(whole, self.max_steps) if self.max_steps else whole

    @property
    def num_samples(self) -> int:
        return self.num_steps * self.batch_size

    @property
    def checkpoint_interval(self) -> int:
        """Steps from one checkpoint to the next: an epoch, or several short ones.

        Over a few labelled chunks an epoch is a step or two, and a checkpoint takes ten times as long as these. Best
        weights wait for the next checkpoint to be pruned, so that few validations lie in between.
        """
        enough = math.ceil(LEAST_STEPS_KEPT / self.steps_per_epoch)
        return self.steps_per_epoch * max(1, min(enough, int(MOST_VALIDATIONS * self.validate_every_epochs)))

    def epoch_of_step(self, step: int) -> float:
        """Epochs finished before a step, fractional."""
        return step / self.steps_per_epoch

    def rate_at(self, samples_seen: int) -> float:
        """Linear warm-up, then cosine from the peak to the minimum.

        The curve spans the whole run, or what `max_steps` leaves of it; the first step
        already moves (half a batch in).
        """
        total = float(self.num_samples)
        warmup = min(self.warmup_epochs * self.steps_per_epoch * self.batch_size, 0.5 * total)
        middle = min(samples_seen + 0.5 * self.batch_size, total)
        if middle < warmup:
            return self.learning_rate * middle / warmup
        progress = (middle - warmup) / max(total - warmup, 1.0)
        cosine = 0.5 * (1.0 + math.cos(math.pi * min(progress, 1.0)))
        return self.min_learning_rate + (self.learning_rate - self.min_learning_rate) * cosine

    def is_validation_step(self, steps_done: int) -> bool:
        """Whether to validate now that `steps_done` steps are done: every n epochs, and at the end."""
        if steps_done >= self.num_steps:
            return True
        interval = max(1, round(self.validate_every_epochs * self.steps_per_epoch))
        return steps_done % interval == 0


def schedule_of(knobs: PretrainConfig | DetectorTrainConfig, num_chunks: int) -> Schedule:
    """The schedule of a config section over a training set of `num_chunks`.

    An epoch drops the incomplete last batch; a set smaller than one batch is repeated to fill it.
    """
    return Schedule(
        samples_per_epoch=num_chunks,
        batch_size=knobs.batch_size,
        epochs=knobs.epochs,
        learning_rate=knobs.learning_rate,
        min_learning_rate=knobs.min_learning_rate,
        warmup_epochs=knobs.warmup_epochs,
        accumulate=knobs.accumulate,
        max_steps=knobs.max_steps,
        validate_every_epochs=knobs.validate_every_epochs,
    )


def unfreezing_of(knobs: PretrainConfig | DetectorTrainConfig) -> Unfreezing:
    """Pretraining trains everything; detector training as its knobs say."""
    if isinstance(knobs, PretrainConfig):
        return Unfreezing()
    return Unfreezing(
        from_start=knobs.unfrozen_blocks,
        start_epoch=knobs.unfreeze_start_epoch,
        every_epochs=knobs.unfreeze_every_epochs,
        blocks_at_a_time=knobs.unfreeze_blocks,
    )


def samples_per_worker(batch_size: int, accumulate: int, num_workers: int, section: str) -> int:
    """Chunks one worker handles in one micro-batch at most: shares that cannot be even differ by one chunk and count
    by their size. Refuses a batch with fewer chunks than shares.
    """
    parts = accumulate * num_workers
    if batch_size < parts:
        raise ConfigError(
            f"{section}.batch_size={batch_size} cannot be split over cluster.num_workers={num_workers} "
            f"and {section}.accumulate={accumulate}: use at least {parts}, "
            f"e.g. --set {section}.batch_size={parts}"
        )
    return math.ceil(math.ceil(batch_size / num_workers) / accumulate)
