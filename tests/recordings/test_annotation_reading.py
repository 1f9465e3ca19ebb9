"""Annotation files as people write them, and references that must not leave the root."""

import io
import json
import zipfile

import pytest

from mast_ray.config.errors import DataError
from mast_ray.recordings.annotations.paths import RecordingIndex, list_files
from mast_ray.recordings.annotations.reading import has_columns, parse_annotations, read_annotations

RAVEN = "Selection\tView\tChannel\tBegin Time (s)\tEnd Time (s)\tLow Freq (Hz)\tHigh Freq (Hz)\tSpecies\n"


def events(text, name="x.txt", **options):
    content = text if isinstance(text, bytes) else text.encode()
    found = parse_annotations(content, name, **options)
    return [(a.path, a.begin_s, a.end_s, a.low_hz, a.high_hz, a.label) for a in found.annotations]


def test_a_waveform_row_beside_its_spectrogram_row_is_dropped():
    rows = "1\tWaveform 1\t1\t1.0\t2.0\t0\t24000\tA\n1\tSpectrogram 1\t1\t1.0\t2.0\t500\t900\tA\n1\tSpectrogram 1\t2\t1.0\t2.0\t500\t900\tA\n"
    assert events(RAVEN + rows) == [("x", 1.0, 2.0, 500.0, 900.0, "A")]


def test_a_name_whose_accents_a_computer_took_apart_is_the_same_name():
    rows = "".join(
        f"{n}\tSpectrogram 1\t1\t{n}.0\t{n}.5\t500\t900\t{name}\n"
        for n, name in enumerate(("Gr\u00fcnspecht", "Gru\u0308nspecht"), 1)
    )
    assert {label for *_, label in events(RAVEN + rows)} == {"Gr\u00fcnspecht"}


def test_rows_that_only_share_a_selection_number_are_all_kept():
    rows = "1\tSpectrogram 1\t1\t1.0\t2.0\t500\t900\tA\n1\tSpectrogram 1\t1\t1.0\t2.0\t3000\t4000\tB\n"
    assert len(events(RAVEN + rows)) == 2


@pytest.mark.parametrize(
    "text",
    [
        RAVEN + "1\tSpectrogram 1\t1\t1.5\t2.25\t500\t900\tA\n",
        "\ufeff" + RAVEN + "1\tSpectrogram 1\t1\t1.5\t2.25\t500\t900\tA\n",
        (RAVEN + "1\tSpectrogram 1\t1\t1.5\t2.25\t500\t900\tA\n").replace("\n", "\r\n"),
        RAVEN + "1\tSpectrogram 1\t1\t1,5\t2,25\t500,0\t900,0\tA\n",
        (RAVEN + "1\tSpectrogram 1\t1\t1.5\t2.25\t500\t900\tA\n").replace("\t", ","),
        (RAVEN + "1\tSpectrogram 1\t1\t1,5\t2,25\t500\t900\tA\n").replace("\t", ";"),
        (RAVEN + "1\tSpectrogram 1\t1\t1.5\t2.25\t0.5\t0.9\tA\n").replace("(Hz)", "(kHz)"),
        "End Time (s)\tSpecies\tBegin Time (s)\tHigh Freq (Hz)\tLow Freq (Hz)\n2.25\tA\t1.5\t900\t500\n",
        "\n" + RAVEN + "\n1\tSpectrogram 1\t1\t1.5\t2.25\t500\t900\tA\t\t\n\n",
        (RAVEN + "1\tSpectrogram 1\t1\t1.5\t2.25\t500\t900\tA\n").encode("utf-16"),
    ],
    ids=[
        "plain",
        "BOM",
        "CRLF",
        "comma decimals",
        "commas",
        "semicolons",
        "kHz",
        "order",
        "blank lines",
        "UTF-16",
    ],
)
def test_raven_tables_of_many_dialects_say_the_same(text):
    assert events(text) == [("x", 1.5, 2.25, 500.0, 900.0, "A")]


CALLS = "file;begin_s;end_s;low_hz;high_hz\n"


