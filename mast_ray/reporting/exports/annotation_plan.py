"""Which chunks of the pool to annotate next, as task files for Raven, Audacity and whombat
(AOEF), with clips to listen to.

OUT/plan.csv                     every chosen chunk in order, with its reason; for `mast prepare --listened` what was gone through
OUT/tasks/                       task files for the original recordings: one time-only selection "annotate" per chunk
OUT/clips/audio/*.wav            the chunks themselves, an archive of their own: an annotated clip is wholly annotated
OUT/clips/tasks/, recordings.csv the same tasks on the clips, and the sites and times of the clips

A selection "annotate" that stays in the table has no band, so it is never trained on as a call; one that stays alone says that nobody
has begun. Annotated clips come back with
`mast prepare OUT/clips/audio --annotations OUT/clips/tasks/raven --table OUT/clips/recordings.csv`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta, timezone
from pathlib import PurePosixPath
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from mast_ray.config.errors import ConfigError, DataError
from mast_ray.config.names import short_name
from mast_ray.evaluation.events import recordings_from_arrow
from mast_ray.evaluation.figure_tables import csv_bytes
from mast_ray.evaluation.review.planner import (
    Candidates,
    Choice,
    Strategy,
    chunk_uncertainty,
    plan_annotation,
    plan_as_annotations,
)
from mast_ray.recordings.annotations.model import Annotation, AnnotationSet, AudioFacts, Span
from mast_ray.recordings.annotations.writing import annotations_as_text
from mast_ray.recordings.decoding.reading import Channel
from mast_ray.reporting.clips import channel_heard, read_window, wav_bytes
from mast_ray.reporting.detection_tables import read_detections, read_parquet, split_uri
from mast_ray.reporting.exports.rows import audio_facts
from mast_ray.reporting.exports.writing import file_key
from mast_ray.spectrogram.grid import CHUNK_S, SAMPLE_RATE_HZ, middle_chunk, seconds_of_hops
from mast_ray.storage.storage import Storage
from mast_ray.tables.prepared import Prepared
from mast_ray.tables.reading.chunk_sets import ChunkSet, chunks_of_split, keys_of, pair_keys

PLAN = "plan.csv"
FORMATS = ("raven", "audacity", "aoef")
_ENDINGS = {"raven": ".Table.1.selections.txt", "audacity": ".txt"}
Floats = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class PlanInputs:
    """What a plan may look at."""

    prepared: Prepared
    detections: str = ""  # table or folder
    embeddings: str = ""  # of `mast embed --what chunks`
    threshold: float = 0.5  # of the detector: detections near it are doubtful


def plan_chunks(inputs: PlanInputs, num: int, strategy: Strategy, seed: int = 0) -> list[Choice]:
    """The next chunks of the pool to annotate, best first."""
    prepared = inputs.prepared
    if strategy == "uncertainty" and not inputs.detections:
        raise ConfigError(
            "--strategy uncertainty needs --detections: the output of `mast detect` or `mast pseudo-label`"
        )
    if strategy == "coverage" and not inputs.embeddings:
        raise ConfigError("--strategy coverage needs --embeddings: the output of `mast embed --what chunks`")
    chunks = unlabelled_chunks(prepared)
    vectors, known = None, None
    if inputs.embeddings:
        keys, table = _embedded(prepared, inputs.embeddings)
        train = (
            chunks_of_split(prepared, "train")
            if "train" in prepared.splits.column("split").to_pylist()
            else None
        )
        known = table[np.isin(keys, keys_of(train))] if train is not None else None
        order = np.argsort(keys, kind="stable")
        place = np.minimum(np.searchsorted(keys[order], keys_of(chunks)), len(keys) - 1)
        there = keys[order][place] == keys_of(chunks)
        if not there.any():
            raise DataError(
                f"{inputs.embeddings} holds no chunk of the unlabelled pool: embed the pool of this archive"
            )
        chunks, vectors = chunks.take(there), table[order][place][there]
    doubt = None
    if inputs.detections:
        doubt = _doubt(prepared, chunks, read_detections(inputs.detections), inputs.threshold)
        if not doubt.any():
            raise DataError(
                f"{inputs.detections} holds no detection in the unlabelled pool, so none is doubtful:\n"
                "give what `mast pseudo-label` or `mast detect` found there"
            )
    listed = recordings_from_arrow(prepared.recordings)
    local_s = listed.start_local_s[chunks.recording] + seconds_of_hops(chunks.chunk)
    candidates = Candidates(
        [prepared.recording_ids[row] for row in chunks.recording.tolist()],
        chunks.chunk.astype(np.int64),
        local_s / 3600 % 24,
        [listed.site[row] for row in chunks.recording.tolist()],
        doubt,
        vectors,
    )
    return plan_annotation(candidates, num, strategy, known, seed=seed)


def unlabelled_chunks(prepared: Prepared) -> ChunkSet:
    """Chunks of the pool whose recordings nobody has annotated."""
    pool = chunks_of_split(prepared, "pool")
    annotated = (
        pc.fill_null(prepared.recordings.column("is_annotated"), False)
        .to_numpy(zero_copy_only=False)
        .astype(bool)
    )
    free = pool.take(~annotated[pool.recording])
    if not len(free):
        raise DataError(
            f"{prepared.storage.url}: every recording of the pool is annotated already, there is nothing to plan"
        )
    return free


def _embedded(prepared: Prepared, uri: str) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
    """Keys and (N, C) embeddings of the chunks in a table of `mast embed`."""
    storage, names = split_uri(uri if uri.endswith(".parquet") else f"{uri.rstrip('/')}/embeddings.parquet")
    table = read_parquet(storage, names[0])
    if not {"recording_id", "chunk", "embedding"} <= set(table.column_names) or "event" in table.column_names:
        raise DataError(
            f"{uri} is no table of chunk embeddings: make one with `mast embed MODEL PREPARED --what chunks`"
        )
    rows = prepared.rows_of(table.column("recording_id"))
    column = table.column("embedding").combine_chunks()
    vectors = column.flatten().to_numpy(zero_copy_only=False).reshape(len(table), -1).astype(np.float32)
    keys = pair_keys(rows, table.column("chunk").to_numpy())
    return keys[rows >= 0], vectors[rows >= 0]


def _doubt(prepared: Prepared, chunks: ChunkSet, detections: pa.Table, threshold: float) -> Floats:
    """(N,) doubtful detections per chunk; those of stitched tables count for the
    chunk in whose middle they lie.
    """
    rows = prepared.rows_of(detections.column("recording_id"))
    middle_s = (detections.column("begin_s").to_numpy() + detections.column("end_s").to_numpy()) / 2
    nearest = np.minimum(middle_chunk(middle_s), prepared.num_chunks[rows] - 1)
    own = pc.fill_null(detections.column("chunk"), -1).to_numpy(zero_copy_only=False).astype(np.int64)
    wanted = pair_keys(rows, np.where(own >= 0, own, nearest))
    keys = keys_of(chunks)
    order = np.argsort(keys, kind="stable")
    place = np.minimum(np.searchsorted(keys[order], wanted), len(keys) - 1)
    hit = (keys[order][place] == wanted) & (rows >= 0)
    score = detections.column("score").to_numpy().astype(np.float64)
    return chunk_uncertainty(order[place[hit]], score[hit], len(chunks), threshold)


def write_plan(
    plan: Sequence[Choice],
    prepared: Prepared,
    out: Storage,
    audio: Storage | None,
    formats: Sequence[str] = FORMATS,
) -> list[str]:
    """Write plan, task files and (with the audio) clips; returns the names of what was written.

    The plan itself comes last: where it stands, somebody may have annotated its task files.
    """
    if out.stat(PLAN) is not None:
        raise DataError(
            f"{out.url} holds a plan, whose task files may be annotated by now:\ngive another --out, so that nothing is lost"
        )
    facts = {row["recording_id"]: row for row in prepared.recordings.to_pylist()}
    path_of = {choice.recording_id: facts[choice.recording_id]["path"] for choice in plan}
    missing = [path for path in path_of.values() if audio is not None and audio.stat(path) is None]
    if audio is not None and missing:  # before any task is written
        raise DataError(
            f"{audio.url} has no {missing[0]}:\ngive --audio the folder that was given to `mast prepare`"
        )
    columns = ("order", "chunk_id", "path", "site", "begin_s", "end_s", "start_local", "strategy", "reason")
    rows = [
        (n, c.chunk_id, path_of[c.recording_id], facts[c.recording_id]["site"] or "", c.begin_s, _end_s(c, facts),
         _local(facts[c.recording_id], c.begin_s), c.strategy, c.reason)
        for n, c in enumerate(plan, 1)
    ]  # fmt: skip
    tasks = plan_as_annotations(plan, path_of)
    known = audio_facts(prepared.recordings)
    inside = tuple(
        replace(a, end_s=min(a.end_s, known[a.path].duration_s)) if a.path in known else a
        for a in tasks.annotations
    )
    spans = tuple(Span(a.path, a.begin_s, a.end_s) for a in inside)
    names = [
        PLAN,
        *write_tasks(replace(tasks, annotations=inside, spans=spans), out, "tasks", formats, known),
    ]
    if audio is not None:
        names += _write_clips(plan, facts, out, audio, formats, channel_heard(prepared.manifest.config))
    out.write_atomic(PLAN, csv_bytes(columns, rows))
    return names


def write_tasks(
    tasks: AnnotationSet, out: Storage, folder: str, formats: Sequence[str], facts: dict[str, AudioFacts]
) -> list[str]:
    """raven/ and audacity/ with a file per recording, tasks.aoef.json with all."""
    names = []
    for format in formats:
        if format == "aoef":
            contents = {"tasks.aoef.json": annotations_as_text(tasks, "aoef", facts=facts)}
        else:
            taken: set[str] = set()
            contents = {
                f"{format}/{file_key(path, 'recording', taken, _ENDINGS[format])}": annotations_as_text(
                    AnnotationSet(own, frozenset({path})),
                    format,  # type: ignore[arg-type]
                    facts=facts,
                )
                for path, own in tasks.by_path().items()
            }
        for name, text in contents.items():
            out.write_atomic(f"{folder}/{name}", text.encode())
            names.append(f"{folder}/{name}")
    return names


def _write_clips(
    plan: Sequence[Choice],
    facts: dict[str, dict[str, Any]],
    out: Storage,
    audio: Storage,
    formats: Sequence[str],
    channel: Channel,
) -> list[str]:
    rows, tasks, lengths, names = [], [], {}, []
    for number, choice in enumerate(plan, 1):
        record = facts[choice.recording_id]
        samples = read_window(audio, record["path"], choice.begin_s, _end_s(choice, facts), channel)
        stem = f"{number:03d}_{PurePosixPath(record['path']).stem}"
        name = short_name(stem, f"_{choice.begin_s:08.2f}s.wav")
        out.write_atomic(f"clips/audio/{name}", wav_bytes(samples))
        names.append(f"clips/audio/{name}")
        duration_s = len(samples) / SAMPLE_RATE_HZ
        lengths[name] = AudioFacts(duration_s, SAMPLE_RATE_HZ)
        extra = {"Chunk": choice.chunk_id, "Order": str(number), "Reason": choice.reason}
        tasks.append(Annotation(name, 0.0, duration_s, label="annotate", extra=extra))
        rows.append(
            (
                name,
                record["site"] or "",
                _local(record, choice.begin_s),
                record["latitude"],
                record["longitude"],
            )
        )
    cells = (["" if value is None else value for value in row] for row in rows)
    out.write_atomic(
        "clips/recordings.csv", csv_bytes(("file", "site", "start_time", "latitude", "longitude"), cells)
    )
    everything = AnnotationSet(tuple(tasks), frozenset(task.path for task in tasks))
    return [*names, "clips/recordings.csv", *write_tasks(everything, out, "clips/tasks", formats, lengths)]


def _end_s(choice: Choice, facts: dict[str, dict[str, Any]]) -> float:
    return min(choice.begin_s + CHUNK_S, facts[choice.recording_id]["duration_s"])


def _local(record: dict[str, Any], begin_s: float) -> str:
    """2024-05-05T05:30:12.340+07:00, without an offset where the zone is unknown, in UTC where only that is known; empty
    without a clock.
    """
    start: datetime | None = record["start_utc"]
    if start is None:
        clock: datetime | None = record["start_local"]
        return (
            "" if clock is None else (clock + timedelta(seconds=begin_s)).isoformat(timespec="milliseconds")
        )
    zone = UTC if record["utc_offset_s"] is None else timezone(timedelta(seconds=int(record["utc_offset_s"])))
    return (start + timedelta(seconds=begin_s)).astimezone(zone).isoformat(timespec="milliseconds")
