"""Time and site from names, headers and tables: right or flagged, never silently wrong."""

import io
from datetime import UTC, datetime

import pytest
from damage import chunk, list_info, noise, pcm16, wav

from mast_ray.config.errors import ConfigError, DataError
from mast_ray.recordings.clock_and_site.clock import (
    TableRow,
    audiomoth_time,
    parse_name_metadata,
    recording_metadata,
)
from mast_ray.recordings.clock_and_site.site_tables import parse_site_table, refuse_unclear
from mast_ray.recordings.decoding.reading import probe

# (path, declared zone, UTC or None, site, flags): worked out by hand
# Frontier Labs
# space for zero
NAMES = [
    ("20180710_053000.WAV", "UTC", "2018-07-10 05:30:00", "", ""),  # AudioMoth
    ("20180710_053000.WAV", "Asia/Makassar", "2018-07-09 21:30:00", "", ""),
    ("20180710_053000.WAV", "+08:00", "2018-07-09 21:30:00", "", ""),
    ("20180710_053000.WAV", "UTC-5", "2018-07-10 10:30:00", "", ""),
    ("20180710_053000.WAV", "", None, "", "zone_unknown"),
    ("20180710_053000T.WAV", "UTC", "2018-07-10 05:30:00", "", ""),  # AudioMoth, triggered
    ("24E144036404A7B2_20230501_060000.WAV", "UTC", "2023-05-01 06:00:00", "24E144036404A7B2", ""),
    ("5B44A1C8.WAV", "", "2018-07-10 12:08:40", "", ""),  # AudioMoth, hexadecimal: always UTC
    ("5b44a1c8.wav", "Asia/Makassar", "2018-07-10 12:08:40", "", ""),
    ("59012345.WAV", "", "2017-04-26 22:46:29", "", ""),  # hexadecimal without a letter
    ("00000012.WAV", "", None, "", "clock_reset"),
    ("20180710.WAV", "UTC", None, "", "date_only"),  # a date, not the hexadecimal 1987
    ("S4A12345_20180710_053000.wav", "UTC", "2018-07-10 05:30:00", "S4A12345", ""),  # Song Meter 4
    ("SMM01234_20180710_053000.wav", "UTC", "2018-07-10 05:30:00", "SMM01234", ""),  # Song Meter Mini
    ("2MM01234_20180710_053000.wav", "UTC", "2018-07-10 05:30:00", "2MM01234", ""),
    ("PREFIX_0+1_20161023$195550.wac", "UTC", "2016-10-23 19:55:50", "PREFIX", "gps_synced"),
    ("PREFIX_0+1_20161023_195550.wac", "UTC", "2016-10-23 19:55:50", "PREFIX", ""),
    ("PREFIX_20180710_053000_250.wav", "UTC", "2018-07-10 05:30:00.250000", "PREFIX", ""),  # milliseconds
    ("S4A1_20000101_000000.wav", "UTC", None, "S4A1", "clock_reset"),
    ("19700101_000012.WAV", "UTC", None, "", "clock_reset"),
    ("SM2_20040531_120000.wav", "UTC", None, "SM2", "clock_reset"),
    ("deadbeef.wav", "", None, "", "clock_ahead"),  # hexadecimal for 2088: a word
    ("99999999.wav", "UTC", None, "", "clock_ahead"),  # hexadecimal for 2051: a number
    ("S1_20990101_000000.wav", "UTC", None, "S1", "clock_ahead"),
    ("S1_20240101T000000+9900.wav", "UTC", "2024-01-01 00:00:00", "S1", "invalid_offset"),
    ("20180710T053000+0800_SITE_[-27.3866][152.8761].flac", "", "2018-07-09 21:30:00", "SITE", ""),
    ("20180710T053000+0800_REC [-27.3866+152.8761].flac", "UTC", "2018-07-09 21:30:00", "", ""),
    ("20180710T053000-0330_Bog 7_[47.1234][-052.9876].flac", "", "2018-07-10 09:00:00", "Bog 7", ""),
    ("20180710T053000Z_SITE.flac", "Asia/Makassar", "2018-07-10 05:30:00", "SITE", ""),
    ("20180710T053000_SITE.flac", "", None, "SITE", "zone_unknown"),
    ("SwiftOne_20180710_053000.wav", "UTC", "2018-07-10 05:30:00", "SwiftOne", ""),  # Swift
    ("S1086_20210512_040000-0500.wav", "UTC", "2021-05-12 09:00:00", "S1086", ""),
    ("20180710_053000-0001.wav", "UTC", "2018-07-10 05:30:00", "", ""),  # part 1, not an offset of one minute
    ("AM4_20230531_092000.WAV", "UTC", "2023-05-31 09:20:00", "AM4", ""),  # BIRDeep
    ("AM1/2023_05_10/AM1_20230510_060000.WAV", "UTC", "2023-05-10 06:00:00", "AM1", ""),
    ("2024-03-19-birdnet-09:48:32.wav", "Europe/London", "2024-03-19 09:48:32", "", ""),  # BirdNET-Pi
    ("Turdus_merula-88-2024-03-19-birdnet-RTSP_1-09:48:32.mp3", "UTC", "2024-03-19 09:48:32", "", ""),
    ("p9_2021-06-08T19-26-40.flac", "UTC", "2021-06-08 19:26:40", "p9", ""),  # RFCx
    ("P1-2015-06-03_05-10.flac", "UTC", "2015-06-03 05:10:00", "P1", ""),  # Arbimon: minutes only
    ("1559887337000.opus", "", "2019-06-07 06:02:17", "", "epoch_name"),  # RFCx guardian
    ("FK3_01_671354921_20190219T214331Z.flac", "", "2019-02-19 21:43:31", "FK3_01_671354921", ""),
    ("7268.DSG_RAWD_HMS_ 3_50_ 0__DMY_10_ 3_11.wav", "UTC", "2011-03-10 03:50:00", "7268.DSG_RAWD", ""),
    ("2018 7 1_ 5 3 0.wav", "UTC", "2018-07-01 05:03:00", "", ""),
    ("5146.180710053000.wav", "UTC", "2018-07-10 05:30:00", "", "two_digit_year"),  # SoundTrap
    ("671379481.180710053000.wav", "UTC", "2018-07-10 05:30:00", "", "two_digit_year"),  # a SoundTrap of today
    ("M1_190522_000000.wav", "UTC", "2019-05-22 00:00:00", "M1", "two_digit_year"),
    ("20180710053000.wav", "UTC", "2018-07-10 05:30:00", "", ""),
    ("20180710_053000_20180710_054000.wav", "UTC", "2018-07-10 05:30:00", "", "several_times"),
    ("dalby_bush_01_2980_702775_20201222_180530_30_0.wav", "UTC", "2020-12-22 18:05:30", "dalby_bush_01_2980_702775", ""),
    ("20181341_993000.wav", "UTC", None, "", "invalid_time"),
    ("20180231_120000.wav", "UTC", None, "", "invalid_time"),
    ("recording.wav", "UTC", None, "", ""),
    ("site A/card 1/20180710_053000.WAV", "UTC", "2018-07-10 05:30:00", "site A", ""),
    ("MARS-20180710T053000.123456789Z-16kHz.flac", "Asia/Makassar", "2018-07-10 05:30:00.123457", "MARS", ""),
    ("X_2018-07-10T05_30_00+02_00.wav", "Asia/Makassar", "2018-07-10 03:30:00", "X", ""),  # a disk took no colon
    ("X_2018-07-10T05-30-00-05-00.wav", "Asia/Makassar", "2018-07-10 10:30:00", "X", ""),
    ("X_2018-07-10_05-30-00-01-00.wav", "UTC", "2018-07-10 05:30:00", "X", ""),  # numbers of a part
    ("X_20180710_053000_UTC.wav", "Asia/Makassar", "2018-07-10 05:30:00", "X", ""),
    ("X_20180710_053000(UTC+2).wav", "Asia/Makassar", "2018-07-10 03:30:00", "X", ""),
    ("X_20180710_053000 UTC-3:30.wav", "", "2018-07-10 09:00:00", "X", ""),
    ("X 2018-07-10 05-30-00 PM.wav", "UTC", "2018-07-10 17:30:00", "X", "twelve_hour_clock"),
    ("X_20180710_123000am.wav", "UTC", "2018-07-10 00:30:00", "X", "twelve_hour_clock"),
    ("20180710_053000_AM.wav", "UTC", "2018-07-10 05:30:00", "", ""),  # the same on both clocks
    ("20180710_173000_PM.wav", "UTC", "2018-07-10 17:30:00", "", ""),  # of 24 hours all the same
    ("20180710_053000_PM2.wav", "UTC", "2018-07-10 05:30:00", "", ""),  # a name of something
    # Berlin put the clock forward on 25 March 2018 at 02:00, and back on 28 October at 03:00
    ("X_20180325_023000.wav", "Europe/Berlin", "2018-03-25 01:30:00", "X", "dst_gap"),
    ("X_20181028_023000.wav", "Europe/Berlin", "2018-10-28 00:30:00", "X", "dst_ambiguous"),
    ("X_20181028_033000.wav", "Europe/Berlin", "2018-10-28 02:30:00", "X", ""),
]  # fmt: skip


