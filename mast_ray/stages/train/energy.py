"""The energy detector as an archive's experts would set it: seconds of fitting, and the threshold that suits the split which
selects. It is what a biologist does by hand, and what a first teacher should be.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch
from numpy.typing import NDArray

from mast_ray.boxes.standing_out import StandOut
from mast_ray.config.tree import Config
from mast_ray.evaluation.split_truth import scored_splits, selection_split
from mast_ray.models.baselines.energy import DB_PER_LOG
from mast_ray.spectrogram.grid import seconds_of_frames
from mast_ray.stages.runner import Runner, usable_cores
from mast_ray.stages.score.evaluate import Wanted, evaluate_model
from mast_ray.stages.train.energy_fit import LEAST_BOXES, Fit, fitted
from mast_ray.storage.stage_folders import sections_hash
from mast_ray.storage.stage_run import open_output, stage_run
from mast_ray.tables.prepared import Prepared, data_hash, open_prepared
from mast_ray.tables.reading.reader import ChunkReader
from mast_ray.training.data.archive_inputs import read_as
from mast_ray.training.data.feed import batch_of
from mast_ray.training.data.labels import expert_chunks
from mast_ray.training.files.model_files import Card, read_model, write_model

log = logging.getLogger("mast.training")

STAGE, SETTINGS, SCORES = "fit-energy", "settings", "scores"
MOST_CHUNKS = 128
Floats = NDArray[np.float32]


def run_fit_energy(config: Config, prepared: str, given: str, out: str, *, runner: Runner) -> Fit:
    """A model folder of an energy detector (`given`, whose settings it begins with) that suits the experts' boxes."""
    stage = open_output(out, STAGE, config.storage)
    weights, card = read_model(given, "detector", config.storage)
    archive = read_as(open_prepared(prepared, config.storage), card, given, say=False)
    inputs = {"prepared": data_hash(archive), "model": card.weights_sha256}
    key = sections_hash(config, "labels", "split", "evaluate", "seed")
    with stage_run(stage, STAGE, config, key, inputs) as run:
        if run.done is not None:
            log.info("%s is already fitted: nothing to do", stage.url)
            own, *figures = (run.done.counts[name] for name in Fit._fields)
            return Fit(StandOut(*own), *figures)
        level, frames, bins = weights[SETTINGS].tolist()
        start = StandOut(level, round(frames), round(bins))
        fit = fitted(*labelled_levels(config, archive, card), start, usable_cores())
        new = weights | {SETTINGS: torch.tensor([float(value) for value in fit.settings])}
        card = write_model(stage, new, replace(card, data_hash=inputs["prepared"], calibration=None))
        split = selection_split(archive)
        if split in scored_splits(archive):
            wanted, scores = Wanted((split,), "tuned"), stage.at(SCORES).url
            chosen = evaluate_model(config, stage.url, prepared, scores, wanted, runner=runner).threshold
            if chosen.source != "fallback":
                write_model(stage, new, replace(card, score_threshold=chosen.value))
        log.info("%s", fit_text(fit))
        run.finish(fit._asdict() | {"settings": list(fit.settings)})
        return fit


def labelled_levels(config: Config, archive: Prepared, card: Card) -> tuple[Sequence[Floats], list[Floats]]:
    """Decibels above the background of some of the experts' chunks, and their boxes."""
    chunks = expert_chunks(archive, config)
    rng = np.random.default_rng([config.seed, 31])
    chunks = chunks.take(np.sort(rng.permutation(len(chunks))[:MOST_CHUNKS]))
    reader = ChunkReader(archive, chunks, archive.labels, batch_size=32, num_threads=2)
    levels: list[Floats] = []
    boxes: list[Floats] = []
    for raw in reader.sequential():
        batch = batch_of(raw, card.normaliser(), card.tail)
        levels += list(batch.logmel[:, 0].float().numpy() * np.float32(DB_PER_LOG))
        known = batch.boxes.has_band.numpy()
        boxes += [one[own] for one, own in zip(batch.boxes.corners.numpy(), known, strict=True)]
    return levels, boxes


def fit_text(fit: Fit) -> str:
    """For people."""
    if fit.num_boxes < LEAST_BOXES:
        return f"energy detector as shipped: {fit.num_boxes} boxes are too few to set it by"
    level, frames, bins = fit.settings
    return (
        f"energy detector: {level:g} dB above the background, sounds joined over {seconds_of_frames(frames):g} s and {bins} mel bins; "
        f"F1 {fit.f1_before:.3f} -> {fit.f1:.3f} on {fit.num_boxes} boxes that it was set by"
    )
