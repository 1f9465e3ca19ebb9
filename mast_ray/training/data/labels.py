"""Which chunks a detector is trained on, with whose boxes and what weight: expert
labels, pseudo-labels, or both.

Pseudo-labels are made per chunk, so they are stored per chunk: a folder with `pseudo_labels.parquet`
(recording_id, chunk, begin_s, end_s, low_hz, high_hz in the recording, score, is_ignored) and `pseudo_chunks.parquet`
(recording_id, chunk, weight, threshold, ignore_above: the chunks to train on). Legend: N chunks, K boxes.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from mast_ray.config.errors import DataError
from mast_ray.config.stage_knobs import SelfTrainConfig
from mast_ray.config.tree import Config, StorageConfig
from mast_ray.spectrogram.grid import seconds_of_hops
from mast_ray.storage.storage import Storage, open_storage
from mast_ray.tables.dealing.label_budget import pick_budget
from mast_ray.tables.local_time import local_seconds
from mast_ray.tables.prepared import Prepared, read_table
from mast_ray.tables.reading.chunk_sets import (
    BoxTable,
    ChunkSet,
    TimeOnly,
    box_table,
    chunks_of_split,
    heard_chunks,
    keys_of,
)
from mast_ray.tables.reading.reader import ChunkReader

NO_LIMITS = (1.0, 1.0)  # thresholds of a chunk that no teacher labels
PSEUDO_LABELS, PSEUDO_CHUNKS = "pseudo_labels.parquet", "pseudo_chunks.parquet"
CHOSEN_CHUNKS = pa.schema(
    [
        ("recording_id", pa.string()),
        ("chunk", pa.int32()),
        ("weight", pa.float32()),
        ("threshold", pa.float32()),
        ("ignore_above", pa.float32()),
    ]
)


@dataclass(frozen=True)
class LabelSource:
    """Whose boxes: `expert` (train split), `pseudo` (a folder of pseudo-labels), or `both` (experts win where they
    looked). `mixed` is both with a share of each in every batch; `truth` is the same with a folder of true labels;
    `control` is expert labels for as many steps as `mixed` would take.
    """

    name: Literal["expert", "pseudo", "both", "mixed", "truth", "control"] = "expert"
    folder: str = ""  # of the pseudo-labels
    content: str = (
        ""  # hash of what the folder holds: a run goes on only with the same pseudo-labels, wherever they lie
    )

    def describe(self) -> str:
        return self.name if self.name == "expert" else f"{self.name}:{self.content or self.folder}"


@dataclass(frozen=True, eq=False)
class LabelledChunks:
    """Chunks, and how to find the boxes of any of them."""

    chunks: ChunkSet
    experts: frozenset[int] | None  # keys of chunks whose boxes are the experts'; None: all
    pseudo: pa.Table | None
    limits: dict[int, tuple[float, float]] | None = (
        None  # key of a chunk -> its thresholds, where they were kept
    )

    def part(self, whose: Literal["expert", "pseudo"]) -> LabelledChunks:
        """Only the chunks with expert boxes, or only the others."""
        assert self.experts is not None
        is_expert = np.array([key in self.experts for key in keys_of(self.chunks).tolist()], bool)
        return replace(self, chunks=self.chunks.take(is_expert == (whose == "expert")))


def labelled_chunks(prepared: Prepared, source: LabelSource, config: Config) -> LabelledChunks:
    """The training chunks of a source with their weights (1 for expert chunks); a
    label budget limits the experts'.
    """
    if source.name == "expert":
        return LabelledChunks(expert_chunks(prepared, config), None, None)
    storage = open_storage(source.folder, config.storage)
    pseudo_chunks, labels = _read(storage, PSEUDO_CHUNKS), _read(storage, PSEUDO_LABELS)
    rows = prepared.rows_of(pseudo_chunks.column("recording_id"))
    if (rows < 0).any():
        raise DataError(
            f"{storage.url} names recordings that {prepared.storage.url} does not hold: label the pool again"
        )
    chunks = ChunkSet(
        rows.astype(np.int32),
        pseudo_chunks.column("chunk").to_numpy().astype(np.int32),
        pseudo_chunks.column("weight").to_numpy().astype(np.float32),
    )
    limits = _limits(pseudo_chunks, chunks)
    if source.name == "pseudo":
        _refuse_no_object(labels, storage.url, config.self_train)
        return LabelledChunks(chunks, frozenset(), labels, limits)
    expert = expert_chunks(prepared, config)
    seen = frozenset(keys_of(expert).tolist())
    others = chunks.take(np.array([key not in seen for key in keys_of(chunks).tolist()], bool))
    both = ChunkSet(
        np.concatenate([expert.recording, others.recording]),
        np.concatenate([expert.chunk, others.chunk]),
        np.concatenate([expert.weight, others.weight]),
    )
    return LabelledChunks(both, seen, labels, limits)


def _refuse_no_object(labels: pa.Table, folder: str, knobs: SelfTrainConfig) -> None:
    """Pseudo-labels that hold no object teach nothing: the threshold is what to look at, not the archive."""
    if has_object(labels):
        return
    raise DataError(
        f"{folder}: no pseudo-box to learn from: nothing that the model found in the pool reaches its threshold\n"
        f"(self_train.policy={knobs.policy}, self_train.threshold={knobs.threshold:g}): lower it, "
        f"e.g. --set self_train.threshold={knobs.threshold / 2:g}, or let validation choose it, --set self_train.policy=tuned"
    )


def has_object(labels: pa.Table) -> bool:
    """Whether any of the pseudo-boxes is to be learned, not only to be ignored."""
    if "is_ignored" not in labels.column_names:
        return bool(len(labels))
    return bool(pc.any(pc.invert(labels.column("is_ignored"))).as_py())


def _limits(pseudo_chunks: pa.Table, chunks: ChunkSet) -> dict[int, tuple[float, float]] | None:
    if "threshold" not in pseudo_chunks.column_names:
        return None
    columns = (pseudo_chunks.column(name).to_pylist() for name in ("threshold", "ignore_above"))
    return dict(zip(keys_of(chunks).tolist(), zip(*columns, strict=True), strict=True))


def expert_chunks(prepared: Prepared, config: Config) -> ChunkSet:
    """Chunks of the train split that were gone through, or as many of them as `split.budget_chunks` allows."""
    chunks = heard_chunks(prepared, chunks_of_split(prepared, "train"))
    if not config.split.budget_chunks:
        return chunks
    start_s = local_seconds(prepared.recordings, unknown_offset="utc")
    local_s = start_s[chunks.recording] + seconds_of_hops(chunks.chunk)
    in_time = np.argsort(local_s, kind="stable")  # unknown times (NaN) come last
    rng = np.random.default_rng([config.seed, 17])
    picked = pick_budget(
        local_s[in_time] / 3600 % 24, config.split.budget_strategy, config.split.budget_chunks, rng
    )
    return chunks.take(np.sort(in_time[picked]))


def attach_boxes(
    reader: ChunkReader,
    prepared: Prepared,
    labelled: LabelledChunks,
    min_remnant_s: float = 0.1,
    time_only: TimeOnly = "ignore",
) -> None:
    """Give a reader made without labels the boxes of its chunks, and say which are pseudo-labelled."""
    expert = box_table(
        prepared, reader.chunks, prepared.labels, min_remnant_s=min_remnant_s, ignored=prepared.ignored
    )
    expert = replace(expert, time_only=time_only)
    if labelled.pseudo is None or labelled.experts is None:
        reader.boxes = expert
        return
    pseudo = box_table(prepared, reader.chunks, labelled.pseudo, min_remnant_s=min_remnant_s)
    keys = keys_of(reader.chunks).tolist()
    is_expert = np.array([key in labelled.experts for key in keys], bool)
    reader.boxes, reader.is_pseudo = _chosen(expert, pseudo, is_expert), ~is_expert
    if labelled.limits is not None:
        reader.limits = np.array([labelled.limits.get(key, NO_LIMITS) for key in keys], np.float32)


def refuse_untaught(boxes: BoxTable, num_labels: int, archive: str, budget_chunks: int = 0) -> str:
    """What to say about labels that teach nothing ("" when all do); boxes of which none teaches are an error,
    before an hour of training shows a loss of 0.
    """
    without_band = boxes.is_time_only & ~boxes.teaches
    silent = int(np.unique(boxes.label_row[without_band]).size)
    if boxes.teaches.any():
        if not silent:
            return ""
        return (
            f"{silent:,} labels of the training chunks have no frequencies and teach nothing: "
            "with --set labels.time_only=teach they teach time"
        )
    if silent:
        raise DataError(
            f"{archive}: all {silent:,} labels of its training chunks are without frequencies and teach nothing:\n"
            "with --set labels.time_only=teach they teach time, and the detector is scored in time"
        )
    if num_labels and budget_chunks:
        raise DataError(
            f"{archive}: no label lies in the chunks that split.budget_chunks={budget_chunks} draws: nothing can be learnt\n"
            f"draw more of them, e.g. --set split.budget_chunks={4 * budget_chunks}, or others by another --set seed"
        )
    raise DataError(
        f"{archive}: not one of its {num_labels:,} labels lies in the training chunks: nothing can be learnt\n"
        + (
            "deal the recordings again with `mast split`"
            if num_labels
            else "give annotations to `mast prepare`"
        )
    )


def quiet_chunks(
    reader: ChunkReader, prepared: Prepared, labelled: LabelledChunks, config: Config
) -> ChunkSet:
    """Chunks without a call, for background mixing: those where an expert heard none; without any,
    those the reader's labels leave empty.

    Pseudo-labels cannot say it: chunks without one are left out of training, or hold the
    calls that the teacher missed.
    """
    own = reader.chunks.take(reader.boxes.counts() == 0)
    if labelled.experts is None:
        return own
    try:
        chunks = expert_chunks(prepared, config)
    except DataError:  # an archive without annotations
        return own
    labels = box_table(
        prepared,
        chunks,
        prepared.labels,
        min_remnant_s=config.spectrogram.min_remnant_s,
        ignored=prepared.ignored,
    )
    quiet = chunks.take(labels.counts() == 0)
    return quiet if len(quiet) else own


def pseudo_label_tables(
    prepared: Prepared,
    chunks: ChunkSet,
    chosen: NDArray[np.int64],
    weight: NDArray[np.float64],
    boxes: pa.Table,
) -> dict[str, pa.Table]:
    """The two tables of a pseudo-label folder by file name: rows `chosen` of `chunks` with weights, and their boxes."""
    return {PSEUDO_LABELS: boxes, PSEUDO_CHUNKS: chosen_chunks_table(prepared, chunks, chosen, weight)}


def chosen_chunks_table(
    prepared: Prepared,
    chunks: ChunkSet,
    chosen: NDArray[np.int64],
    weight: NDArray[np.float64],
    limits: tuple[NDArray[np.float64], NDArray[np.float64]] | None = None,
) -> pa.Table:
    """Rows `chosen` of `chunks` with weights. `limits`: upper and lower threshold of every one of `chunks`, for a
    teacher that labels them again.
    """
    ids = prepared.recordings.column("recording_id").combine_chunks()
    columns = [
        ids.take(pa.array(chunks.recording[chosen])),
        pa.array(chunks.chunk[chosen], pa.int32()),
        pa.array(np.asarray(weight, np.float32)),
        *(pa.array(values[chosen].astype(np.float32)) for values in limits or ()),
    ]
    return pa.table(columns, schema=pa.schema(list(CHOSEN_CHUNKS)[: len(columns)]))


def _chosen(first: BoxTable, second: BoxTable, is_first: NDArray[np.bool_]) -> BoxTable:
    """Per chunk the boxes of the first or of the second table."""
    counts = np.where(is_first, first.counts(), second.counts())
    begin = np.where(is_first, first.start[:-1], second.start[:-1] + len(first.corners))
    start = np.concatenate(([0], np.cumsum(counts)))
    row = np.repeat(begin - start[:-1], counts) + np.arange(start[-1])
    names = ("corners", "is_ignored", "is_time_only", "label_row", "score")
    columns = (np.concatenate([getattr(first, n), getattr(second, n)])[row] for n in names)
    return replace(BoxTable(start, *columns), time_only=first.time_only)


def with_content(source: LabelSource, settings: StorageConfig) -> LabelSource:
    """The source with the hash of its folder's tables, where it was named by its place alone."""
    if not source.folder or source.content:
        return source
    storage, digest = open_storage(source.folder, settings), hashlib.sha256()
    for key in (PSEUDO_CHUNKS, PSEUDO_LABELS):
        _refuse_missing(storage, key)
        digest.update(storage.read_bytes(key))
    return replace(source, content=digest.hexdigest()[:12])


def _read(storage: Storage, key: str) -> pa.Table:
    _refuse_missing(storage, key)
    return read_table(storage, key)


def _refuse_missing(storage: Storage, key: str) -> None:
    if storage.stat(key) is None:
        raise DataError(
            f"{storage.url} is not a folder of pseudo-labels: it has no {key}\n"
            "give round1/pseudo below a folder of `mast self-train` (what `mast pseudo-label` writes are candidates)"
        )
