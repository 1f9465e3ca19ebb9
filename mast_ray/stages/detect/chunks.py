"""A detector over the chunks of splits of a prepared archive, once per model, as a stage: for scores and for
pseudo-labels.

OUT/detections/*.parquet hold one row per detection and chunk above the score floor. Units are stretches of recordings;
interrupted, the same command goes on with those that are left, and every chunk is counted exactly once.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import torch

from mast_ray.config.errors import DataError, TemporaryError
from mast_ray.config.tree import Config, ModelConfig
from mast_ray.inference.chunk_detector import ChunkDetector, Inputs, StoredDetections
from mast_ray.inference.chunk_scores import delivered_boxes, doubted_boxes
from mast_ray.inference.committee import Committee
from mast_ray.inference.pool_rows import PoolWriter
from mast_ray.spectrogram.grid import seconds_of_hops
from mast_ray.stages.runner import ON_RAY, Runner, work_off
from mast_ray.storage.ledger import Attempt
from mast_ray.storage.outputs import copy_work, remove_leftovers
from mast_ray.storage.spread import Resources, Spread
from mast_ray.storage.stage_folders import text_hash
from mast_ray.storage.stage_run import StageResult, StageRun, done_before, open_output, stage_run
from mast_ray.storage.storage import Storage, open_storage
from mast_ray.storage.unit_runner import Work, WorkDone, publish_file
from mast_ray.storage.units import (
    Item,
    Outcome,
    Unit,
    group_units,
    iter_commits,
    pending_units,
    take_back_empty,
)
from mast_ray.tables.backgrounds import with_background
from mast_ray.tables.prepared import Prepared, data_hash, open_prepared
from mast_ray.tables.reading.chunk_sets import ChunkRuns, ChunkSet, drawn_runs, runs_of_split
from mast_ray.tables.reading.reader import ChunkReader
from mast_ray.training.assembly import load_detector
from mast_ray.training.data.archive_inputs import read_as
from mast_ray.training.engine import choose_precision
from mast_ray.training.files.began_with import TAUGHT_BY, origins_of
from mast_ray.training.files.model_files import Card, read_card
from mast_ray.training.files.post_processing import PostProcessing
from mast_ray.training.worker import first_device

log = logging.getLogger("mast.chunks")

STAGE, FOLDER = "detect-chunks", "detections"
# about a day of audio: seconds on a GPU, so that starting and ending a unit is lost in it
CHUNKS_PER_UNIT = 16_384
MOST_UNITS = 50_000  # huge pools get larger ones: of five billion chunks 100,000 each, 43 s of one GPU
RUNS_AT_ONCE = 100_000
LEAST_PER_UNIT = 64  # some seconds on a core: two cores share even a small split
WORTH_COMPILING = 50_000  # chunks from which a minute of compilation pays on a GPU


@dataclass(frozen=True)
class ChunkTask:
    """Which chunks of which archive go through which detector, and what is kept of them.

    Kernels are the fastest for a pool, where boxes number in millions and nobody counts digits; scores are made with
    repeatable ones, so that the same model has the same figures wherever it is scored.
    """

    config: Config
    model: str
    prepared: str
    out: str
    splits: tuple[str, ...]
    stored: StoredDetections
    kernels: Literal["fastest", "repeatable"] = "fastest"
    post: PostProcessing | None = None  # of the model's card, where boxes are to be as it delivers them
    doubts_nested: bool = False  # without post-processing, where boxes are to be as the model delivers them
    also: tuple[str, ...] = ()  # further models that hear every chunk
    num_hearings: int = 1  # of every model
    most_chunks: int = 0  # drawn at random; 0: all


def detect_chunks(
    task: ChunkTask,
    runner: Runner = ON_RAY,
    chunks_per_unit: int = 0,
    stage_name: str = STAGE,
    known: Sequence[Storage] = (),
) -> StageResult:
    """Detections of every chunk of the task's splits into its folder. Where one of the `known` folders holds them
    already they are copied: nothing is detected twice.
    """
    config, stored = task.config, task.stored
    stage = open_output(task.out, stage_name, config.storage)
    card = read_card(task.model, config.storage)
    archive = read_as(open_prepared(task.prepared, config.storage), card, task.model)
    settings: dict[str, Any] = {
        "model": card.weights_sha256,
        "prepared": data_hash(archive),
        "splits": list(task.splits),
        "score_floor": stored.score_floor,
        "nms_overlap": stored.nms_overlap,
        "max_detections": stored.max_detections,
    }
    if task.post is not None:
        settings |= {"post": task.post.to_dict(), "max_delivered": config.evaluate.max_detections}
    if task.doubts_nested:
        settings |= {"doubts_nested": True}
    if task.also or task.num_hearings > 1:
        settings |= {"also": [_hears_alike(model, card, task) for model in task.also]}
        settings |= {"num_hearings": task.num_hearings}
    inputs = {"model": card.weights_sha256, "prepared": settings["prepared"]}
    every = runs_of_split(archive, *task.splits)
    chunks = drawn_runs(every, task.most_chunks, config.seed)
    drawn = {} if chunks is every else {"most_chunks": task.most_chunks, "seed": config.seed}
    settings |= drawn
    key = text_hash(repr(sorted(settings.items())))
    with stage_run(stage, stage_name, config, key, inputs, settings) as run:
        if run.done is not None:
            log.info("%s holds these detections already", stage.url)
            return StageResult(run.done, was_done=True)
        models = origins_of([("teacher", model) for model in (task.model, *task.also)], config.storage)
        if drawn:
            log.info("%s of %s chunks are drawn at random", f"{len(chunks):,}", f"{len(every):,}")
        taken = next((one for one in known if done_before(one, stage_name, key, inputs)), None)
        units = chunk_units(archive, chunks, chunks_per_unit or chunks_of_a_unit(len(chunks)))
        if taken is not None:
            log.info("%s holds these detections already: they are copied", taken.url)
            copy_work(taken, stage)
        else:
            _work_off(task, run, units, runner, len(chunks))
        told = {"drawn": drawn, TAUGHT_BY: [asdict(one) for one in models]}
        return StageResult(run.finish(count_chunks(stage, units) | told), was_done=False)


def _hears_alike(model: str, card: Card, task: ChunkTask) -> str:
    """The hash of a further model's weights; it must take chunks that are made as the first one's are. Their statistics
    may be others.
    """
    own = read_card(model, task.config.storage)
    theirs, ours = ((one.normaliser().background, one.tail) for one in (own, card))
    if theirs != ours:
        raise DataError(
            f"{model} and {task.model} cannot label a pool together, they hear different spectrograms:\n"
            f"spectrogram.background={theirs[0]}, tail {theirs[1]}, and {ours[0]}, {ours[1]}\n"
            "leave one of them out, or train it again with the setting of the other"
        )
    return own.weights_sha256


def chunks_of_a_unit(num_chunks: int) -> int:
    """Small pools in about 16 units, so that little is lost by a kill and several actors have work; huge ones in about
    MOST_UNITS, because every unit leaves small files.
    """
    return max(int(np.clip(num_chunks // 16, LEAST_PER_UNIT, CHUNKS_PER_UNIT)), -(-num_chunks // MOST_UNITS))


def chunk_units(prepared: Prepared, chunks: ChunkRuns, chunks_per_unit: int) -> list[Unit]:
    """Stretches of neighbouring chunks of a recording, grouped; the size of an item is its number of chunks. Stretches
    do not grow with huge units: what was done of a pool is found again when it has grown.
    """
    stretches = _stretches(prepared, chunks, min(chunks_per_unit, CHUNKS_PER_UNIT))
    return group_units(stretches, chunks_per_unit, chunks_per_unit)


def _stretches(prepared: Prepared, chunks: ChunkRuns, most: int) -> Iterator[Item]:
    for low in range(0, len(chunks.recording), RUNS_AT_ONCE):  # names of some recordings at a time
        some = slice(low, low + RUNS_AT_ONCE)
        named = prepared.recordings.select(["recording_id", "path"]).take(pa.array(chunks.recording[some]))
        columns = (named.column("recording_id").to_pylist(), named.column("path").to_pylist())
        runs = zip(*columns, chunks.first[some].tolist(), chunks.count[some].tolist(), strict=True)
        for name, path, start, count in runs:
            for begin in range(start, start + count, most):
                size = min(most, start + count - begin)
                yield Item(f"{name}-{begin}-{begin + size}", path, size, "")


def chunks_of_items(prepared: Prepared, items: Sequence[Item]) -> ChunkSet:
    """The chunks that items name."""
    return runs_of_items(prepared, [item.item_id for item in items]).chunks()


def runs_of_items(prepared: Prepared, item_ids: Sequence[str]) -> ChunkRuns:
    """The stretches that items name, in their order."""
    names, begins, ends = zip(*(item_id.rsplit("-", 2) for item_id in item_ids), strict=True)
    first, end = np.array(begins, np.int64), np.array(ends, np.int64)
    rows = prepared.rows_of(pa.array(names, pa.string()))
    assert (rows >= 0).all(), f"{prepared.storage.url} does not hold the recordings of this unit"
    return ChunkRuns(rows, first, end - first)


@dataclass(frozen=True)
class MakeChunkWork:
    """Builds the work where it will run: the detector is loaded once per actor."""

    task: ChunkTask
    num_chunks: int

    def __call__(self) -> Work:
        config = self.task.config
        device = first_device(config.cluster.use_gpu)
        if device.type == "cuda":
            torch.set_float32_matmul_precision("high")
            torch.backends.cudnn.benchmark = self.task.kernels == "fastest"
            torch.backends.cudnn.deterministic = self.task.kernels == "repeatable"
        detector, card = load_detector(self.task.model, config.storage)
        if self.task.also or self.task.num_hearings > 1:
            others = [load_detector(model, config.storage) for model in self.task.also]
            takes = card.normaliser()
            detector = Committee(
                [detector, *(one for one, _ in others)],
                self.task.num_hearings,
                takes.silence,
                [one.normaliser().scale_from(takes) for one in (card, *(own for _, own in others))],
            )
        inputs = Inputs(
            card.normaliser(), card.tail, device, choose_precision(config.cluster.precision, device)
        )
        pays = device.type == "cuda" and self.num_chunks >= WORTH_COMPILING
        wanted = config.model.compile == "on" or (config.model.compile == "auto" and pays)
        compiled: Literal["yes", "no"] = "yes" if wanted and self.task.kernels == "fastest" else "no"
        prepared = open_prepared(self.task.prepared, config.storage)
        return ChunkWork(
            with_background(prepared, inputs.normalisation.background),
            open_storage(self.task.out, config.storage),
            ChunkDetector(detector, inputs, config.evaluate.batch_size, self.task.stored, compiled),
            card.weights_sha256,
            config.cluster.reader_threads,
            self.task.post,
            config.evaluate.max_detections,
            self.task.doubts_nested,
        )


@dataclass(frozen=True, eq=False)
class ChunkWork:
    """Read, detect, write: one unit at a time."""

    prepared: Prepared
    stage: Storage
    detector: ChunkDetector
    model_sha: str
    num_threads: int = 0
    post: PostProcessing | None = None
    most: int = 0  # detections of a chunk, where there is post-processing
    doubts_nested: bool = False

    def __call__(self, attempt: Attempt, items: Sequence[Item]) -> WorkDone:
        num_chunks = 0
        with self.stage.scratch_file() as path:
            writer = PoolWriter(path, self.prepared, self.model_sha)
            try:
                for group in attempt.groups(items):
                    reader = self._reader(group)
                    for found in self.detector.detections(reader):
                        if self.post is not None:
                            found = delivered_boxes(self.prepared, reader.chunks, found, self.post, self.most)
                        if self.doubts_nested:
                            found = doubted_boxes(self.prepared, reader.chunks, found)
                        writer.add(reader.chunks, found)
                        num_chunks += found.num_chunks
                        attempt.beat()
                num_rows = writer.close()
            except BaseException:
                writer.abandon()
                raise
            file = publish_file(self.stage, path, FOLDER, attempt.unit, num_rows)
        assert num_chunks == sum(item.num_bytes for item in items)
        outcomes = [Outcome(item.item_id, "done", record={"chunks": item.num_bytes}) for item in items]
        return WorkDone(
            outcomes, [file], {"audio_s": float(seconds_of_hops(num_chunks)), "detections": num_rows}
        )

    def _reader(self, items: Sequence[Item]) -> ChunkReader:
        return ChunkReader(
            self.prepared,
            chunks_of_items(self.prepared, items),
            batch_size=self.detector.batch_size,
            num_threads=self.num_threads,
            pin_memory=self.detector.inputs.device.type == "cuda",
            cache_bytes=0,  # everything is read once
        )


def _work_off(task: ChunkTask, run: StageRun, units: Sequence[Unit], runner: Runner, num_chunks: int) -> None:
    take_back_empty(run.stage)
    pending = pending_units(units, iter_commits(run.stage))
    if len(pending) < len(units):
        left = sum(unit.num_bytes for unit in pending)
        print(f"resuming: {num_chunks - left:,} of {num_chunks:,} chunks done", flush=True)
    if pending:
        with runner.session():
            spread_of = host_spread if is_host_work(task) else model_spread
            spread = spread_of(task.config, runner.resources(), len(pending))
            work_off(runner, run, pending, MakeChunkWork(task, num_chunks), spread)


def model_spread(config: Config, offered: Resources, num_units: int) -> Spread:
    """One model per GPU (up now, or asked for with `cluster.use_gpu=yes`), or per training worker's share of CPUs."""
    cluster = config.cluster
    gpus = int(offered.num_gpus) if cluster.use_gpu != "no" else 0
    if cluster.use_gpu == "yes" and not offered.is_one_process:
        # a cluster that grows on demand shows none before it is asked for
        gpus = max(gpus, cluster.num_workers)
    return Spread(
        max(1, min(gpus or cluster.num_workers, num_units)),
        cluster.cpus_per_worker,
        1.0 if gpus else 0.0,
        timeout_s=config.detect.stall_timeout_s,
    )


