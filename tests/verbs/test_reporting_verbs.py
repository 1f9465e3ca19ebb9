"""`mast report`, `mast export` and `mast summarise` from the command line, on a
folder of plain Parquet tables.
"""

import csv
import shlex
from datetime import UTC, datetime, timedelta

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import soundfile
from s3_server import client_of, s3_server, use_credentials, weed_program
from tones import Tone, sweep_tones, tone_config, write_tones

from mast_ray.config.tree import StorageConfig
from mast_ray.reporting.activity import diel_map
from mast_ray.reporting.detection_tables import read_detections, with_paths
from mast_ray.tables.schemas import DETECTIONS, RECORDINGS
from mast_ray.verbs.main import main
from mast_ray.verbs.run import bucket_knobs

START = datetime(2024, 5, 5, 22, 30, tzinfo=UTC)


@pytest.fixture
def run(tmp_path):
    """Two recordings of a site, one call in each, and the audio they speak of."""
    rng = np.random.default_rng(0)
    recordings, boxes = [], []
    for number in range(2):
        path, name = f"Danum/{number}.wav", f"r{number}"
        (tmp_path / "audio/Danum").mkdir(parents=True, exist_ok=True)
        soundfile.write(tmp_path / "audio" / path, rng.normal(0, 0.01, 8_000 * 10), 8_000)
        start = START + timedelta(hours=number)
        recordings.append({"recording_id": name, "path": path, "site": "Danum", "start_utc": start, "utc_offset_s": 25200,
                           "duration_s": 10.0, "sample_rate_hz": 8_000, "num_channels": 1, "time_source": "filename"})  # fmt: skip
        boxes.append({"recording_id": name, "path": path, "site": "Danum", "begin_s": 2.0, "end_s": 3.0, "low_hz": 1000.0, "high_hz": 5000.0,
                      "score": 0.4 + 0.4 * number, "start_utc": start + timedelta(seconds=2), "utc_offset_s": 25200})  # fmt: skip
    pq.write_table(pa.Table.from_pylist(recordings, schema=RECORDINGS), tmp_path / "recordings.parquet")
    (tmp_path / "detections").mkdir()
    pq.write_table(pa.Table.from_pylist(boxes, schema=DETECTIONS), tmp_path / "detections/part.parquet")
    return tmp_path


def test_report_writes_one_file_beside_the_run(run, capsys):
    assert (
        main(["report", str(run), "--audio", str(run / "audio"), "--examples", "2", "--title", "My <season>"])
        == 0
    )
    text = (run / "report.html").read_text()
    assert "My &lt;season&gt;" in text and text.count('<article class="example"') == 2
    assert "2 examples" in capsys.readouterr().out


def test_report_without_audio_says_what_is_missing(run, capsys):
    assert main(["report", str(run), "--out", str(run / "out/r.html")]) == 0
    assert (run / "out/r.html").exists() and "--audio" in capsys.readouterr().out


def test_report_with_a_folder_of_sound_that_is_not_there_is_refused_at_once(run, capsys):
    page = run / "no_sound.html"
    assert main(["report", str(run), "--audio", str(run / "nowhere"), "--out", str(page)]) == 3
    assert "does not exist" in capsys.readouterr().err and not page.exists()


def test_a_report_without_boxes_does_not_blame_the_folder_of_sound(run, capsys):
    (run / "detections/part.parquet").unlink()
    assert main(["report", str(run), "--audio", str(run / "audio")]) == 0
    said = capsys.readouterr().out
    assert "no boxes to show" in said and "could be read" not in said


def test_report_on_nothing_ends_with_the_code_for_data(tmp_path, capsys):
    assert main(["report", str(tmp_path)]) == 3
    assert "nothing to report on" in capsys.readouterr().err


def test_export_reads_rates_from_the_audio_itself(run):
    assert main(["export", str(run / "detections"), "--to", "raven", "--per", "site", "--out", str(run / "raven"), "--audio", str(run / "audio")]) == 0  # fmt: skip
    rows = list(csv.DictReader((run / "raven/Danum.Table.1.selections.txt").open(), delimiter="\t"))
    assert [float(r["Begin Time (s)"]) for r in rows] == [2.0, 12.0]
    assert {float(r["High Freq (Hz)"]) for r in rows} == {4000.0}  # Nyquist of 8 kHz files


