"""Whatever lies in a run folder becomes a report, and what is missing leaves no trace."""

import json
import shutil
from dataclasses import fields, replace
from datetime import UTC, datetime

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from mast_ray.config.errors import DataError
from mast_ray.config.recipes import field, tiny
from mast_ray.evaluation.intervals import FIGURES
from mast_ray.evaluation.intervals import Interval as Estimate
from mast_ray.evaluation.label_budget import CurveRow, curves_to_json
from mast_ray.evaluation.score_sheet import ScoreRow, ScoreSheet, Threshold
from mast_ray.reporting.report.collect import collect_run
from mast_ray.reporting.report.collect_provenance import effort_of
from mast_ray.reporting.report.collect_scores import cell_of, scores_of_table
from mast_ray.reporting.report.collect_studies import (
    budget_series,
    models_table,
    round_series,
    table_of,
    trials_of,
)
from mast_ray.reporting.report.contents import Interval
from mast_ray.reporting.report.found_files import find_files
from mast_ray.reporting.report.page import render_report
from mast_ray.self_training.round_records import flat
from mast_ray.self_training.trial_records import OBJECTIVE, TrialRecord
from mast_ray.stages.score.tables import TableWanted, evaluate_tables
from mast_ray.storage.stage_folders import write_manifest
from mast_ray.storage.storage import open_storage
from mast_ray.storage.units import Commit, DataFile, put_commit
from mast_ray.tables.schemas import IGNORED, SPLITS

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
    said: list[str] = []
    data = collect_run(run, open_storage(season.audio), now=NOW, num_examples=6, say=said.append)
    assert said[0] == "report: reading the tables" and said[-1] == "report: 6 of up to 6 pictures"
    assert "report: sites, dates and hours of 24 recordings" in said
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


def test_a_model_is_shown_with_what_it_began_with_and_the_licences_of_that(run):
    def facts(**said):
        known = {"kind": "detector", "weights_sha256": "5" * 64, "data_hash": "d"}
        run.write_atomic("detector/card.json", json.dumps(known | said).encode())
        return dict(collect_run(run, now=NOW).facts)

    shipped = {"how": "start", "name": "shipped:tiny", "weights_sha256": "a", "licence": "CC BY-NC-SA 4.0"}
    found = facts(began_with=[shipped], licence="mine")
    assert found["detector detector"] == "weights 5555555555555555, data d, began with shipped:tiny"
    assert found["licence of shipped:tiny"] == "CC BY-NC-SA 4.0"
    assert found["licence of detector detector"] == "mine"
    for odd in ({}, {"began_with": 7, "licence": None}):
        assert facts(**odd)["detector detector"].endswith("what it began with is not recorded")


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
    assert [row[1] for row in data.tables[0].rows] == [8, 8, 8]  # recordings of the split, of 24
    assert sum(row[2] for row in data.tables[0].rows) == len(season.labels)
    assert data.headline[3][0] == "F1, in-domain test"


def test_where_nobody_looked_nothing_is_a_false_alarm_of_the_report_either(run, season, tmp_path):
    names = season.recordings.column("recording_id").to_pylist()
    rows = [{"recording_id": n, "begin_s": 0.0, "end_s": 20.0, "why": "not_gone_through"} for n in names]
    before = collect_run(run, now=NOW).tables[0].rows[0]
    pq.write_table(pa.Table.from_pylist(rows, schema=IGNORED), tmp_path / "prepared" / "ignored.parquet")
    after = collect_run(run, now=NOW).tables[0].rows[0]
    assert before[4].value < 1.0 == after[4].value  # precision
    assert before[5].value == after[5].value  # recall


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


def figure(estimate, half=0.1):
    return {"estimate": estimate, "low": estimate - half, "high": estimate + half, "method": "bootstrap"}


def curve_row(strategy, num_chunks, f1):
    known = dict.fromkeys((one.name for one in fields(CurveRow)), 0.5)
    own = {
        "split": "test",
        "strategy": strategy,
        "num_chunks": num_chunks,
        "f1": f1,
        "f1_low": f1 - 0.1,
        "f1_high": f1 + 0.1,
    }
    return CurveRow(**(known | own))