@pytest.mark.parametrize(
    ("rows", "read"),
    [
        ("x.wav;1.125;2.250;1.250;2.500\n", (1.125, 2.25, 1.25, 2.5)),  # as programs write three decimals
        ("x.wav;1,5;2,5;1.812,5;2.500\n", (1.5, 2.5, 1812.5, 2500)),
        ("x.wav;1,5;2,5;1.812,5;2.500,25\n", (1.5, 2.5, 1812.5, 2500.25)),
        ("x.wav;1.5;2.5;1,812.5;2,500\n", (1.5, 2.5, 1812.5, 2500)),
        ("x.wav;1,125;2,250;500;2500\n", (1.125, 2.25, 500, 2500)),
        (
            "x.wav;0,5;2,5;0.5;2.500\n",
            None,
        ),  # two marks for decimals, each in its columns, and none for sure in this one
        ("x.wav;1,5;2,5;812,5;2500\n" + "x.wav;3,5;4,5;800;2.500\n", None),
        ("x.wav;1,5;2,5;800;2.500\n", None),  # its column says nothing, the others do
        ("x.wav;1.5;2.5;800;2,500\n", None),
    ],
)
def test_2_500_among_decimal_commas_is_2500_or_refused_and_never_two_and_a_half(rows, read):
    if read is None:
        with pytest.raises(DataError, match=r"'2[.,]500' under 'high_hz' is 2.500 or 2500, for"):
            events(CALLS + rows)
    else:
        assert events(CALLS + rows)[0][1:5] == read


@pytest.mark.parametrize(
    "text",
    [
        RAVEN + "1\tSpectrogram 1\t1\t1,5\t2,5\t500\t2.500\tA\n",
        "IN FILE;OFFSET;DURATION;Fmin;Fmax\nx.wav;1,5;1,5;812,5;2.500\n",
    ],
    ids=["Raven", "Kaleidoscope"],
)
def test_a_number_with_two_readings_is_refused_in_other_tables_too(text):
    with pytest.raises(DataError, match=r"is 2\.500 or 2500"):
        events(text)


def test_scores_and_labels_are_no_frequencies():
    text = "file;begin_s;end_s;score;label\nx.wav;1,5;2,5;1.000;3.250\n"
    assert (
        parse_annotations(text.encode(), "t.csv", index=RecordingIndex(["x.wav"])).annotations[0].score == 1
    )


def test_missing_frequencies_are_not_invented():
    assert events("Begin Time (s)\tEnd Time (s)\tAnnotation\n1\t2\tA\n") == [("x", 1.0, 2.0, None, None, "A")]
    assert events(RAVEN + "1\tSpectrogram 1\t1\t1\t2\t\t\tA\n") == [("x", 1.0, 2.0, None, None, "A")]
    assert events(RAVEN + "1\tWaveform 1\t1\t1\t2\t0\t24000\tA\n") == [("x", 1.0, 2.0, None, None, "A")]
    assert events("0.5\t1.0\tA\n\\\t-1.0\t5000.0\n") == [("x", 0.5, 1.0, None, None, "A")]


def test_an_empty_table_says_that_the_recording_was_gone_through():
    found = parse_annotations(
        RAVEN.encode(), "a/x.Table.1.selections.txt", index=RecordingIndex(["a/x.wav", "b/x.wav"])
    )
    assert (found.annotations, found.annotated_paths) == ((), frozenset({"a/x.wav"}))


@pytest.mark.parametrize("content", [b"", b"\n", b"\xef\xbb\xbf"])
def test_an_empty_file_is_an_empty_label_track_of_its_recording_and_of_no_other(content):
    index = RecordingIndex(["a/x.wav", "a/y.wav"])
    assert parse_annotations(content, "a/x.txt", index=index).annotated_paths == frozenset({"a/x.wav"})
    with pytest.raises(DataError, match="empty"):
        parse_annotations(content, "notes.txt", index=index)