def test_export_takes_no_file_that_nobody_searched_for_a_silent_one(run, capsys):
    """A recording that came to the archive after `mast detect`: its empty table was read back as listened to, nothing there."""
    pq.write_table(pq.read_table(run / "recordings.parquet"), run / "detections/recordings.parquet")
    soundfile.write(run / "audio/Danum/new.wav", np.zeros(8_000 * 10) + 0.01, 8_000)
    typed = ["export", str(run / "detections"), "--to", "raven", "--audio", str(run / "audio"), "--out", str(run / "raven")]  # fmt: skip
    assert main(typed) == 0
    said = capsys.readouterr()
    assert "2 detections of 2 recordings -> 2 files" in said.out
    assert "1 recordings of" in said.err and "were not searched" in said.err and "Danum/new.wav" in said.err
    assert sorted(file.name[0] for file in (run / "raven/Danum").iterdir()) == ["0", "1"]


def test_export_applies_the_threshold_on_read(run, capsys):
    arguments = [
        str(run / "detections/part.parquet"),
        "--to",
        "csv",
        "--out",
        str(run / "csv"),
        "--recordings",
        str(run / "recordings.parquet"),
    ]
    assert main(["export", *arguments, "--threshold", "0.5"]) == 0
    assert "1 detections of 2 recordings -> 2 files" in capsys.readouterr().out


def test_export_without_rates_says_that_nyquist_was_not_checked(run, capsys):
    assert main(["export", str(run / "detections"), "--to", "csv", "--out", str(run / "csv")]) == 0
    assert "Nyquist" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "says", "code"),
    [
        (["no_such_folder"], "no Parquet table", 3),
        (["detections", "--threshold", "7"], "between 0 and 1", 2),
        (["recordings.parquet"], "has no column", 3),
        (["missing.parquet"], "does not exist", 3),
        (["detections", "--stretches", "0.1", "--to", "pamdp"], "no observations", 2),
    ],
)
def test_mistakes_in_export_are_named_in_three_lines(run, capsys, arguments, says, code):
    typed = ["export", str(run / arguments[0]), "--to", "csv", *arguments[1:], "--out", str(run / "x")]
    assert main(typed) == code
    error = capsys.readouterr().err
    assert says in error and len(error.strip().splitlines()) <= 3


def test_boxes_of_a_csv_where_a_table_is_wanted_are_told_what_to_give(run, capsys):
    """It was ".../truth.csv/manifest.json: Not a directory: check the path"."""
    (run / "truth.csv").write_text("path,begin_s,end_s\nDanum/0.wav,1,2\n")
    assert main(["export", str(run / "truth.csv"), "--to", "raven", "--out", str(run / "out")]) == 3
    said = capsys.readouterr().err
    assert "truth.csv is no Parquet table: give the output of `mast detect`" in said


def test_the_next_command_can_be_typed_where_folders_have_spaces_in_their_names(run, capsys):
    boxes, sheet = (run / "detections").rename(run / "Wälder Süd"), run / "to judge"
    assert main(["calibrate", str(boxes), "--out", str(sheet), "--runner", "here"]) == 0
    said = shlex.split(capsys.readouterr().out.split("then: ")[1])
    assert said == ["mast", "calibrate", str(boxes), "--verdicts", f"{sheet}/review.csv"]


def test_summaries_are_written_as_csv_and_parquet(run, capsys):
    assert (
        main(["summarise", str(run / "detections"), "--recordings", str(run), "--out", str(run / "summary")])
        == 0
    )
    names = {path.name for path in (run / "summary").iterdir()}
    tables = ("calls_by_site", "calls_by_site_and_date", "diel_activity", "spectral_occupancy")
    assert names == {f"{table}.{ending}" for table in tables for ending in ("csv", "parquet")}
    hours = list(csv.DictReader((run / "summary/diel_activity.csv").open()))
    assert [(row["hour"], row["calls"], float(row["calls_per_hour"])) for row in hours] == [
        ("5", "1", 360.0),
        ("6", "1", 360.0),
    ]
    assert "2 calls in 0.01 recorded hours" in capsys.readouterr().out


