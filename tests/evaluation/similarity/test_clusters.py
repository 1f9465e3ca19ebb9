"""Clusters, the novelty queue and maps on sounds of known kinds."""

import numpy as np
import pytest

from mast_ray.evaluation.similarity import clusters
from mast_ray.evaluation.similarity.clusters import cluster_embeddings, map_2d, novelty_queue


def kinds(num_kinds=4, each=30, channels=48, seed=0):
    rng = np.random.default_rng(seed)
    centres = np.eye(num_kinds, channels)
    kind = np.repeat(np.arange(num_kinds), each)
    return (centres[kind] + 0.05 * rng.normal(size=(len(kind), channels))).astype(np.float32), kind


def agree(found, kind):
    """Every kind is one cluster of its own."""
    pairs = {(int(f), int(k)) for f, k in zip(found, kind, strict=True)}
    return len(pairs) == len(set(kind.tolist())) == len({f for f, _ in pairs})


def test_well_separated_kinds_become_clusters():
    vectors, kind = kinds()
    assert agree(cluster_embeddings(vectors), kind)


def test_beyond_the_sample_points_follow_their_nearest_neighbour(monkeypatch):
    monkeypatch.setattr(clusters, "MOST_POINTS", 60)
    vectors, kind = kinds()
    assert agree(cluster_embeddings(vectors), kind)
    assert map_2d(vectors, "tsne").shape == (120, 2)


def test_queue_begins_with_the_kind_that_no_known_example_resembles():
    vectors, kind = kinds()
    known = vectors[kind != 2][::10]
    queue = novelty_queue(vectors, kind, [f"r{n % 7}" for n in range(len(kind))], known)
    assert queue[0].cluster == 2 and queue[0].novelty > 0.7 > 0.2 > queue[1].novelty
    assert (queue[0].num_members, queue[0].num_recordings) == (30, 7)
    assert kind[queue[0].example] == 2 and set(queue[0].members.tolist()) == set(
        np.flatnonzero(kind == 2).tolist()
    )
    by_size = novelty_queue(vectors[:80], kind[:80], np.zeros(80), np.zeros((0, 48)))
    assert [c.num_members for c in by_size] == [30, 30, 20]


@pytest.mark.parametrize("method", ["pca", "tsne"])
def test_maps_keep_kinds_together_and_repeat_with_the_seed(method):
    vectors, kind = kinds(3, each=15)
    place = map_2d(vectors, method, seed=1)
    np.testing.assert_array_equal(place, map_2d(vectors, method, seed=1))
    middle = np.stack([place[kind == k].mean(axis=0) for k in range(3)])
    nearest_middle = np.linalg.norm(place[:, None] - middle[None], axis=2).argmin(axis=1)
    assert (nearest_middle == kind).mean() > 0.95


def test_few_points_are_no_cluster_and_lie_at_the_origin():
    assert cluster_embeddings(np.eye(2)).tolist() == [-1, -1]
    assert map_2d(np.eye(2), "tsne").tolist() == [[0, 0], [0, 0]]
