"""One training process among equals: who it is, where it computes, how it talks to the others.

`LocalWorker` is the whole crew in this interpreter; `GroupWorker` is one rank of an existing process group.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Literal, Protocol

import torch
import torch.distributed as dist

from mast_ray.tables.reading.bundles import Deal

Scorer = Callable[[int], dict[str, float]]  # figures of the weights that a run has put aside at a step


class Beside(Protocol):
    """Whoever scores weights while training goes on; only rank 0 speaks to it."""

    def submit(self, step: int) -> None:
        """Have the weights scored that were put aside at a step."""
        ...

    def ready(self, waits: Literal["no", "yes"]) -> list[tuple[int, dict[str, float]]]:
        """(step, figures) of those that are done, in the order they were submitted, or of all; no figures: the
        weights are gone.
        """
        ...


class Worker(Protocol):
    """What the loop knows about its process. Every rank calls `report` and `gather` equally often."""

    rank: int
    world_size: int
    device: torch.device
    deal: Deal | None  # what is dealt to it; None: it reads for itself
    beside: Beside | None  # who scores its weights; None: the workers themselves

    def report(self, metrics: Mapping[str, float]) -> None: ...

    def gather(self, value: Any) -> list[Any]: ...


class LocalWorker:
    """A crew of one, without Ray or a process group."""

    rank, world_size = 0, 1
    deal: Deal | None = None
    beside: Beside | None = None

    def __init__(self, device: torch.device | str = "cpu") -> None:
        self.device = torch.device(device)
        self.reports: list[dict[str, float]] = []

    def report(self, metrics: Mapping[str, float]) -> None:
        self.reports.append(dict(metrics))

    def gather(self, value: Any) -> list[Any]:
        return [value]


class GroupWorker:
    """One rank of the default process group."""

    deal: Deal | None = None
    beside: Beside | None = None

    def __init__(self, device: torch.device | str = "cpu") -> None:
        self.device = torch.device(device)
        self.rank, self.world_size = dist.get_rank(), dist.get_world_size()

    def report(self, metrics: Mapping[str, float]) -> None:
        """Metrics are in the log; nobody else is listening."""

    def gather(self, value: Any) -> list[Any]:
        """The values of all ranks, by rank, on every rank."""
        values: list[Any] = [None] * self.world_size
        dist.all_gather_object(values, value)
        return values


def first_device(use_gpu: str = "auto") -> torch.device:
    """The device of a local run: the first GPU when there is one and it is wanted."""
    if use_gpu != "no" and torch.cuda.is_available():
        return torch.device("cuda", 0)
    return torch.device("cpu")
