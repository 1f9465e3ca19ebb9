"""Where everything of a run lies: its detections, the model that made them, its recordings, corrections and labels."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from mast_ray.config.errors import ConfigError, DataError
from mast_ray.config.loading import apply_overrides, flatten
from mast_ray.config.recipes import RECIPES
from mast_ray.config.shown import shown
from mast_ray.config.tree import Config
from mast_ray.evaluation.review.corrections import corrections_folder
from mast_ray.reporting.detection_tables import refuse_unfinished
from mast_ray.stages.detect.detect import TABLE, DetectInputs
from mast_ray.stages.review.found_boxes import audio_of
from mast_ray.storage.stage_folders import Manifest, read_manifest
from mast_ray.storage.storage import Storage, open_storage
from mast_ray.tables.preparing.inventory import SYNTHETIC_COPIES
from mast_ray.training.files.model_files import CARD, MODELS_OF_A_RUN, read_card
from mast_ray.training.files.shipped import ENERGY, SIZES, shipped_model

DETECTIONS, MODEL, PREPARED, CORRECTIONS = "detections", "model", "prepared", "corrections"
RECORD = "learn.json"
# knobs that change what a detector makes of a recording
HEARD_BY = (
    "audio.", "spectrogram.short_recordings", "evaluate.score_floor", "evaluate.nms_overlap", "evaluate.max_detections",
    "detect.embeddings", "detect.song_gap_s",
)  # fmt: skip


@dataclass(frozen=True)
class LearnedRun:
    """A run to learn from; addresses of folders."""

    run: str
    detections: str
    model: str
    audio: str
    corrections: Path
    labels: str  # archive with the labels of experts; "" where there are none
    dealt: str  # archive of the round before: who learned and who judged; "" before the first
    rounds: tuple[str, ...] = ()  # when the rounds that led to this run ended, as ISO 8601


def find_run(run: str, audio: str = "", model: str = "", corrections: str = "") -> LearnedRun:
    """Everything a run needs to be learned from; what cannot be found is asked for."""
    if run.endswith(".parquet"):
        raise DataError(
            f"{run} is a table alone, without its model:\ngive a run folder, or what `mast detect` wrote"
        )
    root = open_storage(run)
    stage = next((one for one in (root.at(DETECTIONS), root) if _is_detect_stage(one)), None)
    if stage is None:
        for one in (root.at(DETECTIONS), root):
            refuse_unfinished(one)
        raise DataError(f"{run} holds no detections:\ngive a run folder, or what `mast detect` wrote")
    manifest = read_manifest(stage)
    assert manifest is not None
    is_whole_run = stage.url != root.url
    return LearnedRun(
        root.url,
        stage.url,
        _model_of(manifest, root if is_whole_run else stage, model),
        audio_of(run, stage.url, audio).url,
        Path(corrections) if corrections else corrections_folder(stage.url),
        *(_earlier(root) if is_whole_run else ("", "", ())),
    )


def _earlier(root: Storage) -> tuple[str, str, tuple[str, ...]]:
    """(labels, the deal of the round before, ends of all rounds before); what an earlier round prepared holds its
    corrections, which the logs tell better.
    """
    own = root.at(PREPARED).url if read_manifest(root.at(PREPARED)) is not None else ""
    if root.stat(RECORD) is None:
        return own, "", ()
    record = json.loads(root.read_bytes(RECORD))
    labels = record.get("labels", own)
    if labels and read_manifest(open_storage(labels)) is None:  # gone or moved
        labels = own
    return labels, own, tuple(record.get("rounds", ()))


def ended_rounds(run: str) -> tuple[str, ...]:
    """When the rounds of learning that led to a run ended."""
    return () if run.endswith(".parquet") else _earlier(open_storage(run))[2]


def _is_detect_stage(folder: Storage) -> bool:
    manifest = read_manifest(folder)
    return manifest is not None and manifest.stage == "detect"


def _model_of(manifest: Manifest, root: Storage, wanted: str) -> str:
    """The folder with the very weights that made the detections."""
    sha = manifest.inputs.get("model", "")
    if wanted:
        if read_card(wanted).weights_sha256 != sha:
            raise ConfigError(
                f"--model {wanted} is not the model that made {root.url}:\n"
                "give that one, or detect with this one first"
            )
        return open_storage(wanted).url
    candidates = [root.at(name) for name in MODELS_OF_A_RUN]
    candidates += [open_storage(shipped_model(name)) for name in (*SIZES, ENERGY)]
    for folder in candidates:
        if folder.stat(CARD) is not None and read_card(folder).weights_sha256 == sha:
            return folder.url
    raise ConfigError(f"which model made {root.url}? It does not lie in it:\ngive its folder, --model MODEL")


def as_detected(config: Config, place: LearnedRun, stated: Iterable[str] = ()) -> Config:
    """The config with the knobs that made the detections, where it holds its recipe's own ones and they are not `stated`:
    other channels or another time zone would pass for what was learned.
    """
    manifest = read_manifest(open_storage(place.detections, config.storage))
    made_with = flatten(manifest.config) if manifest is not None else {}
    own, recipe = (flatten(one.model_dump(mode="json")) for one in (config, RECIPES[config.recipe]()))
    known = {
        key: made_with[key] for key in own.keys() & made_with.keys() - set(stated) if key.startswith(HEARD_BY)
    }
    taken = {key: value for key, value in sorted(known.items()) if own[key] == recipe[key] != value}
    if taken:
        told = ", ".join(f"{key}={value}" for key, value in taken.items())
        print(shown(f"heard as the detections were made: {told} (--set says otherwise)"), flush=True)
    return apply_overrides(config, taken)


def inputs_again(place: LearnedRun, model: str, out: str) -> DetectInputs:
    """The recordings of a run, with the table and without the paths that its detections were made with and without."""
    stage = open_storage(place.detections)
    manifest = read_manifest(stage)
    exclude = (manifest.counts if manifest is not None else {}).get("exclude", SYNTHETIC_COPIES)
    table = f"{stage.url}/{TABLE}" if stage.stat(TABLE) is not None else ""
    return DetectInputs(model, place.audio, out, table, tuple(exclude))


def next_name(run: str) -> str:
    """run -> run-2 -> run-3: the folder of the next round, beside the run."""
    run = run.rstrip("/")
    match = re.fullmatch(r"(.*)-(\d+)", run)
    return f"{match[1]}-{int(match[2]) + 1}" if match else f"{run}-2"
