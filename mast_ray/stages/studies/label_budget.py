"""`mast label-budget`: how good a detector becomes with N labelled chunks, drawn by one strategy or another.

OUT/encoder                          pretrained once where the model starts from one (or given)
OUT/runs/STRATEGY/N/seedK/           model and scores of one training
OUT/label_budget.json .csv           the learning curves on the test split, as the report draws them
OUT/label_budget_splits.csv          the same on every split;  gains.csv: strategies against the first one

By default every one goes over as many samples as the full training set would (epochs grow as N shrinks):
the curve then shows labels, not the length of training.
"""

from __future__ import annotations

import json
from dataclasses import astuple, dataclass, fields
from typing import Any, Literal

from mast_ray.config.errors import ConfigError, DataError
from mast_ray.config.loading import apply_overrides
from mast_ray.config.stage_knobs import DetectorTrainConfig, lengthened, rescaled_epochs
from mast_ray.config.tree import Config
from mast_ray.evaluation.figure_tables import csv_bytes, interval_text
from mast_ray.evaluation.intervals import Interval, RecordingSums
from mast_ray.evaluation.label_budget import (
    CURVES,
    BudgetRun,
    CurvePoint,
    CurveRow,
    chunks_needed,
    curves_to_json,
    strategy_gains,
)
from mast_ray.evaluation.scoring import sums_of
from mast_ray.evaluation.seed_intervals import SeedInterval, seed_intervals
from mast_ray.evaluation.split_truth import scored_splits
from mast_ray.stages.runner import HERE, ON_RAY, Runner
from mast_ray.stages.score.evaluate import Wanted, evaluate_model
from mast_ray.stages.studies.run_grid import Outcome, Run, refuse_all_failed, refuse_failures, run_grid
from mast_ray.storage.stage_folders import sections_hash, text_hash
from mast_ray.storage.stage_run import open_output, stage_run
from mast_ray.storage.storage import full_url
from mast_ray.tables.prepared import Prepared, data_hash, open_prepared
from mast_ray.tables.reading.chunk_sets import chunks_of_split, heard_chunks
from mast_ray.training.assembly import FROM_SCRATCH
from mast_ray.training.data.archive_inputs import refuse_no_encoder

STAGE = "label-budget"
STRATEGIES = ("random", "time_balanced", "sequential")
SHOWN = ("f1", "precision", "recall", "ap_area", "mean_iou", "time_f1")
Match = Literal["samples", "epochs"]


@dataclass(frozen=True)
class BudgetStudy:
    """Which budgets, strategies and seeds on what."""

    config: Config
    prepared: str
    out: str
    budgets: tuple[int, ...]
    strategies: tuple[str, ...] = STRATEGIES
    seeds: tuple[int, ...] = (0,)
    encoder: str = ""
    match: Match = "samples"


@dataclass(frozen=True)
class Training:
    """One training run of the grid."""

    strategy: str
    num_chunks: int
    seed: int

    @property
    def name(self) -> str:
        return f"{self.strategy}, {self.num_chunks} chunks, seed {self.seed}"

    @property
    def folder(self) -> str:
        return f"runs/{self.strategy}/{self.num_chunks}/seed{self.seed}"


def run_label_budget(study: BudgetStudy, runner: Runner = ON_RAY) -> str:
    """Run what is missing, write the curves, and return them as text."""
    config = study.config
    stage = open_output(study.out, STAGE, config.storage)
    archive = open_prepared(study.prepared, config.storage)
    check_study(study, archive)
    grid = json.dumps([study.budgets, study.strategies, study.seeds, study.match])
    key = text_hash(sections_hash(config, "model", "detector", "evaluate", "augment") + grid)
    inputs = {"prepared": data_hash(archive)}
    with stage_run(
        stage, STAGE, config, key, inputs, when_done="again"
    ) as run:  # every training skips itself
        encoder = study.encoder
        if not encoder and config.model.name not in FROM_SCRATCH:
            from mast_ray.stages.train.train import run_pretrain

            encoder = stage.at("encoder").url
            run_pretrain(config, study.prepared, encoder, runner=runner)
        outcomes = run_grid(planned_runs(study, archive, encoder), config, runner)
        refuse_all_failed(outcomes, stage.url)
        rows, text = curve_rows(study, archive, outcomes)
        for name, content in rows.items():
            stage.write_atomic(name, content)
        refuse_failures(outcomes, stage.url)
        run.finish({"runs": len(outcomes)})
    return text