def test_a_table_of_which_no_row_can_be_used_does_not_say_that_nothing_was_heard():
    text = "file,begin_s,end_s\nx.wav,zwei,drei\nx.wav,3,2\n"
    with pytest.raises(DataError, match=r"not one of its 2 rows .*line 2: 'zwei' is not a number"):
        parse_annotations(text.encode(), "t.csv", index=RecordingIndex(["x.wav", "y.wav"]))


@pytest.mark.parametrize(
    "text",
    [
        "file,begin_s,end_s\nx.wav,00:01:03,00:01:04\ny.wav,3,4\nz.wav,,\n",
        "Begin Time (s)\tEnd Time (s)\tBegin File\tFile Offset (s)\n1\t2\tx.wav\t\n9\t8\tx.wav\t9\n1\t2\ty.wav\t1\n1\t2\tz.wav\t1\n",
        "IN FILE,OFFSET,DURATION\nx.wav,soon,1\ny.wav,3,1\nz.wav,,\n",
    ],
    ids=["CSV", "Raven", "Kaleidoscope"],
)
def test_a_recording_of_which_no_row_can_be_read_was_not_gone_through(text):
    found = parse_annotations(text.encode(), "t.txt", index=RecordingIndex(["x.wav", "y.wav", "z.wav"]))
    assert found.annotated_paths == {"y.wav", "z.wav"}
    assert found.problems and all("line" in problem for problem in found.problems)


def test_several_files_without_file_offset_are_refused():
    text = "Begin Time (s)\tEnd Time (s)\tBegin File\n1\t2\ta.wav\n70\t71\tb.wav\n"
    with pytest.raises(DataError, match="File Offset"):
        events(text)


def test_a_row_without_file_offset_among_several_files_is_left_out_and_told():
    text = "Begin Time (s)\tEnd Time (s)\tBegin Path\tBegin File\tFile Offset (s)\n1\t2\td/a.wav\ta.wav\t1\n61\t62\t\tb.wav\t\n62\t63\t\tb.wav\t2\n"
    found = parse_annotations(text.encode(), "t.txt", index=RecordingIndex(["d/a.wav", "d/b.wav"]))
    assert [(a.path, a.begin_s) for a in found.annotations] == [("d/a.wav", 1.0), ("d/b.wav", 2.0)]
    assert len(found.problems) == 1 and "line 3: no File Offset" in found.problems[0]


def test_na_of_r_is_an_empty_cell():
    text = "sound.files,start,end,bottom.freq,top.freq,score\nx.wav,1,2,NA,NA,NA\ny.wav,NA,NA,NA,NA,NA\n"
    found = parse_annotations(text.encode(), "t.csv")
    assert [(a.path, a.begin_s, a.low_hz, a.score) for a in found.annotations] == [("x.wav", 1.0, None, None)]
    assert found.annotated_paths == {"x.wav", "y.wav"} and not found.problems


def test_rows_that_make_no_sense_are_reported_with_their_line():
    text = (
        RAVEN
        + "1\tSpectrogram 1\t1\t3\t2\t500\t900\tA\n2\tSpectrogram 1\t1\tx\t2\t500\t900\tA\n3\tSpectrogram 1\t1\t1\t2\t5\t9\tA\n"
    )
    found = parse_annotations(text.encode(), "t.txt")
    assert len(found.annotations) == 1
    assert [problem.split(":")[0] for problem in found.problems] == ["t.txt, line 2", "t.txt, line 3"]


def test_the_band_of_an_audacity_label_that_is_left_out_is_not_that_of_the_label_before():
    text = "1\t2\towl\n\\\t3000\t5000\n5\t4\twren\n\\\t100\t200\n"
    found = parse_annotations(text.encode(), "x.txt")
    assert [(a.label, a.low_hz, a.high_hz) for a in found.annotations] == [("owl", 3000.0, 5000.0)]
    assert [problem.split(":")[0] for problem in found.problems] == ["x.txt, line 3"]


