"""A detector of pieces put together as an archive's experts put them (`--set model.name=pieces`): seconds of teaching, and the
threshold that suits the split which selects. What a biologist sets by hand in an energy detector, and a first teacher.
"""

from __future__ import annotations

import logging
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from mast_ray.boxes.pieces import Pieces, pieces_of
from mast_ray.boxes.standing_out import smoothed
from mast_ray.config.errors import DataError
from mast_ray.config.tree import Config
from mast_ray.evaluation.figure_tables import interval_text
from mast_ray.evaluation.split_truth import scored_splits, selection_split
from mast_ray.models.baselines.on_host import DB_PER_LOG
from mast_ray.stages.runner import Runner, usable_cores
from mast_ray.stages.score.evaluate import ModelScores, Wanted, evaluate_model
from mast_ray.stages.train.judges import Marked, taught
from mast_ray.storage.stage_folders import sections_hash
from mast_ray.storage.stage_run import open_output, stage_run
from mast_ray.storage.storage import Storage
from mast_ray.tables.prepared import Prepared, data_hash, open_prepared
from mast_ray.tables.reading.chunk_sets import ChunkSet, box_table
from mast_ray.tables.reading.reader import ChunkReader
from mast_ray.training.data.archive_inputs import read_as
from mast_ray.training.data.feed import batch_of
from mast_ray.training.data.labels import expert_chunks
from mast_ray.training.files.model_files import Card, read_card, write_card, write_model
from mast_ray.training.files.shipped import ENERGY, shipped_model

log = logging.getLogger("mast.training")

STAGE, NAME, SCORES = "teach-pieces", "pieces", "scores"
MOST_CHUNKS = 1200
LEAST_BOXES = 20  # fewer say too little


class Lesson(NamedTuple):
    """What the judges were taught by, and what came of it on the split that selects ("": it has no labels)."""

    num_boxes: int
    num_chunks: int
    split: str = ""
    num_truth: int = 0
    f1: float = 0.0
    f1_text: str = ""  # with its limits
    threshold: float = 0.0

    @property
    def finds_calls(self) -> bool:
        """False where there were calls to find, and it found none."""
        return not self.num_truth or self.f1 > 0.0


def run_teach_pieces(config: Config, prepared: str, out: str, *, runner: Runner) -> Lesson:
    """A model folder of a detector of pieces that puts them together as the experts do."""
    stage = open_output(out, STAGE, config.storage)
    card = replace(read_card(str(shipped_model(ENERGY)), config.storage), calibration=None)
    archive = read_as(open_prepared(prepared, config.storage), card, NAME, say=False)
    inputs = {"prepared": data_hash(archive)}
    key = sections_hash(config, "labels", "split", "evaluate", "seed")
    with stage_run(stage, STAGE, config, key, inputs) as run:
        if run.done is not None:
            log.info("%s is already taught: nothing to do", stage.url)
            return Lesson(**run.done.counts)
        began_s = time.monotonic()
        pieces, marked = labelled_pieces(config, archive, card)
        num_boxes = sum(len(one.calls) for one in marked)
        if num_boxes < LEAST_BOXES:
            raise DataError(
                f"{num_boxes} labelled boxes with a frequency band are too few to teach by: {LEAST_BOXES} at least\n"
                "label more of the training recordings, or use shipped:energy as it is"
            )
        detector = taught(pieces, marked, config.seed, usable_cores())
        weights = detector.state_dict()
        card = replace(card, model=card.model | {"name": NAME}, data_hash=inputs["prepared"])
        run.begin_anew()
        card = write_model(stage, weights, card)
        log.info("taught by %d boxes in %.0f s", num_boxes, time.monotonic() - began_s)
        lesson, split = Lesson(num_boxes, len(marked)), selection_split(archive)
        if split in scored_splits(archive):
            card, scores = _with_or_without_doubt(config, card, stage, prepared, split, runner)
            row, threshold = scores.sheet.whole(split), scores.threshold
            if threshold.source != "fallback":
                card = replace(card, score_threshold=threshold.value)
            write_card(stage, card)
            if row is not None:
                f1 = row.figures["f1"]
                lesson = Lesson(
                    *lesson[:2],
                    split,
                    row.num_truth,
                    float(np.nan_to_num(f1.estimate)),
                    interval_text(f1),
                    threshold.value,
                )
        log.info("%s", lesson_text(lesson))
        run.finish(lesson._asdict())
        return lesson


