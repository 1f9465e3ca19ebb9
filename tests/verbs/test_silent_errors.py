"""What once passed without a word: wrong labels, labels that teach nothing, figures of nothing. Each is said or
refused.
"""

import json
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
import soundfile
from noise_files import write_noise

from mast_ray.config.errors import DATA, OK
from mast_ray.verbs.main import main

CSV = "file,begin_s,end_s,low_hz,high_hz,label\n"
RAVEN = "Selection\tView\tChannel\tBegin Time (s)\tEnd Time (s)\tLow Freq (Hz)\tHigh Freq (Hz)\tSpecies\n"


def raven(rows) -> str:
    lines = [
        f"{n}\tSpectrogram 1\t1\t{b}\t{e}\t{lo}\t{hi}\t{label}\n"
        for n, (b, e, lo, hi, label) in enumerate(rows, 1)
    ]
    return RAVEN + "".join(lines)


def prepared_labels(archive: Path, annotations: Path, out: Path, *settings: str) -> list[dict]:
    """Rows of labels.parquet after `mast prepare`."""
    argv = ["prepare", str(archive), "--annotations", str(annotations), "--out", str(out), "--runner", "here"]
    assert main([*argv, *(part for setting in settings for part in ("--set", setting))]) == OK
    return pq.read_table(out / "labels.parquet").to_pylist()


@pytest.fixture
def archive(tmp_path) -> Path:
    """Two recordings of 12 s."""
    for name in ("a", "b"):
        write_noise(tmp_path / "audio" / f"{name}.wav", 12, ord(name))
    return tmp_path / "audio"


# 1. the same boxes twice
BOXES = [
    (1.25, 2.5, 1000.0, 3000.0, "wren"),
    (1.2512, 4.0, 1000.0, 3000.0, "wren"),
    (6.0, 7.0, 4000.0, 6000.0, "tit"),
]


@pytest.mark.parametrize(("shift_s", "shift_hz"), [(0.0, 0.0), (1e-6, 0.0), (4e-5, 0.04), (-0.004, 9.0)])
def test_per_file_and_pooled_tables_of_the_same_boxes_are_one_set(
    archive, tmp_path, capsys, shift_s, shift_hz
):
    tables = tmp_path / "tables"
    tables.mkdir()
    pooled = CSV
    for name in ("a", "b"):
        (tables / f"{name}.Table.1.selections.txt").write_text(raven(BOXES))
        for begin, end, low, high, label in BOXES:
            pooled += f"{name}.wav,{begin + shift_s:.6f},{end + shift_s:.6f},{low + shift_hz},{high + shift_hz},{label}\n"
    (tables / "all.csv").write_text(pooled)
    labels = prepared_labels(archive, tables, tmp_path / "out")
    assert len(labels) == 6
    assert "6 boxes stand twice" in capsys.readouterr().out


def test_a_table_is_not_about_a_recording_of_the_same_name_in_another_class_folder(tmp_path, capsys):
    write_noise(tmp_path / "audio/positive/x.wav", 12, 1)
    write_noise(tmp_path / "audio/positive/y.wav", 12, 2)
    (tmp_path / "audio/negative").mkdir()
    for folder in ("positive", "negative"):
        (tmp_path / f"audio/{folder}/x.txt").write_text(
            raven([(1, 2, 1000, 2000, "wren")] * (1 + (folder == "negative")))
        )
    argv = ["prepare", str(tmp_path / "audio"), "--annotations", str(tmp_path / "audio"), "--runner", "here"]
    assert main([*argv, "--out", str(tmp_path / "out")]) == DATA
    error = capsys.readouterr().err
    assert "negative/x.txt" in error and len(error.strip().splitlines()) <= 3


# 2. labels without frequencies
def test_labels_without_frequencies_are_told_before_training_that_would_learn_nothing(
    archive, tmp_path, capsys
):
    (tmp_path / "boxes.csv").write_text(
        "file,begin_s,end_s\n" + "".join(f"{n}.wav,1,2\n{n}.wav,4,5\n" for n in "ab")
    )
    settings = ["split.train=0.5", "split.val=0.5"]
    prepared_labels(archive, tmp_path / "boxes.csv", tmp_path / "prepared", *settings)
    assert "4 of them have no frequencies" in capsys.readouterr().out
    argv = [
        "train",
        str(tmp_path / "prepared"),
        "--out",
        str(tmp_path / "model"),
        "--runner",
        "here",
        "--recipe",
        "tiny",
    ]
    assert main(argv) == DATA
    error = capsys.readouterr().err
    assert "all 2 labels" in error and "--set labels.time_only=teach" in error
    assert not (tmp_path / "model/card.json").exists()


