"""The whole tree of knobs: frozen, strict, typed; units in names, the paper's value in the description.

One class per kind of thing. The paper's three hyper-parameter tables are instances: one of
PretrainConfig, three of DetectorTrainConfig (supervised, stage 1, stage 2). Defaults are the `field`
recipe; recipes.py derives the others.
"""

from __future__ import annotations

import unicodedata
import warnings
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field

from mast_ray.config.stage_knobs import (
    AugmentConfig,
    DetectorTrainConfig,
    PretrainConfig,
    Section,
    SelfTrainConfig,
    Share,
    TuneConfig,
    detector_knobs,
)


def _on_or_off(value: Any) -> Any:
    """YAML reads a bare on as true, and configs and cards from before `auto` hold booleans."""
    return {True: "on", False: "off"}[value] if isinstance(value, bool) else value


def _composed(names: tuple[str, ...]) -> tuple[str, ...]:
    """As sites of recordings are written: macOS takes accents apart, others do not."""
    return tuple(unicodedata.normalize("NFC", name) for name in names)


Sites = Annotated[tuple[str, ...], AfterValidator(_composed)]


class StorageConfig(Section):
    endpoint_url: str = ""
    """S3 endpoint, e.g. http://127.0.0.1:8333; empty: the provider's own. Never read from data files."""
    region: str = ""
    """S3 region; empty: from the environment. Credentials come from the environment, a
    profile or a role, never from here.
    """
    max_attempts: int = Field(10, ge=1)
    """Attempts per request before it counts as failed."""
    request_timeout_s: float = Field(30.0, gt=0)
    """Seconds after which one request is given up and tried again."""
    io_deadline_s: float = Field(300.0, gt=0)
    """Seconds without any successful request after which the job stops with exit code 75."""


class AudioConfig(Section):
    timezone: str = ""
    """IANA zone of clock times without an offset, and of local hours where a recorder writes UTC, e.g.
    Asia/Makassar; empty: the former stay unknown.
    """
    site_from: Literal["auto", "folder", "prefix", "none"] = "auto"
    """Where a site's name comes from when no table names it: parent folder, file-name
    prefix, or whichever is informative.
    """
    channel: Literal["mean", "first"] = "mean"
    """How several channels become one; where they cancel each other in their mean, a warning says so."""
    min_sample_rate_hz: int = Field(8_000, ge=1)
    """Recordings below this rate are rejected (RATE_TOO_LOW)."""
    max_hours: float = Field(200.0, gt=0)
    """Longest recording accepted; longer ones are rejected as possible decompression bombs."""
    min_seconds: float = Field(1.0, ge=0)
    """Shortest recording accepted."""
    block_s: float = Field(60.0, gt=0)
    """Seconds decoded at a time; bounds memory, changes no result."""


class SpectrogramConfig(Section):
    storage: Literal["uint8", "float16"] = "uint8"
    """How log-mel values are stored: one byte with scale and offset per recording, or two bytes."""
    tail: Literal["real", "zeros"] = "real"
    """Last two frames of a chunk: real audio (field) or zeros before
    normalisation as AudioMAE pads (paper).
    """
    short_recordings: Literal["pad", "drop"] = "pad"
    """Recordings under half a chunk (5.12 s): one padded chunk (field) or none (paper)."""
    divisor: float = Field(1.0, gt=0)
    """Normalised value is (S - mean) / (std + eps) / divisor; 2 when starting
    from AudioMAE's public weights.
    """
    background: Literal["none", "median"] = "median"
    """What is taken off the log-mel before it is normalised: nothing (paper), or the median of the recording
    (of every hour of one longer than two) in every bin.
    """
    min_remnant_s: float = Field(0.1, ge=0)
    """A box cut by a chunk border is dropped when less than this remains (paper: 100 ms)."""


class PrepareConfig(Section):
    recordings_per_unit: int = Field(64, ge=1)
    """Most recordings in one unit of work."""
    bytes_per_unit: int = Field(2_000_000_000, ge=1)
    """Most bytes of audio in one unit of work."""
    max_attempts: int = Field(3, ge=1)
    """Attempts at a recording that kills or hangs its process before it is quarantined."""
    recording_timeout_s: float = Field(900.0, gt=0)
    """Seconds without progress after which a recording counts as hung."""
    processes: int = Field(1, ge=1)
    """Processes that share the work with `--runner here`; with Ray the cluster decides."""
    rows_per_group: int = Field(64, ge=1)
    """Segments (5.12 s) per Parquet row group: the unit of a random read."""


