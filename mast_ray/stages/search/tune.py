"""`mast tune`: post-processing over stored detections, then loss weights and thresholds
by short trainings on Ray Tune.

OUT/evaluation                   the detector's figures on the held-out splits
OUT/candidates, detections       its boxes in the split searched on before suppression, and in the pool after a loose one: inferred once
OUT/post.json, post_trials.parquet, thresholds.csv    the first search
OUT/trials/<sample>              the second: a folder per trial with all that is known of it (killed, the same command goes on from these)
OUT/trials.parquet, trials.csv   every trial with its sample and F1
OUT/best.yaml                    what `mast self-train --config` takes
DETECTOR/card.json               says the best post-processing with one threshold, or one for every site, from then on: whoever uses the model applies it
OUT/model                        in place of it a copy, where the detector comes with the package or may not be written to
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Any, Literal

import pyarrow as pa

from mast_ray.config.errors import ConfigError, DataError
from mast_ray.config.loading import apply_overrides, config_to_yaml, flatten
from mast_ray.config.tree import Config
from mast_ray.evaluation.figure_tables import csv_bytes
from mast_ray.inference.chunk_scores import CHUNKS, unsuppressed
from mast_ray.inference.tuned_detector import is_doubted
from mast_ray.reporting.figures import png_bytes
from mast_ray.reporting.search_figures import search_figure, threshold_figure
from mast_ray.self_training.curriculum import needs_truth
from mast_ray.self_training.operator import EVEN_WEIGHT
from mast_ray.self_training.pool import has_parts
from mast_ray.self_training.trial_records import SAMPLE, TRIALS, ended_rows
from mast_ray.stages.detect.chunks import ChunkTask, detect_chunks
from mast_ray.stages.runner import ON_RAY, Runner
from mast_ray.stages.score.evaluate import EVERYTHING, ModelScores, Wanted, evaluate_model
from mast_ray.stages.search.loss_trial import LossTask, loss_overrides
from mast_ray.stages.search.post_processing import objective_chunks, run_post_search
from mast_ray.stages.search.trial import TrialTask, sampled_overrides
from mast_ray.stages.self_train.pseudo_label import run_pseudo_label
from mast_ray.stages.self_train.settings import LEARNED_BY
from mast_ray.stages.self_train.teacher_thresholds import HeldOut, as_the_pool_is_heard, teacher_of
from mast_ray.storage.stage_folders import read_manifest, sections_hash, text_hash
from mast_ray.storage.stage_run import StageRun, open_output, stage_run
from mast_ray.storage.storage import Storage, full_url, open_storage
from mast_ray.tables.prepared import Prepared, data_hash, open_prepared, write_table
from mast_ray.training.data.archive_inputs import (
    as_trained,
    of_student,
    refuse_unfit_starts,
    with_model_of,
)
from mast_ray.training.files.model_files import CARD, WEIGHTS, read_card, write_card
from mast_ray.training.files.post_processing import PostProcessing
from mast_ray.training.files.shipped import is_shipped

log = logging.getLogger("mast.tune")

STAGE, BEST_CONFIG, MODEL = "tune", "best.yaml", "model"
What = Literal["both", "post", "training"]


@dataclass(frozen=True)
class TuneResult:
    """What best.json says."""

    best: dict[str, Any]  # config keys
    objective: float | None  # F1 of the best
    trials: list[dict[str, Any]]  # rows of trials.csv that came to a result
    was_done: bool = False
    post: PostProcessing | None = None  # for the detector's card
    model: str = ""  # whose card says it; not written


def run_tune(
    config: Config,
    prepared: str,
    detector: str,
    out: str,
    *,
    what: What = "both",
    runner: Runner = ON_RAY,
    self_trained: str = "",
) -> TuneResult:
    """Search. Finished, it has nothing to do.

    `self_trained` names a folder of self-training from this detector whose stored detections are used.
    """
    if needs_truth(config.self_train.curriculum) and what != "post":
        raise ConfigError(
            "a trial has no truth of the pool, which self_train.curriculum=ceiling trains on: tune with another curriculum"
        )
    stage = open_output(out, STAGE, config.storage)
    refuse_unfit_starts(config, "", detector)
    archive = open_prepared(prepared, config.storage)
    card = read_card(detector, config.storage)
    asked = config.evaluate.post
    # trials train students: one of a detector that was never trained begins with no weights, in the network of the settings
    own = as_trained(config, card) if what == "post" else of_student(config, card, detector)
    config = apply_overrides(own, {"evaluate.post": "none"})  # what is searched over
    objective_chunks(archive, config.tune.objective_split)
    inputs = {"prepared": data_hash(archive), "detector": card.weights_sha256}
    key = search_key(config, what)
    knobs = flatten({"tune": config.tune.model_dump(mode="json", exclude={"trials", "concurrent"})})
    settings = inputs | {"seed": config.seed} | knobs
    rounds = (
        rounds_of(self_trained, card.weights_sha256, inputs["prepared"], config) if self_trained else None
    )
    with stage_run(stage, STAGE, config, key, inputs, settings) as run, ExitStack() as stack:
        if run.done is not None:
            log.info("%s is already tuned: nothing to do", stage.url)
            return _with_model(_read_result(stage), detector, stage, config, when="missing")
        stack.enter_context((runner if what == "post" else ON_RAY).session())  # trials always run on Ray
        # absolute: trials run in folders of their own
        model = open_storage(detector, config.storage).url
        doubts = is_doubted(card, config.evaluate.model_copy(update={"post": asked}))
        search = _Search(config, archive.storage.url, archive, model, stage, runner, rounds, doubts)
        found = _with_model(search.run(what), detector, stage, config)
        # whoever takes the settings hears the detector with what its card says from now on, as tuned here
        _finish(run, apply_overrides(config, {"evaluate.post": asked}), found)
        return found


def rounds_of(self_trained: str, model: str, prepared: str, config: Config) -> Storage:
    """A folder of self-training that began with this model on this archive: what it stored is used."""
    rounds = open_storage(self_trained, config.storage)
    made = read_manifest(rounds.at("round0/evaluation"))
    if made is None:
        raise DataError(
            f"{rounds.url} holds no finished round 0 of `mast self-train`:\n"
            "check --self-trained, or leave it out, and the detector is run again"
        )
    for name, what, own in (("model", "detector", model), ("prepared", "archive or other splits", prepared)):
        if made.inputs.get(name) != own:
            raise ConfigError(
                f"{rounds.url} began with another {what}:\n"
                "name that one, or leave --self-trained out, and the detector is run again"
            )
    return rounds


def search_key(config: Config, what: What) -> str:
    """Names everything that a search depends on besides the archive and the detector; trials train students."""
    parts = ("self_train", "evaluate", "seed") if what == "post" else LEARNED_BY
    return text_hash(sections_hash(config, "tune", *parts) + what)


def run_tune_losses(
    config: Config, prepared: str, out: str, *, encoder: str = "", detector: str = ""
) -> TuneResult:
    """Search the loss weights of supervised training by short trainings from an encoder, from a detector or from
    nothing; always on Ray. Finished, it has nothing to do. OUT/best.yaml is for `mast train --config`.
    """
    stage = open_output(out, STAGE, config.storage)
    refuse_unfit_starts(config, encoder, detector)
    archive = open_prepared(prepared, config.storage)
    if detector:
        config = with_model_of(config, read_card(detector, config.storage), detector)
    objective_chunks(archive, config.tune.objective_split)
    task = LossTask(config, archive.storage.url, stage.url, full_url(encoder), full_url(detector))
    inputs = {"prepared": data_hash(archive)}
    knobs = flatten({"tune": config.tune.model_dump(mode="json", exclude={"trials", "concurrent"})})
    settings = inputs | {"over": "loss", "seed": config.seed} | knobs | task.settings()
    key = text_hash(json.dumps(settings | {"trials": config.tune.trials}, sort_keys=True))
    with stage_run(stage, STAGE, config, key, inputs, settings) as run:
        if run.done is not None:
            log.info("%s is already tuned: nothing to do", stage.url)
            return _read_result(stage)
        from mast_ray.stages.search.training_search import search_losses  # loads Ray Tune

        with ON_RAY.session():
            rows = _write_trials(stage, search_losses(task))
        sample, objective = _best_sample(rows, "loss weights", config.tune.objective_split)
        found = TuneResult(loss_overrides(config, sample), objective, rows)
        _finish(run, config, found)
        return found


def _finish(run: StageRun, config: Config, found: TuneResult) -> None:
    """Leave the settings that were found, and what led to them."""
    run.begin_anew()
    run.stage.write_atomic(BEST_CONFIG, config_to_yaml(apply_overrides(config, found.best)).encode())
    record = {"best": found.best, "objective": found.objective, "trials": found.trials}
    record |= {"post": found.post.to_dict()} if found.post is not None else {}
    run.stage.write_atomic("best.json", json.dumps(record, indent=1).encode())
    run.finish({"trials": len(found.trials), "objective": found.objective})


def _best_sample(rows: Sequence[Mapping[str, Any]], what: str, split: str) -> tuple[dict[str, float], float]:
    """(what the best trial was given, its F1), of those that came to their end: one that was stopped early has the F1 of the
    stage it was in. Nothing, where no trial finds a call: any of them would be as good.
    """
    ended = ended_rows(rows)
    if not ended:
        log.warning("every trial was stopped early: no setting is chosen by that (--set tune.scheduler=none)")
        return {}, 0.0
    top = max(ended, key=lambda row: row["objective"])
    if not top["objective"]:
        log.warning("no trial finds a call of %s: no setting is chosen by that", split)
        return {}, 0.0
    sample = {name.removeprefix(SAMPLE): value for name, value in top.items() if name.startswith(SAMPLE)}
    log.info("%s: F1 %.4f with %s", what, top["objective"], _text(sample))
    return sample, top["objective"]


def _write_trials(stage: Storage, rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Tables and figure of all trials; returns those that came to a result."""
    names = list(dict.fromkeys(name for row in rows for name in row))
    write_table(stage, TRIALS, pa.table({n: [row.get(n) for row in rows] for n in names}))
    stage.write_atomic("trials.csv", csv_bytes(names, ([_cell(row.get(n)) for n in names] for row in rows)))
    rows = [row for row in rows if row["objective"] is not None]
    stage.write_atomic("trials.png", png_bytes(search_figure(ended_rows(rows) or rows, "objective")))
    return rows


