"""Knobs of the training stages: augmentation, pretraining, detector training, self-training, search."""

from __future__ import annotations

import math
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

Share = Annotated[float, Field(ge=0.0, le=1.0)]
Weight = Annotated[float, Field(ge=0.0)]


class Section(BaseModel):
    """Frozen, strict about names, and every field carries a description."""

    model_config = ConfigDict(
        extra="forbid", frozen=True, use_attribute_docstrings=True, coerce_numbers_to_str=True
    )


class AugmentConfig(Section):
    most_per_example: int = Field(3, ge=1)
    """One to this many augmentations are drawn per example."""
    time_shift_s: float = Field(1.0, ge=0)
    """Largest shift in time."""
    frequency_shift_bins: int = Field(16, ge=0)
    """Largest shift in frequency (paper: 4)."""
    shift_edges: Literal["silence", "repeat"] = "repeat"
    """What fills the bins that a shift in frequency opens: silence (paper), or the outermost bin again."""
    time_warp: Share = 0.1
    """Largest relative stretch of time."""
    zoom: float = Field(2.0, ge=1.0, le=4.0)
    """Largest factor by which time, and by another factor frequency, is stretched or pressed together, for half of the
    augmented examples: calls as long and as wide as other animals'. 1: off (paper).
    """
    reverse: Share = 0.5
    """Share of the augmented examples that are played backwards: melodies of other animals. 0: off (paper)."""
    bend: float = Field(0.0, ge=0.0, le=0.8)
    """Largest strength of a bend, which stretches time and frequency more in one place than in another, for half of the
    augmented examples: rhythms and spectra of other animals. 0: off (paper).
    """
    frequency_mask_bins: int = Field(12, ge=0)
    """Widest masked band."""
    time_mask_s: float = Field(0.5, ge=0)
    """Longest masked stretch."""
    noise: float = Field(0.1, ge=0)
    """Standard deviation of added noise, in normalised units."""
    gain: float = Field(0.3, ge=0)
    """Largest change of level, in normalised units."""
    gain_db: float = Field(0.0, ge=0)
    """Largest change of level in decibels, in place of `gain`; 0: `gain` holds."""
    equaliser_db: float = Field(0.0, ge=0)
    """Largest change of level at five frequencies, smooth between them; 0: off (paper)."""
    mix_style: Share = 0.0
    """Largest share of the mean and spread of every bin that is taken from another site's background
    (Freq-MixStyle); 0: off (paper).
    """
    background: Share = 0.3
    """Largest share of a background example mixed in."""
    background_from: Literal["labelled", "pool"] = "labelled"
    """Where backgrounds come from: labelled chunks without a call (paper), or quiet chunks of all sites of the pool."""
    mixup: Share = 0.0
    """Probability of Mixup (off in the paper's main runs)."""
    cutmix: Share = 0.0
    """Probability of CutMix (off in the paper's main runs)."""
    hidden_boxes: Literal["ignore", "remove"] = "ignore"
    """A box mostly hidden by a mask becomes an ignore region (field) or is removed (paper)."""


