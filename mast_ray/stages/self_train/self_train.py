"""`mast self-train`: rounds of pseudo-label -> stage 1 -> stage 2, as a plan of
stages that each skip what is done.

OUT/round0/evaluation            the seed detector on every held-out split
OUT/roundN/detections, pseudo    what the teacher finds in the pool, and the pseudo-labels made of it
OUT/roundN/stage1, stage2        the student (its averaged weights are the next teacher); mixed, union, control or
                                 ceiling in those curricula; averaged where it is averaged with its teacher
OUT/roundN/evaluation            the student on every held-out split
OUT/rounds.json, rounds.parquet  one row of figures per round; which was kept, and why
OUT/model                        the best of the seed and the students that the governor accepts, with its threshold
"""

from __future__ import annotations

import json
import logging
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa

from mast_ray.config.errors import ConfigError, DataError
from mast_ray.config.loading import flatten
from mast_ray.config.tree import Config
from mast_ray.evaluation.split_truth import selection_split
from mast_ray.inference.chunk_scores import CHUNKS
from mast_ray.inference.tuned_detector import is_doubted
from mast_ray.recordings.annotations.reading import read_annotations
from mast_ray.self_training.choice import Choice, best_round
from mast_ray.self_training.curriculum import drifts, needs_pseudo_labels, needs_truth, steps_of
from mast_ray.self_training.governor import PoolFigures, Verdict, judge, pool_figures
from mast_ray.self_training.operator import PoolDetections
from mast_ray.self_training.pool import keys_of
from mast_ray.self_training.round_records import ROUNDS
from mast_ray.stages.runner import ON_RAY, Runner
from mast_ray.stages.score.evaluate import ModelScores, Wanted, evaluate_model
from mast_ray.stages.self_train.averaging import average_with_teacher
from mast_ray.stages.self_train.pseudo_label import run_pseudo_label
from mast_ray.stages.self_train.pseudo_stage import (
    PseudoLabels,
    agreement_f1,
    make_pseudo_labels,
    make_truth_labels,
    quality,
)
from mast_ray.stages.self_train.round_table import round_row, rounds_text, write_rounds
from mast_ray.stages.self_train.settings import key_of, refuse_missing_experts, with_fitting_teacher
from mast_ray.stages.self_train.teacher_thresholds import HeldOut, as_the_pool_is_heard, teacher_of
from mast_ray.stages.train.adapting import FOLDER as ADAPTATION
from mast_ray.stages.train.train import run_train_detector
from mast_ray.storage.outputs import remove_scratch
from mast_ray.storage.stage_folders import MANIFEST
from mast_ray.storage.stage_run import open_output, stage_run
from mast_ray.storage.storage import Storage, open_storage
from mast_ray.tables.joining import one_archive
from mast_ray.tables.labels.tables import labels_table
from mast_ray.tables.prepared import Prepared, data_hash, open_prepared
from mast_ray.tables.reading.chunk_sets import ChunkSet, chunks_of_split
from mast_ray.training.data.archive_inputs import of_student, refuse_unfit_starts, weights_named
from mast_ray.training.data.labels import LabelSource
from mast_ray.training.files.model_files import Card, read_card, read_model, write_model

log = logging.getLogger("mast.self_train")

STAGE, MODEL = "self-train", "model"
_FREE_KNOBS = {
    "rounds", "governor", "governor_density_ratio", "governor_min_agreement", "keep",
}  # may change between runs: more rounds  # fmt: skip


@dataclass(frozen=True)
class SelfTrainResult:
    """What rounds.json says."""

    rounds: list[dict[str, Any]]  # figures, round 0 is the seed
    final: dict[str, Any]  # the round that OUT/model is of, and why
    stopped: str  # why before the last round; "" when not
    was_done: bool = False


