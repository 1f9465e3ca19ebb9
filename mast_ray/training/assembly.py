"""From config to the parts of a run: objectives with their first weights, parameter
groups, engines, model folders.

A detector named in `model` is built the same way for training and for use, so a card's model
section is all that loading needs.
"""

from __future__ import annotations

import logging
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from mast_ray.boxes.points import FinestLevel, finest_level_of
from mast_ray.config.errors import ConfigError, DataError
from mast_ray.config.stage_knobs import DetectorTrainConfig, PretrainConfig
from mast_ray.config.tree import Config, ModelConfig, StorageConfig
from mast_ray.models.adapters import SidePath
from mast_ray.models.autoencoder import DECODER, SIDE, MaskedAutoencoder, SideShape
from mast_ray.models.build import build_detector
from mast_ray.models.detector import DetectorArchitecture
from mast_ray.models.encoder import PatchEncoder, build_encoder
from mast_ray.models.masking import Masking
from mast_ray.storage.storage import open_storage
from mast_ray.training.data.archive_inputs import PUBLIC_WEIGHTS, refuse_other_size
from mast_ray.training.ema import average_decay
from mast_ray.training.engine import Engine, Objective, OptimizerSettings, choose_precision
from mast_ray.training.engine_choice import choose_engine, make_engine
from mast_ray.training.files.model_files import CARD, Card, read_card, read_model
from mast_ray.training.files.public_weights import load_public
from mast_ray.training.groups import Multipliers, ParameterGroup, parameter_groups
from mast_ray.training.objectives import (
    BaselineObjective,
    ContrastiveSettings,
    DetectionObjective,
    DetectionWeights,
    ReconstructionObjective,
    build_autoencoder,
    detection_objective,
)
from mast_ray.training.schedule import Schedule, Unfreezing, samples_per_worker, unfreezing_of
from mast_ray.training.worker import Worker

log = logging.getLogger("mast.training")

# One for each set of blocks that trains (gradual unfreezing) and each number of box slots; beyond torch's own
# limit of 8 a run would quietly go on uncompiled.
MOST_COMPILED_STEPS = 64
FROM_SCRATCH = (
    "resnet_fpn",
    "fcos",
    "faster_rcnn",
    "detr",
    "yolo26",
    "vit_scratch",
)  # nothing pretrained: everything trains, at full rate


def reconstruction(config: Config) -> ReconstructionObjective:
    """The pretraining objective with fresh weights, seeded."""
    knobs = config.pretrain
    with _seeded(config.seed):
        side = side_shape(config.model) if knobs.side_path else None
        autoencoder = build_autoencoder(config.model.size, config.model.decoder, knobs.target, side)
    masking = Masking(knobs.masking, knobs.time_mask, knobs.frequency_mask, knobs.random_mask)
    return ReconstructionObjective(autoencoder, masking, config.seed)


def detection(
    config: Config, knobs: DetectorTrainConfig, rank: int = 0
) -> DetectionObjective | BaselineObjective:
    """A detection objective with fresh weights, seeded."""
    weights = DetectionWeights(
        knobs.lambda_cls, knobs.lambda_box, knobs.lambda_iou, knobs.lambda_centerness, knobs.lambda_con
    )
    contrastive = ContrastiveSettings(
        knobs.contrastive_temperature,
        knobs.contrastive_positives,
        knobs.contrastive_negatives,
        on_pseudo=config.self_train.contrastive_on_pseudo,
    )
    if not config.model.learns:
        raise ConfigError(
            f"model.name={config.model.name} is no network to train by steps:\n"
            "use shipped:energy as it is, or `mast train --set model.name=pieces`"
        )
    with _seeded(config.seed):
        detector = build_detector(architecture_of(config.model))
    return detection_objective(
        detector,
        weights,
        contrastive,
        config.model.assignment,
        config.model.classification,
        config.seed,
        rank,
    )


def architecture_of(model: ModelConfig) -> DetectorArchitecture:
    """What rebuilds the network of a model section, whose finest level has been settled."""
    if model.finest_level == "auto":
        raise ConfigError(
            "model.finest_level=auto is settled by the labelled boxes when a detector is trained:\n"
            "name one here, e.g. --set model.finest_level=8x4"
        )
    return DetectorArchitecture(
        model.name, model.size, model.adapter, model.pyramid_levels, finest=model.finest_level
    )


def side_shape(model: ModelConfig) -> SideShape | None:
    """What rebuilds the side path of a model section's detector; None: it has none. A finest level that is not settled
    yet changes its strides alone, never its weights.
    """
    settled = {"finest_level": "8x4"} if model.finest_level == "auto" else {}
    architecture = architecture_of(model.model_copy(update=settled))
    if architecture.used_adapter != "hybrid":
        return None
    return SideShape(architecture.channels, architecture.finest, len(architecture.levels))