def test_calls_by_label_of_other_detections_do_not_stay_beside_a_summary_without_names(run):
    out = run / "summary"
    out.mkdir()
    for name in ("calls_by_label.csv", "calls_by_label_and_hour.parquet", "my_notes.csv"):
        (out / name).write_text("of before")
    assert main(["summarise", str(run / "detections"), "--recordings", str(run), "--out", str(out)]) == 0
    left = {path.stem for path in out.iterdir()}
    assert not left & {"calls_by_label", "calls_by_label_and_hour"} and {"my_notes", "calls_by_site"} <= left


def test_summaries_find_the_effort_beside_the_detections(run, capsys):
    assert main(["summarise", str(run / "detections"), "--out", str(run / "s")]) == 3
    assert "--recordings" in capsys.readouterr().err
    (run / "recordings.parquet").rename(run / "detections/recordings.parquet")
    assert main(["summarise", str(run / "detections"), "--out", str(run / "s")]) == 0
    assert "2 calls in 0.01 recorded hours" in capsys.readouterr().out


def test_detections_of_another_archive_are_not_summarised_as_silence(run, capsys):
    table = pq.read_table(run / "recordings.parquet")
    pq.write_table(table.slice(1), run / "recordings.parquet")
    assert (
        main(["summarise", str(run / "detections"), "--recordings", str(run), "--out", str(run / "s")]) == 3
    )
    error = capsys.readouterr().err
    assert "1 of 2 detections" in error and not (run / "s").exists()


def test_bands_must_rise(run, capsys):
    assert (
        main(
            [
                "summarise",
                str(run / "detections"),
                "--recordings",
                str(run),
                "--out",
                str(run / "s"),
                "--bands-hz",
                "500",
                "100",
            ]
        )
        == 3
    )
    assert "rising" in capsys.readouterr().err


@pytest.fixture
def unzoned(run):
    """The same run by clocks of which nobody said where they stood: 05:30 and 06:30 on the wall."""
    recordings, boxes = (
        pq.read_table(run / name) for name in ("recordings.parquet", "detections/part.parquet")
    )
    rows = [
        row | {"start_utc": None, "utc_offset_s": None, "start_local": datetime(2024, 5, 6, 5 + n, 30)}
        for n, row in enumerate(recordings.to_pylist())
    ]
    for folder in (run, run / "detections"):
        pq.write_table(pa.Table.from_pylist(rows, schema=RECORDINGS), folder / "recordings.parquet")
    schema = DETECTIONS.append(pa.field("start_local", pa.timestamp("us")))
    found = [
        box
        | {"start_utc": None, "utc_offset_s": None, "start_local": row["start_local"] + timedelta(seconds=2)}
        for box, row in zip(boxes.to_pylist(), rows, strict=True)
    ]
    pq.write_table(pa.Table.from_pylist(found, schema=schema), run / "detections/part.parquet")
    return run


def summary(folder, name):
    return pq.read_table(folder / f"{name}.parquet").to_pylist()


def test_a_clock_without_a_zone_is_still_a_local_hour_and_marked_as_such(unzoned, capsys):
    out = unzoned / "s"
    assert main(["summarise", str(unzoned / "detections"), "--out", str(out)]) == 0
    assert [(row["hour"], row["calls"], row["clock"]) for row in summary(out, "diel_activity")] == [
        (5, 1, "local, zone unknown"),
        (6, 1, "local, zone unknown"),
    ]
    dates = summary(out, "calls_by_site_and_date")
    assert [(str(row["date"]), row["calls"], row["clock"]) for row in dates] == [
        ("2024-05-06", 2, "local, zone unknown")
    ]
    assert "2 recordings are local, zone unknown" in capsys.readouterr().err
    page = unzoned / "report.html"
    assert main(["report", str(unzoned), "--out", str(page)]) == 0
    assert "in no hour and date" not in page.read_text()  # they are, by their own clock


