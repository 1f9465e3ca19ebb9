"""Exports open in other people's tools, hold the boxes to a millisecond, and are safe in a spreadsheet."""

import csv
import io
import json
from datetime import UTC, datetime, timedelta

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
import soundfile

from mast_ray.config.errors import DataError
from mast_ray.recordings.annotations.paths import RecordingIndex
from mast_ray.recordings.annotations.reading import parse_annotations, read_annotations
from mast_ray.reporting.detection_tables import recordings_of_audio
from mast_ray.reporting.exports.rows import local_text, utc_text
from mast_ray.reporting.exports.writing import annotation_of, export_detections, file_key
from mast_ray.storage.storage import open_storage
from mast_ray.tables.schemas import DETECTIONS, RECORDINGS

START = datetime(2024, 5, 5, 22, 30, tzinfo=UTC)
FORMULAS = [
    "=cmd|' /C calc'!A0",
    "+1+1",
    "-2+3",
    "@SUM(A1)",
    "\t=1",
    '=HYPERLINK("http://x")',
    "'=1",
    "\r=1",
    "=1;2",
    "-@x",
]


def recording(path: str, **more) -> dict:
    row = {"recording_id": "id-" + path, "path": path, "site": "Danum", "start_utc": START, "utc_offset_s": 25200, "duration_s": 60.0,
           "time_source": "filename", "sample_rate_hz": 16_000, "num_channels": 1, "latitude": -4.9, "longitude": -117.8}  # fmt: skip
    return row | more


def box(path: str, begin_s: float, end_s: float, low_hz=1000.0, high_hz=2000.0, **more) -> dict:
    row = {"recording_id": "id-" + path, "path": path, "site": "Danum", "begin_s": begin_s, "end_s": end_s, "low_hz": low_hz,
           "high_hz": high_hz, "score": 0.75, "start_utc": START + timedelta(seconds=begin_s), "utc_offset_s": 25200,
           "model_sha": "abc"}  # fmt: skip
    return row | more


def tables(recordings: list[dict], boxes: list[dict]) -> tuple[pa.Table, pa.Table]:
    return pa.Table.from_pylist(boxes, schema=DETECTIONS), pa.Table.from_pylist(recordings, schema=RECORDINGS)


@pytest.fixture
def two_files():
    return tables(
        [recording("Danum/a.wav"), recording("Danum/b.wav", duration_s=30.0), recording("Danum/c.wav")],
        [
            box("Danum/b.wav", 3.25, 4.5),
            box("Danum/a.wav", 10.0, 11.5, 500.0, 900.0),
            box("Danum/c.wav", 1.0, 2.0),
        ],
    )


def test_tables_that_another_export_left_in_the_folder_are_told(two_files, tmp_path):
    """Per site, then per recording: Danum's table of all three files would be read with theirs, every call twice."""
    first = export_detections(*two_files, open_storage(tmp_path), "raven", "site")
    again = export_detections(*two_files, open_storage(tmp_path), "raven", "site")
    assert first.notes == again.notes == ()
    other = export_detections(*two_files, open_storage(tmp_path), "raven", "recording")
    assert "1 other *.Table.1.selections.txt" in other.notes[0] and "e.g. Danum.Table.1" in other.notes[0]
    assert export_detections(*two_files, open_storage(tmp_path), "csv", "site").notes == ()


def test_one_raven_table_per_site_runs_on_through_its_files(two_files, tmp_path):
    done = export_detections(*two_files, open_storage(tmp_path), "raven", "site")
    assert done.keys == ("Danum.Table.1.selections.txt",)
    rows = list(csv.DictReader((tmp_path / done.keys[0]).open(), delimiter="\t"))
    header = list(rows[0])[:10]
    assert header == ["Selection", "View", "Channel", "Begin Time (s)", "End Time (s)", "Low Freq (Hz)", "High Freq (Hz)", "Begin File", "Begin Path", "File Offset (s)"]  # fmt: skip
    assert [float(r["Begin Time (s)"]) for r in rows] == [10.0, 63.25, 91.0]  # a is 60 s long, b 30 s
    assert [float(r["File Offset (s)"]) for r in rows] == [10.0, 3.25, 1.0]
    assert [r["Begin Path"] for r in rows] == ["Danum/a.wav", "Danum/b.wav", "Danum/c.wav"]
    assert [r["Begin File"] for r in rows] == ["a.wav", "b.wav", "c.wav"]
    assert rows[1]["start_utc"] == "2024-05-05T22:30:03.250Z"
    assert rows[1]["start_local"] == "2024-05-06T05:30:03.250+07:00"


