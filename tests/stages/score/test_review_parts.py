"""A review sheet drawn file by file is the one drawn from all detections in one array, and so are the counts."""

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from review_sheets import draw_review

from mast_ray.config.errors import DataError
from mast_ray.config.tree import ClusterConfig
from mast_ray.evaluation.breakdown import cells_of_hours
from mast_ray.evaluation.review.sheet import band_edges_of, num_above
from mast_ray.recordings.annotations.reading import read_annotations
from mast_ray.reporting.exports.rows import detection_id
from mast_ray.spectrogram.grid import HIGH_HZ, LOW_HZ
from mast_ray.stages.runner import HERE, ON_RAY
from mast_ray.stages.score import review_parts
from mast_ray.stages.score.review_parts import Detections
from mast_ray.stages.score.tables import read_events
from mast_ray.tables.schemas import DETECTIONS
from mast_ray.verbs.main import main


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Seven files of three sites, one of them empty; a recording at every ten minutes."""
    folder, rng = tmp_path_factory.mktemp("detections"), np.random.default_rng(0)
    schema = pa.schema([field for field in DETECTIONS if field.name != "site"])
    for number, (site, count) in enumerate(
        [("A", 400), ("A", 90), ("B", 300), ("B", 0), ("C", 7), ("C", 1), ("", 60)]
    ):
        score = rng.beta(0.5, 3.0, count)
        rows = [
            {"recording_id": f"{number}-{n % 20}", "path": f"{site}/{number}-{n % 20:02d}.wav", "begin_s": float(n // 20),
             "end_s": n // 20 + 0.5, "low_hz": 1000.0, "high_hz": 2000.0, "score": float(score[n]), "utc_offset_s": 0,
             "start_utc": None if n % 20 == 3 else (1_700_000_000 + n % 20 * 600 + n // 20) * 1_000_000}
            for n in range(count)
        ]  # fmt: skip
        path = folder / "detections" / f"site={site}" / f"date=2023-11-1{number}" / "part.parquet"
        path.parent.mkdir(parents=True)
        pq.write_table(pa.Table.from_pylist(rows, schema=schema), path)
    return str(folder)


def in_one_array(folder, size, seed):
    events = read_events(folder)
    site = np.array(events.recordings.site, dtype=object)[events.recording]
    hour = cells_of_hours(events.local_s)[0]
    rows = draw_review(events.score, site, hour, size, seed).rows
    paths = [events.recordings.paths[events.recording[row]] for row in rows]
    return sorted(zip(paths, events.begin_s[rows], events.score[rows], hour[rows], strict=True)), events


@pytest.mark.parametrize("runner", [HERE, pytest.param(ON_RAY, marks=[pytest.mark.ray, pytest.mark.slow])])
def test_parts_give_the_sheet_and_the_counts_of_one_array(folder, monkeypatch, runner):
    monkeypatch.setattr(review_parts, "FILES_AT_ONCE", 2)
    monkeypatch.setattr(review_parts, "FEW_FILES", 1)
    found = Detections.at(folder, runner, ClusterConfig())
    assert len(found.slices) == 4 and found.runner is runner
    with runner.session():
        for size in (1, 60, 5000):
            rows, events = in_one_array(folder, size, seed=size)
            drawn = found.drawn(size, seed=size)
            assert [(row.path, row.begin_s, row.score, row.hour) for row in drawn] == rows
            assert len({(row.path, row.begin_s) for row in drawn}) == min(size, len(events))
        assert found.limits() == (len(events), events.score.min(), events.score.max())
        edges, thresholds = band_edges_of(events.score), np.array([-np.inf, 0.1, 0.4])
        np.testing.assert_array_equal(
            found.above(thresholds, edges), num_above(thresholds, events.score, edges)
        )


def test_few_files_are_read_in_this_process(folder):
    assert Detections.at(folder, ON_RAY, ClusterConfig()).runner is HERE


def test_a_table_without_detections_is_said_so(tmp_path):
    pq.write_table(DETECTIONS.empty_table(), tmp_path / "none.parquet")
    with pytest.raises(DataError, match="holds no detection"):
        Detections.at(str(tmp_path / "none.parquet"), HERE, ClusterConfig()).limits()


def test_ids_are_those_of_sheets_and_of_reviews(tmp_path):
    rows = [
        {"recording_id": "r", "path": "a.wav", "begin_s": 1.0, "end_s": 2.0, "score": 0.5},
        {"recording_id": "r", "path": "a.wav", "begin_s": 3.0, "end_s": 4.0, "low_hz": 500.0, "high_hz": 900.0, "score": 0.5},
        {"recording_id": "s", "path": "b.wav", "begin_s": 1.0, "end_s": 2.0, "score": 0.5},
    ]  # fmt: skip
    pq.write_table(pa.Table.from_pylist(rows, schema=DETECTIONS), tmp_path / "d.parquet")
    found = Detections.at(str(tmp_path / "d.parquet"), HERE, ClusterConfig())
    nan = float("nan")
    assert found.ids_of({"a.wav", "c.wav"}) == {
        detection_id("a.wav", 1.0, 2.0, nan, nan),  # as it stands on a sheet of `mast calibrate`
        detection_id("a.wav", 1.0, 2.0, LOW_HZ, HIGH_HZ),  # as a review shows it
        detection_id("a.wav", 3.0, 4.0, 500.0, 900.0),
    }


def test_a_sheet_of_a_recording_of_hours_is_read_back_as_its_boxes(tmp_path, capsys):
    begin_s = [0.5, 999.994, 12345.66, 86399.123]
    rows = [
        {"recording_id": "a", "path": "a.wav", "begin_s": b, "end_s": b + 0.06, "low_hz": 1234.567, "high_hz": 2000.0,
         "score": 0.9}
        for b in begin_s
    ]  # fmt: skip
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "found.parquet")
    assert main(["calibrate", str(tmp_path / "found.parquet"), "--out", str(tmp_path / "sheet")]) == 0
    read = read_annotations(tmp_path / "sheet" / "review.csv").annotations
    assert [a.begin_s for a in read] == pytest.approx(begin_s, abs=1e-3)
    assert [a.end_s - a.begin_s for a in read] == pytest.approx([0.06] * 4, abs=1e-3)
    assert [a.low_hz for a in read] == pytest.approx([1234.567] * 4, abs=1e-3)


def test_lines_that_cannot_be_read_are_named_once(tmp_path, capsys):
    table = tmp_path / "found.csv"
    table.write_text(
        "file,begin_s,end_s,low_hz,high_hz,score\na.wav,1,2,1000,2000,0.5\na.wav,1,x,1000,2000,0.5\n"
    )
    found = Detections.at(str(table), HERE, ClusterConfig())
    assert found.limits()[0] == 1 and len(found.drawn(5, 0)) == 1
    assert capsys.readouterr().err.count("line 3: 'x' is not a number") == 1


def test_detections_without_a_score_are_refused_not_taken_for_sure_ones(tmp_path, capsys):
    """An annotation file of which one row has no score or none has, a table without the column, and a folder with a gap in it."""
    rows = [
        {"recording_id": "a", "path": "a.wav", "begin_s": float(n), "end_s": n + 0.5, "score": n / 40 or None}
        for n in range(40)
    ]
    table = pa.Table.from_pylist(rows, schema=DETECTIONS)
    pq.write_table(table.drop_columns(["score"]), tmp_path / "none.parquet")
    (tmp_path / "found").mkdir()
    pq.write_table(table, tmp_path / "found" / "part.parquet")
    lines = [f"a.wav,{n},{n + 0.5},900,1100" for n in range(40)]
    (tmp_path / "none.csv").write_text("\n".join(["file,begin_s,end_s,low_hz,high_hz", *lines]))
    scored = [f"{line},{row['score'] or ''}" for line, row in zip(lines, rows, strict=True)]
    (tmp_path / "gap.csv").write_text("\n".join(["file,begin_s,end_s,low_hz,high_hz,score", *scored]))
    for name, count in (("none.parquet", 40), ("found", 1), ("none.csv", 40), ("gap.csv", 1)):
        out = str(tmp_path / "sheet")
        assert main(["calibrate", str(tmp_path / name), "--out", out, "--runner", "here"]) == 3, name
        said = capsys.readouterr().err.strip()
        assert f"{count} of 40 detections in {tmp_path}/{name}" in said and "with a score for every" in said
        assert len(said.splitlines()) <= 3 and not (tmp_path / "sheet").exists()
    (tmp_path / "whole.csv").write_text("\n".join(["file,begin_s,end_s,low_hz,high_hz,score", *scored[1:]]))
    assert main(["calibrate", str(tmp_path / "whole.csv"), "--out", out, "--runner", "here"]) == 0
