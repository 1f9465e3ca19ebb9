"""Whatever lies in a run folder becomes a report, and what is missing leaves no trace."""

import json
from datetime import UTC, datetime

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from mast_ray.config.errors import DataError
from mast_ray.config.recipes import tiny
from mast_ray.reporting.report.collect import collect_run, find_files
from mast_ray.reporting.report.collect_provenance import effort_of
from mast_ray.reporting.report.collect_studies import (
    budget_series,
    flat,
    models_table,
    round_series,
    table_of,
    trials_of,
)
from mast_ray.reporting.report.contents import Interval
from mast_ray.reporting.report.page import render_report
from mast_ray.storage.stage_folders import write_manifest
from mast_ray.storage.storage import open_storage
from mast_ray.storage.units import Commit, DataFile, put_commit
from mast_ray.tables.schemas import SPLITS

NOW = datetime(2024, 6, 1, 12, 0, tzinfo=UTC)


@pytest.fixture
def run(season, tmp_path):
    """A run folder with a prepared archive, a model card and detections in two site folders."""
    prepared, detections = tmp_path / "prepared", tmp_path / "detections"
    prepared.mkdir()
    for name in ("recordings", "labels", "rejects"):
        pq.write_table(getattr(season, name), prepared / f"{name}.parquet")
    for site in ("Danum", "Sepilok"):
        folder = detections / f"site={site}" / "date=2024-05-06"
        folder.mkdir(parents=True)
        own = season.detections.filter(pa.compute.equal(season.detections["site"], site)).drop_columns(
            ["site"]
        )
        pq.write_table(own, folder / "part.parquet")
    write_manifest(
        open_storage(prepared), "prepare", tiny(), "key", {"archive": "abc"}, {"recordings": 24}, NOW
    )
    (tmp_path / "detector").mkdir()
    card = {"kind": "detector", "weights_sha256": "5" * 64, "score_threshold": 0.3, "data_hash": "d"}
    (tmp_path / "detector" / "card.json").write_text(json.dumps(card))
    return open_storage(tmp_path)


def test_a_whole_run_fills_its_sections(run, season):
    data = collect_run(run, open_storage(season.audio), now=NOW, num_examples=6)
    assert data.threshold == 0.3  # the model card's
    assert data.effort.num_offered == 25 and data.effort.num_rejected == 1
    assert data.effort.hours_analysed == pytest.approx(24 * 20 / 3600)
    assert [row[0] for row in data.sites.rows] == ["Danum", "Sepilok"]
    assert [m.site for m in data.diel] == ["all sites", "Danum", "Sepilok"]
    assert len(data.examples) == 6 and data.curves and data.reliability and data.overlap
    assert sum(data.scores.counts) == len(season.detections)
    assert dict(data.facts)["score threshold"] == "0.300"
    assert data.stages.rows[0][0] == "prepare"
    text = render_report(data)
    assert "TRUNCATED" in text and "UTC+7" in text and "555555" in text


def test_the_figures_are_the_evaluators(run, season):
    data = collect_run(run, now=NOW)
    table = data.tables[0]
    row = dict(zip(table.columns, table.rows[0], strict=True))
    assert row["calls"] == len(season.labels)
    hits = row["recall"].value * row["calls"]
    assert hits == pytest.approx(row["precision"].value * row["kept detections"])
    assert row["F1"].value == pytest.approx(2 * hits / (row["calls"] + row["kept detections"]))
    assert row["F1"].low < row["F1"].value < row["F1"].high


def test_splits_are_scored_apart(run, season, tmp_path):
    names = season.recordings.column("recording_id").to_pylist()
    rows = [
        {
            "recording_id": n,
            "begin_s": 0.0,
            "end_s": 20.0,
            "split": ("val", "test", "site_ood")[i % 3],
            "in_pool": False,
        }
        for i, n in enumerate(names)
    ]
    pq.write_table(pa.Table.from_pylist(rows, schema=SPLITS), tmp_path / "prepared" / "splits.parquet")
    data = collect_run(run, now=NOW)
    assert [row[0] for row in data.tables[0].rows] == ["validation", "in-domain test", "unseen sites"]
    assert sum(row[2] for row in data.tables[0].rows) == len(season.labels)
    assert data.headline[3][0] == "F1, in-domain test"


def test_a_threshold_tuned_on_what_it_is_judged_on_is_said(run, tmp_path):
    (tmp_path / "detector" / "card.json").unlink()
    data = collect_run(run, now=NOW)
    assert data.threshold is not None and any("optimistic" in warning for warning in data.warnings)


def test_only_committed_files_are_read(run, season, tmp_path):
    stage = open_storage(tmp_path / "swept")
    write_manifest(stage, "detect", tiny(), "k", {}, {}, NOW)
    (tmp_path / "swept" / "data").mkdir()
    pq.write_table(season.detections.slice(0, 7), tmp_path / "swept/data/kept.parquet")
    pq.write_table(season.detections, tmp_path / "swept/data/of_a_dead_attempt.parquet")
    put_commit(stage, Commit("u", "t", (DataFile("data/kept.parquet", 7, "0"),), (), {}))
    assert len(find_files(run).detections) == 7


@pytest.mark.parametrize("missing", ["prepared", "detections", "detector"])
def test_any_stage_may_be_missing(run, tmp_path, missing):
    (tmp_path / missing).rename(tmp_path.parent / f"moved-{missing}-{tmp_path.name}")
    render_report(collect_run(run, now=NOW))


