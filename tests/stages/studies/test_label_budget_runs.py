"""Learning curves over label budgets."""

import csv
import json
from dataclasses import replace

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from study_archive import make_study_archive, study_config

from mast_ray.config.errors import ConfigError, MastError
from mast_ray.config.recipes import field, tiny
from mast_ray.config.stage_knobs import lengthened
from mast_ray.evaluation.label_budget import curves_from_json
from mast_ray.evaluation.seed_intervals import SeedInterval
from mast_ray.reporting.report.collect_studies import budget_series
from mast_ray.stages.runner import HERE
from mast_ray.stages.studies import label_budget
from mast_ray.stages.studies.compare import Comparison, planned_runs
from mast_ray.stages.studies.label_budget import (
    BudgetStudy,
    Training,
    check_study,
    curves_text,
    run_label_budget,
    stretched,
    training_config,
    trainings_of,
)
from mast_ray.stages.studies.label_budget import planned_runs as budget_runs
from mast_ray.stages.studies.methods import METHODS
from mast_ray.tables.prepared import open_prepared
from mast_ray.tables.reading.chunk_sets import chunks_of_split
from mast_ray.tables.schemas import IGNORED
from mast_ray.training.schedule import schedule_of

NAN = float("nan")


def test_epochs_grow_as_chunks_shrink_so_that_every_cell_makes_as_many_steps():
    # 110 chunks in batches of 8: 13 steps x 24 epochs = 312. With 25 chunks an epoch has 3 steps.
    knobs = tiny().detector.model_copy(update={"epochs": 24, "validate_every_epochs": 1, "batch_size": 8})
    changed = stretched(knobs, 25, 110)
    assert changed["epochs"] == 104
    assert changed["warmup_epochs"] == pytest.approx(1 * 104 / 24)
    assert changed["validate_every_epochs"] == pytest.approx(104 / 24)
    assert stretched(knobs, 110, 110)["epochs"] == 24
    assert stretched(knobs, 5, 110)["epochs"] == 312  # less than a batch: one step an epoch


def test_a_cell_is_a_config_of_its_own():
    config = training_config(tiny(), Training("time_balanced", 50, 7), 110, "epochs")
    assert (config.split.budget_chunks, config.split.budget_strategy, config.seed) == (50, "time_balanced", 7)
    assert config.detector == tiny().detector


@pytest.mark.parametrize(
    ("match", "num_train", "budget", "num_steps"),
    [
        ("samples", 40, 10, 1800),  # what `mast train` takes over 40 chunks: 200 passes are 200 steps
        ("samples", 40, 40, 1800),
        ("samples", 2000, 300, 6200),  # 31 steps an epoch are more than enough
        ("epochs", 2000, 10, 200),  # 200 passes, of one step each
        ("epochs", 2000, 300, 800),
    ],
)
def test_what_field_asks_for_over_few_chunks_is_asked_of_the_full_set_and_not_of_a_number_of_epochs(
    match, num_train, budget, num_steps
):
    knobs = training_config(field(), Training("random", budget, 0), num_train, match).detector
    assert schedule_of(lengthened(knobs, budget), budget).num_steps == num_steps


def test_what_has_no_interval_is_said_and_not_written_as_one():
    """Tests of one recording, and of one without a call or a detection (F1 unknown), on the screen."""
    unknown, alone = SeedInterval(NAN, NAN, NAN, 0), SeedInterval(0.8, NAN, NAN, 1)
    known = SeedInterval(0.5, 0.4, 0.6, 1)
    study = BudgetStudy(tiny(), "prepared", "out", (8, 16, 32), ("random",))
    rows = {8: unknown, 16: known, 32: alone}
    text = curves_text({("random", n, "test"): {"f1": one} for n, one in rows.items()}, study)
    assert "nan" not in text and "0.500 [0.400, 0.600]" in text and "no interval: one test recording" in text
    assert "95 % of the best F1 (0.760) with about 29 chunks" in text
    nothing = curves_text({("random", 8, "test"): {"f1": unknown}}, replace(study, budgets=(8,)))
    assert "nan" not in nothing and "95 %" in nothing.splitlines()[0] and "of the best" not in nothing


def test_small_budgets_come_first_and_every_strategy_meets_every_seed():
    trainings = trainings_of(BudgetStudy(tiny(), "p", "o", (50, 25, 50), ("random", "sequential"), (0, 1)))
    assert [training.num_chunks for training in trainings] == [25] * 4 + [50] * 4
    assert len({training.folder for training in trainings}) == 8