@pytest.mark.parametrize(("path", "zone", "utc", "site", "flags"), NAMES)
def test_a_name_gives_the_right_time_or_a_flag(path, zone, utc, site, flags):
    found = parse_name_metadata(path, zone)
    assert found.start_utc == (datetime.fromisoformat(utc).replace(tzinfo=UTC) if utc else None)
    assert ",".join(found.time_flags) == flags
    assert found.site == site
    if found.start_utc is not None:
        assert found.utc_offset_s is not None
        local = datetime.fromtimestamp(found.start_utc.timestamp() + found.utc_offset_s, UTC).replace(
            tzinfo=None
        )
        is_utc = found.clock == found.start_utc.replace(tzinfo=None)  # then local time is the zone's
        assert local == found.clock or "dst_gap" in found.time_flags or (is_utc and zone)


@pytest.mark.parametrize(
    ("name", "zone", "hours", "flags"),
    [
        ("X_20180325_013000.wav", "Europe/Berlin", 0.4, ""),
        ("X_20180325_013000.wav", "Europe/Berlin", 0.6, "dst_change"),  # on, at 02:00
        ("X_20181028_000000.wav", "Europe/Berlin", 8.0, "dst_change"),  # back, at 03:00
        (
            "X_20180324_230000Z.wav",
            "Europe/Berlin",
            8.0,
            "dst_change",
        ),  # a clock in UTC: local time is the zone's
        ("X_20180325_023000.wav", "Europe/Berlin", 2.0, "dst_gap"),  # begins after the change
        ("X_20180325_013000.wav", "+01:00", 8.0, ""),
        ("X_20180325_013000.wav", "", 8.0, "zone_unknown"),
    ],
)
def test_a_recording_that_runs_through_a_change_of_the_clocks_is_flagged(name, zone, hours, flags):
    found = recording_metadata(name, zone=zone, duration_s=3600 * hours)
    assert ",".join(found.time_flags) == flags


