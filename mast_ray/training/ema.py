"""Exponential moving average of weights, in fp32, on whatever fragments of the parameters a worker owns.

The decay is stated at batch 64 and rescaled, so that an average spans the same number of samples for every batch size.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

REFERENCE_BATCH = 64


def rescaled_decay(decay: float, batch_size: int) -> float:
    """decay^(batch / 64) (SPEC 5)."""
    return decay ** (batch_size / REFERENCE_BATCH)


def share_of_first_weights(decay: float, batch_size: int, num_steps: int) -> float:
    """How much of the average at the end of a run is still the weights it began with."""
    return rescaled_decay(decay, batch_size) ** num_steps


def decay_that_leaves(share: float, batch_size: int, num_steps: int) -> float:
    """The decay, stated at batch 64, after which that share of the first weights is left: inverse of share_of_first_weights."""
    return share ** (REFERENCE_BATCH / (batch_size * num_steps))


class MovingAverage:
    """Averages of a list of fp32 tensors; `update` is two foreach kernels and never synchronises with the host."""

    def __init__(self, tensors: Sequence[Tensor], decay: float) -> None:
        self.decay = decay
        self.averages = [tensor.detach().float().clone() for tensor in tensors]

    @torch.no_grad()
    def update(self, tensors: Sequence[Tensor]) -> None:
        """average <- decay * average + (1 - decay) * tensor."""
        if self.averages:
            torch._foreach_lerp_(
                self.averages, [tensor.detach().float() for tensor in tensors], 1.0 - self.decay
            )
