"""One shape of metrics.json, one rule for the threshold, and what a sheet says on the screen."""

import json
import math
from dataclasses import replace

import numpy as np
import pytest
from tables_in_memory import prepared_in_memory

from mast_ray.config.errors import DataError
from mast_ray.config.recipes import field
from mast_ray.evaluation.figure_tables import csv_bytes, figure_rows, sheet_text, unknown_text, write_sheet
from mast_ray.evaluation.score_sheet import (
    FALLBACK_THRESHOLD,
    ScoreSheet,
    Threshold,
    chosen_threshold,
    score_rows,
)
from mast_ray.evaluation.scoring import score_chunks
from mast_ray.self_training.operator import PoolDetections
from mast_ray.spectrogram.grid import boxes_from_seconds_hertz
from mast_ray.storage.storage import open_storage
from mast_ray.tables.reading.chunk_sets import chunks_of_split


def scored(begin_s=1.0):
    """Two recordings with a call at 1 s in their first chunk each; detections at `begin_s` of the first and at 7 s of
    the second.
    """
    archive = prepared_in_memory({"a": "test", "b": "test"}, [(n, 1.0, 2.0, 1000.0, 3000.0) for n in "ab"])
    chunks = chunks_of_split(archive, "test")
    begins_s = np.array([begin_s, 7.0])
    boxes, _ = boxes_from_seconds_hertz(begins_s, begins_s + 1.0, np.full(2, 1000.0), np.full(2, 3000.0))
    found = PoolDetections(np.array([0, 11]), boxes, np.array([0.9, 0.4]), len(chunks))
    return score_chunks(archive, chunks, found, field())


def sheet():
    rows = score_rows(scored(), "test", 0.5, 20, 0, ("site",))
    threshold = Threshold(0.5, "model")
    return ScoreSheet("model", "prepared", "5" * 64, threshold, 0.5, "mel", "area", tuple(rows), {"x": 1})


def test_a_row_carries_its_counts_and_every_figure_with_limits_and_where_they_come_from():
    whole, site_a, site_b = sheet().rows
    assert (whole.num_recordings, whole.num_truth, whole.num_detections, whole.num_true_positives) == (
        2,
        2,
        1,
        1,
    )
    assert whole.figures["recall"].estimate == 0.5 and whole.figures["recall"].method == "bootstrap"
    assert whole.figures["precision"] == (1.0, pytest.approx(0.2065, abs=1e-4), 1.0, "wilson")  # 1 of 1
    assert (site_a.cell, site_a.num_truth, site_b.cell, site_b.num_true_positives) == ("A", 1, "B", 0)


def test_a_sheet_read_back_is_the_sheet_that_was_written_to_the_last_digit():
    one = sheet()
    again = ScoreSheet.from_json(one.to_json())
    assert again.to_json() == one.to_json()
    assert again.whole("test").figures["f1"] == one.whole("test").figures["f1"]
    assert math.isnan(again.rows[1].figures["f1"].low)  # one recording: no limits, null in JSON
    assert again.threshold == one.threshold and again.splits == ("test",) and again.whole("val") is None


@pytest.mark.parametrize(
    "document",
    [
        b"{",
        b"[]",
        b'{"splits": {"test": {"f1": 0.5}}}',
        b'{"version": 1, "rows": []}',
        b'{"version": 2, "rows": [{}]}',
    ],
)
def test_anything_else_is_refused_in_two_lines_that_name_the_file_and_the_remedy(document):
    with pytest.raises(DataError, match=r"scores/metrics\.json") as caught:
        ScoreSheet.from_json(document, "scores/metrics.json")
    assert "mast evaluate" in str(caught.value) and len(str(caught.value).splitlines()) == 2


def test_the_threshold_is_given_or_the_models_or_tuned_or_said_to_be_a_fallback():
    one = scored()
    assert chosen_threshold(0.3, 0.2, one, "val") == (0.3, "given", "")
    assert chosen_threshold(None, 0.2, one, "val") == (0.2, "model", "")
    tuned = chosen_threshold(None, None, one, "val")  # half-way between the hit, 0.9, and the miss, 0.4
    assert tuned == (pytest.approx(0.65), "tuned", "val")
    nothing_right = scored(begin_s=4.0)
    assert chosen_threshold(None, None, nothing_right, "val") == (FALLBACK_THRESHOLD, "fallback", "")
    assert chosen_threshold(None, None, None) == (FALLBACK_THRESHOLD, "fallback", "")


def test_the_screen_lists_one_whole_and_tables_several(tmp_path):
    text = sheet_text(sheet())
    assert "2 recordings, matched per chunk: 2 annotations, 1 detections, 1 right" in text
    assert "score >= 0.5 (the model's own, frozen), IoU >= 0.5" in text and "Wilson" in text
    two = sheet()
    several = ScoreSheet(**{**vars(two), "rows": (*two.rows, *score_rows(scored(), "site_ood", 0.5, 20, 0))})
    assert "split, per chunk" in sheet_text(several) and "test A" in sheet_text(several)
    names = write_sheet(open_storage(tmp_path), several, {"test": scored(), "site_ood": scored()})
    assert set(names) == {
        "metrics.json",
        "figures.csv",
        "figures.parquet",
        "outcomes.parquet",
        "thresholds.csv",
    }
    assert json.loads((tmp_path / "metrics.json").read_text())["version"] == 2
    rows = figure_rows(several.rows)
    assert {row["figure"] for row in rows} >= {"f1", "time_f1", "ap_area"} and all(
        "num_truth" in row for row in rows
    )


def test_events_in_no_line_of_a_breakdown_are_told():
    """A line of one site is missing: its call and its detections are in none."""
    one = sheet()
    whole, site_a, site_b = one.rows
    assert unknown_text(one, "site") == "" and unknown_text(one, "hour") == "the hour of no event is known"
    without_b = replace(one, rows=(whole, site_a))
    assert (
        unknown_text(without_b, "site")
        == "the site of 1 of 2 annotations is not known, and they are in no line of it"
    )
    without_a = unknown_text(replace(one, rows=(whole, site_b)), "site")
    assert "1 of 2 annotations and 1 of 1 detections" in without_a


def test_a_sheet_of_nothing_is_written_all_the_same(tmp_path):
    nothing = ScoreSheet("m", "p", "s", Threshold(0.5, "fallback"), 0.5, "mel", "area", (), {})
    write_sheet(open_storage(tmp_path), nothing, {})
    assert ScoreSheet.from_json((tmp_path / "metrics.json").read_bytes()) == nothing


def test_times_of_a_whole_day_are_written_to_the_millisecond():
    """A review sheet of a call of 60 ms at hour 22 began and ended in the same tenth of a second."""
    table = csv_bytes(
        ("begin_s", "end_s", "score"), [(80158.39, 80158.4504, 0.6231874), (1000.0, -2000.5, float("nan"))]
    )
    assert table.decode().split() == ["begin_s,end_s,score", "80158.39,80158.45,0.623187", "1000,-2000.5,"]