# 3. figures of nothing
def of_tables(folder):
    return ["evaluate", "--detections", str(folder / "found.csv"), "--annotations", str(folder / "truth.csv")]


@pytest.mark.parametrize("extra", [[], ["--unlisted", "silent"]])
def test_detections_of_other_recordings_are_an_error_with_the_names_of_both(tmp_path, capsys, extra):
    (tmp_path / "truth.csv").write_text(
        CSV + "ridge/dawn1.wav,1,2,1000,2000,wren\nridge/dawn2.wav,1,2,1000,2000,wren\n"
    )
    (tmp_path / "found.csv").write_text(CSV + "S4A01_0600.wav,1,2,1000,2000,wren\n")
    assert main([*of_tables(tmp_path), *extra]) == DATA
    error = capsys.readouterr().err
    assert "S4A01_0600.wav" in error and "ridge/dawn1.wav" in error and len(error.strip().splitlines()) <= 3


def test_recordings_of_seven_sites_do_not_become_one(tmp_path, capsys):
    (tmp_path / "truth.csv").write_text(CSV + "20240501_060000.wav,1,2,1000,2000,wren\n")
    rows = "".join(f"site{n}/20240501_060000.wav,1,2,1000,2000,wren\n" for n in range(7))
    (tmp_path / "found.csv").write_text(CSV + rows)
    assert main(of_tables(tmp_path)) == DATA
    error = capsys.readouterr().err
    assert (
        "7 recordings of one table (site0/20240501_060000.wav" in error
        and len(error.strip().splitlines()) <= 3
    )


# 4. what is no animal
def test_names_that_mean_no_animal_are_left_out_and_said(archive, tmp_path, capsys):
    names = [
        "wren",
        "noise",
        "No class of interest",
        "annotate",
        "Rain",
        "Human_vocal",
        "NoID",
        "Don't Know",
        "alarm call",
    ]
    rows = "".join(f"a.wav,{n},{n + 0.5},1000,2000,{name}\n" for n, name in enumerate(names))
    (tmp_path / "boxes.csv").write_text(CSV + rows)
    labels = prepared_labels(archive, tmp_path / "boxes.csv", tmp_path / "out")
    assert [row["label"] for row in labels] == ["wren", "alarm call"]
    said = capsys.readouterr().out
    assert "5 no animal by their name" in said and "No class of interest 1" in said
    assert "2 uncertain, neither call nor background: NoID 1, Don't Know 1" in said
    ignored = pq.read_table(tmp_path / "out/ignored.parquet").to_pylist()
    assert [(row["begin_s"], row["label"], row["why"]) for row in ignored] == [
        (6.0, "NoID", "uncertain"),
        (7.0, "Don't Know", "uncertain"),
    ]


def test_tables_of_false_positives_and_verdicts_of_no_are_no_calls(archive, tmp_path, capsys):
    tables = tmp_path / "tables"
    tables.mkdir()
    (tables / "a.txt").write_text(raven([(1, 2, 1000, 2000, "wren")]))
    (tables / "birdnet_false_positives.csv").write_text(
        CSV + "a.wav,3,4,1000,2000,wren\nb.wav,3,4,1000,2000,wren\n"
    )
    verdicts = "path,begin_s,end_s,low_hz,high_hz,score,verdict\n"
    (tables / "review.csv").write_text(
        verdicts + "b.wav,5,6,1000,2000,0.9,y\nb.wav,7,8,1000,2000,0.8,n\nb.wav,9,10,1000,2000,0.7,\n"
    )
    labels = prepared_labels(archive, tables, tmp_path / "out")
    assert [(row["begin_s"], row["end_s"]) for row in labels] == [(1, 2), (5, 6)]
    said = capsys.readouterr().out
    assert "3 boxes are marked as no call by their table" in said and "1 uncertain" in said


