"""DeepSpeed (ZeRO 0 to 3) behind the same face as plain torch.

Its own casting of a whole module to bf16 is not used: a detector's point coordinates do not survive it.
Checkpoints hold the whole state, read and written through DeepSpeed's helpers for tensors in pieces, so the engine,
the stage and the number of workers are free to change between two of them.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, Literal

import torch
import torch.distributed as dist
from torch import Tensor, nn

from mast_ray.boxes.batch import ChunkBatch
from mast_ray.training.ema import KeptStatistics, MovingAverage, running_statistics
from mast_ray.training.engine import (
    FIRST_LOSS_SCALE,
    LOSS_SCALE_INTERVAL,
    Autocast,
    EngineState,
    Objective,
    OptimizerSettings,
    adam_of,
    detached,
    freeze_ungrouped,
    poisoned,
    to_host,
)
from mast_ray.training.groups import ParameterGroup

Offload = Literal["none", "optimizer"]
MOMENTS = ("exp_avg", "exp_avg_sq")


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
        offload: Offload = "none",
    ) -> None:
        deepspeed = _import_deepspeed(device)
        self._helpers, self._gathered = deepspeed.utils, deepspeed.zero.GatheredParameters
        self.name = f"deepspeed-zero{zero_stage}" + ("-offload" if offload != "none" else "")
        self.objective, self.groups, self.settings = objective, tuple(groups), settings
        self.device, self.zero_stage = device, zero_stage
        self._clips_itself = zero_stage == 3 or (zero_stage > 0 and offload != "none")
        self.parameters = dict(objective.named_parameters())
        # DeepSpeed views them as bytes: channels-last weights cannot be
        for parameter in self.parameters.values():
            parameter.data = parameter.data.flatten().view(parameter.shape)
        freeze_ungrouped(self.parameters, self.groups)
        self.grouped_names = [name for group in self.groups for name in group.names]
        self._shapes = {name: self.parameters[name].shape for name in self.grouped_names}
        self._statistics = running_statistics(objective)
        self._kept_statistics = KeptStatistics(list(self._statistics.values()))
        # whole averages, as in plain torch; under ZeRO-3, where no rank has whole weights, of this rank's pieces
        self.average: MovingAverage | None = None
        if settings.average_decay is not None and zero_stage < 3:
            self.average = MovingAverage(self._averaged(), settings.average_decay)
        self._adam = adam_of(self.parameters, self.groups, settings)
        config = _deepspeed_config(
            settings,
            samples_per_worker,
            accumulate,
            zero_stage,
            dist.get_world_size(),
            offload,
            self._clips_itself,
        )
        # All parameters are trainable and grouped here; freezing comes after, in set_epoch. A group frozen at
        # initialise raises IndexError, and a parameter outside the groups would silently never train.
        self.engine, self.optimizer, _, _ = deepspeed.initialize(
            model=Autocast(objective, device, settings.precision), optimizer=self._adam, config=config
        )
        self._loss_scale = FIRST_LOSS_SCALE if settings.precision == "fp16" else 1.0
        self._growth = 0
        self._open_groups: frozenset[int] | None = None
        self._make_moments(accumulate)
        if settings.average_decay is not None and zero_stage == 3:
            self.average = MovingAverage(self._averaged(), settings.average_decay)

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

    def backward(self, batch: ChunkBatch, *, is_last: bool, weight: float = 1.0) -> dict[str, Tensor]:
        """Forward and backward of one micro-batch; DeepSpeed divides by the
        accumulation and knows the last one.
        """
        losses = self.engine(replace(batch, chunk_ids=()))
        self.engine.backward(poisoned(losses["loss"]) * (self._loss_scale * weight))
        if not is_last:
            self.engine.step()  # counts the micro-step, updates nothing
        return detached(losses, weight)

    def step(self, base_rate: float) -> Tensor:
        """Clip, update (or skip when a gradient is not finite), average. Returns the gradient norm."""
        is_open = self._open_groups or frozenset()
        for i, (torch_group, group) in enumerate(zip(self.optimizer.param_groups, self.groups, strict=True)):
            torch_group["lr"] = base_rate * group.multiplier if i in is_open else 0.0
        scale = torch.full((), self._loss_scale, device=self.device)
        if self._clips_itself:
            # It clips what it sees, the scaled gradient, and skips the update itself when that is not finite.
            if self.settings.precision == "fp16":
                where = self._states_of(0)[0]["exp_avg"].device
                self.optimizer.clip_grad = self.settings.clip_norm * self._loss_scale
                self._adam.grad_scale = scale.to(where)
                self._adam.found_inf = torch.zeros((), device=where)
            self.engine.step()
            norm = torch.as_tensor(self.engine.get_global_grad_norm(), device=self.device).float() / scale
        else:
            # On the device, in the fused optimizer: DeepSpeed would wait for the norm on the host in every step.
            norm = self._gradient_norm() / scale
            self._adam.grad_scale = (norm / self.settings.clip_norm).clamp(min=1.0) * scale
            self._adam.found_inf = (~torch.isfinite(norm)).float()
            self.engine.step()
        self._adapt_loss_scale(norm)
        self._kept_statistics.settle(~torch.isfinite(norm))
        if self.average is not None:
            self.average.update(self._averaged())
        return norm

    def _gradient_norm(self) -> Tensor:
        """Over all workers, without waiting for it."""
        if self.zero_stage == 0:  # every worker has all gradients
            return torch.nn.utils.get_total_norm(
                [p.grad for p in self.parameters.values() if p.grad is not None], foreach=True
            )
        own = [part for parts in self.optimizer.averaged_gradients.values() for part in parts or ()]
        squared = torch.nn.utils.get_total_norm(own, foreach=True).square().to(self.device)
        if dist.get_world_size() > 1:
            dist.all_reduce(squared)
        return squared.sqrt()

    def state(self) -> EngineState:
        steps = {name: self._steps_of(i) for i, group in enumerate(self.groups) for name in group.names}
        begun = [name for name, step in steps.items() if step > 0]
        with self._unfrozen():
            first, second = ({name: self._moment(name, key) for name in begun} for key in MOMENTS)
        return EngineState(
            weights=self._whole_weights(),
            average=self.averaged_weights() if self.average is not None else None,
            first_moment=first,
            second_moment=second,
            optimizer_steps={name: steps[name] for name in begun},
            loss_scale=(self._loss_scale, self._growth),
        )

    @torch.no_grad()
    def load_state(self, state: EngineState) -> None:
        for name, value in self.objective.state_dict().items():
            if name not in self.parameters:
                value.copy_(state.weights[name])
        self._kept_statistics.keep()
        with self._unfrozen():
            for name in self.parameters:
                self._set_weight(name, state.weights[name].to(self.device))
            for name in self.grouped_names:
                for key, moments in zip(MOMENTS, (state.first_moment, state.second_moment), strict=True):
                    self._set_moment(name, key, moments.get(name))
        for i, group in enumerate(self.groups):
            self._set_steps(i, state.optimizer_steps.get(group.names[0], 0.0))
        if self.average is not None:
            source = state.average if state.average is not None else state.weights
            for name, average in zip(self._averaged_names(), self.average.averages, strict=True):
                average.copy_(self._piece(name, source[name].to(average.device)))
        self._loss_scale, self._growth = state.loss_scale

    def averaged_weights(self) -> dict[str, Tensor]:
        """The module's state dict with averaged parameters (or the current ones when no average is kept)."""
        weights = self._whole_weights()
        if self.average is not None:
            averages = zip(self._averaged_names(), self.average.averages, strict=True)
            weights |= {name: to_host(self._whole(name, average)) for name, average in averages}
        return weights

    def shared_averages(self) -> dict[str, Tensor] | None:
        """The averages themselves by name, moving with every step; None under ZeRO-3, where each rank has pieces."""
        if self.average is None or self.zero_stage == 3:
            return None
        return dict(zip(self._averaged_names(), self.average.averages, strict=True))

    # What is averaged: parameters, whole (ZeRO-3: this rank's pieces), and the running statistics of batch norms.

    def _averaged_names(self) -> list[str]:
        return [*self.grouped_names, *self._statistics]

    def _averaged(self) -> list[Tensor]:
        if self.zero_stage < 3:
            parameters = [self.parameters[name] for name in self.grouped_names]
        else:
            with self._unfrozen():
                parameters = [
                    self._helpers.safe_get_local_fp32_param(self.parameters[name])
                    for name in self.grouped_names
                ]
        return [*parameters, *self._statistics.values()]

    def _piece(self, name: str, whole: Tensor) -> Tensor:
        """This rank's piece of a parameter under ZeRO-3: all ranks have pieces of one length, the last ones padded."""
        if self.zero_stage < 3 or name not in self._shapes:
            return whole
        flat, count = whole.flatten(), dist.get_world_size()
        length = -(-flat.numel() // count)
        return nn.functional.pad(flat, (0, length * count - flat.numel())).narrow(
            0, dist.get_rank() * length, length
        )

    def _whole(self, name: str, piece: Tensor) -> Tensor:
        """Inverse of _piece; collective where ranks have pieces."""
        shape = self._shapes.get(name)
        if self.zero_stage < 3 or shape is None:
            return piece
        pieces = [torch.empty_like(piece) for _ in range(dist.get_world_size())]
        dist.all_gather(pieces, piece)
        return torch.cat([part.flatten() for part in pieces])[: shape.numel()].view(shape)

    def _whole_weights(self) -> dict[str, Tensor]:
        weights = {name: to_host(value) for name, value in self.objective.state_dict().items()}
        if self.zero_stage == 3:
            for name, parameter in self.parameters.items():
                with self._gathered(parameter):
                    weights[name] = to_host(parameter)
        return weights

    # Weights and Adam's moments by parameter: plain tensors without ZeRO, through DeepSpeed's helpers with it.

    def _make_moments(self, accumulate: int) -> None:
        """Adam's state from the start, where DeepSpeed's helpers find it: ZeRO 1 and 2 look for it in their first step,
        which is one of rate zero over gradients of zero here, changes nothing and is forgotten.
        """
        for group in range(len(self.groups)):
            for flat in self._flats_of(group):
                self._adam.state[flat] = {key: torch.zeros_like(flat) for key in MOMENTS}
                self._adam.state[flat]["step"] = torch.zeros((), device=flat.device)
        if self.zero_stage in (1, 2):
            for _ in range(accumulate):
                self.engine.backward(self.engine(None)["loss"])
                self.engine.step()
            for group in range(len(self.groups)):
                self._set_steps(group, 0.0)

    @contextmanager
    def _unfrozen(self) -> Iterator[None]:
        """DeepSpeed's helpers for ZeRO-3 pass over parameters that do not train at the moment."""
        frozen = [
            self.parameters[name] for name in self.grouped_names if not self.parameters[name].requires_grad
        ]
        for parameter in frozen:
            parameter.requires_grad_(True)
        try:
            yield
        finally:
            for parameter in frozen:
                parameter.requires_grad_(False)

    def _set_weight(self, name: str, value: Tensor) -> None:
        """What is computed with, and the copy that the optimizer moves."""
        parameter = self.parameters[name]
        if self.zero_stage < 3:
            parameter.copy_(value)
        else:
            with self._gathered(parameter, modifier_rank=0):
                parameter.copy_(value)
        if name in self._shapes and self.zero_stage in (1, 2):
            self._helpers.safe_set_full_fp32_param(parameter, value)
        elif name in self._shapes and self.zero_stage == 3:
            self._helpers.safe_set_local_fp32_param(parameter, self._piece(name, value))

    def _moment(self, name: str, key: str) -> Tensor:
        parameter = self.parameters[name]
        if self.zero_stage == 0:
            return to_host(self._adam.state[parameter][key])
        if self.zero_stage == 3:
            return to_host(self._whole(name, self._helpers.safe_get_local_optimizer_state(parameter, key)))
        return to_host(self._helpers.safe_get_full_optimizer_state(parameter, key))

    def _set_moment(self, name: str, key: str, value: Tensor | None) -> None:
        """None: zeros."""
        parameter = self.parameters[name]
        value = torch.zeros(self._shapes[name]) if value is None else value
        if self.zero_stage == 0:
            self._adam.state[parameter][key].copy_(value)
        elif self.zero_stage == 3:
            piece = self._piece(name, value.to(self.device))
            self._helpers.safe_set_local_optimizer_state(parameter, piece, key)
        else:
            self._helpers.safe_set_full_optimizer_state(parameter, value.to(self.device), key)

    # Adam's step counter: one per parameter without ZeRO, one per flat group with it.

    def _flats_of(self, group: int) -> list[Tensor]:
        """What the optimizer moves for a group."""
        if self.zero_stage < 3:
            return self._adam.param_groups[group]["params"]
        groups, flats = self.optimizer.sub_group_to_group_id, self.optimizer.fp32_partitioned_groups_flat
        return [flat for i, flat in enumerate(flats) if groups[i] == group]

    def _states_of(self, group: int) -> list[dict[str, Tensor]]:
        return [self._adam.state[flat] for flat in self._flats_of(group)]

    def _steps_of(self, group: int) -> float:
        if self._open_groups is not None and group not in self._open_groups:
            return 0.0
        return max(float(state["step"]) for state in self._states_of(group))

    def _set_steps(self, group: int, step: float) -> None:
        for state in self._states_of(group):
            state["step"].fill_(step)

    def _forget_moments(self, group: int) -> None:
        """A group that joins starts as if its optimizer were new: ZeRO has counted
        its steps while it was frozen.
        """
        for state in self._states_of(group):
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


def _deepspeed_config(
    settings: OptimizerSettings,
    samples_per_worker: int,
    accumulate: int,
    zero_stage: int,
    num_processes: int,
    offload: Offload,
    clips_itself: bool,
) -> dict[str, Any]:
    zero: dict[str, Any] = {"stage": zero_stage}
    if zero_stage > 0 and not clips_itself:
        zero["compute_grad_norm"] = False
    if offload == "optimizer" and zero_stage > 0:
        zero["offload_optimizer"] = {"device": "cpu", "pin_memory": torch.cuda.is_available()}
    return {
        "train_micro_batch_size_per_gpu": samples_per_worker,
        "gradient_accumulation_steps": accumulate,
        "train_batch_size": samples_per_worker * accumulate * num_processes,
        "gradient_clipping": settings.clip_norm if clips_itself else 0.0,
        "zero_optimization": zero,
        "zero_allow_untested_optimizer": True,
        "zero_force_ds_cpu_optimizer": False,
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
