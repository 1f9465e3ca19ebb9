"""From commits to the tables of a prepared archive: recordings, rejects, labels,
index, splits, statistics, manifest.

Everything here is recomputed from the ledger and the annotations in seconds, so new annotations
or another split cost no decoding.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from mast_ray.config.errors import DataError
from mast_ray.config.tree import Config
from mast_ray.recordings.annotations import AnnotationSet
from mast_ray.spectrogram.grid import HIGH_HZ, LOW_HZ
from mast_ray.spectrogram.normalisation import Moments
from mast_ray.storage.stage_folders import MANIFEST, text_hash, write_manifest
from mast_ray.storage.storage import Storage, map_keys
from mast_ray.storage.units import Commit, Item, outcomes_of
from mast_ray.tables.backgrounds import TABLE as BACKGROUNDS_TABLE
from mast_ray.tables.leaks import Leak, audit_leaks, leakage_rate
from mast_ray.tables.prepared import read_table, write_table
from mast_ray.tables.schemas import BACKGROUNDS, INDEX, LABELS, RECORDINGS, REJECTS
from mast_ray.tables.splits import (
    BlockRow,
    Recording,
    chunk_ranges,
    deal_splits,
    recordings_of,
    splits_table,
)
from mast_ray.tables.statistics import pool_moments

DECODE_KNOBS = ("audio", "spectrogram.storage", "spectrogram.short_recordings", "prepare.rows_per_group")
TABLE_KNOBS = (*DECODE_KNOBS, "split", "seed")  # everything the tables depend on besides their inputs


@dataclass(frozen=True)
class SplitSummary:
    """What dealing gave: chunks per split, leaks, leakage rate, statistics."""

    chunks: dict[str, int]
    recordings: dict[str, int]
    leaks: tuple[Leak, ...]
    leakage: float
    moments: Moments
    above_background: Moments | None = None  # of values less their background; None: not all are measured


def recordings_and_rejects(
    items: Sequence[Item], commits: Sequence[Commit], annotated_paths: frozenset[str]
) -> tuple[pa.Table, pa.Table]:
    """One row per readable recording; one per rejected or salvaged file. Both sorted by path."""
    recordings, rejects = [], []
    found = outcomes_of(items, commits)
    for item in sorted(items, key=lambda item: item.path):
        outcome, _ = found[item.item_id]
        if outcome.status == "rejected":
            about = {
                "status": "rejected",
                "reason": outcome.reason,
                "detail": outcome.detail,
                "readable_s": 0.0,
            }
            rejects.append(_reject(item, about))
            continue
        record = dict(outcome.record or {})
        salvage = record.pop("salvage")
        if salvage:
            reason, detail, readable_s = salvage
            about = {"status": "salvaged", "reason": reason, "detail": detail, "readable_s": readable_s}
            rejects.append(_reject(item, about))
        start = datetime.fromisoformat(record["start_utc"]) if record["start_utc"] else None
        recordings.append(
            record
            | {
                "recording_id": item.item_id,
                "start_utc": start,
                "is_annotated": item.path in annotated_paths,
                "is_salvaged": salvage is not None,
            }
        )
    return (
        pa.Table.from_pylist(recordings, schema=RECORDINGS),
        pa.Table.from_pylist(rejects, schema=REJECTS),
    )


def _reject(item: Item, about: Mapping[str, object]) -> dict[str, object]:
    return {"path": item.path, "recording_id": item.item_id, "num_bytes": item.num_bytes, **about}


@dataclass(frozen=True)
class LeftOut:
    """Labels that no chunk can show."""

    of_rejected: int = 0
    beyond_end: int = 0
    example: str = ""  # of one beyond the end


def labels_table(annotations: AnnotationSet, recordings: pa.Table, source: str) -> tuple[pa.Table, LeftOut]:
    """Labels of readable recordings, each once, sorted; and what was left out: of rejected
    recordings, and beyond the end of theirs.
    """
    paths, ids, durations_s = (
        recordings.column(name).to_pylist() for name in ("path", "recording_id", "duration_s")
    )
    id_of, duration_of = dict(zip(paths, ids, strict=True)), dict(zip(paths, durations_s, strict=True))
    rows = set()
    num_orphans = num_beyond = 0
    example = ""
    for a in annotations.annotations:
        if a.path not in id_of:
            num_orphans += 1
            continue
        if a.begin_s >= duration_of[a.path]:
            num_beyond += 1
            example = example or f"{a.path}: a box at {a.begin_s:g} s of {duration_of[a.path]:g} s"
            continue
        score = 1.0 if a.score is None else float(a.score)
        rows.add((id_of[a.path], a.begin_s, a.end_s, a.low_hz, a.high_hz, a.label, score, source))
    order = {rid: number for number, rid in enumerate(id_of.values())}
    ordered = sorted(rows, key=lambda row: (order[row[0]], *(-1.0 if v is None else v for v in row[1:])))  # type: ignore[misc]
    columns = list(zip(*ordered, strict=True)) or [()] * len(LABELS)
    arrays = [pa.array(column, field.type) for column, field in zip(columns, LABELS, strict=True)]
    return pa.Table.from_arrays(arrays, schema=LABELS), LeftOut(num_orphans, num_beyond, example)


def unheard_labels(labels: pa.Table, recordings: pa.Table) -> tuple[int, str]:
    """How many boxes lie wholly outside what the spectrogram shows, and one of them; they stay
    in the table, and train nothing.
    """
    low_hz, high_hz = labels.column("low_hz"), labels.column("high_hz")
    outside = pc.or_(pc.greater_equal(low_hz, HIGH_HZ), pc.less_equal(high_hz, LOW_HZ))
    found = labels.filter(pc.fill_null(outside, False))
    if not len(found):
        return 0, ""
    first = found.slice(0, 1).to_pylist()[0]
    row = pc.index(recordings.column("recording_id"), first["recording_id"]).as_py()
    path = recordings.column("path")[row].as_py()
    return len(found), f"{path}: {first['low_hz']:g} to {first['high_hz']:g} Hz"


def index_table(
    stage: Storage, recordings: pa.Table, items: Sequence[Item], commits: Sequence[Commit]
) -> pa.Table:
    """The index files of all accepted units in the order of recordings; rows of
    outdated results are left out.
    """
    found = outcomes_of(items, commits)
    frames_of = {c.unit_id: {f.key for f in c.files if f.key.startswith("frames/")} for c in commits}
    keys = [f.key for c in commits for f in c.files if f.key.startswith("index/")]
    tables = map_keys(lambda key: read_table(stage, key), keys)
    merged = pa.concat_tables([*tables, INDEX.empty_table()])
    ids = recordings.column("recording_id").to_pylist()
    order = {rid: number for number, rid in enumerate(ids)}
    rows = []
    names = ("recording_id", "file", "segment")
    for number, (rid, file, segment) in enumerate(
        zip(*(merged.column(n).to_pylist() for n in names), strict=True)
    ):
        if rid in order and file in frames_of[found[rid][1].unit_id]:
            rows.append((order[rid], segment, number))
    return merged.take(pa.array([number for *_, number in sorted(rows)], pa.int64()))


def background_table(
    stage: Storage, recordings: pa.Table, items: Sequence[Item], commits: Sequence[Commit]
) -> pa.Table:
    """The backgrounds that all accepted units measured, in the order of recordings."""
    unit_of = {item_id: commit.unit_id for item_id, (_, commit) in outcomes_of(items, commits).items()}
    named = [(c.unit_id, f.key) for c in commits for f in c.files if f.key.startswith("backgrounds/")]
    tables = map_keys(lambda key: read_table(stage, key), [key for _, key in named])
    order = {rid: number for number, rid in enumerate(recordings.column("recording_id").to_pylist())}
    merged = pa.concat_tables([*tables, BACKGROUNDS.empty_table()])
    unit = [of for (of, _), table in zip(named, tables, strict=True) for _ in range(len(table))]
    ids, segments = (merged.column(name).to_pylist() for name in ("recording_id", "segment"))
    rows = [
        (order[rid], segment, number)
        for number, (rid, segment) in enumerate(zip(ids, segments, strict=True))
        if rid in order and unit_of[rid] == unit[number]
    ]
    return merged.take(pa.array([number for *_, number in sorted(rows)], pa.int64()))


def write_split(
    stage: Storage, config: Config, recordings: pa.Table, index: pa.Table, backgrounds: pa.Table | None = None
) -> SplitSummary:
    """Deal, audit, and write splits.parquet and stats.json."""
    dealt_from = recordings_of(recordings)
    rows = deal_splits(dealt_from, config.split, config.seed)
    splits = splits_table(rows)
    moments = pool_moments(index, recordings, splits)
    above = None if backgrounds is None else pool_moments(backgrounds, recordings, splits)
    if above is not None and above.count != moments.count:
        above = None  # measured on demand by who needs it
    stats = moments.to_dict() | ({"above_background": above.to_dict()} if above is not None else {})
    write_table(stage, "splits.parquet", splits)
    stage.write_atomic("stats.json", json.dumps(stats, indent=1).encode())
    return SplitSummary(
        *_counts(rows, dealt_from),
        tuple(audit_leaks(rows, dealt_from)),
        leakage_rate(rows),
        moments,
        above,
    )


def _counts(
    rows: Sequence[BlockRow], recordings: Sequence[Recording]
) -> tuple[dict[str, int], dict[str, int]]:
    of = {r.recording_id: r for r in recordings}
    about = [(row.begin_s, row.end_s, of[row.recording_id].duration_s) for row in rows]
    begin_s, end_s, duration_s = np.array(about, np.float64).reshape(-1, 3).T
    totals = np.array([of[row.recording_id].num_chunks for row in rows], np.int64)
    _, counts = chunk_ranges(begin_s, end_s, duration_s, totals)
    chunks: dict[str, int] = {}
    members: dict[str, set[str]] = {}
    for row, count in zip(rows, counts.tolist(), strict=True):
        for name in (row.split, "pool" if row.in_pool else ""):
            if name:
                chunks[name] = chunks.get(name, 0) + count
                members.setdefault(name, set()).add(row.recording_id)
    return chunks, {name: len(ids) for name, ids in members.items()}


def finish(
    stage: Storage,
    config: Config,
    key: str,
    inputs: Mapping[str, str],
    items: Sequence[Item],
    commits: Sequence[Commit],
    annotations: AnnotationSet,
    annotation_source: str,
    now: datetime,
) -> tuple[dict, SplitSummary]:
    """Write every table, then the manifest; returns the manifest and what the split gave."""
    stage.delete(MANIFEST)  # from here on the folder is not whole until the new manifest stands
    recordings, rejects = recordings_and_rejects(items, commits, annotations.annotated_paths)
    if not len(recordings):
        raise DataError(
            f"not one of {len(items)} recordings could be read: see {stage.url}/rejects.parquet\n"
            f"most common reason: {_most_common(rejects)}"
        )
    labels, left_out = labels_table(annotations, recordings, annotation_source)
    if left_out.beyond_end and not len(labels):
        raise DataError(
            f"every box of {annotation_source} begins after the end of its recording ({left_out.example}):\n"
            "the table is of other recordings, or counts its time over several files"
        )
    unheard, unheard_example = unheard_labels(labels, recordings)
    if unheard and unheard == len(labels):
        raise DataError(
            f"every box of {annotation_source} lies outside {LOW_HZ:g} to {HIGH_HZ:g} Hz ({unheard_example}):\n"
            "are its frequencies in kHz in a column of hertz, or the other way round? The detector hears nothing else"
        )
    index = index_table(stage, recordings, items, commits)
    backgrounds = background_table(stage, recordings, items, commits)
    hashes = {"backgrounds": text_hash(write_table(stage, BACKGROUNDS_TABLE, backgrounds))}
    tables = {"recordings": recordings, "rejects": rejects, "labels": labels, "index": index}
    for name, table in tables.items():
        hashes[name] = text_hash(write_table(stage, f"{name}.parquet", table))
    split = write_split(stage, config, recordings, index, backgrounds)
    statuses = rejects.column("status").to_pylist()
    counts = {
        "offered": len(items),
        "recordings": len(recordings),
        "rejected": statuses.count("rejected"),
        "salvaged": statuses.count("salvaged"),
        "hours": round(sum(recordings.column("duration_s").to_pylist()) / 3600.0, 4),
        "chunks": sum(recordings.column("num_chunks").to_pylist()),
        "labels": len(labels),
        "labels_of_rejected_recordings": left_out.of_rejected,
        "labels_beyond_the_end": left_out.beyond_end,
        "label_beyond_the_end": left_out.example,
        "labels_out_of_band": unheard,
        "label_out_of_band": unheard_example,
        "chunks_by_split": split.chunks,
        "tables": hashes,
    }
    return write_manifest(stage, "prepare", config, key, inputs, counts, now), split


def _most_common(rejects: pa.Table) -> str:
    reasons = rejects.column("reason").to_pylist()
    return max(set(reasons), key=reasons.count) if reasons else "none"