def test_side_tables_become_sections(run, tmp_path):
    rounds = [
        {"round": n, "test_f1": figure(0.5 + n / 4, 0.125), "pseudo_precision": figure(0.8)} for n in range(2)
    ]
    (tmp_path / "rounds.json").write_text(json.dumps({"rounds": rounds}))
    curves = [curve_row(strategy, n, 0.1 * n) for strategy in "ab" for n in (2, 1)]
    (tmp_path / "label_budget.json").write_bytes(curves_to_json(curves))
    record = TrialRecord(
        "a", {"threshold": 0.1, "lambda_box": 1.0}, 0.0, (0.5,), 1.0, "done", {OBJECTIVE: 0.5}
    )
    other = replace(record, name="b", sample={"threshold": 0.2, "lambda_box": 1.0}, result={OBJECTIVE: 0.6})
    broken = replace(record, name="c", result={})
    table = pa.Table.from_pylist([one.row() for one in (record, other, broken)])
    pq.write_table(table, tmp_path / "trials.parquet")
    (tmp_path / "comparison.json").write_text(json.dumps([{"method": "FCOS", "F1": figure(0.5)}]))
    data = collect_run(run, now=NOW)
    assert data.rounds.rows[1][1] == Interval(0.75, 0.625, 0.875)
    assert [s.name for s in data.round_curves] == [
        "F1, in-domain test", "pseudo-labels, precision, expert-labelled part",
    ]  # fmt: skip
    first = data.label_budget[0]
    assert (first.name, first.x, first.low) == ("a", (1.0, 2.0), pytest.approx((0.0, 0.1)))
    assert data.trials.names == ("threshold", "objective") and data.trials.rows == ((0.1, 0.5), (0.2, 0.6))
    assert data.trials.threshold_name == "threshold"
    assert data.tables[-1].rows == (("FCOS", Interval(0.5, 0.4, 0.6)),)
    render_report(data)


def sheet(f1, sha, splits=("test",), by=("all",)):
    rows = [
        ScoreRow(split, unit, kind, "all", 8, 90, 80, 45, 0, dict.fromkeys(FIGURES, Estimate(f1, f1 - 0.1, f1 + 0.1)))
        for split in splits for unit in ("chunk", "recording") for kind in by
    ]  # fmt: skip
    threshold = Threshold(0.3, "model")
    return ScoreSheet("found", "labels", sha, threshold, 0.5, "mel", "area", tuple(rows), {})


def put_sheet(folder, one):
    folder.mkdir(parents=True)
    (folder / "metrics.json").write_bytes(one.to_json())


def test_a_sheet_of_a_table_of_detections_is_shown_as_it_is(run, tmp_path):
    put_sheet(tmp_path / "scores", sheet(0.5, "", by=("all", "site")))
    whole, by_site = collect_run(run, now=NOW).tables[-2:]
    assert whole.title == "Scores by all of scores" and "threshold 0.3" in whole.note
    assert by_site.columns[:6] == ("split", "matched per", "site", "recordings", "calls", "kept detections")
    assert by_site.rows[0][:6] == ("in-domain test", "chunk", "all", 8, 90, 80)
    assert by_site.rows[0][6] == Interval(0.5, 0.4, 0.6)


def test_the_scores_of_the_model_behind_the_detections_are_the_reports_own(run, season, tmp_path):
    sha = season.detections.column("model_sha")[0].as_py()
    put_sheet(tmp_path / "scores" / "other", sheet(0.25, "another"))
    put_sheet(tmp_path / "scores" / "final", sheet(0.5, sha, ("val", "test")))
    data = collect_run(run, now=NOW)
    table = data.tables[0]
    rows = [dict(zip(table.columns, row, strict=True)) for row in table.rows]
    assert [row["split"] for row in rows] == ["validation", "in-domain test"]
    assert (
        rows[1]["F1"] == rows[1]["F1 in time"] == rows[1]["F1, whole recordings"] == Interval(0.5, 0.4, 0.6)
    )
    assert dict(data.headline)["F1, in-domain test"] == Interval(0.5, 0.4, 0.6)
    assert any("Curves and breakdowns are left out" in word for word in data.warnings)
    side_by_side = data.tables[1]
    assert side_by_side.columns == ("model", "F1, validation", "F1, in-domain test")
    assert side_by_side.rows[1] == ("other", None, Interval(0.25, 0.15, 0.35))
    assert "in-domain test: 90 calls in 8 recordings" in side_by_side.note


def test_breakdowns_and_overlaps_are_those_of_evaluate_at_the_threshold(run, tmp_path):
    threshold = 0.7
    data = collect_run(run, threshold=threshold, now=NOW)
    places = (str(tmp_path / "detections"), str(tmp_path / "prepared" / "labels.parquet"))
    wanted = TableWanted(*places, threshold=threshold, by=("site", "duration"))
    sheet, scored = evaluate_tables(wanted, field())
    assert 0 < sheet.rows[0].num_true_positives < scored[""].matches.is_true_positive.sum()
    assert sum(data.overlap.counts) == sheet.rows[0].num_true_positives
    for by in ("site", "duration"):
        cells = {row.cell: row for row in sheet.rows if row.by == by and row.num_truth + row.num_detections}
        (table,) = [table for table in data.tables if table.title.startswith(f"By {by}")]
        assert [row[0] for row in table.rows] == list(cells)
        for name, *counts, precision, recall, _, ap in table.rows:
            one = cells[name]
            assert counts == [one.num_recordings, one.num_truth, one.num_detections]
            figures = (one.figures[figure] for figure in ("precision", "recall", "ap_area"))
            assert [precision, recall, ap] == [cell_of(figure) for figure in figures]


