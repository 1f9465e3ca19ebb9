"""What a training leaves to say about itself: summary.json, written by rank 0 at the end."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field, fields
from typing import Any

from mast_ray.config.errors import TemporaryError
from mast_ray.storage.storage import Storage

SUMMARY = "summary.json"


@dataclass(frozen=True)
class TrainSummary:
    """How a training went, over all its starts and resumes."""

    steps: int
    samples: int
    train_chunks: int
    skipped_steps: int  # their gradients were not finite
    best_step: int  # -1: nothing was validated
    best: dict[str, float] = field(default_factory=dict)  # validation at that step
    last: dict[str, float] = field(default_factory=dict)
    resumed_from_step: int = 0
    num_workers: int = 1
    chunks_per_s: float | None = None
    wait_share: float | None = None
    weights_sha256: str = ""
    was_done: bool = False  # by an earlier run; not written

    def counts(self) -> dict[str, int]:
        """For the manifest."""
        names = ("steps", "samples", "train_chunks", "skipped_steps")
        return {name: getattr(self, name) for name in names}

    def write(self, stage: Storage) -> None:
        content = {name: value for name, value in asdict(self).items() if name != "was_done"}
        stage.write_atomic(SUMMARY, json.dumps(content, indent=1).encode())


def read_summary(stage: Storage) -> TrainSummary:
    """Of a training that has ended."""
    try:
        found: dict[str, Any] = json.loads(stage.read_bytes(SUMMARY))
    except FileNotFoundError as error:
        raise TemporaryError("training ended without a result: run the same command again") from error
    return TrainSummary(**{f.name: found[f.name] for f in fields(TrainSummary) if f.name in found})


def result_text(summary: TrainSummary, out: str) -> str:
    """Two lines about a finished run."""
    figures = ", ".join(f"{name} {value:.4g}" for name, value in summary.best.items())
    best = f"best at step {summary.best_step}: {figures}" if figures else "the last weights, as nothing chose"
    done = "already done" if summary.was_done else "done"
    skipped = f", {summary.skipped_steps} steps skipped" if summary.skipped_steps else ""
    return f"{done}: {summary.steps} steps over {summary.train_chunks} chunks{skipped}; {best}\n{out}"