class LabelsConfig(Section):
    include: tuple[str, ...] = ()
    """Only labels of these names or patterns (Turdus*) are calls, whatever their case; empty: all that are not left
    out. What is not a call is background.
    """
    exclude: tuple[str, ...] = ()
    """Labels of these names or patterns are no calls."""
    uncertain: tuple[str, ...] = ()
    """Labels of these names or patterns are neither calls nor background, in training and in evaluation."""
    no_animal: Literal["leave_out", "keep"] = "leave_out"
    """Names that mean no animal (noise, rain, human, ...) are left out and codes for unknown are uncertain, or every
    label is a call (paper). labels.include names calls whatever they mean.
    """
    listened_for: tuple[str, ...] = ()
    """Names or patterns of the labels that the annotators marked, where they left all others unmarked; empty: they
    marked every animal. Unless labels.include asks for no more than these, what lies outside their boxes is neither call
    nor background.
    """
    time_only: Literal["ignore", "teach"] = "ignore"
    """Labels without frequencies, in training: neither call nor background, or calls that teach time and no band.
    They are scored in time either way.
    """


class SplitConfig(Section):
    unit: Literal["auto", "recording", "group", "day", "site", "block", "chunk"] = "auto"
    """What is dealt out: recordings, groups of them (a column of --table: one bird on four microphones), whole local days,
    whole sites, guarded time blocks of long recordings, or random chunks (paper; leaks, and says so). Recordings of a
    group stay together by recording, day and site too.
    """
    train: Share = 0.70
    """Share of annotated material for training (paper: 0.70)."""
    val: Share = 0.15
    """Share for validation and threshold tuning (paper: 0.15); the rest is the in-domain test."""
    block_s: float = Field(600.0, gt=0)
    """Length of a time block when recordings are long."""
    guard_s: float = Field(10.24, ge=0)
    """Gap left between blocks of different splits."""
    ood_sites: Sites = ()
    """Sites held out whole as site_ood; BIRDeep: AM4, AM15."""
    ood_dates: tuple[str, ...] = ()
    """Local dates (YYYY-MM-DD) held out at seen sites as temporal_ood."""
    ood_dev_sites: Sites = ()
    """Sites for model selection under shift, disjoint from ood_sites."""
    ood_test_dates: tuple[str, ...] = ()
    """Local dates of ood_sites that are tested; empty: all that is annotated there."""
    ood_pool: Literal["none", "untested"] = "none"
    """untested: recordings of ood_sites that are not tested join the pool, without labels; tested ones never do."""
    ood_pool_sites: Sites = ()
    """Those of ood_sites that ood_pool=untested applies to; empty: all of them."""
    transductive: bool = False
    """True: audio of held-out recordings may enter the pool, without labels (the paper's way)."""
    budget_chunks: int = Field(0, ge=0)
    """Use only this many labelled training chunks; 0: all."""
    budget_strategy: Literal["random", "time_balanced", "sequential"] = "random"
    """How the label budget is drawn."""