def test_a_threshold_is_tuned_on_the_split_that_may_choose_as_everywhere(season):
    """Detections of no known model: that tuned for F1 on ood_dev where it holds a call, else on val."""
    names = season.recordings.column("recording_id").to_pylist()
    for chosen, title in (("ood_dev", "OOD development"), ("test", "validation")):
        dealt = [("val", "test", chosen)[n % 3] for n in range(len(names))]
        rows = [{"recording_id": name, "begin_s": 0.0, "end_s": 20.0, "split": split}
                for name, split in zip(names, dealt, strict=True)]  # fmt: skip
        tables = (season.detections, season.labels, season.recordings)
        found = scores_of_table(*tables, pa.Table.from_pylist(rows, schema=SPLITS), None)
        assert f"(tuned for F1 on {title}, frozen)" in found.tables[0].note and not found.warnings


def test_what_is_counted_per_chunk_and_what_per_recording_is_said_in_one_place(run, season, tmp_path):
    (recording,) = collect_run(run, now=NOW).units  # detections against labels: on whole recordings
    assert recording[0].startswith("Per recording") and "precision, recall, F1" in recording[1]
    assert "whole recordings" not in recording[1]
    sha = season.detections.column("model_sha")[0].as_py()
    put_sheet(tmp_path / "scores" / "final", sheet(0.5, sha, ("val", "test")))
    data = collect_run(run, now=NOW)
    chunk, recording = data.units
    assert chunk[0].startswith("Per chunk") and "precision, recall, F1" in chunk[1]
    assert "F1, whole recordings" in recording[1] and "calls per hour" in recording[1]
    assert render_report(data).count('id="units"') == 1


def test_the_report_leads_to_the_review(run, season):
    text = render_report(collect_run(run, open_storage(season.audio), now=NOW, num_examples=2))
    assert 'href="#review"' in text and "<code>mast review RUN" in text


def test_one_model_alone_and_rounds_do_not_stand_side_by_side():
    one = sheet(0.5, "sha")
    assert models_table({"scores/fcos": one}) == ()
    assert models_table({"scores/fcos": one, "self_trained/round1/evaluation": one, "": one}) == ()


def test_models_side_by_side_are_called_by_what_they_are_and_none_hides_another():
    """A row was called by the last folder alone (here-before, scores_with_doubt), and of two with one name the last stood."""
    folders = ["scores/fcos", "detector/adaptation/here-before", "detector/adaptation/there-before", "pieces/scores",
               "old/scores/fcos", "pieces/scores_with_doubt", "detector/adaptation/here-after"]  # fmt: skip
    (shown,) = models_table({folder: sheet(0.5, "sha") for folder in folders})
    assert [row[0] for row in shown.rows] == [
        "fcos",
        "detector, as it began",
        "old/scores/fcos",
        "detector, as it was trained",
    ]


def test_a_file_called_metrics_that_is_no_sheet_is_left_out_with_a_word(run, tmp_path):
    (tmp_path / "metrics.json").write_text(json.dumps({"splits": {"test": {"f1": [0.5, 0.4, 0.6]}}}))
    assert any("metrics.json is no table of scores" in word for word in collect_run(run, now=NOW).warnings)


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
    assert trials_of([{"a": 1}]) is None and trials_of([{"objective": 0.5, "config.q": 0.1}]) is None
    assert round_series([{"round": 0, "loss": 3.0}]) == () and budget_series([]) == ()
    assert flat({"a": {"b": {"c": 1}}, "curve": [1, 2, 3, 4]}) == {"a.b.c": 1}
    assert table_of("t", [{"a": 1}, {"b": "x"}]).rows == ((1, None), (None, "x"))


@pytest.mark.parametrize("prepared", ["prepared", "archive"])  # before and after "detections" in the alphabet
def test_recordings_that_were_not_searched_are_no_effort_without_calls(run, season, tmp_path, prepared):
    (tmp_path / "prepared").rename(tmp_path / prepared)
    searched = season.recordings.filter(pa.compute.equal(season.recordings["site"], "Danum"))
    place = searched.column_names.index("is_annotated")  # which `mast detect` does not know
    silent = searched.set_column(place, "is_annotated", pa.array([False] * len(searched)))
    pq.write_table(silent, tmp_path / "detections" / "recordings.parquet")
    pq.write_table(season.rejects.slice(0, 0), tmp_path / "detections" / "rejects.parquet")
    shutil.rmtree(tmp_path / "detections" / "site=Sepilok")
    write_manifest(open_storage(tmp_path / "detections"), "detect", tiny(), "key", {}, {}, NOW)
    data = collect_run(run, now=NOW)
    assert (data.effort.num_offered, data.effort.num_analysed) == (len(searched), len(searched))
    assert [row[0] for row in data.sites.rows] == ["Danum"]
    own = pa.compute.is_in(season.labels["recording_id"], searched["recording_id"].combine_chunks())
    assert data.tables[0].rows[0][2] == pa.compute.sum(own).as_py() > 0  # calls of what was searched
