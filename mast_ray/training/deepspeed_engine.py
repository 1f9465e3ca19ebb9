"""DeepSpeed (ZeRO 0, 1, 2) behind the same face as plain torch.

Its own casting of a whole module to bf16 is not used: a detector's point coordinates do not survive it.
Whole-state checkpoints make the number of workers free to change.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from mast_ray.boxes.batch import ChunkBatch
from mast_ray.training.ema import MovingAverage, running_statistics
from mast_ray.training.engine import (
    FIRST_LOSS_SCALE,
    LOSS_SCALE_INTERVAL,
    EngineState,
    Objective,
    OptimizerSettings,
    Precision,
    autocast,
    freeze_ungrouped,
    poisoned,
    to_host,
)
from mast_ray.training.groups import ParameterGroup


class DeepSpeedEngine:
    """ZeRO over the process group that exists (a group of one is made when there is none)."""

    def __init__(
        self,
        objective: Objective,
        groups: Sequence[ParameterGroup],
        settings: OptimizerSettings,
        *,
        device: torch.device,
        samples_per_worker: int,
        accumulate: int,
        zero_stage: int,
    ) -> None:
        deepspeed = _import_deepspeed(device)
        self.name = f"deepspeed-zero{zero_stage}"
        self.objective, self.groups, self.settings = objective, tuple(groups), settings
        self.device, self.zero_stage = device, zero_stage
        self.parameters = dict(objective.named_parameters())
        # DeepSpeed views them as bytes: channels-last weights cannot be
        for parameter in self.parameters.values():
            parameter.data = parameter.data.flatten().view(parameter.shape)
        freeze_ungrouped(self.parameters, self.groups)
        self.grouped_names = [name for group in self.groups for name in group.names]
        self._group_of = {name: i for i, group in enumerate(self.groups) for name in group.names}
        optimizer = torch.optim.AdamW(
            [
                {
                    "params": [self.parameters[name] for name in group.names],
                    "weight_decay": group.weight_decay,
                }
                for group in self.groups
            ],
            lr=0.0,
            betas=settings.betas,
            fused=True,
        )
        config = _deepspeed_config(
            settings, samples_per_worker, accumulate, zero_stage, dist.get_world_size()
        )
        # All parameters are trainable and grouped here; freezing comes after, in set_epoch. A group frozen at
        # initialise raises IndexError, and a parameter outside the groups would silently never train.
        self.engine, self.optimizer, _, _ = deepspeed.initialize(
            model=_Autocast(objective, device, settings.precision), optimizer=optimizer, config=config
        )
        self._loss_scale = FIRST_LOSS_SCALE if settings.precision == "fp16" else 1.0
        self._growth = 0
        self._open_groups: frozenset[int] | None = None
        self.average = self._average_statistics = None
        self._statistics = running_statistics(objective)
        if settings.average_decay is not None:
            self.average = MovingAverage(self._fragments(), settings.average_decay)
            self._average_statistics = MovingAverage(list(self._statistics.values()), settings.average_decay)

    def set_epoch(self, epoch: float) -> tuple[str, ...]:
        """Let the groups whose epoch has come train; returns the labels of those that just joined."""
        is_open = frozenset(i for i, group in enumerate(self.groups) if group.start_epoch <= epoch)
        if is_open == self._open_groups:
            return ()
        joined = is_open - (self._open_groups or frozenset())
        for i, group in enumerate(self.groups):
            for name in group.names:
                self.parameters[name].requires_grad_(i in is_open)
            if i in joined and self._open_groups is not None:
                self._forget_moments(i)
        self._open_groups = is_open
        return tuple(self.groups[i].label for i in sorted(joined))

    def backward(self, batch: ChunkBatch, *, is_last: bool) -> dict[str, Tensor]:
        """Forward and backward of one micro-batch; DeepSpeed divides by the
        accumulation and knows the last one.
        """
        losses = self.engine(replace(batch, chunk_ids=()))
        self.engine.backward(poisoned(losses["loss"]) * self._loss_scale)
        if not is_last:
            self.engine.step()  # counts the micro-step, updates nothing
        return {name: value.detach() for name, value in losses.items()}

    def step(self, base_rate: float) -> Tensor:
        """Clip, update (DeepSpeed skips when a gradient is not finite), average.
        Returns the gradient norm.
        """
        is_open = self._open_groups or frozenset()
        for i, (torch_group, group) in enumerate(zip(self.optimizer.param_groups, self.groups, strict=True)):
            torch_group["lr"] = base_rate * group.multiplier if i in is_open else 0.0
        inner = self._inner_optimizer()
        scale = torch.full((), self._loss_scale, device=self.device)
        if self._is_sharded():
            # ZeRO clips what it sees, the scaled gradient, and skips the update
            # itself when that is not finite.
            self.optimizer.clip_grad = self.settings.clip_norm * self._loss_scale
            inner.grad_scale, inner.found_inf = scale, torch.zeros((), device=self.device)
            self.engine.step()
            norm = torch.as_tensor(self.engine.get_global_grad_norm(), device=self.device).float() / scale
        else:
            gradients = [p.grad for p in self.parameters.values() if p.grad is not None]
            norm = torch.nn.utils.get_total_norm(gradients, foreach=True) / scale
            inner.grad_scale = (norm / self.settings.clip_norm).clamp(min=1.0) * scale
            inner.found_inf = (~torch.isfinite(norm)).float()
            self.engine.step()
        self._adapt_loss_scale(norm)
        if self.average is not None:
            self.average.update(self._fragments())
        if self._average_statistics is not None:
            self._average_statistics.update(list(self._statistics.values()))
        return norm

    def state(self) -> EngineState:
        first = {name: self._gathered(name, "exp_avg") for name in self.grouped_names}
        second = {name: self._gathered(name, "exp_avg_sq") for name in self.grouped_names}
        steps = {name: self._optimizer_step(i) for i, group in enumerate(self.groups) for name in group.names}
        begun = {name for name, step in steps.items() if step > 0}
        return EngineState(
            weights=self._whole_weights(),
            average=self.averaged_weights() if self.average is not None else None,
            first_moment={name: value for name, value in first.items() if name in begun},
            second_moment={name: value for name, value in second.items() if name in begun},
            optimizer_steps={name: steps[name] for name in begun},
            loss_scale=(self._loss_scale, self._growth),
        )

    @torch.no_grad()
    def load_state(self, state: EngineState) -> None:
        for name, value in self.objective.state_dict().items():
            value.copy_(state.weights[name])
        for name in self.grouped_names:
            if self._is_sharded() and self._mapping(name) is not None:
                self._mapping(name).get_hp_fragment().copy_(
                    self._cut(name, state.weights[name].to(self.device))
                )
            for key, moments in (("exp_avg", state.first_moment), ("exp_avg_sq", state.second_moment)):
                own = self._moment(name, key)
                if own is not None and name in moments:
                    own.copy_(self._cut(name, moments[name].to(self.device)))
                elif own is not None:
                    own.zero_()
        for i, group in enumerate(self.groups):
            self._set_optimizer_step(i, state.optimizer_steps.get(group.names[0], 0.0))
        if self.average is not None:
            source = state.average if state.average is not None else state.weights
            for name, average in zip(self._fragment_names(), self.average.averages, strict=True):
                average.copy_(self._cut(name, source[name].to(self.device)))
        if self._average_statistics is not None:
            source = state.average if state.average is not None else state.weights
            for name, average in zip(self._statistics, self._average_statistics.averages, strict=True):
                average.copy_(source[name])
        self._loss_scale, self._growth = state.loss_scale

    def averaged_weights(self) -> dict[str, Tensor]:
        """The module's state dict with averaged parameters (or the current ones when no average is kept)."""
        weights = self._whole_weights()
        if self.average is not None:
            averages = dict(zip(self._fragment_names(), self.average.averages, strict=True))
            for name in self.grouped_names:
                weights[name] = to_host(self._join(name, averages.get(name)))
        if self._average_statistics is not None:
            averaged = zip(self._statistics, self._average_statistics.averages, strict=True)
            weights |= {name: to_host(value) for name, value in averaged}
        return weights

    def shared_averages(self) -> dict[str, Tensor] | None:
        """Each rank holds pieces only: there is no whole average to look at during a step."""
        return None

    # Fragments: the piece of each parameter's fp32 master copy that this rank owns
    # (ZeRO 1 and 2), or all of it.

    def _mapping(self, name: str) -> Any:
        return getattr(self.parameters[name], "_hp_mapping", None)

    def _is_sharded(self) -> bool:
        return self.zero_stage > 0

    def _fragment_names(self) -> list[str]:
        if not self._is_sharded():
            return self.grouped_names
        return [name for name in self.grouped_names if self._mapping(name) is not None]

    def _fragments(self) -> list[Tensor]:
        if not self._is_sharded():
            return [self.parameters[name] for name in self.grouped_names]
        return [self._mapping(name).get_hp_fragment() for name in self._fragment_names()]

    def _cut(self, name: str, whole: Tensor) -> Tensor:
        if not self._is_sharded():
            return whole
        address = self._mapping(name).lp_fragment_address
        return whole.flatten().narrow(0, address.start, address.numel)

    def _join(self, name: str, fragment: Tensor | None) -> Tensor:
        parameter = self.parameters[name]
        if not self._is_sharded():
            assert fragment is not None
            return fragment
        whole = torch.zeros(parameter.numel(), device=self.device)
        if fragment is not None:
            self._cut(name, whole).copy_(fragment)
        dist.all_reduce(whole)
        return whole.view_as(parameter)

    def _gathered(self, name: str, key: str) -> Tensor:
        return to_host(self._join(name, self._moment(name, key)))

    def _moment(self, name: str, key: str) -> Tensor | None:
        """This rank's piece of one of Adam's moments (a view), made first when Adam has
        not yet; None: nothing owned.
        """
        if not self._is_sharded():
            parameter = self.parameters[name]
            return self._adam_state(parameter)[key]
        mapping = self._mapping(name)
        if mapping is None:
            return None
        flat = self._inner_optimizer().param_groups[self._group_of[name]]["params"][0]
        address = mapping.get_hp_fragment_address()
        return self._adam_state(flat)[key].narrow(0, address.start, address.numel)

    def _adam_state(self, parameter: Tensor) -> dict[str, Tensor]:
        state = self._inner_optimizer().state[parameter]
        if "exp_avg" not in state:
            state["step"] = torch.zeros((), device=self.device)
            state["exp_avg"] = torch.zeros_like(parameter)
            state["exp_avg_sq"] = torch.zeros_like(parameter)
        return state

    def _inner_optimizer(self) -> torch.optim.Optimizer:
        return self.optimizer.optimizer if self._is_sharded() else self.optimizer

    def _whole_weights(self) -> dict[str, Tensor]:
        return {name: to_host(value) for name, value in self.objective.state_dict().items()}

    # Adam's step counter: one per parameter without ZeRO, one per flat group with it.

    def _flat_states(self, group: int) -> list[dict[str, Tensor]]:
        inner = self._inner_optimizer()
        return [inner.state[p] for p in inner.param_groups[group]["params"] if p in inner.state]

    def _optimizer_step(self, group: int) -> float:
        if self._open_groups is not None and group not in self._open_groups:
            return 0.0
        return max(
            (float(state["step"]) for state in self._flat_states(group) if "step" in state), default=0.0
        )

    def _set_optimizer_step(self, group: int, step: float) -> None:
        for state in self._flat_states(group):
            if "step" in state:
                state["step"].fill_(step)

    def _forget_moments(self, group: int) -> None:
        """A group that joins starts as if its optimizer were new: ZeRO has counted
        its steps while it was frozen.
        """
        for state in self._flat_states(group):
            for value in state.values():
                value.zero_()

    def _adapt_loss_scale(self, norm: Tensor) -> None:
        """Halve after an overflow, double after 2000 steps without one: what torch's scaler does."""
        if self.settings.precision != "fp16":
            return
        if not bool(torch.isfinite(norm)):
            self._loss_scale, self._growth = self._loss_scale * 0.5, 0
        elif self._growth + 1 == LOSS_SCALE_INTERVAL:
            self._loss_scale, self._growth = self._loss_scale * 2.0, 0
        else:
            self._growth += 1