def check_study(study: BudgetStudy, archive: Prepared) -> None:
    """Mistakes are told before anything is trained."""
    unknown = [name for name in study.strategies if name not in STRATEGIES]
    if unknown:
        raise ConfigError(f"--strategies {unknown[0]} is not known: choose from {', '.join(STRATEGIES)}")
    most = len(heard_chunks(archive, chunks_of_split(archive, "train")))
    too_many = [n for n in study.budgets if n > most or n < 1]
    if too_many:
        raise ConfigError(
            f"--budgets {too_many[0]} is not between 1 and the {most} labelled training chunks there are"
        )
    refuse_no_encoder(study.encoder, study.config)
    if "test" not in scored_splits(archive):
        raise DataError(f"{study.prepared} has no test split: deal the recordings again with `mast split`")


def trainings_of(study: BudgetStudy) -> list[Training]:
    """The grid; small budgets first, so that a curve appears early."""
    return [
        Training(strategy, n, seed)
        for n in sorted(set(study.budgets))
        for strategy in study.strategies
        for seed in study.seeds
    ]


def training_config(config: Config, training: Training, num_train: int, match: Match) -> Config:
    """The config of one training; with match "samples" its epochs are stretched to
    the samples of the full set, with "epochs" they are as many, however few steps those take.
    """
    changes: dict[str, Any] = {
        "seed": training.seed,
        "split.budget_chunks": training.num_chunks,
        "split.budget_strategy": training.strategy,
    }
    if match == "samples":
        full = lengthened(config.detector, num_train)  # as `mast train` takes it
        changes |= {
            f"detector.{name}": value
            for name, value in stretched(full, training.num_chunks, num_train).items()
        }
    else:
        changes["detector.min_steps"] = 0
    return apply_overrides(config, changes)


