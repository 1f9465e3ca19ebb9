"""What differs where a student is trained: its augmentation, the weights of its chunks, and its teacher."""

from __future__ import annotations

from torch import nn

from mast_ray.config.errors import ConfigError
from mast_ray.config.stage_knobs import AugmentConfig, DetectorTrainConfig
from mast_ray.config.tree import Config
from mast_ray.inference.tuned_detector import is_doubted
from mast_ray.spectrogram.grid import fractional_frames
from mast_ray.training.assembly import network_of
from mast_ray.training.data.feed import Weighting
from mast_ray.training.data.labels import LabelSource
from mast_ray.training.data.online_teacher import OnlineTeacher, TeacherSettings
from mast_ray.training.engine import Engine, Precision
from mast_ray.training.files.model_files import Card

WEIGHTING: dict[str, Weighting] = {"none": "ones", "raw": "as_given", "normalised": "mean_one"}
OF_PSEUDO: dict[str, Weighting] = {
    "none": "ones_of_pseudo",
    "raw": "as_given_of_pseudo",
    "normalised": "mean_one_of_pseudo",
}


def augment_of(config: Config, labels: LabelSource) -> AugmentConfig:
    """Strengths of augmentation: a student may have its own, and so may what it is compared with."""
    is_student = labels.name in ("mixed", "truth", "control")
    own = is_student and config.self_train.augmentation == "own"
    return config.self_train.augment if own else config.augment


def weighting_of(knobs: DetectorTrainConfig, labels: LabelSource) -> Weighting:
    """Confidence is a matter of pseudo-labels: in mixed batches an expert's chunk weighs 1."""
    match labels.name:
        case "mixed":
            return OF_PSEUDO[knobs.confidence_weighting]
        case "truth" | "control":
            return "ones"
    return WEIGHTING[knobs.confidence_weighting]


def is_taught_online(config: Config, labels: LabelSource) -> bool:
    knobs = config.self_train
    return labels.name == "mixed" and knobs.teacher == "moving_average" and knobs.student == "teacher"


def online_teacher(
    config: Config,
    labels: LabelSource,
    objective: nn.Module,
    engine: Engine,
    precision: Precision,
    recorded: bool,
    began_with: Card | None = None,
) -> OnlineTeacher | None:
    """The moving average of a run as the teacher of its own pseudo-labelled chunks, where that is asked for. `began_with`:
    of the detector that the run began with.
    """
    knobs = config.self_train
    if not is_taught_online(config, labels):
        return None
    averages = engine.shared_averages()
    if averages is None:
        raise ConfigError(
            f"self_train.teacher=moving_average needs whole averages, which engine {engine.name} does not keep:\n"
            "use --set cluster.engine=torch, or --set self_train.teacher=fixed"
        )
    settings = TeacherSettings(
        knobs.lowest_score(config.evaluate.score_floor),
        knobs.nms_overlap,
        knobs.teacher_boxes,
        float(fractional_frames(knobs.min_duration_s)),
        knobs.min_bins,
        knobs.empty_weight if knobs.empty_chunks == "negative" else 0.0,
        knobs.teacher_every_steps,
        began_with is not None and is_doubted(began_with, config.evaluate),
        bool(knobs.ignore_above),
    )
    prefix, network = network_of(objective)
    own = {name.removeprefix(prefix): value for name, value in averages.items() if name.startswith(prefix)}
    return OnlineTeacher(network, own, settings, precision, recorded=recorded)
