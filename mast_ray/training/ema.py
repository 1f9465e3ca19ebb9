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