def test_zone_and_sites_are_said_afterwards_without_detecting_again(unzoned, capsys):
    (unzoned / "sites.csv").write_text("file,site,start_time\nDanum/1.wav,Ridge,2024-05-07T20:00:00\n")
    said = ["--timezone", "Asia/Kuala_Lumpur", "--table", str(unzoned / "sites.csv")]
    out = unzoned / "s"
    assert main(["summarise", str(unzoned / "detections"), "--out", str(out), *said]) == 0
    rows = summary(out, "diel_activity")
    assert [(row["site"], row["hour"], row["clock"]) for row in rows] == [
        ("Danum", 5, "local"),
        ("Ridge", 20, "local"),
    ]
    assert "2 of 2 recordings are said anew" in capsys.readouterr().err
    argv = [
        "export",
        str(unzoned / "detections"),
        "--to",
        "csv",
        "--per",
        "site",
        "--out",
        str(unzoned / "csv"),
    ]
    assert main([*argv, *said]) == 0
    files = sorted((unzoned / "csv").glob("*.csv"))
    cells = {row["file"]: row for file in files for row in csv.DictReader(file.open())}
    assert cells["Danum/0.wav"]["start_utc"] == "2024-05-05T21:30:02.000Z"
    assert cells["Danum/0.wav"]["start_local"] == "2024-05-06T05:30:02.000+08:00"
    assert (cells["Danum/1.wav"]["site"], cells["Danum/1.wav"]["date"]) == ("Ridge", "2024-05-07")
    assert main(["report", str(unzoned), "--out", str(unzoned / "r.html"), *said]) == 0
    assert "Ridge" in (unzoned / "r.html").read_text()


def test_an_export_of_clocks_without_a_zone_has_their_hour_and_no_offset(unzoned):
    assert main(["export", str(unzoned / "detections"), "--to", "csv", "--out", str(unzoned / "csv")]) == 0
    rows = [row for file in (unzoned / "csv").rglob("*.csv") for row in csv.DictReader(file.open())]
    assert {(row["start_utc"], row["start_local"], row["time"]) for row in rows} == {
        ("", "2024-05-06T05:30:02.000", "05:30:02"),
        ("", "2024-05-06T06:30:02.000", "06:30:02"),
    }
    assert {row["time_source"] for row in rows} == {"filename (local, zone unknown)"}


def test_a_zone_said_with_the_audio_keeps_the_times_of_the_recordings(unzoned, capsys):
    """Headers of audio know no clock: they once wiped the times out."""
    said = ["--to", "csv", "--per", "site", "--audio", str(unzoned / "audio"), "--timezone", "Asia/Kuala_Lumpur"]  # fmt: skip
    table = pq.read_table(unzoned / "detections/recordings.parquet")
    long = table.set_column(table.column_names.index("duration_s"), "duration_s", pa.array([99.0, 99.0]))
    pq.write_table(long, unzoned / "detections/recordings.parquet")
    assert main(["export", str(unzoned / "detections"), *said, "--out", str(unzoned / "a")]) == 0
    rows = list(csv.DictReader((unzoned / "a/Danum.csv").open()))
    assert [row["start_utc"] for row in rows] == ["2024-05-05T21:30:02.000Z", "2024-05-05T22:30:02.000Z"]
    assert {row["time_source"] for row in rows} == {"filename"}
    assert "2 of 2 recordings are said anew" in capsys.readouterr().err
    # lengths are still the headers': 10 s, not the 99 s of the table
    raven = ["--to", "raven", *said[2:], "--out", str(unzoned / "r")]
    assert main(["export", str(unzoned / "detections"), *raven]) == 0
    rows = list(csv.DictReader((unzoned / "r/Danum.Table.1.selections.txt").open(), delimiter="\t"))
    assert [float(row["Begin Time (s)"]) for row in rows] == [2.0, 12.0]
    # a table alone: nothing says when its recordings began, but its own rows do
    part = str(unzoned / "detections/part.parquet")
    assert main(["export", part, *said, "--out", str(unzoned / "b")]) == 0
    rows = list(csv.DictReader((unzoned / "b/Danum.csv").open()))
    assert [row["start_local"] for row in rows] == ["2024-05-06T05:30:02.000", "2024-05-06T06:30:02.000"]


