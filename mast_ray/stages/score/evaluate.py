"""`mast evaluate MODEL PREPARED`, and whatever else scores a model: detections of the held-out chunks as a resumable stage,
then their figures.

OUT/chunks               what the model finds in every held-out chunk, in units (stages/detect/chunks.py); read back if it is there
OUT/metrics.json         the figures of every split, per chunk and per recording (evaluation/score_sheet.py)
OUT/figures.csv, figures.parquet, thresholds.csv, outcomes.parquet    the same and more, to look at

Figures are given per chunk (the paper's way, and what training validates by) and on whole recordings, where a call in two
overlapping chunks counts once. The threshold is frozen: one for all splits.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import numpy as np

from mast_ray.config.errors import DataError
from mast_ray.config.tree import Config, StorageConfig
from mast_ray.evaluation.figure_tables import write_sheet
from mast_ray.evaluation.intervals import Difference, paired_differences
from mast_ray.evaluation.naming.confusion import Confusion, confusion_of, write_confusion
from mast_ray.evaluation.score_sheet import METRICS, ScoreSheet, Threshold, chosen_threshold, score_rows
from mast_ray.evaluation.scoring import By, Scored, has_low_rates, left_out, sums_of
from mast_ray.evaluation.split_truth import scored_splits, selection_split
from mast_ray.evaluation.whole_recordings import score_stitched
from mast_ray.inference.chunk_scores import CHUNKS, as_detected, score_stored
from mast_ray.inference.findings import doubts, same_everywhere
from mast_ray.inference.tuned_detector import delivered_post, doubts_nested
from mast_ray.stages.detect.chunks import ChunkTask, detect_chunks
from mast_ray.stages.runner import ON_RAY, Runner
from mast_ray.stages.score.naming import score_named
from mast_ray.storage.stage_folders import MANIFEST, text_hash
from mast_ray.storage.stage_run import refuse_foreign, stage_run
from mast_ray.storage.storage import Storage, open_storage
from mast_ray.tables.prepared import Prepared, data_hash, open_prepared
from mast_ray.training.files.model_files import Card, read_card
from mast_ray.training.files.names_files import names_version_of
from mast_ray.training.files.post_processing import PostProcessing

log = logging.getLogger("mast.evaluate")

STAGE, UNREAD = "evaluate", "chunks that could not be read"


@dataclass(frozen=True)
class Wanted:
    """What is scored, and how."""

    splits: tuple[str, ...] = ()  # empty: all that are held out
    # None: the model's own, else tuned where models may be chosen on; tuned: there even if the model has one
    threshold: float | Literal["tuned"] | None = None
    by: tuple[By, ...] = ()  # breakdowns
    known: tuple[
        str, ...
    ] = ()  # folders of earlier evaluations, whose detections are used where they are the same


EVERYTHING = Wanted()


@dataclass(frozen=True, eq=False)
class ModelScores:
    """How a model does on every split: the sheet as it is written, and the matches behind it."""

    sheet: ScoreSheet
    splits: dict[str, Scored]  # per chunk
    confusion: tuple[Confusion, ...] = ()  # of names, where the model has some and they were asked for

    @property
    def threshold(self) -> Threshold:
        return self.sheet.threshold

    def gains_over(self, other: ModelScores, config: Config) -> dict[str, dict[str, Difference]]:
        """Split -> figure -> this model minus another on the same recordings, each at its own threshold."""
        knobs = (config.evaluate.bootstrap, config.seed)
        return {
            name: paired_differences(
                sums_of(other.splits[name], other.threshold.value), sums_of(one, self.threshold.value), *knobs
            )
            for name, one in self.splits.items()
        }


def evaluate_model(
    config: Config,
    model: str,
    prepared: str,
    out: str,
    wanted: Wanted = EVERYTHING,
    *,
    runner: Runner = ON_RAY,
) -> ModelScores:
    """Detect in every chunk of the wanted splits unless OUT holds that already, score, and write the figures."""
    model_at, prepared_at, out_at = (open_storage(uri, config.storage) for uri in (model, prepared, out))
    evaluation = _Evaluation(config, model_at, prepared_at, out_at, wanted)
    refuse_foreign(evaluation.out, STAGE)
    with stage_run(evaluation.out, STAGE, config, evaluation.key, evaluation.inputs) as run:
        if run.done is not None:
            log.info("%s is already scored", run.stage.url)
            sheet = ScoreSheet.from_json(run.stage.read_bytes(METRICS), f"{run.stage.url}/{METRICS}")
            scored = evaluation.scored()
            return ModelScores(sheet, scored, evaluation.confusion(scored, sheet.threshold.value))
        num_rejected = evaluation.detect(runner)
        scored = evaluation.scored()
        sheet = evaluation.sheet(scored, num_rejected)
        run.begin_anew()
        write_sheet(run.stage, sheet, scored)
        confusion = evaluation.confusion(scored, sheet.threshold.value)
        write_confusion(run.stage, confusion)
        run.finish({f"{row.split}_recordings": row.num_recordings for row in sheet.rows if row.is_whole})
        return ModelScores(sheet, scored, confusion)


def chunks_below(folder: str, settings: StorageConfig) -> list[Storage]:
    """Every finished evaluation's detections in a folder and below."""
    root = open_storage(folder, settings)
    end = f"{CHUNKS}/{MANIFEST}"
    keys = (entry.key for entry in root.list())
    return [root.at(key.removesuffix(f"/{MANIFEST}")) for key in keys if f"/{key}".endswith(f"/{end}")]


