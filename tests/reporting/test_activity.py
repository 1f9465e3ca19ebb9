"""Effort and calls per local hour, worked by hand; sunrise against almanac times."""

from datetime import UTC, date, datetime
from zoneinfo import ZoneInfo

import numpy as np
import pyarrow as pa
import pytest
from astral import Observer
from astral.sun import sunrise, sunset

from mast_ray.reporting.activity import clock_name, cut_at_hours, diel_map, sun_hours
from mast_ray.reporting.report.calendars import diel_heat_map, effort_calendar
from mast_ray.tables.schemas import DETECTIONS, RECORDINGS


def recordings(rows: list[dict]) -> pa.Table:
    return pa.Table.from_pylist(
        [{"site": "A", "utc_offset_s": 0, "time_flags": ""} | row for row in rows], schema=RECORDINGS
    )


def detections(rows: list[dict]) -> pa.Table:
    return pa.Table.from_pylist([{"site": "A", "utc_offset_s": 0} | row for row in rows], schema=DETECTIONS)


def test_a_recording_over_a_full_hour_is_cut_there():
    pieces = cut_at_hours(np.array([3600.0 * 5 + 3000.0, np.nan]), np.array([1800.0, 60.0]))
    assert pieces.slot.tolist() == [5, 6]
    assert pieces.begin_s.tolist() == [0.0, 600.0]
    assert pieces.end_s.tolist() == [600.0, 1800.0]
    assert pieces.recording.tolist() == [0, 0]  # the one without a clock has no place


def test_a_recording_that_ends_on_the_hour_does_not_reach_into_the_next():
    assert cut_at_hours(np.array([0.0]), np.array([3600.0])).slot.tolist() == [0]


def test_local_hours_follow_the_offset_and_zero_calls_differ_from_no_effort():
    start = datetime(2024, 5, 5, 22, 30, tzinfo=UTC)  # 05:30 on 6 May at +07:00
    table = recordings(
        [{"recording_id": "r", "start_utc": start, "duration_s": 3600.0, "utc_offset_s": 25200}]
    )
    found = diel_map(table, detections([{"recording_id": "r", "start_utc": start, "utc_offset_s": 25200}]))
    assert found.first_date == date(2024, 5, 6)
    assert found.effort_s.shape == (1, 24)
    assert found.effort_s[0, 5] == found.effort_s[0, 6] == 1800.0
    assert found.calls[0, 5] == 1 and found.calls[0, 6] == 0  # heard nothing
    assert found.effort_s[0, 7] == 0.0  # did not listen
    picture = str(diel_heat_map(found))
    assert picture.count('class="cell zero" d="M') == 1 and 'class="cell none" d="M' in picture


def test_without_an_offset_hours_are_utc_and_said_so():
    start = datetime(2024, 5, 5, 22, 30, tzinfo=UTC)
    table = recordings([{"recording_id": "r", "start_utc": start, "duration_s": 60.0, "utc_offset_s": None}])
    found = diel_map(table, detections([]))
    assert found.clock == "UTC" and found.effort_s[0, 22] == 60.0
    at_utc = recordings([{"recording_id": "r", "start_utc": start, "duration_s": 60.0, "utc_offset_s": 0}])
    assert diel_map(at_utc, detections([])).clock == "UTC"  # an AudioMoth's clock, wherever it hangs


def test_no_clock_at_all_gives_no_map():
    assert diel_map(recordings([{"recording_id": "r", "duration_s": 60.0}]), detections([])) is None


def test_sunrise_and_sunset_agree_with_the_almanac():
    # Greenwich, 21 June 2024: 04:43 and 21:21 British Summer Time (HM Nautical Almanac Office).
    rise, down = sun_hours([date(2024, 6, 21)], 51.4769, 0.0, 3600)
    assert rise[0] == pytest.approx(4 + 43 / 60, abs=0.04)
    assert down[0] == pytest.approx(21 + 21 / 60, abs=0.04)


def test_the_midnight_sun_does_not_rise():
    rise, down = sun_hours([date(2024, 6, 21)], 78.2, 15.6, 7200)
    assert rise == (None,) and down == (None,)


def test_sites_far_apart_share_no_sun_line():
    start = datetime(2024, 5, 5, 12, tzinfo=UTC)
    near = {"duration_s": 60.0, "start_utc": start, "latitude": 0.0, "longitude": 0.0}
    one = diel_map(recordings([near | {"recording_id": "a"}]), detections([]))
    both = recordings([near | {"recording_id": "a"}, near | {"recording_id": "b", "latitude": 20.0}])
    assert len(one.sunrise_h) == 1
    assert diel_map(both, detections([])).sunrise_h == ()


def test_years_are_put_together_to_few_columns_without_losing_a_call():
    rows = [
        {"recording_id": str(d), "start_utc": datetime.fromtimestamp(d * 86400 * 3, UTC), "duration_s": 60.0}
        for d in range(400)
    ]
    table = recordings(rows)
    calls = detections([{"recording_id": r["recording_id"], "start_utc": r["start_utc"]} for r in rows])
    found = diel_map(table, calls)
    assert len(found.calls) == 1198
    picture = str(diel_heat_map(found))
    assert "&#34;days&#34;:3" in picture and picture.count("M") < 400 * 24 + 100
    assert str(effort_calendar([found])).startswith("<svg")


def test_sun_lines_follow_the_clocks_when_they_change():
    # Berlin's clocks went forward on 31 March 2024: the sun rises an hour later by the clock from then on
    zone = ZoneInfo("Europe/Berlin")
    rows = []
    for day in (29, 30, 31):
        start = datetime(2024, 3, day, 5, tzinfo=zone)
        offset = int(start.utcoffset().total_seconds())
        rows.append({"recording_id": str(day), "duration_s": 60.0, "start_utc": start.astimezone(UTC),
                     "utc_offset_s": offset, "latitude": 52.52, "longitude": 13.40})  # fmt: skip
    found = diel_map(recordings(rows), detections([]))
    for day, rise_h, down_h in zip((29, 30, 31), found.sunrise_h, found.sunset_h, strict=True):
        for event, hour in ((sunrise, rise_h), (sunset, down_h)):
            clock = event(Observer(52.52, 13.40), date=date(2024, 3, day), tzinfo=zone)
            assert hour == pytest.approx(clock.hour + clock.minute / 60, abs=0.02)


def test_a_site_on_the_date_line_has_sun_lines():
    start = datetime(2024, 5, 5, 12, tzinfo=UTC)
    near = {"duration_s": 60.0, "start_utc": start, "utc_offset_s": 43200, "latitude": -16.8}
    rows = [near | {"recording_id": str(lon), "longitude": lon} for lon in (179.99, -179.99)]
    found = diel_map(recordings(rows), detections([]))
    assert found.sunrise_h[0] == pytest.approx(6.2, abs=0.2)  # Taveuni


def test_recordings_without_a_clock_make_no_hour_utc():
    start = datetime(2024, 5, 5, 12, tzinfo=UTC)
    rows = [{"recording_id": "a", "duration_s": 60.0, "start_utc": start, "utc_offset_s": 7200},
            {"recording_id": "b", "duration_s": 60.0, "utc_offset_s": None}]  # fmt: skip
    assert clock_name(recordings(rows)) == "local time"
