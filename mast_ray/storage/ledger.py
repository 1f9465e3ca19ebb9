"""The ledger of attempts: who was working on what when a process died, so that a
poison file is found and set aside.

attempts/<unit>/<run>-<n>.json is put before any work. When a run begins a unit again, its last attempt
died: from then on items are worked on one by one, each named in the ledger first. An item
that was in hand at a death goes last next time, and is quarantined once `max_deaths` attempts have died
and it was in hand at two of them: a file that kills its process kills three. An attempt that ended together
with its driver is held against nobody, however often that happens: machines are switched off and jobs are
killed. A driver that works in its own process takes up such a unit in a process beside it (unit_runner.py),
where a death says who died of what. Everything is read from object names; no clock is consulted.
"""

from __future__ import annotations

import json
import secrets
import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from mast_ray.storage.storage import Storage
from mast_ray.storage.units import Item, Outcome, Unit


@dataclass(frozen=True)
class Ledger:
    """What earlier attempts at a unit left behind, as seen by a new attempt of one run."""

    deaths: int = 0  # attempts that died while their driver lived on
    attempts_of_run: int = 0
    unexplained: int = 0  # attempts of earlier runs that ended with their driver: killed, or killed by a file
    in_hand: Counter[str] = field(default_factory=Counter)  # item_id -> deaths at which it was in hand
    timed_out: frozenset[str] = frozenset()  # items whose watchdog spoke


def read_ledger(stage: Storage, unit_id: str, run: str) -> Ledger:
    """Count deaths, and the items in hand, from the names of the ledger's objects."""
    numbers: dict[str, set[int]] = defaultdict(set)
    last_named: dict[tuple[str, int], tuple[int, str]] = {}
    timed_out, silent = set(), set()  # items; attempts that their watchdog ended
    for entry in stage.list(f"attempts/{unit_id}"):
        name, *rest = entry.key.rsplit("/", 1)[-1].removesuffix(".json").split(".")
        of_run, _, number = name.rpartition("-")
        numbers[of_run].add(int(number))
        if rest:
            kind, place, item_id = rest
            attempt = (of_run, int(number))
            last_named[attempt] = max(last_named.get(attempt, (-1, "")), (int(place), item_id))
            if kind == "timeout":
                timed_out.add(item_id)
                silent.add(attempt)
    attempts = {(of_run, number) for of_run, begun in numbers.items() for number in begun}
    proven = {
        (of_run, number)
        for of_run, number in attempts
        if of_run == run or number < max(numbers[of_run]) or (of_run, number) in silent
    }
    in_hand = Counter(item_id for attempt, (_, item_id) in last_named.items() if attempt in proven)
    unexplained = len(attempts - proven)
    return Ledger(len(proven), len(numbers[run]), unexplained, in_hand, frozenset(timed_out))


@dataclass
class Attempt:
    """One attempt at a unit: its token names its files, its entries in the ledger say which item is in hand."""

    stage: Storage
    unit: Unit
    run: str
    number: int
    token: str
    is_careful: bool
    num_named: int = 0
    item_in_hand: str = ""
    last_beat_s: float = field(default_factory=time.monotonic)

    def beat(self) -> None:
        """Say that work is going on; the watchdog listens."""
        self.last_beat_s = time.monotonic()

    def begin_item(self, item_id: str) -> None:
        """Name the item now in hand; only careful attempts pay for a ledger entry."""
        self.beat()
        self.item_in_hand = item_id
        if self.is_careful:
            self.num_named += 1
            self._note("item")

    def groups(self, items: Sequence[Item]) -> Iterator[Sequence[Item]]:
        """All items at once, or one by one, each named, when an earlier attempt
        died. For work done in batches.
        """
        if not self.is_careful:
            self.beat()
            yield items
            return
        for item in items:
            self.begin_item(item.item_id)
            yield [item]

    def report_timeout(self) -> None:
        """Written by the watchdog before it ends the process."""
        if self.item_in_hand:
            self._note("timeout")

    def withdraw(self) -> None:
        """Leave no trace: this attempt was stopped by somebody or by an error that was said, and no process died."""
        for entry in list(self.stage.list(f"attempts/{self.unit.unit_id}")):
            if entry.key.rsplit("/", 1)[-1].startswith(f"{self.run}-{self.number:03d}."):
                self.stage.delete(entry.key)

    def _note(self, kind: str) -> None:
        note = f"{self.run}-{self.number:03d}.{kind}.{self.num_named:06d}.{self.item_in_hand}.json"
        self.stage.write_atomic(f"attempts/{self.unit.unit_id}/{note}", b"{}")


def begin_attempt(stage: Storage, unit: Unit, run: str, ledger: Ledger) -> Attempt:
    """Put the next ledger entry of this run; a twin that takes the same number pushes this one further."""
    nonce, number = secrets.token_hex(6), ledger.attempts_of_run
    while True:
        number += 1
        key = f"attempts/{unit.unit_id}/{run}-{number:03d}.json"
        if stage.put_if_absent(key, json.dumps({"nonce": nonce}).encode()):
            token = f"{unit.unit_id}-{nonce}"
            return Attempt(stage, unit, run, number, token, is_careful=ledger.deaths > 0)


def order_of_work(items: Sequence[Item], ledger: Ledger, max_deaths: int) -> tuple[list[Item], list[Outcome]]:
    """(items to work on, suspects last; outcomes of items that are quarantined without another try)."""
    work: list[Item] = []
    suspects: list[Item] = []
    quarantined: list[Outcome] = []
    needed = max(1, min(2, max_deaths - 1))
    for item in items:
        times = ledger.in_hand[item.item_id]
        if times >= needed and ledger.deaths >= max_deaths:
            late = item.item_id in ledger.timed_out
            what = "made no progress" if late else "ended the process that read it"
            quarantined.append(
                Outcome(
                    item.item_id,
                    "rejected",
                    "TIMEOUT" if late else "CRASH",
                    f"{what} in {times + 1} attempts",
                )
            )
        else:
            (suspects if times else work).append(item)
    return work + sorted(suspects, key=lambda item: ledger.in_hand[item.item_id]), quarantined