@dataclass(frozen=True)
class _Evaluation:
    config: Config
    model: Storage
    prepared: Storage
    out: Storage
    wanted: Wanted

    @cached_property
    def archive(self) -> Prepared:
        return open_prepared(self.prepared)

    @cached_property
    def card(self) -> Card:
        return read_card(self.model.url, self.config.storage)

    @cached_property
    def post(self) -> PostProcessing | None:
        return delivered_post(self.card, self.config.evaluate)

    @property
    def doubts_nested(self) -> bool:
        return doubts_nested(self.card, self.config.evaluate)

    @cached_property
    def names(self) -> tuple[str, ...]:
        """Splits to score."""
        present = scored_splits(self.archive)
        missing = [name for name in self.wanted.splits if name not in present]
        if missing:
            raise DataError(
                f"{self.prepared.url} has no labelled split {missing[0]}: it has {', '.join(present) or 'none'}\n"
                "deal the recordings again with `mast split`"
            )
        return self.wanted.splits or present

    @cached_property
    def gives_names(self) -> bool:
        """Whether figures per label speak of the model's names: then on whole recordings, as detections are named."""
        return "label" in self.wanted.by and bool(names_version_of(self.model)) and not self.is_of_chunks

    @property
    def is_of_chunks(self) -> bool:
        """Random chunks make up no recordings."""
        return self.archive.manifest.config["split"]["unit"] == "chunk"

    @property
    def given(self) -> float | None:
        return None if self.wanted.threshold == "tuned" else self.wanted.threshold

    @property
    def own(self) -> float | None:
        """The model's threshold, where it counts."""
        return None if self.wanted.threshold == "tuned" else self.card.score_threshold

    @cached_property
    def tuned_on(self) -> str:
        """The split a threshold must be tuned on; "" where there is one, or nothing to tune it on."""
        if self.given is not None or self.own is not None:
            return ""
        split = selection_split(self.archive)
        return split if split in scored_splits(self.archive) else ""

    @property
    def offered(self) -> tuple[str, ...]:
        """Splits to detect in."""
        return tuple(dict.fromkeys((*self.names, *([self.tuned_on] if self.tuned_on else []))))

    @cached_property
    def inputs(self) -> dict[str, str]:
        return {"prepared": data_hash(self.archive), "model": self.card.weights_sha256}

    @cached_property
    def key(self) -> str:
        knobs = self.config.evaluate.model_dump(mode="json", exclude={"batch_size"})
        wanted: list[Any] = [self.names, self.wanted.threshold, self.wanted.by, self.card.score_threshold]
        wanted += [self.post.to_dict()] if self.post is not None else []
        wanted += ["doubts_nested"] if self.doubts_nested else []
        wanted += ["below_half_rate"] if has_low_rates(self.archive) else []  # they were not, once
        if self.gives_names:
            wanted.append(names_version_of(self.model))
        return text_hash(json.dumps([wanted, knobs, self.config.seed, self.config.spectrogram.min_remnant_s]))

    def detect(self, runner: Runner) -> int:
        """Chunks that could not be read."""
        if not self.offered:
            return 0
        places = (self.model.url, self.prepared.url, self.out.at(CHUNKS).url)
        stored = as_detected(self.config, self.post)
        task = ChunkTask(
            self.config, *places, self.offered, stored, "repeatable", self.post, self.doubts_nested
        )
        known = [stage for folder in self.wanted.known for stage in chunks_below(folder, self.config.storage)]
        return detect_chunks(task, runner, known=known).manifest.counts["rejected_chunks"]

    def scored(self) -> dict[str, Scored]:
        """Split -> what the stored detections are worth, per chunk."""
        return score_stored(self.archive, self.out.at(CHUNKS), self.names, self.config)

    def _whole(self, split: str, scored: Scored, threshold: float) -> Scored:
        """What was scored by chunks, on whole recordings; with the model's names where they are asked for."""
        if not self.gives_names:
            return score_stitched(self.archive, scored, split, self.config)
        known = self._named.get(split)
        if known is None:
            known = score_named(self.archive, scored, split, self.model.url, threshold, self.config)
            self._named[split] = known
        return known

    @cached_property
    def _named(self) -> dict[str, Scored]:
        return {}

    def confusion(self, scored: dict[str, Scored], threshold: float) -> tuple[Confusion, ...]:
        if not self.gives_names:
            return ()
        tables = (
            confusion_of(self._whole(name, one, threshold), name, threshold) for name, one in scored.items()
        )
        return tuple(table for table in tables if table is not None)

    def sheet(self, scored: dict[str, Scored], num_rejected: int) -> ScoreSheet:
        knobs = self.config.evaluate
        selection = scored.get(self.tuned_on)
        if self.tuned_on and selection is None:
            own = score_stored(self.archive, self.out.at(CHUNKS), (self.tuned_on,), self.config)
            selection = own[self.tuned_on]
        threshold = chosen_threshold(self.given, self.own, selection, self.tuned_on)
        drawn = (threshold.value, knobs.bootstrap, self.config.seed)
        by_chunk = tuple(kind for kind in self.wanted.by if kind != "label" or not self.gives_names)
        rows = [r for name, one in scored.items() for r in score_rows(one, name, *drawn, by_chunk)]
        for name, one in scored.items() if not self.is_of_chunks else ():
            by_label: tuple[By, ...] = ("label",) if self.gives_names else ()
            rows += score_rows(self._whole(name, one, threshold.value), name, *drawn, by_label)
        return ScoreSheet(
            self.model.url, self.prepared.url, self.card.weights_sha256, threshold, knobs.iou, "mel",
            knobs.average_precision, tuple(rows), {UNREAD: num_rejected} | left_out(scored.values(), threshold.value),
            tuple(doubts_about(scored.values(), threshold.value)),
        )  # fmt: skip


def doubts_about(scored: Iterable[Scored], threshold: float) -> list[str]:
    """What the findings of all splits together say about the model."""
    place, values, num_chunks, num_whole = [np.empty(0, np.int64)], [np.empty((0, 5))], 0, 0
    num_found, num_kept, highest = 0, 0, 0.0
    for one in scored:
        score, recording = one.matches.score, one.recording_of_group
        # the last chunk of a recording is cut at its end, and so are its boxes
        is_whole = np.append(recording[1:] == recording[:-1], False)
        kept = is_whole[one.matches.group]
        place.append(one.matches.group[kept] + num_chunks)
        values.append(np.column_stack([one.boxes, 100.0 * score])[kept])
        num_found, num_kept = num_found + len(score), num_kept + int((score >= threshold).sum())
        highest = max(highest, float(score.max(initial=0.0)))
        num_chunks, num_whole = num_chunks + len(recording), num_whole + int(is_whole.sum())
    is_same = same_everywhere(np.concatenate(place), np.concatenate(values), num_whole)
    return doubts(num_found, num_kept, threshold, highest, is_same, f"{num_chunks:,} chunks")