class PretrainConfig(Section):
    epochs: int = Field(400, ge=1)
    """Passes over the pool (paper: 400)."""
    batch_size: int = Field(64, ge=1)
    """Chunks per step over all workers (paper: 64)."""
    accumulate: int = Field(1, ge=1)
    """Micro-batches per step."""
    learning_rate: float = Field(5e-5, gt=0)
    """Peak learning rate, absolute at this batch size (paper: 5e-5)."""
    min_learning_rate: float = Field(5e-7, ge=0)
    """Final learning rate (paper: 5e-7)."""
    warmup_epochs: float = Field(20.0, ge=0)
    """Linear warm-up (paper: 20)."""
    weight_decay: Weight = 0.05
    """AdamW weight decay (paper: 0.05)."""
    beta2: float = Field(0.95, ge=0, lt=1)
    """AdamW beta2 (paper: 0.95)."""
    clip_norm: float = Field(1.0, gt=0)
    """Gradient norm limit (paper: 1.0)."""
    masking: Literal["structured", "random"] = "structured"
    """structured: time x frequency outer product, keeps 25 x 5 of 64 x 8 tokens; random: 0.75 of tokens."""
    time_mask: Share = 0.6
    """Share of time columns masked (paper: 0.6)."""
    frequency_mask: Share = 0.3
    """Share of frequency rows masked (paper: 0.3)."""
    random_mask: Share = 0.75
    """Share of tokens masked when masking is random (paper: 0.75)."""
    target: Literal["raw", "patch_normalised"] = "patch_normalised"
    """What is reconstructed: every patch with mean 0 and deviation 1, or as it is (paper: raw)."""
    side_path: bool = True
    """Pretrain the side path of model.adapter=hybrid too (paper: no such path)."""
    init: str = ""
    """Model folder or AudioMAE checkpoint (.pth, .safetensors) to start from; empty: from scratch."""
    max_steps: int = Field(0, ge=0)
    """Stop after so many steps whatever the epochs; 0: no limit."""
    validate_every_epochs: float = Field(1.0, gt=0)
    """How often the held-out masked error is measured."""


ALL_BLOCKS = 99  # more than any encoder has


class DetectorTrainConfig(Section):
    epochs: int = Field(200, ge=1)
    """Passes over the labelled chunks (paper: 200; stage 1: 80; stage 2: 40)."""
    batch_size: int = Field(64, ge=1)
    """Chunks per step over all workers (paper: 64)."""
    accumulate: int = Field(1, ge=1)
    """Micro-batches per step."""
    learning_rate: float = Field(3e-4, gt=0)
    """Peak learning rate of head and adapter (paper: 3e-4; stage 1: 1e-4; stage 2: 5e-5)."""
    min_learning_rate: float = Field(0.0, ge=0)
    """Final learning rate."""
    warmup_epochs: float = Field(5.0, ge=0)
    """Linear warm-up (paper: stage 1: 8; stage 2: 4; supervised not printed)."""
    weight_decay: Weight = 1e-3
    """AdamW weight decay (paper: 1e-3)."""
    beta2: float = Field(0.999, ge=0, lt=1)
    """AdamW beta2."""
    clip_norm: float = Field(1.0, gt=0)
    """Gradient norm limit (paper: 1.0)."""
    ema_decay: Share = 0.9995
    """EMA of the weights at batch 64, rescaled to decay^(batch/64) (paper: 0.9995);
    less in runs too short for it.
    """
    backbone_multiplier: Weight = 0.1
    """Learning rate of unfrozen encoder blocks relative to the head (paper: 0.1; unfrozen
    in stage 1: 0.005, stage 2: 0.05).
    """
    layer_decay: float = Field(1.0, gt=0, le=1)
    """Rate of every encoder block relative to the one above it, on top of backbone_multiplier (MAE fine-tunes with
    0.75 and a multiplier of 1); 1: all blocks alike (paper).
    """
    adapter_multiplier: Weight = 1.0
    """Learning rate of adapter and pyramid relative to the head (paper: 1.0)."""
    unfrozen_blocks: int = Field(4, ge=0)
    """Top encoder blocks trained from the start; 99 are all there are (paper: 4; stages 1 and 2: 0)."""
    unfreeze_start_epoch: float = Field(0.0, ge=0)
    """Epoch at which gradual unfreezing begins (stage 1: 20; stage 2: 3)."""
    unfreeze_every_epochs: float = Field(0.0, ge=0)
    """Epochs between unfreezing steps; 0: no gradual unfreezing (stage 1: 10; stage 2: 6)."""
    unfreeze_blocks: int = Field(0, ge=0)
    """Blocks unfrozen at a time, from the top (stage 1: 3; stage 2: 6)."""
    augment_probability: Share = 0.9
    """Share of examples that are augmented (paper: 0.9; stage 2: 0.8)."""
    lambda_cls: Weight = 1.0
    """Weight of the classification loss."""
    lambda_box: Weight = 0.25
    """Weight of the L1 loss on corners, in strides."""
    lambda_iou: Weight = 2.0
    """Weight of the GIoU loss."""
    lambda_centerness: Weight = 1.0
    """Weight of the centerness loss."""
    lambda_con: Weight = 0.5
    """Weight of the box-level contrastive loss (paper: 0.5; stage 1: 0.3; stage 2: 0.2)."""
    contrastive_temperature: float = Field(0.1, gt=0)
    """Temperature tau (paper: 0.1)."""
    contrastive_positives: int = Field(4, ge=1)
    """Jittered positives per box."""
    contrastive_negatives: int = Field(32, ge=1)
    """Negatives per chunk (paper: 32)."""
    confidence_weighting: Literal["none", "raw", "normalised"] = "none"
    """Weight of a pseudo-labelled chunk: 1 (none), mean score as printed (raw), or scaled to
    mean 1 over the global batch.
    """
    min_steps: int = Field(0, ge=0)
    """At least so many steps: over a small training set the epochs are more, and warm-up, unfreezing and validation keep
    their share of them; 0: as the epochs say (paper). Whoever sets epochs gets these, unless this is set too.
    """
    max_steps: int = Field(0, ge=0)
    """Stop after so many steps whatever the epochs; 0: no limit."""
    validate_every_epochs: float = Field(1.0, gt=0)
    """How often the validation split is scored."""


