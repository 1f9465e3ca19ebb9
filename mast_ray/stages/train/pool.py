"""The chunks of a training as Ray Data deals them, and whether it should."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np

from mast_ray.config.errors import ConfigError
from mast_ray.config.loading import plain_yaml
from mast_ray.stages.train.export import run_files
from mast_ray.stages.train.work import DetectorTask, PretrainTask
from mast_ray.storage.spread import Resources
from mast_ray.storage.storage import Storage, open_storage
from mast_ray.tables.prepared import Prepared, open_prepared
from mast_ray.tables.reading.bundles import Bundle, PoolPlan, num_bundles
from mast_ray.tables.reading.reader import ChunkReader
from mast_ray.training.data.dealt_feed import bits_of
from mast_ray.training.files.checkpoints import TrainingState
from mast_ray.training.schedule import schedule_of
from mast_ray.training.worker import LocalWorker

CONFIG = "config.yaml"  # of a model folder: what the run was asked for
FeedName = Literal["reader", "ray_data"]
Task = PretrainTask | DetectorTask


class FeedChoice(NamedTuple):
    name: FeedName
    reason: str


def choose_feed(
    task: Task, prepared: Prepared, cluster: Resources | None, began_with: str = ""
) -> FeedChoice:
    """`auto`: Ray Data deals the pool to several GPU workers, or out of a bucket (on one H200 it keeps the reader's pace,
    0.99 of the bare step). Workers read for themselves what is small, and where samples must keep their order. A run
    that began in this folder goes on as it began. `cluster`: None where there is no Ray.
    """
    knobs = task.config.cluster
    if knobs.feed == "ray_data" and cluster is None:
        raise ConfigError("cluster.feed=ray_data needs Ray: use --runner ray, or --set cluster.feed=reader")
    if (knobs.feed, began_with) == ("auto", "ray_data") and cluster is None:
        raise ConfigError(
            "this run began with cluster.feed=ray_data, which needs Ray: use --runner ray,\n"
            "or another --out, where every worker reads for itself"
        )
    if knobs.feed == "ray_data" and not task.can_be_dealt:
        return FeedChoice("reader", "ray_data is left aside: batches of two kinds are mixed by the reader")
    if knobs.feed != "auto":
        return FeedChoice(knobs.feed, "as configured")
    if began_with:
        return FeedChoice("ray_data" if began_with == "ray_data" else "reader", "auto: as this run began")
    if cluster is None or not cluster.wants_gpus(knobs.use_gpu):
        return FeedChoice("reader", "auto: without a GPU every core is better spent on training")
    if not trains_on_pool(task):
        return FeedChoice("reader", "auto: what experts labelled is small, and its order the same to the bit")
    if 0 < knobs.min_workers < knobs.num_workers:
        return FeedChoice("reader", "auto: workers may come and go, and samples keep their order")
    if not cluster.has_core_beside(knobs.num_workers, knobs.cpus_per_worker):
        return FeedChoice("reader", "auto: the workers hold every core, none is left to read the pool")
    if len({member.storage_type for member in prepared.members}) > 1:
        return FeedChoice(
            "reader", "auto: these archives are stored in two kinds, which are not dealt together"
        )
    if any(place.url.startswith("s3://") for place in prepared.places):
        return FeedChoice("ray_data", "auto: the pool is fetched from its bucket once for all workers")
    if knobs.num_workers > 1:
        return FeedChoice("ray_data", f"auto: the pool is read once for {knobs.num_workers} GPU workers")
    return FeedChoice("reader", "auto: one worker reads for itself, in an order that is the same to the bit")


def trains_on_pool(task: Task) -> bool:
    """Whether its chunks are the pool's: many, where experts' are few."""
    return isinstance(task, PretrainTask) or task.labels.name in ("pseudo", "both")


def began_with(stage: Storage) -> str:
    """The feed in a folder's record of its run; "" where none began."""
    if stage.stat(CONFIG) is None:
        return ""
    record = plain_yaml(stage.read_bytes(CONFIG).decode(errors="replace"), f"{stage.url}/{CONFIG}")
    cluster = record.get("cluster") if isinstance(record, dict) else None
    return str(cluster.get("feed", "auto")) if isinstance(cluster, dict) else "auto"


@dataclass(frozen=True)
class TaskPool:
    """What a task trains on, for the cluster to read and to deal out."""

    task: Task

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
