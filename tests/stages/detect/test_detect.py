"""Sweeps over archives in one process: every call once, in absolute time, wherever
windows begin; every recording counted.
"""

import os
import unicodedata
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import numpy as np
import pandas as pd
import pytest
import soundfile as sf
from tones import (
    CARD,
    PLAIN,
    Tone,
    ToneDetector,
    committed_keys,
    sound_of,
    sweep_tones,
    tone_config,
    write_archive,
    write_tones,
)

from mast_ray.config.errors import ConfigError, DataError
from mast_ray.evaluation.naming.names import Names
from mast_ray.evaluation.review.corrections import corrections_folder
from mast_ray.inference.decode_threads import deal_to_threads
from mast_ray.inference.detection_rows import RecordingBoxes, RowKnobs, detection_rows, stitched_boxes
from mast_ray.inference.naming import ModelNames
from mast_ray.inference.window_detector import InferenceKnobs, WindowBoxes, WindowDetector
from mast_ray.reporting.detection_tables import read_detections, read_recordings
from mast_ray.spectrogram.chunking import SegmentStream
from mast_ray.spectrogram.sample_segments import SampleSegments
from mast_ray.stages.detect.detect import Sweep, stored_threshold
from mast_ray.stages.detect.plan import Workers, order_by_site_and_date, plan_detect_units, workers_of
from mast_ray.storage.spread import Resources
from mast_ray.storage.stage_folders import read_manifest
from mast_ray.storage.storage import open_storage
from mast_ray.storage.units import Item
from mast_ray.tables.prepared import read_table
from mast_ray.tables.preparing.recording_record import RecordingRecord

RECORD = RecordingRecord(
    path="x.wav", site="", start_utc=datetime(2024, 5, 1, tzinfo=UTC), utc_offset_s=3600, time_source="filename",
    time_flags="", latitude=None, longitude=None, duration_s=24 * 3600 + 20.0, sample_rate_hz=48_000, num_channels=1,
    num_bytes=0, num_frames=8_642_000, num_chunks=16_878, fingerprint="",
)  # fmt: skip


@pytest.fixture(scope="module")
def archive(tmp_path_factory):
    root = tmp_path_factory.mktemp("tones") / "archive"
    return root, write_archive(root)


@pytest.fixture(scope="module")
def swept(archive, tmp_path_factory):
    out = tmp_path_factory.mktemp("swept")
    assert sweep_tones(archive[0], out) == 4
    return out


def rows_of(out, path=None):
    table = read_detections(str(out)).to_pandas().sort_values(["path", "begin_s"])
    return table if path is None else table[table.path == path]


def test_every_tone_is_found_once_at_its_second_and_hertz(archive, swept):
    found = rows_of(swept)
    assert len(found) == sum(len(tones) for tones in archive[1].values())
    for path, tones in archive[1].items():
        rows = found[found.path == path]
        assert np.abs(rows.begin_s.to_numpy() - [t.begin_s for t in tones]).max() <= 0.025
        assert np.abs(rows.end_s.to_numpy() - [t.end_s for t in tones]).max() <= 0.025
        assert all(rows.low_hz.to_numpy() < [t.hertz for t in tones])
        assert all(rows.high_hz.to_numpy() > [t.hertz for t in tones])


def test_detections_carry_absolute_time_site_and_model(swept):
    row = rows_of(swept, "B/B_20240502_060000.wav").iloc[0]
    moment = datetime(2024, 5, 2, 6, 0, tzinfo=UTC) + timedelta(seconds=row.begin_s)
    assert row.start_utc == pd.Timestamp(moment).round("us") and row.utc_offset_s == 0
    assert row.start_local == row.start_utc.tz_localize(None)
    assert (row.site, row.time_source, row.model_sha) == ("B", "filename", CARD.weights_sha256)
    assert pd.isna(row.probability) and pd.isna(row.chunk)


