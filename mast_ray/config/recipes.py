"""Recipes: functions returning a whole config. `field` is the default; the
others say how they differ and why.
"""

from __future__ import annotations

from collections.abc import Callable

from mast_ray.config.loading import apply_overrides
from mast_ray.config.tree import Config


def field() -> Config:
    """The method, leak-free and statistically honest (the defaults of the tree)."""
    return Config()


def paper() -> Config:
    """As printed: chunk-random split with its leakage, transductive pool, q = 0.10,
    11-point AP, hidden boxes removed.
    """
    return apply_overrides(
        Config(recipe="paper"),
        {
            "labels.no_animal": "keep",
            "split.unit": "chunk",
            "split.transductive": True,
            "spectrogram.tail": "zeros",
            "spectrogram.short_recordings": "drop",
            "spectrogram.divisor": 2.0,
            "spectrogram.background": "none",
            "model.decoder": "local",
            "pretrain.side_path": False,
            "pretrain.target": "raw",
            "detector.min_steps": 0,
            "detector.unfrozen_blocks": 4,
            "detector.backbone_multiplier": 0.1,
            "model.adapter": "upsampling",
            "model.finest_level": "8x4",
            "augment.hidden_boxes": "remove",
            "augment.frequency_shift_bins": 4,
            "augment.shift_edges": "silence",
            "augment.zoom": 1.0,
            "augment.reverse": 0.0,
            "augment.gain_db": 0.0,
            "augment.equaliser_db": 0.0,
            "augment.mix_style": 0.0,
            "augment.background_from": "labelled",
            "self_train.rounds": 2,
            "self_train.policy": "fixed",
            "self_train.stage1.confidence_weighting": "raw",
            "self_train.governor": "warn",
            "self_train.contrastive_on_pseudo": True,
            "self_train.keep": "last",
            "evaluate.average_precision": "11_point",
            "evaluate.post": "none",
        },
    )


def birdeep() -> Config:
    """BIRDeep (Doñana): sites AM4 and AM15 held out, clock times in UTC as its recorders wrote them."""
    return apply_overrides(
        Config(recipe="birdeep"),
        {"split.ood_sites": ("AM4", "AM15"), "audio.timezone": "UTC", "audio.site_from": "prefix"},
    )


def tiny() -> Config:
    """Two CPU cores, minutes: a small encoder, short schedules and larger steps;
    every stage and rule as in field.
    """
    # some hundred steps are too few to learn from distorted calls
    return apply_overrides(
        Config(recipe="tiny"),
        {
            "model.size": "tiny",
            "pretrain.side_path": False,  # convolutions over whole spectrograms: a step takes five times as long on a CPU
            "pretrain.epochs": 4,
            "pretrain.batch_size": 16,
            "pretrain.learning_rate": 1e-3,
            "pretrain.min_learning_rate": 1e-5,
            "pretrain.warmup_epochs": 0.5,
            "detector.epochs": 8,
            "detector.augment_probability": 0.3,
            "augment.zoom": 1.0,
            "augment.reverse": 0.0,
            "detector.batch_size": 4,  # many small steps: of nearly equal cost on a CPU, and F1 rises sooner
            "detector.learning_rate": 1e-3,
            "detector.warmup_epochs": 1,
            "detector.ema_decay": 0.90,
            "detector.validate_every_epochs": 4,
            "detector.backbone_multiplier": 0.3,
            "detector.unfrozen_blocks": 4,
            "self_train.score_parts": True,
            "self_train.stage1.epochs": 1,
            "self_train.stage1.batch_size": 4,
            "self_train.stage1.learning_rate": 5e-4,
            "self_train.stage1.warmup_epochs": 0.2,
            "self_train.stage1.ema_decay": 0.90,
            "self_train.stage1.backbone_multiplier": 0.1,
            "self_train.stage1.unfreeze_start_epoch": 0.25,
            "self_train.stage1.unfreeze_every_epochs": 0.25,
            "self_train.stage1.unfreeze_blocks": 1,
            "self_train.stage2.epochs": 6,
            "self_train.stage2.min_steps": 60,  # 50 boxes are some ten chunks: three passes would teach nothing
            "self_train.stage2.batch_size": 4,
            "self_train.stage2.learning_rate": 3e-4,
            "self_train.stage2.warmup_epochs": 0.5,
            "self_train.stage2.ema_decay": 0.90,
            "self_train.stage2.backbone_multiplier": 0.2,
            "self_train.stage2.unfreeze_start_epoch": 0.5,
            "self_train.stage2.unfreeze_every_epochs": 1,
            "self_train.stage2.unfreeze_blocks": 2,
            "tune.trials": 4,
            "tune.epochs_stage1": 1,
            "tune.epochs_stage2": 2,
            "evaluate.batch_size": 4,  # more leave a CPU's cache
            "evaluate.bootstrap": 500,
            "cluster.lanes": 8,
        },
    )


RECIPES: dict[str, Callable[[], Config]] = {"field": field, "paper": paper, "tiny": tiny, "birdeep": birdeep}