class _Search:
    def __init__(
        self,
        config: Config,
        prepared: str,
        archive: Prepared,
        detector: str,
        stage: Storage,
        runner: Runner,
        rounds: Storage | None,
        doubts_nested: bool,
    ) -> None:
        self.config, self.prepared, self.archive = config, prepared, archive
        self.detector, self.stage, self.runner = detector, stage, runner
        self.doubts_nested = doubts_nested  # as the rounds do that the settings are for
        # What self-training has stored is taken up where it is just what is searched over, and never written to: its figures
        # are those of the detector with what its card said then.
        self.evaluation = stage.at("evaluation")
        self.known = Wanted(known=(rounds.at("round0/evaluation").url,)) if rounds else EVERYTHING
        self.pool = rounds.at("round1/detections") if rounds else stage.at("detections")

    def run(self, what: What) -> TuneResult:
        places = (self.detector, self.prepared)
        scores = evaluate_model(self.config, *places, self.evaluation.url, self.known, runner=self.runner)
        best: dict[str, Any] = {}
        objective = None
        delivered = None
        if what != "training":
            found, split = self.stage.at("candidates"), self.config.tune.objective_split
            task = ChunkTask(
                self.config, *places, found.url, (split,), unsuppressed(self.config), "repeatable"
            )
            detect_chunks(task, self.runner)
            post = run_post_search(self.config, self.archive, found, self.stage)
            objective = post.best["objective"]
            figure = threshold_figure(post.curve, split, post.best["threshold"])
            self.stage.write_atomic("thresholds.png", png_bytes(figure))
            if objective > 0:
                best, delivered = post.overrides(), post.delivered(split)
                log.info("post-processing: F1 %.4f with %s", objective, _text(best))
                log.info("%s", post.by_site.text())
            else:
                log.warning(
                    "nothing that the detector finds in %s is right at any threshold: no setting is chosen by that",
                    split,
                )
        if what == "post":
            return TuneResult(best, objective, [], post=delivered)
        rows = self._search_training(apply_overrides(self.config, best), scores)
        sample, objective = _best_sample(rows, "training", self.config.tune.objective_split)
        best |= sampled_overrides(self.config, sample)
        return TuneResult(best, objective, rows, post=delivered)

    def _search_training(self, config: Config, scores: ModelScores) -> list[dict[str, Any]]:
        is_reweighed = config.self_train.score_weight != EVEN_WEIGHT
        own = self.stage.at("detections")
        card = read_card(self.detector, config.storage)
        inputs = {"model": card.weights_sha256, "prepared": data_hash(self.archive)}
        # self-training's are taken as they are, of the whole pool or of a part
        pool = usable_pool(self.pool, own, is_reweighed, inputs)
        if pool.url == own.url:
            run_pseudo_label(config, self.detector, self.prepared, pool.url, runner=self.runner)
        held = HeldOut(config, self.archive, self.evaluation.at(CHUNKS), self.doubts_nested)
        again = self.stage.at("held_out")
        held = as_the_pool_is_heard(held, scores, card, self.detector, again, runner=self.runner)
        teacher = teacher_of(held, scores, card, 1)
        task = TrialTask(config, self.prepared, self.detector, pool.url, teacher, self.stage.url)
        from mast_ray.stages.search.training_search import search_training  # loads Ray Tune

        return _write_trials(self.stage, search_training(task, teacher.threshold))


