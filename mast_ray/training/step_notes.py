"""What a step said, kept on the device until it is asked for: mean losses, gradient norm, skipped steps.

Reading a number back stalls a GPU, so steps only add; `read` synchronises once per logging interval and stops
a run whose gradients were not finite for twenty steps in a row.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from mast_ray.config.errors import DIVERGED, MastError
from mast_ray.training.objectives import mean_over_workers

MOST_BAD_STEPS = 20


class TrainingDivergedError(MastError):
    """The loss was not finite for too long."""

    exit_code = DIVERGED


class StepNotes:
    """Sums over the steps since the last `read`, and the current run of non-finite steps."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._bad_in_a_row = torch.zeros((), device=device)
        self._worst_run = torch.zeros((), device=device)
        self._history: list[tuple[int, dict[str, Tensor], Tensor, tuple[str, ...]]] = []

    def add(self, step: int, losses: dict[str, Tensor], norm: Tensor, chunk_ids: Sequence[str]) -> None:
        """Note one optimizer step: its mean losses, its gradient norm and the chunks it saw."""
        is_bad = (~torch.isfinite(norm)).float()
        self._bad_in_a_row = (self._bad_in_a_row + is_bad) * is_bad
        self._worst_run = torch.maximum(self._worst_run, self._bad_in_a_row)
        self._history.append((step, losses, norm.detach(), tuple(chunk_ids)))

    def read(self) -> tuple[dict[str, float], int]:
        """(mean of each quantity over steps and workers where it was finite, steps
        skipped) since the last read.

        Collective: every rank reads after the same steps.
        """
        history, self._history = self._history, []
        names = list(history[0][1])
        table = torch.stack(
            [torch.stack([losses[name].float() for name in names] + [norm]) for _, losses, norm, _ in history]
        )
        table = mean_over_workers(table)
        values = torch.cat([table.flatten(), self._worst_run[None]]).tolist()  # the one synchronisation
        rows = [values[i : i + len(names) + 1] for i in range(0, len(values) - 1, len(names) + 1)]
        if values[-1] >= MOST_BAD_STEPS:
            raise TrainingDivergedError(self._diagnosis(history, names, rows))
        keys = [*names, "gradient_norm"]
        means = {key: _mean([row[i] for row in rows if _is_finite(row[i])]) for i, key in enumerate(keys)}
        return means, sum(not _is_finite(row[-1]) for row in rows)

    def _diagnosis(
        self,
        history: list[tuple[int, dict[str, Tensor], Tensor, tuple[str, ...]]],
        names: list[str],
        rows: list[list[float]],
    ) -> str:
        last = max(i for i, row in enumerate(rows) if not _is_finite(row[-1]))
        step, _, _, chunk_ids = history[last]
        parts = ", ".join(f"{name}={value:g}" for name, value in zip(names, rows[last], strict=False))
        shown = ", ".join(chunk_ids[:8]) + (f" and {len(chunk_ids) - 8} more" if len(chunk_ids) > 8 else "")
        return (
            f"gradients were not finite for {MOST_BAD_STEPS} steps in a row; at step {step}: {parts}\n"
            f"chunks of that step: {shown}\n"
            "look at these chunks, lower the learning rate, or use cluster.precision=fp32; the last checkpoint is good"
        )


def _mean(values: list[float]) -> float:
    return sum(values) / len(values) if values else float("nan")


def _is_finite(value: float) -> bool:
    return value - value == 0.0