def with_finest_level(config: Config, durations_frames: np.ndarray, like: str = "") -> Config:
    """The config with `auto` replaced: by the level of the detector to start from, if there is
    one, else by what the durations of the labelled boxes call for.
    """
    model = config.model
    if model.finest_level != "auto":
        return config
    finest: FinestLevel = "8x4"
    if like:
        finest = architecture_of(ModelConfig.model_validate(read_card(like, config.storage).model)).finest
    elif model.can_be_finer:
        finest = finest_level_of(durations_frames)
        log.info("finest level %s frames x bins, from %d labelled boxes", finest, len(durations_frames))
    return config.model_copy(update={"model": model.model_copy(update={"finest_level": finest})})


def network_of(objective: Objective) -> tuple[str, nn.Module]:
    """The part of an objective that is a model folder's content, and the prefix of its parameters' names."""
    name = "autoencoder" if isinstance(objective, ReconstructionObjective) else "detector"
    return f"{name}.", getattr(objective, name)


def network_weights(objective: Objective, weights: dict[str, Tensor]) -> dict[str, Tensor]:
    """A model folder's weights out of an objective's state dict."""
    prefix, _ = network_of(objective)
    return _below(prefix, weights)


def load_detector(folder: str | Path, settings: StorageConfig | None = None) -> tuple[nn.Module, Card]:
    """A detector ready for `detect` (evaluation mode, fp32, CPU) and its card;
    the sha256 is checked first.
    """
    weights, card = read_model(folder, "detector", settings)
    detector = build_detector(architecture_of(ModelConfig.model_validate(card.model)))
    _load(detector, weights, str(folder))
    return detector.eval(), card


def load_autoencoder(
    folder: str | Path, settings: StorageConfig | None = None
) -> tuple[MaskedAutoencoder, Card]:
    """A pretrained autoencoder (evaluation mode) and its card."""
    weights, card = read_model(folder, "autoencoder", settings)
    model = ModelConfig.model_validate(card.model)
    knobs = card.config.get("pretrain", {})
    side = side_shape(model) if any(name.startswith(SIDE) for name in weights) else None
    autoencoder = build_autoencoder(model.size, model.decoder, knobs.get("target", "raw"), side)
    _load(autoencoder, weights, str(folder))
    return autoencoder.eval(), card


def load_encoder(folder: str | Path, settings: StorageConfig | None = None) -> tuple[PatchEncoder, Card]:
    """The encoder of a pretrained autoencoder (evaluation mode), whatever version made the rest of it, and its card."""
    weights, card = read_model(folder, "autoencoder", settings)
    encoder = build_encoder(ModelConfig.model_validate(card.model).size)
    _load(encoder, _below("encoder.", weights), str(folder))
    return encoder.eval(), card


def load_encoder_weights(objective: Objective, source: str, config: Config) -> None:
    """Give an objective's encoder (or whole autoencoder) the weights of a model folder or
    of an AudioMAE file (.pth as published, or safetensors).
    """
    _, network = network_of(objective)
    if not hasattr(network, "encoder"):
        raise ConfigError(
            f"model.name={config.model.name} has no encoder to start from {source}: leave --encoder out"
        )
    if source.endswith(PUBLIC_WEIGHTS):
        load_public(network, source, config)
        return
    storage = open_storage(source, config.storage)
    if storage.stat(CARD) is None:
        raise DataError(f"{source} is not a finished model folder: it has no {CARD}")
    weights, card = read_model(storage, "autoencoder")
    refuse_other_size(card, source, config)
    if isinstance(network, MaskedAutoencoder):
        fresh = network.state_dict()
        theirs = {
            name: value for name, value in weights.items() if name in fresh or not name.startswith(SIDE)
        }
        started = {name: fresh[name] for name in fresh if name.startswith(SIDE)} | theirs
        parts = {"side path": SIDE}
        if card.model.get("decoder") == config.model.decoder:
            parts["decoder"] = DECODER
        for part, prefix in parts.items():
            own = {name: value for name, value in fresh.items() if name.startswith(prefix)}
            if _begins_anew(part, theirs, own, source):
                started |= own
        _load(network, started, source)
        return
    _load(network.encoder, _below("encoder.", weights), source)
    side = _below(f"{SIDE}path.", weights)
    if side and isinstance(network.adapter, SidePath):
        fresh = network.adapter.state_dict()
        if _begins_anew("side path", side, fresh, source):
            return
        _load(network.adapter, fresh | {name: value for name, value in side.items() if name in fresh}, source)
        log.info("encoder and side path start from %s", source)


def _begins_anew(part: str, theirs: dict[str, Tensor], own: dict[str, Tensor], source: str) -> bool:
    """Whether a part beside the encoder is of another shape, as one of another version may be; it is said."""
    shared = own.keys() & theirs.keys()
    is_changed = any(own[name].shape != theirs[name].shape for name in shared)
    if is_changed:
        log.warning("%s: its %s is that of another version of mast_ray: ours begins anew", source, part)
    return is_changed


def _below(prefix: str, weights: dict[str, Tensor]) -> dict[str, Tensor]:
    """Weights whose names begin so, without that beginning."""
    return {name.removeprefix(prefix): value for name, value in weights.items() if name.startswith(prefix)}


