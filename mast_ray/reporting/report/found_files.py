"""What lies in a run folder: known files by their names, tables as they are to be read.

    **/manifest.json   what was run on what              **/card.json          model hash, threshold
    recordings, labels, rejects, splits .parquet         detections (folder, file, or a stage with commits)
    **/metrics.json    sheets of scores                  rounds.json, label_budget.json, trials.parquet, comparison.json, retrieval.json

A folder of many stages and a single stage are the same to it: of several files of
one name the shallowest is taken.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from mast_ray.evaluation.label_budget import CURVES
from mast_ray.evaluation.naming.confusion import CONFUSION
from mast_ray.evaluation.score_sheet import METRICS, ScoreSheet
from mast_ray.evaluation.similarity.retrieval import RETRIEVAL
from mast_ray.reporting.detection_tables import (
    OF_A_BOX,
    conform,
    parquet_keys,
    read_parquet,
    refuse_unfinished,
    with_paths,
)
from mast_ray.reporting.paper_tables import COMPARISON
from mast_ray.reporting.report.collect_sheets import read_sheets
from mast_ray.self_training.round_records import ROUNDS
from mast_ray.self_training.trial_records import TRIALS
from mast_ray.storage.storage import Storage
from mast_ray.tables.schemas import DETECTIONS, IGNORED, LABELS, RECORDINGS, REJECTS, SPLITS

NOT_LOOKED_INTO = ("frames/", "index/", "attempts/", "commit/", "tensorboard/", "checkpoints/")
ROW_TABLES = {
    COMPARISON: "Methods compared",
    RETRIEVAL: "Retrieval of labels by look-alikes",
    CONFUSION: "Which label was called what",
}
SIDE_TABLES = (ROUNDS, CURVES, TRIALS, *ROW_TABLES)
DETECTING = ("detect", "pseudo-label", "pseudo_label")  # stages that write detections, the most telling first


@dataclass(frozen=True)
class Found:
    """Tables and records of a run."""

    manifests: dict[str, dict[str, Any]]  # folder -> manifest
    cards: dict[str, dict[str, Any]]
    recordings: pa.Table | None
    labels: pa.Table | None
    rejects: pa.Table | None
    splits: pa.Table | None
    detections: pa.Table | None
    side: dict[str, list[str]]  # name of a side table -> keys, shallow ones first
    sheets: dict[str, ScoreSheet]  # folder -> what was scored there
    warnings: tuple[str, ...] = ()
    ignored: pa.Table | None = None  # where nobody looked or was sure


def run_keys(run: Storage) -> list[str]:
    """Keys worth looking at, shallow ones first."""
    keys = [e.key for e in run.list() if not any(f"/{part}" in f"/{e.key}" for part in NOT_LOOKED_INTO)]
    return sorted(keys, key=lambda key: (key.count("/"), key))


def find_files(run: Storage, detections: pa.Table | None = None) -> Found:
    """Everything known in a run folder; `detections` may be given from elsewhere."""
    keys = run_keys(run)

    def tree(name: str) -> dict[str, dict[str, Any]]:
        found = {key.rpartition("/")[0]: _json(run, key) for key in keys if key.rpartition("/")[2] == name}
        return {folder: value for folder, value in found.items() if isinstance(value, dict)}

    def table(name: str, schema: pa.Schema, required: tuple[str, ...]) -> pa.Table | None:
        own = [key for key in keys if key.rpartition("/")[2] == f"{name}.parquet"]
        # what was recorded and what was rejected is said by the stage whose detections are counted, where it says so
        key = next((k for k in own if k.rpartition("/")[0] in detecting), own[0] if own else None)
        return None if key is None else conform(read_parquet(run, key), schema, required, f"{run.url}/{key}")

    side = {name: own for name in SIDE_TABLES if (own := [k for k in keys if k.rpartition("/")[2] == name])}
    sheets, warnings = read_sheets(run, [key for key in keys if key.rpartition("/")[2] == METRICS])
    manifests = {
        folder: m for folder, m in tree("manifest.json").items() if "stage" in m
    }  # checkpoints have manifests too
    detecting = [] if detections is not None else _detecting(manifests)[:1]
    recordings = _knowing_labels(
        table("recordings", RECORDINGS, ("recording_id", "path", "duration_s")),
        [folder for folder, m in manifests.items() if m.get("stage") == "prepare"],
        run,
    )
    if detections is None:
        detections = _detections(run, keys, manifests)
    if recordings is not None:
        filled = pc.fill_null(recordings.column("site"), "")
        recordings = recordings.set_column(recordings.column_names.index("site"), "site", filled)
    if detections is not None:
        detections = with_paths(detections, recordings)
    return Found(
        manifests, tree("card.json"), recordings, table("labels", LABELS, ("recording_id", "begin_s", "end_s")),
        table("rejects", REJECTS, ("path", "reason")), table("splits", SPLITS, ("recording_id", "split")), detections, side,
        sheets, warnings, table("ignored", IGNORED, ("recording_id", "begin_s", "end_s")),
    )  # fmt: skip


def _knowing_labels(recordings: pa.Table | None, prepared: list[str], run: Storage) -> pa.Table | None:
    """The same recordings as the prepared archive knows them, where it knows all of them: `detect` does not know which
    were annotated. Those that it holds besides were not searched: no call was found in them because nobody looked.
    """
    for folder in prepared:
        key = f"{folder}/recordings.parquet" if folder else "recordings.parquet"
        if recordings is None or run.stat(key) is None:
            continue
        known = conform(
            read_parquet(run, key), RECORDINGS, ("recording_id", "path", "duration_s"), f"{run.url}/{key}"
        )
        ids = recordings.column("recording_id").combine_chunks()
        same = known.filter(pc.is_in(known.column("recording_id"), ids))
        if set(ids.to_pylist()) == set(same.column("recording_id").to_pylist()):
            return same
    return recordings


def _json(run: Storage, key: str) -> Any:
    try:
        return json.loads(run.read_bytes(key))
    except (ValueError, UnicodeDecodeError):
        return None


def _detecting(manifests: dict[str, dict[str, Any]]) -> list[str]:
    """Folders of the stages that made detections, the most telling first."""
    stages = [folder for folder, m in manifests.items() if m.get("stage") in DETECTING]
    return sorted(stages, key=lambda name: (DETECTING.index(manifests[name]["stage"]), name))


def _detections(run: Storage, keys: list[str], manifests: dict[str, dict[str, Any]]) -> pa.Table | None:
    """The detections of a stage that made some, else what lies in a folder or file called so."""
    for folder in _detecting(manifests):
        stage = run.at(folder) if folder else run
        refuse_unfinished(_above(run, folder))  # OUT of OUT/earlier
        if (table := _joined(stage, parquet_keys(stage))) is not None:
            return table
    for key in (k for k in keys if k.endswith(".parquet") and "detections" in k):
        parts = key.split("/")
        place = next(i for i, part in enumerate(parts) if "detections" in part)
        stage = run.at("/".join(parts[: place + 1])) if place + 1 < len(parts) else run
        refuse_unfinished(_above(run, "/".join(parts[: place + 1])))  # OUT of OUT/detections
        own = parquet_keys(stage) if place + 1 < len(parts) else [key]
        if (table := _joined(stage, own)) is not None:
            return table
    return None


def _above(run: Storage, folder: str) -> Storage:
    """The folder that holds another, in the run."""
    above = folder.rpartition("/")[0]
    return run.at(above) if above else run


def _joined(stage: Storage, keys: list[str]) -> pa.Table | None:
    """The files among `keys` that hold detections, as one table; labels have a
    source, detections have not.
    """
    parts = []
    for key in keys:
        part = read_parquet(stage, key)
        columns = set(part.column_names)
        if {"recording_id", "begin_s", "end_s", "score", "low_hz"} <= columns and "source" not in columns:
            parts.append(conform(part, DETECTIONS, OF_A_BOX, f"{stage.url}/{key}"))
    return pa.concat_tables(parts, promote_options="permissive") if parts else None
