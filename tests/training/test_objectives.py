"""Objectives: what forward returns, reproducible draws, weights, empty batches, the compiled step."""

import dataclasses
import itertools

import pytest
import torch

from mast_ray.boxes.batch import ChunkBatch, PaddedBoxes, pad_boxes
from mast_ray.models.detector import DetectorArchitecture, MastDetector
from mast_ray.models.masking import Masking
from mast_ray.training.objectives import (
    ContrastiveSettings,
    DetectionObjective,
    DetectionWeights,
    ReconstructionObjective,
    SeededSteps,
    build_autoencoder,
    detection_objective,
)

BOXES = [torch.tensor([[100.0, 20.0, 200.0, 50.0], [300.0, 10.0, 380.0, 30.0]]), torch.zeros(0, 4)]


def example(boxes: list[torch.Tensor] = BOXES) -> ChunkBatch:
    logmel = torch.randn((len(boxes), 1, 1024, 128), generator=torch.Generator().manual_seed(0))
    return ChunkBatch(logmel, pad_boxes(boxes), torch.ones(len(boxes)), tuple("abcdef"[: len(boxes)]))


def detection(**options) -> DetectionObjective:
    torch.manual_seed(0)
    return detection_objective(MastDetector(DetectorArchitecture(size="tiny")), **options)


def value(objective, batch: ChunkBatch, name: str = "loss") -> float:
    with torch.no_grad():
        return objective(batch)[name].item()


@pytest.fixture(scope="module")
def objective() -> DetectionObjective:
    return detection()


@pytest.fixture(scope="module")
def reconstruction() -> ReconstructionObjective:
    torch.manual_seed(0)
    return ReconstructionObjective(build_autoencoder("tiny"), Masking(), seed=3)


def test_detection_loss_is_the_weighted_sum_of_its_components(objective):
    losses = objective(example())
    weights = dataclasses.asdict(objective.weights)
    assert losses.keys() == {"loss", *weights}
    total = sum(weights[name] * losses[name].item() for name in weights)
    assert losses["loss"].item() == pytest.approx(total, rel=1e-5)
    losses["loss"].backward()
    silent = [name for name, p in objective.named_parameters() if p.grad is None]
    assert silent == []
    objective.zero_grad()


def test_chunks_without_boxes_give_finite_loss_and_gradients_everywhere(objective):
    losses = objective(example([torch.zeros(0, 4)] * 2))
    assert losses["contrastive"].item() == losses["overlap"].item() == 0.0
    losses["loss"].backward()
    assert all(bool(p.grad.isfinite().all()) for p in objective.parameters())
    objective.zero_grad()


def test_chunk_weight_acts_on_detection_losses_and_not_on_the_contrastive_one(objective):
    batch = example(BOXES[:1])
    half = dataclasses.replace(batch, weight=torch.tensor([0.5]))
    results = []
    for given in (batch, half):
        objective.seed_step(0)
        with torch.no_grad():
            results.append(objective(given))
    for name in ("classification", "corners", "overlap", "centerness"):
        assert results[1][name].item() == pytest.approx(0.5 * results[0][name].item(), rel=1e-5)
    assert results[1]["contrastive"].item() == pytest.approx(results[0]["contrastive"].item(), rel=1e-5)


@pytest.mark.parametrize("has_bands", [True, False])  # of the calls of the first chunk
@pytest.mark.parametrize("sizes", [(2, 2), (1, 1, 1, 1)])
def test_a_batch_in_parts_gives_the_gradient_of_the_whole(objective, sizes, has_bands):
    """Boxes are uneven: divided by the positives of its own part, the lone box of the last
    two would weigh ten times as much.
    """
    many = torch.tensor([[40.0 + 150 * n, 10.0 + 8 * n, 140.0 + 150 * n, 40.0 + 8 * n] for n in range(6)])
    whole = example([many, many[:4], many[:1], torch.zeros(0, 4)])

    def boxes_of(rows: list[int]) -> PaddedBoxes:
        boxes = pad_boxes([[many, many[:4], many[:1], many[:0]][r] for r in rows])
        is_in_time = boxes.is_object & (torch.tensor(rows) == 0)[:, None] & (not has_bands)
        return dataclasses.replace(boxes, is_ignored=is_in_time)

    def gradient(parts: list[list[int]]) -> torch.Tensor:
        objective.zero_grad()
        batches = [ChunkBatch(whole.logmel[rows], boxes_of(rows), whole.weight[rows]) for rows in parts]
        objective.begin_step(batches if len(batches) > 1 else [])
        for batch, rows in zip(batches, parts, strict=True):
            objective.seed_step(7, torch.tensor(rows), 4)
            (objective(batch)["loss"] / len(parts)).backward()
        found = torch.cat([p.grad.flatten() for p in objective.parameters()])
        objective.zero_grad()
        objective.begin_step([])
        objective.seed_step(0)
        return found

    bounds = [sum(sizes[:n]) for n in range(len(sizes) + 1)]
    parts = [list(range(a, b)) for a, b in itertools.pairwise(bounds)]
    expected = gradient([[0, 1, 2, 3]])
    assert (gradient(parts) - expected).norm() < 1e-4 * expected.norm()


