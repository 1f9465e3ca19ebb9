"""The face of an engine and of what it trains, and what all engines share.

An engine owns weights, optimizer state and the moving average. A step never synchronises with the host: a
non-finite gradient makes the optimizer skip the update on the device. Weights stay fp32 and the arithmetic is
autocast in every engine, so they agree.
"""

from __future__ import annotations

import contextlib
import platform
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

import torch
from torch import Tensor, nn

from mast_ray.boxes.batch import ChunkBatch
from mast_ray.training.groups import ParameterGroup

Precision = Literal["fp32", "bf16", "fp16"]
FIRST_LOSS_SCALE, LOSS_SCALE_INTERVAL = 2.0**16, 2000  # fp16: halved on overflow, doubled after so many steps
AUTOCAST_DTYPE: dict[str, torch.dtype] = {"bf16": torch.bfloat16, "fp16": torch.float16}


@dataclass(frozen=True)
class OptimizerSettings:
    """AdamW, clipping, the moving average and the arithmetic."""

    betas: tuple[float, float] = (0.9, 0.999)
    clip_norm: float = 1.0
    average_decay: float | None = None  # already rescaled to the batch size; None: no average
    precision: Precision = "fp32"


@dataclass(frozen=True)
class EngineState:
    """Everything an engine needs to go on, whole (not sharded), on the CPU, keyed by parameter name."""

    weights: dict[str, Tensor]  # the module's state dict, parameters in fp32
    average: dict[str, Tensor] | None = None
    first_moment: dict[str, Tensor] = field(default_factory=dict)
    second_moment: dict[str, Tensor] = field(default_factory=dict)
    optimizer_steps: dict[str, float] = field(default_factory=dict)
    loss_scale: tuple[float, int] = (1.0, 0)  # scale, steps since it last changed


class Objective(nn.Module):
    """What an engine trains: `forward(batch)` gives {"loss": scalar, component: scalar, ...}. An objective overrides
    what it has a use for.
    """

    may_skip_parameters = False  # whether a batch may leave parameters without a gradient
    # A mean over the chunks of a batch counts by their number where workers have shares of different sizes; a loss
    # that divides by counts over all workers is right as it is.
    is_mean_of_chunks = True
    num_parts = 1  # micro-batches of all workers that make a step

    def begin_step(self, parts: Sequence[ChunkBatch]) -> None:
        """All micro-batches of a step, before the first: a batch in parts gives the gradient of the whole. An empty
        list: every batch is a step of its own.
        """

    def seed_step(self, step: int, rows: Tensor | None = None, num_rows: int = 0) -> None:
        """Make the draws of the next forward depend on the step only. With rows, each chunk gets the draw of its
        place in the global batch, whichever worker holds it.
        """

    def compile_step(self, **options: Any) -> None:
        """Compile the part of a step that runs on tensors."""

    def run_eagerly(self) -> None:
        """Undo `compile_step`."""

    def step_inputs(self, batch: ChunkBatch) -> tuple[Tensor, ...]:
        """First half of a step that a graph can hold: draws and gathers tensors."""
        raise NotImplementedError

    def step_losses(self, *inputs: Tensor) -> dict[str, Tensor]:
        """Second half: arithmetic on them alone."""
        raise NotImplementedError


class Engine(Protocol):
    """What the loop needs. `state` and `averaged_weights` are collective: every rank calls them."""

    name: str
    objective: Objective

    def set_epoch(self, epoch: float) -> tuple[str, ...]: ...

    def backward(self, batch: ChunkBatch, *, is_last: bool, weight: float = 1.0) -> dict[str, Tensor]:
        """Forward and backward of one micro-batch, which counts `weight` times the mean of all; its losses, detached
        and weighted too.
        """
        ...

    def step(self, base_rate: float) -> Tensor: ...

    def state(self) -> EngineState: ...

    def load_state(self, state: EngineState) -> None: ...

    def averaged_weights(self) -> dict[str, Tensor]: ...

    def shared_averages(self) -> dict[str, Tensor] | None: ...


def choose_precision(requested: Literal["auto", "fp32", "bf16", "fp16"], device: torch.device) -> Precision:
    """bf16 on GPUs, fp32 on CPUs, unless named."""
    if requested != "auto":
        return requested
    return "bf16" if device.type == "cuda" else "fp32"


def autocast(device: torch.device, precision: Precision) -> contextlib.AbstractContextManager[object]:
    """Autocast to the precision, or nothing for fp32."""
    if precision == "fp32":
        return contextlib.nullcontext()
    return torch.autocast(device.type, dtype=AUTOCAST_DTYPE[precision])


@contextlib.contextmanager
def quickest_gradients(device: torch.device, precision: Precision) -> Iterator[None]:
    """On 64-bit ARM processors oneDNN has quick convolutions and slow gradients of them: these are torch's own there
    (2.03 -> 1.25 s for two chunks of the `tiny` detector on one core of a Neoverse N1, the same to 1e-6).
    """
    is_arm = device.type == "cpu" and platform.machine() in ("aarch64", "arm64")
    if not is_arm or precision != "fp32":
        yield
        return
    was_enabled = torch.backends.mkldnn.enabled
    torch.backends.mkldnn.enabled = False
    try:
        yield
    finally:
        torch.backends.mkldnn.enabled = was_enabled


class Autocast(nn.Module):
    """The objective under autocast. DeepSpeed's own mixed precisions cast the module, or (torch_autocast with
    fp16, 0.19) clip the scaled gradient and never lower the scale after an overflow.
    """

    def __init__(self, objective: Objective, device: torch.device, precision: Precision) -> None:
        super().__init__()
        self.objective, self.device, self.precision = objective, device, precision

    def forward(self, batch: ChunkBatch | None) -> dict[str, Tensor]:
        """Without a batch: a loss of zero whose gradient is zero everywhere."""
        if batch is None:
            parameters = [parameter for parameter in self.parameters() if parameter.requires_grad]
            return {"loss": torch.stack([parameter.flatten()[0] for parameter in parameters]).sum() * 0.0}
        with autocast(self.device, self.precision):
            return self.objective(batch)


def poisoned(loss: Tensor) -> Tensor:
    """A loss that is not finite gives every parameter a NaN gradient, so that
    all ranks skip the same step.
    """
    return loss.float() * torch.where(torch.isfinite(loss), 1.0, torch.nan)


def detached(losses: dict[str, Tensor], weight: float) -> dict[str, Tensor]:
    """Losses of a micro-batch for the log: means over micro-batches are means over chunks."""
    return {
        name: value.detach() if weight == 1.0 else value.detach() * weight for name, value in losses.items()
    }


def adam_of(
    parameters: dict[str, Tensor], groups: Sequence[ParameterGroup], settings: OptimizerSettings
) -> torch.optim.AdamW:
    """The fused optimizer of all groups; rates are set before every step."""
    members = [
        {"params": [parameters[name] for name in group.names], "weight_decay": group.weight_decay}
        for group in groups
    ]
    return torch.optim.AdamW(members, lr=0.0, betas=settings.betas, fused=True)


def freeze_ungrouped(parameters: dict[str, Tensor], groups: Sequence[ParameterGroup]) -> None:
    """Parameters in no group never train."""
    grouped = {name for group in groups for name in group.names}
    for name, parameter in parameters.items():
        if name not in grouped:
            parameter.requires_grad_(False)


def to_host(tensor: Tensor) -> Tensor:
    """A copy on the CPU; floating-point values in fp32, whatever the training precision."""
    tensor = tensor.detach()
    return tensor.to("cpu", torch.float32 if tensor.is_floating_point() else tensor.dtype, copy=True)
