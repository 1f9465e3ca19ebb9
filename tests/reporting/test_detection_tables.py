"""Tables of detections and recordings that others wrote: what cannot be counted is refused, never left uncounted."""

import math

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from mast_ray.config.errors import DataError
from mast_ray.evaluation.events import events_from_arrow
from mast_ray.reporting.detection_tables import read_detections
from mast_ray.verbs.main import main


def box(**changed):
    return {"recording_id": "r", "path": "a.wav", "begin_s": 1.0, "end_s": 2.0, "score": 0.5} | changed


def table_of(folder, *rows):
    pq.write_table(pa.Table.from_pylist(list(rows)), folder / "boxes.parquet")
    return str(folder / "boxes.parquet")


@pytest.mark.parametrize("name", ["begin_s", "end_s", "score"])
@pytest.mark.parametrize("missing", [None, math.nan])
def test_a_box_without_a_time_or_a_score_is_refused_with_its_number(tmp_path, name, missing):
    """One begin_s that is not a number left every call of every recording uncounted."""
    place = table_of(tmp_path, box(), box(**{name: missing}), box())
    with pytest.raises(DataError, match=rf"1 of 3 rows without {name}: leave"):
        read_detections(place)


def test_a_box_that_ends_before_it_begins_is_refused(tmp_path):
    with pytest.raises(DataError, match="1 of 2 rows whose end_s is before"):
        read_detections(table_of(tmp_path, box(), box(begin_s=2.0, end_s=1.0)))


def test_a_band_that_is_not_a_number_is_no_band(tmp_path):
    read = read_detections(
        table_of(tmp_path, box(low_hz=math.nan, high_hz=math.nan), box(low_hz=1.0, high_hz=2.0))
    )
    assert read.column("low_hz").to_pylist() == [None, 1.0] and read.column("high_hz").to_pylist() == [
        None,
        2.0,
    ]


def test_words_among_numbers_are_refused_by_their_column(tmp_path):
    with pytest.raises(DataError, match=r"column score that are no float.*'high'"):
        read_detections(table_of(tmp_path, box(score="high"), box(score="0.5")))


@pytest.mark.parametrize("content", [b"", b"hello", b"PAR1" + b"x" * 40 + b"PAR1"])
@pytest.mark.parametrize("verb", [["summarise", "--recordings", "{}"], ["export", "--to", "csv"], ["calibrate", "--runner", "here"]])  # fmt: skip
def test_a_file_that_is_cut_short_ends_with_the_code_for_data(tmp_path, capsys, content, verb):
    (tmp_path / "boxes.parquet").write_bytes(content)
    place = str(tmp_path / "boxes.parquet")
    typed = [verb[0], place, *(part.format(place) for part in verb[1:]), "--out", str(tmp_path / "out")]
    assert main(typed) == 3
    said = capsys.readouterr().err
    assert "no whole Parquet table" in said and "copy it again" in said and len(said.splitlines()) <= 3


@pytest.mark.parametrize(
    ("changed", "says"), [({"begin_s": None}, "no begin_s"), ({"score": "high"}, "column score")]
)
def test_events_that_cannot_be_placed_are_refused_in_an_evaluation(changed, says):
    rows = [{name: str(value) for name, value in box().items()}, box(**changed)]
    rows = [{name: None if value is None else str(value) for name, value in row.items()} for row in rows]
    with pytest.raises(DataError, match=says):
        events_from_arrow(pa.Table.from_pylist(rows))


def recording(name, duration_s=10.0):
    return {"recording_id": name, "path": f"{name}.wav", "duration_s": duration_s}


def summarised(folder, *recordings):
    pq.write_table(pa.Table.from_pylist(list(recordings)), folder / "recordings.parquet")
    place = table_of(folder, box())
    return main(
        ["summarise", place, "--recordings", str(folder / "recordings.parquet"), "--out", str(folder / "out")]
    )


def test_a_recording_that_is_listed_twice_does_not_count_twice_as_effort(tmp_path, capsys):
    """Two tables put together: every rate was half of what it is."""
    assert summarised(tmp_path, recording("r"), recording("r"), recording("s")) == 3
    said = capsys.readouterr().err
    assert "lists 1 of its 3 recordings a second time" in said and "list every recording once" in said


def test_a_recording_without_a_length_is_no_effort(tmp_path, capsys):
    assert summarised(tmp_path, recording("r"), recording("s", None)) == 3
    assert "1 of 2 recordings without duration_s" in capsys.readouterr().err


def test_stretches_need_the_length_of_every_recording_and_boxes_do_not(tmp_path, capsys):
    pq.write_table(
        pa.Table.from_pylist([recording("r", None), recording("s")]), tmp_path / "recordings.parquet"
    )
    typed = [
        "export",
        table_of(tmp_path, box(path="r.wav")),
        "--recordings",
        str(tmp_path / "recordings.parquet"),
        "--to",
        "csv",
    ]
    assert main([*typed, "--out", str(tmp_path / "boxes")]) == 0
    assert main([*typed, "--out", str(tmp_path / "stretches"), "--stretches", "0.2"]) == 3
    assert "1 of 2 recordings without duration_s" in capsys.readouterr().err


def test_a_call_in_a_recording_of_no_length_is_not_left_uncounted(tmp_path, capsys):
    assert summarised(tmp_path, recording("r", 0.0), recording("s")) == 3
    assert "1 of 1 detections" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("place", "says"), [("nowhere", "no Parquet table"), ("nowhere.parquet", "does not exist")]
)
def test_detections_that_are_not_there_are_not_asked_for_their_effort(tmp_path, capsys, place, says):
    assert main(["summarise", str(tmp_path / place), "--out", str(tmp_path / "out")]) == 3
    assert says in capsys.readouterr().err
