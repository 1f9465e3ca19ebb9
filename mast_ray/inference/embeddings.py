"""Embeddings of chunks or boxes by a model folder, as one table: the encoder's tokens, the
neck's finest map, or its projection.

Legend: B chunks, N rows, D numbers of an embedding. A box is embedded in the chunk that shows most of it,
most centrally; chunks are embedded by the mean over what is audio, not padding. Rows carry what maps and
searches ask for: recording, site, split, hour, label.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from mast_ray.config.errors import ConfigError, DataError
from mast_ray.config.tree import Config
from mast_ray.evaluation.events import recordings_from_arrow
from mast_ray.models.detector import EmbeddingName, PointDetector
from mast_ray.models.encoder import PATCH
from mast_ray.models.regions import pooled_regions
from mast_ray.spectrogram.grid import CHUNK_FRAMES, CHUNK_S, seconds_of_hops
from mast_ray.tables.prepared import Prepared
from mast_ray.tables.reading.chunk_sets import (
    BoxTable,
    ChunkSet,
    box_table,
    chunks_of_blocks,
    chunks_of_split,
    keys_of,
    pair_keys,
)
from mast_ray.tables.reading.reader import ChunkReader
from mast_ray.training.assembly import load_detector, load_encoder
from mast_ray.training.data.feed import batch_of
from mast_ray.training.engine import autocast, choose_precision
from mast_ray.training.files.model_files import Card, read_card
from mast_ray.training.worker import first_device

What = Literal["chunks", "boxes"]
Background = Literal[
    "keep", "subtract"
]  # of boxes: the mean of their chunk, which says more about the site than about the call
Vectors = NDArray[np.float32]
Ints = NDArray[np.int64]
FACTS = pa.schema(
    [
        ("recording_id", pa.string()),
        ("path", pa.string()),
        ("site", pa.string()),
        ("split", pa.string()),  # of the chunk; "" for unlabelled audio
        ("hour", pa.float64()),  # local hour of day at the begin; null when unknown
        ("chunk", pa.int32()),  # the chunk it was embedded in
        ("begin_s", pa.float64()),
        ("end_s", pa.float64()),
    ]
)


@dataclass(frozen=True, eq=False)
class Embedder:
    """A network on its device and the name of the map that is pooled."""

    network: nn.Module  # PointDetector, or a PatchEncoder
    card: Card
    name: EmbeddingName
    device: torch.device
    precision: Any
    background: Background = "keep"

    def features(self, logmel: Tensor) -> tuple[Tensor, tuple[int, int]]:
        """(B, 1, T, F) -> map (B, C, time, frequency) and its strides"""
        if not isinstance(self.network, PointDetector):
            return self.network(logmel), (PATCH, PATCH)
        if self.name == "encoder":
            return self.network.backbone_map(logmel)
        return self.network.maps(logmel)[0], self.network.levels[0].stride

    def finished(self, pooled: Tensor) -> Tensor:
        """(..., C) -> (..., D) float32: projected where that is asked for"""
        if self.name == "projection":
            assert isinstance(self.network, PointDetector) and self.network.projection is not None
            pooled = self.network.projection(pooled)
        return pooled.float()


def load_embedder(
    model: str, name: EmbeddingName, config: Config, background: Background = "keep"
) -> Embedder:
    """A detector of the MAST family, or a pretrained autoencoder (encoder only)."""
    if background == "subtract" and name == "projection":
        raise ConfigError(
            "--background subtract is for encoder and neck: a projection is trained on whole features"
        )
    card = read_card(model, config.storage)
    device = first_device(config.cluster.use_gpu)
    network: nn.Module
    if card.kind == "autoencoder":
        if name != "encoder":
            raise ConfigError(
                f"{model} is a pretrained encoder, which has no {name}: use --name encoder, or a detector"
            )
        network, card = load_encoder(model, config.storage)
    else:
        network, card = load_detector(model, config.storage)
        if not isinstance(network, PointDetector):
            raise ConfigError(
                f"{model} has no embeddings (model.name={card.model.get('name')}): use a MAST detector or an encoder"
            )
        if name == "projection" and network.projection is None:
            raise ConfigError(
                f"{model} is a {card.model.get('name')} without projection head: use --name neck or encoder"
            )
    precision = choose_precision(config.cluster.precision, device)
    return Embedder(network.to(device).eval(), card, name, device, precision, background)


def chunks_to_embed(prepared: Prepared, splits: Sequence[str]) -> ChunkSet:
    """Chunks of the named splits ("pool" is one of them); of the whole archive when none is named."""
    if splits:
        return chunks_of_split(prepared, *splits)
    rows = np.arange(len(prepared.recordings))
    duration_s = prepared.recordings.column("duration_s").to_numpy()
    return chunks_of_blocks(prepared, rows, np.zeros(len(rows)), duration_s)


@torch.no_grad()
def embed_chunks(embedder: Embedder, prepared: Prepared, chunks: ChunkSet, config: Config) -> pa.Table:
    """One row per chunk with the mean embedding of its audio; num_events counts the labels it
    shows (null where nobody looked).
    """
    reader = _reader(prepared, chunks, config)
    parts: list[Vectors] = []
    for logmel, raw in _inputs(embedder, reader, config):
        with autocast(embedder.device, embedder.precision):
            pooled = _heard_mean(*embedder.features(logmel), raw.valid_frames)
            parts.append(embedder.finished(pooled).cpu().numpy())
    own = reader.chunks
    table = _facts(prepared, own.recording, own.chunk, seconds_of_hops(own.chunk), np.full(len(own), CHUNK_S))
    remnant_s = config.spectrogram.min_remnant_s
    events = box_table(prepared, own, prepared.labels, min_remnant_s=remnant_s).counts()
    looked = (
        pc.fill_null(prepared.recordings.column("is_annotated"), False)
        .to_numpy(zero_copy_only=False)
        .astype(bool)
    )
    counts = pa.array(events, pa.int32(), mask=~looked[own.recording])
    return _with_vectors(table.append_column("num_events", counts), parts)


def embed_boxes(
    embedder: Embedder, prepared: Prepared, events: pa.Table, config: Config, splits: Sequence[str] = ()
) -> pa.Table:
    """One row per event that has a band and lies in a chunk of the splits, in the order of the
    events; `event` is its row there.
    """
    found = embedded_boxes(embedder, prepared, events, chunks_to_embed(prepared, splits), config)
    refuse_no_boxes(len(events), 0 if found is None else len(found))
    assert found is not None
    return found


def refuse_no_boxes(num_events: int, num_embedded: int) -> None:
    if not num_embedded:
        raise DataError(
            f"none of {num_events} boxes can be embedded: they have no frequencies, lie in other splits, or score too low\n"
            "look at --threshold and --splits"
        )


@torch.no_grad()
def embedded_boxes(
    embedder: Embedder, prepared: Prepared, events: pa.Table, chunks: ChunkSet, config: Config
) -> pa.Table | None:
    """The same in some chunks; None where none of the events can be embedded there."""
    table = box_table(prepared, chunks, events)
    box = best_views(table)
    if not len(box):
        return None
    chunk_of_box = np.repeat(np.arange(len(chunks)), table.counts())[box]
    used, of_used = np.unique(chunk_of_box, return_inverse=True)
    reader = _reader(prepared, chunks.take(used), config)
    # The reader has its own order of chunks.
    place_of = {key: place for place, key in enumerate(keys_of(reader.chunks).tolist())}
    place = np.array([place_of[key] for key in keys_of(chunks.take(used)).tolist()], np.int64)[of_used]
    order = np.argsort(place, kind="stable")
    box, place = box[order], place[order]
    parts: list[Vectors] = []
    done = 0
    for logmel, raw in _inputs(embedder, reader, config):
        here = slice(*np.searchsorted(place, (done, done + len(raw))))
        local, corners = place[here] - done, torch.from_numpy(table.corners[box[here]]).to(embedder.device)
        counts = np.bincount(local, minlength=len(raw))
        slot = np.arange(len(local)) - np.repeat(np.cumsum(counts) - counts, counts)
        padded = torch.zeros(len(raw), int(counts.max()), 4, device=embedder.device)
        padded[local, slot] = corners
        with autocast(embedder.device, embedder.precision):
            features, stride = embedder.features(logmel)
            pooled = pooled_regions(features, padded, stride)
            if embedder.background == "subtract":
                pooled = pooled - _heard_mean(features, stride, raw.valid_frames)[:, None]
            vectors = embedder.finished(pooled)
        parts.append(vectors[torch.from_numpy(local), torch.from_numpy(slot)].cpu().numpy())
        done += len(raw)
    event = table.label_row[box]
    back = np.argsort(event, kind="stable")
    vectors, event, place = np.concatenate(parts)[back], event[back], place[back]
    own = reader.chunks.take(place)
    begin_s, end_s = (events.column(name).to_numpy()[event] for name in ("begin_s", "end_s"))
    rows = _facts(prepared, own.recording, own.chunk, begin_s, end_s - begin_s)
    for name in ("low_hz", "high_hz", "score", "label"):
        if name in events.column_names:
            rows = rows.append_column(name, events.column(name).take(pa.array(event)))
    return _with_vectors(rows.append_column("event", pa.array(event, pa.int64())), [vectors])


def _heard_mean(features: Tensor, stride: tuple[int, int], valid_frames: Tensor) -> Tensor:
    """(B, C, time, frequency) map -> (B, C) mean over what is audio, not padding"""
    begin = torch.arange(features.shape[2], device=features.device) * stride[0]
    heard = (begin[None, :] < valid_frames[:, None].clamp(min=1)).to(features.dtype)  # (B, time)
    return torch.einsum("bctf,bt->bc", features, heard) / (heard.sum(dim=1, keepdim=True) * features.shape[3])


def best_views(table: BoxTable) -> Ints:
    """Rows of a box table: for every event the chunk that shows most of it, and of those
    the one where it is most central.
    """
    usable = np.flatnonzero(~table.is_time_only)
    corners, event = table.corners[usable], table.label_row[usable]
    shown = corners[:, 2] - corners[:, 0]
    aside = np.abs((corners[:, 0] + corners[:, 2]) / 2 - CHUNK_FRAMES / 2)
    order = np.lexsort((aside, -shown, event))
    first = np.concatenate([[True], np.diff(event[order]) != 0]) if len(order) else np.zeros(0, bool)
    return usable[order[first]]


def vectors_of(table: pa.Table) -> Vectors:
    """(N, D) embeddings of a table."""
    column = table.column("embedding").combine_chunks()
    return column.flatten().to_numpy(zero_copy_only=False).reshape(len(table), -1).astype(np.float32)


def _inputs(embedder: Embedder, reader: ChunkReader, config: Config) -> Iterator[tuple[Tensor, Any]]:
    normalisation = embedder.card.normaliser()
    for raw in reader.sequential(batch_size=config.evaluate.batch_size):
        moved = raw.to(embedder.device)
        yield batch_of(moved, normalisation, embedder.card.tail).logmel, moved


def _reader(prepared: Prepared, chunks: ChunkSet, config: Config) -> ChunkReader:
    return ChunkReader(
        prepared, chunks, batch_size=config.evaluate.batch_size, num_threads=config.cluster.reader_threads
    )


def _facts(
    prepared: Prepared,
    recording: NDArray[Any],
    chunk: NDArray[Any],
    begin_s: NDArray[Any],
    length_s: NDArray[Any],
) -> pa.Table:
    listed = recordings_from_arrow(prepared.recordings)
    known = prepared.recordings.select(["recording_id", "path"]).take(pa.array(recording))
    hour = (listed.start_local_s[recording] + begin_s) / 3600 % 24
    columns = {
        "recording_id": known.column("recording_id"),
        "path": known.column("path"),
        "site": pa.array([listed.site[row] for row in recording.tolist()], pa.string()),
        "split": pa.array(_splits(prepared, recording, chunk), pa.string()),
        "hour": pa.array(hour, pa.float64(), from_pandas=True),
        "chunk": pa.array(chunk, pa.int32()),
        "begin_s": pa.array(begin_s),
        "end_s": pa.array(begin_s + length_s),
    }
    return pa.table({field.name: columns[field.name] for field in FACTS}, schema=FACTS)


def _splits(prepared: Prepared, recording: NDArray[Any], chunk: NDArray[Any]) -> list[str]:
    """Split of every chunk; "" for chunks of the unlabelled pool and across the border of two blocks."""
    wanted = pair_keys(recording, chunk)
    found = np.full(len(wanted), "", object)
    for name in {name for name in prepared.splits.column("split").to_pylist() if name}:
        found[np.isin(wanted, keys_of(chunks_of_split(prepared, name)))] = name
    return found.tolist()


def _with_vectors(table: pa.Table, parts: list[Vectors]) -> pa.Table:
    vectors = np.concatenate(parts).astype(np.float32)
    flat = pa.array(vectors.reshape(-1), pa.float32())
    return table.append_column("embedding", pa.FixedSizeListArray.from_arrays(flat, vectors.shape[1]))