def test_a_csv_is_read_by_a_mapping_of_its_columns():
    text = "REC;T0;T1;F0;F1;what\nr.wav;1,5;2;0,5;0,9;A\n"
    mapping = {
        "file": "REC",
        "begin_s": "T0",
        "end_s": "T1",
        "low_khz": "F0",
        "high_khz": "F1",
        "label": "what",
    }
    assert events(text, format="csv", columns=mapping) == [("r.wav", 1.5, 2.0, 500.0, 900.0, "A")]
    with pytest.raises(DataError, match="map them"):
        events(text, format="csv")
    with pytest.raises(DataError, match="no column 'T9'"):
        events(text, format="csv", columns={"begin_s": "T9"})


@pytest.mark.parametrize(
    ("text", "columns", "want"),
    [
        (
            "Begin Time (s)\tEnd Time (s)\tLow Freq (Hz)\tHigh Freq (Hz)\tF0\tF1\tSpecies\tcall\n1\t2\t9\t10\t0.5\t0.9\tA\tsong\n",
            {"low_khz": "F0", "high_khz": "F1", "label": "call"},
            ("x", 1.0, 2.0, 500.0, 900.0, "song"),
        ),
        (
            "Begin Time (s)\tEnd Time (s)\tbottom\ttop\tSpecies\n1\t2\t500\t900\tA\n",
            {"low_hz": "bottom", "high_hz": "top"},
            ("x", 1.0, 2.0, 500.0, 900.0, "A"),
        ),
        (
            "file,begin,end,low,high\nx,1,2,0.5,0.9\n",
            {"low_khz": "low", "high_khz": "high"},
            ("x", 1.0, 2.0, 500.0, 900.0, ""),
        ),
        (
            "file,begin,end,low,high,F0,F1\nx,1,2,3,4,0.5,0.9\n",
            {"low_khz": "F0", "high_khz": "F1"},
            ("x", 1.0, 2.0, 500.0, 900.0, ""),
        ),
        ("file,begin,end\nx,1,2\n", {"duration_s": "end"}, ("x", 1.0, 3.0, None, None, "")),
        (
            "IN FILE,OFFSET,DURATION,TOP1MATCH,mine\nx,1,1,A,B\n",
            {"label": "mine"},
            ("x", 1.0, 2.0, None, None, "B"),
        ),
    ],
)
def test_a_mapped_column_is_read_whatever_the_table_and_comes_before_well_known_ones(text, columns, want):
    assert events(text, columns=columns) == [want]


@pytest.mark.parametrize(
    ("text", "columns", "said"),
    [
        (RAVEN, {"label": "Specis"}, r"no column 'Specis' \(mapped to label\)"),
        (RAVEN, {"verdict": "Species"}, r"read as raven, and --columns verdict=Species changes nothing"),
        ("0.5\t1.0\tA\n", {"label": "Species"}, r"read as audacity, .*\nleave it out"),
    ],
)
def test_a_mapping_that_would_change_nothing_is_refused(text, columns, said):
    with pytest.raises(DataError, match=said):
        parse_annotations(text.encode(), "x.txt", columns=columns)


def test_birdnet_results_are_labels_in_time_with_a_score():
    text = "Start (s),End (s),Scientific name,Common name,Confidence,File\n3.0,6.0,Turdus merula,Blackbird,0.8123,a.wav\n"
    [event] = parse_annotations(text.encode(), "a.BirdNET.results.csv").annotations
    assert (event.path, event.begin_s, event.label, event.score, event.is_time_only) == (
        "a.wav",
        3.0,
        "Turdus merula",
        0.8123,
        True,
    )


def test_kaleidoscope_results_are_read():
    text = (
        "INDIR,FOLDER,IN FILE,CHANNEL,OFFSET,DURATION,Fmin,Fmean,Fmax,TOP1MATCH,MANUAL ID\n"
        "C:\\data,site1,x_20180710_053000.wav,0,2.5,0.75,1500,2000,3500,cluster3,\n"
        "C:\\data,site1,x_20180710_053000.wav,0,5,1,150,180,240,bird,Bittern\n"
    )
    assert events(text, "id.csv") == [
        ("site1/x_20180710_053000.wav", 2.5, 3.25, 1500.0, 3500.0, "cluster3"),
        ("site1/x_20180710_053000.wav", 5.0, 6.0, 150.0, 240.0, "Bittern"),
    ]


