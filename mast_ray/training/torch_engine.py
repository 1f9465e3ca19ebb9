"""Plain torch: fp32 weights, autocast, fused AdamW, DDP between processes. Clipping rides along as the
optimizer's gradient scale.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Sequence
from dataclasses import replace

import torch
from torch import Tensor, nn

from mast_ray.boxes.batch import ChunkBatch
from mast_ray.training.ema import KeptStatistics, MovingAverage, running_statistics
from mast_ray.training.engine import (
    FIRST_LOSS_SCALE,
    LOSS_SCALE_INTERVAL,
    EngineState,
    Objective,
    OptimizerSettings,
    adam_of,
    autocast,
    detached,
    freeze_ungrouped,
    poisoned,
    quickest_gradients,
    to_host,
)
from mast_ray.training.groups import ParameterGroup
from mast_ray.training.step_graph import StepGraphs

log = logging.getLogger("mast.training")


class TorchEngine:
    """One process, or several under DistributedDataParallel when `num_processes` > 1."""

    def __init__(
        self,
        objective: Objective,
        groups: Sequence[ParameterGroup],
        settings: OptimizerSettings,
        *,
        device: torch.device,
        num_processes: int = 1,
        accumulate: int = 1,
        compiled: bool = False,
        recorded: bool = False,
    ) -> None:
        self.name = "torch" if num_processes == 1 else "torch-ddp"
        self.objective, self.groups, self.settings = objective, tuple(groups), settings
        self.device, self.num_processes, self.accumulate = device, num_processes, accumulate
        self.parameters = dict(objective.named_parameters())
        self._statistics = running_statistics(objective)
        self._kept_statistics = KeptStatistics(list(self._statistics.values()))
        freeze_ungrouped(self.parameters, self.groups)
        self.optimizer = adam_of(self.parameters, self.groups, settings)
        self.trainable: list[Tensor] = []
        self._forward: Callable[..., dict[str, Tensor]] = objective
        self._open_groups: frozenset[int] = frozenset()
        self.average = None
        if settings.average_decay is not None:
            self.average = MovingAverage(self._averaged(), settings.average_decay)
        first_scale = FIRST_LOSS_SCALE if settings.precision == "fp16" else 1.0
        self._loss_scale = torch.full((), first_scale, device=device)
        self._growth = torch.zeros((), dtype=torch.int32, device=device)
        self._compiled = compiled and num_processes == 1
        self._is_new = self._compiled  # the compiled step has not run yet
        can_record = recorded and device.type == "cuda" and num_processes == accumulate == 1
        self.graphs = StepGraphs(objective, self._forward_backward) if can_record else None

    def set_epoch(self, epoch: float) -> tuple[str, ...]:
        """Let the groups whose epoch has come train; returns the labels of those that just joined."""
        is_open = frozenset(i for i, group in enumerate(self.groups) if group.start_epoch <= epoch)
        if is_open == self._open_groups:
            return ()
        joined = tuple(self.groups[i].label for i in sorted(is_open - self._open_groups))
        self._open_groups = is_open
        self.trainable = []
        self._is_new = self._compiled  # what has a gradient is compiled into the step
        if self.graphs is not None:
            self.graphs.forget()
        for i, group in enumerate(self.groups):
            for name in group.names:
                self.parameters[name].requires_grad_(i in is_open)
                self.parameters[name].grad = None
                if i in is_open:
                    self.trainable.append(self.parameters[name])
        if self.num_processes > 1:
            # DDP hooks what requires a gradient when it is built, so it is built anew when that changes.
            self._forward = nn.parallel.DistributedDataParallel(
                self.objective,
                device_ids=[self.device] if self.device.type == "cuda" else None,
                broadcast_buffers=False,
                gradient_as_bucket_view=True,
                find_unused_parameters=self.objective.may_skip_parameters,
            )
        return joined

    def backward(self, batch: ChunkBatch, *, is_last: bool, weight: float = 1.0) -> dict[str, Tensor]:
        """Forward and backward of one micro-batch; returns detached loss components."""
        try:
            losses = self._backward(batch, is_last=is_last, weight=weight)
        except torch.OutOfMemoryError:
            raise
        except Exception as error:
            if not self._is_new:
                raise
            log.warning(
                "model.compile: the step could not be compiled, going on without (%s: %s)",
                type(error).__name__,
                (str(error).strip().splitlines() or [""])[0],
            )
            self._compiled = False
            self.objective.run_eagerly()
            self.optimizer.zero_grad(set_to_none=True)
            losses = self._backward(batch, is_last=is_last, weight=weight)
        self._is_new = False
        return losses

    def _backward(self, batch: ChunkBatch, *, is_last: bool, weight: float) -> dict[str, Tensor]:
        if self.graphs is not None:
            with torch.no_grad():
                inputs = self.objective.step_inputs(batch)
            return self.graphs.run(inputs)
        waits = self.num_processes > 1 and not is_last
        with self._forward.no_sync() if waits else contextlib.nullcontext():  # type: ignore[attr-defined]
            with autocast(self.device, self.settings.precision):
                losses = self._forward(replace(batch, chunk_ids=()))
            with quickest_gradients(self.device, self.settings.precision):
                (poisoned(losses["loss"]) * (self._loss_scale * weight / self.accumulate)).backward()
        return detached(losses, weight)

    def _forward_backward(self, *inputs: Tensor) -> dict[str, Tensor]:
        """The part of a step that a graph can hold: arithmetic on tensors, gradients left in place."""
        with autocast(self.device, self.settings.precision):
            losses = self.objective.step_losses(*inputs)
        (poisoned(losses["loss"]) * (self._loss_scale / self.accumulate)).backward()
        return {name: value.detach() for name, value in losses.items()}

    @torch.no_grad()
    def step(self, base_rate: float) -> Tensor:
        """Clip, update (or skip on the device when a gradient is not finite),
        average. Returns the gradient norm.
        """
        gradients = [parameter.grad for parameter in self.trainable if parameter.grad is not None]
        norm = torch.nn.utils.get_total_norm(gradients, foreach=True) / self._loss_scale
        is_bad = (~torch.isfinite(norm)).float()
        for torch_group, group in zip(self.optimizer.param_groups, self.groups, strict=True):
            torch_group["lr"] = base_rate * group.multiplier
        self.optimizer.grad_scale = (norm / self.settings.clip_norm).clamp(min=1.0) * self._loss_scale
        self.optimizer.found_inf = is_bad
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        self._kept_statistics.settle(is_bad)
        if self.settings.precision == "fp16":
            torch._amp_update_scale_(self._loss_scale, self._growth, is_bad, 2.0, 0.5, LOSS_SCALE_INTERVAL)
        if self.average is not None:
            self.average.update(self._averaged())
        return norm

    def state(self) -> EngineState:
        weights = {name: to_host(value) for name, value in self.objective.state_dict().items()}
        moments = {name: self.optimizer.state.get(self.parameters[name]) for name in self._grouped_names()}
        begun = {name: moment for name, moment in moments.items() if moment}
        return EngineState(
            weights=weights,
            average=self.averaged_weights() if self.average is not None else None,
            first_moment={name: to_host(moment["exp_avg"]) for name, moment in begun.items()},
            second_moment={name: to_host(moment["exp_avg_sq"]) for name, moment in begun.items()},
            optimizer_steps={name: float(moment["step"]) for name, moment in begun.items()},
            loss_scale=(float(self._loss_scale), int(self._growth)),
        )

    @torch.no_grad()
    def load_state(self, state: EngineState) -> None:
        self.objective.load_state_dict(state.weights)
        self._kept_statistics.keep()
        self.optimizer.state.clear()
        for name, step in state.optimizer_steps.items():
            parameter = self.parameters[name]
            self.optimizer.state[parameter] = {
                "step": torch.full((), step, dtype=torch.float32, device=self.device),
                # Laid out like the parameter: the fused kernel pairs elements by address, and
                # channels-last weights differ.
                "exp_avg": torch.empty_like(parameter).copy_(state.first_moment[name]),
                "exp_avg_sq": torch.empty_like(parameter).copy_(state.second_moment[name]),
            }
        if self.average is not None:
            source = state.average if state.average is not None else state.weights
            for average, name in zip(self.average.averages, self._averaged_names(), strict=True):
                average.copy_(source[name])
        self._loss_scale.fill_(state.loss_scale[0])
        self._growth.fill_(state.loss_scale[1])

    def averaged_weights(self) -> dict[str, Tensor]:
        """The module's state dict with averaged parameters and batch statistics (the current ones when no
        average is kept).
        """
        weights = {name: to_host(value) for name, value in self.objective.state_dict().items()}
        if self.average is not None:
            weights |= {
                name: to_host(average)
                for name, average in zip(self._averaged_names(), self.average.averages, strict=True)
            }
        return weights

    def shared_averages(self) -> dict[str, Tensor] | None:
        """The averages themselves by name, on the device, moving with every step; None: no average."""
        if self.average is None:
            return None
        return dict(zip(self._averaged_names(), self.average.averages, strict=True))

    def _grouped_names(self) -> list[str]:
        return [name for group in self.groups for name in group.names]

    def _averaged_names(self) -> list[str]:
        return [*self._grouped_names(), *self._statistics]

    def _averaged(self) -> list[Tensor]:
        return [*(self.parameters[name] for name in self._grouped_names()), *self._statistics.values()]
