"""The pseudo-label operator spread over the files of stored detections: the driver plans, and adds up what is said of
the parts. It holds neither detections nor chunks.

Up to three passes of work units (operator_shards.py), here or on Ray: scores by group, thresholds by site (a group-by:
the scores of a site come from all parts), labels. Interrupted, the same command goes on with the units that are left.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from mast_ray.config.errors import DataError
from mast_ray.self_training.governor import figures_of_counts
from mast_ray.self_training.policies import Found, is_by_group, with_last_resorts
from mast_ray.stages.parts import part_of, run_parts
from mast_ray.stages.runner import Runner
from mast_ray.stages.self_train.operator_shards import (
    LABELS,
    POOL_ITEM,
    SCORES,
    MakeWork,
    ThresholdWork,
)
from mast_ray.stages.self_train.operator_task import OperatorTask
from mast_ray.storage.spread import Resources, Spread
from mast_ray.storage.stage_folders import text_hash
from mast_ray.storage.storage import Storage, open_storage
from mast_ray.storage.units import (
    Commit,
    Item,
    Unit,
    group_units,
    iter_commits,
    unit_of,
)
from mast_ray.tables.prepared import Prepared
from mast_ray.tables.reading.chunk_sets import pair_keys

log = logging.getLogger("mast.pseudo")
THRESHOLDS = "thresholds"
# A worker holds one file of detections at a time; a unit is what a death costs.
ROWS_PER_UNIT, SCORES_PER_UNIT, MOST_ITEMS = 2_000_000, 4_000_000, 64


@dataclass
class SpreadLabels:
    """What the parts hold, and what is known of all of them together."""

    task: OperatorTask
    stage: Storage
    thresholds: dict[str, Found]
    parts: list[Commit] = field(default_factory=list)  # in the order of the pool's chunks
    totals: Counter[str] = field(default_factory=Counter)
    groups: dict[str, tuple[str, int, int]] = field(default_factory=dict)  # name -> site, chunks, boxes

    @property
    def num_chosen(self) -> int:
        """Chunks that may be trained on."""
        return sum(part.files[1].num_rows for part in self.parts)

    def add(self, commit: Commit) -> None:
        """A part; its files are its labels and its chunks."""
        for outcome in commit.outcomes:
            record: dict[str, Any] = outcome.record or {}
            for name, site, num_chunks, num_boxes in record.pop("groups"):
                _, chunks, boxes = self.groups.get(name, (site, 0, 0))
                self.groups[name] = (site, chunks + num_chunks, boxes + num_boxes)
            self.totals.update(record)
        self.parts.append(Commit(commit.unit_id, commit.token, commit.files, (), {}))

    def labels(self) -> Iterator[pa.Table]:
        """The pseudo-labels, part by part."""
        for part in self.parts:
            yield from self._read(part.files[0].key)

    def chunks(self, places: NDArray[np.int64] | None) -> Iterator[pa.Table]:
        """The chunks at some of the places 0 .. num_chosen - 1, or all, part by part."""
        first = 0
        for part in self.parts:
            for table in self._read(part.files[1].key):
                if places is None:
                    yield table
                    continue
                last = first + len(table)
                yield table.take(pa.array(places[slice(*np.searchsorted(places, (first, last)))] - first))
                first = last

    def _read(self, key: str) -> Iterator[pa.Table]:
        """A file of a part: at once, or of a large one as many row groups as one should hold."""
        filesystem, root = self.stage.arrow()
        with filesystem.open_input_file(f"{root}/{key}") as source:
            file = pq.ParquetFile(source)
            sizes = [file.metadata.row_group(number).num_rows for number in range(file.num_row_groups)]
            for some in within(sizes, ROWS_PER_UNIT):
                yield file.read_row_groups(some)

    def figures(self) -> dict[str, Any]:
        """What the pseudo-labels look like, without truth."""
        num_chunks, counts = self.totals["chunks"], self.totals
        by_site: dict[str, tuple[int, int]] = {}
        for site, chunks, boxes in self.groups.values():
            before = by_site.get(site, (0, 0))
            by_site[site] = (before[0] + chunks, before[1] + boxes)
        found = {name: self._threshold(name) for name in sorted(self.groups)}
        limits = [(found[name].threshold or 0.0, self.groups[name][1]) for name in found]
        low = self.task.first_ignored
        whole = figures_of_counts(counts["boxes"], counts["empty"], counts["score_sum"], num_chunks)
        return {
            "figures": asdict(whole),
            "ignored_per_chunk": counts["ignored"] / max(1, num_chunks),
            "boxes_per_chunk_by_site": {
                site: boxes / chunks for site, (chunks, boxes) in sorted(by_site.items())
            },
            "thresholds": [{"group": name, **one._asdict()} for name, one in found.items()],
            "threshold": sum(limit * chunks for limit, chunks in limits) / max(1, num_chunks),
            "ignore_above": sum(min(low, limit) * chunks for limit, chunks in limits) / max(1, num_chunks),
        }

    def _threshold(self, name: str) -> Found:
        return self.thresholds.get(name, Found(self.task.threshold, self.task.knobs.policy))


def within(sizes: Sequence[int], most: int) -> list[list[int]]:
    """Places of sizes, neighbours together as long as their sum is at most `most`; one that is larger stays alone. At
    least one list, so that a file without rows is one table.
    """
    groups: list[list[int]] = [[]]
    total = 0
    for place, size in enumerate(sizes):
        if groups[-1] and total + size > most:
            groups.append([])
            total = 0
        groups[-1].append(place)
        total += size
    return groups


def spread_operator(task: OperatorTask, prepared: Prepared, runner: Runner) -> SpreadLabels:
    """Pseudo-labels of all detections of a finished stage, in parts."""
    units = shard_units(task, prepared)
    found: dict[str, Found] = {}
    if is_by_group(task.knobs.policy):
        _work_off(task, units, SCORES, MakeWork(task, "scores"), prepared, runner)
        found = _thresholds(task, prepared, runner)
    limits = {name: one.threshold for name, one in found.items() if one.threshold is not None}
    made = SpreadLabels(task, task.stage(LABELS), found)
    _work_off(task, units, LABELS, MakeWork(task, "labels", thresholds=limits), prepared, runner)
    for unit in units:
        made.add(part_of(made.stage, unit))
    return made


def shard_units(task: OperatorTask, prepared: Prepared) -> list[Unit]:
    """Units of files of detections, in the order of the pool's chunks. An item is a file: its size is its rows."""
    items: list[Item] = []
    first: list[str] = []
    for commit in iter_commits(open_storage(task.detections, task.config.storage)):
        files = commit.files
        version = " ".join(file.sha256 for file in files)
        key, num_rows = (files[0].key if files else ""), sum(file.num_rows for file in files)
        items.append(Item(commit.unit_id, key, num_rows, version))
        first.append(commit.outcomes[0].item_id)
    if not items:
        raise DataError(
            f"{task.detections} holds no detections: give a folder written by `mast pseudo-label`"
        )
    names, begins, _ = zip(*(name.rsplit("-", 2) for name in first), strict=True)
    order = np.argsort(
        pair_keys(prepared.rows_of(pa.array(names)), np.array(begins, np.int64)), kind="stable"
    )
    return group_units([items[place] for place in order.tolist()], MOST_ITEMS, ROWS_PER_UNIT)


