"""Neighbours, label ranks and zero-shot labels against brute force on synthetic sonotypes."""

import numpy as np
import pytest
import torch

from mast_ray.evaluation.matching import match
from mast_ray.evaluation.similarity import neighbours, retrieval
from mast_ray.evaluation.similarity.neighbours import nearest, unit_vectors
from mast_ray.evaluation.similarity.retrieval import (
    labels_of_detections,
    retrieval_figures,
    zero_shot_labels,
)
from mast_ray.stages.score.embed import retrieval_text
from mast_ray.stages.score.embedding_studies import Abstention, Boxes, retrieval_rows


def sonotypes(seed, size, num_types=12, channels=16, noise=0.35, num_recordings=8, offset=0):
    """Embeddings scattered around one direction per type, with labels and recordings."""
    centres = np.random.default_rng(99).normal(size=(num_types, channels))
    rng = np.random.default_rng(seed)
    kind = rng.integers(0, num_types, size)
    vectors = (
        centres[kind] + noise * np.linalg.norm(centres, axis=1).mean() * rng.normal(size=(size, channels)) / 2
    )
    recording = [f"r{n + offset}" for n in rng.integers(0, num_recordings, size)]
    return vectors.astype(np.float32), [f"type {k:02d}" for k in kind], recording


def brute_force_ranks(queries, labels, recordings, gallery, gallery_labels, gallery_recordings):
    ranks = []
    for query, label, recording in zip(queries, labels, recordings, strict=True):
        best = {}
        for example, name, where in zip(gallery, gallery_labels, gallery_recordings, strict=True):
            if where != recording:
                cosine = query @ example / np.linalg.norm(query) / np.linalg.norm(example)
                best[name] = max(best.get(name, -2), cosine)
        if label in best:
            ranks.append(1 + sum(value >= best[label] for name, value in best.items() if name != label))
    return np.array(ranks)


@pytest.fixture
def small_blocks(monkeypatch):
    """Blocks so small that every search crosses several of them."""
    for module in (neighbours, retrieval):
        monkeypatch.setattr(module, "QUERIES_PER_BLOCK", 7)
        monkeypatch.setattr(module, "GALLERY_PER_BLOCK", 11)


def test_nearest_neighbours_equal_a_full_sort_and_never_come_from_the_own_recording(small_blocks):
    queries, _, recording = sonotypes(0, 60)
    gallery, _, where = sonotypes(1, 90)
    found = nearest(queries, gallery, 5, recording, where)
    similar = unit_vectors(queries) @ unit_vectors(gallery).T
    similar[np.asarray(recording)[:, None] == np.asarray(where)[None, :]] = -np.inf
    expected = np.argsort(-similar, axis=1, kind="stable")[:, :5]
    np.testing.assert_array_equal(found.row, expected)
    np.testing.assert_allclose(found.similarity, np.take_along_axis(similar, expected, 1), atol=1e-6)
    assert all(recording[q] != where[g] for q in range(60) for g in found.row[q])


def test_fewer_neighbours_than_asked_are_marked_not_invented():
    found = nearest(np.eye(2), np.eye(2), 3, ["a", "b"], ["a", "b"])
    assert found.row.tolist() == [[1, -1, -1], [0, -1, -1]]
    assert np.isneginf(found.similarity[:, 1:]).all()


def test_equal_neighbours_come_in_order_of_the_gallery():
    found = nearest([[1.0, 0.0]], [[0.0, 1.0], [2.0, 0.0], [3.0, 0.0]], 2)
    assert found.row.tolist() == [[1, 2]]


def test_retrieval_figures_equal_brute_force_on_synthetic_sonotypes(small_blocks):
    query = sonotypes(2, 70)
    gallery = sonotypes(3, 120)
    figures = retrieval_figures(*query, *gallery)
    ranks = brute_force_ranks(*query, *gallery)
    np.testing.assert_array_equal(np.sort(figures.rank), np.sort(ranks))
    assert figures.top_1 == pytest.approx((ranks == 1).mean())
    assert figures.top_5 == pytest.approx((ranks <= 5).mean())
    assert figures.mean_rank == pytest.approx(ranks.mean())
    assert figures.num_labels == 12 and 0.3 < figures.top_1 < 1.0  # neither trivial nor hopeless


def test_a_label_heard_only_in_the_query_s_own_recording_is_left_out_and_counted():
    vectors = np.eye(3, 4)
    figures = retrieval_figures(
        vectors, ["a", "b", ""], ["r1", "r1", "r1"], vectors, ["a", "b", "b"], ["r1", "r2", "r3"]
    )
    assert (figures.num_queries, figures.num_without_example) == (1, 1)
    assert figures.rank.tolist() == [1]


def test_detected_boxes_are_asked_with_the_label_of_the_truth_they_took():
    boxes = [[0, 0, 10, 10], [20, 0, 30, 10]]
    matches = match([0, 0, 0], [boxes[1], [50, 0, 60, 10], boxes[0]], [0.9, 0.8, 0.7], [0, 0], boxes)
    rows, labels = labels_of_detections(matches, ["wren", "frog"])
    assert rows.tolist() == [0, 2] and labels == ("frog", "wren")


def test_zero_shot_abstains_far_from_everything_and_between_two_labels():
    gallery = np.array([[1.0, 0, 0], [0, 1.0, 0]])
    queries = np.array([[1.0, 0.1, 0], [0.72, 0.7, 0], [0.1, 0, 1.0]])
    found = zero_shot_labels(queries, gallery, ["wren", "frog"], min_similarity=0.5, min_margin=0.2)
    assert found.label == ("wren", "", "")
    assert found.nearest_label == ("wren", "wren", "wren")
    assert found.margin[0] == pytest.approx((1 - 0.1) / np.sqrt(1.01), abs=1e-5)
    assert zero_shot_labels(queries, gallery[:0], [], 0.5).label == ("", "", "")


@pytest.mark.gpu
def test_gpu_finds_the_same_neighbours_and_ranks_as_the_cpu():
    if not torch.cuda.is_available():
        pytest.skip("no CUDA GPU")
    query, gallery = sonotypes(5, 3000, noise=0.5), sonotypes(6, 9000, noise=0.5)
    on_cpu, on_gpu = (
        nearest(query[0], gallery[0], 5, query[2], gallery[2], device=d) for d in ("cpu", "cuda")
    )
    assert (on_cpu.row == on_gpu.row).mean() > 0.999  # float rounding may swap a near tie
    np.testing.assert_allclose(on_cpu.similarity, on_gpu.similarity, atol=1e-5)
    ranks = [retrieval_figures(*query, *gallery, device=d).mean_rank for d in ("cpu", "cuda")]
    assert ranks[0] == pytest.approx(ranks[1], abs=1e-3)


def test_without_an_example_every_query_is_left_out():
    """Boxes of one split alone: `mast embed --splits test` ended with a traceback."""
    vectors, nothing = np.eye(3, 4, dtype=np.float32), np.zeros((0, 4), np.float32)
    found = retrieval_figures(vectors, ["wren", "", "wren"], [0, 0, 1], nothing, [], np.zeros(0, np.int64))
    assert (found.num_queries, found.num_without_example, found.num_labels) == (0, 2, 0)
    assert np.isnan(found.top_1) and len(found.rank) == 0
    boxes = Boxes(
        vectors, ("wren", "", "wren"), np.array(["a", "a", "b"], object), np.full(3, "test", object)
    )
    rows = retrieval_rows(boxes, boxes.take(np.zeros(3, bool)), "oracle", Abstention())
    assert "2 queries have no example of their label" in retrieval_text(rows)