@pytest.mark.parametrize(
    ("path", "zone", "offset_h"),
    [
        ("5B44A1C8.WAV", "Asia/Makassar", 8.0),  # an AudioMoth that counts in UTC, on Borneo
        ("5B44A1C8.WAV", "", 0.0),
        ("5B44A1C8.WAV", "Europe/London", 1.0),  # July
        ("20180110T053000Z_SITE.flac", "Europe/London", 0.0),  # January
        ("20180710T053000+0800_SITE.flac", "UTC", 8.0),  # the recorder's own offset stays
    ],
)
def test_a_recorder_that_writes_utc_has_the_local_time_of_its_declared_zone(path, zone, offset_h):
    assert parse_name_metadata(path, zone).utc_offset_s == offset_h * 3600


def test_the_position_in_a_frontier_labs_name_is_read():
    found = parse_name_metadata("20180710T053000-0330_Bog 7_[47.1234][-052.9876].flac")
    assert (found.latitude, found.longitude) == (47.1234, -52.9876)


def test_a_zone_that_does_not_exist_is_the_users_mistake():
    with pytest.raises(ConfigError, match="Asia/Makassar"):
        parse_name_metadata("20180710_053000.WAV", "Asia/Borneo")


@pytest.mark.parametrize(
    ("comment", "want"),
    [
        ("Recorded at 19:17:30 30/01/2018 (UTC) by AudioMoth 0FE081F80FE081F0 at gain setting 2", "2018-01-30 19:17:30+00:00"),
        ("Recorded at 21:00:00 19/02/2020 (UTC-5) by AudioMoth 24F31901603710CD", "2020-02-19 21:00:00-05:00"),
        ("Recorded at 12:00:00.250 01/06/2023 (UTC+5:30) by AudioMoth 24F3190160371", "2023-06-01 12:00:00.250+05:30"),
        ("Recorded at 12:00:00 01/06/2017 by AudioMoth 24F3190160371", "2017-06-01 12:00:00"),
        ("Recorded at 12:00:00 31/06/2017 (UTC) by AudioMoth", None),
        ("Recorded at 12:00:00 30/06/2017 (UTC+25) by AudioMoth", None),  # ended the whole archive
        ("Recorded at 12:00:00 30/06/2017 (UTC-24) by AudioMoth", None),
        ("a nice morning", None),
    ],
)  # fmt: skip
def test_the_comment_of_an_audiomoth_is_understood(comment, want):
    assert audiomoth_time(comment) == (datetime.fromisoformat(want) if want else None)