def _thresholds(task: OperatorTask, prepared: Prepared, runner: Runner) -> dict[str, Found]:
    """Group -> threshold, of a policy by group."""
    sites = ThresholdWork.of(task).sites()
    items = [Item(text_hash(site), site, count, "") for site, count in sorted(sites.items())]
    units = group_units(items, MOST_ITEMS, SCORES_PER_UNIT)
    make = MakeWork(task, "thresholds")
    _work_off(task, units, THRESHOLDS, make, prepared, runner)
    found = {name: one for unit in units for name, one in _found(task, unit).items()}

    def at_pool() -> float | None:
        unit = unit_of([Item(POOL_ITEM, "", sum(sites.values()), "")])
        _work_off(task, [unit], THRESHOLDS, make, prepared, runner)
        return _found(task, unit)[POOL_ITEM].threshold

    return dict(zip(found, with_last_resorts(list(found.values()), at_pool, task.threshold), strict=True))


def _found(task: OperatorTask, unit: Unit) -> dict[str, Found]:
    outcomes = part_of(task.stage(THRESHOLDS), unit).outcomes
    records = [(outcome.record or {})["thresholds"] for outcome in outcomes]
    return {name: Found(*one) for record in records for name, one in record.items()}


def _work_off(
    task: OperatorTask, units: Sequence[Unit], folder: str, make: MakeWork, prepared: Prepared, runner: Runner
) -> None:
    def make_work(offered: Resources) -> MakeWork:
        return replace(make, archive=prepared) if offered.is_one_process else make

    def spread(offered: Resources, num_units: int) -> Spread:
        return Spread(max(1, min(num_units, int(offered.num_cpus))))

    run_parts(runner, task.stage(folder), units, make_work, spread)
    log.info("pseudo-labels: %s of %d parts of the detections", folder, len(units))
