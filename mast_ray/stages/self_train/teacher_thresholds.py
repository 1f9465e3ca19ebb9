"""The thresholds that held-out labels give a teacher, and the share of its candidates that each keeps there.

Shares are what carries a threshold to another site: there, the same share of the detections is kept. For precision, the
share is of what may be a call at all (above where recall saturates): how much faint noise a site has must not matter.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace

import numpy as np

from mast_ray.config.tree import Config
from mast_ray.evaluation.metrics import best_threshold
from mast_ray.evaluation.scoring import score_chunks
from mast_ray.evaluation.split_truth import selection_split
from mast_ray.inference.tuned_detector import delivered_post
from mast_ray.self_training.operator import EVEN_WEIGHT, PoolDetections, is_valid
from mast_ray.self_training.policies import kept_share, precision_threshold, saturation_threshold
from mast_ray.self_training.pool import read_pool
from mast_ray.stages.runner import Runner
from mast_ray.stages.score.evaluate import ModelScores
from mast_ray.stages.self_train.operator_task import Teacher, validity_of
from mast_ray.stages.self_train.pseudo_label import run_pseudo_label
from mast_ray.storage.storage import Storage
from mast_ray.tables.prepared import Prepared
from mast_ray.tables.reading.chunk_sets import ChunkSet, chunks_of_split
from mast_ray.training.files.model_files import Card

log = logging.getLogger("mast.self_train")


def teacher_of(held: HeldOut, scores: ModelScores, card: Card, number: int) -> Teacher:
    """What is known of the teacher of a round from its detections on held-out splits."""
    config, archive = held.config, held.archive
    threshold, share = held.tuned(scores, card)
    about = Teacher(card.weights_sha256, threshold, share, number, doubts_nested=held.doubts_nested)
    knobs, split = config.self_train, selection_split(archive)
    for_precision = knobs.policy in ("precision", "precision_pool")
    if split not in scores.splits or not (for_precision or knobs.ignore_above == "auto"):
        return about
    chunks, found = held.candidates(split)
    matches = score_chunks(archive, chunks, found, config).matches
    score, is_hit = matches.score, matches.is_true_positive
    low = saturation_threshold(score, is_hit)
    if np.isfinite(low):
        about = replace(about, saturated=low)
    if for_precision:
        # Never below that for F1: where labels are of the same site, the target is met by less than that.
        threshold, is_reached = precision_threshold(score, is_hit, knobs.precision_target, threshold)
        if not is_reached:
            log.warning(
                "round %d: self_train.precision_target=%g is not reached on %s at any threshold",
                number, knobs.precision_target, split,
            )  # fmt: skip
        share = kept_share(score[score >= about.saturated], threshold)
        about = replace(about, threshold=threshold, kept_share=share)
    return about


def as_the_pool_is_heard(
    held: HeldOut,
    scores: ModelScores,
    card: Card,
    model: str,
    out: Storage,
    *,
    also: tuple[str, ...] = (),
    runner: Runner,
) -> HeldOut:
    """With what the teacher finds in held-out splits, suppressed and scored as the pool is: what its evaluation has stored
    (`held.stored`) where that is so, detected once more into `out` where pseudo-labels are suppressed or scored otherwise.
    """
    config, archive, knobs = held.config, held.archive, held.config.self_train
    splits = tuple(dict.fromkeys(("val", selection_split(archive))))
    splits = tuple(split for split in splits if split in scores.splits)
    is_same = knobs.nms_overlap == config.evaluate.nms_overlap and knobs.score_weight == EVEN_WEIGHT
    is_same = is_same and not also and knobs.teacher_hearings == 1 and not held.doubts_nested
    # the pool has candidates as the network gives them, whatever the card makes of them where it is evaluated
    is_same = is_same and delivered_post(card, config.evaluate) is None
    if is_same or not splits:
        return held
    run_pseudo_label(config, model, archive.storage.url, out.url, splits=splits, also=also, runner=runner)
    return replace(held, stored=out)


@dataclass(frozen=True)
class HeldOut:
    """A teacher's stored detections on held-out splits, treated as those of the pool are."""

    config: Config
    archive: Prepared
    stored: Storage
    doubts_nested: bool = False  # as the teacher does

    def tuned(self, scores: ModelScores, card: Card) -> tuple[float, float]:
        """Threshold tuned for F1 on validation, and the share of validation candidates at or above it. It is tuned on this
        archive, wherever the teacher comes from, and on scores as pseudo-labels have them.
        """
        own = card.score_threshold or self.config.self_train.threshold
        if "val" not in scores.splits:
            return own, 0.0
        chunks, found = self.detections("val")
        matches = score_chunks(self.archive, chunks, found, self.config).matches
        tuned = best_threshold(matches)
        threshold = tuned if np.isfinite(tuned) else own
        if not np.isfinite(tuned):
            log.warning(
                "val has no call that the teacher finds, so its own threshold %.3f holds for pseudo-labels: label more recordings",
                own,
            )
        return threshold, kept_share(self.candidates("val")[1].score, threshold)

    def detections(self, split: str) -> tuple[ChunkSet, PoolDetections]:
        """What was found in a split, suppressed as pseudo-labels are."""
        knobs, chunks = self.config.self_train, chunks_of_split(self.archive, split)
        return chunks, read_pool(
            self.stored,
            self.archive,
            chunks,
            overlap=knobs.nms_overlap,
            score_weight=knobs.score_weight,
            doubts_nested=self.doubts_nested,
        )

    def candidates(self, split: str) -> tuple[ChunkSet, PoolDetections]:
        """Those of them that could be pseudo-boxes at some threshold."""
        chunks, found = self.detections(split)
        return chunks, found.where(is_valid(found, validity_of(self.config.self_train)))
