"""Exactly-once work on many recordings: units, and commits that one attempt alone can win.

    plan      items (recordings) are grouped into units; the same archive gives the same units
    attempts/ the ledger (ledger.py), put before any work, so that a death leaves a trace
    data      an attempt writes files under names of its own
    commit/   <unit>.json, put only if absent: names the winner's files (sha256, rows) and every item's outcome

Readers look at commit/ only; losers delete their files. Every item ends as done or
rejected, and their sum is checked.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, NamedTuple

from mast_ray.config.errors import DataError, TemporaryError
from mast_ray.storage.storage import Storage, map_keys

READ_AT_ONCE = 64  # commits


class Item(NamedTuple):
    """One recording as listed: `version` tells whether it changed since."""

    item_id: str
    path: str
    num_bytes: int
    version: str


class Outcome(NamedTuple):
    """What became of an item; `record` holds what the stage wants to keep (JSON values)."""

    item_id: str
    status: Literal["done", "rejected"]
    reason: str = ""
    detail: str = ""
    record: dict[str, Any] | None = None
    is_final: bool = True  # False: rejected by a disk, a mount or a network; the next run tries again


@dataclass(frozen=True)
class Unit:
    """A group of items that is committed together."""

    unit_id: str
    items: tuple[Item, ...]

    @property
    def num_bytes(self) -> int:
        return sum(item.num_bytes for item in self.items)

    @property
    def stem(self) -> str:
        """Names the unit's files: equal for a copy of the archive, whatever its times or etags."""
        return hashlib.sha1("\n".join(item.item_id for item in self.items).encode()).hexdigest()[:12]


@dataclass(frozen=True)
class DataFile:
    """A file an attempt wrote: key below the stage folder, rows, content hash, size."""

    key: str
    num_rows: int
    sha256: str
    num_bytes: int = 0  # 0: written before sizes were kept


@dataclass(frozen=True)
class Commit:
    """The one accepted result of a unit."""

    unit_id: str
    token: str  # of the attempt that won
    files: tuple[DataFile, ...]
    outcomes: tuple[Outcome, ...]
    versions: dict[str, str]  # item_id -> version worked on
    seconds: float = 0.0
    notes: dict[str, float] = field(default_factory=dict)


def item_id_of(path: str, num_bytes: int) -> str:
    """16 hex digits that a copy of the same file at the same relative path shares."""
    return hashlib.sha1(f"{path}\0{num_bytes}".encode()).hexdigest()[:16]


def archive_hash(items: Sequence[Item]) -> str:
    """Twelve hex digits naming the recordings, their sizes and versions; ten
    million names are never one text.
    """
    digest = hashlib.sha256()
    for item in items:
        digest.update(f"{item.path}\0{item.num_bytes}\0{item.version}\n".encode("utf-8", "surrogatepass"))
    return digest.hexdigest()[:12]