def test_a_kaleidoscope_table_of_bat_mode_is_in_khz():
    header = "FOLDER,IN FILE,OFFSET,DURATION,Fmin,Fmax,MANUAL ID\n"
    rows = "s,x.wav,5,1,40,60,Pipistrellus\ns,x.wav,7,1,,,\ns,x.wav,8,1,100,115.5,Rhinolophus\n"
    assert [event[3:5] for event in events(header + rows, "id.csv")] == [
        (40_000.0, 60_000.0),
        (None, None),
        (100_000.0, 115_500.0),
    ]


@pytest.mark.parametrize(
    ("geometry", "want"),
    [
        ({"type": "BoundingBox", "coordinates": [1.0, 500.0, 2.0, 900.0]}, (1.0, 2.0, 500.0, 900.0)),
        ({"type": "TimeInterval", "coordinates": [1.0, 2.0]}, (1.0, 2.0, None, None)),
        ({"type": "TimeStamp", "coordinates": 1.0}, (1.0, 1.0, None, None)),
        ({"type": "Point", "coordinates": [1.0, 500.0]}, (1.0, 1.0, 500.0, 500.0)),
        (
            {"type": "LineString", "coordinates": [[1.0, 900.0], [1.5, 500.0], [2.0, 700.0]]},
            (1.0, 2.0, 500.0, 900.0),
        ),
        (
            {"type": "Polygon", "coordinates": [[[1.0, 500.0], [2.0, 500.0], [2.0, 900.0]]]},
            (1.0, 2.0, 500.0, 900.0),
        ),
    ],
)
def test_every_aoef_geometry_becomes_its_bounds(geometry, want):
    data = {
        "collection_type": "annotation_set",
        "recordings": [{"uuid": "r", "path": "x.wav"}],
        "tags": [{"id": 0, "key": "quality", "value": "A"}, {"id": 1, "key": "species", "value": "Pitta"}],
        "sound_events": [{"uuid": "s", "recording": "r", "geometry": geometry}],
        "sound_event_annotations": [{"uuid": "a", "sound_event": "s", "tags": [0, 1]}],
    }
    [event] = parse_annotations(json.dumps({"version": "1.1.0", "data": data}).encode(), "p.json").annotations
    assert (event.begin_s, event.end_s, event.low_hz, event.high_hz) == want
    assert (event.label, event.extra) == ("Pitta", {"quality": "A"})
    data["recordings"][0]["time_expansion"] = 10.0  # seconds of the file are ten times those of the bat
    [event] = parse_annotations(json.dumps({"version": "1.1.0", "data": data}).encode(), "p.json").annotations
    assert (event.begin_s, event.low_hz) == (10.0, None if want[2] is None else 50.0)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"{ broken", "broken JSON"),
        (b'{"a": 1}', "of none of aoef, coco, batdetect2, avianz"),
        (b"name,age\nx,3\n", "not an annotation file"),
        (b"\x1f\x8b" + bytes(10), "unpack it"),
        (b'{"images": [], "annotations": [{"bbox": [1]}]}', "not COCO"),
        (b"[" * 100_000, "broken JSON"),
    ],
)
def test_what_cannot_be_read_is_refused_in_at_most_three_lines_with_a_remedy(content, message):
    with pytest.raises(DataError, match=message) as caught:
        parse_annotations(content, "x.json")
    assert len(str(caught.value).splitlines()) <= 3


def test_a_folder_with_nothing_to_read_says_why_and_what_to_do_about_its_first_table(tmp_path):
    rows = "1\tSpectrogram 1\t1\t1\t2\t500\t900\ta.wav\n2\tSpectrogram 1\t1\t3\t4\t500\t900\tb.wav\n"
    (tmp_path / "all.txt").write_text(RAVEN.replace("Species", "Begin File") + rows)
    with pytest.raises(DataError) as caught:
        read_annotations(tmp_path, recordings=["a.wav", "b.wav"])
    first, remedy = str(caught.value).splitlines()
    assert first.endswith("(all.txt: selections of 2 files without 'File Offset (s)'):")
    assert remedy == "add that column in Raven and export again"


