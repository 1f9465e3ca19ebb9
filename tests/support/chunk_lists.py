"""Chunks as lists of boxes, as a test writes them down: matched and summarised by the package."""

import numpy as np

from mast_ray.evaluation.matching import Matches, match
from mast_ray.evaluation.metrics import Metrics, best_threshold, summarise


def evaluate_chunks(truth, detections, threshold: float | None = None, iou: float = 0.5) -> Metrics:
    """Figures of B chunks given as B (N, 4) truth boxes and B pairs ((K, 4) boxes, (K,) scores); without a threshold it is
    tuned on these chunks.
    """
    matches = match_chunks(truth, detections, iou)
    if threshold is None:
        tuned = best_threshold(matches)
        threshold = tuned if np.isfinite(tuned) else 1.0
    return summarise(matches, threshold)


def match_chunks(truth, detections, iou: float = 0.5) -> Matches:
    """Matches of B chunks; group = position in the list."""
    truth_boxes = [np.asarray(boxes, np.float64).reshape(-1, 4) for boxes in truth]
    det_boxes = [np.asarray(boxes, np.float64).reshape(-1, 4) for boxes, _ in detections]
    det_score = [np.asarray(score, np.float64).reshape(-1) for _, score in detections]
    chunks = np.arange(len(truth))
    return match(
        np.repeat(chunks, [len(b) for b in det_boxes]),
        np.concatenate([*det_boxes, np.zeros((0, 4))]),
        np.concatenate([*det_score, np.zeros(0)]),
        np.repeat(chunks, [len(b) for b in truth_boxes]),
        np.concatenate([*truth_boxes, np.zeros((0, 4))]),
        iou,
    )
