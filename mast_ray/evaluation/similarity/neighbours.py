"""Exact nearest neighbours by cosine, in blocks of matrix products, on a GPU when there is one.

Legend: Q queries, G gallery rows, C channels, k neighbours. A query never meets the gallery rows of its own
recording: a call repeats itself, and finding its repetition says nothing.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray

Floats = NDArray[np.float32]
Ints = NDArray[np.int64]
QUERIES_PER_BLOCK, GALLERY_PER_BLOCK = 2_048, 131_072  # 1 GiB of similarities at a time


class Neighbours(NamedTuple):
    """Best first; row -1 and similarity -inf where a query has fewer than k admissible neighbours."""

    row: Ints  # (Q, k) of the gallery
    similarity: Floats  # (Q, k) cosine


def unit_vectors(embeddings: ArrayLike) -> Floats:
    """(N, C) rows of length one; rows of zeros stay zero and resemble nothing."""
    embeddings = np.asarray(embeddings, np.float32)
    length = np.linalg.norm(embeddings, axis=1, keepdims=True)
    return np.divide(embeddings, length, out=np.zeros_like(embeddings), where=length > 0)


def nearest(
    queries: ArrayLike,
    gallery: ArrayLike,
    k: int,
    query_recording: ArrayLike | None = None,
    gallery_recording: ArrayLike | None = None,
    device: str = "auto",
) -> Neighbours:
    """k nearest gallery rows of every query, never from the query's own
    recording when recordings are given.
    """
    queries, gallery = unit_vectors(queries), unit_vectors(gallery)
    own = recording_codes(query_recording, gallery_recording)
    where = search_device(device)
    index = np.full((len(queries), k), -1, np.int64)
    similarity = np.full((len(queries), k), -np.inf, np.float32)
    for start in range(0, len(queries), QUERIES_PER_BLOCK):
        rows = slice(start, start + QUERIES_PER_BLOCK)
        block = torch.from_numpy(queries[rows]).to(where)
        best = torch.full((len(block), k), -torch.inf, device=where)
        place = torch.full((len(block), k), -1, dtype=torch.int64, device=where)
        for first in range(0, len(gallery), GALLERY_PER_BLOCK):
            part = slice(first, first + GALLERY_PER_BLOCK)
            similar = block @ torch.from_numpy(gallery[part]).to(where).T
            if own is not None:
                similar[is_same(own[0][rows], own[1][part], where)] = -torch.inf
            found, at = similar.topk(min(k, similar.shape[1]), dim=1)
            best, order = torch.cat([best, found], dim=1).topk(k, dim=1)
            place = torch.cat([place, at + first], dim=1).gather(1, order)
        similarity[rows], index[rows] = best.cpu().numpy(), place.cpu().numpy()
    index[np.isneginf(similarity)] = -1
    return _ordered(index, similarity)


def _ordered(index: Ints, similarity: Floats) -> Neighbours:
    """Equal similarities in order of gallery row."""
    by_row = np.argsort(np.where(index < 0, np.iinfo(np.int64).max, index), axis=1, kind="stable")
    index, similarity = np.take_along_axis(index, by_row, 1), np.take_along_axis(similarity, by_row, 1)
    order = np.argsort(-similarity, axis=1, kind="stable")
    return Neighbours(np.take_along_axis(index, order, 1), np.take_along_axis(similarity, order, 1))


def recording_codes(
    query_recording: ArrayLike | None, gallery_recording: ArrayLike | None
) -> tuple[Ints, Ints] | None:
    if query_recording is None or gallery_recording is None:
        return None
    first, second = np.asarray(query_recording), np.asarray(gallery_recording)
    _, code = np.unique(np.concatenate([first.astype(str), second.astype(str)]), return_inverse=True)
    return code[: len(first)].astype(np.int64), code[len(first) :].astype(np.int64)


def is_same(first: Ints, second: Ints, where: torch.device) -> torch.Tensor:
    return torch.from_numpy(first).to(where)[:, None] == torch.from_numpy(second).to(where)[None, :]


def search_device(name: str) -> torch.device:
    return torch.device(
        "cuda" if name == "auto" and torch.cuda.is_available() else "cpu" if name == "auto" else name
    )
