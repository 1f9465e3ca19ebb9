"""The chunks that are trained on: those of the pool, and a detector's with their boxes, of one kind or of two kinds mixed."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from mast_ray.config.errors import DataError
from mast_ray.config.stage_knobs import DetectorTrainConfig
from mast_ray.config.tree import Config
from mast_ray.tables.prepared import Prepared
from mast_ray.tables.reading.chunk_sets import ChunkSet, chunks_of_split
from mast_ray.tables.reading.reader import ChunkReader
from mast_ray.training.data.feed import compiled_slots
from mast_ray.training.data.labels import LabelledChunks, LabelSource, attach_boxes, labelled_chunks
from mast_ray.training.data.mixed_reader import MixedReader, expert_count
from mast_ray.training.worker import Worker

HELD_OUT_CHUNKS = 2048  # enough to rank checkpoints by masked error


@dataclass(frozen=True, eq=False)
class TrainingData:
    """What a detector is trained on."""

    reader: ChunkReader | MixedReader
    experts: ChunkReader  # those of the reader's chunks whose boxes can be trusted most
    labelled: LabelledChunks  # of `experts`
    samples_per_epoch: int

    def least_slots(self) -> int:
        """Box slots of a compiled step."""
        mixed = self.reader if isinstance(self.reader, MixedReader) else None
        readers = (self.experts,) if mixed is None else (mixed.expert, mixed.pseudo)
        return max(compiled_slots(reader.boxes.counts()) for reader in readers)


def training_data(
    prepared: Prepared, source: LabelSource, config: Config, knobs: DetectorTrainConfig, worker: Worker
) -> TrainingData:
    """Chunks of a source with their boxes, in batches of the knobs' size."""
    labelled = labelled_chunks(prepared, source, config)

    def reader_of(chunks: LabelledChunks, batch_size: int) -> ChunkReader:
        reader = chunk_reader(prepared, chunks.chunks, config, batch_size, worker)
        attach_boxes(reader, prepared, chunks, config.spectrogram.min_remnant_s, config.labels.time_only)
        return reader

    if source.name not in ("mixed", "truth", "control"):
        reader = reader_of(labelled, knobs.batch_size)
        return TrainingData(reader, reader, labelled, len(reader))
    expert, other = labelled.part("expert"), labelled.part("pseudo")
    if not len(other.chunks):
        raise DataError(
            f"{source.folder} names no chunk besides the experts': there is nothing to mix in\n"
            "lower the threshold, or use --set self_train.curriculum=stage2_only"
        )
    count = expert_count(knobs.batch_size, config.self_train.expert_share)
    mixed = MixedReader(reader_of(expert, count), reader_of(other, knobs.batch_size - count))
    if source.name == "truth":
        mixed.pseudo.is_pseudo[:] = False  # whatever made them, these boxes are right
    if source.name == "control":
        alone = reader_of(expert, knobs.batch_size)
        return TrainingData(alone, alone, expert, mixed.samples_per_epoch)
    return TrainingData(mixed, mixed.expert, expert, mixed.samples_per_epoch)


def pretraining_chunks(prepared: Prepared) -> tuple[ChunkSet, ChunkSet]:
    """(pool to train on, held-out chunks). Without a validation split every twentieth
    recording of the pool is held out.
    """
    pool = chunks_of_split(prepared, "pool")
    try:
        held = chunks_of_split(prepared, "val")
    except DataError:
        recordings = np.unique(pool.recording)
        if len(recordings) >= 20:
            is_held = np.isin(pool.recording, recordings[::20])
            is_rest = ~is_held
        else:  # few long recordings: the last twentieth of the chunks; that before shares half of its sound with them
            place, first = np.arange(len(pool)), len(pool) - max(1, len(pool) // 20)
            is_held, is_rest = place >= first, place < first - 1
        held, rest = pool.take(is_held), pool.take(is_rest)
        pool = rest if len(rest) else pool
    step = max(1, len(held) // HELD_OUT_CHUNKS)
    return pool, held.take(np.arange(0, len(held), step))


def chunk_reader(
    prepared: Prepared, chunks: ChunkSet, config: Config, batch_size: int, worker: Worker
) -> ChunkReader:
    return ChunkReader(
        prepared,
        chunks,
        batch_size=batch_size,
        lanes=config.cluster.lanes,
        seed=config.seed,
        num_threads=config.cluster.reader_threads,
        pin_memory=worker.device.type == "cuda",
    )
