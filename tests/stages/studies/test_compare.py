"""Methods, grids of runs, and the tables of a comparison."""

import math

import numpy as np
import pytest
from chunk_lists import match_chunks
from study_archive import make_study_archive, study_config

from mast_ray.config.errors import ConfigError, DataError, MastError, PartialError
from mast_ray.config.recipes import field, tiny
from mast_ray.config.stage_knobs import lengthened
from mast_ray.evaluation.intervals import recording_sums
from mast_ray.reporting.paper_tables import COMPARISON
from mast_ray.reporting.report.collect_studies import rows_table
from mast_ray.stages.runner import HERE, ON_RAY
from mast_ray.stages.studies.compare import Comparison, planned_runs, run_comparison
from mast_ray.stages.studies.comparison_tables import Scores, comparison_files, comparison_table
from mast_ray.stages.studies.methods import METHODS, as_long_as_self_training, chosen_methods, with_needed
from mast_ray.stages.studies.run_grid import Run, refuse_failures, run_grid
from mast_ray.tables.prepared import open_prepared


def squared(number):
    return {"value": number * number}


def refused(text):
    raise DataError(f"{text}: give another\nsecond line")


def test_a_failed_run_stops_those_that_wait_for_it_and_nobody_else():
    runs = [
        Run("a", squared, (3,)),
        Run("b", refused, ("bad table",)),
        Run("c", squared, (4,), after="b"),
        Run("d", squared, (5,), after="a"),
    ]
    found = run_grid(runs, tiny(), HERE)
    assert [found[n].result for n in "abcd"] == [{"value": 9}, None, None, {"value": 25}]
    assert found["b"].error == "bad table: give another second line" and found["b"].exit_code == 3
    assert found["c"].error == "b failed before it"
    with pytest.raises(
        PartialError, match=r"2 of 4 runs failed.*\nmend that, then run the same command again"
    ):
        refuse_failures(found, "out")  # bad data stay bad
    with pytest.raises(MastError, match="every run failed") as error:
        refuse_failures({"b": found["b"]}, "out")
    assert error.value.exit_code == 3


@pytest.mark.parametrize(
    ("encoder", "audiomae", "says"),
    [("nowhere", "", "no card.json"), ("", "nowhere.pth", "nowhere.pth is not there")],
)
def test_what_methods_cannot_start_from_is_told_before_any_of_them_is_trained(
    tmp_path, encoder, audiomae, says
):
    """All others were trained first, for hours; a file that was not there ended as FileNotFoundError with code 1."""
    prepared, places = (
        make_study_archive(tmp_path),
        [str(tmp_path / p) if p else "" for p in (encoder, audiomae)],
    )
    methods = chosen_methods(["pieces", "mast", "audiomae"], study_config(), "x.pth")
    with pytest.raises(DataError, match=says):
        run_comparison(
            Comparison(study_config(), str(prepared), str(tmp_path / "out"), methods, (0,), *places), HERE
        )
    assert not (tmp_path / "out/runs").exists()


@pytest.mark.ray
@pytest.mark.slow
def test_a_grid_on_ray_gives_the_same_outcomes_as_one_here():
    runs = [
        Run("a", math.sqrt, (9.0,)),
        Run("b", math.sqrt, (-1.0,)),
        Run("c", math.sqrt, (4.0,), after="b"),
        Run("d", abs, (-2.0,), after="a"),
    ]
    assert run_grid(runs, study_config(), ON_RAY) == run_grid(runs, study_config(), HERE)


def test_methods_come_in_the_order_of_the_tables_and_each_changes_what_it_says():
    assert [m.name for m in chosen_methods(["mast_st", "fcos", "mast"], field(), "")] == [
        "fcos",
        "mast",
        "mast_st",
    ]
    assert [m.name for m in chosen_methods([], tiny(), "")] == ["pieces", "fcos", "mast", "mast_st"]
    assert [m.name for m in with_needed([METHODS["union"]])] == ["mast", "union"]
    for method in METHODS.values():
        config = method.config(tiny(), 5)
        assert config.seed == 5
        same = (
            "epochs",
            "batch_size",
            "max_steps",
            "augment_probability",
        )  # matched budgets, whatever the method
        assert [getattr(config.detector, n) for n in same] == [getattr(tiny().detector, n) for n in same]
        assert config.augment == tiny().augment and config.evaluate == tiny().evaluate
    assert METHODS["no_contrastive"].config(tiny(), 0).detector.lambda_con == 0
    assert METHODS["union"].config(tiny(), 0).self_train.curriculum == "union"


def test_mistaken_methods_are_refused_with_a_remedy():
    with pytest.raises(ConfigError, match="choose from pieces, faster_rcnn, fcos"):
        chosen_methods(["mastt"], tiny(), "")
    with pytest.raises(ConfigError, match="--audiomae FILE"):
        chosen_methods(["audiomae"], tiny(), "")


