"""Sheets of scores in a run: which of them the report is about, and the matches behind it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from mast_ray.config.errors import DataError, MastError
from mast_ray.config.tree import Config
from mast_ray.evaluation.score_sheet import ScoreSheet
from mast_ray.evaluation.scoring import Scored
from mast_ray.inference.chunk_scores import CHUNKS, score_stored
from mast_ray.storage.storage import Storage
from mast_ray.tables.prepared import data_hash, open_prepared


def read_sheets(run: Storage, keys: Sequence[str]) -> tuple[dict[str, ScoreSheet], tuple[str, ...]]:
    """(folder -> sheet of scores, what was no sheet)"""
    sheets, warnings = {}, []
    for key in keys:
        try:
            sheets[key.rpartition("/")[0]] = ScoreSheet.from_json(run.read_bytes(key), key)
        except DataError as error:
            warnings.append(f"Left out: {str(error).splitlines()[0]}")
    return sheets, tuple(warnings)


def shown_sheet(sheets: Mapping[str, ScoreSheet], detections: pa.Table | None) -> str | None:
    """The folder whose scores are the report's own: those of the model that made the detections, else, where there are
    no detections to report, the first that were made of a model.
    """
    of_models = {folder: sheet.model_sha for folder, sheet in sheets.items() if sheet.model_sha}
    if detections is None:
        return next(iter(of_models), None)
    made_by = set(pc.unique(detections.column("model_sha")).to_pylist())
    return next((folder for folder, sha in of_models.items() if sha in made_by), None)


def matches_of(
    run: Storage, manifests: Mapping[str, Mapping[str, Any]], folder: str, splits: Sequence[str]
) -> tuple[dict[str, Scored], tuple[str, ...]]:
    """The matches behind a sheet, from the detections beside it; none, with a word, where the archive is not in the run."""
    manifest = manifests.get(folder, {})
    for place in (place for place, m in manifests.items() if m.get("stage") == "prepare"):
        try:
            archive = open_prepared(run.at(place) if place else run)
            if data_hash(archive) == manifest.get("inputs", {}).get("prepared"):
                config = Config.model_validate(manifest["config"])
                stage = run.at(f"{folder}/{CHUNKS}" if folder else CHUNKS)
                return score_stored(archive, stage, splits, config), ()
        except (MastError, ValueError, OSError) as error:
            return {}, (f"Curves and breakdowns are left out: {str(error).splitlines()[0]}",)
    return {}, (
        "Curves and breakdowns are left out: the prepared archive of the scores is not in this folder.",
    )
