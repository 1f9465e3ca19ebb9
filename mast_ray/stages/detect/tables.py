"""From the commits of a detect run to its tables, a few commits at a time: who was done, who was
rejected, and the effort behind every figure.

recordings.parquet (one row per analysed recording), rejects.parquet and the manifest are written from what
units left behind. Rows of recordings that were changed or taken away since are taken out of their files
first (earlier.py keeps the latter), so that a folder always speaks of the archive as it was at the last run.
"""

from __future__ import annotations

import io
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence, Set
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from mast_ray.inference.findings import doubts, same_everywhere
from mast_ray.recordings.decoding.faults import cancelling_text
from mast_ray.stages.detect.work import UNIT_RECORDINGS, arrow_bytes, parquet_bytes, put_file
from mast_ray.storage.storage import Storage
from mast_ray.storage.units import (
    Commit,
    DataFile,
    Item,
    Tally,
    commit_to_json,
    iter_commits,
    read_commit,
    unit_of,
)
from mast_ray.tables.prepared import write_table
from mast_ray.tables.preparing.recording_record import reject_row
from mast_ray.tables.schemas import RECORDINGS, REJECTS

ROWS_AT_ONCE = 100_000
UNITS_LOOKED_AT = 32  # for doubts about the model
BOX = ("begin_s", "end_s", "low_hz", "high_hz")


class UnitResult(NamedTuple):
    """What the driver keeps of a commit: a few hundred bytes, however many recordings it covers."""

    place: int  # of its first recording that counts
    unit_id: str
    files: tuple[DataFile, ...]
    stale: frozenset[str]  # recordings whose rows no longer count


class Survey(NamedTuple):
    """All commits, added up."""

    tally: Tally
    results: list[UnitResult]  # in the order of recordings
    rejects: list[dict]
    num_detections: int
    notes: Counter[str]
    num_passing: int = 0  # rejected only for now


@dataclass(frozen=True)
class Written:
    """What the tables say."""

    hours: float
    num_recordings: int
    num_salvaged: int
    cancelling: str = ""  # of recordings whose channels cancel each other


def survey(stage: Storage, items: Sequence[Item]) -> Survey:
    """One pass over commits. Every item is counted once, by the first commit that
    worked on its present version.
    """
    place_of = {item.item_id: place for place, item in enumerate(items)}
    is_counted = bytearray(len(items))
    statuses: Counter[str] = Counter()
    notes: Counter[str] = Counter()
    results, rejects, num_detections, num_passing = [], [], 0, 0
    for commit in iter_commits(stage):
        stale, first = set(), len(items)
        for outcome in commit.outcomes:
            place = place_of.get(outcome.item_id, -1)
            current = place >= 0 and items[place].version == commit.versions[outcome.item_id]
            if not current or is_counted[place]:
                stale.add(outcome.item_id)
                continue
            is_counted[place] = 1
            first = min(first, place)
            statuses[outcome.status] += 1
            if outcome.status == "rejected":
                num_passing += not outcome.is_final
                rejects.append(reject_row(items[place], "rejected", outcome.reason, outcome.detail))
        results.append(UnitResult(first, commit.unit_id, commit.files, frozenset(stale)))
        num_detections += sum(file.num_rows for file in commit.files if file.key.startswith("detections/"))
        notes.update({name: value for name, value in commit.notes.items() if isinstance(value, int | float)})
    results.sort(key=lambda result: (result.place, result.unit_id))
    tally = Tally(len(items), statuses["done"], statuses["rejected"])
    return Survey(tally, results, rejects, num_detections, notes, num_passing)


def prune(stage: Storage, results: Sequence[UnitResult]) -> int:
    """Take the rows of stale recordings out of their files and commits; returns
    how many recordings that were. A file that another commit names too stays: recordings that were touched and not
    changed give the same files again.
    """
    num_removed = 0
    named = Counter(file.key for result in results for file in result.files)
    for result in results:
        commit = read_commit(stage, result.unit_id) if result.stale else None
        if commit is None:
            continue
        num_removed += len(result.stale)
        pruned = _without(stage, commit, result.stale)
        if pruned.outcomes:
            stage.write_atomic(f"commit/{commit.unit_id}.json", commit_to_json(pruned))
        else:
            stage.delete(f"commit/{commit.unit_id}.json")
        kept = {file.key for file in pruned.files}
        for file in commit.files:
            if file.key in kept:
                continue
            named[file.key] -= 1
            if not named[file.key]:
                stage.delete(file.key)
    return num_removed


def _without(stage: Storage, commit: Commit, stale: frozenset[str]) -> Commit:
    kept = restricted(stage, stage, commit, commit.versions.keys() - stale)
    return replace(kept, unit_id=commit.unit_id)  # it stays where it is


def restricted(source: Storage, target: Storage, commit: Commit, ids: Set[str]) -> Commit:
    """A commit of some of a commit's recordings alone, its files written to `target`."""
    keep = pa.array(sorted(ids), pa.string())
    # Only ids and versions matter for the names of a unit and its files.
    unit = unit_of([Item(i, "", 0, v) for i, v in commit.versions.items() if i in ids])
    files = []
    for file in commit.files:
        folder, _, name = file.key.rpartition("/")
        table = read_unit_file(source, file.key)
        kept = table.filter(pc.is_in(table.column("recording_id"), value_set=keep))
        if len(kept) == len(table) and source == target:
            files.append(file)
        elif len(kept) or len(kept) == len(table):
            is_arrow = name.endswith(".arrow")
            content = arrow_bytes(kept) if is_arrow else parquet_bytes(kept)
            files.append(put_file(target, unit, folder, content, "arrow" if is_arrow else "parquet"))
    outcomes = tuple(outcome for outcome in commit.outcomes if outcome.item_id in ids)
    versions = {item_id: version for item_id, version in commit.versions.items() if item_id in ids}
    return replace(commit, unit_id=unit.unit_id, files=tuple(files), outcomes=outcomes, versions=versions)


