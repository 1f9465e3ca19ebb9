"""Training budgets for a user's own data: as many epochs as the recipe says, or as
fit into the minutes there are.

A stage never gets less than one epoch, and gradual unfreezing keeps its share of the schedule.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from mast_ray.config.stage_knobs import rescaled_epochs
from mast_ray.config.tree import Config
from mast_ray.tables.assumed_rates import Rates

SHARES = {"pretrain": 0.25, "detector": 0.30, "self_train.stage1": 0.25, "self_train.stage2": 0.20}
# from a finished detector nothing is pretrained, and the first training on labels is a stage 2 too
SHARES_FROM_DETECTOR = {"self_train.stage1": 0.40, "self_train.stage2": 0.60}
# after first lessons, which are one stage 1 more
SHARES_AFTER_LESSONS = {"detector": 0.30, "self_train.stage1": 0.50, "self_train.stage2": 0.20}
Start = Literal["scratch", "detector", "lessons"]


@dataclass(frozen=True)
class Budget:
    """Settings that differ from the recipe, and what the stages will take."""

    overrides: dict[str, Any]
    minutes: dict[str, float]

    @property
    def total_minutes(self) -> float:
        return sum(self.minutes.values())


def fitted_budget(
    config: Config,
    pool_chunks: int,
    labelled_chunks: int,
    rates: Rates,
    minutes: float,
    start: Start = "scratch",
) -> Budget:
    """Epochs of every stage for this much data; `minutes` 0 means no limit."""
    rounds = config.self_train.rounds
    shares = {"scratch": SHARES, "detector": SHARES_FROM_DETECTOR, "lessons": SHARES_AFTER_LESSONS}[start]
    refinements = rounds + 1 if start == "detector" else rounds
    lessons = 1 if start == "lessons" else 0
    stage1_chunks = min(pool_chunks, config.self_train.max_chunks or pool_chunks)
    if config.self_train.curriculum in ("mixed", "mixed_then_expert", "control", "ceiling"):
        # an epoch is a pass over the pool, with expert chunks beside it
        stage1_chunks = round(stage1_chunks / max(1.0 - config.self_train.expert_share, 0.1))
    wanted = {
        "pretrain": (config.pretrain.epochs, pool_chunks / rates.pretrain_chunks_per_gpu_s),
        "detector": (config.detector.epochs, labelled_chunks / rates.train_chunks_per_gpu_s),
        "self_train.stage1": (
            config.self_train.stage1.epochs,
            (rounds + lessons) * stage1_chunks / rates.train_chunks_per_gpu_s,
        ),
        "self_train.stage2": (
            config.self_train.stage2.epochs,
            refinements * labelled_chunks / rates.train_chunks_per_gpu_s,
        ),
    }
    wanted = {name: wanted[name] for name in shares}
    overrides: dict[str, Any] = {}
    taken: dict[str, float] = {}
    for name, (epochs, seconds_per_epoch) in wanted.items():
        allowed = epochs
        if minutes > 0:
            allowed = max(1, min(epochs, int(shares[name] * minutes * 60 / max(seconds_per_epoch, 1e-9))))
        if allowed < epochs:
            overrides |= _shortened(config, name, allowed)
        taken[name] = allowed * seconds_per_epoch / 60
    return Budget(overrides, taken)


def _shortened(config: Config, name: str, epochs: int) -> dict[str, Any]:
    """A stage cut to so many epochs, in numbers short enough for a command line."""
    section: Any = config
    for part in name.split("."):
        section = getattr(section, part)
    knobs = rescaled_epochs(section, epochs)
    return {f"{name}.{key}": max(round(value, 3), 0.01) if value else value for key, value in knobs.items()}
