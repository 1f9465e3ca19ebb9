"""Groups of similar sounds, the queue of those that resemble nothing known, and 2-D maps of embeddings.

Legend: N embeddings, C channels. Embeddings are compared by direction (cosine), clusters
are numbered from 0, -1 is noise.
"""

from __future__ import annotations

import importlib.util
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.cluster import HDBSCAN
from sklearn.decomposition import PCA
from sklearn.manifold import TSNE
from threadpoolctl import threadpool_limits

from mast_ray.config.errors import ConfigError
from mast_ray.evaluation.similarity.neighbours import nearest, unit_vectors

Floats = NDArray[np.float32]
Ints = NDArray[np.int64]
MOST_POINTS = (
    20_000  # HDBSCAN and t-SNE beyond this work on a sample; the rest follows its nearest sampled neighbour
)
FEW_POINTS = 3_000
CLUSTER_CHANNELS = 32


class NovelCluster(NamedTuple):
    """A candidate novel sound, to be listened to."""

    cluster: int
    novelty: float  # 1 - median over members of the similarity to their nearest known example
    num_members: int
    num_recordings: int
    example: int  # row of the member nearest to the others
    members: Ints  # rows, most typical first


def cluster_embeddings(
    embeddings: ArrayLike,
    min_members: int = 5,
    seed: int = 0,
) -> Ints:
    """(N,) cluster of every row, by HDBSCAN, which finds their number and leaves noise out."""
    vectors = unit_vectors(embeddings)
    if len(vectors) < max(2, min_members):
        return np.full(len(vectors), -1, np.int64)
    vectors = _fewer_channels(vectors, CLUSTER_CHANNELS, seed)
    sample = _sample(len(vectors), seed)
    model = HDBSCAN(min_cluster_size=min_members, copy=True).fit(vectors[sample])
    if len(sample) == len(vectors):
        return model.labels_.astype(np.int64)
    follow = nearest(vectors, vectors[sample], 1, device="cpu").row[:, 0]
    return np.where(follow >= 0, model.labels_[follow], -1).astype(np.int64)


def novelty_queue(
    embeddings: ArrayLike, cluster: Ints, recording: ArrayLike, known: ArrayLike, device: str = "auto"
) -> list[NovelCluster]:
    """Clusters, those least like any known example first; without known examples, the largest first."""
    vectors, known = unit_vectors(embeddings), np.asarray(known, np.float32)
    recording = np.asarray(recording)
    resemblance = (
        nearest(vectors, known, 1, device=device).similarity[:, 0]
        if len(known)
        else np.full(len(vectors), -1.0)
    )
    queue = []
    for number in np.unique(cluster[cluster >= 0]).tolist():
        rows = np.flatnonzero(cluster == number)
        typical = rows[
            np.argsort(-(vectors[rows] @ unit_vectors(vectors[rows].mean(axis=0)[None])[0]), kind="stable")
        ]
        novelty = float(1.0 - np.median(resemblance[rows]))
        queue.append(
            NovelCluster(
                number, novelty, len(rows), len(np.unique(recording[rows])), int(typical[0]), typical
            )
        )
    return sorted(queue, key=lambda c: (-round(c.novelty, 6), -c.num_members, c.cluster))


def refuse_no_umap(method: str) -> None:
    """Told before everything is embedded."""
    if method == "umap" and importlib.util.find_spec("umap") is None:
        raise ConfigError(
            "--map umap needs umap-learn, which is not installed: pip install 'mast_ray[embed]', or use --map tsne or pca"
        )


def map_2d(embeddings: ArrayLike, method: Literal["pca", "tsne", "umap"] = "tsne", seed: int = 0) -> Floats:
    """(N, 2) positions for a picture, by cosine; t-SNE of very many points places the
    rest beside their neighbours.
    """
    vectors = unit_vectors(embeddings)
    if len(vectors) < 3:
        return np.zeros((len(vectors), 2), np.float32)
    match method:
        case "pca":
            return _fewer_channels(vectors, 2, seed)
        case "umap":
            refuse_no_umap(method)
            import umap

            return umap.UMAP(metric="cosine", random_state=seed).fit_transform(vectors).astype(np.float32)
        case "tsne":
            reduced = _fewer_channels(vectors, 50, seed)
            sample = _sample(len(vectors), seed)
            perplexity = min(30.0, (len(sample) - 1) / 3)
            # Few points gain nothing from threads, and on a busy machine lose minutes waiting for each other.
            with threadpool_limits(1 if len(sample) < FEW_POINTS else None):
                model = TSNE(perplexity=perplexity, init="pca", random_state=seed)
                placed = model.fit_transform(reduced[sample])
            if len(sample) == len(vectors):
                return placed.astype(np.float32)
            follow = nearest(reduced, reduced[sample], 3, device="cpu").row
            return placed[follow].mean(axis=1).astype(np.float32)


def _fewer_channels(vectors: Floats, channels: int, seed: int) -> Floats:
    most = min(channels, *vectors.shape)
    if most == vectors.shape[1]:
        return vectors - vectors.mean(axis=0) if channels == 2 else vectors
    reduced = PCA(most, random_state=seed).fit_transform(vectors).astype(np.float32)
    return np.pad(reduced, ((0, 0), (0, 2 - most))) if channels == 2 and most < 2 else reduced


def _sample(size: int, seed: int) -> Ints:
    if size <= MOST_POINTS:
        return np.arange(size)
    return np.sort(np.random.default_rng(seed).choice(size, MOST_POINTS, replace=False))
