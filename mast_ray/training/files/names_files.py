"""The names of a model folder: names.safetensors and names.json beside the weights, checked like them.

names.json says what the labels are, how they were fitted and how well they did; it vouches for the bytes of
names.safetensors, and names the weights whose embeddings it was fitted on: under other weights it means nothing.
"""

from __future__ import annotations

import hashlib
import json
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load as arrays_from_bytes
from safetensors.numpy import save as arrays_to_bytes

from mast_ray.config.errors import DataError
from mast_ray.storage.storage import Storage
from mast_ray.training.files.model_files import Card

NAMES, NAME_TENSORS = "names.json", "names.safetensors"
NAMES_VERSION = 1
AGAIN = "run `mast classify` again, or delete names.json to detect without names"
Arrays = dict[str, NDArray[np.float32]]


def write_names(storage: Storage, document: dict[str, Any], tensors: Arrays, card: Card) -> dict[str, Any]:
    """Write the tensors, then the document that makes them valid; returns it as written."""
    data = arrays_to_bytes(tensors)
    document = document | {
        "names_version": NAMES_VERSION,
        "weights_sha256": card.weights_sha256,
        "tensors_sha256": hashlib.sha256(data).hexdigest(),
    }
    storage.delete(NAMES)  # an older document must not vouch for newer tensors
    storage.write_atomic(NAME_TENSORS, data)
    storage.write_atomic(NAMES, json.dumps(document, indent=1, sort_keys=True, allow_nan=False).encode())
    return document


def read_names(storage: Storage, card: Card) -> tuple[dict[str, Any], Arrays] | None:
    """What a model folder knows about names; None where it has none. Refuses names of other weights or bytes."""
    if storage.stat(NAMES) is None:
        return None
    place = f"{storage.url}/{NAMES}"
    try:
        document = json.loads(storage.read_bytes(NAMES))
        version, weights, digest = (
            document[name] for name in ("names_version", "weights_sha256", "tensors_sha256")
        )
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise DataError(f"{place} cannot be used ({type(error).__name__}):\n{AGAIN}") from error
    if version != NAMES_VERSION:
        raise DataError(
            f"{place} has version {str(version)[:20]}, this program reads {NAMES_VERSION}:\n{AGAIN}"
        )
    if weights != card.weights_sha256:
        raise DataError(f"{place} was fitted on other weights than those beside it:\n{AGAIN}")
    data = storage.read_bytes(NAME_TENSORS) if storage.stat(NAME_TENSORS) is not None else b""
    if hashlib.sha256(data).hexdigest() != digest:
        raise DataError(f"{storage.url}/{NAME_TENSORS} does not match the sha256 in {NAMES}:\n{AGAIN}")
    try:
        return document, arrays_from_bytes(data)
    except SafetensorError as error:
        raise DataError(f"{storage.url}/{NAME_TENSORS} is not a safetensors file:\n{AGAIN}") from error


def names_version_of(storage: Storage) -> str:
    """Names the content of a folder's names; empty where it has none."""
    return hashlib.sha256(storage.read_bytes(NAMES)).hexdigest() if storage.stat(NAMES) is not None else ""
