"""Zones and times that a user names afterwards: what is said about a clock then is what holds then."""

from datetime import UTC, datetime

import pyarrow as pa
import pytest

from mast_ray.config.errors import ConfigError
from mast_ray.recordings.clock_and_site.clock import TableRow, recording_metadata
from mast_ray.reporting.report.collect_provenance import clock_warnings
from mast_ray.reporting.restating import restated
from mast_ray.tables.schemas import RECORDINGS


def recordings(*names: str, zone: str = "") -> pa.Table:
    """As `mast detect` writes them where nobody named a zone, or with `audio.timezone`."""
    rows = []
    for name in names:
        known = recording_metadata(name, zone=zone)
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
def test_a_clock_that_cannot_be_right_gives_no_date_whoever_reads_it(tmp_path, zone):
    name, table, start = "A/x.wav", tmp_path / "times.csv", "2222-01-01T00:00:00"
    table.write_text(f"file,start_time\n{name},{start}\n")
    (row,) = restated(recordings(name), zone, str(table)).to_pylist()
    by_detect = recording_metadata(name, row=TableRow(datetime.fromisoformat(start)), zone=zone)
    assert row["start_local"] is None and by_detect.local is None
    assert row["time_flags"] == ",".join(by_detect.time_flags)


NAMES = ("A/A_20240630_050000.wav", "A/A_20240331_013000.wav", "A/A_20241027_023000.wav")


@pytest.mark.parametrize("right", ["Asia/Makassar", "Europe/Berlin", "UTC", "-03:30"])
@pytest.mark.parametrize("wrong", ["Europe/London", "Europe/Berlin", "+09:00"])
def test_a_wrong_zone_of_detect_is_corrected_afterwards(wrong, right, capsys):
    after = restated(recordings(*NAMES, zone=wrong), right, before=wrong)
    assert after.equals(recordings(*NAMES, zone=right))
    assert "note:" not in capsys.readouterr().err
    assert restated(after, right, before=wrong).equals(after)


def test_a_zone_of_a_table_corrects_that_of_detect_too(tmp_path):
    (tmp_path / "sites.csv").write_text("site,timezone\nA,Asia/Makassar\n")
    after = restated(recordings(*NAMES, zone="+09:00"), "", str(tmp_path / "sites.csv"), before="+09:00")
    assert after.equals(recordings(*NAMES, zone="Asia/Makassar"))


def test_times_that_state_their_offset_stay_and_it_is_said(capsys):
    stated = recordings("A/A_20240630_050000Z.wav", "A/20240630_050000+0200.wav", zone="+09:00")
    assert stated["time_source"].to_pylist() == ["filename"] * 2
    after = restated(stated, "Asia/Makassar", before="+09:00")
    assert after["start_utc"].equals(stated["start_utc"])
    assert "note: 2 recordings have an offset" in capsys.readouterr().err
    by_header = stated.set_column(
        stated.column_names.index("time_source"), "time_source", pa.array(["guano"] * 2)
    )
    assert restated(by_header, "Asia/Makassar", before="+09:00")["start_utc"].equals(stated["start_utc"])


def test_a_clock_in_utc_keeps_its_moment_and_gets_local_hours():
    utc = recordings("A/A_20240630_050000.wav", zone="UTC")
    (row,) = restated(utc, "Asia/Makassar", before="UTC").to_pylist()
    assert row["start_utc"] == datetime(2024, 6, 30, 5, tzinfo=UTC)
    assert row["start_local"] == datetime(2024, 6, 30, 13)


def test_a_clock_in_the_hour_that_summer_time_leaves_out_is_not_said_to_be_of_another_zone(capsys):
    restated(recordings("A/A_20240331_023000.wav"), "Europe/Berlin")
    assert "have an offset" not in capsys.readouterr().err


def test_the_remedy_for_a_zone_that_is_none_is_one_of_every_verb():
    """`mast summarise --timezone` named --set audio.timezone, which it does not know."""
    with pytest.raises(ConfigError, match="Asia/Makassar") as told:
        restated(recordings("A/A_20240331_023000.wav"), "Borneo")
    assert "--set" not in str(told.value)


def test_a_start_of_long_ago_that_a_table_states_stands_whoever_reads_it(tmp_path):
    name, table = "A/x.wav", tmp_path / "times.csv"
    table.write_text(f"file,start_time\n{name},1998-05-03T05:00:00\n")
    after = restated(recordings(name), "Europe/Berlin", str(table))
    (row,) = after.to_pylist()
    by_detect = recording_metadata(name, row=TableRow(datetime(1998, 5, 3, 5)), zone="Europe/Berlin")
    assert row["start_utc"] == by_detect.start_utc == datetime(1998, 5, 3, 3, tzinfo=UTC)
    assert row["time_flags"] == ",".join(by_detect.time_flags) == "before_2005"
    assert restated(after, "Europe/Berlin").equals(after)  # nor does a zone that is named later take it away
