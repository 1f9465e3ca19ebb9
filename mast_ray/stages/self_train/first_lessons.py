"""Before the experts' boxes, those of a detector without a network: what stands out anywhere in the pool, put together as the
experts put it (stages/train/pieces.py). A detector that has learned them needs fewer experts' boxes (docs/results.md).

OUT/first_lessons/teacher is that detector; OUT/first_lessons is a self-training of one stage by it, from nothing or from a
pretrained encoder; what that ends with is where the training on experts' boxes begins.
"""

from __future__ import annotations

import logging

from mast_ray.config.errors import DataError
from mast_ray.config.loading import apply_overrides
from mast_ray.config.stage_knobs import ALL_BLOCKS
from mast_ray.config.tree import Config, ModelConfig
from mast_ray.stages.runner import Runner
from mast_ray.stages.self_train.plan import plan_text
from mast_ray.stages.self_train.self_train import run_self_train
from mast_ray.stages.train.pieces import NAME as PIECES
from mast_ray.stages.train.pieces import has_enough_boxes, run_teach_pieces
from mast_ray.storage.storage import Storage, open_storage
from mast_ray.tables.prepared import read_table
from mast_ray.training.data.archive_inputs import refuse_unfit_starts
from mast_ray.training.data.labels import PSEUDO_LABELS, has_object
from mast_ray.training.files.model_files import read_card

log = logging.getLogger("mast.self_train")

FOLDER, TEACHER, PSEUDO, LEARNED = "first_lessons", "teacher", "round1/pseudo", "round1/stage1"


def is_untrained(detector: str, config: Config) -> bool:
    """Whether a detector has no network that a training could go on from."""
    return bool(detector) and not ModelConfig.model_validate(read_card(detector, config.storage).model).learns


def lessons_config(config: Config) -> Config:
    """As long over the pool as stage 1 of self-training, otherwise as a training from nothing is: at its rates, the whole
    encoder with the rest. What may or may not stand out is neither call nor background.
    """
    own = config.detector
    stage1 = {
        "learning_rate": own.learning_rate,
        "batch_size": own.batch_size,
        "accumulate": own.accumulate,
        "ema_decay": own.ema_decay,
        "backbone_multiplier": 1.0,
        "unfrozen_blocks": ALL_BLOCKS,
        "unfreeze_start_epoch": 0.0,
        "unfreeze_every_epochs": 0.0,
        "unfreeze_blocks": 0,
    }
    knobs = {
        "rounds": 1,
        "curriculum": "stage1_only",
        "student": "fresh",
        "teacher_hearings": 1,
        "policy": "precision",
        "precision_target": 0.7,
        "ignore_above": 0.35,
        "empty_chunks": "negative",
        "contrastive_on_pseudo": False,
        "governor": "off",  # judges a teacher's labels by those of the round before: there is none
    }
    knobs |= {f"stage1.{name}": value for name, value in stage1.items()}
    return apply_overrides(config, {f"self_train.{name}": value for name, value in knobs.items()})


def learn_first_lessons(
    config: Config, prepared: str, teacher: str, out: str, *, encoder: str = "", runner: Runner
) -> str:
    """The folder of a detector that has learned what one without a network finds in the pool, from nothing or from a
    pretrained encoder; done once per OUT.

    `teacher` itself teaches where it was taught before, or where the experts' boxes are too few to teach one that finds any.
    """
    refuse_unfit_starts(config, encoder)
    folder = open_storage(out, config.storage).at(FOLDER)
    log.info("first lessons: what stands out in the pool, before the experts' boxes")
    is_taught = read_card(teacher, config.storage).model["name"] == PIECES
    if not is_taught and has_enough_boxes(config, prepared):
        own = folder.at(TEACHER).url
        if run_teach_pieces(config, prepared, own, runner=runner).finds_calls:
            teacher = own
        else:
            log.warning("%s finds no call where it is scored: %s teaches instead", own, teacher)
    try:
        lessons = lessons_config(config)
        run_self_train(lessons, prepared, teacher, folder.url, encoder=encoder, runner=runner)
    except DataError as error:
        if _holds_no_lesson(folder.at(PSEUDO)):
            raise DataError(
                f"nothing that stands out in the pool of {prepared} can give first lessons:\n"
                "--start shipped adapts the detector that comes with the package, --start scratch begins with fresh weights"
            ) from error
        raise
    return folder.at(LEARNED).url


def _holds_no_lesson(pseudo: Storage) -> bool:
    """Whether there are pseudo-labels, and not one box of them to learn."""
    return pseudo.stat(PSEUDO_LABELS) is not None and not has_object(read_table(pseudo, PSEUDO_LABELS))


def lessons_plan(config: Config, prepared: str, teacher: str, out: str) -> str:
    """What they would take, for people."""
    folder = open_storage(out, config.storage).at(FOLDER)
    return f"first lessons\n{plan_text(lessons_config(config), prepared, teacher, folder.url)}"
