"""What the trainings of a run should take by its plan, and, once one is under way, what it will take by its own pace."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any

from mast_ray.config.errors import MastError
from mast_ray.storage.storage import Storage
from mast_ray.tables.budgets import FIRST_LESSONS, Budget
from mast_ray.verbs.pipeline import Step

LAST_LOOKS = 10  # rows of a training's log that tell its pace
FOLDERS = {"pretrain": "encoder", "train": "detector"}


def with_expected(steps: Sequence[Step], budget: Budget, rounds: int, out: Storage | None) -> list[Step]:
    """Training steps with what they should take. Names of a budget are sections of the config, or first lessons. A finished
    detector is trained on the boxes as a stage 2, before those of the rounds. What is logged below `out`, the run's folder,
    tells what they will take; None: nobody set a limit.
    """
    parts_of = {
        "pretrain": ("pretrain",),
        "train": (FIRST_LESSONS, "detector"),
        "self-train": ("self_train",),
    }

    def minutes(verb: str) -> float:
        return sum(t for name, t in budget.minutes.items() if name.split(".")[0] in parts_of.get(verb, ()))

    first = (
        0.0 if "detector" in budget.minutes else budget.minutes.get("self_train.stage2", 0.0) / (rounds + 1)
    )
    moved = {"train": first, "self-train": -first}

    def expecting(step: Step) -> Step:
        if step.expected_s:
            return step
        expected_s = 60.0 * (minutes(step.verb) + moved.get(step.verb, 0.0))
        step, rates = replace(step, expected_s=expected_s), budget.rates
        is_one = step.verb in FOLDERS and not (step.verb == "train" and FIRST_LESSONS in budget.minutes)
        if out is None or rates is None or not is_one:
            return step
        planned_per_s = {"pretrain": rates.pretrain_chunks_per_gpu_s, "train": rates.train_chunks_per_gpu_s}
        chunks = expected_s * planned_per_s[step.verb]
        return replace(step, left_s=partial(logged_left_s, out.at(FOLDERS[step.verb]), chunks))

    return [expecting(step) for step in steps]


def logged_left_s(stage: Storage, planned_chunks: float) -> float | None:
    """Seconds that are left of a training under way, by its log; None where that does not say."""
    from mast_ray.training.files.metrics_log import read_metrics

    with suppress(MastError, OSError):  # a line about progress; the training will say what is wrong
        return training_left_s(read_metrics(stage), planned_chunks)
    return None


def training_left_s(rows: Sequence[Mapping[str, Any]], planned_chunks: float) -> float | None:
    """Seconds for what is left of a training at its pace so far, without validation and checkpoints."""
    looks = [row for row in rows if row["kind"] == "train"][1:]  # the first pays for the start
    if not looks:
        return None
    chunks_per_s = statistics.median(float(row["chunks_per_s"]) for row in looks[-LAST_LOOKS:])
    return max(0.0, planned_chunks - looks[-1]["samples"]) / max(chunks_per_s, 1e-9)