def test_a_folder_whose_only_table_has_a_header_and_no_row_holds_no_annotations(tmp_path):
    (tmp_path / "boxes.csv").write_text("file,begin_s,end_s,label\n")
    with pytest.raises(DataError, match="its tables name no recording"):
        read_annotations(tmp_path, recordings=["a.wav"])


def workbook(*names):
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name in names:
            archive.writestr(name, "application/vnd.oasis.opendocument.spreadsheet" * (name == "mimetype"))
    return buffer.getvalue()


@pytest.mark.parametrize(
    "content",
    [
        workbook("[Content_Types].xml", "xl/workbook.xml"),
        workbook("mimetype"),
        b"\xd0\xcf\x11\xe0" + bytes(600),
    ],
    ids=["xlsx", "ods", "xls"],
)
def test_a_workbook_is_told_to_be_saved_as_csv_also_among_tables_that_are_read(tmp_path, content):
    (tmp_path / "boxes.xlsx").write_bytes(content)
    with pytest.raises(DataError, match=r"boxes.xlsx is a workbook .*\n?.*save its sheet as CSV"):
        read_annotations(tmp_path / "boxes.xlsx")
    with pytest.raises(DataError, match=r"boxes.xlsx is a workbook"):
        read_annotations(tmp_path)
    (tmp_path / "x.txt").write_text("1\t2\twren\n")
    found = read_annotations(tmp_path, recordings=["x.wav"])
    assert [a.label for a in found.annotations] == ["wren"]
    assert found.problems == ("boxes.xlsx is a workbook of Excel or LibreOffice",)


def test_rows_that_an_open_quotation_mark_takes_into_its_cell_are_not_lost_unsaid():
    header, rows = "file,begin_s,end_s,label\n", ['x.wav,1,2,"wren', "y.wav,3,4,tit"]
    with pytest.raises(DataError, match=r"t.csv, line 2: a quotation mark is opened and not closed"):
        parse_annotations((header + "\n".join(rows)).encode(), "t.csv")
    with pytest.raises(DataError, match=r"t.csv, line 2: a quotation mark"):
        parse_annotations((header + "\n".join([*rows, 'z.wav,5,6,"owl"'])).encode(), "t.csv")
    closed = header + 'x.wav,1,2,"wren\nor tit"\ny.wav,3,4,5" tall\n'
    assert [event[-1] for event in events(closed)] == ["wren\nor tit", '5" tall']


def test_a_clock_time_is_told_as_one_and_an_audacity_label_may_begin_before_the_recording():
    with pytest.raises(DataError, match=r"'00:01:03.5' is a clock time, not a number of seconds"):
        parse_annotations(b"file,begin_s,end_s\nx.wav,00:01:03.5,00:01:04\n", "t.csv")
    assert events("-0.1\t1.0\tA\n\\\t500\t900\n") == [("x", -0.1, 1.0, 500.0, 900.0, "A")]


def test_a_zip_bomb_is_refused_unopened():
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("x.txt", bytes(50 << 20))
    with pytest.raises(DataError, match="compressed archive"):
        parse_annotations(buffer.getvalue(), "x.zip")


LISTING = ["ridge/a.wav", "ridge/b.mp3", "river/a.wav", "river/c.WAV", "d.flac"]


@pytest.mark.parametrize(
    ("reference", "near", "want"),
    [
        ("ridge/a.wav", "", "ridge/a.wav"),
        ("a.wav", "ridge", "ridge/a.wav"),
        ("../river/a.wav", "ridge", "river/a.wav"),
        ("a.wav", "", None),  # two of them
        ("D:\\cards\\ridge\\a.wav", "", "ridge/a.wav"),
        ("/home/someone/river/a.wav", "", "river/a.wav"),
        ("b.wav", "", "ridge/b.mp3"),  # the table says .wav, the sound is .mp3
        ("c.wav", "", "river/c.WAV"),
        ("./d.flac", "", "d.flac"),
        ("d", "", "d.flac"),
        ("e.wav", "", None),
        ("", "", None),
    ],
)
def test_a_reference_means_the_one_recording_it_can_mean(reference, near, want):
    assert RecordingIndex(LISTING).find(reference, near) == want