def header_of(*chunks):
    return probe(io.BytesIO(wav(pcm16(noise(0.5)), after=b"".join(chunks)))).header


COMMENT = list_info(ICMT="Recorded at 05:30:00 10/07/2018 (UTC+8) by AudioMoth 24F3190160371")
GUANO = chunk(
    b"guan", b"GUANO|Version: 1.0\nTimestamp: 2018-07-10T05:30:10+08:00\nLoc Position: 1.25 116.5\nMake: Test"
)


def test_sources_are_trusted_in_their_order():
    name = "X_20180710_053000.wav"
    row = TableRow(
        start=datetime(2018, 7, 10, 5, 30, 20),
        zone="Asia/Makassar",
        site="ridge",
        latitude=1.0,
        longitude=2.0,
    )
    cases = [
        ({"header": header_of(COMMENT, GUANO), "row": row}, "table", "2018-07-09 21:30:20", "ridge", 1.0),
        ({"header": header_of(COMMENT, GUANO)}, "guano", "2018-07-09 21:30:10", "X", 1.25),
        ({"header": header_of(COMMENT)}, "header", "2018-07-09 21:30:00", "X", None),
        ({"header": header_of(), "zone": "UTC"}, "filename", "2018-07-10 05:30:00", "X", None),
    ]
    for sources, source, utc, site, latitude in cases:
        found = recording_metadata(name, **sources)
        assert found.time_source == source
        assert found.start_utc == datetime.fromisoformat(utc).replace(tzinfo=UTC)
        assert (found.site, found.latitude) == (site, latitude)
        assert found.time_flags == ()


def test_sources_that_name_different_moments_are_flagged():
    found = recording_metadata("X_20180710_120000.wav", header=header_of(COMMENT))
    assert found.time_flags == ("sources_disagree",)
    assert (
        recording_metadata("X_20180709_213000.wav", header=header_of(COMMENT)).time_flags == ()
    )  # the name is UTC


@pytest.mark.parametrize("line", [b"Loc Position: 1.25, 116.5", b"no colon here", b"Loc Position: 1 2 300"])
def test_a_broken_line_of_guano_does_not_cost_the_time(line):
    header = header_of(
        chunk(b"guan", b"GUANO|Version: 1.0\nTimestamp: 2018-07-10T05:30:10+08:00\n" + line + b"\nMake: T")
    )
    found = recording_metadata("X_20180710_053000.wav", header=header)
    assert (found.time_source, found.utc_offset_s, found.latitude) == ("guano", 8 * 3600, None)


def test_an_offset_of_guano_that_no_place_has_is_not_used():
    """An offset of a day ended the whole archive with a traceback."""
    header = header_of(chunk(b"guan", b"GUANO|Version: 1.0\nTimestamp: 2018-07-10T05:30:10+25:00"))
    found = recording_metadata("X_20180710_053000.wav", header=header, zone="UTC")
    assert (found.time_source, found.utc_offset_s) == ("filename", 0)


def test_broken_guano_costs_only_itself():
    found = recording_metadata(
        "X_20180710_053000.wav", header=header_of(chunk(b"guan", b"no colon here\xff")), zone="UTC"
    )
    assert found.time_source == "filename"


