"""The plain engine's state goes through a checkpoint without losing its place, whatever
the memory layout of the weights.
"""

import pytest
import torch
from torch import nn

from mast_ray.boxes.batch import ChunkBatch, pad_boxes
from mast_ray.training.engine import Objective, OptimizerSettings, quickest_gradients
from mast_ray.training.groups import parameter_groups
from mast_ray.training.torch_engine import TorchEngine


class ConvObjective(Objective):
    """A channels-last convolution, as in the adapter and the head."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.head = nn.Conv2d(3, 4, 3, padding=1).to(memory_format=torch.channels_last)

    def forward(self, batch):
        return {"loss": self.head(batch.logmel.expand(-1, 3, -1, -1)).square().mean()}


def engine():
    objective = ConvObjective()
    settings = OptimizerSettings((0.9, 0.95), 1.0, 0.9, "fp32")
    made = TorchEngine(
        objective, parameter_groups(objective, weight_decay=0.1), settings, device=torch.device("cpu")
    )
    made.set_epoch(0.0)
    return made


def step(one, seed):
    generator = torch.Generator().manual_seed(seed)
    batch = ChunkBatch(
        torch.randn(2, 1, 8, 8, generator=generator), pad_boxes([torch.zeros(0, 4)] * 2), torch.ones(2)
    )
    one.backward(batch, is_last=True)
    one.step(1e-2)


def test_moments_of_channels_last_weights_come_back_element_by_element():
    whole, stopped, resumed = engine(), engine(), engine()
    for one in (whole, stopped):
        step(one, 0)
    state = stopped.state()
    for moments in (state.first_moment, state.second_moment):  # a file holds them contiguous
        moments |= {name: value.contiguous() for name, value in moments.items()}
    resumed.load_state(state)
    for one in (whole, resumed):
        step(one, 1)
    assert torch.equal(whole.objective.head.weight, resumed.objective.head.weight)


class UncompilableObjective(ConvObjective):
    """Fails as a compiler does, until told to run eagerly."""

    is_compiled = True

    def forward(self, batch):
        if self.is_compiled:
            raise RuntimeError("no kernel for this device\nand a long story")
        return super().forward(batch)

    def run_eagerly(self):
        self.is_compiled = False


def test_a_step_that_cannot_be_compiled_goes_on_without_and_says_so(caplog):
    objective, plain = UncompilableObjective(), engine()
    compiled = TorchEngine(
        objective,
        parameter_groups(objective, weight_decay=0.1),
        OptimizerSettings((0.9, 0.95), 1.0, 0.9, "fp32"),
        device=torch.device("cpu"),
        compiled=True,
    )
    compiled.set_epoch(0.0)
    for one in (plain, compiled):
        step(one, 0)
    assert [m for m in caplog.messages if m.startswith("model.compile") and "no kernel for this device" in m]
    assert torch.equal(plain.objective.head.weight, compiled.objective.head.weight)


def test_a_compiled_step_that_has_run_does_not_hide_later_errors():
    objective = UncompilableObjective()
    objective.is_compiled = False
    compiled = TorchEngine(
        objective,
        parameter_groups(objective, weight_decay=0.1),
        OptimizerSettings(),
        device=torch.device("cpu"),
        compiled=True,
    )
    compiled.set_epoch(0.0)
    step(compiled, 0)
    objective.is_compiled = True
    with pytest.raises(RuntimeError, match="no kernel"):
        step(compiled, 1)


class BatchNormObjective(Objective):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.head = nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4))

    def forward(self, batch):
        return {"loss": (self.head(batch.logmel) - 1.0).square().mean()}


def batch_norm_engine():
    objective = BatchNormObjective()
    settings = OptimizerSettings((0.9, 0.95), 1.0, 0.5, "fp32")
    made = TorchEngine(
        objective, parameter_groups(objective, weight_decay=0.0), settings, device=torch.device("cpu")
    )
    made.set_epoch(0.0)
    return made


def test_averaged_weights_come_with_averaged_batch_statistics_also_after_a_checkpoint():
    one, resumed = batch_norm_engine(), batch_norm_engine()
    expected = one.objective.head[1].running_mean.clone()
    for seed in range(3):
        step(one, seed)
        expected = 0.5 * expected + 0.5 * one.objective.head[1].running_mean
    torch.testing.assert_close(one.averaged_weights()["head.1.running_mean"], expected)
    assert int(one.averaged_weights()["head.1.num_batches_tracked"]) == 3
    resumed.load_state(one.state())
    torch.testing.assert_close(resumed.averaged_weights()["head.1.running_mean"], expected)


@pytest.mark.parametrize("machine", ["x86_64", "aarch64"])
def test_gradients_on_arm_are_those_of_every_other_machine(monkeypatch, machine):
    convolution, picture = nn.Conv2d(3, 4, 3), torch.randn(2, 3, 9, 9)
    wanted = torch.autograd.grad(convolution(picture).square().sum(), convolution.weight)[0]
    monkeypatch.setattr("platform.machine", lambda: machine)
    loss = convolution(picture).square().sum()
    before = torch.backends.mkldnn.enabled
    with quickest_gradients(torch.device("cpu"), "fp32"):
        assert torch.backends.mkldnn.enabled == (before and machine == "x86_64")
        loss.backward()
    assert torch.backends.mkldnn.enabled == before
    torch.testing.assert_close(convolution.weight.grad, wanted)


class NormObjective(Objective):
    """A batch norm, as in the side path: its forward pass moves running statistics before any step."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.head = nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2))

    def forward(self, batch):
        return {"loss": self.head(batch.logmel).square().mean() + self.head[0].weight.sum()}


def test_a_batch_that_is_not_finite_leaves_the_running_statistics_as_they_were():
    objective = NormObjective()
    groups = parameter_groups(objective, weight_decay=0.0)
    one = TorchEngine(objective, groups, OptimizerSettings(average_decay=0.5), device=torch.device("cpu"))
    one.set_epoch(0.0)
    norm = objective.head[1]

    def fed(value):
        batch = ChunkBatch(torch.full((2, 1, 8, 8), value), pad_boxes([torch.zeros(0, 4)] * 2), torch.ones(2))
        one.backward(batch, is_last=True)
        one.step(1e-2)
        return norm.running_mean.clone(), norm.running_var.clone()

    before = fed(1.0)
    after = fed(float("nan"))
    assert all(torch.equal(*pair) for pair in zip(before, after, strict=True))
    assert not torch.equal(fed(2.0)[0], before[0])  # a good batch moves them on
    assert all(value.isfinite().all() for value in one.averaged_weights().values())
