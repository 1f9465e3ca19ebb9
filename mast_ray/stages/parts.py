"""Work in parts that a driver joins: units whose results are kept until they are joined, here or spread over Ray.

The folder of the parts lies inside the folder of a stage, under a name made of everything they depend on: interrupted,
the same command takes up what is there, and parts of other settings are not mixed in.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Sequence

from mast_ray.config.errors import TemporaryError
from mast_ray.stages.runner import HERE, Runner
from mast_ray.storage.spread import Resources, Spread
from mast_ray.storage.storage import Storage
from mast_ray.storage.unit_runner import Work
from mast_ray.storage.units import (
    Commit,
    Unit,
    iter_commits,
    pending_units,
    read_commit,
    take_back,
    take_back_empty,
)


def run_parts(
    runner: Runner,
    stage: Storage,
    units: Sequence[Unit],
    make_work: Callable[[Resources], Callable[[], Work]],
    spread_of: Callable[[Resources, int], Spread],
) -> None:
    """Every unit that is left; a single one in this process, where starting workers would take longer than the work."""
    take_back_empty(stage)
    pending = pending_units(units, iter_commits(stage))
    where = runner if len(pending) > 1 else HERE
    with where.session():
        offered = where.resources()
        spread = spread_of(offered, len(pending))
        for _ in where.run_units(stage, pending, secrets.token_hex(4), make_work(offered), spread):
            pass


def part_of(stage: Storage, unit: Unit) -> Commit:
    """The result of a unit, all of it."""
    commit = read_commit(stage, unit.unit_id)
    lost = [] if commit is None else [one for one in commit.outcomes if one.status == "rejected"]
    if commit is None or lost:
        take_back(stage, unit.unit_id)
        detail = lost[0].detail if lost else "its result is gone"
        raise TemporaryError(
            f"{unit.items[0].path} and its neighbours could not be worked on: {detail}\n"
            "look for exhausted memory or disk in the logs, then run the same command again"
        )
    return commit
