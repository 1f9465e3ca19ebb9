"""`mast classify`: names for the boxes of a detector, from the labels of an archive's training boxes.

MODEL/names.safetensors, names.json     the classifier, and how it was chosen and did on boxes it was not trained on

Boxes are embedded by the detector itself, in the chunks of the train split; those of the split that chooses between
models choose between classifiers. No test split is looked at.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import pyarrow as pa
import pyarrow.compute as pc

from mast_ray.config.errors import ConfigError, DataError
from mast_ray.config.tree import Config
from mast_ray.evaluation.figure_tables import interval_text, without_nan
from mast_ray.evaluation.naming.fitting import RARE, FittedNames, fit_names
from mast_ray.evaluation.naming.names import Examples
from mast_ray.evaluation.split_truth import scored_splits, selection_split
from mast_ray.inference.embeddings import embed_boxes, load_embedder
from mast_ray.inference.naming import examples_of
from mast_ray.models.detector import EmbeddingName
from mast_ray.storage.stage_folders import MANIFEST, read_manifest
from mast_ray.storage.storage import Storage, open_storage
from mast_ray.tables.prepared import Prepared, data_hash, open_prepared
from mast_ray.training.data.archive_inputs import read_as
from mast_ray.training.files.model_files import CARD, WEIGHTS, Card, read_card
from mast_ray.training.files.names_files import NAMES, write_names

TRIED: tuple[EmbeddingName, ...] = ("neck", "encoder")
SHOWN_RARE = 12


@dataclass(frozen=True)
class ClassifyKnobs:
    """How names are fitted."""

    embedding: EmbeddingName | Literal["auto"] = "auto"  # auto: whichever names held-out boxes best
    unknown_below: float = 0.5
    precision: float | None = None  # of the names that are given; chooses unknown_below


def classify(
    config: Config,
    model: str,
    prepared: str,
    out: str = "",
    knobs: ClassifyKnobs = ClassifyKnobs(),  # noqa: B008
) -> dict[str, Any]:
    """Fit names into the model folder, or into a copy of it; returns the document as it was written."""
    if not 0 <= knobs.unknown_below <= 1:
        raise ConfigError(f"--unknown-below {knobs.unknown_below} is no chance: give a number from 0 to 1")
    if knobs.precision is not None and not 0 < knobs.precision < 1:
        raise ConfigError(f"--precision {knobs.precision} is no share: give a number between 0 and 1")
    source = open_storage(model, config.storage)
    card = read_card(source)
    if card.kind != "detector":
        raise ConfigError(f"{model} holds {card.kind} weights: names belong to a detector (`mast train`)")
    archive = open_prepared(prepared, config.storage)
    target = open_storage(out, config.storage) if out else source
    refuse_other_model(target, card)
    tried = TRIED if knobs.embedding == "auto" else (knobs.embedding,)
    found = {name: fitted(config, model, archive, name, knobs) for name in tried}
    best = max(found, key=lambda name: max(found[name].top_1.values()))
    if target.url != source.url:
        for name in (WEIGHTS, CARD):
            target.write_atomic(name, source.read_bytes(name))
    document = document_of(found[best], best, {name: one.top_1 for name, one in found.items()})
    document["data_hash"] = data_hash(archive)
    print(fitted_text(found[best], best))
    write_names(target, document, found[best].names.tensors(), card)
    print(f"names: {target.url} (mast detect, export, summarise, report and evaluate --by label use them)")
    return document


def refuse_other_model(target: Storage, card: Card) -> None:
    """A copy with names goes where no other detector lies; one that was made here before may be made anew."""
    if target.stat(CARD) is None and (other := read_manifest(target)) is not None:
        raise DataError(f"{target.url} holds the output of `{other.stage}`: choose another --out")
    if target.stat(CARD) is None or read_card(target).weights_sha256 == card.weights_sha256:
        return
    if target.stat(NAMES) is None or target.stat(MANIFEST) is not None:
        raise DataError(
            f"{target.url} holds another detector, which would be lost:\ngive another --out, or that detector as MODEL"
        )


def fitted(
    config: Config, model: str, archive: Prepared, embedding: EmbeddingName, knobs: ClassifyKnobs
) -> FittedNames:
    """Names over one embedding of the training boxes."""
    train, validation = box_examples(config, model, archive, embedding)
    return fit_names(train, validation, knobs.unknown_below, knobs.precision)


def box_examples(
    config: Config, model: str, archive: Prepared, embedding: EmbeddingName
) -> tuple[Examples, Examples | None]:
    """(training boxes, boxes that choose between classifiers or None), embedded."""
    selection = selection_split(archive)
    splits = ["train"] + ([selection] if selection in scored_splits(archive) else [])
    named = archive.labels.filter(pc.not_equal(pc.fill_null(archive.labels.column("label"), ""), ""))
    if not len(named):
        raise DataError(
            f"no box of {archive.storage.url} has a label: names are learned from them\n"
            "give the annotations a column `label` with the species or call type, and prepare the archive again"
        )
    embedder = load_embedder(model, embedding, config)
    embedded = embed_boxes(embedder, read_as(archive, embedder.card, model), named, config, splits)
    parts = [examples_of(_of_split(embedded, split)) for split in splits]
    return parts[0], parts[1] if len(parts) > 1 else None


def _of_split(embedded: pa.Table, split: str) -> pa.Table:
    return embedded.filter(pc.equal(embedded.column("split"), split))


def document_of(found: FittedNames, embedding: str, top_1: dict[str, dict[str, float]]) -> dict[str, Any]:
    """What names.json says, besides what vouches for the tensors."""
    held_out = {name: getattr(found, name)._asdict() for name in ("accuracy", "given", "rejected")}
    return found.names.settings() | without_nan(
        {
            "embedding": embedding,
            "boxes_of_label": found.counts,
            "held_out": held_out | {"boxes": found.num_judged, "of": found.judged_on, "top_1": top_1},
        }
    )


def fitted_text(found: FittedNames, embedding: str) -> str:
    """What was fitted, for people."""
    names = found.names
    shape = " and the box's own size and band" if names.uses_shape else ""
    lines = [
        f"{len(names.labels)} labels from {sum(found.counts.values()):,} training boxes: {names.kind} over the {embedding} embedding{shape}",
        f"on {found.num_judged:,} {found.judged_on}:",
        f"  likeliest label right    {max(found.top_1.values()):.3f}",
        f"  gets a name              {interval_text(found.given)}  (unknown below {names.unknown_below:.2f})",
        f"  given name right         {interval_text(found.accuracy)}",
        f"  untrained label unknown  {interval_text(found.rejected)}  (labels left out of the training in turn)",
    ]
    if found.misses_precision:
        lines.append(
            "no limit gives names that are right as often as --precision asks: unknown below 0.5; name more boxes"
        )
    if found.rare:
        shown = [
            f"{label} {count}"
            for label, count in sorted(found.rare.items(), key=lambda one: (one[1], one[0]))
        ]
        more = f", and {len(shown) - SHOWN_RARE} more" if len(shown) > SHOWN_RARE else ""
        lines.append(
            f"rare: {len(shown)} labels have fewer than {RARE} boxes, their names are guesses: {', '.join(shown[:SHOWN_RARE])}{more}"
        )
    return "\n".join(lines)
