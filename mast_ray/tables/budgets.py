"""Training budgets for a user's own data: as many epochs as the recipe says, or as
fit into the minutes there are.

Where not one epoch of a stage fits it is cut to the steps that do. Warm-up and gradual unfreezing keep their share of the
schedule.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from mast_ray.config.stage_knobs import rescaled_epochs
from mast_ray.config.tree import Config
from mast_ray.tables.assumed_rates import Rates

SHARES = {"pretrain": 0.25, "detector": 0.30, "self_train.stage1": 0.25, "self_train.stage2": 0.20}
# from a finished detector nothing is pretrained, and the first training on labels is a stage 2 too
SHARES_FROM_DETECTOR = {"self_train.stage1": 0.40, "self_train.stage2": 0.60}
# after first lessons, which are one stage 1 more
SHARES_AFTER_LESSONS = {"detector": 0.30, "self_train.stage1": 0.50, "self_train.stage2": 0.20}
LEAST_STEPS = 10  # fewer teach nothing
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
    train_rate = rates.train_chunks_per_gpu_s
    stages = {
        "pretrain": _Stage(pool_chunks, 1, rates.pretrain_chunks_per_gpu_s),
        "detector": _Stage(labelled_chunks, 1, train_rate),
        "self_train.stage1": _Stage(stage1_chunks, rounds + lessons, train_rate),
        "self_train.stage2": _Stage(labelled_chunks, refinements, train_rate),
    }
    overrides: dict[str, Any] = {}
    taken: dict[str, float] = {}
    for name, share in shares.items():
        stage, section = stages[name], _section(config, name)
        fitting = share * minutes * 60 / max(stage.epoch_s, 1e-9) if minutes > 0 else float(section.epochs)
        if fitting < 1:
            steps = max(LEAST_STEPS, int(fitting * stage.chunks / section.batch_size))
            steps = min(steps, section.max_steps or steps)
            cut = min(1.0, steps * section.batch_size / stage.chunks)
            overrides |= _shortened(section, name, cut)
            if cut < 1:
                overrides |= {f"{name}.max_steps": steps} | (
                    {f"{name}.min_steps": 0} if name != "pretrain" else {}
                )
            taken[name] = cut * stage.epoch_s / 60
            continue
        allowed = min(section.epochs, int(fitting))
        if allowed < section.epochs:
            overrides |= _shortened(section, name, allowed)
        taken[name] = allowed * stage.epoch_s / 60
    return Budget(overrides, taken)


class _Stage(NamedTuple):
    chunks: int  # of an epoch
    times: int  # that it is gone through
    chunks_per_s: float

    @property
    def epoch_s(self) -> float:
        """Of all times together."""
        return self.times * self.chunks / self.chunks_per_s


def _section(config: Config, name: str) -> Any:
    section: Any = config
    for part in name.split("."):
        section = getattr(section, part)
    return section


def _shortened(section: Any, name: str, epochs: float) -> dict[str, Any]:
    """A stage cut to so many epochs, in numbers short enough for a command line."""
    return {
        f"{name}.{key}": float(f"{value:.3g}") for key, value in rescaled_epochs(section, epochs).items()
    } | {f"{name}.epochs": max(1, int(epochs))}
