"""The curriculum by name: which trainings a round consists of, whose boxes each uses,
and where its weights come from.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

CurriculumName = Literal[
    "two_stage", "stage1_only", "stage2_only", "union", "mixed", "mixed_then_expert", "control", "ceiling"
]
Section = Literal["self_train.stage1", "self_train.stage2"]
Labels = Literal["pseudo", "expert", "both", "mixed", "control", "truth"]


@dataclass(frozen=True)
class TrainingStep:
    """One training of a round. `start` is the teacher or an earlier step of the same round."""

    name: str
    section: Section
    labels: Labels
    start: str


STAGE1 = TrainingStep("stage1", "self_train.stage1", "pseudo", "teacher")
MIXED = TrainingStep("mixed", "self_train.stage1", "mixed", "teacher")


def steps_of(curriculum: CurriculumName) -> tuple[TrainingStep, ...]:
    """The paper's two stages, or one of its ablations: each stage alone, or one stage on the union of both kinds of
    labels. Mixed batches, alone or refined on expert labels; and what mixed batches are measured against: expert
    labels alone for as long (control), and true labels in place of the pseudo-labels (ceiling).
    """
    match curriculum:
        case "two_stage":
            return STAGE1, TrainingStep("stage2", "self_train.stage2", "expert", "stage1")
        case "stage1_only":
            return (STAGE1,)
        case "stage2_only":
            return (TrainingStep("stage2", "self_train.stage2", "expert", "teacher"),)
        case "union":
            return (TrainingStep("union", "self_train.stage1", "both", "teacher"),)
        case "mixed":
            return (MIXED,)
        case "mixed_then_expert":
            return MIXED, TrainingStep("stage2", "self_train.stage2", "expert", "mixed")
        case "control":
            return (TrainingStep("control", "self_train.stage1", "control", "teacher"),)
        case "ceiling":
            return (TrainingStep("ceiling", "self_train.stage1", "truth", "teacher"),)


def needs_pseudo_labels(curriculum: CurriculumName) -> bool:
    """Whether the pool is labelled first. The control is: how long it trains depends on how many chunks that gives."""
    return any(step.labels not in ("expert", "truth") for step in steps_of(curriculum))


def needs_truth(curriculum: CurriculumName) -> bool:
    return any(step.labels == "truth" for step in steps_of(curriculum))


def averaged_weights(
    teacher: Mapping[str, Tensor], student: Mapping[str, Tensor], teacher_share: float
) -> dict[str, Tensor]:
    """Weights between those of two models of one shape (WiSE-FT: Wortsman et al. 2022); counters are the student's."""
    return {
        name: torch.lerp(value.double(), teacher[name].double(), teacher_share).to(value.dtype)
        if value.is_floating_point()
        else value
        for name, value in student.items()
    }


def weight_drift(before: Mapping[str, Tensor], after: Mapping[str, Tensor], prefix: str = "") -> float:
    """Relative L2 distance of two sets of weights of one shape: |after - before| /
    |before|, over names with a prefix.
    """
    names = [name for name in before if name.startswith(prefix) and before[name].is_floating_point()]
    moved = sum(float((after[name].double() - before[name].double()).square().sum()) for name in names)
    size = sum(float(before[name].double().square().sum()) for name in names)
    return float(torch.tensor(moved / size).sqrt()) if size > 0 else 0.0


def drifts(
    student: Mapping[str, Tensor], teacher: Mapping[str, Tensor], seed: Mapping[str, Tensor]
) -> dict[str, float]:
    """How far a student went from its teacher and from the seed; nothing of one that is of another kind."""
    found = {}
    if teacher.keys() == student.keys():
        found["weight_drift"] = weight_drift(teacher, student)
        found["encoder_drift"] = weight_drift(teacher, student, "encoder.")
    if seed.keys() == student.keys():
        found["weight_drift_from_seed"] = weight_drift(seed, student)
    return found
