"""`mast compare`: a list of methods trained and scored alike over several seeds,
and the paper's tables of them.

OUT/encoder                     pretrained once, shared by every method that starts from it (or given)
OUT/runs/METHOD/seedK/model     detector; self_training/ instead where the method self-trains
OUT/runs/METHOD/seedK/scores    its detections and figures on every split
OUT/in_domain.md .tex, ...      the tables; tables.csv has all of them, comparison.md too; comparison.json is what the report reads

Every run is skipped when its folder already holds the result.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from mast_ray.config.errors import DataError
from mast_ray.config.tree import Config
from mast_ray.evaluation.scoring import sums_of
from mast_ray.evaluation.split_truth import scored_splits
from mast_ray.stages.runner import HERE, ON_RAY, Runner
from mast_ray.stages.score.evaluate import Wanted, evaluate_model
from mast_ray.stages.studies.comparison_tables import TABLES, Scores, comparison_files
from mast_ray.stages.studies.methods import Method, as_long_as_self_training, with_needed
from mast_ray.stages.studies.run_grid import Outcome, Run, refuse_all_failed, refuse_failures, run_grid
from mast_ray.stages.train.summary import SUMMARY, read_summary
from mast_ray.storage.stage_folders import sections_hash, text_hash
from mast_ray.storage.stage_run import open_output, stage_run
from mast_ray.storage.storage import full_url, open_storage
from mast_ray.tables.prepared import Prepared, data_hash, open_prepared
from mast_ray.tables.reading.chunk_sets import chunks_of_split
from mast_ray.training.data.archive_inputs import refuse_no_encoder
from mast_ray.training.data.labels import expert_chunks

log = logging.getLogger("mast.compare")

STAGE = "compare"


@dataclass(frozen=True)
class Comparison:
    """What is compared on what."""

    config: Config
    prepared: str
    out: str
    methods: tuple[Method, ...]
    seeds: tuple[int, ...]
    encoder: str = ""  # of `mast pretrain`; empty: pretrained here
    audiomae: str = ""  # public weights, for the method of that name

    @property
    def splits(self) -> tuple[str, ...]:
        return ("val", *(split for split, _ in TABLES.values()))


def run_comparison(study: Comparison, runner: Runner = ON_RAY) -> dict[str, Any]:
    """Run what is missing, write the tables, and return {"tables": Markdown, "outcomes": ...}."""
    config = study.config
    stage = open_output(study.out, STAGE, config.storage)
    archive = open_prepared(study.prepared, config.storage)
    splits = splits_of(study, archive)
    if not set(splits) - {"val"}:
        raise DataError(
            f"{study.prepared} has no split to test on: deal the recordings again with `mast split`"
        )
    refuse_no_encoder(study.encoder, config)
    refuse_no_encoder(study.audiomae, config)
    names = [[method.name for method in study.methods], list(study.seeds), splits]
    sections = sections_hash(config, "model", "detector", "self_train", "evaluate", "augment")
    key, inputs = text_hash(sections + json.dumps(names)), {"prepared": data_hash(archive)}
    with stage_run(stage, STAGE, config, key, inputs, when_done="again") as run:  # every run skips itself
        encoder = study.encoder
        if not encoder and any(method.start == "own" for method in study.methods):
            encoder = stage.at("encoder").url
            _pretrain(study, encoder, runner)
        outcomes = run_grid(planned_runs(study, archive, encoder, splits), config, runner)
        refuse_all_failed(outcomes, stage.url)
        scores = read_scores(study, archive, outcomes)
        files, text = comparison_files(study.methods, scores, config)
        for name, content in files.items():
            stage.write_atomic(name, content)
        refuse_failures(outcomes, stage.url)
        run.finish({"methods": len(study.methods), "seeds": len(study.seeds), "runs": len(outcomes)})
    return {"tables": text, "outcomes": outcomes}


def splits_of(study: Comparison, archive: Prepared) -> tuple[str, ...]:
    """The splits of the study that the archive has."""
    return tuple(split for split in scored_splits(archive) if split in study.splits)


def planned_runs(study: Comparison, archive: Prepared, encoder: str, splits: Sequence[str]) -> list[Run]:
    """Every method with every seed; methods that self-train wait for `mast` with the same seed."""
    num_train, num_pool = len(expert_chunks(archive, study.config)), len(chunks_of_split(archive, "pool"))
    runs = []
    for seed in study.seeds:
        for method in with_needed(study.methods):
            config = method.config(study.config, seed)
            if method.length == "as_self_training":
                config = as_long_as_self_training(config, num_train, num_pool)
            folder = run_folder(study.out, method.name, seed)
            start = {"own": encoder, "public": study.audiomae, "nothing": ""}[method.start]
            after = ""
            if method.self_trains:
                start, after = f"{run_folder(study.out, 'mast', seed)}/model", f"mast, seed {seed}"
            places = map(full_url, (study.prepared, folder, start))  # workers stand in folders of their own
            arguments = (config, *places, method.self_trains, tuple(splits))
            runs.append(Run(f"{method.name}, seed {seed}", run_method, arguments, after))
    first = {"mast": 0}  # what others wait for, first
    return sorted(runs, key=lambda run: first.get(run.name.split(",")[0], 1))


def run_folder(out: str, method: str, seed: int) -> str:
    return f"{out.rstrip('/')}/runs/{method}/seed{seed}"


def run_method(
    config: Config, prepared: str, folder: str, start: str, self_trains: bool, splits: tuple[str, ...]
) -> dict[str, Any]:
    """Train one method with one seed in this process, and score it; what is done is skipped."""
    from mast_ray.stages.train.pieces import run_teach_pieces
    from mast_ray.stages.train.train import run_train_detector

    if self_trains:
        from mast_ray.stages.self_train.self_train import run_self_train

        result = run_self_train(config, prepared, start, f"{folder}/self_training", runner=HERE)
        model = f"{folder}/self_training/model"
        samples = _self_trained_samples(config, start, f"{folder}/self_training")
        rounds = {"final_round": result.final.get("round"), "stopped": result.stopped}
    elif not config.model.learns:
        model, rounds, samples = f"{folder}/model", {}, 0
        run_teach_pieces(config, prepared, model, runner=HERE)
    else:
        model, rounds = f"{folder}/model", {}
        samples = run_train_detector(config, prepared, model, init_encoder=start, runner=HERE).samples
    scores = evaluate_model(config, model, prepared, f"{folder}/scores", Wanted(splits), runner=HERE)
    threshold = {"threshold": scores.threshold.value, "threshold_from": scores.threshold.source}
    return {"samples": samples} | threshold | rounds


def _self_trained_samples(config: Config, seed_model: str, folder: str) -> int:
    """Samples seen by the seed detector and by every stage of every round."""
    samples = _samples(config, seed_model)
    stage = open_storage(folder, config.storage)
    for entry in stage.list():
        if entry.key.endswith(f"/{SUMMARY}"):
            samples += _samples(config, stage.at(entry.key.rpartition("/")[0]).url)
    return samples


def _samples(config: Config, folder: str) -> int:
    return read_summary(open_storage(folder, config.storage)).samples


def _pretrain(study: Comparison, encoder: str, runner: Runner) -> None:
    from mast_ray.stages.train.train import run_pretrain

    log.info("pretraining the encoder that the methods share")
    run_pretrain(study.config, study.prepared, encoder, runner=runner)


def read_scores(study: Comparison, archive: Prepared, outcomes: dict[str, Outcome]) -> Scores:
    """method -> table -> per-recording sums of every seed that succeeded, at its own threshold."""
    scores = Scores({}, {}, {}, {})
    for method in study.methods:
        for seed in study.seeds:
            outcome = outcomes[f"{method.name}, seed {seed}"]
            if outcome.result is None:
                continue
            scores.samples.setdefault(method.name, []).append(outcome.result["samples"])
            folder = run_folder(study.out, method.name, seed)
            places = (_model_folder(study.out, method, seed), study.prepared, f"{folder}/scores")
            config = method.config(study.config, seed)
            found = evaluate_model(config, *places, Wanted(splits_of(study, archive)), runner=HERE)
            for key, (split, _) in TABLES.items():
                if split in found.splits:
                    scored = found.splits[split]
                    sums = scores.sums.setdefault(method.name, {}).setdefault(key, {})
                    sums[seed] = sums_of(scored, found.threshold.value)
                    scores.num_calls[key] = scored.matches.num_truth
                    scores.num_recordings[key] = scored.num_recordings
    return scores


def _model_folder(out: str, method: Method, seed: int) -> str:
    folder = run_folder(out, method.name, seed)
    return f"{folder}/self_training/model" if method.self_trains else f"{folder}/model"