def test_a_raven_table_over_several_files_needs_their_lengths(two_files, tmp_path):
    with pytest.raises(DataError, match="duration"):
        export_detections(two_files[0], None, open_storage(tmp_path), "raven", "site")


def test_raven_tables_open_in_crowsetta(two_files, tmp_path):
    crowsetta = pytest.importorskip("crowsetta")
    done = export_detections(*two_files, open_storage(tmp_path), "raven", "recording")
    assert len(done.keys) == 3
    raven = crowsetta.formats.by_name("raven").from_file(
        tmp_path / "Danum/a.Table.1.selections.txt", annot_col="Label"
    )
    (only,) = raven.to_bbox()
    assert (only.onset, only.offset, only.low_freq, only.high_freq) == (10.0, 11.5, 500.0, 900.0)


def test_aoef_opens_in_soundevent(two_files, tmp_path):
    pytest.importorskip("xarray")
    from soundevent import io as soundevent_io

    done = export_detections(*two_files, open_storage(tmp_path), "aoef", "site")
    loaded = soundevent_io.load(tmp_path / done.keys[0])
    found = {
        (str(clip.clip.recording.path), *event.sound_event.geometry.coordinates)
        for clip in loaded.clip_annotations
        for event in clip.sound_events
    }
    assert found == {
        ("Danum/b.wav", 3.25, 1000.0, 4.5, 2000.0),
        ("Danum/a.wav", 10.0, 500.0, 11.5, 900.0),
        ("Danum/c.wav", 1.0, 1000.0, 2.0, 2000.0),
    }
    rates = {
        str(clip.clip.recording.path): clip.clip.recording.samplerate for clip in loaded.clip_annotations
    }
    assert rates == {"Danum/a.wav": 16_000, "Danum/b.wav": 16_000, "Danum/c.wav": 16_000}


def test_coco_opens_in_pycocotools(two_files, tmp_path):
    coco_module = pytest.importorskip("pycocotools.coco")
    done = export_detections(*two_files, open_storage(tmp_path), "coco", "site")
    coco = coco_module.COCO(str(tmp_path / done.keys[0]))
    boxes = sorted(tuple(a["bbox"]) for a in coco.loadAnns(coco.getAnnIds()))
    assert boxes == [(1.0, 1000.0, 1.0, 1000.0), (3.25, 1000.0, 1.25, 1000.0), (10.0, 500.0, 1.5, 400.0)]
    assert len(coco.getImgIds()) == 3


@pytest.mark.parametrize("to", ["raven", "audacity", "csv", "aoef", "coco", "kaleidoscope"])
def test_every_format_comes_back_through_our_own_readers(two_files, tmp_path, to):
    done = export_detections(*two_files, open_storage(tmp_path), to, "recording")
    found = []
    for key in done.keys:
        path = "Danum/" + key.split("/")[1][0] + ".wav"
        text = (tmp_path / key).read_bytes()
        found += [
            (a.path or path, round(a.begin_s, 3), round(a.end_s, 3), round(a.low_hz, 1), round(a.high_hz, 1))
            for a in parse_annotations(text, key, index=RecordingIndex([path])).annotations
        ]
    assert sorted(found) == [
        ("Danum/a.wav", 10.0, 11.5, 500.0, 900.0),
        ("Danum/b.wav", 3.25, 4.5, 1000.0, 2000.0),
        ("Danum/c.wav", 1.0, 2.0, 1000.0, 2000.0),
    ]