def doubts_about(stage: Storage, found: Survey, written: Written, model_threshold: float | None) -> list[str]:
    """What the findings say about the model. Scores and places are looked at in a few units of a large archive."""
    where = f"{written.num_recordings:,} recordings"
    if found.num_detections == 0:
        return doubts(0, 0, model_threshold, 0.0, False, where) if written.num_recordings else []
    step = -(-len(found.results) // UNITS_LOOKED_AT)
    looked_at = found.results[::step]
    boxes, recordings = [], []
    for file in (file for result in looked_at for file in result.files):
        table = read_unit_file(stage, file.key)
        if file.key.startswith("recordings/"):
            recordings.append(table.select(["recording_id", "duration_s"]))
        else:
            boxes.append(table.select(["recording_id", *BOX, "score"]))
    about, rows = pa.concat_tables(recordings), pa.concat_tables(boxes)
    if not len(rows):
        return []  # what was found lies in other units
    if step > 1:
        where = f"{len(about):,} of {where}"
    scores = rows.column("score").to_numpy()
    num_kept = len(rows) if model_threshold is None else int((scores >= model_threshold).sum())
    return doubts(len(rows), num_kept, model_threshold, float(scores.max()), _is_same(rows, about), where)


def _is_same(rows: pa.Table, recordings: pa.Table) -> bool:
    """Over the time that all recordings have in common; the last windows of some lie elsewhere."""
    limits = pc.min_max(recordings.column("duration_s")).as_py()
    common_s = limits["min"] if limits["max"] - limits["min"] < 0.1 else limits["min"] / 2
    begin_s, end_s, low_hz, high_hz = (rows.column(name).to_numpy() for name in BOX)
    inside = end_s <= common_s
    numbers = rows.column("recording_id").combine_chunks().dictionary_encode().indices.to_numpy()
    values = np.column_stack(
        [10 * begin_s, 10 * end_s, low_hz / 10, high_hz / 10, 100 * rows.column("score").to_numpy()]
    )
    return same_everywhere(numbers[inside].astype(np.int64), values[inside], len(recordings))


def write_recordings_and_rejects(
    stage: Storage, items: Sequence[Item], results: Sequence[UnitResult], rejects: Sequence[dict]
) -> Written:
    """recordings.parquet and rejects.parquet, in the order of recordings, holding
    some 100,000 rows at a time.
    """
    by_id: dict[str, Item] = {}
    salvaged: list[dict] = []
    hours, num_recordings = 0.0, 0
    for table in write_recordings(stage, gathered_recordings(stage, results)):
        hours += (pc.sum(table.column("duration_s")).as_py() or 0.0) / 3600.0
        num_recordings += len(table)
        damaged = table.filter(pc.is_valid(table.column("salvage_reason")))
        if len(damaged) and not by_id:
            by_id = {item.item_id: item for item in items}
        for row in damaged.to_pylist():
            about = (row["salvage_reason"], row["salvage_detail"], row["salvage_s"])
            salvaged.append(reject_row(by_id[row["recording_id"]], "salvaged", *about))
    rows = sorted([*rejects, *salvaged], key=lambda row: (row["path"], row["status"]))
    write_table(stage, "rejects.parquet", pa.Table.from_pylist(rows, schema=REJECTS))
    return Written(hours, num_recordings, len(salvaged), cancelling_text(rows))


def write_recordings(stage: Storage, tables: Iterable[pa.Table]) -> Iterator[pa.Table]:
    """recordings.parquet from tables that stream by, to be gone through to the end: then it stands."""
    with stage.scratch_file() as path:
        with pq.ParquetWriter(path, RECORDINGS, compression="zstd") as writer:
            for table in tables:
                writer.write_table(table.select(RECORDINGS.names))
                yield table
        stage.publish(path, "recordings.parquet")


def gathered_recordings(stage: Storage, results: Sequence[UnitResult]) -> Iterator[pa.Table]:
    """The rows of all units about their recordings, some 100,000 at a time."""
    held: list[pa.Table] = []
    num_held = 0
    for file in (file for result in results for file in result.files if file.key.startswith("recordings/")):
        held.append(read_unit_file(stage, file.key))
        num_held += len(held[-1])
        if num_held >= ROWS_AT_ONCE:
            yield pa.concat_tables(held)
            held, num_held = [], 0
    if held:
        yield pa.concat_tables(held)


def read_unit_file(stage: Storage, key: str) -> pa.Table:
    """A file of detections or of recordings that a unit wrote."""
    data = io.BytesIO(stage.read_bytes(key))
    if key.endswith(".arrow"):
        table = pa.ipc.open_file(data).read_all()
        for field in UNIT_RECORDINGS:  # units of before a column was kept
            if field.name not in table.column_names:
                table = table.append_column(field.name, pa.nulls(len(table), field.type))
        return table.select(UNIT_RECORDINGS.names).cast(UNIT_RECORDINGS)
    return pq.read_table(data, partitioning=None)
