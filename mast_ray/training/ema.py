"""Exponential moving average of weights, in fp32, on whatever fragments of the parameters a worker owns.

The decay is stated at batch 64 and rescaled, so that an average spans the same number of samples for every
batch size; in a short run it spans less.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

REFERENCE_BATCH = 64
FIRST_SHARE = 0.01


def rescaled_decay(decay: float, batch_size: int) -> float:
    """decay^(batch / 64)."""
    return decay ** (batch_size / REFERENCE_BATCH)


def average_decay(decay: float, batch_size: int, num_steps: int) -> float:
    """Decay per step: the rescaled one, or less in a run that is too short for it.

    An average of 0.9995 reaches back 2,000 steps of 64: after 200 epochs of 300 chunks two thirds of it would
    still be the weights the run began with, an untrained head. At most FIRST_SHARE of them may be left. Runs
    of 9,200 steps of 64 and more, the paper's, keep the decay as it is given.
    """
    return min(rescaled_decay(decay, batch_size), FIRST_SHARE ** (1 / max(1, num_steps)))


def running_statistics(module: nn.Module) -> dict[str, Tensor]:
    """Running means and variances of batch norms by name: averaged weights see averaged activations, and the
    statistics of the newest weights do not fit them.
    """
    names = ("running_mean", "running_var")
    return {name: value for name, value in module.named_buffers() if name.rsplit(".", 1)[-1] in names}


class MovingAverage:
    """Averages of a list of fp32 tensors; `update` is two foreach kernels and
    never synchronises with the host.
    """

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


class KeptStatistics:
    """Running statistics as they were after the last step that counted: the forward pass of a batch that is not finite has
    moved them before its step is skipped, and what is not a number never leaves a running mean. A few kernels, no waiting.
    """

    def __init__(self, statistics: Sequence[Tensor]) -> None:
        self._statistics = list(statistics)
        self.keep()

    @torch.no_grad()
    def keep(self) -> None:
        """Take them as they are now, e.g. after loading."""
        self._kept = self._joined()

    @torch.no_grad()
    def settle(self, is_bad: Tensor) -> None:
        """After a step: back to what was kept where it was bad, kept where it was not."""
        if self._statistics:
            self._kept = torch.where(is_bad.bool(), self._kept, self._joined())
            parts = self._kept.split([value.numel() for value in self._statistics])
            shaped = [part.view(value.shape) for part, value in zip(parts, self._statistics, strict=True)]
            torch._foreach_copy_(self._statistics, shaped)

    def _joined(self) -> Tensor:
        return torch.cat([value.detach().flatten() for value in self._statistics] or [torch.zeros(0)])