def test_every_recording_is_done_or_rejected_and_the_tables_say_so(archive, swept):
    counts = read_manifest(open_storage(swept)).counts
    assert (counts["offered"], counts["recordings"], counts["rejected"]) == (10, 8, 2)
    assert read_recordings(str(swept)).column("path").to_pylist() == sorted(archive[1])
    rejects = read_table(open_storage(swept), "rejects.parquet").to_pylist()
    assert [row["path"] for row in rejects] == ["A/A_20240701_060000.wav", "B/B_20240701_060000.wav"]
    assert counts["hours"] == pytest.approx(8 * 30 / 3600, abs=1e-4)


def test_the_table_is_partitioned_by_site_and_date_for_any_reader(swept):
    whole = pd.read_parquet(swept / "detections")
    assert set(zip(whole.site, whole.date, strict=True)) == {
        (site, f"2024-05-0{day}") for site in "AB" for day in (1, 2, 3, 4)
    }
    assert len(whole) == len(rows_of(swept))


@pytest.mark.parametrize("changes", [
    {"detect.decode_threads": 5}, {"detect.batch_size": 3}, {"audio.block_s": 7.0},
])  # fmt: skip
def test_tables_do_not_depend_on_threads_batches_or_blocks(archive, swept, tmp_path, changes):
    sweep_tones(archive[0], tmp_path, config=tone_config(**changes))
    assert committed_keys(tmp_path) == committed_keys(swept)


def calls_after(folder, lead_s):
    """Twenty tones of many lengths and pitches after some silence, swept; times are given back without it."""
    tones = [
        Tone(lead_s + 0.8 + 2.13 * n, lead_s + 1.1 + 2.13 * n + 0.11 * (n % 5), 800 + 333.0 * (n % 9))
        for n in range(20)
    ]
    write_tones(folder / "in" / "X_20240501_060000.wav", tones, 45.0 + lead_s)
    assert sweep_tones(folder / "in", folder / "out") == 0
    return rows_of(folder / "out")[["begin_s", "end_s"]].to_numpy() - lead_s


@pytest.mark.parametrize("lead_s", [0.0103, 1.7, 2.56, 4.99, 5.12, 7.771])
def test_shifting_the_window_grid_moves_no_box_by_a_frame_on_average_and_loses_none(tmp_path, lead_s):
    unshifted, shifted = calls_after(tmp_path / "0", 0.0), calls_after(tmp_path / "1", lead_s)
    assert len(unshifted) == len(shifted) == 20
    assert np.abs(shifted - unshifted).mean(axis=0).max() <= 0.0100001


def test_a_call_longer_than_three_windows_comes_out_whole(tmp_path):
    tones = [Tone(3.0, 38.0, 2000.0), Tone(10.0, 10.5, 5000.0)]
    write_tones(tmp_path / "in" / "X_20240501_060000.wav", tones, 50.0)
    sweep_tones(tmp_path / "in", tmp_path / "out")
    found = rows_of(tmp_path / "out")
    assert found.begin_s.tolist() == pytest.approx([3.0, 10.0], abs=0.03)
    assert found.end_s.tolist() == pytest.approx([38.0, 10.5], abs=0.03)


def test_nothing_lies_above_the_nyquist_frequency_or_after_the_end(tmp_path):
    write_tones(tmp_path / "in" / "X_20240501_060000.wav", [Tone(1.0, 7.99, 3600.0)], 8.0, rate_hz=8000)
    sweep_tones(tmp_path / "in", tmp_path / "out")
    (row,) = rows_of(tmp_path / "out").itertuples()
    assert 3600 < row.high_hz <= 4000 and row.end_s <= 8.0
    boxes = np.array([[0, 60, 50, 128], [0, 110, 50, 120], [790, 10, 900, 20]], np.float64)
    found = RecordingBoxes(boxes, np.full(3, 0.5), None)
    kept = detection_rows(found, replace(RECORD, duration_s=8.0, sample_rate_hz=8000), None, RowKnobs(), "id")
    assert kept.column("high_hz").to_pylist()[0] == 4000.0  # cut; the second began above and is left out
    assert kept.column("end_s").to_pylist() == [0.5, 8.0]