class _Autocast(nn.Module):
    """The objective under autocast. DeepSpeed's own mixed precisions cast the module, or (torch_autocast with
    fp16, 0.19) clip the scaled gradient and never lower the scale after an overflow.
    """

    def __init__(self, objective: Objective, device: torch.device, precision: Precision) -> None:
        super().__init__()
        self.objective, self.device, self.precision = objective, device, precision

    def forward(self, batch: ChunkBatch) -> dict[str, Tensor]:
        with autocast(self.device, self.precision):
            return self.objective(batch)


def _deepspeed_config(
    settings: OptimizerSettings, samples_per_worker: int, accumulate: int, zero_stage: int, num_processes: int
) -> dict[str, Any]:
    return {
        "train_micro_batch_size_per_gpu": samples_per_worker,
        "gradient_accumulation_steps": accumulate,
        "train_batch_size": samples_per_worker * accumulate * num_processes,
        "gradient_clipping": settings.clip_norm
        if zero_stage > 0
        else 0.0,  # stage 0 clips in the fused optimizer
        "zero_optimization": {"stage": zero_stage},
        "zero_allow_untested_optimizer": True,
        "steps_per_print": 10**9,
    }


def _import_deepspeed(device: torch.device) -> Any:
    """DeepSpeed with a process group, and without the minutes of kernel builds it would start on a CPU."""
    if device.type == "cpu":
        os.environ["DS_ACCELERATOR"] = "cpu"
    os.environ.setdefault(
        "LOCAL_RANK", str(device.index or 0)
    )  # DeepSpeed insists on its launcher's variable
    import deepspeed

    logging.getLogger("DeepSpeed").setLevel(logging.WARNING)
    backend = "nccl" if device.type == "cuda" else "gloo"
    if device.type == "cpu":
        deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
    if not dist.is_initialized():
        store = dist.HashStore()
        dist.init_process_group(backend, store=store, rank=0, world_size=1)
    deepspeed.init_distributed(dist_backend=backend)
    return deepspeed
