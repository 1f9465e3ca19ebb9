"""Bundles of a prepared archive, read by Ray Data over the cluster and dealt to training workers by streaming_split.

One task reads one bundle into one block of the object store, where a worker on that machine looks at it without a copy.
A set that fits is read once and kept across epochs; a larger one is read again every epoch. Bundles have the same
number of rows, so that Ray, which deals by rows, deals them in turn.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple, Protocol

import numpy as np
import pyarrow as pa
import ray
import ray.data
import ray.train

from mast_ray.config.errors import ConfigError
from mast_ray.config.tree import ClusterConfig
from mast_ray.on_ray.session import quiet_ray_data
from mast_ray.on_ray.units import worker_error
from mast_ray.storage.spread import Resources
from mast_ray.storage.storage import Storage
from mast_ray.tables.reading.blocks import BlockReader
from mast_ray.tables.reading.bundles import (
    Bundle,
    Deal,
    DealtRows,
    PoolPlan,
    dealt_rows,
    most_repeated,
    read_bundle,
)

log = logging.getLogger("mast.training")

WHOLE, REST = "whole", "rest"
_READERS: dict[
    str, BlockReader
] = {}  # of this process, which reads many bundles: they keep the footers of files
STORE_SHARE = 0.6  # of the object store: what is in flight needs the rest


class Pool(Protocol):
    """What is to be dealt. It travels."""

    def places(self) -> tuple[Storage, ...]:
        """Where the frames lie: of one archive, or of several that are one."""
        ...

    def plan(self) -> PoolPlan: ...

    def rest(self) -> list[Bundle]:
        """Of what an interrupted epoch has not had, as the newest checkpoint says; none: no epoch was interrupted."""
        ...

    def first_seed(self) -> int:
        """Of the order of bundles from here on: by the run's seed and the epochs that are done."""
        ...


class Datasets(NamedTuple):
    """For the trainer, which makes them anew whenever its workers start."""

    made: dict[str, Callable[[], ray.data.Dataset]]
    config: ray.train.DataConfig


def datasets_of(pool: Pool, cluster: ClusterConfig) -> Datasets:
    """Say what is dealt and where it will lie, and read it if it fits."""
    quiet_ray_data()
    found = ray.cluster_resources()
    refuse_no_core(found.get("CPU", 0.0), cluster)
    plan, places = pool.plan(), pool.places()
    fits, text = fit_text(plan, found.get("object_store_memory", 0.0), cluster.num_workers)
    log.info("%s", text)
    kept = None
    if fits:
        try:
            kept = dataset_of(plan.bundles, places).materialize()
        except (ray.exceptions.RayError, RuntimeError) as error:
            raise worker_error(error) from error
    whole = partial(_whole, pool, None if kept is not None else plan.bundles, kept)
    return Datasets({WHOLE: whole, REST: partial(_rest, pool)}, EvenDeal())


def refuse_no_core(num_cpus: float, cluster: ClusterConfig) -> None:
    """Bundles are read by tasks, which wait for ever where the training workers hold every core."""
    if Resources(num_cpus, 0.0).has_core_beside(cluster.num_workers, cluster.cpus_per_worker):
        return
    most = max(0.1, (num_cpus - 1.0) / cluster.num_workers)
    raise ConfigError(
        f"cluster.feed=ray_data needs a core besides the {cluster.num_workers} x {cluster.cpus_per_worker:g} of the "
        f"training workers, and the cluster has {num_cpus:g}:\n"
        f"use --set cluster.cpus_per_worker={most:.2g}, or --set cluster.feed=reader"
    )


def fit_text(plan: PoolPlan, store_bytes: float, num_workers: int) -> tuple[bool, str]:
    """Whether a set is kept in the object store, and what to say about it."""
    fits = plan.num_bytes <= STORE_SHARE * store_bytes
    how = (
        "kept there across epochs"
        if fits
        else f"more than {STORE_SHARE:.0%} of it, so read again from the archive every epoch"
    )
    return fits, (
        f"feed ray_data: {plan.num_chunks:,} chunks in {len(plan.bundles):,} bundles, {plan.num_bytes / 1e9:.3g} GB; "
        f"the object store has {store_bytes / 1e9:.3g} GB: {how}\n"
        f"a worker sees at most {most_repeated(plan.num_chunks, num_workers, num_workers):,} chunks of an epoch twice"
    )


def dataset_of(
    bundles: Sequence[Bundle], places: tuple[Storage, ...], order: ray.data.RandomSeedConfig | None = None
) -> ray.data.Dataset:
    """One block per bundle, read when asked for."""
    rows = [{"bundle": bundle.to_json()} for bundle in bundles]
    dataset = ray.data.from_items(rows, override_num_blocks=len(rows))
    if order is not None:
        dataset = dataset.randomize_block_order(seed=order)
    return dataset.map_batches(_read, fn_kwargs={"places": places}, batch_size=1, num_cpus=1)


def _read(batch: dict[str, np.ndarray], places: tuple[Storage, ...]) -> pa.Table:
    (bundle,) = batch["bundle"]
    name = "\n".join(place.url for place in places)
    reader = _READERS.setdefault(name, BlockReader(places))
    return read_bundle(Bundle.from_json(str(bundle)), reader)


def _whole(pool: Pool, bundles: list[Bundle] | None, kept: ray.data.Dataset | None) -> ray.data.Dataset:
    """The whole set, in another order each time it is gone through."""
    order = ray.data.RandomSeedConfig(seed=pool.first_seed(), reseed_after_execution=True)
    if kept is not None:
        return kept.randomize_block_order(seed=order)
    assert bundles is not None
    return dataset_of(bundles, pool.places(), order)


def _rest(pool: Pool) -> ray.data.Dataset:
    bundles = pool.rest()
    return dataset_of(bundles, pool.places()) if bundles else ray.data.range(1)


class EvenDeal(ray.train.DataConfig):
    """Whole bundles in turn. Train's own way cuts blocks to make shares equal to the row, and a chunk with them."""

    def configure(
        self,
        datasets: dict[str, ray.data.Dataset],
        world_size: int,
        worker_handles: list[Any] | None,
        worker_node_ids: list[Any] | None,
        **kwargs: Any,
    ) -> list[dict[str, ray.data.DataIterator]]:
        shares: list[dict[str, ray.data.DataIterator]] = [{} for _ in range(world_size)]
        hints = worker_node_ids if len(set(worker_node_ids or ())) > 1 else None
        for name, dataset in datasets.items():
            dataset.context.execution_options = ray.data.ExecutionOptions()
            for share, shard in zip(
                shares, dataset.streaming_split(world_size, equal=False, locality_hints=hints), strict=True
            ):
                share[name] = shard
        return shares


class Shard:
    """One worker's share of a dataset, as often as it is gone through."""

    def __init__(self, name: str) -> None:
        self._shard = ray.train.get_dataset_shard(name)

    def __iter__(self) -> Iterator[DealtRows]:
        try:
            for table in self._shard.iter_batches(
                batch_size=None, batch_format="pyarrow", prefetch_batches=2
            ):
                yield dealt_rows(table)
        except (ray.exceptions.RayError, RuntimeError) as error:
            raise worker_error(error) from error


def deal_of_worker() -> Deal:
    """Inside a training worker; collective."""
    return Deal(Shard(WHOLE), Shard(REST))