def test_a_site_table_fills_in_by_file_by_name_and_by_site():
    table = parse_site_table(
        "\ufefffile,site,start_time,timezone,latitude,longitude\n"
        "a/x.wav,ridge,2018-07-10T05:30:00+08:00,,,\n"
        "b/x.wav,river,,Asia/Makassar,,\n"
        ",ridge,,,1.5,116.0\n"
    )
    row = table.row_of("a/x.wav")
    assert (row.site, row.start, row.latitude) == (
        "ridge",
        datetime.fromisoformat("2018-07-10T05:30:00+08:00"),
        1.5,
    )
    assert table.row_of("b/x.wav").zone == "Asia/Makassar"
    assert table.row_of("c/x.wav") is None  # two rows share this name
    assert table.row_of("c/y.wav", "ridge").longitude == 116.0


def test_a_site_table_without_file_or_site_says_what_to_add():
    with pytest.raises(DataError, match="column 'file'"):
        parse_site_table("when,where\n1,2\n")
    with pytest.raises(DataError, match=r"line 2.*is not a time"):
        parse_site_table("file,start_time\nx.wav,noon\n")


def test_rows_of_one_recording_or_site_that_differ_are_refused_and_those_that_do_not_are_one():
    with pytest.raises(DataError, match=r"line 3: x.wav was described before, and differently"):
        parse_site_table("file,start_time\nx.wav,2024-05-06T04:00\nx.wav,2024-05-06T05:00\n")
    with pytest.raises(DataError, match=r"line 3: site 'A' was described before"):
        parse_site_table("site,latitude,longitude\nA,1,10\nA,2,10\n")
    same = parse_site_table("file,site\na/x.wav,A\na/x.wav,A\n")
    assert same.row_of("a/x.wav").site == same.row_of("x.wav").site == "A"


def test_a_site_table_is_read_as_a_spreadsheet_saves_it():
    table = parse_site_table("File;Site;Latitude;Longitude\nS\u00fcd/x.wav;S\u00fcd;52,25;13,5\n")
    assert table.row_of("S\u00fcd/x.wav") == TableRow(site="S\u00fcd", latitude=52.25, longitude=13.5)


def test_a_column_of_utc_times_is_not_local_time():
    row = parse_site_table("file,start_utc\nx.wav,2024-06-01 10:00:00\n").row_of("x.wav")
    found = recording_metadata("x.wav", row=row, zone="Asia/Makassar")
    assert found.start_utc == datetime(2024, 6, 1, 10, tzinfo=UTC)


def test_a_mistake_in_a_site_table_is_told_with_its_line():
    with pytest.raises(DataError, match=r"t.csv, line 2: 'Europe/Berln' is not a time zone"):
        parse_site_table("file,timezone\nx.wav,Europe/Berln\n", "t.csv")
    for impossible in ("+25:00", "UTC-30", "+8000", "+480"):  # the last one in minutes
        with pytest.raises(DataError, match=r"t.csv, line 2: .* is not a time zone"):
            parse_site_table(f"file,timezone\nx.wav,{impossible}\n", "t.csv")
    with pytest.raises(DataError, match=r"t.csv, line 3: '521'"):
        parse_site_table("site,latitude,longitude\na,52.1,13\nb,521,13\n", "t.csv")


def test_a_row_does_not_describe_a_recording_of_the_same_name_in_another_folder():
    table = parse_site_table("file,site\nridge/20240331_013000.WAV,R\n")
    assert table.row_of("river/20240331_013000.WAV") is None
    assert table.row_of("card 1/ridge/20240331_013000.wav").site == "R"  # the archive begins higher up
    assert table.row_of("20240331_013000.WAV").site == "R"  # or further down


def test_rows_that_fit_no_recording_or_several_are_told():
    paths = ["ridge/a.wav", "river/a.wav", "river/b.wav"]
    assert refuse_unclear(parse_site_table("file,site\nb.wav,B\nriver/a.wav,A\n"), paths, (), "t.csv") == ""
    assert "1 of its files" in refuse_unclear(
        parse_site_table("file,site\nb.wav,B\nc.wav,C\n"), paths, (), "t.csv"
    )
    with pytest.raises(DataError, match="none of its 1 files"):
        refuse_unclear(parse_site_table("file,site\nc.wav,C\n"), paths, (), "t.csv")
    with pytest.raises(DataError, match=r"a\.wav can be 2 recordings"):
        refuse_unclear(parse_site_table("file,site\na.wav,A\n"), paths, (), "t.csv")