@pytest.mark.parametrize("to", ["raven", "csv", "aoef", "coco", "kaleidoscope", "pamdp"])
def test_no_frequency_above_nyquist_is_written(tmp_path, to):
    given = tables([recording("x.wav", sample_rate_hz=8_000)], [box("x.wav", 1.0, 2.0, 3000.0, 7654.0)])
    export_detections(*given, open_storage(tmp_path), to, "recording")
    text = "".join(p.read_text() for p in tmp_path.rglob("*") if p.is_file())
    assert "7654" not in text
    assert ("1000.0" if to in ("coco", "pamdp") else "4000") in text  # bandwidth or upper edge


def test_boxes_end_with_their_recording(tmp_path):
    given = tables([recording("x.wav", duration_s=10.0)], [box("x.wav", 9.5, 10.4)])
    export_detections(*given, open_storage(tmp_path), "csv", "recording")
    (row,) = csv.DictReader((tmp_path / "x.csv").open())
    assert float(row["end_s"]) == 10.0


@pytest.mark.parametrize("formula", FORMULAS)
@pytest.mark.parametrize("to", ["csv", "kaleidoscope", "pamdp", "raven"])
def test_formulas_are_defused_in_every_text_column(tmp_path, formula, to):
    boxes = pa.Table.from_pylist([box("x.wav", 1.0, 2.0, site=formula, model_sha=formula)], schema=DETECTIONS)
    boxes = boxes.append_column("label", pa.array([formula]))
    known = pa.Table.from_pylist([recording("x.wav", site=formula)], schema=RECORDINGS)
    done = export_detections(boxes, known, open_storage(tmp_path), to, "recording")
    for key in done.keys:
        if key.endswith(".json"):
            continue
        text = (tmp_path / key).read_bytes().decode()
        delimiter = "\t" if to == "raven" else ","
        for cells in csv.reader(io.StringIO(text, newline=""), delimiter=delimiter):
            dangerous = [c for c in cells if c[:1] in "=+-@\t\r" and c and not _is_number(c)]
            assert not dangerous


def _is_number(cell: str) -> bool:
    try:
        float(cell)
    except ValueError:
        return False
    return True


def test_recordings_in_which_nothing_was_found_are_in_the_export(tmp_path):
    given = tables([recording("a.wav"), recording("quiet.wav")], [box("a.wav", 1.0, 2.0)])
    done = export_detections(*given, open_storage(tmp_path), "raven", "recording")
    assert done.num_recordings == 2
    assert len((tmp_path / "quiet.Table.1.selections.txt").read_text().splitlines()) == 1  # the header alone


def test_no_name_of_a_recording_or_site_leads_out_of_the_folder(tmp_path):
    evil = ["../../x.wav", "/etc/x.wav", "C:\\x.wav", "a/../../x.wav", "s3://b/x.wav"]
    given = tables([], [box(path, 1.0, 2.0, site="../" + path) for path in evil])
    out = tmp_path / "out"
    for per in ("recording", "site"):
        done = export_detections(given[0], None, open_storage(out), "csv", per)
        assert len(set(done.keys)) == len(done.keys) == len(evil)
    assert {p.name for p in tmp_path.iterdir()} == {"out"}


def test_names_that_differ_only_in_case_or_suffix_get_files_of_their_own():
    taken: set[str] = set()
    keys = [file_key(p, "recording", taken, ".csv") for p in ("a.wav", "a.flac", "A.wav")]
    assert keys == ["a.csv", "a-2.csv", "A-3.csv"]
    assert file_key("", "site", set(), ".csv") == "no_site.csv"


def test_names_as_long_as_a_disk_takes_are_cut_for_their_endings_and_stay_different():
    ending, taken = ".Table.1.selections.txt", set()
    paths = [f"s/{'x' * 243}{n}.wav" for n in (1, 2)] + [f"s/{'ป่า' * 27}.wav"]
    keys = [file_key(path, "recording", taken, ending) for path in paths]
    assert len(set(keys)) == 3 and all(len(key.removeprefix("s/").encode()) <= 255 for key in keys)
    assert all(key.startswith("s/") and key.endswith(ending) for key in keys)


