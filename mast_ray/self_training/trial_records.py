"""What a trial of the training search writes down in its own folder, and what a search
knows from these folders alone.

trials/<name>/diary.json    its sample, when it began, what it reported after every epoch and how long it has worked
trials/<name>/trial.json    its result: the trial is done
trials/<name>/stopped.json  the scheduler stopped it early
trials/begun.json           the settings that all of them share

Every file is replaced as a whole, so the records of a search are right at any moment its driver may be
killed. A trial is named after its sample.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from mast_ray.storage.stage_folders import text_hash
from mast_ray.storage.storage import Storage

FOLDER, DIARY, RESULT, STOPPED = "trials", "diary.json", "trial.json", "stopped.json"
EPOCHS, OBJECTIVE = "epochs", "objective"
TRIALS, SAMPLE = "trials.parquet", "config."  # the table of a search, and how its sampled columns begin
LAST = "end"  # the report that is the result
STOPPED_EARLY = "stopped early"
FINAL = "final"  # an objective of a trial that came to its end; else that of the stage it was stopped in
Status = Literal["done", "stopped early", "open"]
Report = Callable[[dict[str, Any]], None]


@dataclass(frozen=True)
class TrialRecord:
    name: str
    sample: dict[str, float]
    began_s: float  # since 1970
    objectives: tuple[float, ...]  # one per report
    seconds: float
    status: Status
    result: dict[str, Any]  # the last metrics known

    @property
    def is_finished(self) -> bool:
        """Done or stopped: it is not to be taken up again."""
        return self.status != "open"

    @property
    def objective(self) -> float | None:
        value = self.result.get(OBJECTIVE)
        return None if value is None else float(value)

    def row(self, status: str = "") -> dict[str, Any]:
        """A line of the table of trials."""
        row: dict[str, Any] = {"trial": self.name, "status": status or self.status}
        row |= {f"{SAMPLE}{name}": value for name, value in self.sample.items()}
        row[OBJECTIVE] = None if status == "error" else self.objective
        stage = FINAL if self.status == "done" else self.result.get("stage")
        row["objective_of"] = None if row[OBJECTIVE] is None else stage
        for name in ("stage1_f1", "stage2_f1", "score_threshold", "boxes_per_chunk"):
            row[name] = self.result.get(name)
        return row | {EPOCHS: len(self.objectives), "seconds": round(self.seconds, 1)}


def ended_rows(rows: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Rows of the trials that came to their end: only their objectives are of one kind."""
    return [row for row in rows if row[OBJECTIVE] is not None and row.get("status") != STOPPED_EARLY]


def trial_name(sample: Mapping[str, float]) -> str:
    """The same sample has the same folder, in whichever run of the search it comes up."""
    return text_hash(json.dumps({name: float(sample[name]) for name in sorted(sample)}))[:10]


class Diary:
    """Keeps a trial's reports; a trial that was killed goes on in the same diary."""

    def __init__(self, folder: Storage, sample: Mapping[str, float], report: Report) -> None:
        self._folder, self._report, self._since = folder, report, time.monotonic()
        self._known: dict[str, Any] = {
            "sample": {name: float(value) for name, value in sample.items()},
            "began_s": time.time(),
            "objectives": {},
            "seconds": 0.0,
            "last": {},
        }
        if folder.stat(DIARY) is not None:
            self._known = json.loads(folder.read_bytes(DIARY))
        self._write()

    def tell(self, metrics: Mapping[str, Any], at: str) -> dict[str, Any]:
        """Write a report down, then pass it on: what the search has heard is on disk. What is
        told again after a kill counts once.
        """
        now = time.monotonic()
        self._known["seconds"] += now - self._since
        self._since = now
        self._known["objectives"][at] = float(metrics[OBJECTIVE])
        told = dict(metrics) | {EPOCHS: len(self._known["objectives"])}
        self._known["last"] = told
        self._write()
        if at == LAST:
            self._folder.write_atomic(RESULT, json.dumps(told).encode())
        self._report(told)
        return told

    def best_before(self, stage: str, step: int) -> float:
        """The best that a stage had reported before this step, also to a search that
        was killed; 0 when nothing.
        """
        told = (at.partition(":") + (value,) for at, value in self._known["objectives"].items() if at != LAST)
        return max((value for of, _, at, value in told if of == stage and int(at) < step), default=0.0)

    def _write(self) -> None:
        self._folder.write_atomic(DIARY, json.dumps(self._known).encode())


def read_trials(stage: Storage) -> list[TrialRecord]:
    """Every trial that ever began, oldest first."""
    files: dict[str, set[str]] = {}
    for entry in stage.list(FOLDER):
        parts = entry.key.split("/")
        if len(parts) == 3 and parts[2] in (DIARY, RESULT, STOPPED):
            files.setdefault(parts[1], set()).add(parts[2])
    records = [
        _record(stage.at(f"{FOLDER}/{name}"), name, own) for name, own in files.items() if DIARY in own
    ]
    return sorted(records, key=lambda record: (record.began_s, record.name))


def mark_stopped(stage: Storage, sample: Mapping[str, float]) -> None:
    """The scheduler has ended this trial: it is not to be taken up again. One that has a result is done."""
    folder = stage.at(f"{FOLDER}/{trial_name(sample)}")
    if folder.stat(RESULT) is None:
        folder.write_atomic(STOPPED, b"{}")


def _record(folder: Storage, name: str, files: set[str]) -> TrialRecord:
    diary = json.loads(folder.read_bytes(DIARY))
    status: Status = "done" if RESULT in files else "stopped early" if STOPPED in files else "open"
    result = json.loads(folder.read_bytes(RESULT)) if RESULT in files else diary["last"]
    return TrialRecord(
        name,
        diary["sample"],
        diary["began_s"],
        tuple(diary["objectives"].values()),
        diary["seconds"],
        status,
        result,
    )
