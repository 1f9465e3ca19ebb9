"""The chunks of a training as Ray Data deals them, and whether it should."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np

from mast_ray.config.errors import ConfigError
from mast_ray.stages.train.export import run_files
from mast_ray.stages.train.work import DetectorTask, PretrainTask
from mast_ray.storage.storage import Storage, open_storage
from mast_ray.tables.prepared import open_prepared
from mast_ray.tables.reading.bundles import Bundle, PoolPlan, num_bundles
from mast_ray.tables.reading.reader import ChunkReader
from mast_ray.training.data.dealt_feed import bits_of
from mast_ray.training.files.checkpoints import TrainingState
from mast_ray.training.schedule import schedule_of
from mast_ray.training.worker import LocalWorker

FeedName = Literal["reader", "ray_data"]


class FeedChoice(NamedTuple):
    name: FeedName
    reason: str


def choose_feed(task: PretrainTask | DetectorTask, runner: str) -> FeedChoice:
    """`auto` is the reader: its threads keep one H200 at 0.99 of the bare step, and its order is exact."""
    requested = task.config.cluster.feed
    if requested == "ray_data" and runner != "ray":
        raise ConfigError("cluster.feed=ray_data needs Ray: use --runner ray, or --set cluster.feed=reader")
    if requested == "ray_data" and not task.can_be_dealt:
        return FeedChoice("reader", "ray_data is left aside: batches of two kinds are mixed by the reader")
    if requested != "auto":
        return FeedChoice(requested, "as configured")
    return FeedChoice("reader", "auto: workers read for themselves, in an order that is the same to the bit")


@dataclass(frozen=True)
class TaskPool:
    """What a task trains on, for the cluster to read and to deal out."""

    task: PretrainTask | DetectorTask

    def places(self) -> tuple[Storage, ...]:
        prepared = open_prepared(self.task.prepared, self.task.config.storage)
        if len({member.storage_type for member in prepared.members}) > 1:
            raise ConfigError(
                "cluster.feed=ray_data deals values of one kind, and these archives are stored in uint8 and float16:\n"
                "use --set cluster.feed=reader"
            )
        return prepared.places

    def plan(self) -> PoolPlan:
        reader = self._reader()
        return reader.bundles(self._count(len(reader)))

    def rest(self) -> list[Bundle]:
        """Of what an interrupted epoch has not had, as the newest checkpoint says."""
        state, reader = self._newest(), self._reader()
        if state is None or not state.seen:
            return []
        is_left = ~bits_of(state.seen, len(reader))
        return reader.bundles(self._count(int(is_left.sum())), is_left).bundles

    def first_seed(self) -> int:
        """Of the order of bundles from here on: by the run's seed and the epochs that are done."""
        state = self._newest()
        steps = 0 if state is None else state.position.steps_done
        epoch = steps // schedule_of(self.task.knobs, len(self._reader())).steps_per_epoch
        return int(np.random.default_rng([self.task.config.seed, epoch, 8]).integers(2**31))

    def _count(self, num_chunks: int) -> int:
        return num_bundles(max(1, num_chunks), self.task.config.cluster.num_workers)

    def _reader(self) -> ChunkReader:
        return self.task.dealt_reader(LocalWorker())

    def _newest(self) -> TrainingState | None:
        checkpoints = run_files(open_storage(self.task.out, self.task.config.storage), 1).checkpoints
        name = checkpoints.newest_good()
        return None if name is None else checkpoints.read(name)