def test_pamdp_tables_name_each_other_and_describe_themselves(two_files, tmp_path):
    done = export_detections(*two_files, open_storage(tmp_path), "pamdp")
    rows = {key: list(csv.DictReader((tmp_path / key).open())) for key in done.keys if key.endswith(".csv")}
    media, observations = rows["media.csv"], rows["observations.csv"]
    assert {o["mediaID"] for o in observations} <= {m["mediaID"] for m in media}
    assert (
        {m["deploymentID"] for m in media}
        == {d["deploymentID"] for d in rows["deployments.csv"]}
        == {"Danum"}
    )
    (b,) = [o for o in observations if o["mediaID"] == "id-Danum/b.wav"]
    box_of_b = [float(b[c]) for c in ("bboxTime", "bboxFrequency", "bboxDuration", "bboxBandwidth")]
    assert box_of_b == [3.25, 1000.0, 1.25, 1000.0]
    (place,) = rows["deployments.csv"]
    assert (place["latitude"], place["longitude"]) == ("-4.9", "-117.8")  # numbers below zero are no formulas
    assert place["deploymentStart"] == "2024-05-06T05:30:00.000+07:00"
    package = json.loads((tmp_path / "datapackage.json").read_text())
    for resource in package["resources"]:
        assert [f["name"] for f in resource["schema"]["fields"]] == list(rows[resource["path"]][0])


def test_a_box_called_unknown_is_no_species_for_a_portal(tmp_path):
    boxes = [box("Danum/a.wav", 1.0, 2.0, label=label) for label in ("unknown", "Rana", None)]
    export_detections(*tables([recording("Danum/a.wav")], boxes), open_storage(tmp_path), "pamdp")
    rows = list(csv.DictReader((tmp_path / "observations.csv").open()))
    assert [(row["observationType"], row["scientificName"]) for row in rows] == [("unknown", ""), ("animal", "Rana"), ("unclassified", "")]  # fmt: skip


def test_a_portal_gets_the_medium_of_every_observation_and_hears_which_have_no_time(tmp_path):
    """A detection whose recording --recordings does not list named a medium that was in no table."""
    clockless = recording("Danum/a.wav", start_utc=None, utc_offset_s=None)
    done = export_detections(
        *tables([clockless], [box("Danum/b.wav", 1.0, 2.0)]), open_storage(tmp_path), "pamdp"
    )
    media = list(csv.DictReader((tmp_path / "media.csv").open()))
    assert [(m["mediaID"], bool(m["timestamp"])) for m in media] == [
        ("id-Danum/a.wav", False),
        ("id-Danum/b.wav", True),
    ]
    assert any("1 of 2 media have no timestamp" in note for note in done.notes)


@pytest.mark.parametrize(("are_tasks", "what"), [(True, "stretches"), (False, "detections")])
def test_notes_call_stretches_what_they_are(tmp_path, are_tasks, what):
    clockless = {"start_utc": None, "utc_offset_s": None}
    found = tables([recording("a.wav", **clockless)], [box("a.wav", 1.0, 2.0, **clockless)])
    done = export_detections(*found, open_storage(tmp_path), "raven", are_tasks=are_tasks)
    assert done.notes == (f"1 {what} have no absolute time: the recorder's clock is unknown",)


def test_a_mark_for_excel_is_written_only_when_asked_for(two_files, tmp_path):
    export_detections(*two_files, open_storage(tmp_path / "a"), "csv", "site", bom=True)
    export_detections(*two_files, open_storage(tmp_path / "b"), "csv", "site")
    assert (tmp_path / "a/Danum.csv").read_bytes().startswith(b"\xef\xbb\xbffile,")
    assert (tmp_path / "b/Danum.csv").read_bytes().startswith(b"file,")