class ModelConfig(Section):
    name: Literal[
        "mast", "resnet_fpn", "fcos", "faster_rcnn", "detr", "yolo26", "audiomae", "vit_scratch", "energy", "pieces",
    ] = "mast"  # fmt: skip
    """Detector: MAST or a baseline behind the same interface; resnet_fpn has MAST's head and losses on a
    ResNet, fcos is torchvision's own. Without a network: energy boxes what stands out, pieces puts it together as the
    experts' boxes say, which takes a minute to learn.
    """
    size: Literal["tiny", "compact", "small", "base", "large", "huge"] = "base"
    """Encoder size: ViT-B/16 in the paper (86 M parameters); compact is made to be shipped (24 MB in
    float16); large and huge are ViT-L (303 M) and ViT-H (630 M).
    """
    adapter: Literal["conv", "anisotropic", "upsampling", "hybrid"] = "hybrid"
    """Adapter between tokens and pyramid: strides 16x16, 16x4, 8x4 (paper: upsampling); hybrid joins upsampling
    with a residual network from the spectrogram, level by level.
    """
    finest_level: Literal["8x4", "4x4", "2x4", "auto"] = "8x4"
    """Frames x bins per cell of the finest level (paper: 8x4), with upsampling, hybrid and resnet_fpn; auto:
    a third of the short calls (20th percentile) among the labelled boxes, written into the model card.
    """
    pyramid_levels: int = Field(4, ge=3, le=4)
    """Levels of the feature pyramid from 8x4 on; a finer finest level adds levels below, up to five in all."""
    assignment: Literal["atss", "centre"] = "atss"
    """Which points learn which box."""
    classification: Literal["quality_focal", "focal"] = "quality_focal"
    """Classification loss."""
    decoder: Literal["local", "global"] = "global"
    """Decoder of the masked autoencoder: 16 shifted-window blocks or 8 global blocks."""
    compile: Annotated[Literal["auto", "on", "graph", "off"], BeforeValidator(_on_or_off)] = "auto"
    """torch.compile the training step (and replay it as one CUDA graph), and inference; auto: training on GPUs,
    inference where it is long enough to pay; graph: the step is replayed without having been compiled (no minutes
    of waiting, for short trainings).
    """

    @property
    def learns(self) -> bool:
        """Whether there is a network to train."""
        return self.name not in ("energy", "pieces")

    def compiles_on(self, device_type: str) -> bool:
        """Whether training compiles its step on a device of this type (`cuda`, `cpu`)."""
        return self.compile == "on" or (self.compile == "auto" and device_type == "cuda")

    def records_on(self, device_type: str) -> bool:
        """Whether training replays its step as a CUDA graph, which wants fixed shapes."""
        return self.compiles_on(device_type) or (self.compile == "graph" and device_type == "cuda")

    @property
    def can_be_finer(self) -> bool:
        """Whether the network has a finest level to choose."""
        return self.name == "resnet_fpn" or (self.name == "mast" and self.adapter in ("upsampling", "hybrid"))


# cluster.validate hides an old method of pydantic's that nobody here calls
warnings.filterwarnings("ignore", message='Field name "validate" in "ClusterConfig"')


class ClusterConfig(Section):
    num_workers: int = Field(1, ge=1)
    """Training processes, one per GPU (or CPU process)."""
    min_workers: int = Field(0, ge=0)
    """Go on with as few training processes as this when nodes are lost, and back up when
    they return; 0: always num_workers.
    """
    use_gpu: Literal["auto", "yes", "no"] = "auto"
    """Train and infer on GPUs when there are any."""
    cpus_per_worker: float = Field(1.0, gt=0)
    """CPU cores reserved per training or inference worker."""
    engine: Literal["auto", "torch", "deepspeed"] = "auto"
    """auto: DeepSpeed on two or more GPU workers, plain torch on one and on CPUs; the log says why."""
    zero_stage: int = Field(1, ge=0, le=3)
    """What DeepSpeed shards over the workers: 0 nothing, 1 optimizer state, 2 gradients too, 3 weights too
    (3 runs without model.compile).
    """
    offload: Literal["none", "optimizer"] = "none"
    """optimizer: DeepSpeed (zero_stage 1 to 3) keeps Adam's state and the master weights in host memory."""
    checkpoint_activations: Annotated[Literal["on", "off"], BeforeValidator(_on_or_off)] = "off"
    """on: transformer blocks are computed again in the backward pass instead of kept: about a third more arithmetic
    for a fraction of the memory. Changes no result, and may change between a stop and a resume.
    """
    precision: Literal["auto", "fp32", "bf16", "fp16"] = "auto"
    """Arithmetic of the forward and backward pass; auto: bf16 on GPU, fp32 on CPU."""
    max_failures: int = Field(8, ge=0)
    """Worker failures survived before a training job gives up."""
    checkpoint_every_steps: int = Field(0, ge=0)
    """Checkpoint every so many steps; 0: at the end of each epoch, of several where they are short."""
    reader_threads: int = Field(0, ge=0)
    """Threads reading tables per worker; 0: cores available, at most 8."""
    lanes: int = Field(32, ge=1)
    """Fixed lanes of the global sample order, the same for any number of workers."""
    feed: Literal["auto", "reader", "ray_data"] = "auto"
    """Where training batches come from. reader: every worker reads the archive itself, in an order that is the same to
    the bit for any number of workers. ray_data: Ray Data reads it over the cluster into the object store, where it stays
    across epochs if it fits, and deals it out. auto: ray_data for the pool (pretraining, pseudo-labels) on several GPU
    workers or in a bucket, else reader; the log says why, and a run that was stopped goes on as it began.
    """
    validate: Literal["auto", "beside", "inline"] = "auto"  # type: ignore[assignment]
    """Who scores weights during training on Ray. inline: the workers stop and do it. beside: a process on a GPU that no
    worker has, or on a tenth of one that it shares with a worker, while training goes on; figures come when they are
    done, and the best weights are chosen from the same figures. auto: beside on a GPU to spare, inline otherwise.
    """


