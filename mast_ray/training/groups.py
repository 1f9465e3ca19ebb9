"""Parameter groups by component: what trains at which multiple of the base rate, with
decay or without, and from when.

A component is read off the parameter's name: an encoder is whatever prefix ends in `encoder.` and holds
numbered `blocks.`. Parameters that never train are in no group, so no engine keeps state for them.
"""

from __future__ import annotations

import re
from collections import defaultdict
from dataclasses import dataclass

from torch import nn

from mast_ray.training.schedule import NEVER, Unfreezing

_BLOCK = re.compile(r"^(?P<encoder>(?:.*\.)?encoder\.)blocks\.(?P<block>\d+)\.")
_ADAPTER = re.compile(r"(?:^|\.)(?:adapter|pyramid)\.")
_UNDECAYED = re.compile(r"(?:token|pos_embed|position\w*|scale|tau)$")


@dataclass(frozen=True)
class Multipliers:
    """Learning rate of a component relative to the base rate."""

    encoder: float = 1.0
    adapter: float = 1.0
    head: float = 1.0
    layer_decay: float = 1.0  # of the encoder: once more for every block below its last norm


@dataclass(frozen=True)
class ParameterGroup:
    """Parameters that share rate, decay and the epoch from which they train."""

    component: str  # encoder, adapter, head
    names: tuple[str, ...]
    multiplier: float
    weight_decay: float
    start_epoch: float

    @property
    def label(self) -> str:
        decayed = "decayed" if self.weight_decay else "undecayed"
        return f"{self.component} from epoch {self.start_epoch:g}, {decayed}"


def parameter_groups(
    module: nn.Module,
    *,
    weight_decay: float,
    multipliers: Multipliers = Multipliers(),  # noqa: B008 (frozen)
    unfreezing: Unfreezing = Unfreezing(),  # noqa: B008 (frozen)
) -> tuple[ParameterGroup, ...]:
    """Groups of all parameters of a module that ever train, in a fixed order."""
    names = [name for name, parameter in module.named_parameters() if parameter.requires_grad]
    blocks = {match["encoder"]: 0 for name in names if (match := _BLOCK.match(name))}
    for name in names:
        if match := _BLOCK.match(name):
            blocks[match["encoder"]] = max(blocks[match["encoder"]], int(match["block"]) + 1)
    parameters = dict(module.named_parameters())
    members: dict[tuple[str, float, float, float], list[str]] = defaultdict(list)
    for name in names:
        component, start_epoch = _component(name, blocks, unfreezing)
        scale = multipliers.layer_decay ** _layers_below_the_top(name, blocks)
        if start_epoch == NEVER:
            continue
        undecayed = parameters[name].ndim <= 1 or _UNDECAYED.search(name) is not None
        members[component, start_epoch, 0.0 if undecayed else weight_decay, scale].append(name)
    return tuple(
        ParameterGroup(component, tuple(names), getattr(multipliers, component) * scale, decay, start_epoch)
        for (component, start_epoch, decay, scale), names in sorted(members.items())
    )


def _layers_below_the_top(name: str, blocks: dict[str, int]) -> int:
    """0 for the encoder's last norm and everything after it, 1 for its top block, one more for each block
    below, and one more for the stem (Bao et al. 2022).
    """
    if match := _BLOCK.match(name):
        return blocks[match["encoder"]] - int(match["block"])
    for prefix, num_blocks in blocks.items():
        if name.startswith(prefix) and not name.startswith(f"{prefix}norm."):
            return num_blocks + 1
    return 0


def _component(name: str, blocks: dict[str, int], unfreezing: Unfreezing) -> tuple[str, float]:
    if match := _BLOCK.match(name):
        return "encoder", unfreezing.epoch_of_block(int(match["block"]), blocks[match["encoder"]])
    for prefix, num_blocks in blocks.items():
        if name.startswith(f"{prefix}norm."):  # the last norm belongs to the top
            return "encoder", unfreezing.epoch_of_block(num_blocks - 1, num_blocks)
        if name.startswith(prefix):
            return "encoder", unfreezing.epoch_of_stem(num_blocks)
    return ("adapter" if _ADAPTER.search(name) else "head"), 0.0
