"""Settings of a self-training: what its students depend on, labels that its curriculum needs, and a teacher that fits them."""

from __future__ import annotations

import json
import logging
from collections.abc import Sequence
from dataclasses import replace

from mast_ray.config.errors import DataError
from mast_ray.config.loading import apply_overrides
from mast_ray.config.tree import Config
from mast_ray.self_training.curriculum import steps_of
from mast_ray.self_training.operator import EVEN_WEIGHT
from mast_ray.storage.stage_folders import sections_hash, text_hash
from mast_ray.tables.prepared import Prepared
from mast_ray.tables.reading.chunk_sets import ChunkSet, box_table
from mast_ray.training.data.labels import expert_chunks

log = logging.getLogger("mast.self_train")

# what students depend on besides the network, the archive and the teachers
LEARNED_BY = (
    "self_train",
    "evaluate",
    "augment",
    "labels.time_only",
    "split.budget_chunks",
    "split.budget_strategy",
    "spectrogram.min_remnant_s",
    "seed",
)


def key_of(config: Config, truth: str) -> str:
    """Names everything that the students depend on besides the archive and the teachers."""
    network = config.model.model_dump(mode="json", exclude={"compile"})
    return text_hash(sections_hash(config, *LEARNED_BY) + json.dumps(network, sort_keys=True) + truth)


def experts_of(config: Config, archive: Prepared) -> ChunkSet | None:
    """The chunks that experts labelled for training; None where there are none."""
    try:
        return expert_chunks(archive, config)
    except DataError:
        return None


def refuse_missing_experts(config: Config, archive: Prepared) -> None:
    """Before hours are spent on pseudo-labels: most curricula go on to the experts' boxes."""
    curriculum = config.self_train.curriculum
    wanted = {step.labels for step in steps_of(curriculum)} - {"pseudo"}
    chunks = experts_of(config, archive)
    is_there = chunks is not None
    if chunks is not None and wanted - {"both"}:
        boxes = box_table(archive, chunks, archive.labels, min_remnant_s=config.spectrogram.min_remnant_s)
        is_there = bool(replace(boxes, time_only=config.labels.time_only).teaches.any())
    if wanted and not is_there:
        raise DataError(
            f"{archive.storage.url} has no expert box to train on, and self_train.curriculum={curriculum} needs some:\n"
            "--set self_train.curriculum=stage1_only learns from pseudo-labels alone; or give annotations to `mast prepare`"
        )


def with_fitting_teacher(config: Config, also: Sequence[str]) -> Config:
    """A moving teacher hears a chunk once and has plain scores: thresholds for the scores of several hearings, of several
    detectors or of another weighing are not for it. Labels stay as stored then.
    """
    knobs = config.self_train
    is_moving = knobs.teacher == "moving_average" and knobs.student == "teacher"
    is_plain = knobs.score_weight == EVEN_WEIGHT and knobs.teacher_hearings == 1 and not also
    if not is_moving or is_plain or knobs.curriculum not in ("mixed", "mixed_then_expert"):
        return config
    log.warning(
        "self_train.teacher=fixed: the scores of several hearings or detectors, or of another score_weight, are not those of a "
        "moving-average teacher; its labels stay as they were stored"
    )
    return apply_overrides(config, {"self_train.teacher": "fixed"})