def test_a_silent_archive_has_an_empty_table_and_its_effort(tmp_path):
    write_tones(tmp_path / "in" / "X_20240501_060000.wav", [], 8.0)
    assert sweep_tones(tmp_path / "in", tmp_path / "out") == 0
    assert len(rows_of(tmp_path / "out")) == 0
    assert read_recordings(str(tmp_path / "out")).column("duration_s").to_pylist() == [8.0]


def test_calls_of_one_song_are_joined_by_gap(tmp_path):
    tones = [Tone(2.0 + 0.5 * n, 2.3 + 0.5 * n, 2000.0) for n in range(6)] + [Tone(12.0, 12.3, 2000.0)]
    write_tones(tmp_path / "in" / "X_20240501_060000.wav", tones, 20.0)
    sweep_tones(
        tmp_path / "in", tmp_path / "out", threshold=0.5, config=tone_config(**{"detect.song_gap_s": 0.4})
    )
    found = rows_of(tmp_path / "out")
    assert found.begin_s.tolist() == pytest.approx([2.0, 12.0], abs=0.03)
    assert found.end_s.tolist() == pytest.approx([4.8, 12.3], abs=0.03)


def test_songs_need_a_threshold(tmp_path):
    config = tone_config(**{"detect.song_gap_s": 0.4})
    assert stored_threshold(None, tone_config(), CARD) == 0.0
    assert stored_threshold(None, config, CARD) == CARD.score_threshold
    with pytest.raises(ConfigError, match="--threshold"):
        stored_threshold(None, config, type(CARD)("detector", {}, PLAIN.to_dict()))


def test_boxes_are_named_by_the_models_names_and_embeddings_for_them_alone_are_not_stored():
    """Label a lies along the first number of an embedding, b along the second; halfway nobody is sure."""
    names = Names(
        ("a", "b"), "prototype", False, np.zeros(2), np.ones(2), 9.0 * np.eye(2), np.zeros(2), np.eye(2),
        np.array([-1.0, 1.0, 0.0]), 0.5,
    )  # fmt: skip
    corners = np.array([[0.0, 10, 100, 20], [200, 10, 300, 20], [400, 10, 500, 20]])
    vectors = np.array([[1.0, 0.0], [0.0, 2.0], [1.0, 1.0]], np.float16)
    found = RecordingBoxes(corners, np.full(3, 0.9), vectors)
    knobs = RowKnobs(names=ModelNames(names, "neck"), keeps_embeddings=False)
    rows = detection_rows(found, RECORD, None, knobs, "id")
    assert rows.column("label").to_pylist() == ["a", "b", "unknown"]
    sure, doubtful = 1 / (1 + np.exp(-8.0)), 1 / (1 + np.exp(1.0))  # log-odds 9 and 0
    assert rows.column("label_score").to_pylist() == pytest.approx([sure, sure, doubtful], abs=1e-3)
    assert "embedding" not in rows.column_names
    nameless = detection_rows(found, RECORD, None, RowKnobs(), "id")
    assert nameless.column("label").null_count == 3 and "embedding" in nameless.column_names


def test_a_box_embedding_is_that_of_the_strongest_part(tmp_path):
    write_tones(tmp_path / "in" / "X_20240501_060000.wav", [Tone(1.0, 2.0, 2000.0)], 12.0)
    sweep_tones(tmp_path / "in", tmp_path / "out", config=tone_config(**{"detect.embeddings": "neck"}))
    (row,) = rows_of(tmp_path / "out").itertuples()
    assert row.embedding[0] * 1024 == pytest.approx(100, abs=3)  # begins at frame 100 of window 0
    assert row.embedding[2] * 1024 == pytest.approx(200, abs=3)


