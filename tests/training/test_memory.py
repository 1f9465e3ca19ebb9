"""What is said when a GPU runs out of memory: the part of the batch that fits is tried, and a setting follows from it."""

import pytest
import torch

from mast_ray.boxes.batch import ChunkBatch, pad_boxes
from mast_ray.models.build import build_detector
from mast_ray.models.detector import DetectorArchitecture
from mast_ray.models.masking import Masking
from mast_ray.training.engine import OptimizerSettings
from mast_ray.training.groups import parameter_groups
from mast_ray.training.memory import first_chunks, out_of_memory_advice
from mast_ray.training.objectives import DetectionObjective, ReconstructionObjective, build_autoencoder
from mast_ray.training.schedule import Schedule
from mast_ray.training.torch_engine import TorchEngine

BOX = torch.tensor([[100.0, 20.0, 200.0, 60.0]])


def batch(size, is_pseudo=None):
    return ChunkBatch(
        torch.randn(size, 1, 1024, 128), pad_boxes([BOX] * size), torch.ones(size), is_pseudo=is_pseudo
    )


@pytest.mark.parametrize(
    "made",
    [
        lambda: DetectionObjective(build_detector(DetectorArchitecture("mast", "tiny"))),
        lambda: ReconstructionObjective(build_autoencoder("tiny"), Masking()),
    ],
    ids=["detector", "pretraining"],
)
def test_the_advice_after_a_step_that_had_drawn_for_the_whole_batch(made):
    """Noise and masks of the step that failed have its size: they do not fit the part that is tried."""
    objective, whole = made(), batch(2)
    engine = TorchEngine(
        objective,
        parameter_groups(objective, weight_decay=0.0),
        OptimizerSettings(),
        device=torch.device("cpu"),
    )
    engine.set_epoch(0.0)
    objective.begin_step([whole, whole])
    objective.seed_step(3, torch.arange(2), 2)
    said = out_of_memory_advice(engine, whole, Schedule(8, 4, 1, 1e-3), "detector")
    assert said.startswith("out of memory with 2 chunks at once; 1 fit")
    assert "--set detector.accumulate=2" in said


def test_the_first_chunks_of_a_batch_are_first_in_every_part():
    part = first_chunks(batch(3, torch.tensor([True, False, True])), 2)
    assert len(part.logmel) == len(part.weight) == len(part.boxes.corners) == 2
    assert part.is_pseudo is not None and part.is_pseudo.tolist() == [True, False]