def run_self_train(
    config: Config,
    prepared: str | Sequence[str],
    detector: str,
    out: str,
    *,
    truth: str = "",
    also: Sequence[str] = (),
    encoder: str = "",
    runner: Runner = ON_RAY,
) -> SelfTrainResult:
    """Self-train a detector on the pool of a prepared archive, or of several. Detectors `also` label the pool with the
    first, in round 1. A fresh student begins with an `encoder` where one is given.
    """
    if needs_truth(config.self_train.curriculum) and not truth:
        raise ConfigError(
            "self_train.curriculum=ceiling trains on the truth of the pool: give it by --truth (truth.csv of `mast synth`)"
        )
    if also and not needs_pseudo_labels(config.self_train.curriculum):
        raise ConfigError(
            f"--also names detectors that label the pool, but self_train.curriculum={config.self_train.curriculum} uses no "
            "pseudo-labels:\nleave --also out, or choose another curriculum"
        )
    stage = open_output(out, STAGE, config.storage)
    refuse_unfit_starts(config, encoder, detector, *also)
    archive = open_prepared(one_archive(prepared, out, STAGE, config), config.storage)
    refuse_missing_experts(config, archive)
    truth_table = _truth_table(truth, archive)
    card = read_card(detector, config.storage)
    config = with_fitting_teacher(of_student(config, card, detector), also)
    inputs = {"prepared": data_hash(archive), "detector": card.weights_sha256}
    if also:
        inputs["also"] = " ".join(read_card(one, config.storage).weights_sha256 for one in also)
    if encoder:
        inputs["encoder"] = weights_named(encoder, config.storage)
    key = key_of(config, truth)
    knobs = config.self_train.model_dump(mode="json", exclude=_FREE_KNOBS)
    settings = inputs | {"seed": config.seed} | flatten({"self_train": knobs})
    with stage_run(stage, STAGE, config, key, inputs, settings) as run, ExitStack() as stack:
        if run.done is not None:
            log.info("%s is already self-trained: nothing to do", stage.url)
            return SelfTrainResult(**json.loads(stage.read_bytes(ROUNDS)), was_done=True)
        stack.enter_context(runner.session())  # one for all stages
        model = open_storage(detector, config.storage).url  # absolute, for workers elsewhere
        training = _SelfTraining(
            config,
            archive.storage.url,
            archive,
            model,
            stage,
            runner,
            truth_table,
            tuple(also),
            encoder,
        )
        result = SelfTrainResult(**training.rounds())
        run.finish({"rounds": len(result.rounds) - 1})
        return result


def _truth_table(truth: str, archive: Prepared) -> pa.Table | None:
    """Labels of the whole archive (a synthetic one's truth.csv), for figures only."""
    if not truth:
        return None
    found = read_annotations(truth, recordings=archive.recordings.column("path").to_pylist())
    table, _ = labels_table(found.annotations, archive.recordings, truth)
    if not len(table):
        raise DataError(
            f"--truth {truth} names no recording of {archive.storage.url}: give the truth of this archive"
        )
    return table


@dataclass(frozen=True)
class _Generation:
    """A model and how it scores; round 0 is the seed."""

    round: int
    model: str
    card: Card
    scores: ModelScores


