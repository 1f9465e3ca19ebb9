"""How a run reads an archive: with the statistics of the model it uses or starts from, else with the archive's own.

Weights mean something only under the normalisation they were trained with, so that travels with them, in their
card: any model reads any prepared archive, and nothing is prepared again.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import NamedTuple

from mast_ray.config.errors import ConfigError, DataError
from mast_ray.config.tree import Config, ModelConfig, StorageConfig
from mast_ray.spectrogram.chunking import Tail
from mast_ray.spectrogram.normalisation import Normalisation
from mast_ray.storage.storage import open_beside, open_storage
from mast_ray.tables.backgrounds import with_background
from mast_ray.tables.prepared import Prepared
from mast_ray.training.files.model_files import Card, read_card, refuse_card_alone, refuse_other_kind

log = logging.getLogger("mast.training")

PUBLIC_WEIGHTS = (".safetensors", ".pth", ".pt")  # files without a card: AudioMAE's


class ArchiveInputs(NamedTuple):
    """An archive as its chunks are to be read, and what makes a model's input of them."""

    prepared: Prepared
    normalisation: Normalisation
    tail: Tail


def weights_named(source: str, settings: StorageConfig) -> str:
    """What tells the weights that a training starts from from others; public ones are named by their place."""
    if not source or source.endswith(PUBLIC_WEIGHTS):
        return source
    return read_card(source, settings).weights_sha256


def start_card(config: Config, *starts: str) -> Card | None:
    """The card of the first model folder named; None where a run starts from nothing or from public weights."""
    folders = [start for start in starts if start and not start.endswith(PUBLIC_WEIGHTS)]
    return read_card(folders[0], config.storage) if folders else None


def archive_inputs(
    prepared: Prepared, config: Config, card: Card | None, where: str = "", say: bool = True
) -> ArchiveInputs:
    """How a training reads its archive: as `card` says, the model it starts from (in folder `where`), or as the
    settings say with the statistics of the archive itself.
    """
    spectrogram = config.spectrogram
    if card is None:
        prepared = with_background(prepared, spectrogram.background)
        return ArchiveInputs(prepared, prepared.normalisation(spectrogram.divisor), spectrogram.tail)
    prepared = read_as(prepared, card, where, say)
    if say:
        _say_left_aside(config, card, where)
    return ArchiveInputs(prepared, card.normaliser(), card.tail)


def _say_left_aside(config: Config, card: Card, where: str) -> None:
    """Which settings of the spectrogram do not hold, because a model was trained with others."""
    takes = card.normaliser()
    wanted = {"background": takes.background, "divisor": takes.divisor, "tail": card.tail}
    for name, value in wanted.items():
        own = getattr(config.spectrogram, name)
        if own != value:
            log.warning(
                "spectrogram.%s=%s is left aside: %s was trained with %s",
                name, own, where or "the model", value,
            )  # fmt: skip


def read_as(prepared: Prepared, card: Card, where: str = "the model", say: bool = True) -> Prepared:
    """The archive with or without backgrounds as the model takes it; other statistics are said in a line."""
    takes = card.normaliser()
    prepared = with_background(prepared, takes.background)
    own = prepared.normalisation(takes.divisor)
    if say and own != takes:
        log.info(
            "%s is read as %s was trained: mean %.4f, std %.4f%s (its own: %.4f, %.4f)",
            prepared.storage.url, where, takes.mean, takes.std,
            " above the median of every recording and bin" if takes.background == "median" else "",
            own.mean, own.std,
        )  # fmt: skip
    return prepared


def with_model_of(config: Config, card: Card, where: str) -> Config:
    """The same, and what of the settings is left aside is said in a line."""
    known = config.model.model_dump(mode="json", exclude={"compile"})
    taken = as_trained(config, card)
    new = taken.model.model_dump(mode="json", exclude={"compile"})
    changed = [f"model.{name}={new[name]}" for name in new if new[name] != known[name]]
    if changed:
        log.info("%s as in %s", ", ".join(changed), where)
    _say_left_aside(config, card, where)
    return taken


def refuse_other_shape(config: Config, card: Card, asked: Iterable[str], where: str) -> None:
    """Settings of the network that somebody `asked` for (`model.adapter`) and that a model to start from decides otherwise."""
    has = ModelConfig.model_validate(card.model)
    if not (has.learns and config.model.learns):  # nothing goes on from its weights
        return
    taken = as_trained(config, card)
    for name in (key.removeprefix("model.") for key in asked if key.startswith("model.")):
        if getattr(taken.model, name) != getattr(config.model, name):
            raise ConfigError(
                f"model.{name}={getattr(config.model, name)} is not what {where} has ({getattr(has, name)}), and the training goes on from that:\n"
                "leave it out, or train a network of your own with --start scratch"
            )


def as_trained(config: Config, card: Card) -> Config:
    """The config with the architecture and input conventions of a model."""
    takes = card.normaliser()
    model = ModelConfig.model_validate(card.model | {"compile": config.model.compile})
    spectrogram = config.spectrogram.model_copy(
        update={"divisor": takes.divisor, "tail": card.tail, "background": takes.background}
    )
    return config.model_copy(update={"model": model, "spectrogram": spectrogram})


def of_student(config: Config, card: Card, where: str) -> Config:
    """The config that students of a model are trained by: with its architecture and input conventions, or with those of
    the settings where the model was never trained itself.
    """
    if ModelConfig.model_validate(card.model).learns:
        return as_trained(config, card)
    if config.self_train.student != "fresh":
        raise ConfigError(
            f"{where} was never trained, so that no student can go on from its weights:\n"
            "--set self_train.student=fresh trains one from nothing on what it finds"
        )
    return config


def refuse_unfit_starts(config: Config, encoder: str, *detectors: str) -> None:
    """What a training cannot begin with, told before it has written anything; "" for none."""
    for source in filter(None, detectors):
        folder = open_storage(source, config.storage)
        refuse_other_kind(read_card(folder), "detector", folder.url)
        refuse_card_alone(folder)
    if encoder.endswith(PUBLIC_WEIGHTS):
        refuse_other_divisor(encoder, config)
    refuse_no_encoder(encoder, config)


def refuse_other_divisor(source: str, config: Config) -> None:
    if config.spectrogram.divisor != 2.0:
        raise ConfigError(
            f"{source} looks like AudioMAE's public weights, which expect division by 2 std: "
            "add --set spectrogram.divisor=2"
        )


def refuse_no_encoder(source: str, config: Config) -> None:
    """What trainings are to start from and cannot, told before the first of them."""
    if not source:
        return
    if source.endswith(PUBLIC_WEIGHTS):
        storage, name = open_beside(source, config.storage)
        if storage.stat(name) is None:
            raise DataError(f"{source} is not there: give the file of AudioMAE's public weights")
        return
    folder = open_storage(source, config.storage)
    card = read_card(folder)
    refuse_other_kind(card, "autoencoder", folder.url)
    refuse_card_alone(folder)
    refuse_other_size(card, source, config)


def refuse_other_size(card: Card, source: str, config: Config) -> None:
    size = card.model.get("size")
    if size != config.model.size:
        raise ConfigError(
            f"{source} is of size {size}, model.size={config.model.size}: use --set model.size={size}"
        )
