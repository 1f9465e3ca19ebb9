"""Detectors that are a host's work: boxes of one chunk at a time from decibels above the background, the device only read from.

Their card's normalisation is mean 0 and standard deviation 1 above the median of recording and bin: natural logarithms of power.
"""

from __future__ import annotations

from abc import abstractmethod
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

from mast_ray.boxes.batch import Detections
from mast_ray.boxes.suppression import suppress
from mast_ray.models.baselines.convention import padded_detections, xyxy_of

DB_PER_LOG = 10.0 / np.log(10.0)
Floats = NDArray[np.float32]


class HostDetector(nn.Module):
    """Behind the interface of all detectors."""

    hears_once = True  # a shifted or pressed chunk stands out as it did

    @abstractmethod
    def sounds(self, level_db: Floats) -> tuple[Floats, Floats]:
        """(T, F) decibels above the background -> (N, 4) boxes and (N,) scores"""

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
        """Every sound with a score, the best first."""
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
        chunks = list(logmel[:, 0].float().cpu().numpy() * np.float32(DB_PER_LOG))
        with ThreadPoolExecutor(max(1, min(len(chunks), torch.get_num_threads()))) as threads:
            found = list(threads.map(self.sounds, chunks))
        scores = [torch.from_numpy(score) for _, score in found]
        most = max(1, *map(len, scores))  # as few slots as hold them all: suppression compares every two
        every = padded_detections([xyxy_of(torch.from_numpy(boxes)) for boxes, _ in found], scores, most)
        every = Detections(every.corners, every.score, every.is_valid & (every.score >= score_floor))
        ends = None if end_frames is None else end_frames.cpu()
        kept = suppress(every, nms_overlap, max_detections, num_steps=None, end_frames=ends)
        missing = max_detections - kept.score.shape[1]
        corners = functional.pad(kept.corners, (0, 0, 0, missing))
        score, is_valid = (functional.pad(part, (0, missing)) for part in (kept.score, kept.is_valid))
        return Detections(*(part.to(logmel.device) for part in (corners, score, is_valid)))
