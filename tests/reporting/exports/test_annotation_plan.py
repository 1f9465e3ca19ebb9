"""A plan of chunks to annotate, out to task files and clips, and back in as annotations."""

import csv
from dataclasses import replace
from datetime import UTC, datetime

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import soundfile

from mast_ray.config.errors import ConfigError, DataError
from mast_ray.recordings.annotations.reading import read_annotations, read_listened
from mast_ray.reporting.exports.annotation_plan import PlanInputs, plan_chunks, unlabelled_chunks, write_plan
from mast_ray.spectrogram.normalisation import Moments
from mast_ray.storage.stage_folders import Manifest
from mast_ray.storage.storage import open_storage
from mast_ray.tables.prepared import Prepared
from mast_ray.tables.schemas import DETECTIONS, INDEX, LABELS, RECORDINGS, SPLITS

RATE_HZ = 16_000


@pytest.fixture()
def prepared(tmp_path):
    """Three recordings of 20 s: one annotated, two not, at 06:00 and 18:00 local time (UTC+2)."""
    recordings, splits = [], []
    for number, (site, hour) in enumerate([("A", 10), ("A", 4), ("B", 16)]):
        path = f"{site}/{site}_{number}.wav"
        start = datetime(2024, 5, 1, hour, tzinfo=UTC)
        recordings.append(
            dict.fromkeys(RECORDINGS.names)
            | {"recording_id": f"rec{number}", "path": path, "site": site, "start_utc": start, "utc_offset_s": 7200, "duration_s": 20.0,
               "sample_rate_hz": RATE_HZ, "num_channels": 1, "num_frames": 1998, "num_chunks": 3, "is_annotated": number == 0}
        )  # fmt: skip
        splits.append(
            {
                "recording_id": f"rec{number}",
                "begin_s": 0.0,
                "end_s": 20.0,
                "split": "train" if number == 0 else "",
                "in_pool": True,
            }
        )
        file = tmp_path / "audio" / path
        file.parent.mkdir(parents=True, exist_ok=True)
        soundfile.write(file, np.linspace(-0.5, 0.5, 20 * RATE_HZ), RATE_HZ, "PCM_16")
    tables = [
        pa.Table.from_pylist(rows, schema=schema)
        for rows, schema in ((recordings, RECORDINGS), ([], INDEX), ([], LABELS), (splits, SPLITS))
    ]
    return Prepared(open_storage(tmp_path), Manifest.from_json({}), *tables, moments=Moments(1.0, 0.0, 1.0))


def test_only_chunks_that_nobody_annotated_are_candidates(prepared):
    chunks = unlabelled_chunks(prepared)
    assert set(chunks.ids(prepared)) == {f"rec{r}:{k}" for r in (1, 2) for k in range(3)}


def test_doubtful_detections_bring_their_chunk_to_the_front(prepared, tmp_path):
    def detection(recording, chunk, begin_s, score):
        values = {
            "recording_id": recording,
            "chunk": chunk,
            "begin_s": begin_s,
            "end_s": begin_s + 1,
            "score": score,
        }
        return dict.fromkeys(DETECTIONS.names) | values

    rows = [
        detection("rec1", 0, 1.0, 0.99),
        detection("rec2", 2, 15.0, 0.5),
        detection("rec1", None, 7.0, 0.6),
        detection("rec0", 0, 1.0, 0.5),
    ]
    pq.write_table(pa.Table.from_pylist(rows, schema=DETECTIONS), tmp_path / "detections.parquet")
    plan = plan_chunks(PlanInputs(prepared, str(tmp_path / "detections.parquet")), 2, "uncertainty")
    # At the threshold exactly; then 0.6 at 7.5 s, which lies in the middle half of chunk 0 (2.56 to 7.68 s).
    assert [choice.chunk_id for choice in plan] == ["rec2:2", "rec1:0"]
    assert plan[0].reason == "1.00 doubtful detections"
    pq.write_table(pa.Table.from_pylist(rows[3:], schema=DETECTIONS), tmp_path / "elsewhere.parquet")
    with pytest.raises(DataError, match="no detection in the unlabelled pool"):
        plan_chunks(PlanInputs(prepared, str(tmp_path / "elsewhere.parquet")), 2, "mixed")