def _read_result(stage: Storage) -> TuneResult:
    record = json.loads(stage.read_bytes("best.json"))
    post = record.pop("post", None)
    return TuneResult(**record, was_done=True, post=None if post is None else PostProcessing.from_dict(post))


def _with_model(
    found: TuneResult,
    detector: str,
    stage: Storage,
    config: Config,
    when: Literal["always", "missing"] = "always",
) -> TuneResult:
    """The post-processing that was found in the detector's card, or in that of a copy where the detector comes with the
    package or may not be written to, which would be found out after the search: every archive is heard with that one.
    `missing`: where the card says none, as that of a copy made before.
    """
    if found.post is None:
        return found
    source = open_storage(detector, config.storage)
    model = stage.at(MODEL) if is_shipped(detector) or _is_locked(source) else source
    if model.stat(CARD) is None:
        for name in (WEIGHTS, CARD):
            model.write_atomic(name, source.read_bytes(name))
    if when == "always" or read_card(model).post is None:
        _deliver(model, found.post)
    return replace(found, model=model.url)


def _is_locked(folder: Storage) -> bool:
    """A colleague's folder, or a disk that is mounted to be read; of a bucket it is not known before."""
    local = folder.local_path("")
    return local is not None and not os.access(local, os.W_OK)


def _deliver(model: Storage, post: PostProcessing) -> None:
    """Leave what was found in the detector's card: detect, evaluate and pseudo-label do the same with its boxes."""
    card = read_card(model)
    before = PostProcessing.from_dict(card.post) if card.post is not None else None
    had: tuple[float, dict[str, float], bool] = (EVEN_WEIGHT, {}, card.doubts_nested)
    if before is not None:
        had = (before.score_weight, before.site_thresholds, before.doubts_nested)
    calibration = card.calibration
    if calibration is not None and had != (post.score_weight, post.site_thresholds, post.doubts_nested):
        calibration = None
        log.warning("%s: its scores are others now: run `mast calibrate` again for probabilities", model.url)
    card = replace(
        card, post=post.to_dict(), doubts_nested=post.doubts_nested, score_threshold=post.threshold,
        calibration=calibration,
    )  # fmt: skip
    write_card(model, card)
    log.info("%s/card.json now says: %s", model.url, post.text())