def kaleidoscope(folder):
    rows = [row for file in folder.rglob("*.csv") for row in csv.DictReader(file.open())]
    return {tuple(row[name] for name in ("DATE", "TIME", "HOUR", "DATE-12", "TIME-12")) for row in rows}


def test_kaleidoscope_has_the_clock_of_the_files_beginning(unzoned, capsys):
    """Midnight sharp, also for boxes whose begin is no whole number of microseconds in binary (8.2 s times 1e6 is 8,199,999.99...)."""
    tables = [unzoned / "detections" / name for name in ("recordings.parquet", "part.parquet")]
    midnight = datetime(2024, 5, 6)
    recordings, boxes = (pq.read_table(table) for table in tables)
    rows = [row | {"start_local": midnight} for row in recordings.to_pylist()]
    pq.write_table(pa.Table.from_pylist(rows, schema=recordings.schema), tables[0])
    box = boxes.to_pylist()[0]
    begins_s = (0.0, 0.29, 1.001, 2.0000004, 4.1, 8.2)
    found = [
        box
        | {
            "begin_s": b,
            "end_s": b + 1,
            "start_local": midnight + timedelta(microseconds=int(b * 1e6)),
        }
        for b in begins_s
    ]
    pq.write_table(pa.Table.from_pylist(found, schema=boxes.schema), tables[1])
    argv = ["export", str(unzoned / "detections"), "--to", "kaleidoscope", "--out"]
    day = {("2024-05-06", "00:00:00", "00", "2024-05-05", "12:00:00")}
    assert main([*argv, str(unzoned / "k")]) == 0  # the clock, of a zone unknown
    assert kaleidoscope(unzoned / "k") == day
    assert "clock is unknown" not in capsys.readouterr().err
    assert main([*argv, str(unzoned / "z"), "--timezone", "Asia/Kuala_Lumpur"]) == 0
    assert kaleidoscope(unzoned / "z") == day
    csvs = ["--to", "csv", "--out", str(unzoned / "c"), "--timezone", "Asia/Kuala_Lumpur"]
    assert main([*argv[:2], *csvs]) == 0
    times = [row["start_local"][17:23] for row in csv.DictReader((unzoned / "c/Danum/0.csv").open())]
    assert times == ["00.000", "00.290", "01.001", "02.000", "04.100", "08.200"]


def test_a_zone_that_is_none_is_told_before_the_work(unzoned, capsys):
    argv = ["summarise", str(unzoned / "detections"), "--out", str(unzoned / "s"), "--timezone", "Borneo"]
    assert main(argv) == 2
    assert "not a time zone" in capsys.readouterr().err and not (unzoned / "s").exists()


@pytest.mark.s3
@pytest.mark.skipif(weed_program() is None, reason="no S3 server: install the dev extra")
def test_a_bucket_that_is_not_amazons_is_named_as_every_other_verb_has_it_named(run, tmp_path, monkeypatch):
    """`mast run` in such a bucket ended at its last but one step: export had no --set."""
    use_credentials(monkeypatch)
    monkeypatch.setenv("AWS_ENDPOINT_URL", "")  # put back at the end, whatever the verbs set
    (tmp_path / "server").mkdir()
    with s3_server(tmp_path / "server") as endpoint:
        s3, knobs = client_of(endpoint), bucket_knobs(StorageConfig(endpoint_url=endpoint))
        s3.create_bucket(Bucket="found")
        for name in ("recordings.parquet", "detections/part.parquet"):
            s3.put_object(Bucket="found", Key=f"run/{name}", Body=(run / name).read_bytes())
        assert main(["export", "s3://found/run", "--to", "raven", "--per", "site", "--out", "s3://found/raven", *knobs]) == 0  # fmt: skip
        assert main(["report", "s3://found/run", "--out", "s3://found/report.html", *knobs]) == 0
        found = {row["Key"] for row in s3.list_objects_v2(Bucket="found")["Contents"]}
    assert {"raven/Danum.Table.1.selections.txt", "report.html"} <= found


