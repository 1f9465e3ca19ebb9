"""The methods a comparison knows: what each changes in the config, what it starts
from, and whether it self-trains.

All see the same chunks with the same augmentation, number of samples and evaluation; a row changes one thing.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from mast_ray.config.errors import ConfigError
from mast_ray.config.loading import apply_overrides
from mast_ray.config.stage_knobs import ALL_BLOCKS, lengthened
from mast_ray.config.tree import Config

Start = Literal[
    "own", "public", "nothing"
]  # encoder pretrained here, AudioMAE's public weights, random weights


@dataclass(frozen=True)
class Method:
    """One row of the tables."""

    name: str
    title: str
    group: Literal["baseline", "mast", "pipeline", "adapter", "curriculum"]
    start: Start
    overrides: dict[str, Any] = field(default_factory=dict)
    self_trains: bool = False  # from the detector of method "mast" with the same seed
    length: Literal["same", "as_self_training"] = "same"

    def config(self, config: Config, seed: int) -> Config:
        """The config of a run with the given seed."""
        return apply_overrides(config, self.overrides | {"seed": seed})


# Everything trains at the full rate when nothing is pretrained, as in the other detectors from scratch.
_ALL_TRAINS = {"detector.unfrozen_blocks": ALL_BLOCKS, "detector.backbone_multiplier": 1.0}

_ALL = (
    Method("pieces", "What stands out, put together by the labels", "baseline", "nothing", {"model.name": "pieces"}),
    Method("faster_rcnn", "Faster R-CNN", "baseline", "nothing", {"model.name": "faster_rcnn"}),
    Method("fcos", "FCOS", "baseline", "nothing", {"model.name": "fcos"}),
    Method("resnet_fpn", "ResNet-FPN, MAST's head and losses", "baseline", "nothing", {"model.name": "resnet_fpn"}),
    Method("yolo26", "YOLO26", "baseline", "nothing", {"model.name": "yolo26"}),
    Method("detr", "DETR", "baseline", "nothing", {"model.name": "detr"}),
    Method("audiomae", "AudioMAE", "baseline", "public", {"model.name": "audiomae", "spectrogram.divisor": 2.0}),
    Method("vit_scratch", "ViT from scratch", "baseline", "nothing", {"model.name": "vit_scratch"}),
    Method("mast", "MAST", "mast", "own"),
    Method("mast_long", "MAST, trained as long as MAST + ST", "mast", "own", length="as_self_training"),
    Method("mast_st", "MAST + ST", "mast", "own", self_trains=True),
    Method("no_contrastive", "MAST − contrastive loss", "pipeline", "own", {"detector.lambda_con": 0.0}),
    Method("no_adapter", "MAST − adapter − contrastive loss", "pipeline", "own", {"model.name": "audiomae"}),
    Method("no_pretraining", "MAST − pretraining", "pipeline", "nothing", _ALL_TRAINS),
    Method("adapter_conv", "MAST, convolutional adapter", "adapter", "own", {"model.adapter": "conv"}),
    Method("adapter_anisotropic", "MAST, anisotropic adapter", "adapter", "own", {"model.adapter": "anisotropic"}),
    Method("adapter_upsampling", "MAST, upsampling adapter", "adapter", "own", {"model.adapter": "upsampling"}),
    Method("adapter_hybrid", "MAST, hybrid adapter", "adapter", "own", {"model.adapter": "hybrid"}),
    Method("stage1_only", "ST, stage 1 only", "curriculum", "own", {"self_train.curriculum": "stage1_only"}, True),
    Method("stage2_only", "ST, stage 2 only", "curriculum", "own", {"self_train.curriculum": "stage2_only"}, True),
    Method("union", "ST, one-stage union", "curriculum", "own", {"self_train.curriculum": "union"}, True),
)  # fmt: skip
METHODS: dict[str, Method] = {method.name: method for method in _ALL}
SHORT = ("pieces", "mast", "mast_st", "fcos")  # of recipe tiny: minutes on two cores
DEFAULT = ("pieces", "faster_rcnn", "fcos", "detr", "vit_scratch", "mast", "mast_st")
DEFAULT_SEEDS = {"tiny": 1}  # others: 3


def chosen_methods(names: Sequence[str], config: Config, audiomae: str) -> tuple[Method, ...]:
    """Methods by name, in the order of the paper's tables; none named: the default of the recipe."""
    names = names or (SHORT if config.recipe == "tiny" else DEFAULT)
    unknown = [name for name in names if name not in METHODS]
    if unknown:
        raise ConfigError(f"--methods {unknown[0]} is not known: choose from {', '.join(METHODS)}")
    if "audiomae" in names and not audiomae:
        raise ConfigError(
            "--methods audiomae starts from AudioMAE's public weights: give them with --audiomae FILE"
        )
    if "yolo26" in names and importlib.util.find_spec("ultralytics") is None:
        raise ConfigError(
            "--methods yolo26 needs ultralytics (AGPL), which is not installed: pip install 'mast_ray[baselines]', or leave it out"
        )
    return tuple(method for name, method in METHODS.items() if name in names)


def with_needed(methods: Sequence[Method]) -> tuple[Method, ...]:
    """The methods with `mast` before those that self-train from it."""
    needed = METHODS["mast"]
    if needed in methods or not any(method.self_trains for method in methods):
        return tuple(methods)
    return (needed, *methods)


def as_long_as_self_training(config: Config, num_train: int, num_pool: int) -> Config:
    """Supervised training over as many samples as detector, stage 1 and stage 2 of
    all rounds see together at most; over few chunks those have more epochs than the settings say.
    """
    knobs, own = config.self_train, lengthened(config.detector, num_train)
    used = min(num_pool, knobs.max_chunks or num_pool)
    stage1, stage2 = lengthened(knobs.stage1, used), lengthened(knobs.stage2, num_train)
    per_round = stage1.epochs * used + stage2.epochs * num_train
    epochs = own.epochs + round(knobs.rounds * per_round / max(num_train, 1))
    paced = {name: getattr(own, name) for name in ("warmup_epochs", "validate_every_epochs")}
    return apply_overrides(
        config, {f"detector.{name}": value for name, value in (paced | {"epochs": epochs}).items()}
    )
