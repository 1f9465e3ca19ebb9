"""Model folders: weights.safetensors and card.json, checked before use; and the
best weights of a run in progress.

A card says what the weights are (kind, model settings), what they expect (normalisation), how to use
them (score threshold), where they come from (data hash, config, code version, what they began with) and under
which licence its maker gives them away. Loading compares the sha256 of the very bytes it parses.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from pydantic import ValidationError
from safetensors import SafetensorError
from safetensors.torch import load as tensors_from_bytes
from safetensors.torch import save as tensors_to_bytes
from torch import Tensor

from mast_ray import __version__
from mast_ray.config.errors import ConfigError, DataError
from mast_ray.config.tree import ModelConfig, StorageConfig
from mast_ray.spectrogram.normalisation import Normalisation
from mast_ray.storage.outputs import remove_folder
from mast_ray.storage.storage import Storage, open_storage
from mast_ray.training.files.checkpoints import manifest_text, parse_manifest
from mast_ray.training.files.origins import Origins, parse_origins
from mast_ray.training.files.post_processing import PostProcessing

WEIGHTS, CARD = "weights.safetensors", "card.json"
CARD_VERSION = 1
# what `mast self-train` and `mast run` leave
MODELS_OF_A_RUN = ("model", "self_trained/model", "detector", "pieces")
_BEST = re.compile(r"^best-(\d{10})$")


@dataclass(frozen=True)
class Card:
    """What a model folder says about itself."""

    kind: Literal["autoencoder", "detector"]
    model: dict[str, Any]  # config.model: what rebuilds the network
    normalisation: dict[str, Any]
    tail: Literal["real", "zeros"] = "real"  # how the last two frames of a chunk are made
    score_threshold: float | None = None  # tuned on validation; detectors only
    data_hash: str = ""
    config: dict[str, Any] = field(default_factory=dict)
    metrics: dict[str, float] = field(default_factory=dict)
    calibration: dict[str, Any] | None = None  # score to probability, by `mast calibrate`
    post: dict[str, Any] | None = None  # what `mast tune` found to do with boxes (files/post_processing.py)
    doubts_nested: bool = (
        False  # boxes within better ones (boxes/nesting.py); as `post` says where there is one
    )
    began_with: Origins | None = None  # None: not recorded, by an earlier version
    licence: str = ""  # as its maker states it; what comes with `began_with` holds besides
    code_version: str = __version__
    weights_sha256: str = ""
    card_version: int = CARD_VERSION

    def normaliser(self) -> Normalisation:
        return Normalisation.from_dict(self.normalisation)


def write_model(storage: Storage, weights: dict[str, Tensor], card: Card) -> Card:
    """Write weights, then the card that makes them valid; returns the card with its sha256."""
    data = tensors_to_bytes({name: value.contiguous() for name, value in weights.items()}, {"format": "pt"})
    card = replace(card, weights_sha256=hashlib.sha256(data).hexdigest())
    storage.delete(CARD)  # an older card must not vouch for newer weights
    storage.write_atomic(WEIGHTS, data)
    write_card(storage, card)
    return card


def write_card(storage: Storage, card: Card) -> None:
    """Replace the card alone: a new threshold or a calibration."""
    storage.write_atomic(CARD, json.dumps(asdict(card), indent=1, sort_keys=True).encode())


def read_card(folder: str | Path | Storage, settings: StorageConfig | None = None) -> Card:
    """The card of a model folder."""
    storage = folder if not isinstance(folder, str | Path) else open_storage(folder, settings)
    if storage.stat(CARD) is None:
        inside = [name for name in MODELS_OF_A_RUN if storage.stat(f"{name}/{CARD}") is not None]
        remedy = (
            f"give {storage.url}/{inside[0]}" if inside else "train it to the end, or copy the whole folder"
        )
        raise DataError(f"{storage.url} is not a finished model folder, it has no {CARD}:\n{remedy}")
    try:
        values = json.loads(storage.read_bytes(CARD))
        version = values["card_version"]
        if version != CARD_VERSION:
            raise DataError(
                f"{storage.url}/{CARD} has version {version}, this mast_ray reads {CARD_VERSION}:\n"
                "use the mast_ray that wrote the model, or a newer one"
            )
        card = Card(**values | {"began_with": parse_origins(values.get("began_with"))})
        fault = fault_of(card)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        fault = f"{type(error).__name__}: {str(error)[:120]}"
    if fault:
        raise DataError(f"{storage.url}/{CARD} cannot be used ({fault}):\ncopy the model folder again")
    return card


def fault_of(card: Card) -> str:
    """What makes a card unusable, in a few words; empty for a sound one."""
    if card.kind not in ("autoencoder", "detector"):
        return f"kind {str(card.kind)[:40]!r} is neither autoencoder nor detector"
    if card.tail not in ("real", "zeros"):
        return f"tail {str(card.tail)[:40]!r} is neither real nor zeros"
    own = card.normaliser()
    if (
        not all(map(math.isfinite, (own.mean, own.std, own.divisor, own.eps)))
        or own.std <= 0
        or own.divisor <= 0
    ):
        return f"normalisation with mean {own.mean}, std {own.std}, divisor {own.divisor}"
    if own.background not in ("none", "median"):
        return f"normalisation with background {str(own.background)[:40]!r}, neither none nor median"
    threshold = card.score_threshold
    if threshold is not None and not (isinstance(threshold, int | float) and 0 <= threshold <= 1):
        return f"score_threshold {threshold!r} is no number from 0 to 1"  # NaN is not either
    if not isinstance(card.doubts_nested, bool):
        return f"doubts_nested {card.doubts_nested!r} is neither true nor false"
    if not isinstance(card.licence, str):
        return f"licence {str(card.licence)[:40]!r} is no text"
    try:
        if card.post is not None:
            PostProcessing.from_dict(card.post)
    except TypeError as error:
        return f"post-processing that is not understood: {error}"
    try:
        ModelConfig.model_validate(card.model)
    except ValidationError as error:
        first = error.errors()[0]
        return f"model.{'.'.join(map(str, first['loc']))}: {first['msg']}"
    return ""


def refuse_other_kind(card: Card, kind: Literal["autoencoder", "detector"], where: str) -> None:
    if card.kind != kind:
        verb = {"autoencoder": "mast pretrain", "detector": "mast train"}[kind]
        raise ConfigError(f"{where} holds {card.kind} weights, not {kind}: give a folder written by `{verb}`")


def refuse_card_alone(storage: Storage) -> None:
    if storage.stat(WEIGHTS) is None:
        raise DataError(f"{storage.url} has no {WEIGHTS}, only its card: copy the whole model folder again")


def read_model(
    folder: str | Path | Storage,
    kind: Literal["autoencoder", "detector"],
    settings: StorageConfig | None = None,
) -> tuple[dict[str, Tensor], Card]:
    """Weights and card of a model folder of the wanted kind; refuses weights
    that are not those of the card.
    """
    storage = folder if not isinstance(folder, str | Path) else open_storage(folder, settings)
    card = read_card(storage)
    refuse_other_kind(card, kind, storage.url)
    refuse_card_alone(storage)
    data = storage.read_bytes(WEIGHTS)
    if hashlib.sha256(data).hexdigest() != card.weights_sha256:
        raise DataError(
            f"{storage.url}/{WEIGHTS} does not match the sha256 in its card: copy the model folder again"
        )
    try:
        weights = tensors_from_bytes(data)
    except SafetensorError as error:
        raise DataError(
            f"{storage.url}/{WEIGHTS} is not a safetensors file ({error}): copy the model folder again"
        ) from error
    broken = [
        name for name, value in weights.items() if value.is_floating_point() and not value.isfinite().all()
    ]
    if broken:
        raise DataError(
            f"{storage.url}/{WEIGHTS} holds NaN or infinity in {len(broken)} of {len(weights)} tensors ({broken[0]}):\n"
            "its training diverged; use another model, or train it again"
        )
    return weights, card


class BestWeights:
    """The best weights of a run in progress, one folder per step, so that any kept
    checkpoint finds the ones it names.
    """

    def __init__(self, storage: Storage) -> None:
        self.storage = storage

    def write(self, step: int, weights: dict[str, Tensor]) -> None:
        data = tensors_to_bytes({name: value.contiguous() for name, value in weights.items()})
        entry = {"num_bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
        self.storage.write_atomic(f"{_name(step)}/{WEIGHTS}", data)
        self.storage.write_atomic(f"{_name(step)}/manifest.json", manifest_text({WEIGHTS: entry}))

    def read(self, step: int) -> dict[str, Tensor]:
        """Weights of a step; DataError when they are missing or damaged."""
        try:
            entry = parse_manifest(self.storage.read_bytes(f"{_name(step)}/manifest.json"))[WEIGHTS]
            data = self.storage.read_bytes(f"{_name(step)}/{WEIGHTS}")
        except (FileNotFoundError, KeyError) as error:
            raise DataError(f"the best weights (step {step}) are missing from {self.storage.url}") from error
        if hashlib.sha256(data).hexdigest() != entry["sha256"]:
            raise DataError(f"the best weights (step {step}) in {self.storage.url} are damaged")
        return tensors_from_bytes(data)

    def keep_only(self, steps: set[int]) -> None:
        """Remove the weights of all other steps before the newest of these; a
        newer one may be in the writing.
        """
        folders = {entry.key.split("/", 1)[0] for entry in self.storage.list()}
        stored = {int(match[1]) for name in folders if (match := _BEST.match(name))}
        for step in sorted(step for step in stored - steps if step < max(steps)):
            remove_folder(self.storage.at(_name(step)))


def _name(step: int) -> str:
    return f"best-{step:010d}"