def test_verbs_without_other_settings_take_none_but_those_of_buckets(run, capsys):
    assert main(["export", str(run / "detections"), "--to", "csv", "--out", str(run / "x"), "--set", "seed=1"]) == 2  # fmt: skip
    assert "storage.endpoint_url and storage.region alone" in capsys.readouterr().err
    assert bucket_knobs(StorageConfig()) == ()


def test_a_call_that_two_chunks_show_is_one_call_in_summaries_and_exports(tmp_path):
    """A table of `mast pseudo-label` has a row for every chunk, half of which the next one shows again."""
    own = {"recording_id": "r", "path": "x.wav", "site": "A"}
    box = {"begin_s": 6.0, "end_s": 7.0, "low_hz": 100.0, "high_hz": 900.0, "score": 0.9}
    found = pa.Table.from_pylist([own | box | {"chunk": chunk} for chunk in (0, 1)], schema=DETECTIONS)
    pq.write_table(found, tmp_path / "d.parquet")
    known = pa.Table.from_pylist([own | {"duration_s": 20.0}], schema=RECORDINGS)
    pq.write_table(known, tmp_path / "recordings.parquet")
    common = [str(tmp_path / "d.parquet"), "--recordings", str(tmp_path / "recordings.parquet")]
    assert main(["summarise", *common, "--out", str(tmp_path / "s")]) == 0
    assert pq.read_table(tmp_path / "s" / "calls_by_site.parquet")["calls"].to_pylist() == [1]
    assert main(["export", *common, "--to", "csv", "--out", str(tmp_path / "e")]) == 0
    assert len((tmp_path / "e" / "x.csv").read_text().splitlines()) == 2  # names, one call


@pytest.mark.parametrize("kept", [[], ["path"]])
def test_calls_of_a_table_without_sites_and_times_are_in_the_hours_of_their_recordings(tmp_path, kept):
    own = {"recording_id": "r", "path": "A/x.wav", "site": "A"}
    clock = {"start_local": datetime(2024, 5, 5, 6, 30), "duration_s": 60.0}  # of an unknown zone
    known = pa.Table.from_pylist([own | clock], schema=RECORDINGS)
    box = {"begin_s": 6.0, "end_s": 7.0, "low_hz": 100.0, "high_hz": 900.0, "score": 0.9}
    pq.write_table(
        pa.Table.from_pylist([box | {name: own[name] for name in ("recording_id", *kept)}]), tmp_path / "d.parquet"
    )  # fmt: skip
    found = with_paths(read_detections(str(tmp_path / "d.parquet")), known)
    for site in ("A", None):
        assert diel_map(known, found, site).calls[0, 6] == 1
    assert found["path"].to_pylist() == ["A/x.wav"]
    assert found["start_local"].to_pylist() == [datetime(2024, 5, 5, 6, 30, 6)]


def test_a_wrong_zone_of_detect_is_corrected_without_detecting_again(tmp_path, capsys):
    write_tones(tmp_path / "in/A/A_20240501_060000.wav", [Tone(1.0, 1.5, 2000.0)], 3.0)
    out = tmp_path / "out"
    assert sweep_tones(tmp_path / "in", out, config=tone_config(**{"audio.timezone": "Europe/London"})) == 0
    right = ["--timezone", "Asia/Makassar"]
    assert main(["summarise", str(out), "--out", str(tmp_path / "s"), *right]) == 0
    assert [(row["hour"], row["clock"]) for row in summary(tmp_path / "s", "diel_activity")] == [(6, "local")]
    assert "1 of 1 recordings are said anew" in capsys.readouterr().err
    assert main(["export", str(out), "--to", "csv", "--out", str(tmp_path / "e"), *right]) == 0
    (row,) = csv.DictReader(next((tmp_path / "e").rglob("*.csv")).open())
    assert {key: value[:16] for key, value in row.items() if key in ("start_utc", "start_local")} == {
        "start_utc": "2024-04-30T22:00", "start_local": "2024-05-01T06:00",
    }  # fmt: skip
    assert main(["report", str(out), "--out", str(tmp_path / "r.html"), *right]) == 0
    assert "UTC+8" in (tmp_path / "r.html").read_text()
