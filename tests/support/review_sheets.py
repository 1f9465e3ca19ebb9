"""A sheet drawn from all detections in one array, and the precision that its verdicts give: what the parts of sheet.py are for."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from mast_ray.evaluation.review.sheet import (
    NUM_BANDS,
    Floats,
    Ints,
    PrecisionCurve,
    band_edges_of,
    band_of_score,
    cells_of,
    draw_places,
    num_above,
    precision_of_counts,
)


@dataclass(frozen=True)
class ReviewSheet:
    """Which rows to look at, in a random order, and the score bands they were drawn from."""

    rows: Ints  # (n,) into the detections
    band_edges: Floats  # (bands + 1,) ascending


def draw_review(
    score: ArrayLike,
    site: ArrayLike,
    hour: ArrayLike,
    size: int,
    seed: int,
    num_bands: int = NUM_BANDS,
) -> ReviewSheet:
    """Choose `size` of D detections; `hour` may be NaN and `site` "" where unknown."""
    score = np.asarray(score, np.float64).reshape(-1)
    if len(score) == 0 or size < 1:
        return ReviewSheet(np.zeros(0, np.int64), np.array([0.0, 1.0]))
    edges = band_edges_of(score, num_bands)
    cells, cell = cells_of(band_of_score(score, edges), site, hour)
    order = np.argsort(cell, kind="stable")
    starts = np.searchsorted(cell[order], np.arange(len(cells)))
    drawn = draw_places(cells, np.bincount(cell, minlength=len(cells)), size, seed)
    return ReviewSheet(order[starts[drawn.cell] + drawn.place], edges)


def precision_at(
    thresholds: ArrayLike,
    score: ArrayLike,
    reviewed_score: ArrayLike,
    is_right: ArrayLike,
    band_edges: Floats,
) -> PrecisionCurve:
    """Precision at (H,) thresholds of D detections from n verdicts drawn by `draw_review`."""
    counts = num_above(thresholds, score, band_edges)
    return precision_of_counts(thresholds, counts, reviewed_score, is_right, band_edges)
