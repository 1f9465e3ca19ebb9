"""A recorded step gives the losses and gradients of the step run launch by launch (GPU only)."""

import pytest
import torch
from rectangles import rectangle_chunks

from mast_ray.models.build import build_detector
from mast_ray.models.detector import DetectorArchitecture
from mast_ray.training.engine import OptimizerSettings
from mast_ray.training.groups import parameter_groups
from mast_ray.training.objectives import detection_objective
from mast_ray.training.step_graph import StepGraphs
from mast_ray.training.torch_engine import TorchEngine

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="CUDA graphs need a GPU"),
]


def engine_of(name: str, records: bool) -> TorchEngine:
    torch.manual_seed(0)
    objective = detection_objective(build_detector(DetectorArchitecture(name, "tiny", "hybrid"))).cuda()
    engine = TorchEngine(
        objective,
        parameter_groups(objective, weight_decay=0.01),
        OptimizerSettings(average_decay=0.9),
        device=torch.device("cuda"),
    )
    if records:
        engine.graphs = StepGraphs(objective, engine._forward_backward)
    engine.set_epoch(0.0)
    return engine


@pytest.mark.parametrize("name", ["mast", "resnet_fpn"])
def test_a_recorded_step_learns_as_the_plain_one(name):
    plain, recorded = engine_of(name, False), engine_of(name, True)
    for step in range(4):
        batch = rectangle_chunks(4, seed=step).to("cuda")
        losses = []
        for engine in (plain, recorded):
            engine.objective.seed_step(step)
            losses.append({k: v.item() for k, v in engine.backward(batch, is_last=True).items()})
            engine.step(1e-3)
        assert losses[1] == pytest.approx(losses[0], rel=2e-3, abs=1e-4)
    assert recorded.graphs.num_recorded == 1
    for name_, value in plain.objective.state_dict().items():  # running statistics of batch norms too
        torch.testing.assert_close(recorded.objective.state_dict()[name_], value, rtol=1e-2, atol=2e-3)


def test_a_step_that_reads_back_from_the_device_goes_on_unrecorded_and_says_so(caplog):
    engine = engine_of("mast", True)
    run = engine._forward_backward

    def waits(*inputs):
        losses = run(*inputs)
        losses["loss"].item()
        return losses

    engine.graphs = StepGraphs(engine.objective, waits)
    batch = rectangle_chunks(2).to("cuda")
    for step in range(2):
        engine.objective.seed_step(step)
        losses = engine.backward(batch, is_last=True)
        assert torch.isfinite(engine.step(1e-3)) and torch.isfinite(losses["loss"])
    assert engine.graphs.num_recorded == 0
    assert sum("model.compile" in message for message in caplog.messages) == 1
