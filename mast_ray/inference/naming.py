"""A model folder's names at work: which embedding they read, the names of detections, and of boxes in a table.

Legend: N boxes, D numbers of an embedding.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from mast_ray.config.errors import ConfigError, DataError
from mast_ray.config.tree import Config, StorageConfig
from mast_ray.evaluation.naming.names import Examples, Named, Names
from mast_ray.inference.embeddings import embed_boxes, load_embedder, vectors_of
from mast_ray.models.detector import EmbeddingName
from mast_ray.spectrogram.grid import HIGH_HZ, LOW_HZ, fractional_frames, hertz_to_bin
from mast_ray.storage.storage import Storage, open_storage
from mast_ray.tables.prepared import Prepared
from mast_ray.training.data.archive_inputs import read_as
from mast_ray.training.files.model_files import Card, read_card
from mast_ray.training.files.names_files import AGAIN, NAMES, read_names

Floats = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class ModelNames:
    """Names, and the embedding of the detector that they read."""

    names: Names
    embedding: EmbeddingName


def load_names(
    folder: str | Storage, card: Card | None = None, settings: StorageConfig | None = None
) -> ModelNames | None:
    """The names of a model folder; None where it has none."""
    storage = open_storage(folder, settings) if isinstance(folder, str) else folder
    found = read_names(storage, card if card is not None else read_card(storage))
    if found is None:
        return None
    document, tensors = found
    try:
        embedding = document["embedding"]
        if embedding not in ("projection", "neck", "encoder"):
            raise ValueError(f"embedding {str(embedding)[:20]!r}")
        return ModelNames(Names.of(document, tensors), embedding)
    except (KeyError, TypeError, ValueError) as error:
        raise DataError(f"{storage.url}/{NAMES} cannot be used ({error}):\n{AGAIN}") from error


def used_embedding(wanted: str, names: ModelNames | None) -> Any:
    """The embedding a sweep computes: the one that is stored, else the one that names read."""
    if names is None:
        return wanted
    if wanted not in ("none", names.embedding):
        raise ConfigError(
            f"detect.embeddings={wanted}: the names of this model read its {names.embedding} embeddings\n"
            f"use --set detect.embeddings={names.embedding} or none, or fit names on the others: "
            f"mast classify MODEL ARCHIVE --embedding {wanted}"
        )
    return names.embedding


def table_boxes(table: pa.Table) -> Floats:
    """(N, 4) frames and bins of the boxes of a table, as they are: not rounded to the grid"""
    begin_s, end_s, low_hz, high_hz = (
        table.column(name).to_numpy().astype(np.float64) for name in ("begin_s", "end_s", "low_hz", "high_hz")
    )
    band = (hertz_to_bin(np.clip(edge, LOW_HZ, HIGH_HZ)) for edge in (low_hz, high_hz))
    low, high = band
    return np.stack([fractional_frames(begin_s), low, fractional_frames(end_s), high], axis=1)


def examples_of(embedded: pa.Table) -> Examples:
    """Boxes of `embed_boxes` that have a label, as something to learn names from."""
    label = np.array([name or "" for name in embedded.column("label").to_pylist()], object)
    recording = np.array(embedded.column("recording_id").to_pylist(), object)
    found = Examples(vectors_of(embedded), table_boxes(embedded), label, recording)
    return found.take(label != "")


def names_of_boxes(
    model: str, prepared: Prepared, events: pa.Table, config: Config, splits: tuple[str, ...] = ()
) -> tuple[NDArray[np.int64], Named] | None:
    """(rows of the events that could be looked at, their names) by a model's own names; None where it has none."""
    known = load_names(model, settings=config.storage)
    if known is None or not len(events):
        return None
    embedder = load_embedder(model, known.embedding, config)
    archive = read_as(prepared, embedder.card, model)
    embedded = embed_boxes(embedder, archive, events, config, splits)
    row = embedded.column("event").to_numpy()
    return row, known.names.named(vectors_of(embedded), table_boxes(embedded))