def strong_augment() -> AugmentConfig:
    """More kinds at once, 12 dB of level, shifts of a whole patch."""
    return AugmentConfig(most_per_example=6, frequency_shift_bins=16, gain=1.2)


def detector_knobs() -> DetectorTrainConfig:
    """Supervised training as it was measured (docs/results.md): the whole encoder learns, at the rate of the head. 200 passes
    over a tenth of a labelled day are some 400 steps, and three times as many find more at the next site.
    """
    return DetectorTrainConfig(min_steps=1800, unfrozen_blocks=ALL_BLOCKS, backbone_multiplier=1.0)


def stage1_knobs() -> DetectorTrainConfig:
    """Stage 1 of self-training, with the paper's values: pseudo-labels only."""
    return DetectorTrainConfig(
        epochs=80, learning_rate=1e-4, warmup_epochs=8, lambda_con=0.3, augment_probability=0.9, unfrozen_blocks=0,
        backbone_multiplier=0.005, unfreeze_start_epoch=20, unfreeze_every_epochs=10, unfreeze_blocks=3,
        confidence_weighting="normalised",
    )  # fmt: skip


def stage2_knobs() -> DetectorTrainConfig:
    """Stage 2 of self-training, with the paper's values: expert labels only."""
    return DetectorTrainConfig(
        epochs=40, learning_rate=5e-5, warmup_epochs=4, lambda_con=0.2, augment_probability=0.8, unfrozen_blocks=0,
        backbone_multiplier=0.05, unfreeze_start_epoch=3, unfreeze_every_epochs=6, unfreeze_blocks=6,
    )  # fmt: skip


