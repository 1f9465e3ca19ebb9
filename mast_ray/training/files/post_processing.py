"""What `mast tune` found to do with a model's boxes, as its card carries it: whoever uses the model does it too."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mast_ray.boxes.batch import EVEN_WEIGHT
from mast_ray.spectrogram.grid import fractional_frames

LEAST_CHANCE = 1e-6  # scores of 0 and 1 have no logit


@dataclass(frozen=True)
class PostProcessing:
    """Scores, suppression and validity of a chunk's boxes, and the threshold by which they count."""

    nms_overlap: float
    min_duration_s: float
    min_bins: int
    threshold: float
    score_weight: float = EVEN_WEIGHT  # classification^w centerness^(1 - w)
    doubts_nested: bool = False  # boxes/nesting.py
    split: str = ""  # it was searched on
    f1: float = float("nan")  # there, chunk by chunk
    # site -> its own threshold, where that is better; scores of the site are moved so that it becomes `threshold`
    site_thresholds: dict[str, float] = field(default_factory=dict)

    @property
    def min_frames(self) -> float:
        return float(fractional_frames(self.min_duration_s))

    def at_sites(self, score: NDArray[np.float64], sites: Sequence[str]) -> NDArray[np.float64]:
        """(D,) scores of detections at (D,) sites, so moved in logits that one threshold is right at all of them. Scores of
        other sites stay as they are.
        """
        if not self.site_thresholds:
            return score
        moved, at = score.copy(), np.array(sites, dtype=str)
        for site, own in self.site_thresholds.items():
            here = at == site
            moved[here] = 1 / (1 + np.exp(_logit(own) - _logit(self.threshold) - _logit(score[here])))
        return moved

    def to_dict(self) -> dict[str, Any]:
        values = asdict(self)
        unsaid = [name for name in ("site_thresholds", "doubts_nested") if not values[name]]
        return {name: value for name, value in values.items() if name not in unsaid}

    @staticmethod
    def from_dict(values: dict[str, Any]) -> PostProcessing:
        return PostProcessing(**values)

    def text(self) -> str:
        """For people."""
        by_site = ", ".join(f"{site} {value:.3f}" for site, value in self.site_thresholds.items())
        return (
            f"overlap {self.nms_overlap:g}, at least {self.min_duration_s:g} s and {self.min_bins} bins, score weight "
            f"{self.score_weight:g}{', doubt about boxes within better ones' if self.doubts_nested else ''}, threshold {self.threshold:.3f}{f' (as if it were: {by_site})' if by_site else ''}: F1 {self.f1:.4f} on {self.split}"
        )


def _logit(score: Any) -> Any:
    chance = np.clip(score, LEAST_CHANCE, 1 - LEAST_CHANCE)
    return np.log(chance / (1 - chance))