def stretched(knobs: DetectorTrainConfig, num_chunks: int, num_train: int) -> dict[str, Any]:
    """Knobs counted in epochs, so that as many steps are made over `num_chunks` as over `num_train`."""
    steps = knobs.epochs * max(1, num_train // knobs.batch_size)
    epochs = max(1, round(steps / max(1, num_chunks // knobs.batch_size)))
    every = {"validate_every_epochs": knobs.validate_every_epochs * epochs / knobs.epochs}
    return rescaled_epochs(knobs, epochs) | every


def planned_runs(study: BudgetStudy, archive: Prepared, encoder: str) -> list[Run]:
    num_train, splits = len(heard_chunks(archive, chunks_of_split(archive, "train"))), scored_splits(archive)
    runs = []
    for training in trainings_of(study):
        config = training_config(study.config, training, num_train, study.match)
        # absolute: workers stand in folders of their own
        places = map(full_url, (study.prepared, f"{study.out.rstrip('/')}/{training.folder}", encoder))
        runs.append(Run(training.name, run_training, (config, *places, splits)))
    return runs


def run_training(
    config: Config, prepared: str, folder: str, encoder: str, splits: tuple[str, ...]
) -> dict[str, Any]:
    """Train and score in this process; what is done is skipped."""
    from mast_ray.stages.train.train import run_train_detector

    start = "" if config.model.name in FROM_SCRATCH else encoder
    summary = run_train_detector(config, prepared, f"{folder}/model", init_encoder=start, runner=HERE)
    scores = evaluate_model(
        config, f"{folder}/model", prepared, f"{folder}/scores", Wanted(splits), runner=HERE
    )
    return {
        "samples": summary.samples,
        "train_chunks": summary.train_chunks,
        "threshold": scores.threshold.value,
    }


def curve_rows(
    study: BudgetStudy, archive: Prepared, outcomes: dict[str, Outcome]
) -> tuple[dict[str, bytes], str]:
    """(files, text) of the curves over all trainings that succeeded."""
    splits = scored_splits(archive)
    sums: dict[tuple[str, int, str], list[RecordingSums]] = {}
    single: list[BudgetRun] = []
    num_train = len(heard_chunks(archive, chunks_of_split(archive, "train")))
    for training in trainings_of(study):
        if outcomes[training.name].result is None:
            continue
        folder = f"{study.out.rstrip('/')}/{training.folder}"
        config = training_config(study.config, training, num_train, study.match)
        places = (f"{folder}/model", study.prepared, f"{folder}/scores")
        found = evaluate_model(config, *places, Wanted(splits), runner=HERE)
        for split, scored in found.splits.items():
            own = sums.setdefault((training.strategy, training.num_chunks, split), [])
            own.append(sums_of(scored, found.threshold.value))
        row = found.sheet.whole("test")
        assert row is not None
        single.append(BudgetRun(*_key(training), row.figures["f1"].estimate))
    points = {
        key: seed_intervals(own, study.config.evaluate.bootstrap, study.config.seed)
        for key, own in sums.items()
    }
    rows = [curve_row(*key, found, sums[key][0].num_recordings) for key, found in points.items()]
    main = [row for row in rows if row.split == "test"]
    names = [field.name for field in fields(CurveRow)]
    gains = [
        (other, gain.num_chunks, gain.mean, gain.low, gain.high, gain.num_seeds)
        for other in study.strategies[1:]
        for gain in strategy_gains(single, study.strategies[0], other)
    ]
    gain_names = ("strategy", "num_chunks", f"f1_minus_{study.strategies[0]}", "low", "high", "num_seeds")
    files = {
        CURVES: curves_to_json(main),
        "label_budget.csv": csv_bytes(names, map(astuple, main)),
        "label_budget_splits.csv": csv_bytes(names, map(astuple, rows)),
        "gains.csv": csv_bytes(gain_names, gains),
    }
    return files, curves_text(points, study)


def _key(training: Training) -> tuple[str, int, int]:
    return training.strategy, training.num_chunks, training.seed


def curve_row(
    strategy: str, num_chunks: int, split: str, found: dict[str, SeedInterval], num_recordings: int
) -> CurveRow:
    ends = {"": 0, "_low": 1, "_high": 2}
    figures = {f"{name}{end}": found[name][place] for name in SHOWN for end, place in ends.items()}
    return CurveRow(split, strategy, num_chunks, found["recall"].num_seeds, num_recordings, **figures)


def curves_text(points: dict[tuple[str, int, str], dict[str, SeedInterval]], study: BudgetStudy) -> str:
    """F1 on the test split by budget and strategy, and how many chunks reach 95 % of the best."""
    width = 24
    lines = ["F1 on the test split, mean over seeds with 95 % interval (recordings and seeds)"]
    lines.append(f"{'chunks':>8}" + "".join(f"{name:>{width}}" for name in study.strategies))
    for n in sorted(set(study.budgets)):
        texts = []
        for strategy in study.strategies:
            one = points.get((strategy, n, "test"), {}).get("f1")
            texts.append("-" if one is None else interval_text(Interval(*one[:3])))
        lines.append(f"{n:>8}" + "".join(f"{text:>{width}}" for text in texts))
    curves = {
        strategy: [CurvePoint(s, n, found["f1"].estimate, *found["f1"][1:]) for (s, n, split), found in points.items()
                   if s == strategy and split == "test" and found["f1"].num_seeds]
        for strategy in study.strategies
    }  # fmt: skip
    best = max((point.mean for curve in curves.values() for point in curve), default=0.0)
    for strategy, curve in curves.items() if best else ():  # of nothing no share is reached
        needed = chunks_needed(curve, 0.95 * best)
        said = f"about {needed:.0f} chunks" if needed == needed else "not reached"
        lines.append(f"{strategy}: 95 % of the best F1 ({0.95 * best:.3f}) with {said}")
    if any(found["f1"].low != found["f1"].low for (_, _, split), found in points.items() if split == "test"):
        lines.append("no interval: one test recording, or none with a call or a detection")
    if len(study.seeds) == 1:
        lines.append("one seed: noise of training is not in the intervals")
    return "\n".join(lines)
