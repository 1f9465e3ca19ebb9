"""Names after a round: fitted anew on labels and corrections, and kept only where they are no worse.

Names read the embeddings of the very weights they were fitted on, so an adapted detector needs new ones. With the
present weights both can be compared on the held-out corrections.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from mast_ray.config.errors import ConfigError, DataError
from mast_ray.config.tree import Config
from mast_ray.evaluation.naming.names import Examples, Names
from mast_ray.inference.naming import ModelNames, load_names
from mast_ray.stages.score.classify import ClassifyKnobs, box_examples, classify
from mast_ray.storage.storage import Storage, open_storage
from mast_ray.tables.prepared import Prepared
from mast_ray.training.files.names_files import NAME_TENSORS, NAMES


@dataclass(frozen=True)
class NamesKept:
    """What became of the names of a model."""

    what: str  # none, present, new, lost
    labels: tuple[str, ...] = ()
    right_before: float | None = None  # share of held-out named calls that get their right name
    right_after: float | None = None
    why: str = ""

    @property
    def is_new(self) -> bool:
        return self.what == "new"

    def text(self) -> str:
        match self.what:
            case "none":
                return f"names: none ({self.why})"
            case "lost":
                return f"names: none any more ({self.why}); mast classify gives the new model names"
        shares = (self.right_before, self.right_after)
        told = [f"{share:.3f}" if share is not None else "-" for share in shares]
        kind = "fitted anew" if self.is_new else f"the present ones stay ({self.why})"
        return f"names: {len(self.labels)} labels, {kind}; right on held-out corrections {told[0]} before, {told[1]} new"

    def record(self) -> dict[str, Any]:
        return {"what": self.what, "labels": list(self.labels), "before": self.right_before,
                "after": self.right_after, "why": self.why}  # fmt: skip


def learned_names(
    config: Config, present: str, target: Storage, archive: Prepared, is_adapted: bool
) -> NamesKept:
    """Names in the model folder `target`, whose weights are the present ones or adapted."""
    known = load_names(present, settings=config.storage)
    try:
        document = classify(config, target.url, archive.storage.url, "", ClassifyKnobs())
    except (ConfigError, DataError) as error:  # no named call, or a detector without embeddings
        why = str(error).splitlines()[0]
        if known is None:
            return NamesKept("none", why=why)
        if is_adapted:
            return NamesKept("lost", known.names.labels, why=why)
        _copy_names(open_storage(present, config.storage), target)
        return NamesKept("present", known.names.labels, why=why)
    fresh = load_names(target)
    assert fresh is not None
    before = right_share(config, present, archive, known) if known is not None else None
    after = right_share(config, target.url, archive, fresh)
    labels = tuple(document["labels"])
    if known is None or is_adapted:
        return NamesKept("new", labels, before, after)
    missing = sorted(set(known.names.labels) - set(labels))
    if missing or (before is not None and after is not None and after <= before):
        why = (
            f"the new ones do not know {', '.join(missing[:3])}" if missing else "the new ones are no better"
        )
        _copy_names(open_storage(present, config.storage), target)
        return NamesKept("present", known.names.labels, before, after, why)
    return NamesKept("new", labels, before, after)


def right_share(config: Config, model: str, archive: Prepared, names: ModelNames) -> float | None:
    """Share of the held-out named calls that get their right name; unknown is not right. None: there are none."""
    _, held = box_examples(config, model, archive, names.embedding)
    return None if held is None or not len(held.label) else float(is_right(names.names, held).mean())


def is_right(names: Names, asked: Examples) -> np.ndarray:
    return np.array(names.named(asked.embedding, asked.boxes).label, object) == asked.label


def _copy_names(source: Storage, target: Storage) -> None:
    target.delete(NAMES)
    for name in (NAME_TENSORS, NAMES):
        target.write_atomic(name, source.read_bytes(name))