def test_the_long_control_sees_as_many_samples_as_self_training():
    knobs = {
        "detector__epochs": 24,
        "self_train__rounds": 2,
        "self_train__stage1__epochs": 4,
        "self_train__stage2__epochs": 6,
    }
    config = as_long_as_self_training(study_config(**knobs), num_train=100, num_pool=300)
    # 24 epochs, and 2 rounds of 4 epochs over 300 and 6 over 100 chunks: 2 x 18 epochs of 100.
    assert config.detector.epochs == 24 + 36


def test_over_few_chunks_too_what_is_trained_as_long_as_self_training_is_no_shorter_than_its_seed():
    knobs = as_long_as_self_training(field(), num_train=40, num_pool=100).detector
    # 1800 epochs of a step, and a round of 80 epochs over 100 and 40 over 40 chunks: 240 epochs of 40
    assert knobs.epochs == lengthened(knobs, 40).epochs == 1800 + 240
    mast = lengthened(field().detector, 40)
    assert (knobs.warmup_epochs, knobs.validate_every_epochs) == (45, 9)
    assert (knobs.warmup_epochs, knobs.validate_every_epochs) == (
        mast.warmup_epochs,
        mast.validate_every_epochs,
    )


def sums(hits, truths=(5,) * 8):
    boxes = [np.array([[20.0 * i, 0, 20.0 * i + 10, 10] for i in range(n)]) for n in truths]
    found = [(own[:h], np.full(h, 0.9)) for own, h in zip(boxes, hits, strict=True)]
    return recording_sums(match_chunks(boxes, found), 0.5, num_recordings=len(truths))


def scores_of_three():
    good, near, poor = (4, 3, 5, 4, 3, 5, 4, 4), (4, 4, 4, 4, 3, 4, 5, 4), (1, 0, 2, 1, 0, 2, 1, 1)
    per_method = {"mast": good, "no_contrastive": near, "fcos": poor}
    keys = ("in_domain", "temporal", "cross_site")
    tables = {
        name: {key: {0: sums(hits), 1: sums(hits)} for key in keys} for name, hits in per_method.items()
    }
    return Scores(
        tables, {name: [80, 80] for name in per_method}, dict.fromkeys(keys, 8), dict.fromkeys(keys, 40)
    )


def test_a_table_marks_the_best_and_what_cannot_be_told_from_it():
    methods = [METHODS[name] for name in ("fcos", "mast", "no_contrastive")]
    table = comparison_table("cross_site", methods, scores_of_three(), study_config(evaluate__bootstrap=300))
    standing = {row.name: row.figures["recall"].standing for row in table.rows}
    assert standing == {"fcos": "behind", "mast": "best", "no_contrastive": "within_noise"}
    recall = table.rows[1].figures["recall"]
    assert recall.estimate == pytest.approx(32 / 40) and recall.low < 0.8 < recall.high
    assert (table.rows[1].num_seeds, table.rows[1].samples_seen, table.num_calls) == (2, 80, 40)
    assert not table.notes


def test_all_three_tables_are_written_and_the_report_can_read_them():
    methods = [METHODS[name] for name in ("fcos", "mast", "no_contrastive")]
    files, text = comparison_files(methods, scores_of_three(), study_config())
    names = {f"{key}.{end}" for key in ("in_domain", "temporal", "cross_site") for end in ("md", "tex")}
    assert files.keys() == names | {"comparison.md", "tables.csv", COMPARISON}
    assert "FCOS | F1 | -0." in text and "| worse |" in text and "within noise" in text
    shown = rows_table("Methods compared", files[COMPARISON])
    assert len(shown.rows) == 9 and shown.columns[:3] == ("table", "method", "Precision")


@pytest.mark.slow
def test_a_comparison_fills_all_tables_and_a_second_call_trains_nothing(tmp_path):
    prepared = make_study_archive(tmp_path)
    config = study_config()
    study = Comparison(config, str(prepared), str(tmp_path / "out"), chosen_methods([], config, ""), (0,))
    text = run_comparison(study, HERE)["tables"]
    assert text.count("### ") == 4  # three tables and the differences
    for key, split in (("in_domain", "test"), ("temporal", "temporal_ood"), ("cross_site", "site_ood")):
        table = (tmp_path / "out" / f"{key}.md").read_text()
        assert all(
            f"| {title} |" in table
            for title in ("What stands out, put together by the labels", "FCOS", "MAST", "MAST + ST")
        ), split
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "out/runs").rglob("weights.safetensors")}
    assert run_comparison(study, HERE)["tables"] == text
    assert {path: path.stat().st_mtime_ns for path in before} == before and len(before) >= 3
    after = {run.name: run.after for run in planned_runs(study, open_prepared(prepared), "encoder", ["test"])}
    alone = {"pieces, seed 0": "", "mast, seed 0": "", "fcos, seed 0": ""}
    assert after == alone | {"mast_st, seed 0": "mast, seed 0"}
