"""Training budgets for a user's own data: as many epochs as the recipe says, or as
fit into the minutes there are.

Rates are chunks per second of the hardware at hand (measured by the demo on two CPU cores, by benchmarks/ on
a GPU). A stage never gets less than one epoch, and gradual unfreezing keeps its share of the schedule.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from mast_ray.config.stage_knobs import DetectorTrainConfig
from mast_ray.config.tree import Config


@dataclass(frozen=True)
class TrainingRates:
    """Chunks per second of a pretraining step, a detector training step and inference."""

    pretrain: float
    train: float
    infer: float


CPU_TINY = TrainingRates(pretrain=30.0, train=12.0, infer=30.0)
GPU_BASE = TrainingRates(pretrain=2000.0, train=660.0, infer=2300.0)
SHARES = {"pretrain": 0.25, "detector": 0.30, "self_train.stage1": 0.25, "self_train.stage2": 0.20}


@dataclass(frozen=True)
class Budget:
    """Settings that differ from the recipe, and what the stages will take."""

    overrides: dict[str, Any]
    minutes: dict[str, float]

    @property
    def total_minutes(self) -> float:
        return sum(self.minutes.values())


def fitted_budget(
    config: Config, pool_chunks: int, labelled_chunks: int, rates: TrainingRates, minutes: float
) -> Budget:
    """Epochs of every stage for this much data; `minutes` 0 means no limit."""
    rounds = config.self_train.rounds
    stage1_chunks = min(pool_chunks, config.self_train.max_chunks or pool_chunks)
    if config.self_train.curriculum in ("mixed", "mixed_then_expert", "control", "ceiling"):
        # an epoch is a pass over the pool, with expert chunks beside it
        stage1_chunks = round(stage1_chunks / max(1.0 - config.self_train.expert_share, 0.1))
    wanted = {
        "pretrain": (config.pretrain.epochs, pool_chunks / rates.pretrain),
        "detector": (config.detector.epochs, labelled_chunks / rates.train),
        "self_train.stage1": (config.self_train.stage1.epochs, rounds * stage1_chunks / rates.train),
        "self_train.stage2": (config.self_train.stage2.epochs, rounds * labelled_chunks / rates.train),
    }
    overrides: dict[str, Any] = {}
    taken: dict[str, float] = {}
    for name, (epochs, seconds_per_epoch) in wanted.items():
        allowed = epochs
        if minutes > 0:
            allowed = max(1, min(epochs, int(SHARES[name] * minutes * 60 / max(seconds_per_epoch, 1e-9))))
        if allowed < epochs:
            overrides |= _shortened(config, name, allowed / epochs, allowed)
        taken[name] = allowed * seconds_per_epoch / 60
    return Budget(overrides, taken)


def _shortened(config: Config, name: str, share: float, epochs: int) -> dict[str, Any]:
    """A stage cut to `share` of its epochs: warm-up and unfreezing are cut alike."""
    section: Any = config
    for part in name.split("."):
        section = getattr(section, part)
    overrides = {f"{name}.epochs": epochs, f"{name}.warmup_epochs": round(section.warmup_epochs * share, 3)}
    if isinstance(section, DetectorTrainConfig) and section.unfreeze_every_epochs > 0:
        for key in ("unfreeze_start_epoch", "unfreeze_every_epochs"):
            overrides[f"{name}.{key}"] = max(round(getattr(section, key) * share, 3), 0.01)
    return overrides