def test_same_step_same_draws_and_another_step_others(objective):
    batch = example()
    values = []
    for step in (5, 6, 5):
        objective.seed_step(step)
        values.append(value(objective, batch, "contrastive"))
    assert values[0] == values[2] != values[1]


def test_seeds_of_steps_and_workers_differ():
    seeds = {SeededSteps(seed, rank).value() for seed in range(4) for rank in range(4)}
    steps = SeededSteps(0)
    for step in range(100):
        steps.set_step(step)
        seeds.add(steps.value())
    assert len(seeds) == 16 + 99
    assert all(0 <= seed < 2**63 for seed in seeds)


def test_without_contrastive_weight_the_projection_still_has_a_gradient_of_zero():
    objective = detection(weights=DetectionWeights(contrastive=0.0))
    losses = objective(example())
    losses["loss"].backward()
    assert losses["contrastive"].item() == 0.0
    gradients = [p.grad for p in objective.detector.projection.parameters()]
    assert all(g is not None and float(g.abs().sum()) == 0.0 for g in gradients)


def test_a_point_in_an_ignore_region_does_not_count_as_background(objective):
    batch = example([torch.zeros(0, 4)] * 2)
    everything = torch.tensor([[0.0, 0.0, 1024.0, 128.0]])
    ignored = dataclasses.replace(batch, boxes=pad_boxes([torch.zeros(0, 4)] * 2, [everything] * 2))
    assert value(objective, batch, "classification") > 0
    assert value(objective, ignored, "classification") == 0.0


def test_centre_sampling_and_focal_loss_go_by_name(objective):
    batch = example(BOXES[:1])
    other = detection(assignment="centre", classification="focal")  # same weights
    assert value(other, batch, "centerness") != value(objective, batch, "centerness")
    assert value(other, batch, "classification") != value(objective, batch, "classification")


def test_reconstruction_draws_anew_when_training_and_keeps_masks_when_evaluating(reconstruction):
    batch = example()
    reconstruction.train()
    values = []
    for step in (1, 2, 1):
        reconstruction.seed_step(step)
        values.append(value(reconstruction, batch))
    assert values[0] == values[2] != values[1]
    reconstruction.eval()
    first = value(reconstruction, batch)
    assert value(reconstruction, batch) == first
    swapped = dataclasses.replace(batch, logmel=batch.logmel.flip(0), chunk_ids=batch.chunk_ids[::-1])
    assert value(reconstruction, swapped) == pytest.approx(first, rel=1e-6)


@pytest.mark.slow
def test_compiled_steps_are_one_graph_and_agree_with_eager(objective, reconstruction):
    for eager in (objective, reconstruction.train()):
        batch = example()
        eager.seed_step(0)
        expected = value(eager, batch)
        eager.seed_step(0)
        eager.compile_step(fullgraph=True, backend="aot_eager")
        losses = eager(batch)
        losses["loss"].backward()
        assert losses["loss"].item() == pytest.approx(expected, rel=1e-4)
        # Other chunk ids must not compile anew.
        before = torch._dynamo.utils.counters["stats"]["unique_graphs"]
        eager(dataclasses.replace(batch, chunk_ids=("other", "names")))
        assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == before


def test_pseudo_labelled_chunks_stay_out_of_the_contrastive_term_when_asked():
    """With the only boxes in a pseudo-labelled chunk nothing is left to contrast; the detection losses stay."""
    settings = ContrastiveSettings(on_pseudo=False)
    objective = detection(contrastive=settings)
    expert = example()
    pseudo = dataclasses.replace(expert, is_pseudo=torch.tensor([True, False]))
    assert value(objective, expert, "contrastive") > 0 == value(objective, pseudo, "contrastive")
    assert value(objective, pseudo, "overlap") == value(objective, expert, "overlap")
    both = example([BOXES[0], BOXES[0][:1]])
    objective.seed_step(3)
    apart = value(objective, dataclasses.replace(both, is_pseudo=torch.tensor([False, True])), "contrastive")
    objective.seed_step(3)
    alone = value(objective, dataclasses.replace(both, boxes=pad_boxes([BOXES[0], BOXES[1]])), "contrastive")
    assert apart == pytest.approx(alone, rel=1e-5)