class EvaluateConfig(Section):
    iou: float = Field(0.5, gt=0, lt=1)
    """Overlap from which a detection counts as right (paper: 0.5)."""
    nms_overlap: Share = 0.5
    """Class-agnostic non-maximum suppression."""
    post: Literal["card", "none"] = "card"
    """Post-processing that `mast tune` left in the model's card (score weight, smallest box, suppression, threshold), and doubt
    about boxes within better ones where training chose it: applied wherever the model is used, or not (paper).
    """
    score_floor: Share = 0.01
    """Detections under this score are not stored; thresholds are searched later without new inference."""
    max_detections: int = Field(300, ge=1)
    """Detections kept per chunk."""
    average_precision: Literal["area", "11_point", "101_point"] = "area"
    """Headline AP; the paper's is 11_point."""
    bootstrap: int = Field(1000, ge=10)
    """Resamples of recordings for 95 % intervals."""
    batch_size: int = Field(64, ge=1)
    """Chunks per inference batch."""


class DetectConfig(Section):
    recordings_per_unit: int = Field(32, ge=1)
    """Most recordings in one unit of work."""
    hours_per_unit: float = Field(4.0, gt=0)
    """Most hours of audio in one unit of work."""
    batch_size: int = Field(0, ge=0)
    """Windows per inference batch; 0: chosen for the device."""
    decode_threads: int = Field(0, ge=0)
    """Decoding threads feeding one detector; 0: the cores there are."""
    workers_per_gpu: int = Field(0, ge=0, le=8)
    """Processes that share a GPU, each with its own decoding threads; 0: as many as its cores can feed."""
    embeddings: Literal["none", "projection", "neck", "encoder"] = "none"
    """Box embedding stored beside each detection."""
    song_gap_s: float = Field(0.0, ge=0)
    """Join calls of one song separated by at most this gap; 0: off."""
    stall_timeout_s: float = Field(900.0, gt=0)
    """Seconds without progress after which a unit is given up and tried again."""


class Config(Section):
    """Everything a run depends on, except its inputs and outputs."""

    recipe: Literal["field", "paper", "tiny", "birdeep"] = "field"
    """The recipe this config was derived from."""
    seed: int = Field(0, ge=0)
    """Seed of every random draw."""
    storage: StorageConfig = StorageConfig()
    """Local and S3 storage."""
    audio: AudioConfig = AudioConfig()
    """How recordings are read."""
    spectrogram: SpectrogramConfig = SpectrogramConfig()
    """Log-mel chunks."""
    prepare: PrepareConfig = PrepareConfig()
    """From archive to tables."""
    labels: LabelsConfig = LabelsConfig()
    """What an annotation means."""
    split: SplitConfig = SplitConfig()
    """Who trains, who tests."""
    augment: AugmentConfig = AugmentConfig()
    """Augmentation of spectrograms and boxes together."""
    model: ModelConfig = ModelConfig()
    """Architecture."""
    pretrain: PretrainConfig = PretrainConfig()
    """Masked pretraining."""
    detector: DetectorTrainConfig = detector_knobs()
    """Supervised detector training."""
    self_train: SelfTrainConfig = SelfTrainConfig()
    """Pseudo-labels and the two-stage curriculum."""
    tune: TuneConfig = TuneConfig()
    """Search over thresholds and loss weights."""
    evaluate: EvaluateConfig = EvaluateConfig()
    """Scoring and inference on chunks."""
    detect: DetectConfig = DetectConfig()
    """Sweeps over archives."""
    cluster: ClusterConfig = ClusterConfig()
    """Workers, engines, precision."""