def test_coverage_goes_first_to_the_chunk_least_like_the_annotated_one(prepared, tmp_path):
    angle = np.deg2rad([0, 10, 20, 90, 30, 40])
    vectors = np.stack([np.cos(angle), np.sin(angle)], axis=1).astype(np.float32)
    table = pa.table(
        {
            "recording_id": ["rec0", "rec1", "rec1", "rec2", "rec2", "rec9"],
            "chunk": pa.array([0, 0, 2, 1, 2, 0], pa.int32()),
            "embedding": pa.FixedSizeListArray.from_arrays(pa.array(vectors.reshape(-1)), 2),
        }
    )
    pq.write_table(table, tmp_path / "embeddings.parquet")
    plan = plan_chunks(PlanInputs(prepared, embeddings=str(tmp_path)), 2, "coverage")
    # 90 degrees from the annotated 0; its neighbour rec2:2 overlaps it; of 10 and 20 degrees the farther one.
    assert [choice.chunk_id for choice in plan] == ["rec2:1", "rec1:2"]
    with pytest.raises(ConfigError, match="mast embed --what chunks"):
        plan_chunks(PlanInputs(prepared), 2, "coverage")


def test_task_files_open_as_annotations_of_the_recordings_and_of_the_clips(prepared, tmp_path):
    plan = plan_chunks(PlanInputs(prepared), 3, "time_balanced")
    names = write_plan(plan, prepared, open_storage(tmp_path / "out"), open_storage(tmp_path / "audio"))
    assert sorted(names) == sorted(
        p.relative_to(tmp_path / "out").as_posix() for p in (tmp_path / "out").rglob("*.*")
    )
    rows = list(csv.DictReader((tmp_path / "out/plan.csv").open()))
    assert [row["chunk_id"] for row in rows] == [choice.chunk_id for choice in plan]
    wanted = sorted((row["path"], float(row["begin_s"]), float(row["end_s"])) for row in rows)
    for source in ("tasks/raven", "tasks/audacity", "tasks/tasks.aoef.json"):
        again = read_annotations(tmp_path / "out" / source, root=tmp_path / "audio")
        assert not again.unresolved and not again.problems
        assert sorted((a.path, round(a.begin_s, 6), round(a.end_s, 6)) for a in again.annotations) == wanted
        assert all(a.is_time_only and a.label == "annotate" for a in again.annotations)
    clips = sorted((tmp_path / "out/clips/audio").glob("*.wav"))
    again = read_annotations(tmp_path / "out/clips/tasks/raven", root=tmp_path / "out/clips/audio")
    assert sorted(again.annotated_paths) == [clip.name for clip in clips] and len(clips) == 3
    table = {row["file"]: row for row in csv.DictReader((tmp_path / "out/clips/recordings.csv").open())}
    for row, clip in zip(rows, clips, strict=True):
        samples, rate_hz = soundfile.read(clip)
        begin_s, end_s = float(row["begin_s"]), float(row["end_s"])
        assert rate_hz == RATE_HZ and len(samples) == round((end_s - begin_s) * RATE_HZ)
        assert samples[0] == pytest.approx(
            begin_s / 20 - 0.5, abs=1e-3
        )  # the ramp tells where the clip was cut
        assert (
            table[clip.name]["start_time"] == row["start_local"] and table[clip.name]["site"] == row["site"]
        )
    hours = {row["start_local"][11:13] for row in rows}
    assert hours == {"06", "18"} and all(row["start_local"].endswith("+02:00") for row in rows)


def test_what_was_not_planned_of_a_recording_is_not_gone_through(prepared, tmp_path):
    """Ten seconds of a recording were annotated: the rest of it is no background."""
    plan = plan_chunks(PlanInputs(prepared), 2, "time_balanced")
    write_plan(plan, prepared, open_storage(tmp_path / "out"), None)
    planned = {(row["path"], float(row["begin_s"]), float(row["end_s"]))
               for row in csv.DictReader((tmp_path / "out/plan.csv").open())}  # fmt: skip
    own = read_annotations(tmp_path / "out/tasks/tasks.aoef.json", root=tmp_path / "audio")
    listened = read_listened(tmp_path / "out/plan.csv", root=tmp_path / "audio")
    for found in (own, listened):
        assert {(span.path, span.begin_s, span.end_s) for span in found.spans} == planned
    assert not any(span.labels for span in listened.spans)


