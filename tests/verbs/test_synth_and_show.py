"""`mast synth` writes an archive and `mast show` draws a recording of it, through the command line."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as parquet
import pytest
import soundfile
from matplotlib.image import imread

from mast_ray.training.files.shipped import shipped_model
from mast_ray.verbs.main import main

BOX = {"begin_s": 1.0, "end_s": 2.0, "low_hz": 1000.0, "high_hz": 2000.0, "score": 0.7}


@pytest.fixture(scope="module")
def archive(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("verbs") / "archive"
    options = ["--hours", "0.05", "--minutes", "0.25", "--sites", "2", "--days", "2", "--processes", "1"]
    assert main(["synth", "--out", str(folder), "--density", "60", *options]) == 0
    return folder


def test_synth_says_what_it_wrote_and_what_was_there_already(archive, capsys):
    options = ["--hours", "0.05", "--minutes", "0.25", "--sites", "2", "--days", "2", "--processes", "1"]
    assert main(["synth", "--out", str(archive), "--density", "60", *options]) == 0
    said = capsys.readouterr().out
    assert "12 recordings were there already, 0 were written" in said
    assert "0.05 h" in said and "labelled for training" in said and "held-out sites, annotated" in said


def test_other_settings_for_the_same_folder_end_with_the_exit_code_of_data(archive, capsys):
    assert main(["synth", "--out", str(archive), "--hours", "0.2"]) == 3
    assert "choose another --out" in capsys.readouterr().err


def test_show_draws_annotations_and_detections(archive, tmp_path, capsys):
    table = max((archive / "annotations").iterdir(), key=lambda path: path.stat().st_size)
    stem = table.name.removesuffix(".Table.1.selections.txt")
    recording = next((archive / "audio").rglob(f"{stem}.wav"))
    row = {"path": str(recording)} | BOX
    parquet.write_table(pa.Table.from_pylist([row, {**row, "score": 0.1}]), tmp_path / "found.parquet")
    picture = tmp_path / "x.png"
    plain = ["show", str(recording), "-o", str(picture)]
    assert main(plain) == 0
    empty = imread(picture)
    assert main([*plain, "--annotations", str(table), "--detections", str(tmp_path / "found.parquet"),
                 "--threshold", "0.5"]) == 0  # fmt: skip
    assert "and 1 detected boxes" in capsys.readouterr().out
    drawn = imread(picture)
    green = (drawn[..., 1] > drawn[..., 0] + 0.3) & (drawn[..., 1] > drawn[..., 2] + 0.1)
    blue = (drawn[..., 2] > drawn[..., 0] + 0.3) & (drawn[..., 2] > drawn[..., 1] + 0.1)
    assert green.sum() > 200 and blue.sum() > 100
    assert np.abs(empty[..., 0] - empty[..., 1]).max() < 0.05  # without boxes it is grey


def test_show_draws_a_recording_whose_name_is_no_utf_8_with_its_boxes(tmp_path, capsys):
    """From a memory card of an old system: byte ff, which tables write as \ufffd(ff)."""
    recording = tmp_path / "\udcff.wav"
    soundfile.write(tmp_path / "plain.wav", 0.1 * np.sin(np.arange(16_000 * 3), dtype=np.float32), 16_000)
    try:
        (tmp_path / "plain.wav").rename(recording)
    except OSError:
        pytest.skip("this file system takes no such name")
    (tmp_path / "boxes.csv").write_text("file,begin_s,end_s,label\n\ufffd(ff).wav,1,2,wren\n")
    typed = [
        "show",
        str(recording),
        "--annotations",
        str(tmp_path / "boxes.csv"),
        "-o",
        str(tmp_path / "x.png"),
    ]
    assert main(typed) == 0
    assert "3.00 s, 1 annotated and 0 detected boxes" in capsys.readouterr().out


def test_show_says_where_a_recording_ends(archive, tmp_path, capsys):
    recording = next((archive / "audio").rglob("*.wav"))
    assert main(["show", str(recording), "--start", "99", "-o", str(tmp_path / "x.png")]) == 3
    assert "ends at 15.00 s" in capsys.readouterr().err
    assert not (tmp_path / "x.png").exists()


def test_show_leaves_boxes_of_the_same_name_at_another_site_out(archive, tmp_path, capsys):
    name = "20240331_013000"
    recording = next((archive / "audio").rglob("*.wav"))
    for site, count in (("ridge", 1), ("river", 2)):
        (tmp_path / "audio" / site).mkdir(parents=True)
        (tmp_path / "audio" / site / f"{name}.WAV").write_bytes(recording.read_bytes())
        (tmp_path / "tables" / site).mkdir(parents=True)
        lines = "".join(f"{i + 1}\t{i + 2}\tx\n" for i in range(count))
        (tmp_path / "tables" / site / f"{name}.txt").write_text(lines)
    box = {"begin_s": 1.0, "end_s": 2.0, "low_hz": 1000.0, "high_hz": 2000.0, "score": 0.7}
    rows = [{"path": f"{site}/{name}.WAV", **box} for site in ("ridge", "river", "river")]
    parquet.write_table(pa.Table.from_pylist(rows), tmp_path / "found.parquet")
    tables = ["--annotations", str(tmp_path / "tables"), "--detections", str(tmp_path / "found.parquet")]
    for site, said in (("ridge", "1 annotated and 1 detected"), ("river", "2 annotated and 2 detected")):
        shown = ["show", str(tmp_path / "audio" / site / f"{name}.WAV"), "-o", str(tmp_path / "x.png")]
        assert main([*shown, *tables]) == 0
        assert said in capsys.readouterr().out
    elsewhere = tmp_path / f"{name}.WAV"
    elsewhere.write_bytes(recording.read_bytes())
    assert main(["show", str(elsewhere), "-o", str(tmp_path / "x.png"), *tables]) == 3
    assert "2 recordings called" in capsys.readouterr().err


@pytest.mark.parametrize(
    "table, rows, count, said",
    [
        ("many.txt", "b.wav c.wav", 0, "many.txt has no recording called a.wav, so no box of it is drawn: it is of b.wav, c.wav"),
        ("b.Table.1.selections.txt", "", 1, "names no recording and is not called like a.wav: is it of another?"),
        ("a.Table.1.selections.txt", "", 1, ""),
        ("many.txt", "a.wav b.wav", 1, ""),
        ("many.txt", r"D:\river\a.wav", 1, "is of river/a.wav, which is taken for"),
    ],
)  # fmt: skip
def test_show_says_where_a_table_is_of_another_recording(tmp_path, capsys, table, rows, count, said):
    soundfile.write(tmp_path / "a.wav", 0.1 * np.sin(np.arange(16_000 * 3), dtype=np.float32), 16_000)
    header, box = (
        "Selection\tBegin Time (s)\tEnd Time (s)\tLow Freq (Hz)\tHigh Freq (Hz)",
        "1\t1\t2\t1000\t2000",
    )
    lines = [f"{box}\t{name}\t1" for name in rows.split()] or [box]
    named = "\tBegin File\tFile Offset (s)" * bool(rows)
    (tmp_path / table).write_text("\n".join([header + named, *lines]) + "\n")
    tables = ["--annotations", str(tmp_path / table)]
    assert main(["show", str(tmp_path / "a.wav"), "-o", str(tmp_path / "x.png"), *tables]) == 0
    out, err = capsys.readouterr()
    assert f"{count} annotated" in out
    assert said in err if said else "note" not in err


def test_show_says_which_rows_of_a_table_it_cannot_draw(tmp_path, capsys):
    soundfile.write(tmp_path / "a.wav", 0.1 * np.sin(np.arange(16_000 * 3), dtype=np.float32), 16_000)
    (tmp_path / "a.csv").write_text("begin_s,end_s,label\n1,2,wren\nsoon,2,wren\n")
    tables = ["--annotations", str(tmp_path / "a.csv")]
    assert main(["show", str(tmp_path / "a.wav"), "-o", str(tmp_path / "x.png"), *tables]) == 0
    out, err = capsys.readouterr()
    assert "1 annotated" in out and "1 rows are not drawn, e.g." in err and "line 3" in err


def test_show_writes_what_it_draws_as_sound(archive, tmp_path):
    recording = min((archive / "audio").rglob("*.wav"))
    sound = tmp_path / "heard" / "x.wav"
    stretch = ["--start", "2", "--seconds", "3", "--sound", str(sound)]
    assert main(["show", str(recording), "-o", str(tmp_path / "x.png"), *stretch]) == 0
    samples, rate_hz = soundfile.read(sound)
    assert rate_hz == 16_000 and len(samples) == 48_000
    whole, own_hz = soundfile.read(recording)
    assert np.abs(samples).max() == pytest.approx(0.9, abs=0.001)
    assert own_hz == 16_000 or len(whole) > 0
    if own_hz == 16_000:
        part = whole[32_000:80_000]
        assert np.corrcoef(samples, part)[0, 1] > 0.99


@pytest.mark.parametrize(
    ("changed", "says"), [({"score": "high"}, "column score"), ({"begin_s": None}, "without begin_s")]
)
def test_boxes_that_cannot_be_drawn_are_told_by_their_column(archive, tmp_path, capsys, changed, says):
    recording = next((archive / "audio").rglob("*.wav"))
    row = {"path": str(recording)} | BOX
    table = tmp_path / "found.parquet"
    parquet.write_table(pa.Table.from_pylist([row | changed]), table)
    assert main(["show", str(recording), "-o", str(tmp_path / "x.png"), "--detections", str(table)]) == 3
    assert says in capsys.readouterr().err


def test_show_says_of_a_model_what_it_began_with_and_what_it_may_be_used_for(tmp_path, capsys):
    model = str(shipped_model("tiny"))
    for name in ("shipped:tiny", model):
        assert main(["show", name]) == 0
        said = capsys.readouterr().out
        assert said.startswith("shipped:tiny: detector mast tiny") and "began with  nothing" in said
        assert "licence of shipped:tiny: CC BY-NC-SA 4.0" in said
    assert main(["show", model, "-o", str(tmp_path / "x.png")]) == 2
    assert main(["show", str(tmp_path)]) == 3 and "not a finished model folder" in capsys.readouterr().err


def test_show_of_a_recording_needs_a_place_for_the_picture(tmp_path, capsys):
    assert main(["show", str(tmp_path / "a.wav")]) == 2
    assert "-o PNG" in capsys.readouterr().err