@dataclass(frozen=True)
class _SelfTraining:
    config: Config
    prepared: str
    archive: Prepared
    detector: str
    stage: Storage
    runner: Runner
    truth: pa.Table | None
    also: tuple[str, ...] = ()  # teach in round 1
    encoder: str = ""  # of a fresh student

    def rounds(self) -> dict[str, Any]:
        config = self.config
        self.stage.delete(MANIFEST)
        remove_scratch(self.stage)  # of a run that was killed while it wrote
        seed = self._generation(0, self.detector)
        generations, rows, before = [seed], [round_row(config, 0, seed.scores, seed.scores)], None
        write_rounds(self.stage, rows)
        stopped = ""
        for number in range(1, config.self_train.rounds + 1):
            teacher = generations[-1]
            pseudo = (
                self._pseudo_labels(number, teacher)
                if needs_pseudo_labels(config.self_train.curriculum)
                else None
            )
            verdict, agreement = self._judge(pseudo, before)
            if not verdict.is_sane and config.self_train.governor != "off":
                log.warning("round %d: %s", number, verdict.reason)
                if config.self_train.governor == "stop":
                    # Labels by a student that lost its way: go back to the teacher it came from.
                    stopped = f"round {number}: {verdict.reason}"
                    generations = generations[:-1] if len(generations) > 1 else generations
                    break
            student = self._generation(number, self._train_student(number, teacher, pseudo))
            row = round_row(config, number, student.scores, seed.scores)
            rows.append(row | self._about(pseudo, agreement, verdict) | self._drift(student, teacher, seed))
            write_rounds(self.stage, rows)
            lost = self._reason_to_drop(student, teacher)
            if lost and config.self_train.governor == "stop":
                stopped = f"round {number}: {lost}"
                break
            generations.append(student)
            before = pseudo
            if number < config.self_train.rounds:
                log.info("%s", rounds_text(rows, config.evaluate.average_precision))
                chosen = self._choose(generations)
                log.info("so far, %s", chosen.why)
                self._deliver(generations[chosen.place])
        chosen = self._choose(generations)
        return self._finish(generations[chosen.place], chosen.why, rows, stopped)

    def _folder(self, number: int, name: str) -> str:
        return self.stage.at(f"round{number}/{name}").url

    def _generation(self, number: int, model: str) -> _Generation:
        out, card = self._folder(number, "evaluation"), read_card(model, self.config.storage)
        is_own = card.data_hash == data_hash(
            self.archive
        )  # a seed from elsewhere gets a threshold of this archive
        known = (open_storage(model, self.config.storage).at(ADAPTATION).url,)  # scored when it was trained
        wanted = Wanted(known=known) if is_own else Wanted(threshold="tuned", known=known)
        scores = evaluate_model(self.config, model, self.prepared, out, wanted, runner=self.runner)
        return _Generation(number, model, card, scores)

    def _pseudo_labels(self, number: int, teacher: _Generation) -> PseudoLabels:
        found = self._folder(number, "detections")
        also = self._also(teacher)
        run_pseudo_label(self.config, teacher.model, self.prepared, found, also=also, runner=self.runner)
        places = (f"evaluation/{CHUNKS}", "held_out")
        stored, anew = (open_storage(self._folder(teacher.round, p), self.config.storage) for p in places)
        held = HeldOut(self.config, self.archive, stored, self._doubts_nested(teacher))
        known = (teacher.scores, teacher.card)
        held = as_the_pool_is_heard(held, *known, teacher.model, anew, also=also, runner=self.runner)
        about = teacher_of(held, *known, number)
        detections = open_storage(found, self.config.storage)
        out = self._folder(number, "pseudo")
        return make_pseudo_labels(self.config, self.archive, detections, out, about, runner=self.runner)

    def _also(self, teacher: _Generation) -> tuple[str, ...]:
        """Who teaches beside a teacher."""
        return self.also if teacher.round == 0 else ()

    def _doubts_nested(self, teacher: _Generation) -> bool:
        """Whether a teacher's boxes within better ones are doubted, in the pool as where it is used."""
        return is_doubted(teacher.card, self.config.evaluate)

    def _judge(
        self, pseudo: PseudoLabels | None, before: PseudoLabels | None
    ) -> tuple[Verdict, float | None]:
        if pseudo is None:
            return Verdict(True), None
        knobs = self.config.self_train
        agreement = agreement_f1(pseudo, before, self.config.evaluate.iou) if before is not None else None
        now, last = (PoolFigures(**p.figures["figures"]) if p is not None else None for p in (pseudo, before))
        assert now is not None
        return judge(
            now, last, agreement, knobs.governor_density_ratio, knobs.governor_min_agreement
        ), agreement

    def _reason_to_drop(self, student: _Generation, teacher: _Generation) -> str:
        """Why a student must not be used, however its labels would look: it fell silent or
        fires everywhere on validation.
        """
        if self.config.self_train.governor == "off" or "val" not in student.scores.splits:
            return ""
        if student.scores.threshold.source == "fallback" != teacher.scores.threshold.source:
            reason = "the student finds nothing right on validation, where its teacher did"
        else:
            ratio = self.config.self_train.governor_density_ratio
            reason = judge(
                kept_figures(student.scores), kept_figures(teacher.scores), None, ratio, 0.0
            ).reason
            reason = reason and f"on validation, {reason}"
        if reason:
            log.warning("round %d: %s", student.round, reason)
        return reason

    def _train_student(self, number: int, teacher: _Generation, pseudo: PseudoLabels | None) -> str:
        folder, knobs = {"teacher": teacher.model}, self.config.self_train
        is_fresh = knobs.student == "fresh"
        for step in steps_of(knobs.curriculum):
            labels = LabelSource()
            if step.labels == "truth":
                assert self.truth is not None
                labels = make_truth_labels(
                    self.config, self.archive, self.truth, self._folder(number, "truth")
                )
            elif step.labels != "expert" and pseudo is not None:
                labels = replace(pseudo.source, name=step.labels)
            folder[step.name] = self._folder(number, step.name)
            begins_anew = is_fresh and step.start == "teacher"
            log.info("round %d, %s: training on %s labels", number, step.name, step.labels)
            run_train_detector(
                self.config,
                self.prepared,
                folder[step.name],
                section=step.section,
                labels=labels,
                init_encoder=self.encoder if begins_anew else "",
                init_detector="" if begins_anew else folder[step.start],
                runner=self.runner,
            )
        if is_fresh or not knobs.average_with_teacher:
            return folder[step.name]
        return average_with_teacher(
            self.config,
            self.archive,
            teacher.model,
            folder[step.name],
            self._folder(number, "averaged"),
            knobs.average_with_teacher,
            self.runner,
        )

    def _about(
        self, pseudo: PseudoLabels | None, agreement: float | None, verdict: Verdict
    ) -> dict[str, Any]:
        """What the pseudo-labels of a round look like, and how right they are where truth is known."""
        if pseudo is None:
            return {}
        row: dict[str, Any] = {}
        known = _expert_chunks(self.archive, pseudo.chunks)
        if known is not None:
            own = quality(self.config, self.archive, pseudo, known)
            row |= {f"pseudo_{name}": value for name, value in own.items()}
        if self.truth is not None:
            own = quality(self.config, self.archive, pseudo, pseudo.chunks, self.truth)
            row |= {f"pool_{name}": value for name, value in own.items()}
        row |= pseudo.figures["figures"] | {"pseudo_threshold": pseudo.figures["threshold"]}
        row |= {name: pseudo.figures[name] for name in ("ignored_per_chunk", "ignore_above")}
        row |= {
            "train_chunks": pseudo.figures["train_chunks"],
            "agreement_f1": agreement,
            "governor": verdict.reason or "sane",
        }
        return row | {"boxes_per_chunk_by_site": pseudo.figures["boxes_per_chunk_by_site"]}

    def _drift(self, student: _Generation, teacher: _Generation, seed: _Generation) -> dict[str, float]:
        models = (g.model for g in (student, teacher, seed))
        return drifts(*(read_model(model, "detector", self.config.storage)[0] for model in models))

    def _choose(self, generations: list[_Generation]) -> Choice:
        """Which generation is delivered, and why. Test splits are never asked."""
        last = len(generations) - 1
        if self.config.self_train.rounds == 0:
            return Choice(last, "no round was made (self_train.rounds=0): the detector is as it was trained")
        if self.config.self_train.keep == "last":
            return Choice(last, f"round {generations[last].round} is the last (self_train.keep=last)")
        split = selection_split(self.archive)
        if split not in generations[0].scores.splits:
            return Choice(
                last, f"round {generations[last].round} is the last: no split is held out to choose on"
            )
        rows = [g.scores.sheet.whole(split) for g in generations]
        names = ("f1", f"ap_{self.config.evaluate.average_precision}")
        f1, ap = ([row.figures[name].estimate for row in rows if row is not None] for name in names)
        return best_round(f1, ap, [g.round for g in generations], split)

    def _deliver(self, kept: _Generation) -> dict[str, Any]:
        """A generation as OUT/model, with the threshold it was scored at: that of the split that may choose."""
        weights, card = read_model(kept.model, "detector", self.config.storage)
        chosen = kept.scores.threshold
        threshold = card.score_threshold if chosen.source == "fallback" else chosen.value
        write_model(self.stage.at(MODEL), weights, replace(card, score_threshold=threshold))
        return {"round": kept.round, "model_sha": card.weights_sha256, "threshold": threshold}

    def _finish(
        self, kept: _Generation, why: str, rows: list[dict[str, Any]], stopped: str
    ) -> dict[str, Any]:
        return write_rounds(self.stage, rows, final=self._deliver(kept) | {"why": why}, stopped=stopped)


def kept_figures(scores: ModelScores) -> PoolFigures:
    """What a model keeps of the validation split at its threshold."""
    scored = scores.splits["val"]
    matches, kept = scored.matches, scored.matches.score >= scores.threshold.value
    no_boxes = np.zeros((int(kept.sum()), 4))  # counts are all that is asked for
    return pool_figures(
        PoolDetections(matches.group[kept], no_boxes, matches.score[kept], len(scored.recording_of_group))
    )


def _expert_chunks(archive: Prepared, pool: ChunkSet) -> ChunkSet | None:
    """Chunks of the pool that experts labelled."""
    try:
        train = chunks_of_split(archive, "train")
    except DataError:
        return None
    known = train.take(np.isin(keys_of(train), keys_of(pool)))
    return known if len(known) else None