def test_studies_count_the_training_chunks_that_somebody_went_through(tmp_path):
    archive = open_prepared(make_study_archive(tmp_path))
    train = chunks_of_split(archive, "train")
    unheard = archive.recording_ids[int(train.recording[0])]
    row = {"recording_id": unheard, "begin_s": 0.0, "end_s": 16.0, "label": "", "why": "not_gone_through"}
    partly = replace(
        archive,
        labels=archive.labels.filter(pc.not_equal(archive.labels.column("recording_id"), unheard)),
        ignored=pa.Table.from_pylist([row], schema=IGNORED),
    )
    heard = int((train.recording != train.recording[0]).sum())
    config = study_config()
    check_study(BudgetStudy(config, "p", "o", (heard,)), partly)
    with pytest.raises(ConfigError, match=f"the {heard} labelled training chunks"):
        check_study(BudgetStudy(config, "p", "o", (heard + 1,)), partly)
    whole, less = (
        budget_runs(BudgetStudy(config, "p", "o", (1,)), one, "")[0].arguments[0].detector.epochs
        for one in (archive, partly)
    )
    batch = config.detector.batch_size
    assert (whole, less) == (len(train) // batch, heard // batch) and less < whole
    # the budget is what a method sees of them: as long as self-training is longer with fewer chunks
    methods = (METHODS["mast_long"],)
    few = study_config(split__budget_chunks=2)
    long, longer = (
        planned_runs(Comparison(one, "p", "o", methods, (0,)), partly, "e", [])[-1]
        .arguments[0]
        .detector.epochs
        for one in (config, few)
    )
    num_pool = len(chunks_of_split(partly, "pool"))
    assert (long, longer) == tuple(1 + round((num_pool + n) / n) for n in (heard, 2))


def test_a_study_whose_runs_all_fail_leaves_the_curves_of_an_earlier_one(tmp_path, monkeypatch):
    """Once more with another --match into the same folder: every run is refused, and the curves were empty then."""

    def refuse(*arguments):
        raise ConfigError("holds a run with other settings")

    prepared, out = make_study_archive(tmp_path), tmp_path / "out"
    out.mkdir()
    (out / "label_budget.csv").write_text("of an earlier study")
    monkeypatch.setattr(label_budget, "run_training", refuse)
    study = BudgetStudy(study_config(model__name="fcos"), str(prepared), str(out), (4,), ("random",), (0,))
    with pytest.raises(MastError, match="every run failed"):
        run_label_budget(study, HERE)
    assert (out / "label_budget.csv").read_text() == "of an earlier study"


@pytest.mark.slow
def test_curves_are_written_as_the_report_draws_them_and_mistakes_are_told_before_training(tmp_path):
    prepared = make_study_archive(tmp_path)
    config = study_config(model__name="fcos", detector__max_steps=2)
    study = BudgetStudy(config, str(prepared), str(tmp_path / "out"), (4, 8), ("random", "sequential"), (0,))
    with pytest.raises(ConfigError, match="labelled training chunks"):
        run_label_budget(BudgetStudy(config, str(prepared), str(tmp_path / "no"), (10**6,)), HERE)
    text = run_label_budget(study, HERE)
    assert "one seed" in text and not (tmp_path / "out/encoder").exists()
    rows = curves_from_json((tmp_path / "out/label_budget.json").read_bytes())
    assert {(row.strategy, row.num_chunks) for row in rows} == {
        ("random", 4), ("random", 8), ("sequential", 4), ("sequential", 8),
    }  # fmt: skip
    lines = budget_series(rows)
    assert [line.name for line in lines] == ["random", "sequential"]
    assert lines[0].x == (4.0, 8.0)
    splits = list(csv.DictReader((tmp_path / "out/label_budget_splits.csv").open()))
    assert {row["split"] for row in splits} == {"val", "test", "temporal_ood", "site_ood"}
    summaries = [json.loads(path.read_text()) for path in (tmp_path / "out/runs").rglob("model/summary.json")]
    assert sorted(s["train_chunks"] for s in summaries) == [4, 4, 8, 8]
    assert {s["samples"] for s in summaries} == {8}
    assert run_label_budget(study, HERE) == text
