"""A label-free governor: is this round's set of pseudo-labels sane, compared with the round before?

It watches what needs no truth: how many boxes a chunk gets, how many chunks get none, and whether
the student's boxes agree with its teacher's. A collapse (nothing, or everything) shows in these
long before it shows in validation.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from mast_ray.self_training.operator import PoolDetections


@dataclass(frozen=True)
class PoolFigures:
    """What a round's pseudo-labels look like, without truth."""

    boxes_per_chunk: float
    empty_share: float
    mean_score: float
    num_chunks: int


@dataclass(frozen=True)
class Verdict:
    """Whether to go on, and why not."""

    is_sane: bool
    reason: str = ""


def pool_figures(pseudo: PoolDetections) -> PoolFigures:
    """Figures of one set of pseudo-boxes."""
    count = np.bincount(pseudo.chunk, minlength=pseudo.num_chunks)
    return figures_of_counts(
        len(pseudo.score), int((count == 0).sum()), float(pseudo.score.sum()), pseudo.num_chunks
    )


def figures_of_counts(num_boxes: int, num_empty: int, score_sum: float, num_chunks: int) -> PoolFigures:
    """The same from what was counted in parts; `num_empty` chunks have no box."""
    return PoolFigures(
        boxes_per_chunk=num_boxes / num_chunks if num_chunks else 0.0,
        empty_share=num_empty / num_chunks if num_chunks else 1.0,
        mean_score=score_sum / num_boxes if num_boxes else 0.0,
        num_chunks=num_chunks,
    )


def judge(
    now: PoolFigures,
    before: PoolFigures | None,
    agreement_f1: float | None,
    density_ratio: float,
    min_agreement: float,
) -> Verdict:
    """Sane unless there are no boxes, density jumped by more than `density_ratio`, or
    student and teacher disagree.

    `agreement_f1` is the F1 of this round's pseudo-boxes against the last round's on the same chunks.
    """
    if now.boxes_per_chunk == 0:
        return Verdict(False, "no pseudo-boxes at all: lower the threshold or train the seed detector longer")
    if before is not None and before.boxes_per_chunk > 0:
        ratio = now.boxes_per_chunk / before.boxes_per_chunk
        if not 1 / density_ratio <= ratio <= density_ratio:
            return Verdict(
                False,
                f"boxes per chunk went from {before.boxes_per_chunk:.2f} to {now.boxes_per_chunk:.2f}, "
                f"more than a factor of {density_ratio:g}",
            )
    if agreement_f1 is not None and agreement_f1 < min_agreement:
        return Verdict(
            False, f"student and teacher agree on F1 {agreement_f1:.2f} only, under {min_agreement:g}"
        )
    return Verdict(True)
