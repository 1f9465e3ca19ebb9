"""Which recordings go into one unit of a detect run, and how many workers of which kind there are.

Units follow site and date, so that units and partitions cross as rarely as they can: the number of files is
at most units + site-days. Huge archives get larger units instead of more of them; a GPU gets larger ones
than a core, because it is through sooner.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from mast_ray.config.tree import AudioConfig, Config, DetectConfig
from mast_ray.recordings.clock_and_site.site_tables import SiteTable
from mast_ray.storage.spread import Resources, process_pool
from mast_ray.storage.units import Item, Unit, group_units
from mast_ray.tables.preparing.unit_work import metadata_of

BYTES_PER_HOUR = 3600 * 96_000  # 48 kHz, 16 bit, mono
MOST_UNITS = 20_000
MOST_UNITS_ON_CPUS = 2_000
UNITS_PER_ACTOR = 8
GPU_FACTOR = 8  # hours per unit on a GPU over those on a CPU: half a minute of work either way
THREADS_PER_WORKER = (
    4  # more decoding threads than that wait for Python's lock and make the detector wait for it
)
MOST_WORKERS_PER_GPU = 4
NAMES_AT_ONCE = 50_000  # a second of reading names
SLICES_WORTH_PROCESSES, MOST_NAME_READERS = 16, 16
COMPILE_FROM_HOURS = 50  # below, a minute of compiling does not pay


class Workers(NamedTuple):
    """Workers for detection."""

    device: Literal["cpu", "cuda"]
    num_actors: int
    cpus_per_actor: float
    gpus_per_actor: float = 0.0

    @property
    def threads(self) -> int:
        return max(1, int(self.cpus_per_actor))


def workers_of(config: Config, offered: Resources) -> Workers:
    """In one process: one worker on all cores, of which decoding takes a twentieth. On a cluster: actors that share
    a GPU and its share of the cores, or one per `cluster.cpus_per_worker` cores.

    A cluster that grows on demand shows few of its GPUs at first: `cluster.num_workers` asks for more. While it shows
    none, nobody knows how many cores a GPU will have: each is given `cluster.cpus_per_worker`.
    """
    num_cpus, num_gpus = offered.num_cpus, offered.num_gpus
    if offered.is_one_process:
        has_gpu = config.cluster.use_gpu != "no" and num_gpus >= 1
        return Workers("cuda" if has_gpu else "cpu", 1, max(1.0, num_cpus), 1.0 if has_gpu else 0.0)
    if config.cluster.use_gpu == "yes" or (config.cluster.use_gpu == "auto" and num_gpus >= 1):
        present = max(1, int(num_gpus))
        share = num_cpus / present if offered.cores_per_gpu is None else offered.cores_per_gpu
        cores = max(1, int(share if num_gpus else config.cluster.cpus_per_worker))
        per_gpu = config.detect.workers_per_gpu or workers_per_gpu(cores)
        return Workers(
            "cuda",
            max(present, config.cluster.num_workers) * per_gpu,
            max(1.0, float(cores // per_gpu)),
            1.0 / per_gpu,
        )
    per_actor = config.cluster.cpus_per_worker
    return Workers("cpu", max(1, int(num_cpus // per_actor), config.cluster.num_workers), per_actor)


def workers_per_gpu(cores: int) -> int:
    """Processes for one GPU with so many cores."""
    return max(1, min(MOST_WORKERS_PER_GPU, cores // THREADS_PER_WORKER))


def order_by_site_and_date(items: Sequence[Item], audio: AudioConfig, sites: SiteTable | None) -> list[Item]:
    """Recordings of one site and day side by side, as far as names and the user's table tell; in the order of their
    paths within. Names of millions are read by all cores of this machine.
    """
    by_path = sorted(items, key=lambda item: item.path)
    slices = [
        [item.path for item in by_path[first : first + NAMES_AT_ONCE]]
        for first in range(0, len(by_path), NAMES_AT_ONCE)
    ]
    number_of: dict[SiteDay, int] = {}
    numbers = []
    is_long = sites is None and len(slices) >= SLICES_WORTH_PROCESSES  # a table would travel with every slice
    for days, own in _days_of_slices(slices, partial(_days_of, audio=audio, sites=sites), is_long):
        known = [number_of.setdefault(day, len(number_of)) for day in days]
        numbers.append(np.array(known, np.int64)[own])
    if not numbers:
        return []
    rank = np.empty(len(number_of), np.int64)
    rank[[number_of[day] for day in sorted(number_of)]] = np.arange(len(number_of))
    return [by_path[place] for place in np.argsort(rank[np.concatenate(numbers)], kind="stable").tolist()]


SiteDay = tuple[str, str]


def _days_of(
    paths: Sequence[str], audio: AudioConfig, sites: SiteTable | None
) -> tuple[list[SiteDay], NDArray[np.int64]]:
    """(different sites and days, number of that of every path)."""
    number_of: dict[SiteDay, int] = {}
    numbers = []
    for path in paths:
        place = metadata_of(path, None, audio, sites)
        clock = place.clock
        day = f"{clock.year:04d}{clock.month:02d}{clock.day:02d}" if clock else ""
        numbers.append(number_of.setdefault((place.site, day), len(number_of)))
    return list(number_of), np.array(numbers, np.int64)


def _days_of_slices(
    slices: Sequence[Sequence[str]],
    days_of: Callable[[Sequence[str]], tuple[list[SiteDay], NDArray[np.int64]]],
    is_long: bool,
) -> Iterator[tuple[list[SiteDay], NDArray[np.int64]]]:
    """In the order of the slices; in several processes where starting them is little beside the work."""
    num_processes = min(os.cpu_count() or 1, MOST_NAME_READERS)
    if not is_long or num_processes == 1:
        yield from map(days_of, slices)
        return
    with process_pool(num_processes) as processes:
        yield from processes.map(days_of, slices)


def plan_detect_units(items: Sequence[Item], knobs: DetectConfig, workers: Workers) -> list[Unit]:
    """Units of ordered recordings: within hours and recordings, and with at least one
    recording for every decoding thread.
    """
    num_items, num_bytes = len(items), sum(item.num_bytes for item in items)
    factor = GPU_FACTOR if workers.device == "cuda" else 1
    most_bytes = int(
        max(
            knobs.hours_per_unit * factor * BYTES_PER_HOUR,
            num_bytes / MOST_UNITS,
            decode_threads_of(knobs, workers) * num_bytes / max(1, num_items),
        )
    )
    # all have work, however small the archive
    share = -(-num_items // (UNITS_PER_ACTOR * workers.num_actors))
    if workers.device == "cuda":
        most_items = max(4, min(knobs.recordings_per_unit * 2 * factor, share), num_items // MOST_UNITS)
    else:
        most_items = max(4, min(knobs.recordings_per_unit, share), num_items // MOST_UNITS_ON_CPUS)
    return group_units(items, most_items, most_bytes)


def decode_threads_of(knobs: DetectConfig, workers: Workers) -> int:
    """Decoding threads of one worker; 0 in the config: its cores on a GPU, two on a CPU,
    where the detector needs them more.
    """
    return knobs.decode_threads or (workers.threads if workers.device == "cuda" else 2)


def batch_size(knobs: DetectConfig, workers: Workers) -> int:
    """Windows per batch; 0 in the config: 256 on a GPU, 4 on a CPU, whose cache more would leave (16 take a quarter
    longer each).
    """
    return knobs.batch_size or (256 if workers.device == "cuda" else 4)