PAYLOADS = [
    "/etc/passwd", "../../../etc/passwd", "..\\..\\..\\etc\\passwd", "ridge/../../../etc/passwd", "....//....//etc/passwd", "~/secret.wav",
    "~root/.ssh/id_rsa", "file:///etc/passwd", "file://localhost/etc/passwd", "s3://other-bucket/secret.wav", "http://evil/secret.wav",
    "https://evil/secret.wav", "ftp://evil/secret.wav", "\\\\server\\share\\secret.wav", "//server/share/secret.wav", "C:\\Windows\\win.ini",
    "C:secret.wav", "/proc/self/environ", "/dev/zero", "secret.wav\0.txt", "\0/etc/passwd", "ridge/\0", "%2e%2e%2fsecret.wav", "..%2fsecret.wav",
    "..", ".", "/", "ridge/..", "$(cat secret.wav)", "; rm -rf secret.wav", "gs://bucket/secret.wav", "../outside/secret.wav", "link.wav/../secret.wav",
]  # fmt: skip


@pytest.mark.parametrize("payload", PAYLOADS)
def test_no_reference_leaves_the_root(tmp_path, payload):
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "secret.wav").write_bytes(b"secret")
    root = tmp_path / "root"
    (root / "ridge").mkdir(parents=True)
    (root / "ridge" / "a.wav").write_bytes(b"a")
    (root / "ridge" / "b.wav").write_bytes(b"b")
    (root / "link.wav").symlink_to(tmp_path / "outside" / "secret.wav")
    (root / "up").symlink_to(tmp_path / "outside")
    assert list_files(root) == ["ridge/a.wav", "ridge/b.wav"]
    coco = {
        "images": [{"id": 1, "file_name": payload}],
        "annotations": [{"image_id": 1, "bbox": [1, 1, 1, 1]}],
    }
    event = {"uuid": "s", "recording": "r", "geometry": {"type": "TimeStamp", "coordinates": 1}}
    aoef = {
        "collection_type": "annotation_set",
        "recordings": [{"uuid": "r", "path": payload}],
        "sound_events": [event],
        "sound_event_annotations": [{"uuid": "a", "sound_event": "s"}],
    }
    tables = {
        "raven.txt": f"Begin Time (s)\tEnd Time (s)\tBegin Path\tFile Offset (s)\n1\t2\t{payload}\t1\n",
        "table.csv": f'file,begin_s,end_s\n"{payload}",1,2\n',
        "coco.json": json.dumps(coco),
        "aoef.json": json.dumps({"version": "1.1.0", "data": aoef}),
    }
    for name, text in tables.items():
        (root / name).write_text(text)
        found = read_annotations(root / name, root=root)
        assert found.annotations == ()
        assert found.annotated_paths == frozenset()
        without_listing = read_annotations(root / name)
        assert all(
            not a.path.startswith("/") and ".." not in a.path.split("/") for a in without_listing.annotations
        )


BOXES = "file,begin_s,end_s,low_hz,high_hz,label\n"


def test_a_box_of_a_site_that_is_not_there_is_not_put_on_another_site():
    """Recorders on one schedule write the same names."""
    rows = "siteA/0900.WAV,1,2,500,900,wren\nsiteB/0900.WAV,11,12,500,900,owl\n"
    found = parse_annotations((BOXES + rows).encode(), "t.csv", index=RecordingIndex(["siteA/0900.WAV"]))
    assert [(a.path, a.label) for a in found.annotations] == [("siteA/0900.WAV", "wren")]
    assert found.unresolved == ("siteB/0900.WAV",) and not found.notes


