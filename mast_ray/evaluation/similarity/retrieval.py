"""What the nearest labelled examples say: retrieval figures and zero-shot labels.

Legend: Q queries, G gallery examples, C channels, L labels. A label is as similar as its most similar
example; examples of the query's own recording never count.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray

from mast_ray.evaluation.matching import Matches
from mast_ray.evaluation.similarity.neighbours import (
    GALLERY_PER_BLOCK,
    QUERIES_PER_BLOCK,
    is_same,
    recording_codes,
    search_device,
    unit_vectors,
)

Floats = NDArray[np.float32]
Ints = NDArray[np.int64]
RETRIEVAL = "retrieval.json"


class RetrievalFigures(NamedTuple):
    """How often, and how far down, the right label comes among labels ranked by similarity."""

    num_queries: int  # whose label has an example in another recording of the gallery
    num_without_example: int  # left out: their label cannot be retrieved
    num_labels: int
    top_1: float
    top_5: float
    mean_rank: float
    rank: Ints  # (num_queries,) 1 is best; ties count against us


class ZeroShot(NamedTuple):
    """Tentative labels; "" where the classifier abstains."""

    label: tuple[str, ...]
    nearest_label: tuple[str, ...]  # also where it abstains; "" without any admissible example
    similarity: Floats  # to the best label
    margin: Floats  # over the second-best label


def label_similarities(
    queries: Floats,
    gallery: Floats,
    label_code: Ints,
    num_labels: int,
    own: tuple[Ints, Ints] | None,
    device: str,
) -> Iterator[tuple[slice, torch.Tensor]]:
    """Blocks of queries with their (Q_block, L) similarity to every label; -inf where
    it has no admissible example.
    """
    where = search_device(device)
    codes = torch.from_numpy(label_code).to(where)
    for start in range(0, len(queries), QUERIES_PER_BLOCK):
        rows = slice(start, min(start + QUERIES_PER_BLOCK, len(queries)))
        block = torch.from_numpy(queries[rows]).to(where)
        best = torch.full((len(block), num_labels), -torch.inf, device=where)
        for first in range(0, len(gallery), GALLERY_PER_BLOCK):
            part = slice(first, first + GALLERY_PER_BLOCK)
            similar = block @ torch.from_numpy(gallery[part]).to(where).T
            if own is not None:
                similar[is_same(own[0][rows], own[1][part], where)] = -torch.inf
            best.scatter_reduce_(1, codes[part].expand(len(block), -1), similar, "amax")
        yield rows, best


def labelled_examples(labels: Sequence[str]) -> tuple[Ints, list[str], Ints]:
    """Rows that have a label, the distinct labels, and the number of each row's label."""
    rows = np.flatnonzero([bool(name) for name in labels])
    names = sorted({labels[row] for row in rows.tolist()})
    place = {name: number for number, name in enumerate(names)}
    return rows, names, np.array([place[labels[row]] for row in rows.tolist()], np.int64)


def retrieval_figures(
    queries: ArrayLike,
    query_label: Sequence[str],
    query_recording: ArrayLike,
    gallery: ArrayLike,
    gallery_label: Sequence[str],
    gallery_recording: ArrayLike,
    device: str = "auto",
) -> RetrievalFigures:
    """Top-1, top-5 and mean rank of the right label; queries and examples
    without a label ("") are left out.
    """
    asked = np.flatnonzero([bool(name) for name in query_label])
    shown, names, code = labelled_examples(gallery_label)
    place = {name: row for row, name in enumerate(names)}
    wanted = np.array([place.get(query_label[row], -1) for row in asked.tolist()], np.int64)
    own = recording_codes(np.asarray(query_recording)[asked], np.asarray(gallery_recording)[shown])
    ranks = np.full(len(asked), -1, np.int64)
    vectors = unit_vectors(np.asarray(queries)[asked]), unit_vectors(np.asarray(gallery)[shown])
    for rows, similar in label_similarities(*vectors, code, len(names), own, device):
        if len(names) == 0:
            break
        target = torch.from_numpy(wanted[rows]).to(similar.device)
        known = target >= 0
        right = similar.gather(1, target.clamp(min=0)[:, None])
        rank = (similar >= right).sum(dim=1)  # the right label itself is among them, ties are before it
        known &= right[:, 0] > -torch.inf
        ranks[rows] = torch.where(known, rank, -1).cpu().numpy()
    rank = ranks[ranks > 0]

    def mean(values: NDArray[Any]) -> float:
        return float(values.mean()) if len(values) else float("nan")

    return RetrievalFigures(
        len(rank),
        len(asked) - len(rank),
        len(names),
        mean(rank <= 1),
        mean(rank <= 5),
        mean(rank),
        rank,
    )


def labels_of_detections(matches: Matches, truth_label: Sequence[str]) -> tuple[Ints, tuple[str, ...]]:
    """Detections that are right, and the label of the truth each took: the
    queries of detected-box retrieval.
    """
    rows = np.flatnonzero(matches.is_true_positive)
    return rows, tuple(truth_label[t] for t in matches.truth_index[rows].tolist())


def zero_shot_labels(
    queries: ArrayLike,
    gallery: ArrayLike,
    gallery_label: Sequence[str],
    min_similarity: float = 0.0,
    min_margin: float = 0.0,
    query_recording: ArrayLike | None = None,
    gallery_recording: ArrayLike | None = None,
) -> ZeroShot:
    """The most similar label of every query; none when it is too far away or
    hardly nearer than the next label.
    """
    labelled, names, code = labelled_examples(gallery_label)
    own = None
    if query_recording is not None and gallery_recording is not None:
        own = recording_codes(query_recording, np.asarray(gallery_recording)[labelled])
    vectors = unit_vectors(queries), unit_vectors(np.asarray(gallery)[labelled])
    label = np.full(len(vectors[0]), -1, np.int64)
    similarity = np.full(len(label), -np.inf, np.float32)
    second = np.full(len(label), -1.0, np.float32)
    for rows, similar in label_similarities(*vectors, code, len(names), own, "auto"):
        if len(names) == 0:
            break
        value, order = similar.topk(min(2, len(names)), dim=1)
        label[rows], similarity[rows] = order[:, 0].cpu().numpy(), value[:, 0].cpu().numpy()
        if len(names) > 1:
            second[rows] = value[:, 1].clamp(min=-1.0).cpu().numpy()
    label[np.isneginf(similarity)] = -1
    margin = np.where(label >= 0, np.nan_to_num(similarity, neginf=-1.0) - second, 0.0).astype(np.float32)
    sure = (label >= 0) & (similarity >= min_similarity) & (margin >= min_margin)
    nearest_label = tuple(names[n] if n >= 0 else "" for n in label.tolist())
    chosen = tuple(name if keep else "" for name, keep in zip(nearest_label, sure.tolist(), strict=True))
    return ZeroShot(chosen, nearest_label, similarity, margin)
