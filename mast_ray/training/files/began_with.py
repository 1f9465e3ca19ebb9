"""What a training begins with and is taught by, as origins for the card of the model that it makes."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import replace

from mast_ray.config.errors import DataError
from mast_ray.config.tree import StorageConfig
from mast_ray.storage.stage_folders import read_manifest
from mast_ray.storage.storage import open_beside, open_storage
from mast_ray.training.data.archive_inputs import PUBLIC_WEIGHTS
from mast_ray.training.data.labels import LabelSource
from mast_ray.training.files.model_files import Card, read_card
from mast_ray.training.files.origins import (
    HOWS,
    NOT_RECORDED,
    How,
    Origin,
    Origins,
    licences_of,
    parse_origins,
    short_name,
    together,
)
from mast_ray.training.files.shipped import ENERGY, SHIPPED, SIZES, shipped_model

TAUGHT_BY = "taught_by"  # in the manifests of detections in a pool and of pseudo-labels
OF_PUBLISHER = "that of whoever published this file, which does not say"


def origins_of(
    named: Iterable[tuple[How, str]], settings: StorageConfig, labels: LabelSource | None = None
) -> Origins:
    """Models and files of weights by their places ("" for none), then the teachers of pseudo-labels, each with all that it
    goes back to.
    """
    traced = [one for how, source in named if source for one in _trace(how, source, settings)]
    return together([*traced, *(_teachers(labels, settings) if labels is not None else ())])


def _trace(how: How, source: str, settings: StorageConfig) -> Origins:
    """A model and what it goes back to; of what a teacher goes back to only labels come, no weights."""
    if source.endswith(PUBLIC_WEIGHTS):
        folder, name = open_beside(source, settings)
        sha = hashlib.sha256(folder.read_bytes(name)).hexdigest()
        return (Origin(how, name, sha, OF_PUBLISHER),)
    card = read_card(source, settings)
    name, card = told_by_weights(card, source)
    own = Origin(how, name, card.weights_sha256, card.licence)
    before = card.began_with
    if before is None:
        before = (Origin("start", f"{NOT_RECORDED} ({name} is from before it was)"),)
    if how == "teacher":
        before = tuple(replace(one, how="teacher") for one in before)
    return own, *before


def _teachers(labels: LabelSource, settings: StorageConfig) -> Origins:
    """Whose boxes a training learns beside the experts', as the folder of pseudo-labels says."""
    if labels.name not in ("pseudo", "both", "mixed"):  # control and truth take none of them
        return ()
    made = read_manifest(open_storage(labels.folder, settings))
    if made is not None and TAUGHT_BY in made.counts:
        return parse_origins(made.counts[TAUGHT_BY]) or ()
    sha = made.inputs.get("model", "") if made is not None else ""
    name, card = _shipped(sha) or (f"{NOT_RECORDED} (labels {short_name(labels.folder)})", None)
    return (Origin("teacher", name, sha, card.licence if card is not None else ""),)


def _shipped(weights_sha256: str) -> tuple[str, Card] | None:
    """Name and card of the detector that comes with the package and has these weights."""
    for name in (*SIZES, ENERGY):
        with suppress(DataError):  # missing from this installation
            card = read_card(shipped_model(name))
            if card.weights_sha256 == weights_sha256:
                return f"{SHIPPED}:{name}", card
    return None


def told_by_weights(card: Card, place: str) -> tuple[str, Card]:
    """What a model is called, and its card. A copy of a shipped detector is one wherever it lies; from before cards stated
    licences, it has that of the original.
    """
    known = _shipped(card.weights_sha256)
    if known is None:
        return short_name(place), card
    name, original = known
    if card.began_with is None:
        card = replace(card, began_with=original.began_with, licence=card.licence or original.licence)
    return name, card


def model_text(card: Card, place: str) -> str:
    """What a model folder is, what its weights go back to, and the licences that come with that."""
    name, card = told_by_weights(card, place)
    shape = " ".join(str(card.model[part]) for part in ("name", "size") if part in card.model)
    lines = [
        f"{name}: {card.kind} {shape}, weights {card.weights_sha256[:16]}, "
        f"trained on data {card.data_hash or '-'} by mast_ray {card.code_version}"
    ]
    if card.began_with is None:
        lines.append(f"began with  {NOT_RECORDED}: the card is from before it was; ask who trained it")
    elif not card.began_with:
        lines.append("began with  nothing")
    for one in card.began_with or ():
        sha = f", weights {one.weights_sha256[:16]}" if one.weights_sha256 else ""
        lines.append(f"{HOWS[one.how]:10}  {one.name}{sha}")
    stated = licences_of(name, card.licence, card.began_with)
    lines += [f"licence of {whose}: {text}" for whose, text in stated.items()]
    if not card.licence:
        lines.append(f'{name} itself states no licence: whoever made it can, as "licence" in card.json')
    return "\n".join(lines)
