"""Rates with effort and their intervals, worked by hand and by simulation."""

from datetime import UTC, date, datetime, timedelta

import numpy as np
import pyarrow as pa
import pytest
from scipy import stats

from mast_ray.reporting.detection_tables import searched_recordings
from mast_ray.reporting.summaries import ratio_intervals, summarise, summarise_labels, summarise_sites
from mast_ray.storage.storage import open_storage
from mast_ray.storage.units import Commit, Outcome, put_commit
from mast_ray.tables.schemas import DETECTIONS, RECORDINGS

START = datetime(2024, 5, 6, 5, 30, tzinfo=UTC)


def recordings(*rows: dict) -> pa.Table:
    base = {"site": "A", "start_utc": START, "utc_offset_s": 0, "duration_s": 3600.0}
    return pa.Table.from_pylist([base | row for row in rows], schema=RECORDINGS)


def calls(*rows: tuple) -> pa.Table:
    names = ("recording_id", "begin_s", "end_s", "low_hz", "high_hz")
    return pa.Table.from_pylist(
        [dict(zip(names, row, strict=True)) | {"score": 0.9} for row in rows], schema=DETECTIONS
    )


def test_calls_count_in_the_hour_they_begin_in():
    found = summarise(
        recordings({"recording_id": "r"}),
        calls(("r", 10.0, 11.0, 500, 900), ("r", 1799.0, 1801.0, 500, 900), ("r", 1800.0, 1801.0, 500, 900)),
    ).by_site_and_hour.to_pylist()
    assert [(row["hour"], row["effort_h"], row["calls"], row["calls_per_hour"]) for row in found] == [
        (5, 0.5, 2, 4.0),
        (6, 0.5, 1, 2.0),
    ]


def test_the_effort_behind_detections_of_a_pool_is_what_was_searched(tmp_path):
    known = recordings(*({"recording_id": name, "num_chunks": 4} for name in ("whole", "partly", "labelled")))
    folder = open_storage(tmp_path)
    outcomes = tuple(
        Outcome(name, "done", record={}) for name in ("whole-0-2", "whole-2-4", "partly-0-3")
    ) + (Outcome("labelled-0-4", "rejected", "UNREADABLE"),)
    put_commit(folder, Commit("u", "t", (), outcomes, {}))
    assert searched_recordings(str(tmp_path), known) == (known, 0)  # nothing says what stage it is
    folder.write_atomic("manifest.json", b'{"stage": "pseudo-label"}')
    searched, in_part = searched_recordings(str(tmp_path), known)
    assert searched.column("recording_id").to_pylist() == ["whole", "partly"] and in_part == 1
    folder.write_atomic("manifest.json", b'{"stage": "detect"}')  # which writes its own list of recordings
    assert searched_recordings(str(tmp_path), known) == (known, 0)


def test_a_band_above_a_recording_is_no_effort_there():
    """At 8 kHz nothing above 4 kHz was recorded, and no detector looks above 8 kHz: a share of 0 would say that nobody calls."""
    low_rate = {"recording_id": "low", "sample_rate_hz": 8000, "duration_s": 900.0}
    full = {"recording_id": "full", "sample_rate_hz": 48000, "duration_s": 900.0}
    boxes = calls(("full", 0.0, 90.0, 4500, 6000), ("low", 0.0, 90.0, 500, 1000))

    def shares(*rows):
        return [
            (row["low_hz"], row["effort_h"], row["share"])
            for row in summarise(
                recordings(*rows), boxes, band_edges_hz=(0.0, 4000.0, 8000.0, 16000.0)
            ).occupancy.to_pylist()
        ]

    assert shares(low_rate, full) == [(0.0, 0.5, 0.05), (4000.0, 0.25, 0.1), (8000.0, 0.0, None)]
    assert shares(low_rate) == [(0.0, 0.25, 0.1), (4000.0, 0.0, None), (8000.0, 0.0, None)]