def usable_pool(stored: Storage, own: Storage, is_reweighed: bool, inputs: Mapping[str, str]) -> Storage:
    """Where trials find detections of the pool: those of self-training, unless they are not whole, of others as well, or
    lack what another weight of the score needs.
    """
    if stored.url == own.url:
        return own
    if not holds_detections(stored, inputs):
        log.info("%s holds no finished detections by this detector alone: detecting again", stored.url)
        return own
    if not is_reweighed or has_parts(stored):
        return stored
    log.info("%s holds scores only, another weight needs their parts: detecting again", stored.url)
    return own


def holds_detections(pool: Storage, inputs: Mapping[str, str]) -> bool:
    """Whether a folder holds finished detections by this model in this archive."""
    made = read_manifest(pool)
    return made is not None and made.inputs == inputs


def _text(values: Mapping[str, Any]) -> str:
    return ", ".join(
        f"{name} {value:.4g}" if isinstance(value, float) else f"{name} {value}"
        for name, value in values.items()
    )


def _cell(value: Any) -> Any:
    return "" if value is None else value


def best_rows(rows: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """The best trials, best first; those that were stopped early come last."""
    ended = [row["trial"] for row in ended_rows(rows)]
    return sorted(rows, key=lambda row: (row["trial"] not in ended, -row["objective"]))[:5]