def test_running_again_does_nothing_and_growth_adds_only_the_new(archive, swept, tmp_path, capsys):
    root = tmp_path / "in"
    truth = write_archive(root, num_per_site=3)
    assert sweep_tones(root, tmp_path / "out") == 4
    before = set(committed_keys(tmp_path / "out"))
    assert sweep_tones(root, tmp_path / "out") == 4
    assert "already done" in capsys.readouterr().out
    write_tones(root / "A" / "A_20240520_060000.wav", [Tone(3.0, 3.5, 1500.0)], 12.0)
    assert sweep_tones(root, tmp_path / "out") == 4
    assert "resuming: 8 of 9 done" in capsys.readouterr().out
    assert before < set(committed_keys(tmp_path / "out"))
    assert len(rows_of(tmp_path / "out")) == sum(map(len, truth.values())) + 1


def test_growth_that_is_interrupted_leaves_nothing_that_reads_as_whole(tmp_path, monkeypatch):
    write_tones(tmp_path / "in/A/A_20240501_060000.wav", [Tone(2.0, 2.5, 1500.0)], 12.0)
    sweep_tones(tmp_path / "in", tmp_path / "out")
    write_tones(tmp_path / "in/A/A_20240501_070000.wav", [Tone(4.0, 4.5, 1500.0)], 12.0)

    def interrupted(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(Sweep, "_finish", interrupted)  # both recordings lie there, and nothing says so
        sweep_tones(tmp_path / "in", tmp_path / "out")
    with pytest.raises(DataError, match="unfinished"):
        read_detections(str(tmp_path / "out"))
    assert sweep_tones(tmp_path / "in", tmp_path / "out") == 0
    assert read_detections(str(tmp_path / "out")).num_rows == 2


def test_detecting_again_leaves_the_corrections_of_a_review_alone(tmp_path):
    write_tones(tmp_path / "in/A/A_20240501_060000.wav", [Tone(2.0, 2.5, 1500.0)], 12.0)
    sweep_tones(tmp_path / "in", tmp_path / "out")
    log = corrections_folder(str(tmp_path / "out")) / "Ana.jsonl"
    log.parent.mkdir()
    log.write_text("what Ana said")
    write_tones(tmp_path / "in/A/A_20240501_070000.wav", [Tone(4.0, 4.5, 1500.0)], 12.0)
    sweep_tones(tmp_path / "in", tmp_path / "out")
    assert log == tmp_path / "out/corrections/Ana.jsonl" and log.read_text() == "what Ana said"
    assert read_detections(str(tmp_path / "out")).num_rows == 2
    sweep_tones(tmp_path / "in", tmp_path / "out")  # nothing to do: the folder is as it was sealed
    assert log.read_text() == "what Ana said"


def test_a_recording_that_was_replaced_loses_its_old_detections(tmp_path):
    path = tmp_path / "in" / "A" / "A_20240501_060000.wav"
    write_tones(path, [Tone(2.0, 2.5, 1500.0)], 12.0)
    write_tones(path.with_name("A_20240501_070000.wav"), [Tone(7.0, 7.5, 1500.0)], 12.0)
    sweep_tones(tmp_path / "in", tmp_path / "out")
    write_tones(path, [Tone(4.0, 4.5, 1500.0)], 12.0)  # as many bytes as before
    os.utime(path, ns=(1, 1))
    sweep_tones(tmp_path / "in", tmp_path / "out")
    assert rows_of(tmp_path / "out").begin_s.round(1).tolist() == [4.0, 7.0]
    assert len(pd.read_parquet(tmp_path / "out" / "detections")) == 2
    path.unlink()
    sweep_tones(tmp_path / "in", tmp_path / "out")
    assert rows_of(tmp_path / "out").begin_s.round(1).tolist() == [7.0]
    assert read_recordings(str(tmp_path / "out")).num_rows == 1


@pytest.mark.parametrize("site", ["ป่าดงดิบ" * 10, "ป" * 85, "Ø=%25:|" * 30, "Cañón"])
def test_a_site_of_any_name_a_disk_takes_reads_back_the_same(tmp_path, site):
    write_tones(tmp_path / "in" / site / "X_20240501_060000.wav", [Tone(2.0, 2.5, 1500.0)], 12.0)
    assert sweep_tones(tmp_path / "in", tmp_path / "out") == 0
    assert rows_of(tmp_path / "out").site.tolist() == [site]
    assert read_recordings(str(tmp_path / "out")).column("site").to_pylist() == [site]


def test_a_site_written_with_accents_taken_apart_is_the_same_site(tmp_path):
    for number, form in enumerate(("NFC", "NFD")):
        folder = tmp_path / "in" / unicodedata.normalize(form, "Cañón")
        write_tones(folder / f"X_2024050{1 + number}_060000.wav", [Tone(2.0, 2.5, 1500.0)], 12.0)
    assert sweep_tones(tmp_path / "in", tmp_path / "out") == 0
    assert set(rows_of(tmp_path / "out").site) == {unicodedata.normalize("NFC", "Cañón")}


def test_settings_that_change_results_cannot_be_mixed_in_one_folder(archive, swept):
    with pytest.raises(ConfigError, match=r"begun with evaluate\.score_floor"):
        sweep_tones(archive[0], swept, config=tone_config(**{"evaluate.score_floor": 0.2}))


def test_times_are_exact_at_hour_24():
    window = 24 * 3600 * 100 // 512  # the last of the day
    found = [
        WindowBoxes(
            1,
            np.array([window]),
            np.array([[100.25, 20, 140.5, 40]], np.float32),
            np.array([0.9], np.float32),
            None,
        )
    ]
    boxes = stitched_boxes(found, 24 * 3600 * 100 + 2000, RowKnobs())
    (row,) = detection_rows(boxes, RECORD, datetime(2024, 5, 1, 1), RowKnobs(), "id").to_pylist()
    exact_s = (window * 512 + 100.25) * 0.01
    assert abs(row["begin_s"] - exact_s) < 1 / 16_000
    assert abs((row["start_utc"] - datetime(2024, 5, 1, tzinfo=UTC)).total_seconds() - exact_s) < 1 / 16_000
    assert row["start_local"] == row["start_utc"].replace(tzinfo=None) + timedelta(hours=1)


def test_log_mel_made_from_samples_at_the_detector_gives_the_same_boxes():
    sound = sound_of([Tone(1.0, 4.0, 2000.0), Tone(9.0, 13.0, 900.0)], 14.3, 16_000)
    stream = SegmentStream()
    logmel = np.stack([s.logmel for s in [*stream.push(sound), *stream.finish()]])
    samples = SampleSegments()
    rows = np.concatenate([samples.push(sound), samples.finish()])
    answers = {"logmel": [], "samples": []}
    for kind, segments in (("logmel", logmel), ("samples", rows)):
        detector = WindowDetector(ToneDetector(), PLAIN, "real", InferenceKnobs(2), segment_kind=kind)
        detector.begin(lambda _, boxes, kind=kind: answers[kind].append(boxes.boxes))
        detector.push("x", 0, segments, is_last=True)
        detector.flush()
    first, second = np.concatenate(answers["logmel"]), np.concatenate(answers["samples"])
    assert len(first) == 3 and np.array_equal(first, second)


def test_lanes_are_dealt_by_size_in_a_fixed_order():
    items = [Item(str(n), f"{n}.wav", size, "") for n, size in enumerate([90, 10, 10, 10, 60])]
    assert [[i.item_id for i in lane] for lane in deal_to_threads(items, 2)] == [["0"], ["1", "2", "3", "4"]]
    assert len(deal_to_threads(items[:1], 8)) == 1


def test_units_follow_site_and_date_so_that_few_files_are_made():
    audio = tone_config().audio
    names = [
        f"202405{day:02d}_{hour:02d}0000_S{site}.wav"
        for day in (1, 2)
        for hour in range(24)
        for site in range(5)
    ]
    items = [Item(str(n), f"data/{name}", 10**6, "") for n, name in enumerate(names)]
    ordered = order_by_site_and_date(items, tone_config(**{"audio.site_from": "prefix"}).audio, None)
    assert sorted(ordered) == sorted(items)
    dates = [item.path[5:13] for item in order_by_site_and_date(items, audio, None)]
    assert dates == sorted(dates)


@pytest.mark.parametrize(
    ("num_items", "num_bytes", "num_units"),
    [(40, 5_760_000, 10), (1000, 5_760_000, 32), (10_000_000 // 1000, 34_560_000, 313)],
)
def test_units_are_bounded_by_recordings_and_hours(num_items, num_bytes, num_units):
    items = [Item(str(n), f"{n:09d}.wav", num_bytes, "") for n in range(num_items)]
    units = plan_detect_units(items, tone_config().detect, Workers("cpu", 2, 1.0))
    assert len(units) == num_units
    assert [i for unit in units for i in unit.items] == items


def test_a_gpu_is_shared_by_as_many_actors_as_its_cores_can_feed():
    config = tone_config(**{"cluster.use_gpu": "auto"})
    assert workers_of(config, Resources(96, 8)) == Workers("cuda", 24, 4.0, 1 / 3)
    assert workers_of(config, Resources(16, 1)) == Workers("cuda", 4, 4.0, 0.25)
    assert workers_of(config, Resources(4, 2)) == Workers("cuda", 2, 2.0, 1.0)
    alone = tone_config(**{"cluster.use_gpu": "auto", "detect.workers_per_gpu": 1})
    assert workers_of(alone, Resources(96, 8)) == Workers("cuda", 8, 12.0, 1.0)
    assert workers_of(config, Resources(16, 0)) == Workers("cpu", 16, 1.0)
    sections = ("detector", "self_train.stage1", "self_train.stage2")
    divisible = {f"{section}.batch_size": 8 for section in sections}
    growing = tone_config(**{"cluster.use_gpu": "yes", "cluster.num_workers": 8, **divisible})
    assert workers_of(growing, Resources(2, 0)) == Workers("cuda", 8, 1.0, 1.0)


def test_cores_of_machines_without_a_gpu_are_not_shared_out_among_gpus():
    sections = ("detector", "self_train.stage1", "self_train.stage2")
    asked = {f"{section}.batch_size": 8 for section in sections} | {"cluster.num_workers": 8}
    config = tone_config(**{"cluster.use_gpu": "yes", "cluster.cpus_per_worker": 12.0, **asked})
    # sixteen machines of 32 cores that `mast prepare` has asked for, beside one of 8 GPUs and 96 cores, and before it is up
    assert workers_of(config, Resources(96 + 512, 8, cores_per_gpu=12.0)) == Workers("cuda", 24, 4.0, 1 / 3)
    assert workers_of(config, Resources(512, 0)) == Workers("cuda", 24, 4.0, 1 / 3)


def test_channels_that_cancel_each_other_are_said_and_listed(tmp_path, capsys):
    tones = [Tone(1.0, 1.5, 2000.0)]
    for number in range(5):
        write_tones(tmp_path / f"in/A_2024050{number + 1}_060000.wav", tones, 3.0, seed=number)
    for path in sorted((tmp_path / "in").iterdir())[:4]:
        sound = sf.read(path)[0]
        sf.write(path, np.column_stack([sound, -sound]), 16_000)
    assert sweep_tones(tmp_path / "in", tmp_path / "out") == 0
    said = capsys.readouterr().err
    assert "4 recordings have channels in opposite phase" in said and "audio.channel=first" in said
    assert said.count(".wav") == 3  # the first ones, not all
    rejects = read_table(open_storage(tmp_path / "out"), "rejects.parquet").to_pylist()
    assert [(row["status"], row["reason"]) for row in rejects] == [("salvaged", "CHANNELS_CANCEL")] * 4
    assert sweep_tones(tmp_path / "in", tmp_path / "out") == 0
    assert "4 recordings have channels in opposite phase" in capsys.readouterr().err
    first = tone_config(**{"audio.channel": "first"})
    assert sweep_tones(tmp_path / "in", tmp_path / "first", config=first) == 0
    assert "opposite phase" not in capsys.readouterr().err and len(rows_of(tmp_path / "first")) == 5