class SelfTrainConfig(Section):
    rounds: int = Field(1, ge=0)
    """Rounds of pseudo-label, stage 1, stage 2 (paper: 1-2); 0: the detector stays as it was trained. No second round was measured to add anything (docs/results.md)."""
    curriculum: Literal[
        "two_stage", "stage1_only", "stage2_only", "union", "mixed", "mixed_then_expert", "control", "ceiling"
    ] = "two_stage"
    """The paper's two stages or an ablation of them; mixed: expert and pseudo-labelled chunks in every batch (then stage 2
    with mixed_then_expert); control: as long on expert labels alone; ceiling: mixed, with --truth as the pool's labels.
    """
    policy: Literal[
        "fixed", "tuned", "per_group_mixture", "per_group_quantile", "precision", "precision_pool"
    ] = "tuned"
    """How the confidence threshold q is chosen: fixed (paper), tuned on validation (for F1), per site and hour from
    the scores, or for precision: carried to every site by the share of detections kept, or one for the whole pool.
    """
    precision_target: Share = 0.85
    """Policies precision and precision_pool: the lowest q at which so much of what is kept is right, on ood_dev where
    it is labelled, else on validation.
    """
    ignore_above: Share | Literal["auto"] = 0.0
    """Boxes scored from here up to q are ignored, neither object nor background; 0: they are background; auto: from
    where recall no longer rises.
    """
    threshold: Share = 0.10
    """q of the fixed policy (paper: 0.10), and the fallback of the others."""
    min_group_detections: int = Field(200, ge=1)
    """Groups (site and hour) with fewer detections fall back to the threshold of
    their site, then of the whole pool.
    """
    nms_overlap: Share = 0.5
    """Overlap threshold of suppression (paper: 0.5)."""
    score_weight: Share = 0.5
    """Exponent of the classification in the score of a pseudo-box; centerness has the
    rest (0.5: as the detector scores).
    """
    score_parts: bool = False
    """Store classification and centerness of the pool's detections too, so that `mast tune
    --self-trained` can use another weight.
    """
    min_duration_s: float = Field(0.1, ge=0)
    """Shortest valid pseudo-box."""
    min_bins: int = Field(2, ge=1)
    """Lowest valid pseudo-box, in mel bins."""
    empty_chunks: Literal["drop", "negative"] = "drop"
    """Chunks without pseudo-boxes: left out, or kept as negatives with empty_weight."""
    empty_weight: Weight = 0.3
    """Weight of empty chunks kept as negatives, beside the mean score (1 with confidence_weighting=none) of others."""
    max_chunks: int = Field(0, ge=0)
    """Train on at most this many chunks of the pool per round, drawn at random; 0: all. Only a random part of the pool
    is labelled then: as many, or three times as many where chunks without pseudo-boxes are left out.
    """
    expert_share: Share = 0.5
    """Curriculum mixed: share of expert chunks in every batch."""
    student: Literal["teacher", "fresh"] = "teacher"
    """Weights a student begins with: its teacher's, or none. A fresh one does not inherit its teacher's mistakes, is taught by fixed
    labels, is not averaged, and needs as long as a training from nothing.
    """
    teacher_hearings: int = Field(1, ge=1, le=6)
    """Ways in which the teacher hears a chunk of the pool: as it is, higher, lower, pressed in time, in frequency, in both. A
    call that it finds in all of them scores higher.
    """
    teacher: Literal["fixed", "moving_average"] = "moving_average"
    """Curriculum mixed: pseudo-labels as stored at the start of the round, or made anew for every batch, before
    augmentation, by the moving average of the student's weights.
    """
    teacher_every_steps: int = Field(1, ge=1)
    """The moving-average teacher labels one batch in so many; the others keep their stored labels."""
    teacher_boxes: int = Field(64, ge=1)
    """Most boxes of a chunk that the moving-average teacher gives, the best first."""
    pseudo_weight: Weight = 1.0
    """Curriculum mixed: weight of a pseudo-labelled chunk (times its confidence) beside an expert one."""
    contrastive_on_pseudo: bool = False
    """Whether pseudo-labelled chunks take part in the contrastive loss (paper: yes); its negatives there are calls that
    the teacher missed.
    """
    augmentation: Literal["shared", "own"] = "shared"
    """Curricula mixed, control and ceiling: strengths as in `augment`, or own ones as in `self_train.augment`."""
    augment: AugmentConfig = strong_augment()
    """Strong augmentation for the student."""
    average_with_teacher: Share | Literal["auto"] = 0.0
    """Share of the teacher's weights in the student of a round (0: none); auto: the share in 0, 1/4, 1/2, 3/4 that is
    best on the split that selects.
    """
    keep: Literal["best", "last"] = "best"
    """Which round is delivered: the best on ood_dev where it is labelled, else on validation, the seed among them; or
    the last (paper).
    """
    stage1: DetectorTrainConfig = stage1_knobs()
    """Training on pseudo-labels."""
    stage2: DetectorTrainConfig = stage2_knobs()
    """Refinement on expert labels."""
    governor: Literal["stop", "warn", "off"] = "stop"
    """What happens when pseudo-labels collapse between rounds."""
    governor_density_ratio: float = Field(4.0, gt=1)
    """Boxes per chunk may change by at most this factor between rounds."""
    governor_min_agreement: Share = 0.3
    """Least F1 of the student's boxes against its teacher's on the pool."""

    @property
    def labelled_for_one(self) -> int:
        """Chunks of the pool to label for each that is to be trained on."""
        return 3 if self.empty_chunks == "drop" else 1

    @property
    def most_labelled(self) -> int:
        """Chunks of the pool that a teacher labels; 0: all."""
        return self.max_chunks * self.labelled_for_one

    def lowest_score(self, score_floor: float) -> float:
        """From which score on a teacher's boxes are wanted: the floor of detections, or less where a threshold of
        pseudo-labels lies below it.
        """
        band = self.ignore_above if isinstance(self.ignore_above, float) and self.ignore_above > 0 else 1.0
        return min(score_floor, self.threshold, band)