def test_calls_of_a_label_have_the_effort_of_all_recordings():
    """Two recordings of an hour from 5:30: wrens in one of them, no robin after six."""
    table = calls(("a", 10.0, 11.0, 500, 900), ("a", 20.0, 21.0, 500, 900), ("b", 30.0, 31.0, 500, 900), ("a", 1900.0, 1901.0, 500, 900))  # fmt: skip
    named = table.set_column(
        table.column_names.index("label"), "label", pa.array(["wren", "wren", "robin", "wren"])
    )
    found = summarise(recordings({"recording_id": "a"}, {"recording_id": "b"}), named)
    rows = [
        (row["label"], row["calls"], row["effort_h"], row["calls_per_hour"])
        for row in found.by_label.to_pylist()
    ]
    assert rows == [("robin", 1, 2.0, 0.5), ("wren", 3, 2.0, 1.5)]
    by_hour = {
        (r["label"], r["hour"]): (r["calls"], r["calls_per_hour"])
        for r in found.by_label_and_hour.to_pylist()
    }
    assert by_hour == {
        ("robin", 5): (1, 1.0),
        ("robin", 6): (0, 0.0),
        ("wren", 5): (2, 2.0),
        ("wren", 6): (1, 1.0),
    }
    wren = found.by_label.to_pylist()[1]
    assert wren["low_95"] < 1.5 < wren["high_95"]
    assert {"calls_by_label", "calls_by_label_and_hour"} <= found.named().keys()


def test_boxes_without_names_have_no_table_of_labels():
    found = summarise(recordings({"recording_id": "a"}), calls(("a", 10.0, 11.0, 500, 900)))
    assert found.by_label is None and "calls_by_label" not in found.named()


def test_one_recording_has_a_rate_but_no_interval():
    (row,) = summarise(
        recordings({"recording_id": "r"}), calls(("r", 1.0, 2.0, 500, 900))
    ).by_site.to_pylist()
    assert row["calls_per_hour"] == 1.0 and row["low_95"] is None and row["high_95"] is None


def limits(row: dict, *names: str) -> tuple:
    return tuple(row[name] for name in names or ("calls_per_hour", "low_95", "high_95"))


def test_where_nothing_was_heard_the_upper_limit_is_that_of_poisson_for_recordings_with_calls():
    """3.69 = -ln(0.025) recordings with calls may have been missed; those of the table have 4 calls, and 6 s in a band."""
    silent = [{"recording_id": f"b{i}", "site": "B"} for i in range(4)]  # four hours
    heard = [{"recording_id": f"a{i}"} for i in range(3)]
    boxes = calls(
        *(("a0", float(n), n + 2.0, 500, 900) for n in (10, 20, 30)),  # 3 calls, 6 s
        *(("a1", n * 10.0, n * 10.0 + 1.2, 500, 900) for n in range(5)),  # 5 calls, 6 s
    )
    found = summarise(recordings(*heard, *silent), boxes, band_edges_hz=(0.0, 1000.0, 2000.0))
    a, b = found.by_site.to_pylist()
    assert a["low_95"] < a["calls_per_hour"] < a["high_95"]
    assert limits(b) == pytest.approx((0.0, 0.0, 3.689 * 4 / 4), abs=1e-3)
    # from 5:30 on: all calls in the first half hour, none at A from six on, three half hours of it
    by_hour = {(r["site"], r["hour"]): r for r in found.by_site_and_hour.to_pylist()}
    assert limits(by_hour["A", 6]) == pytest.approx((0.0, 0.0, 3.689 * 4 / 1.5), abs=1e-3)
    shares = {(r["site"], r["low_hz"]): r for r in found.occupancy.to_pylist()}
    for cell, hours in ((("B", 0.0), 4), (("A", 1000.0), 3)):
        most = 3.689 * 6 / (hours * 3600)
        assert limits(shares[cell], "share", "low_95", "high_95") == pytest.approx((0, 0, most), abs=1e-6)


def test_where_no_call_was_heard_at_all_calls_count_one_by_one_and_no_band_has_a_limit():
    found = summarise(recordings({"recording_id": "r"}, {"recording_id": "s"}), calls())
    (row,) = found.by_site.to_pylist()
    assert limits(row) == pytest.approx((0.0, 0.0, 3.689 / 2), abs=1e-3)
    assert row["high_95"] == pytest.approx(stats.chi2.ppf(0.975, 2) / 2 / 2)  # Garwood's exact limit
    assert set(found.occupancy.column("high_95").to_pylist()) == {None}


