"""What `mast tune` found to do with a model's boxes, as its card carries it: whoever uses the model does it too."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from mast_ray.boxes.batch import EVEN_WEIGHT
from mast_ray.spectrogram.grid import fractional_frames


@dataclass(frozen=True)
class PostProcessing:
    """Scores, suppression and validity of a chunk's boxes, and the threshold by which they count."""

    nms_overlap: float
    min_duration_s: float
    min_bins: int
    threshold: float
    score_weight: float = EVEN_WEIGHT  # classification^w centerness^(1 - w)
    split: str = ""  # it was searched on
    f1: float = float("nan")  # there, chunk by chunk

    @property
    def min_frames(self) -> float:
        return float(fractional_frames(self.min_duration_s))

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    @staticmethod
    def from_dict(values: dict[str, Any]) -> PostProcessing:
        return PostProcessing(**values)

    def text(self) -> str:
        """For people."""
        return (
            f"overlap {self.nms_overlap:g}, at least {self.min_duration_s:g} s and {self.min_bins} bins, score weight "
            f"{self.score_weight:g}, threshold {self.threshold:.3f}: F1 {self.f1:.4f} on {self.split}"
        )