# 5. boxes that cannot be, tables that say nothing
def test_boxes_without_length_or_height_and_beyond_their_recording_are_left_out_or_cut(
    archive, tmp_path, capsys
):
    rows = [
        "1,1,1000,2000",
        "2,3,1500,1500",
        "-0.4,0.5,1000,2000",
        "-2,-1,1000,2000",
        "11.5,13,1000,2000",
        "20,21,1000,2000",
    ]
    (tmp_path / "boxes.csv").write_text(CSV + "".join(f"a.wav,{row},wren\n" for row in rows))
    labels = prepared_labels(archive, tmp_path / "boxes.csv", tmp_path / "out")
    assert [(row["begin_s"], row["end_s"]) for row in labels] == [(0.0, 0.5), (11.5, 12.0)]
    said = capsys.readouterr().out
    for words in (
        "1 boxes have no length",
        "1 boxes have no height",
        "1 boxes end before their recording begins",
        "1 boxes begin before their recording and are cut",
        "1 boxes end after their recording and are cut",
        "1 boxes begin after the end",
    ):
        assert words in said


@pytest.mark.parametrize("verb", ["inventory", "prepare"])
@pytest.mark.parametrize(
    ("table", "words"),
    [
        ("name,place\na.wav,ridge\n", "no column"),
        ("file,gps_x,gps_y\na.wav,1,2\nb.wav,1,2\n", "nothing about"),
    ],
)
def test_a_table_without_a_known_column_is_refused(archive, tmp_path, capsys, verb, table, words):
    (tmp_path / "places.csv").write_text(table)
    argv = [verb, str(archive), "--table", str(tmp_path / "places.csv")]
    argv += ["--out", str(tmp_path / "out"), "--runner", "here"] if verb == "prepare" else []
    assert main(argv) == DATA
    error = capsys.readouterr().err
    assert words in error and len(error.strip().splitlines()) <= 3


def test_recordings_too_short_for_any_chunk_are_no_success(tmp_path, capsys):
    write_noise(tmp_path / "audio/a.wav", 0.5, 1)
    argv = ["prepare", str(tmp_path / "audio"), "--out", str(tmp_path / "out"), "--runner", "here"]
    assert main([*argv, "--set", "audio.min_seconds=0.1"]) == DATA
    assert "long enough for a chunk" in capsys.readouterr().err


# 6. nothing is no success
@pytest.mark.parametrize(("suffix", "level"), [("flac", 0.0), ("wav", 0.1)])
def test_recordings_without_any_sound_are_no_success(tmp_path, capsys, suffix, level):
    (tmp_path / "audio").mkdir()
    soundfile.write(tmp_path / f"audio/a.{suffix}", np.full(16_000 * 12, level, np.float32), 16_000)
    argv = ["prepare", str(tmp_path / "audio"), "--out", str(tmp_path / "out"), "--runner", "here"]
    assert main(argv) == DATA
    assert "digital silence" in capsys.readouterr().err
    assert not (tmp_path / "out/manifest.json").exists()


def test_annotations_of_which_no_box_is_a_call_are_no_success(archive, tmp_path, capsys):
    (tmp_path / "boxes.csv").write_text(CSV + "a.wav,1,2,1000,2000,noise\nb.wav,1,2,1000,2000,rain\n")
    argv = ["prepare", str(archive), "--annotations", str(tmp_path / "boxes.csv"), "--runner", "here"]
    assert main([*argv, "--out", str(tmp_path / "out")]) == DATA
    error = capsys.readouterr().err
    assert "not one of its 2 boxes is a call" in error and "labels.no_animal=keep" in error
    assert main([*argv, "--out", str(tmp_path / "out"), "--set", "labels.no_animal=keep"]) == OK
    assert json.loads((tmp_path / "out/manifest.json").read_text())["counts"]["labels"] == 2


@pytest.mark.parametrize(
    ("knob", "counted"), [("leave_out", "1 detections, 1 right"), ("keep", "3 detections, 1 right")]
)
def test_what_another_tool_calls_no_animal_is_no_false_alarm(knob, counted, tmp_path, capsys):
    """BirdNET writes a sure `nocall` into the table of a recording in which it found nothing."""
    found, truth = tmp_path / "found.csv", tmp_path / "truth.csv"
    found.write_text(
        "Start (s),End (s),Scientific name,Common name,Confidence,File\n0,3,Troglodytes troglodytes,Wren,0.8,y.wav\n"
        "3,6,Engine,Engine,0.9,y.wav\n0,3,nocall,nocall,1.0,x.wav\n"
    )
    truth.write_text("file,begin_s,end_s,low_hz,high_hz,label\nx.wav,,,,,\ny.wav,0.2,2.9,1000,2000,Wren\n")
    knobs = ["--set", f"labels.no_animal={knob}"]
    assert main(["evaluate", "--detections", str(found), "--annotations", str(truth), *knobs]) == 0
    said = capsys.readouterr()
    assert counted in said.out
    assert ("2 detections are no animal by their name" in said.err) == (knob == "leave_out")