def test_a_limit_where_nothing_was_heard_lies_above_the_truth_also_of_calls_that_come_in_bouts():
    """0.2 bouts of ten calls in each of twelve hours, two calls an hour: 3.69 / 12 h would lie below the truth each time."""
    rng = np.random.default_rng(4)
    num_low = num_silent = 0
    for _ in range(400):
        bouts = rng.poisson(0.2, 24)  # twelve recordings at A, twelve at B
        table = recordings(*({"recording_id": f"r{i}", "site": "AB"[i // 12]} for i in range(24)))
        boxes = calls(
            *((f"r{i}", float(n), n + 1.0, 500, 900) for i in range(24) for n in range(10 * bouts[i]))
        )
        for row in summarise_sites(table, boxes)[0].to_pylist():
            num_silent += not row["calls"]
            num_low += not row["calls"] and row["high_95"] < 2.0
    assert num_silent > 40 and num_low <= 0.025 * 800


def test_right_calls_where_none_was_heard_have_the_limit_of_right_ones():
    table = recordings({"recording_id": "a"}, {"recording_id": "b", "site": "B"})
    boxes = judged(calls(*(("a", float(n), n + 1.0, 500, 900) for n in range(4))), 0.5)
    _, silent = summarise(table, boxes).by_site.to_pylist()
    assert limits(silent, "precision", "right_per_hour", "right_low_95") == (None, 0.0, 0.0)
    assert silent["right_high_95"] == pytest.approx(3.689 * 2, abs=1e-3)
    assert silent["high_95"] == pytest.approx(3.689 * 4, abs=1e-3)


def test_dates_are_local_and_hours_without_effort_are_absent():
    late = {"start_utc": datetime(2024, 5, 6, 20, 0, tzinfo=UTC), "utc_offset_s": 25200}
    found = summarise(recordings({"recording_id": "a"} | late), calls())
    assert found.by_site_and_date.column("date").to_pylist() == [date(2024, 5, 7)]
    assert found.by_site_and_hour.column("hour").to_pylist() == [3]
    assert found.by_site_and_hour.column("calls").to_pylist() == [0]


def test_recordings_without_a_clock_count_for_their_site_only():
    found = summarise(recordings({"recording_id": "r", "start_utc": None}), calls(("r", 1.0, 2.0, 500, 900)))
    assert found.by_site.column("calls").to_pylist() == [1]
    assert len(found.by_site_and_date) == 0 and len(found.by_site_and_hour) == 0


def test_overlapping_calls_occupy_a_band_once():
    found = summarise(
        recordings({"recording_id": "r", "duration_s": 100.0}),
        calls(("r", 10.0, 20.0, 1000, 1900), ("r", 15.0, 25.0, 1200, 1500), ("r", 50.0, 55.0, 1500, 2500)),
        band_edges_hz=(0.0, 1000.0, 2000.0, 3000.0),
    ).occupancy.to_pylist()
    assert [(row["low_hz"], row["occupied_s"], row["share"]) for row in found] == [
        (0.0, 0.0, 0.0),
        (1000.0, 20.0, 0.2),
        (2000.0, 5.0, 0.05),
    ]


def test_a_call_over_midnight_occupies_both_days():
    start = datetime(2024, 5, 6, 23, 59, 50, tzinfo=UTC)
    found = summarise(
        recordings({"recording_id": "r", "start_utc": start, "duration_s": 20.0}),
        calls(("r", 8.0, 14.0, 1000, 1500)),
        band_edges_hz=(1000.0, 2000.0),
    ).occupancy.to_pylist()
    assert [(row["date"], row["occupied_s"]) for row in found] == [
        (date(2024, 5, 6), 2.0),
        (date(2024, 5, 7), 4.0),
    ]


def test_detections_of_unknown_recordings_are_not_counted():
    found = summarise(recordings({"recording_id": "r"}), calls(("other", 1.0, 2.0, 500, 900)))
    assert found.by_site.column("calls").to_pylist() == [0]


def test_totals_of_all_tables_agree():
    rng = np.random.default_rng(0)
    table = recordings(
        *(
            {
                "recording_id": f"r{i}",
                "site": "AB"[i % 2],
                "start_utc": START + timedelta(hours=7.3 * i),
                "duration_s": 5000.0,
            }
            for i in range(20)
        )
    )
    found = summarise(
        table,
        calls(
            *((f"r{rng.integers(20)}", float(b), float(b) + 1, 500, 900) for b in rng.uniform(0, 4999, 500))
        ),
    )
    for one in (found.by_site, found.by_site_and_date, found.by_site_and_hour):
        assert sum(one.column("calls").to_pylist()) == 500
        assert sum(one.column("effort_h").to_pylist()) == pytest.approx(20 * 5000 / 3600)


def test_intervals_cover_the_true_rate_as_often_as_they_say():
    rng = np.random.default_rng(1)
    hits = 0
    for _ in range(300):
        effort = rng.uniform(0.5, 2.0, 40)
        rate = rng.gamma(4.0, 2.5, 40)  # recordings differ: mean 10 calls an hour
        ((low, high),) = ratio_intervals(rng.poisson(rate * effort).astype(float)[None], effort, rng, 400)
        hits += low <= 10.0 <= high
    assert 0.91 <= hits / 300 <= 0.985


def judged(table: pa.Table, probability: float) -> pa.Table:
    place = table.column_names.index("probability")
    return table.set_column(place, "probability", pa.array([probability] * len(table), pa.float32()))


def test_right_calls_are_the_sum_of_probabilities_and_verdicts_widen_their_limits():
    """100 hours with four calls each: the recordings say nothing uncertain, the hundred verdicts do (a beta distribution)."""
    table = recordings(*({"recording_id": f"r{i}"} for i in range(100)))
    boxes = calls(*((f"r{i}", float(n), n + 1.0, 500, 900) for i in range(100) for n in range(4)))
    (row,) = summarise(table, judged(boxes, 0.5), num_verdicts=100).by_site.to_pylist()
    assert (row["precision"], row["right_per_hour"], row["calls_per_hour"]) == (0.5, 2.0, 4.0)
    assert (row["low_95"], row["high_95"]) == (4.0, 4.0)
    limits = 4.0 * stats.beta.ppf([0.0234, 0.9766], 50.5, 50.5)  # 2.5 %, widened for a hundred recordings
    assert (row["right_low_95"], row["right_high_95"]) == pytest.approx(limits, abs=0.08)
    (known,) = summarise(table, judged(boxes, 0.5)).by_site.to_pylist()
    assert (known["right_low_95"], known["right_high_95"]) == (2.0, 2.0)


def test_without_probabilities_nothing_is_said_of_precision():
    assert "precision" not in summarise(recordings({"recording_id": "r"}), calls()).by_site.column_names


def season_of_labels():
    """Three sites over some days, two of the recordings without a clock; names for most calls."""
    rng = np.random.default_rng(3)
    known = recordings(
        *(
            {
                "recording_id": f"r{n}", "site": "ABC"[n % 3], "duration_s": 1800.0 + 60 * n,
                "start_utc": None if n in (4, 11) else START + timedelta(hours=7 * n),
            }
            for n in range(30)
        )
    )  # fmt: skip
    found = calls(*((f"r{n}", s, s + 1, 500, 900) for n in range(30) for s in rng.uniform(0, 1700, n % 7)))
    names = pa.array(rng.choice(["wren", "robin", ""], len(found)), pa.string())
    return known, found.set_column(found.column_names.index("label"), "label", names)


def test_sites_alone_have_the_figures_and_dates_of_the_whole_summary():
    known, found = season_of_labels()
    said: list[str] = []
    whole, (by_site, days) = summarise(known, found, say=said.append), summarise_sites(known, found)
    assert said == [f"summarise: {n} of 7 tables of rates" for n in range(7)]  # three, and two of each label
    assert by_site.equals(whole.by_site)
    rows = whole.by_site_and_date.to_pylist()
    assert days == {site: [row["date"] for row in rows if row["site"] == site] for site in "ABC"}


def test_labels_alone_have_the_figures_and_hours_of_the_whole_summary():
    known, found = season_of_labels()
    nowhere = known.set_column(known.column_names.index("site"), "site", pa.array([""] * 30, pa.string()))
    whole, alone = summarise(nowhere, found), summarise_labels(known, found)
    assert alone is not None and whole.by_label is not None and whole.by_label_and_hour is not None
    figures = ["label", "num_recordings", "effort_h", "calls", "calls_per_hour"]
    assert alone[0].select(figures).equals(whole.by_label.select(figures))
    np.testing.assert_allclose(
        alone[0].column("high_95").to_numpy(), whole.by_label.column("high_95").to_numpy(), rtol=0.1
    )
    hours = [(r["label"], r["calls_per_hour"], r["hour"]) for r in whole.by_label_and_hour.to_pylist()]
    assert alone[1] == {label: max(row[1:] for row in hours if row[0] == label)[1] for label in alone[1]}
    assert alone[1].keys() == {"robin", "wren"}
    assert summarise_labels(known, found.drop_columns(["label"])) is None