def test_csv_opens_in_pandas_duckdb_and_pyarrow_in_one_line(two_files, tmp_path):
    import duckdb
    import pandas
    import pyarrow.csv

    export_detections(*two_files, open_storage(tmp_path), "csv", "site")
    name = tmp_path / "Danum.csv"
    counts = (
        len(pandas.read_csv(name)),
        len(pyarrow.csv.read_csv(name)),
        duckdb.sql(f"select count(*) from '{name}'").fetchall()[0][0],
    )
    assert counts == (3, 3, 3)


def test_a_box_keeps_its_name_and_one_without_is_a_call():
    row = dict.fromkeys(DETECTIONS.names) | {"path": "a.wav", "begin_s": 1.0, "end_s": 2.0, "score": 0.5}
    for label, written in (("wren", "wren"), ("unknown", "unknown"), ("", "call"), (None, "call")):
        for is_table in (True, False):
            assert annotation_of(row | {"label": label}, None, "none", is_table).label == written


def test_a_zone_is_never_guessed():
    assert utc_text(None) == "" and local_text(START, None) == ""
    assert local_text(START, -12_600) == "2024-05-05T19:00:00.000-03:30"
    clock = datetime(2024, 5, 6, 5, 30, 12, 340_000)
    assert local_text(None, None, clock) == "2024-05-06T05:30:12.340", "a clock without a zone gets none"


@pytest.mark.parametrize(
    ("root", "begin_path"),
    [
        ("/data/2024", "/data/2024/Danum/a.wav"),
        ("D:\\cards\\", "D:\\cards\\Danum\\a.wav"),
        ("", "Danum/a.wav"),
    ],
)
def test_a_begin_path_is_where_raven_finds_the_recording(two_files, tmp_path, root, begin_path):
    done = export_detections(*two_files, open_storage(tmp_path), "raven", "site", root=root)
    rows = list(csv.DictReader((tmp_path / done.keys[0]).open(), delimiter="\t"))
    assert rows[0]["Begin Path"] == begin_path
    back = read_annotations(tmp_path / done.keys[0], recordings=["Danum/a.wav", "Danum/b.wav", "Danum/c.wav"])
    assert [(a.path, a.begin_s) for a in back.annotations] == [
        ("Danum/a.wav", 10.0), ("Danum/b.wav", 3.25), ("Danum/c.wav", 1.0),
    ]  # fmt: skip


def test_silent_recordings_count_in_the_running_time_of_a_site(two_files, tmp_path):
    detections, recordings = two_files
    some = detections.filter(pc.not_equal(detections.column("path"), "Danum/b.wav"))  # b is silent now
    done = export_detections(some, recordings, open_storage(tmp_path), "raven", "site")
    rows = list(csv.DictReader((tmp_path / done.keys[0]).open(), delimiter="\t"))
    assert [float(r["Begin Time (s)"]) for r in rows] == [10.0, 91.0]


def test_lengths_from_the_audio_know_the_silent_recordings_too(tmp_path):
    for name, seconds in (("a", 4), ("b", 3), ("c", 2)):
        (tmp_path / "audio/Danum").mkdir(parents=True, exist_ok=True)
        soundfile.write(tmp_path / f"audio/Danum/{name}.wav", np.zeros(8_000 * seconds) + 0.01, 8_000)
    (tmp_path / "audio/Other").mkdir()
    soundfile.write(tmp_path / "audio/Other/x.wav", np.zeros(8_000) + 0.01, 8_000)
    detections, _ = tables([], [box("Danum/a.wav", 1.0, 2.0), box("Danum/c.wav", 0.5, 1.0)])
    recordings = recordings_of_audio(detections, open_storage(tmp_path / "audio"))
    assert recordings.column("path").to_pylist() == ["Danum/a.wav", "Danum/b.wav", "Danum/c.wav"]
    done = export_detections(detections, recordings, open_storage(tmp_path / "out"), "raven", "site")
    rows = list(csv.DictReader((tmp_path / "out" / done.keys[0]).open(), delimiter="\t"))
    assert [float(r["Begin Time (s)"]) for r in rows] == [1.0, 7.5]  # a 4 s, b 3 s