@pytest.mark.parametrize(
    ("rows", "listing", "told"),
    [
        ("siteB/0900.WAV,1,2,5,9,owl\n", ["siteA/0900.WAV"], "siteB/0900.WAV for siteA/0900.WAV"),
        ("siteA/x.wav,1,2,5,9,a\nsiteB/x.wav,1,2,5,9,b\n", ["x.wav"], "x.wav in siteA/x.wav, siteB/x.wav"),
        ("D:\\\\card\\\\x.wav,1,2,5,9,a\nx.wav,3,4,5,9,b\n", ["x.wav"], ""),
        ("/mnt/siteA/x.wav,1,2,5,9,a\nsiteA/x.wav,3,4,5,9,b\n", ["siteA/x.wav"], ""),
    ],
)
def test_a_folder_that_the_archive_does_not_have_is_said(rows, listing, told):
    found = parse_annotations((BOXES + rows).encode(), "t.csv", index=RecordingIndex(listing))
    assert not found.unresolved and (told in " ".join(found.notes) if told else not found.notes)


def test_tables_of_two_folders_for_one_recording_are_said(tmp_path):
    for folder in ("siteA", "siteB"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "x.Table.1.selections.txt").write_text(RAVEN + "1\tS\t1\t1\t2\t500\t900\tA\n")
    found = read_annotations(tmp_path, recordings=["x.wav"])
    assert "1 recordings have tables in several folders (e.g. x.wav in siteA, siteB)" in found.notes[0]
    assert not read_annotations(tmp_path, recordings=["siteA/x.wav", "siteB/x.wav"]).notes


def test_tables_of_the_same_name_in_two_folders_stay_two_recordings(tmp_path):
    for site in ("ridge", "river"):
        (tmp_path / site).mkdir()
        (tmp_path / site / "20240331_013000.Table.1.selections.txt").write_text(
            RAVEN + "1\tSpectrogram 1\t1\t1\t2\t100\t200\tA\n"
        )
    found = read_annotations(tmp_path)
    assert found.annotated_paths == {"ridge/20240331_013000", "river/20240331_013000"}


def test_names_with_typographic_marks_of_windows_are_kept_whole():
    """Its three dots are a control character of Latin-1, at which a line would end."""
    track = "0.5\t1\tRoss’s turaco… song\n2\t3\tMésange\n".encode("cp1252")
    assert [label for *_, label in events(track)] == ["Ross’s turaco… song", "Mésange"]
    assert [label for *_, label in events("0.5\t1\ta\u2028b\n2\t3\tc\n")] == ["a\u2028b", "c"]


@pytest.mark.parametrize(
    "text",
    [
        "file,begin_s,end_s,low_hz,high_hz,label\na.wav,1,5,2,5,1000,0,2000,0,wren\n",  # 1,5 s to 2,5 s
        '"begin_s"\t"end_s"\t"low_hz"\t"high_hz"\t"label"\n"1"\t3.2\t4\t1000\t2000\t"wren"\n',  # row names of R
        RAVEN + "1\t1\tSpectrogram 1\t1\t1.5\t2.25\t500\t900\tA\n",
    ],
)
def test_rows_with_more_cells_than_columns_are_no_other_boxes(text):
    with pytest.raises(DataError, match=r"line 2: .* cells, and the header names") as told:
        events(text)
    assert len(str(told.value).splitlines()) <= 3
    row = "1\tSpectrogram 1\t1\t1.5\t2.25\t500\t900\tA\t\t\t\n"  # empty cells are none
    assert events(RAVEN + row) == [("x", 1.5, 2.25, 500.0, 900.0, "A")]


@pytest.mark.parametrize("padding", range(3))
def test_the_columns_of_a_long_table_are_known_wherever_its_head_is_cut(padding):
    """In the midst of a letter of three bytes, too."""
    table = f"\ufefffile,T0,T1,鳥\n{'x' * padding}.wav,0,1," + "鸟" * 30_000 + "\nb.wav,1,2,鸟\n"
    assert has_columns(table.encode(), "x.csv", {"file": "file", "label": "鳥"})
