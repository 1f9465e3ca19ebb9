"""Recorders on one schedule write the same file names at every site: what was found or marked at one is never another's."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as parquet
import pytest
import soundfile

from mast_ray.recordings.annotations.paths import RecordingIndex, safe_reference
from mast_ray.verbs.main import main

HEADER = "file,begin_s,end_s,low_hz,high_hz,label,score\n"
BOX = "1,2,1000,2000,wren,0.9"


@pytest.fixture
def detected(tmp_path) -> Path:
    """As `mast detect` leaves it: ridge/x.wav has a detection, river/x.wav was gone through and has none."""
    out = tmp_path / "detected"
    (out / "detections").mkdir(parents=True)
    row = {"recording_id": "a", "path": "ridge/x.wav", "begin_s": 1.0, "end_s": 2.0, "low_hz": 1000.0, "high_hz": 2000.0,
           "score": 0.9}  # fmt: skip
    parquet.write_table(pa.Table.from_pylist([row]), out / "detections" / "0.parquet")
    listed = [
        {"recording_id": key, "path": path, "duration_s": 4.0}
        for key, path in (("a", "ridge/x.wav"), ("b", "river/x.wav"))
    ]
    parquet.write_table(pa.Table.from_pylist(listed), out / "recordings.parquet")
    return out


def table(path: Path, *files: str) -> str:
    path.write_text(HEADER + "".join(f"{file},{BOX}\n" for file in files))
    return str(path)


def evaluated(capsys, detections, annotations) -> str:
    code = main(["evaluate", "--detections", str(detections), "--annotations", str(annotations)])
    said = capsys.readouterr()
    assert code == 0, said.err
    return said.out


def test_a_detection_at_one_site_is_no_hit_at_another(detected, tmp_path, capsys):
    truth = table(tmp_path / "truth.csv", "river/x.wav")
    assert "1 annotations, 0 detections, 0 right" in evaluated(capsys, detected, truth)


def test_one_annotated_site_of_several_can_be_scored(tmp_path, capsys):
    found = table(tmp_path / "found.csv", "ridge/x.wav", "river/x.wav", "ridge/y.wav")
    truth = table(tmp_path / "truth.csv", "river/x.wav")
    assert "1 annotations, 1 detections, 1 right" in evaluated(capsys, found, truth)


def test_paths_of_another_machine_keep_their_folders(tmp_path, capsys):
    found = table(tmp_path / "found.csv", r"D:\data\ridge\x.wav")
    truth = table(tmp_path / "truth.csv", "/home/ana/ridge/y.wav", "/home/ana/river/x.wav")
    code = main(["evaluate", "--detections", found, "--annotations", truth])
    assert code == 3 and "no recording of the detections" in capsys.readouterr().err
    truth = table(tmp_path / "truth.csv", "/home/ana/ridge/x.wav", "/home/ana/river/x.wav")
    assert "2 recordings, matched per recording: 2 annotations, 1 detections, 1 right" in evaluated(
        capsys, found, truth
    )


def test_a_bare_name_that_can_be_two_recordings_is_told(tmp_path, capsys):
    found = table(tmp_path / "found.csv", "x.wav", "ridge/y.wav")
    truth = table(tmp_path / "truth.csv", "ridge/x.wav", "river/x.wav", "ridge/y.wav")
    assert main(["evaluate", "--detections", found, "--annotations", truth]) == 3
    error = capsys.readouterr().err
    assert "x.wav of one table can be 2 recordings" in error and len(error.strip().splitlines()) <= 3


def test_false_alarms_in_a_recording_with_an_empty_table_count(tmp_path, capsys):
    """The empty table has no row that names a folder; the others of its folder have."""
    tables = tmp_path / "tables"
    tables.mkdir()
    header = "Selection\tBegin Time (s)\tEnd Time (s)\tLow Freq (Hz)\tHigh Freq (Hz)\tBegin Path\tLabel\n"
    (tables / "x.Table.1.selections.txt").write_text(f"{header}1\t1\t2\t1000\t2000\tridge/x.wav\twren\n")
    (tables / "y.Table.1.selections.txt").write_text(header)
    found = table(tmp_path / "found.csv", "ridge/x.wav", "ridge/y.wav")
    said = evaluated(capsys, found, tables)
    assert "2 recordings, matched per recording: 1 annotations, 2 detections, 1 right" in said


@pytest.mark.parametrize(
    ("written", "kept"),
    [
        (r"D:\card\ridge\x.wav", "card/ridge/x.wav"),
        ("/data/ridge/x.wav", "data/ridge/x.wav"),
        ("../../ridge/x.wav", "ridge/x.wav"),
        ("s3://bucket/ridge/x.wav", "bucket/ridge/x.wav"),
        ("a:b.wav", "a:b.wav"),
        ("..", ""),
    ],
)
def test_a_reference_without_a_listing_is_below_any_root_with_its_folders(written, kept):
    assert safe_reference(written) == kept


def test_a_reference_by_way_of_the_parent_folder_keeps_its_site():
    index = RecordingIndex(["ridge/x.wav", "river/x.wav"])
    assert index.find("../audio/ridge/x.wav", near="tables") == "ridge/x.wav"
    assert RecordingIndex(["river/x.wav", "ridge/y.wav"]).find("../ridge/x.wav") is None


def test_rows_of_detections_that_cannot_be_used_are_told(tmp_path, capsys):
    found = tmp_path / "found.csv"
    found.write_text(f"{HEADER}x.wav,{BOX}\nx.wav,3,4,1000,2000,wren,n/a\n")
    assert (
        main(["evaluate", "--detections", str(found), "--annotations", table(tmp_path / "t.csv", "x.wav")])
        == 0
    )
    error = capsys.readouterr().err
    assert "line 3: 'n/a' is not a number" in error and "1 rows or files cannot be used" in error


def recorded(tmp_path, *paths: str) -> list[str]:
    files = [tmp_path / "audio" / path for path in paths]
    for file in files:
        file.parent.mkdir(parents=True, exist_ok=True)
        soundfile.write(file, np.random.default_rng(0).normal(0, 0.01, 64_000), 16_000)
    return [str(file) for file in files]


def shown(capsys, recording: str, option: str, place, picture: Path) -> str:
    assert main(["show", recording, option, str(place), "-o", str(picture)]) == 0
    return capsys.readouterr().out


def test_show_draws_no_boxes_of_another_site(detected, tmp_path, capsys):
    ridge, river = recorded(tmp_path, "ridge/x.wav", "river/x.wav")
    assert "and 1 detected" in shown(capsys, ridge, "--detections", detected, tmp_path / "p.png")
    assert "and 0 detected" in shown(capsys, river, "--detections", detected, tmp_path / "p.png")
    found = table(tmp_path / "found.csv", "/data/ridge/x.wav", "/data/river/x.wav", "x.wav")
    assert "and 1 detected" in shown(capsys, ridge, "--detections", found, tmp_path / "p.png")


def test_show_knows_recordings_by_their_suffix_and_names_with_dots(tmp_path, capsys):
    wav, flac, dots = recorded(tmp_path, "s/x.wav", "s/x.flac", "s/a.b.c.wav")
    found = table(tmp_path / "found.csv", "s/x.wav", "s/x.flac")
    for one in (wav, flac):
        assert "and 1 detected" in shown(capsys, one, "--detections", found, tmp_path / "p.png")
    tables = tmp_path / "tables/s"
    tables.mkdir(parents=True)
    (tables / "a.b.c.txt").write_text("1.0\t2.0\twren\n")
    (tables / "a.b.txt").write_text("1.0\t2.0\twren\n")
    assert "1 annotated" in shown(capsys, dots, "--annotations", tables.parent, tmp_path / "p.png")


def test_a_table_is_of_the_recording_that_is_called_wholly_like_it():
    index = RecordingIndex(["a.wav", "a_labels.wav", "b.wav"])
    assert index.owner_of("a_labels.txt") == "a_labels.wav"
    assert index.owner_of("a.txt") == "a.wav" and index.owner_of("b_labels.txt") == "b.wav"
