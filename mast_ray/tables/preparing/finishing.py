"""From commits to the tables of a prepared archive: recordings, rejects, labels,
index, splits, statistics.

Everything here is recomputed from the ledger and the annotations in seconds, so new annotations
or another split cost no decoding.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from mast_ray.config.errors import DataError
from mast_ray.config.tree import Config
from mast_ray.recordings.decoding.faults import reasons_line
from mast_ray.spectrogram.grid import HIGH_HZ, HOP_S, LOW_HZ
from mast_ray.spectrogram.normalisation import Moments
from mast_ray.storage.outputs import seal_of
from mast_ray.storage.stage_folders import MANIFEST, sections_hash, text_hash
from mast_ray.storage.storage import Storage, map_keys
from mast_ray.storage.units import Commit, Item, Outcome, num_passing, outcomes_of
from mast_ray.tables.backgrounds import TABLE as BACKGROUNDS_TABLE
from mast_ray.tables.dealing.dealt_before import bring_back
from mast_ray.tables.dealing.leaks import Leak, audit_leaks, heard_before, leakage_rate, with_paths
from mast_ray.tables.dealing.silent import untested_text
from mast_ray.tables.dealing.splits import (
    BlockRow,
    Recording,
    chunk_ranges,
    deal_splits,
    paths_of,
    recordings_of,
    rows_of_table,
    splits_table,
)
from mast_ray.tables.labels.choice import ChosenLabels
from mast_ray.tables.labels.cleaning import LabelNote, note_of
from mast_ray.tables.labels.tables import (
    BEYOND_THE_END,
    count_out_of_band,
    ignored_table,
    labels_table,
    of_other_recordings,
)
from mast_ray.tables.prepared import read_table, write_table
from mast_ray.tables.preparing.recording_record import RecordingRecord, reject_row
from mast_ray.tables.schemas import BACKGROUNDS, INDEX, RECORDINGS, REJECTS
from mast_ray.tables.statistics import pool_moments

log = logging.getLogger("mast.tables")

DECODE_KNOBS = ("audio", "spectrogram.storage", "spectrogram.short_recordings", "prepare.rows_per_group")
LABEL_KNOBS = tuple(
    f"labels.{name}" for name in ("include", "exclude", "uncertain", "no_animal", "listened_for")
)
TABLE_KNOBS = (
    *DECODE_KNOBS,
    *LABEL_KNOBS,
    "split",
    "seed",
)  # all that the tables depend on besides their inputs

# data folders; tables; what `mast split` and older archives rewrite
SEALED = (
    ("frames", "index", "backgrounds"),
    tuple(f"{name}.parquet" for name in ("recordings", "rejects", "labels", "ignored", "index")),
    ("splits.parquet", "stats.json", BACKGROUNDS_TABLE),
)

SPLIT_KEY = b"mast.split"  # in the metadata of splits.parquet: by which settings it was dealt
DEALT_BY = ("split", "seed")
LEAST_STD = 1e-3  # of log-mel values; quiet recordings have about 1, the rounding of sums 1e-6


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
            rejects.append(reject_row(item, "rejected", outcome.reason, outcome.detail))
            continue
        record = RecordingRecord.from_json(outcome.record or {})
        if record.salvage is not None:
            rejects.append(reject_row(item, "salvaged", *record.salvage))
        recordings.append(record.row(item.item_id, item.path in annotated_paths))
    return (
        pa.Table.from_pylist(recordings, schema=RECORDINGS),
        pa.Table.from_pylist(rejects, schema=REJECTS),
    )


def rows_of_units(
    stage: Storage,
    folder: str,
    schema: pa.Schema,
    recordings: pa.Table,
    outcomes: Mapping[str, tuple[Outcome, Commit]],
    commits: Sequence[Commit],
) -> pa.Table:
    """The tables that all accepted units left in a folder, in the order of recordings and segments; rows of outdated
    results are left out. Whose row it is says the unit: recordings that were touched and not changed are worked on again,
    and the file that comes of it has the name of the earlier one.
    """
    named = [(c.unit_id, f.key) for c in commits for f in c.files if f.key.startswith(f"{folder}/")]
    tables = map_keys(lambda key: read_table(stage, key), [key for _, key in named])
    order = {rid: number for number, rid in enumerate(recordings.column("recording_id").to_pylist())}
    merged = pa.concat_tables([*tables, schema.empty_table()])
    unit = [of for (of, _), table in zip(named, tables, strict=True) for _ in range(len(table))]
    ids, segments = (merged.column(name).to_pylist() for name in ("recording_id", "segment"))
    rows = [
        (order[rid], segment, number)
        for number, (rid, segment) in enumerate(zip(ids, segments, strict=True))
        if rid in order and outcomes[rid][1].unit_id == unit[number]
    ]
    return merged.take(pa.array([number for *_, number in sorted(rows)], pa.int64()))


def earlier_split(stage: Storage, config: Config) -> list[BlockRow]:
    """The split of an earlier run into this folder with the same settings; empty where there was none.

    Whoever deals anew is told: a model of before may have been trained on what is held out now.
    """
    try:
        table = read_table(stage, "splits.parquet")
    except DataError:  # none, or damaged: everything is dealt anew
        return []
    known = (table.schema.metadata or {}).get(SPLIT_KEY, b"").decode()
    if known == sections_hash(config, *DEALT_BY):
        return rows_of_table(table)
    log.warning(
        "%s was dealt %s: all its recordings are dealt anew, and models of before may have learned what is held out now; "
        "train them again, or prepare into another folder",
        stage.url,
        "with other settings of split or seed" if known else "by a version that did not note its settings",
    )
    return []


def write_split(
    stage: Storage,
    config: Config,
    recordings: pa.Table,
    index: pa.Table,
    backgrounds: pa.Table | None = None,
    dealt: list[BlockRow] | None = None,
    before: Sequence[BlockRow] = (),
) -> SplitSummary:
    """Deal (unless that is done), audit, and write splits.parquet and stats.json; what was dealt `before` stays where it
    is.
    """
    dealt_from, path_of = recordings_of(recordings), paths_of(recordings)
    rows = deal_splits(dealt_from, config.split, config.seed, before) if dealt is None else dealt
    heard = [] if config.split.transductive else heard_before(before, rows)
    if heard:
        log.warning(
            "%d recordings that were in the pool have labels now and are held out (e.g. %s): a model that was pretrained or "
            "self-trained on that pool has heard them; train it again before it is tested on them",
            len(heard),
            path_of[heard[0]],
        )
    if dealt is None and (untested := untested_text(dealt_from, config.split)):
        log.warning("%s", untested)
    splits = splits_table(rows).replace_schema_metadata({SPLIT_KEY: sections_hash(config, *DEALT_BY)})
    moments = pool_moments(index, recordings, splits)
    above = None if backgrounds is None else pool_moments(backgrounds, recordings, splits)
    if above is not None and above.count != moments.count:
        above = None  # measured on demand by who needs it
    stats = moments.to_dict() | ({"above_background": above.to_dict()} if above is not None else {})
    write_table(stage, "splits.parquet", splits)
    stage.write_atomic("stats.json", json.dumps(stats, indent=1).encode())
    return SplitSummary(
        *_counts(rows, dealt_from),
        tuple(with_paths(audit_leaks(rows, dealt_from, config.split.unit), path_of)),
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
    items: Sequence[Item],
    commits: Sequence[Commit],
    chosen: ChosenLabels,
    annotation_source: str,
) -> tuple[dict[str, Any], SplitSummary]:
    """Write every table; returns counts for the manifest, and what the split gave."""
    bring_back(stage)
    stage.delete(MANIFEST)  # from here on the folder is not whole until the new manifest stands
    recordings, rejects = recordings_and_rejects(items, commits, chosen.calls.annotated_paths)
    rejected = write_table(stage, "rejects.parquet", rejects)  # first: what follows may point at it
    if not len(recordings):
        raise DataError(
            f"not one of {len(items)} recordings could be read\n"
            + reasons_line(rejects.column("reason").to_pylist(), f"{stage.url}/rejects.parquet")
        )
    refuse_no_chunks(recordings, config)
    labels, notes = labels_table(chosen.calls.annotations, recordings, annotation_source)
    if astray := of_other_recordings((*chosen.calls.annotations, *chosen.uncertain), recordings):
        notes += note_of(
            "of these are all that their recordings have, which therefore count as not gone through", astray
        )
        heard = chosen.calls.annotated_paths - {a.path for a in astray}
        recordings, _ = recordings_and_rejects(items, commits, heard)
    refuse_no_labels(labels, notes, recordings, annotation_source)
    out_of_band, example = count_out_of_band(labels, recordings)
    ignored = ignored_table(chosen, recordings, config.labels)
    outcomes = outcomes_of(items, commits)
    index = rows_of_units(stage, "index", INDEX, recordings, outcomes, commits)
    backgrounds = rows_of_units(stage, "backgrounds", BACKGROUNDS, recordings, outcomes, commits)
    hashes = {
        "rejects": text_hash(rejected),
        "backgrounds": text_hash(write_table(stage, BACKGROUNDS_TABLE, backgrounds)),
    }
    tables = {"recordings": recordings, "labels": labels, "ignored": ignored, "index": index}
    for name, table in tables.items():
        hashes[name] = text_hash(write_table(stage, f"{name}.parquet", table))
    split = write_split(stage, config, recordings, index, backgrounds, before=earlier_split(stage, config))
    refuse_constant(split, stage)
    statuses = rejects.column("status").to_pylist()
    counts = {
        "offered": len(items),
        "recordings": len(recordings),
        "rejected": statuses.count("rejected"),
        "passing": num_passing(items, commits),
        "salvaged": statuses.count("salvaged"),
        "hours": round(sum(recordings.column("duration_s").to_pylist()) / 3600.0, 4),
        "chunks": sum(recordings.column("num_chunks").to_pylist()),
        "labels": len(labels),
        "label_notes": [str(note) for note in notes],
        "labels_out_of_band": out_of_band,
        "label_out_of_band": example,
        "ignored_regions": len(ignored),
        "chunks_by_split": split.chunks,
        "tables": hashes,
        "seal": seal_of(stage, *SEALED),
    }
    return counts, split


def refuse_no_chunks(recordings: pa.Table, config: Config) -> None:
    """Recordings that were all read and give nothing to look at are no success."""
    if any(recordings.column("num_chunks").to_pylist()):
        return
    longest_s = max(recordings.column("duration_s").to_pylist())
    least = (
        "1 s"
        if config.spectrogram.short_recordings == "pad"
        else f"{HOP_S:g} s (spectrogram.short_recordings=drop)"
    )
    raise DataError(
        f"not one of {len(recordings)} recordings is long enough for a chunk (the longest has {longest_s:.3g} s):\n"
        f"a chunk needs at least {least}; join the clips into longer files"
    )


def refuse_no_labels(labels: pa.Table, notes: Sequence[LabelNote], recordings: pa.Table, source: str) -> None:
    """Annotations of which no box is left are no success, whatever the reason."""
    if not len(labels) and notes:
        beyond = next((note for note in notes if note.what == BEYOND_THE_END), None)
        raise DataError(
            f"every box of {source} begins after the end of its recording ({beyond.example}):\n"
            "the table is of other recordings, or counts its time over several files"
            if beyond
            else f"{source} leaves no label: {notes[0]}:\nsee rejects.parquet for the recordings that cannot be read"
        )
    out_of_band, example = count_out_of_band(labels, recordings)
    if out_of_band and out_of_band == len(labels):
        raise DataError(
            f"every box of {source} lies outside {LOW_HZ:g} to {HIGH_HZ:g} Hz ({example}):\n"
            "are its frequencies in kHz in a column of hertz, or the other way round? The detector hears nothing else"
        )


def refuse_constant(split: SplitSummary, stage: Storage) -> None:
    """A pool without any sound in it cannot be normalised, and nothing can be learnt from it."""
    if split.chunks.get("pool") and split.moments.std < LEAST_STD:
        raise DataError(
            f"every frame of the pool of {stage.url} has the same value: its recordings hold digital silence\n"
            "check a recording by ear, and its channel: --set audio.channel=first"
        )