def load_detector_weights(objective: Objective, source: str, config: Config) -> None:
    """Start from the weights of another detector of the same shape (stage 1 from the
    teacher, stage 2 from the student).
    """
    weights, _ = read_model(source, "detector", config.storage)
    _load(network_of(objective)[1], weights, source)


def groups_of(
    objective: Objective, knobs: PretrainConfig | DetectorTrainConfig, model: ModelConfig
) -> tuple[ParameterGroup, ...]:
    """Parameter groups of a run; detectors with nothing pretrained train everything
    at the full rate from the start.
    """
    if isinstance(knobs, PretrainConfig) or model.name in FROM_SCRATCH:
        return parameter_groups(objective, weight_decay=knobs.weight_decay, unfreezing=Unfreezing())
    return parameter_groups(
        objective,
        weight_decay=knobs.weight_decay,
        multipliers=Multipliers(
            encoder=knobs.backbone_multiplier,
            adapter=knobs.adapter_multiplier,
            layer_decay=knobs.layer_decay,
        ),
        unfreezing=unfreezing_of(knobs),
    )


def engine_of(
    objective: Objective,
    config: Config,
    knobs: PretrainConfig | DetectorTrainConfig,
    schedule: Schedule,
    worker: Worker,
    section: str,
) -> Engine:
    """The engine of the config around an objective, which is moved to the worker's
    device and compiled when asked for.
    """
    choice = choose_engine(config.cluster.engine, worker.device, worker.world_size)
    precision = choose_precision(config.cluster.precision, worker.device)
    share = samples_per_worker(schedule.batch_size, schedule.accumulate, worker.world_size, section)
    objective.to(worker.device).train()
    objective.num_parts = worker.world_size * schedule.accumulate
    if worker.device.type == "cuda":
        torch.set_float32_matmul_precision("high")
        torch.backends.cudnn.benchmark = True
    compiled, recorded = (
        test(worker.device.type) and not isinstance(objective, BaselineObjective)
        for test in (config.model.compiles_on, config.model.records_on)
    )
    if choice.name == "deepspeed" and config.cluster.zero_stage == 3:
        compiled = recorded = False  # its weights come and go between the layers
    if config.cluster.checkpoint_activations == "on" and not recompute_blocks(objective) and worker.rank == 0:
        log.warning(
            "cluster.checkpoint_activations=on is left aside: model.name=%s has no such blocks",
            config.model.name,
        )
    if compiled:
        torch._dynamo.config.recompile_limit = MOST_COMPILED_STEPS
        objective.compile_step(dynamic=False)  # the feed keeps shapes few
    decay = (
        average_decay(knobs.ema_decay, schedule.batch_size, schedule.num_steps)
        if isinstance(knobs, DetectorTrainConfig)
        else None
    )
    settings = OptimizerSettings((0.9, knobs.beta2), knobs.clip_norm, decay, precision)
    if worker.rank == 0:
        log.info("engine %s (%s), precision %s", choice.name, choice.reason, precision)
    return make_engine(
        choice.name,
        objective,
        groups_of(objective, knobs, config.model),
        settings,
        device=worker.device,
        num_processes=worker.world_size,
        samples_per_worker=share,
        accumulate=schedule.accumulate,
        zero_stage=config.cluster.zero_stage,
        offload=config.cluster.offload,
        compiled=compiled,
        recorded=recorded,
    )


def recompute_blocks(objective: nn.Module) -> bool:
    """Let the transformer blocks of an objective be computed again in the backward pass; False: it has none."""
    stacks = [part for part in objective.modules() if hasattr(part, "recomputes")]
    for stack in stacks:
        stack.recomputes = True  # type: ignore[assignment]
    return bool(stacks)


def _load(module: nn.Module, weights: dict[str, Tensor], source: str) -> None:
    own = module.state_dict()
    missing, foreign = sorted(own.keys() - weights.keys()), sorted(weights.keys() - own.keys())
    misshaped = sorted(name for name in own.keys() & weights.keys() if own[name].shape != weights[name].shape)
    if missing or foreign or misshaped:
        first = ", ".join((missing + foreign + misshaped)[:3])
        raise ConfigError(
            f"{source} does not fit the model: {len(missing)} names missing, {len(foreign)} unknown, "
            f"{len(misshaped)} of another shape ({first})\nuse the model settings in its card.json; "
            "if they are the same, the version of mast_ray that wrote it (CHANGELOG.md says which networks changed shape)"
        )
    module.load_state_dict(weights)


class _seeded:
    """Fresh weights depend on the seed alone, and leave the global generator as it was."""

    def __init__(self, seed: int) -> None:
        self._fork = torch.random.fork_rng(devices=[])
        self._seed = seed

    def __enter__(self) -> None:
        self._fork.__enter__()
        torch.manual_seed(self._seed)

    def __exit__(self, *exception: object) -> None:
        self._fork.__exit__(*exception)  # type: ignore[arg-type]
