"""The detector without weights: boxes around what stands out of the background, scored by how much it does.

What a biologist has today (an energy detector), and a teacher that needs no labels: `mast self-train PREPARED --detector
shipped:energy --set self_train.student=fresh`. Its few settings are its weights; it takes natural logarithms of power over the
median of recording and bin, which is the normalisation in its card (mean 0, standard deviation 1).
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from mast_ray.boxes.batch import Detections
from mast_ray.boxes.standing_out import StandOut, standing_out
from mast_ray.boxes.suppression import suppress
from mast_ray.models.baselines.convention import padded_detections, xyxy_of

DB_PER_LOG = 10.0 / np.log(10.0)
MIDDLE_DB, SPREAD_DB = 15.0, 5.0  # a peak of 15 dB has a score of 0.5, one of 20 dB 0.73


class EnergyDetector(nn.Module):
    """Behind the interface of all detectors. A host's work: the device is only read from."""

    hears_once = True  # a shifted or pressed chunk stands out as it did
    settings: Tensor  # (3,) level in decibels, gaps in frames and bins

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("settings", torch.tensor([float(value) for value in StandOut()]))

    @torch.no_grad()
    def detect(
        self,
        logmel: Tensor,
        score_floor: float = 0.01,
        nms_overlap: float = 0.5,
        max_detections: int = 300,
        *,
        end_frames: Tensor | None = None,
    ) -> Detections:
        """Every sound with a score, the loudest first."""
        found = self._found
        if torch.compiler.is_compiling():  # not as a decorator: that would import the compiler at every start
            found = torch.compiler.disable(found)
        return found(logmel, score_floor, nms_overlap, max_detections, end_frames)

    def _found(
        self,
        logmel: Tensor,
        score_floor: float,
        nms_overlap: float,
        max_detections: int,
        end_frames: Tensor | None,
    ) -> Detections:
        level, frames, bins = self.settings.tolist()
        what = StandOut(level, round(frames), round(bins))
        chunks = list(logmel[:, 0].float().cpu().numpy() * DB_PER_LOG)
        with ThreadPoolExecutor(max(1, min(len(chunks), torch.get_num_threads()))) as threads:
            found = list(threads.map(lambda one: standing_out(one, what), chunks))
        scores = [torch.sigmoid((torch.from_numpy(peak) - MIDDLE_DB) / SPREAD_DB) for _, peak in found]
        most = max(1, *map(len, scores))  # as few slots as hold them all: suppression compares every two
        every = padded_detections([xyxy_of(torch.from_numpy(boxes)) for boxes, _ in found], scores, most)
        every = Detections(every.corners, every.score, every.is_valid & (every.score >= score_floor))
        ends = None if end_frames is None else end_frames.cpu()
        kept = suppress(every, nms_overlap, max_detections, num_steps=None, end_frames=ends)
        missing = max_detections - kept.score.shape[1]
        corners = functional.pad(kept.corners, (0, 0, 0, missing))
        score, is_valid = (functional.pad(part, (0, missing)) for part in (kept.score, kept.is_valid))
        return Detections(*(part.to(logmel.device) for part in (corners, score, is_valid)))