def is_host_work(task: ChunkTask) -> bool:
    """Whether nothing of it runs on a GPU: detectors without weights alone."""
    models = (task.model, *task.also)
    return not any(ModelConfig.model_validate(read_card(m, task.config.storage).model).learns for m in models)


def host_spread(config: Config, offered: Resources, num_units: int) -> Spread:
    """A process per core of the cluster; GPUs are left to others."""
    num_actors = max(1, min(int(offered.num_cpus), num_units))
    return Spread(num_actors, 1.0, timeout_s=config.detect.stall_timeout_s)


def count_chunks(stage: Storage, units: Sequence[Unit]) -> dict[str, Any]:
    """Every chunk exactly once, or the stage is not finished. Commits go by one after another."""
    waiting = {item.item_id: item.num_bytes for unit in units for item in unit.items}
    offered, recordings = sum(waiting.values()), len({name.rsplit("-", 2)[0] for name in waiting})
    done = rejected = num_rows = 0
    files: list[str] = []
    for commit in iter_commits(stage):
        for outcome in commit.outcomes:
            size = waiting.pop(outcome.item_id, 0)
            if outcome.status == "rejected":
                rejected += size
            else:
                done += (outcome.record or {}).get("chunks", 0)
        files += [file.key for file in commit.files]
        num_rows += sum(file.num_rows for file in commit.files)
    if waiting or done + rejected != offered:
        raise TemporaryError(
            f"{done} chunks done + {rejected} rejected is not {offered} offered:\nrun the same command again"
        )
    remove_leftovers(stage, files, (FOLDER,))
    return {
        "chunks": offered,
        "recordings": recordings,
        "detections": num_rows,
        "rejected_chunks": rejected,
        "hours": round(float(seconds_of_hops(offered)) / 3600, 3),
    }
