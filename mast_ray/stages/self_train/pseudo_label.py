"""`mast pseudo-label`: a detector over the pool of a prepared archive, once per model; the threshold is chosen later.

What is stored is suppressed loosely, so that stricter suppression, other weights of the score and every threshold can be
tried afterwards without new inference.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

from mast_ray.config.tree import Config
from mast_ray.inference.chunk_detector import StoredDetections
from mast_ray.inference.chunk_scores import as_detected
from mast_ray.inference.tuned_detector import delivered_post, doubts_nested
from mast_ray.self_training.operator import EVEN_WEIGHT
from mast_ray.stages.detect.chunks import ChunkTask, detect_chunks
from mast_ray.stages.runner import ON_RAY, Runner
from mast_ray.storage.stage_run import StageResult
from mast_ray.storage.storage import full_url
from mast_ray.training.files.model_files import read_card

STAGE = "pseudo-label"
LOOSE_OVERLAP = 0.7  # stored boxes overlap up to this much: stricter suppression is searched afterwards


def run_pseudo_label(
    config: Config,
    model: str,
    prepared: str,
    out: str,
    *,
    splits: Sequence[str] = ("pool",),
    runner: Runner = ON_RAY,
    chunks_per_unit: int = 0,
    boxes: Literal["candidates", "delivered"] = "candidates",
    also: Sequence[str] = (),
) -> StageResult:
    """Detections of every chunk of the named splits into OUT (of the pool: of as many as self_train.max_chunks asks for):
    candidates to choose from, or what the model delivers by the post-processing of its card. Candidates may be those of
    several models and hearings together.
    """
    task = pool_task(config, model, prepared, out, splits)
    if boxes == "candidates":
        others = tuple(full_url(one) for one in also)
        task = replace(task, also=others, num_hearings=config.self_train.teacher_hearings)
        floor = config.self_train.lowest_score(config.evaluate.score_floor)
        task = replace(task, stored=replace(task.stored, score_floor=floor))
        if task.splits == ("pool",):
            task = replace(task, most_chunks=config.self_train.most_labelled)
    if boxes == "delivered":
        card = read_card(model, config.storage)
        post = delivered_post(card, config.evaluate)
        task = replace(task, doubts_nested=doubts_nested(card, config.evaluate))
        if post is not None:
            task = replace(task, post=post, stored=as_detected(config, post))
    return detect_chunks(task, runner, chunks_per_unit, STAGE)


def pool_task(
    config: Config, model: str, prepared: str, out: str, splits: Sequence[str] = ("pool",)
) -> ChunkTask:
    """Loose suppression; classification and centerness beside the score where they will be weighed, and always
    outside the pool, which alone is large.
    """
    knobs = config.self_train
    loose = max(LOOSE_OVERLAP, knobs.nms_overlap, config.evaluate.nms_overlap)
    with_parts = knobs.score_parts or knobs.score_weight != EVEN_WEIGHT or tuple(splits) != ("pool",)
    stored = StoredDetections(config.evaluate.score_floor, loose, config.evaluate.max_detections, with_parts)
    # absolute, for workers elsewhere
    return ChunkTask(config, full_url(model), full_url(prepared), full_url(out), tuple(splits), stored)