def _with_or_without_doubt(
    config: Config, card: Card, stage: Storage, prepared: str, split: str, runner: Runner
) -> tuple[Card, ModelScores]:
    """The card that does better on a split: groups lie within groups, and whether wholes are meant is a habit of the labels
    (boxes/nesting.py).
    """
    tried: list[tuple[float, Card, ModelScores]] = []
    for name, doubts in ((SCORES, False), (f"{SCORES}_with_doubt", True)):
        if doubts and config.evaluate.post != "card":
            continue
        own = replace(card, doubts_nested=doubts)
        write_card(stage, own)
        wanted = Wanted((split,), "tuned")
        scores = evaluate_model(config, stage.url, prepared, stage.at(name).url, wanted, runner=runner)
        row = scores.sheet.whole(split)
        f1 = 0.0 if row is None else float(np.nan_to_num(row.figures["f1"].estimate))
        tried.append((f1, own, scores))
    _, chosen, scores = max(tried, key=lambda one: one[0])
    return chosen, scores


def has_enough_boxes(config: Config, prepared: str) -> bool:
    """Whether an archive's experts have boxed enough to teach by; labels without frequencies are no boxes."""
    archive = open_prepared(prepared, config.storage)
    remnant_s = config.spectrogram.min_remnant_s
    boxes = box_table(archive, _some_chunks(config, archive), archive.labels, min_remnant_s=remnant_s)
    return int((boxes.teaches & ~boxes.is_time_only).sum()) >= LEAST_BOXES


def labelled_pieces(config: Config, archive: Prepared, card: Card) -> tuple[list[Pieces], list[Marked]]:
    """Pieces of what stands out in some of the experts' chunks, in order, and what was said of these."""
    reader = ChunkReader(
        archive,
        _some_chunks(config, archive),
        archive.labels,
        batch_size=32,
        num_threads=2,
        min_remnant_s=config.spectrogram.min_remnant_s,
        ignored=archive.ignored,
    )
    pieces: list[Pieces] = []
    marked: list[Marked] = []
    with ThreadPoolExecutor(usable_cores()) as threads:
        for raw in reader.sequential():
            batch = batch_of(raw, card.normaliser(), card.tail)
            levels = batch.logmel[:, 0].float().numpy() * np.float32(DB_PER_LOG)
            pieces += threads.map(lambda level: pieces_of(smoothed(level)), levels)
            parts = (batch.boxes.corners, batch.boxes.has_band, batch.boxes.is_ignored)
            marked += [
                Marked(boxes[is_call], boxes[is_ignored])
                for boxes, is_call, is_ignored in zip(*(part.numpy() for part in parts), strict=True)
            ]
    return pieces, marked


def _some_chunks(config: Config, archive: Prepared) -> ChunkSet:
    chunks = expert_chunks(archive, config)
    rng = np.random.default_rng([config.seed, 31])
    return chunks.take(np.sort(rng.permutation(len(chunks))[:MOST_CHUNKS]))


def lesson_text(lesson: Lesson) -> str:
    """For people."""
    said = f"pieces put together as {lesson.num_boxes} boxes in {lesson.num_chunks} chunks say"
    if not lesson.split:
        return f"{said}; there are no labels to score them by or to choose a threshold"
    return f"{said}; {lesson.split}: F1 {lesson.f1_text} (n = {lesson.num_truth}) at a threshold of {lesson.threshold:.2f}"