def test_an_empty_folder_is_refused_with_a_remedy(tmp_path):
    with pytest.raises(DataError, match="nothing to report on"):
        collect_run(open_storage(tmp_path))


def test_side_tables_of_any_format_become_sections(run, tmp_path):
    rounds = [
        {"round": 0, "f1": 0.6},
        {"round": 1, "f1": {"estimate": 0.7, "low": 0.6, "high": 0.8}, "precision": 0.8},
    ]
    (tmp_path / "rounds.json").write_text(json.dumps({"rounds": rounds}))
    budget = pa.Table.from_pylist(
        [
            {"num_chunks": n, "strategy": s, "seed": k, "f1": 0.1 * n + 0.01 * k}
            for n in (1, 2)
            for s in ("a", "b")
            for k in (0, 2)
        ]
    )
    pq.write_table(budget, tmp_path / "label_budget.parquet")
    (tmp_path / "trials.csv").write_text(
        "trial_id,config/q,config/policy,f1\na,0.1,fixed,0.5\nb,0.2,tuned,0.6\n"
    )
    (tmp_path / "metrics.json").write_text(json.dumps({"splits": {"test": {"f1": [0.5, 0.4, 0.6]}}}))
    data = collect_run(run, now=NOW)
    assert data.rounds.rows[1][1] == Interval(0.7, 0.6, 0.8)
    assert [s.name for s in data.round_curves] == ["f1", "precision"]
    first = data.label_budget[0]
    assert (
        first.name == "a"
        and first.y == pytest.approx((0.11, 0.21))
        and first.low == pytest.approx((0.1, 0.2))
    )
    assert data.trials.names == ("q", "policy", "f1") and data.trials.threshold_name == "q"
    assert data.tables[-1].rows == (("test", Interval(0.5, 0.4, 0.6)),)
    render_report(data)


def test_figures_of_mast_evaluate_become_wide_tables(run, tmp_path):
    rows = [
        {
            "by": "site",
            "cell": cell,
            "figure": figure,
            "estimate": 0.5,
            "low": 0.4,
            "high": 0.6,
            "num_recordings": 3,
        }
        for cell in ("A", "B")
        for figure in ("precision", "f1")
    ]
    (tmp_path / "scores").mkdir()
    (tmp_path / "scores" / "metrics.json").write_text(
        json.dumps({"settings": {"split": "test"}, "metrics": {}, "figures": rows})
    )
    table = collect_run(run, now=NOW).tables[-1]
    assert table.title == "Evaluation by site, split test"
    assert table.columns == ("site", "recordings", "precision", "f1")
    assert table.rows[1] == ("B", 3, Interval(0.5, 0.4, 0.6), Interval(0.5, 0.4, 0.6))


def test_learning_curves_with_limits_are_drawn_with_their_band():
    points = [
        {
            "strategy": "random",
            "num_chunks": n,
            "mean": 0.1 * n,
            "low": 0.05 * n,
            "high": 0.2 * n,
            "num_seeds": 3,
        }
        for n in (1, 2)
    ]
    (line,), figure = budget_series(points)
    assert figure == "F1" and line.y == pytest.approx((0.1, 0.2)) and line.high == pytest.approx((0.2, 0.4))


def test_a_manifest_that_is_no_json_is_passed_over(run, tmp_path):
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "manifest.json").write_text("{")
    assert set(find_files(run).manifests) == {"prepared"}


def test_salvaged_recordings_are_analysed_and_listed(season):
    rows = [
        *season.rejects.to_pylist(),
        season.rejects.to_pylist()[0] | {"status": "salvaged", "reason": "NON_FINITE", "readable_s": 3600.0},
    ]
    effort = effort_of(season.recordings, pa.Table.from_pylist(rows, schema=season.rejects.schema))
    assert (effort.num_offered, effort.num_analysed, effort.num_rejected, effort.num_salvaged) == (
        25,
        24,
        1,
        1,
    )
    assert {r.reason: r.hours for r in effort.reasons} == {"TRUNCATED": 0.0, "NON_FINITE": 1.0}


def test_odd_side_tables_do_no_harm():
    assert trials_of([{"a": 1}]) is None and trials_of([{"f1": 0.5, "q": 0.1}]) is None
    assert budget_series([{"x": 1}]) == ((), "F1")
    assert round_series([{"loss": 3.0}]) == ()
    assert flat({"a": {"b": {"c": 1}}, "curve": [1, 2, 3, 4]}) == {"a.b.c": 1}
    assert table_of("t", [{"a": 1}, {"b": "x"}]).rows == ((1, None), (None, "x"))


def test_models_that_were_scored_stand_side_by_side_and_one_alone_does_not():
    def scored(f1):
        figure = {"estimate": f1, "low": f1 - 0.1, "high": f1 + 0.1}
        return {"splits": {"site_ood": {"recordings": 8, "num_truth": 90, "f1": figure, "ap_area": figure}}}

    metrics = {"scores/fcos/metrics.json": scored(0.5), "scores/self_trained/metrics.json": scored(0.25)}
    (table,) = models_table(metrics)
    assert table.columns == ("model", "F1, unseen sites")
    assert table.rows == (("fcos", Interval(0.5, 0.4, 0.6)), ("self_trained", Interval(0.25, 0.15, 0.35)))
    assert "unseen sites: 90 calls in 8 recordings" in table.note
    assert models_table({"scores/fcos/metrics.json": scored(0.5)}) == ()