@pytest.mark.parametrize("per", ["recording", "site"])
@pytest.mark.parametrize("to", ["raven", "audacity", "csv", "aoef", "coco", "kaleidoscope"])
def test_what_nobody_was_asked_to_hear_is_not_gone_through(two_files, tmp_path, to, per):
    """Tables of `mast listen` where to listen first: those without a stretch were empty, and read back as silence."""
    detections, recordings = two_files
    silent = [recording("River/d.wav", site="River")]
    known = pa.concat_tables([recordings, pa.Table.from_pylist(silent, schema=RECORDINGS)])
    asked = detections.set_column(
        detections.column_names.index("label"), "label", pa.array(["listen"] * len(detections), pa.string())
    )
    export_detections(asked, known, open_storage(tmp_path), to, per, are_tasks=True)
    some = asked.filter(pc.not_equal(asked.column("path"), "Danum/b.wav"))
    done = export_detections(some, known, open_storage(tmp_path), to, per, are_tasks=True)
    files = {file.relative_to(tmp_path).as_posix() for file in tmp_path.rglob("*") if file.is_file()}
    assert files == set(done.keys)  # nothing is left of what was asked before
    assert (done.num_boxes, done.num_recordings) == (2, 2)
    back = read_annotations(tmp_path, recordings=known.column("path").to_pylist())
    assert back.unresolved == back.problems == ()
    assert back.annotated_paths == {"Danum/a.wav", "Danum/c.wav"}
    if (to, per) == ("raven", "site"):  # times run on through b, which is not asked for
        rows = csv.DictReader((tmp_path / done.keys[0]).open(), delimiter="\t")
        assert [float(row["Begin Time (s)"]) for row in rows] == [10.0, 91.0]


@pytest.mark.parametrize("to", ["raven", "csv", "aoef", "coco", "kaleidoscope"])
def test_what_is_exported_by_site_is_read_back_where_a_site_is_silent(two_files, tmp_path, to):
    """Raven's table of a silent site has no row that names a recording: it was refused as that of a recording `River`."""
    detections, recordings = two_files
    silent = pa.Table.from_pylist([recording("River/d.wav", site="River")], schema=RECORDINGS)
    known = pa.concat_tables([recordings, silent])
    done = export_detections(detections, known, open_storage(tmp_path), to, "site")
    assert done.num_recordings == 4
    assert ("1 sites without a detection have no table: it would name no recording" in done.notes) == (to == "raven")  # fmt: skip
    back = read_annotations(tmp_path, recordings=known.column("path").to_pylist())
    assert back.unresolved == back.problems == ()
    assert len(back.annotations) == len(detections)


ODD_NAMES = [
    "Danum/a..wav", "Danum/a.wav", "Danum/x.y.z.wav", "Danum/twin.wav", "Danum/twin.flac", "River/a.wav", "Danum/=b.wav",
    "Danum/c (2).wav", "Danum/d_labels.wav", "Danum/e.Table.1.selections.wav",
]  # fmt: skip


@pytest.mark.parametrize("per", ["recording", "site"])
@pytest.mark.parametrize("to", ["raven", "audacity", "csv", "aoef", "coco", "kaleidoscope"])
def test_what_is_exported_is_read_back_whatever_recordings_are_called(tmp_path, to, per):
    given = tables(
        [recording(path, site=path.split("/")[0]) for path in ODD_NAMES],
        [box(path, n + 1.0, n + 2.5, site=path.split("/")[0]) for n, path in enumerate(ODD_NAMES)],
    )
    export_detections(*given, open_storage(tmp_path), to, per)
    back = read_annotations(tmp_path, recordings=ODD_NAMES)
    assert back.unresolved == back.problems == ()
    found = {(a.path, round(a.begin_s, 3), round(a.end_s, 3), a.low_hz, a.high_hz) for a in back.annotations}
    assert found == {(path, n + 1.0, n + 2.5, 1000.0, 2000.0) for n, path in enumerate(ODD_NAMES)}