def items_per_unit(num_items: int, most: int) -> int:
    """Small archives in about 256 units (short waits, little to redo), huge ones
    in at most 2,000 (few files).
    """
    return max(min(most, max(4, -(-num_items // 256))), -(-num_items // 2000))


def plan_units(items: Iterable[Item], most_items: int, most_bytes: int) -> list[Unit]:
    """Group items in the order of their paths; a unit's id depends on its items alone."""
    ordered = sorted(items, key=lambda item: item.path)
    return group_units(ordered, items_per_unit(len(ordered), most_items), most_bytes)


def group_units(ordered: Iterable[Item], most_items: int, most_bytes: int) -> list[Unit]:
    """Units of consecutive items in the order given, each within both limits or a single item."""
    units: list[Unit] = []
    group: list[Item] = []
    num_bytes = 0
    for item in ordered:
        if group and (len(group) >= most_items or num_bytes + item.num_bytes > most_bytes):
            units.append(unit_of(group))
            group, num_bytes = [], 0
        group.append(item)
        num_bytes += item.num_bytes
    return units + ([unit_of(group)] if group else [])


def unit_of(items: Sequence[Item]) -> Unit:
    """A unit of just these items; its id depends on them alone."""
    text = "\n".join(f"{item.item_id} {item.version}" for item in items)
    return Unit(hashlib.sha1(text.encode()).hexdigest()[:16], tuple(items))


def pending_units(units: Sequence[Unit], commits: Iterable[Commit]) -> list[Unit]:
    """Units with work left. A unit that is partly covered (the archive grew)
    keeps only its uncovered items.
    """
    waiting = {item.item_id: item.version for unit in units for item in unit.items}
    for commit in commits:  # they may stream by: only what is left is kept
        for item_id, version in commit.versions.items():
            if waiting.get(item_id) == version:
                del waiting[item_id]
    pending = []
    for unit in units:
        left = [item for item in unit.items if item.item_id in waiting]
        if len(left) == len(unit.items):
            pending.append(unit)
        elif left:
            pending.append(unit_of(left))
    return pending


def read_commits(stage: Storage) -> list[Commit]:
    """Every accepted result, in the order of unit ids."""
    return list(iter_commits(stage))


def iter_commits(stage: Storage) -> Iterator[Commit]:
    """The same, few at a time: a driver of ten million recordings cannot hold them all."""
    keys = [entry.key for entry in stage.list("commit") if entry.key.endswith(".json")]
    for first in range(0, len(keys), READ_AT_ONCE):
        some = keys[first : first + READ_AT_ONCE]
        for key, data in zip(some, map_keys(stage.read_bytes, some), strict=True):
            try:
                yield commit_from_json(data)
            except (ValueError, TypeError, KeyError, AttributeError) as error:
                raise DataError(
                    f"{stage.url}/{key} is damaged:\n"
                    "run the command that wrote this folder again: it finds what is damaged and does just that again"
                ) from error


def read_commit(stage: Storage, unit_id: str) -> Commit | None:
    """None where there is none, or one is just being put on a disk without hard links."""
    try:
        data = stage.read_bytes(f"commit/{unit_id}.json")
    except FileNotFoundError:
        return None
    return commit_from_json(data) if data else None


def take_back_empty(stage: Storage) -> None:
    """Units whose process was killed while it put their commit on a disk without hard links. To be called by the holder
    of the lease.
    """
    for entry in list(stage.list("commit")):
        if not entry.num_bytes:
            take_back(stage, entry.key.removeprefix("commit/").removesuffix(".json"))


def forget_passing(stage: Storage) -> int:
    """Take outcomes that are not final out of their commits, so that this run tries those items again; returns
    how many. Rejected items have no rows in any file. To be called by the holder of the lease.
    """
    num_forgotten = 0
    for commit in iter_commits(stage):
        kept = tuple(outcome for outcome in commit.outcomes if outcome.is_final)
        if len(kept) == len(commit.outcomes):
            continue
        num_forgotten += len(commit.outcomes) - len(kept)
        versions = {outcome.item_id: commit.versions[outcome.item_id] for outcome in kept}
        key = f"commit/{commit.unit_id}.json"
        if kept:
            stage.write_atomic(key, commit_to_json(replace(commit, outcomes=kept, versions=versions)))
        else:
            take_back(stage, commit.unit_id)
    return num_forgotten


def take_back(stage: Storage, unit_id: str) -> None:
    """Make a unit one that was never done: its commit goes, and with it the attempts, none of which was a death."""
    for entry in list(stage.list(f"attempts/{unit_id}")):
        stage.delete(entry.key)
    stage.delete(f"commit/{unit_id}.json")


def num_passing(items: Sequence[Item], commits: Sequence[Commit]) -> int:
    """How many of the items were rejected only for now."""
    return sum(not outcome.is_final for outcome, _ in outcomes_of(items, commits).values())


def put_commit(stage: Storage, commit: Commit) -> bool:
    """Offer a result; when another attempt was first, files of this one alone are deleted: False."""
    if stage.put_if_absent(f"commit/{commit.unit_id}.json", commit_to_json(commit)):
        return True
    winner = read_commit(stage, commit.unit_id)
    if winner is None:  # it may name our files: what nobody names is removed when the stage is finished
        return False
    kept = {file.key for file in winner.files}
    for file in commit.files:
        if file.key not in kept:  # names carry content hashes: the same result has the same name
            stage.delete(file.key)
    return False


def unit_to_json(unit: Unit) -> str:
    return json.dumps([unit.unit_id, unit.items])


def unit_from_json(text: str) -> Unit:
    unit_id, items = json.loads(text)
    return Unit(unit_id, tuple(Item(*item) for item in items))


def commit_to_json(commit: Commit) -> bytes:
    tree = vars(commit) | {  # not asdict, which copies every value of every recording
        "files": [vars(file) for file in commit.files],
        "outcomes": [outcome._asdict() for outcome in commit.outcomes],
    }
    return json.dumps(tree, sort_keys=True).encode()


def commit_from_json(data: bytes) -> Commit:
    tree = json.loads(data)
    tree["files"] = tuple(DataFile(**file) for file in tree["files"])
    tree["outcomes"] = tuple(Outcome(**outcome) for outcome in tree["outcomes"])
    return Commit(**tree)


def outcomes_of(items: Sequence[Item], commits: Sequence[Commit]) -> dict[str, tuple[Outcome, Commit]]:
    """The outcome that counts for every item of the archive as it is now;
    vanished and outdated ones drop out.
    """
    versions = {item.item_id: item.version for item in items}
    found: dict[str, tuple[Outcome, Commit]] = {}
    for commit in commits:
        for outcome in commit.outcomes:
            if versions.get(outcome.item_id) == commit.versions[outcome.item_id]:
                found.setdefault(outcome.item_id, (outcome, commit))
    return found


class Tally(NamedTuple):
    """done + rejected = offered, or the run is not finished."""

    offered: int
    done: int
    rejected: int

    @property
    def is_complete(self) -> bool:
        return self.done + self.rejected == self.offered

    def refuse_incomplete(self) -> None:
        if not self.is_complete:
            raise TemporaryError(
                f"{self.done} done + {self.rejected} rejected is not {self.offered} offered:\n"
                "the archive changed meanwhile, or files of the output were deleted; run the same command again"
            )


def tally(items: Sequence[Item], commits: Iterable[Commit]) -> Tally:
    """Count every item exactly once by its outcome; commits may stream by."""
    waiting = {item.item_id: item.version for item in items}
    statuses: Counter[str] = Counter()
    for commit in commits:
        for outcome in commit.outcomes:
            if waiting.get(outcome.item_id) == commit.versions[outcome.item_id]:
                del waiting[outcome.item_id]
                statuses[outcome.status] += 1
    return Tally(len(items), statuses["done"], statuses["rejected"])