@pytest.mark.parametrize(
    ("path", "zone", "local"),
    [
        (
            "S1/S1_20240506_053000.wav",
            "",
            datetime(2024, 5, 6, 5, 30),
        ),  # nobody said where: still half past five
        ("S1/S1_20240506_053000.wav", "Asia/Makassar", datetime(2024, 5, 6, 5, 30)),
        (
            "S1/20240506_053000Z.wav",
            "Asia/Makassar",
            datetime(2024, 5, 6, 13, 30),
        ),  # a recorder that writes UTC
        ("S1/19700101_000010.wav", "", None),  # after a clock reset
        ("S1/dawn.wav", "", None),
    ],
)
def test_the_clock_on_the_wall_is_known_without_a_zone(path, zone, local):
    assert parse_name_metadata(path, zone).local == local


def test_the_start_of_a_deployment_is_not_that_of_a_recording():
    table = parse_site_table("site,latitude,longitude,start,end\nridge,40.1,-3.2,01/05/2023,2023-08-01\n")
    row = table.row_of("ridge/20230531_090000.WAV", "ridge")
    assert row is not None and (row.start, row.latitude) == (None, 40.1)
    assert "the start of 1 sites is not used" in refuse_unclear(
        table, ["ridge/20230531_090000.WAV"], {"ridge"}, "sites.csv"
    )


def test_sites_of_a_table_that_no_recording_has_are_told():
    """A site written otherwise than its folder lost its zone and place without a word."""
    paths, at_sites = ["Wald/a.wav", "Moor/b.wav"], {"Wald", "Moor"}
    table = parse_site_table("site,timezone\nWald,Europe/Berlin\nmoor,Europe/Berlin\n")
    note = refuse_unclear(table, paths, at_sites, "t.csv")
    assert note == "t.csv: 1 of its sites are not in the archive (e.g. 'moor'; there: 'Moor', 'Wald')"
    with pytest.raises(
        DataError, match=r"none of its 1 sites is in the archive \(e.g. 'moor'; there: 'Moor'"
    ):
        refuse_unclear(parse_site_table("site,timezone\nmoor,Europe/Berlin\n"), paths, at_sites, "t.csv")
    with pytest.raises(DataError, match="no recording there has one"):
        refuse_unclear(parse_site_table("site,timezone\nmoor,Europe/Berlin\n"), ["b.wav"], {""}, "t.csv")
    named = parse_site_table("file,site,timezone\nb.wav,bog,\n,bog,Europe/Berlin\n")  # by a row of its own
    assert refuse_unclear(named, paths, at_sites, "t.csv") == ""


def test_rows_of_two_folders_that_fit_one_recording_are_said():
    table = parse_site_table("file,site\nA/x.wav,A\nB/x.wav,B\n")
    assert table.row_of("x.wav") is None
    assert "1 recordings are described by rows of several folders" in refuse_unclear(
        table, ["x.wav"], (), "t.csv"
    )


def test_a_start_of_long_ago_stands_where_a_table_states_it_and_not_where_a_name_does():
    stated = recording_metadata("tape.wav", row=TableRow(datetime(1998, 5, 3, 5, 0)))
    assert stated.local == datetime(1998, 5, 3, 5, 0)
    assert stated.time_flags == ("before_2005", "zone_unknown")
    named = recording_metadata("A_19980503_050000.wav")
    assert (named.local, named.time_flags) == (None, ("clock_reset",))


def test_starts_of_a_table_that_a_wrong_clock_would_write_too_are_told():
    table = parse_site_table("file,start_time\na.wav,1998-05-03T05:00\nb.wav,2222-01-01\nc.wav,2024-05-03\n")
    said = refuse_unclear(table, ["a.wav", "b.wav", "c.wav"], (), "t.csv")
    assert "1 of its starts are before 2005 and stand as written (e.g. a.wav, 1998-05-03 05:00:00)" in said
    assert (
        "1 of its starts are not used, for they are still to come (e.g. b.wav, 2222-01-01 00:00:00)" in said
    )
    with pytest.raises(DataError, match="of the year 24:\nwrite the year in four digits"):
        parse_site_table("file,start_time\na.wav,0024-05-03\n")