class TuneConfig(Section):
    trials: int = Field(16, ge=1)
    """Training trials."""
    concurrent: int = Field(2, ge=1)
    """Trials at once, where resources allow."""
    search: Literal["random", "optuna"] = "optuna"
    """How settings are proposed."""
    scheduler: Literal["asha", "median", "none"] = "asha"
    """Early stopping of poor trials: asha keeps the best third at every level, median stops what is below the median of
    the others.
    """
    objective_split: Literal["val", "ood_dev"] = "val"
    """Split whose F1 is maximised; never a test split."""
    epochs_stage1: int = Field(8, ge=1)
    """Stage 1 epochs of a trial."""
    epochs_stage2: int = Field(4, ge=1)
    """Stage 2 epochs of a trial."""
    thresholds: int = Field(200, ge=2)
    """Thresholds tried in the post-processing search."""
    parameters: tuple[str, ...] = (
        "lambda_cls",
        "lambda_box",
        "lambda_iou",
        "lambda_con",
        "threshold",
        "empty_weight",
    )
    """What the training search varies: lambda_cls, lambda_box, lambda_iou, lambda_con, threshold,
    empty_weight, backbone_multiplier, learning_rate.
    """


def lengthened(knobs: DetectorTrainConfig, num_chunks: int) -> DetectorTrainConfig:
    """The same training with as many epochs over so many chunks as `min_steps` asks for."""
    steps_per_epoch = max(1, num_chunks // knobs.batch_size)
    epochs = math.ceil(knobs.min_steps / steps_per_epoch)
    if epochs <= knobs.epochs:
        return knobs
    every = knobs.validate_every_epochs * epochs / knobs.epochs
    return knobs.model_copy(update=rescaled_epochs(knobs, epochs) | {"validate_every_epochs": every})


def rescaled_epochs(knobs: PretrainConfig | DetectorTrainConfig, epochs: float) -> dict[str, float]:
    """Knobs of the same training over another number of epochs: warm-up and gradual unfreezing keep their share of
    it. How often it is validated is the caller's to say.
    """
    names = ["warmup_epochs"]
    if isinstance(knobs, DetectorTrainConfig):
        names += ["unfreeze_start_epoch", "unfreeze_every_epochs"]
    return {"epochs": epochs} | {name: getattr(knobs, name) * epochs / knobs.epochs for name in names}