def test_clips_of_a_recorder_whose_zone_is_unknown_keep_their_own_minute(prepared, tmp_path):
    recordings = prepared.recordings.to_pylist()
    for row in recordings:
        row |= {"start_local": row["start_utc"].replace(tzinfo=None), "start_utc": None, "utc_offset_s": None}
    prepared = replace(prepared, recordings=pa.Table.from_pylist(recordings, schema=RECORDINGS))
    plan = plan_chunks(PlanInputs(prepared), 6, "time_balanced")
    write_plan(plan, prepared, open_storage(tmp_path / "out"), open_storage(tmp_path / "audio"))
    rows = list(csv.DictReader((tmp_path / "out/clips/recordings.csv").open()))
    assert {row["start_time"][11:] for row in rows if row["site"] == "A"} == {"04:00:00.000", "04:00:10.240"}


def test_a_plan_whose_recordings_are_elsewhere_writes_no_task(prepared, tmp_path):
    """ "No such file or directory: check the path", and tasks without a plan that a second attempt left lying."""
    (tmp_path / "elsewhere").mkdir()
    out, elsewhere = open_storage(tmp_path / "out"), open_storage(tmp_path / "elsewhere")
    with pytest.raises(DataError, match="give --audio the folder that was given to `mast prepare`"):
        write_plan(plan_chunks(PlanInputs(prepared), 3, "time_balanced"), prepared, out, elsewhere)
    assert not list(out.list())


def test_embeddings_of_boxes_are_not_taken_for_those_of_chunks(prepared, tmp_path):
    table = pa.table({"recording_id": ["rec1"], "chunk": pa.array([0], pa.int32()), "event": [0],
                      "embedding": pa.FixedSizeListArray.from_arrays(pa.array([1.0, 0.0]), 2)})  # fmt: skip
    pq.write_table(table, tmp_path / "embeddings.parquet")
    with pytest.raises(DataError, match="--what chunks"):
        plan_chunks(PlanInputs(prepared, embeddings=str(tmp_path)), 2, "coverage")


def test_a_plan_is_not_written_over_another_whose_tasks_may_be_annotated(prepared, tmp_path):
    plan = plan_chunks(PlanInputs(prepared), 3, "time_balanced")
    out = open_storage(tmp_path / "out")
    write_plan(plan, prepared, out, None)
    (table,) = (tmp_path / "out/tasks/raven/A").glob("*.txt")
    table.write_text("annotated")
    with pytest.raises(DataError, match="another --out"):
        write_plan(plan[:1], prepared, out, None)
    assert table.read_text() == "annotated"


def test_without_unlabelled_recordings_there_is_nothing_to_plan(prepared, tmp_path):
    annotated = pa.array([True] * 3)
    place = RECORDINGS.names.index("is_annotated")
    every = Prepared(prepared.storage, prepared.manifest, prepared.recordings.set_column(place, "is_annotated", annotated), prepared.index,
                     prepared.labels, prepared.splits, prepared.moments)  # fmt: skip
    with pytest.raises(DataError, match="annotated already"):
        plan_chunks(PlanInputs(every), 2, "mixed")


def test_clips_are_of_the_channel_that_was_prepared(prepared, tmp_path):
    for row in prepared.recordings.to_pylist():
        file = tmp_path / "audio" / row["path"]
        samples, _ = soundfile.read(file)
        soundfile.write(file, np.stack([samples, -samples], axis=1), RATE_HZ)  # their mean is silence
    first = replace(prepared, manifest=Manifest.from_json({"config": {"audio": {"channel": "first"}}}))
    plan = plan_chunks(PlanInputs(first), 1, "time_balanced")
    write_plan(plan, first, open_storage(tmp_path / "out"), open_storage(tmp_path / "audio"))
    (clip,) = (tmp_path / "out/clips/audio").glob("*.wav")
    assert np.abs(soundfile.read(clip)[0]).max() > 0.1
