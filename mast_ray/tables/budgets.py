"""Training budgets for a user's own data: as many epochs as the recipe says, or as
fit into the minutes there are.

The experts' boxes come first: what self-training takes from a training on them that is shorter than its recipe says, it does not
give back (docs/measured/real_sound.md). It gets the minutes that are left, and where these are few there is no round at all.
Where not one epoch of a stage fits it is cut to the steps that do, and no more of the pool is labelled than these steps take.
Warm-up and gradual unfreezing keep their share of the schedule.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from mast_ray.config.stage_knobs import SelfTrainConfig, lengthened, rescaled_epochs
from mast_ray.config.tree import Config
from mast_ray.tables.assumed_rates import Rates

Start = Literal["scratch", "detector", "lessons"]

SHARES = {"pretrain": 0.25, "detector": 0.30, "self_train.stage1": 0.25, "self_train.stage2": 0.20}
# from a finished detector nothing is pretrained, and the first training on labels is a stage 2 too
SHARES_FROM_DETECTOR = {"self_train.stage1": 0.40, "self_train.stage2": 0.60}
# after first lessons, which are one stage 1 more
SHARES_AFTER_LESSONS = {"detector": 0.30, "self_train.stage1": 0.50, "self_train.stage2": 0.20}
# what comes before the experts' boxes, where these come before self-training
SHARES_BEFORE: dict[Start, dict[str, float]] = {
    "scratch": {"pretrain": 0.25},
    "detector": {},
    "lessons": {"self_train.stage1": 0.25},
}
LEAST_SHARE_OF_POOL = 0.2  # of the minutes; less is better given to the boxes
FIRST_LESSONS = "first_lessons"  # are trained as stage 1 is, before the detector
LEAST_STEPS = 10  # fewer teach nothing


@dataclass(frozen=True)
class Budget:
    """Settings that differ from the recipe, and what the stages will take."""

    overrides: dict[str, Any]
    minutes: dict[str, float]
    rates: Rates | None = None  # by which the stages were planned

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
    keeps_rounds: bool = False,
) -> Budget:
    """Epochs of every stage for this much data; `minutes` 0 means no limit. With `keeps_rounds` there are as many rounds as the
    config says, however few the minutes are.
    """
    rounds, has_all = config.self_train.rounds, ""
    shares = {"scratch": SHARES, "detector": SHARES_FROM_DETECTOR, "lessons": SHARES_AFTER_LESSONS}[start]
    if minutes > 0 and not keeps_rounds:
        shares, rounds = _boxes_first(config, labelled_chunks, rates, 60.0 * minutes, start)
        has_all = list(shares)[-1] if rounds == 0 else ""
    refinements = rounds + 1 if start == "detector" else rounds
    lessons = 1 if start == "lessons" else 0
    knobs, train_rate = config.self_train, rates.train_chunks_per_gpu_s
    used = min(pool_chunks, knobs.max_chunks or pool_chunks)
    pool_share = share_of_pool(knobs)
    label_s = knobs.teacher_hearings / rates.infer_chunks_per_gpu_s if labels_pool(knobs) else 0.0
    label_all_s = min(pool_chunks, knobs.most_labelled or pool_chunks) * label_s
    stages = {
        "pretrain": _Stage(pool_chunks, 1, rates.pretrain_chunks_per_gpu_s),
        "detector": _Stage(labelled_chunks, 1, train_rate),
        "self_train.stage1": _Stage(round(used / pool_share), rounds + lessons, train_rate, label_all_s),
        "self_train.stage2": _Stage(labelled_chunks, refinements, train_rate),
    }
    overrides: dict[str, Any] = {} if rounds == config.self_train.rounds else {"self_train.rounds": rounds}
    taken: dict[str, float] = {}
    for name, share in shares.items():
        stage, section = stages[name], _section(config, name)
        if not stage.times:
            continue
        any_length = {} if name == "pretrain" else {f"{name}.min_steps": 0}
        recipe = section
        if any_length:  # few chunks are gone through more often than `epochs` says
            section = lengthened(section, stage.chunks)
        steps_per_epoch = max(1, stage.chunks // section.batch_size)
        # a batch is filled whatever there is
        stage = stage._replace(chunks=max(stage.chunks, section.batch_size))
        least_epochs = min(section.epochs, math.ceil(LEAST_STEPS / steps_per_epoch))
        given_s = share * minutes * 60
        left_s = given_s - stage.labelling_s
        fitting = left_s / max(stage.epoch_s, 1e-9) if minutes > 0 else float(section.epochs)
        if fitting < 1 and stage.labelling_s:
            # of a chunk to learn; never more is labelled than there is, so the second is more where nearly all fits
            labelled_s = stage.times * knobs.labelled_for_one * label_s
            learned_s = stage.times / (pool_share * train_rate)
            least = round(LEAST_STEPS * section.batch_size * pool_share)
            most = max(least, int(given_s / (labelled_s + learned_s)), int(left_s / learned_s))
            if most < used:  # one pass over a part of the pool, which alone is labelled
                overrides |= _shortened(section, recipe, name, 1) | any_length
                overrides |= {"self_train.max_chunks": most}
                taken[name] = (min(most * labelled_s, stage.labelling_s) + most * learned_s) / 60
                continue
        if fitting < least_epochs == 1:
            steps = max(LEAST_STEPS, int(fitting * stage.chunks / section.batch_size))
            steps = min(steps, section.max_steps or steps)
            cut = min(1.0, steps * section.batch_size / stage.chunks)
            overrides |= _shortened(section, recipe, name, cut) | any_length
            if cut < 1:
                overrides |= {f"{name}.max_steps": steps}
            taken[name] = (stage.labelling_s + cut * stage.epoch_s) / 60
            continue
        # where the boxes have all the minutes they are gone through as often as these allow
        longest = math.inf if has_all == name else section.epochs
        allowed = int(min(longest, max(least_epochs, int(fitting + 1e-6))))
        if allowed != section.epochs:
            overrides |= _shortened(section, recipe, name, allowed) | any_length
        taken[name] = (stage.labelling_s + allowed * stage.epoch_s) / 60
    if lessons:
        first = taken["self_train.stage1"] / (rounds + 1)
        taken = {FIRST_LESSONS: first} | taken | {"self_train.stage1": rounds * first}
        if not rounds:
            del taken["self_train.stage1"]
    return Budget(overrides, taken, rates)


def _boxes_first(
    config: Config, labelled_chunks: int, rates: Rates, given_s: float, start: Start
) -> tuple[dict[str, float], int]:
    """Shares of the stages, and rounds: every training on experts' boxes is as long as its recipe says and the pool has the rest
    of the minutes, or, where too few are left for it, the first training on the boxes (the last share) has all of them and there
    is no round.
    """

    def share_of(name: str) -> float:
        section = lengthened(_section(config, name), labelled_chunks)
        samples = section.epochs * max(labelled_chunks, section.batch_size)
        return float(samples / rates.train_chunks_per_gpu_s / given_s)

    rounds, before = config.self_train.rounds, SHARES_BEFORE[start]
    first = "self_train.stage2" if start == "detector" else "detector"
    boxes = {first: share_of(first)}
    boxes["self_train.stage2"] = boxes.get("self_train.stage2", 0.0) + rounds * share_of("self_train.stage2")
    left = 1.0 - sum(before.values()) - sum(boxes.values())
    if left < LEAST_SHARE_OF_POOL or not rounds:
        return before | {first: 1.0 - sum(before.values())}, 0
    shares = before | boxes | {"self_train.stage1": before.get("self_train.stage1", 0.0) + left}
    return {name: shares[name] for name in SHARES if name in shares}, rounds


def share_of_pool(knobs: SelfTrainConfig) -> float:
    """Of the chunks of a pass over the pool: in mixed batches expert chunks come beside them."""
    is_mixed = knobs.curriculum in ("mixed", "mixed_then_expert", "control", "ceiling")
    return max(1.0 - knobs.expert_share, 0.1) if is_mixed else 1.0


def labels_pool(knobs: SelfTrainConfig) -> bool:
    """Whether a round begins with pseudo-labels."""
    return knobs.curriculum not in ("stage2_only", "ceiling")


class _Stage(NamedTuple):
    chunks: int  # of an epoch
    times: int  # that it is gone through
    chunks_per_s: float
    labelling_each_s: float = 0.0  # of the pool, before every time

    @property
    def labelling_s(self) -> float:
        """Of all times together."""
        return self.times * self.labelling_each_s

    @property
    def epoch_s(self) -> float:
        """Of all times together."""
        return self.times * self.chunks / self.chunks_per_s


def _section(config: Config, name: str) -> Any:
    section: Any = config
    for part in name.split("."):
        section = getattr(section, part)
    return section


def _shortened(section: Any, recipe: Any, name: str, epochs: float) -> dict[str, Any]:
    """A stage cut to so many epochs, in numbers short enough for a command line. One that was longer than its recipe says, as
    its chunks are few, is validated as often as the recipe does: not after every epoch of a step or two.
    """
    values = rescaled_epochs(section, epochs)
    if section.epochs > recipe.epochs:
        values["validate_every_epochs"] = section.validate_every_epochs * epochs / section.epochs
    return {f"{name}.{key}": float(f"{value:.3g}") for key, value in values.items()} | {
        f"{name}.epochs": max(1, int(epochs))
    }
