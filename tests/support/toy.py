"""A small objective, feed and validation for tests of the loop: real tensors, no
spectrograms, any number of workers.
"""

from __future__ import annotations

from pathlib import Path

import torch
from torch import nn

from mast_ray.boxes.batch import ChunkBatch, pad_boxes
from mast_ray.storage.storage import open_storage
from mast_ray.tables.reading.sample_order import share_of
from mast_ray.training.engine import Objective, OptimizerSettings
from mast_ray.training.engine_choice import make_engine
from mast_ray.training.files.checkpoints import Checkpoints
from mast_ray.training.files.metrics_log import MetricsLog, read_metrics
from mast_ray.training.files.model_files import BestWeights
from mast_ray.training.groups import Multipliers, parameter_groups
from mast_ray.training.loop import FeedNotes, FitOptions, MicroBatch, RunFiles, fit
from mast_ray.training.schedule import Schedule, Unfreezing, samples_per_worker
from mast_ray.training.worker import LocalWorker

SCHEDULE = Schedule(
    samples_per_epoch=32, batch_size=8, epochs=4, learning_rate=1e-2, min_learning_rate=1e-4, warmup_epochs=1
)
UNFREEZING = Unfreezing(from_start=1, start_epoch=1.0, every_epochs=1.0, blocks_at_a_time=1)


class ToyEncoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.patch = nn.Linear(8, 16)
        self.blocks = nn.ModuleList([nn.Linear(16, 16) for _ in range(3)])
        self.norm = nn.LayerNorm(16)

    def forward(self, values):
        values = self.patch(values)
        for block in self.blocks:
            values = values + torch.tanh(block(values))
        return self.norm(values)


class ToyObjective(Objective):
    """Predict the sum of eight numbers."""

    def __init__(self, seed: int = 0) -> None:
        super().__init__()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self.encoder, self.adapter, self.head = ToyEncoder(), nn.Linear(16, 16), nn.Linear(16, 1)

    def forward(self, batch):
        values = batch.logmel.flatten(1)
        guess = self.head(torch.relu(self.adapter(self.encoder(values))))
        error = (guess.float() - values.sum(1, keepdim=True)).square().mean()
        return {"loss": error, "squared_error": error.detach()}


class ToyFeed:
    """Step -> a global batch that depends on the step alone, dealt out in contiguous parts."""

    def __init__(self, schedule, rank=0, world_size=1, spoil=(), stop_before=None) -> None:
        self.schedule, self.rank, self.world_size, self.spoil = schedule, rank, world_size, set(spoil)
        self.stop_before = stop_before
        self.seen: list[str] = []

    def notes(self, steps_done):
        return FeedNotes()

    def resume(self, steps_done, seen):
        pass

    def micro_batches(self, first_step, num_steps, watch):
        share = share_of(self.schedule.batch_size, self.rank, self.world_size)
        for step in range(first_step, num_steps):
            if step == self.stop_before:
                raise KeyboardInterrupt
            values = global_values(step, self.schedule.batch_size)
            if step in self.spoil:
                values = values * torch.nan
            for part in range(self.schedule.accumulate):
                rows = torch.tensor(share)[list(share_of(len(share), part, self.schedule.accumulate))]
                ids = tuple(f"s{step}:{row}" for row in rows.tolist())
                self.seen.extend(ids)
                yield MicroBatch(batch_of(values[rows], ids), rows)


class ToyValidation:
    metric, better = "error", "lower"

    def measure(self, weights, worker):
        objective = ToyObjective()
        objective.load_state_dict(weights)
        with torch.no_grad():
            error = objective(batch_of(global_values(10**6, 64), ()))["loss"]
        return {"error": float(error)}


def global_values(step: int, count: int) -> torch.Tensor:
    return torch.randn(count, 1, 2, 4, generator=torch.Generator().manual_seed(step))


def batch_of(values: torch.Tensor, ids: tuple[str, ...]) -> ChunkBatch:
    return ChunkBatch(values, pad_boxes([torch.zeros(0, 4)] * len(values)), torch.ones(len(values)), ids)


def toy_groups(objective, unfreezing=UNFREEZING):
    return parameter_groups(
        objective, weight_decay=0.05, multipliers=Multipliers(encoder=0.5), unfreezing=unfreezing
    )


def toy_engine(
    name="torch", *, schedule=SCHEDULE, num_processes=1, precision="fp32", zero_stage=1, unfreezing=UNFREEZING,
    offload="none",
):  # fmt: skip
    objective = ToyObjective()
    return make_engine(
        name,
        objective,
        toy_groups(objective, unfreezing),
        OptimizerSettings(average_decay=0.9, precision=precision),
        device=torch.device("cpu"),
        num_processes=num_processes,
        samples_per_worker=samples_per_worker(schedule.batch_size, schedule.accumulate, num_processes, "toy"),
        accumulate=schedule.accumulate,
        zero_stage=zero_stage,
        offload=offload,
    )


def toy_files(folder, rank=0) -> RunFiles:
    storage = open_storage(folder) if isinstance(folder, str | Path) else folder
    checkpoints = storage.at("checkpoints")
    metrics = MetricsLog(storage, board="none") if rank == 0 else None
    return RunFiles(Checkpoints(checkpoints), BestWeights(checkpoints), metrics)


def toy_fit(folder, engine, feed, *, worker=None, schedule=SCHEDULE, options=None, identity=None):
    worker = worker or LocalWorker()
    options = options or FitOptions(checkpoint_every_steps=3, log_every_steps=1)
    files = toy_files(folder, worker.rank)
    return fit(worker, engine, feed, schedule, ToyValidation(), files, identity or {"seed": 0}, options)


def losses_of(folder) -> list[float]:
    return [row["loss"] for row in read_metrics(open_storage(folder)) if row["kind"] == "train"]


def weights_equal(first, second) -> bool:
    return first.keys() == second.keys() and all(torch.equal(first[name], second[name]) for name in first)
