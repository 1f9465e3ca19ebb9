"""Zones and times that a user names afterwards: what is said about a clock then is what holds then."""

from datetime import UTC, datetime

import pyarrow as pa
import pytest

from mast_ray.recordings.clock_and_site.clock import TableRow, recording_metadata
from mast_ray.reporting.report.collect_provenance import clock_warnings
from mast_ray.reporting.restating import restated
from mast_ray.tables.schemas import RECORDINGS


def recordings(*names: str) -> pa.Table:
    """As `mast detect` writes them where nobody named a zone."""
    rows = []
    for name in names:
        known = recording_metadata(name)
        rows.append({"recording_id": name, "path": name, "site": "A", "duration_s": 60.0,
                     "start_utc": known.start_utc, "utc_offset_s": known.utc_offset_s, "start_local": known.local,
                     "time_source": known.time_source, "time_flags": ",".join(known.time_flags)})  # fmt: skip
    return pa.Table.from_pylist(rows, schema=RECORDINGS)


def test_a_zone_that_was_named_is_not_unknown_any_more_and_its_gaps_are_told():
    before = recordings("A/A_20240630_050000.wav", "A/A_20240331_023000.wav", "A/A_20231029_023000.wav")
    assert before["time_flags"].to_pylist() == ["zone_unknown"] * 3
    after = restated(before, "Europe/Berlin")
    assert after["time_flags"].to_pylist() == ["", "dst_gap", "dst_ambiguous"]
    assert not any("zone_unknown" in said for said in clock_warnings(after))
    assert restated(after, "Europe/Berlin").equals(after)


@pytest.mark.parametrize("name", ["A/A_20240331_015930.wav", "A/A_20240331_005930Z.wav"])
def test_a_change_of_the_clocks_within_a_recording_is_told(name):
    after = restated(recordings(name), "Europe/Berlin")
    assert after["time_flags"].to_pylist() == ["dst_change"]
    assert any("dst_change" in said for said in clock_warnings(after))
    assert restated(after, "Europe/Berlin").equals(after)


def test_times_of_a_table_come_from_the_table(tmp_path):
    table = tmp_path / "times.csv"
    table.write_text("file,start_time,timezone\nA/A_19700101_000000.wav,2024-07-01T05:00:00,Europe/Berlin\n")
    (row,) = restated(recordings("A/A_19700101_000000.wav"), "", str(table)).to_pylist()
    assert (row["time_source"], row["time_flags"]) == ("table", "")
    assert row["start_utc"] == datetime(2024, 7, 1, 3, tzinfo=UTC)


@pytest.mark.parametrize("zone", ["", "Europe/Berlin"])
@pytest.mark.parametrize("start", ["2000-01-01T00:00:00", "2222-01-01T00:00:00"])
def test_a_clock_that_cannot_be_right_gives_no_date_whoever_reads_it(tmp_path, start, zone):
    name, table = "A/x.wav", tmp_path / "times.csv"
    table.write_text(f"file,start_time\n{name},{start}\n")
    (row,) = restated(recordings(name), zone, str(table)).to_pylist()
    by_detect = recording_metadata(name, row=TableRow(datetime.fromisoformat(start)), zone=zone)
    assert row["start_local"] is None and by_detect.local is None
    assert row["time_flags"] == ",".join(by_detect.time_flags)
