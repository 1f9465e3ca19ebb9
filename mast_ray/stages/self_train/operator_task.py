"""What the pseudo-label operator is told: whose detections, which policy, where its parts go."""

from __future__ import annotations

from dataclasses import dataclass

from mast_ray.config.stage_knobs import SelfTrainConfig
from mast_ray.config.tree import Config
from mast_ray.self_training.operator import Validity
from mast_ray.spectrogram.grid import CHUNK_FRAMES, fractional_frames
from mast_ray.storage.storage import Storage, open_storage


@dataclass(frozen=True)
class Teacher:
    """Whose detections they are, and what its validation says about thresholds."""

    model_sha: str
    threshold: float  # tuned on validation or chosen for precision, or what stands in for it
    kept_share: (
        float  # of validation candidates (policy precision: of those above `saturated`) at that threshold
    )
    round: int
    saturated: float = 0.0  # threshold below which hardly a call is left to find; 0: not known
    doubts_nested: bool = False  # boxes within better ones (boxes/nesting.py)


def validity_of(knobs: SelfTrainConfig) -> Validity:
    return Validity(float(fractional_frames(knobs.min_duration_s)), knobs.min_bins, CHUNK_FRAMES)


@dataclass(frozen=True)
class OperatorTask:
    """What is made of which detections, and where the parts go; it travels."""

    config: Config
    prepared: str
    detections: str
    work: str  # folder of the parts
    teacher: Teacher

    @property
    def knobs(self) -> SelfTrainConfig:
        return self.config.self_train

    @property
    def threshold(self) -> float:
        """The one for all, and the last resort of a policy by group."""
        return self.knobs.threshold if self.knobs.policy == "fixed" else self.teacher.threshold

    @property
    def first_ignored(self) -> float:
        """Where the band of ignored boxes begins before it is carried to sites; 1: nowhere."""
        if self.knobs.ignore_above == "auto":
            return self.teacher.saturated or self.teacher.threshold
        return float(self.knobs.ignore_above) or 1.0

    @property
    def lineage(self) -> dict[str, str]:
        """What every row names."""
        teacher = self.teacher
        return {"model": teacher.model_sha, "policy": self.knobs.policy, "round": str(teacher.round)}

    def stage(self, folder: str) -> Storage:
        """Where the units of one kind of work are kept."""
        return open_storage(self.work, self.config.storage).at(folder)
