"""What `mast prepare` leaves behind: tables anyone can read, nothing lost,
nothing doubled, nothing touched.
"""

import hashlib
import json
import re
import shutil

import duckdb
import numpy as np
import pandas
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import soundfile as sf
from noise_files import write_noise

from mast_ray.config.errors import ConfigError, DataError
from mast_ray.config.loading import apply_overrides
from mast_ray.config.recipes import field
from mast_ray.stages.prepare import PrepareInputs, prepare
from mast_ray.stages.runner import HERE
from mast_ray.tables.dealing.resplit import deal_as, resplit
from mast_ray.tables.dealing.splits import rows_of_table
from mast_ray.tables.prepared import open_prepared
from mast_ray.tables.schemas import LABELS, RECORDINGS, REJECTS, SPLITS, frames_schema
from mast_ray.verbs.main import main


def content(folder):
    """Hash of every table and frames file, by name."""
    files = [*folder.glob("*.parquet"), *(folder / "frames").iterdir(), folder / "stats.json"]
    return {file.name: hashlib.sha256(file.read_bytes()).hexdigest() for file in files}


def prepare_here(archive, out, labels="", **knobs):
    inputs = PrepareInputs(str(archive), str(out), str(labels))
    return prepare(inputs, apply_overrides(field(), knobs), runner=HERE)


def test_every_file_is_a_recording_or_a_reject(prepared_dir, noise_archive):
    recordings = pq.read_table(prepared_dir / "recordings.parquet")
    rejects = pq.read_table(prepared_dir / "rejects.parquet")
    listed = sorted(path.relative_to(noise_archive).as_posix() for path in noise_archive.rglob("*.wav"))
    assert sorted(recordings["path"].to_pylist() + rejects["path"].to_pylist()) == listed
    assert rejects["reason"].to_pylist() == ["EMPTY_FILE"]
    manifest = json.loads((prepared_dir / "manifest.json").read_text())
    assert manifest["counts"]["offered"] == len(listed) and manifest["counts"]["rejected"] == 1


def test_schemas_are_the_documented_ones(prepared_dir):
    for name, schema in (
        ("recordings", RECORDINGS),
        ("labels", LABELS),
        ("rejects", REJECTS),
        ("splits", SPLITS),
    ):
        assert pq.read_schema(prepared_dir / f"{name}.parquet").equals(schema)
    frames = next((prepared_dir / "frames").iterdir())
    assert pq.read_schema(frames).equals(frames_schema("uint8"))


def test_plain_pyarrow_pandas_and_duckdb_read_frames_with_their_shape(prepared_dir):
    files = str(prepared_dir / "frames" / "*.parquet")
    table = pq.read_table(prepared_dir / "frames")
    assert table.schema.field("logmel").type == pa.fixed_shape_tensor(pa.uint8(), [512, 128])
    tensor = table["logmel"].chunk(0).to_numpy_ndarray()
    assert tensor.shape[1:] == (512, 128)
    by_pandas = pandas.read_parquet(prepared_dir / "frames")
    assert np.array_equal(by_pandas["logmel"][0].reshape(512, 128), tensor[0])
    rows = duckdb.sql(f"select count(*), min(len(logmel)), max(len(logmel)) from '{files}'").fetchall()
    assert rows == [(table.num_rows, 65_536, 65_536)]
    first = duckdb.sql(
        f"select recording_id, segment, logmel from '{files}' order by 1, 2 limit 1"
    ).fetchall()[0]
    same = table.sort_by([("recording_id", "ascending"), ("segment", "ascending")]).slice(0, 1)
    assert np.array_equal(np.array(first[2]), same["logmel"].chunk(0).to_numpy_ndarray()[0].ravel())


def test_every_frame_is_stored_once(prepared_dir):
    frames = pq.read_table(
        prepared_dir / "frames", columns=["recording_id", "segment", "valid_frames"]
    ).to_pandas()
    assert not frames.duplicated(["recording_id", "segment"]).any()
    recordings = pandas.read_parquet(prepared_dir / "recordings.parquet").set_index("recording_id")
    assert frames.groupby("recording_id")["valid_frames"].sum().eq(recordings["num_frames"]).all()


def test_float16_costs_a_thousandth_and_uint8_half_a_step(prepared, noise_archive, tmp_path):
    prepare_here(noise_archive, tmp_path / "half", **{"spectrogram.storage": "float16"})
    half = pq.read_table(tmp_path / "half" / "frames").sort_by(
        [("recording_id", "ascending"), ("segment", "ascending")]
    )
    byte = pq.read_table(prepared.storage.url + "/frames").sort_by(
        [("recording_id", "ascending"), ("segment", "ascending")]
    )
    exact = half["logmel"].combine_chunks().to_numpy_ndarray().astype(np.float32)
    scale, offset = (byte[name].to_numpy()[:, None, None] for name in ("scale", "offset"))
    error = np.abs(offset + scale * byte["logmel"].combine_chunks().to_numpy_ndarray() - exact)
    assert error.max() < 0.06 and np.sqrt((error**2).mean()) < 0.035  # the values spread by 1.3 (white noise)


def test_running_again_has_nothing_to_do(noise_archive, prepared_dir, capsys):
    before = content(prepared_dir)
    again = prepare_here(
        noise_archive, prepared_dir, noise_archive.parent / "labels.csv", **{"audio.timezone": "UTC"}
    )
    # 4, as the first time: some recordings are rejected, and running again does not make that good
    assert again == 4 and "already done, skipping" in capsys.readouterr().out
    assert content(prepared_dir) == before


def test_an_archive_that_grew_is_prepared_by_its_new_recordings_only(tmp_path, capsys):
    for number in range(5):
        write_noise(tmp_path / "a" / f"{number}.wav", 6, number)
    prepare_here(tmp_path / "a", tmp_path / "out")
    write_noise(tmp_path / "a" / "5.wav", 6, 5)
    capsys.readouterr()
    prepare_here(tmp_path / "a", tmp_path / "out")
    assert "resuming: 5 of 6 done" in capsys.readouterr().out
    assert open_prepared(tmp_path / "out").recordings.num_rows == 6


def test_other_settings_on_a_begun_folder_are_refused_by_name(noise_archive, prepared_dir):
    with pytest.raises(ConfigError, match=r"spectrogram.storage='uint8', now it is 'float16'"):
        prepare_here(
            noise_archive, prepared_dir, **{"spectrogram.storage": "float16", "audio.timezone": "UTC"}
        )


def test_nothing_is_ever_written_among_the_recordings(noise_archive):
    with pytest.raises(ConfigError, match="inside the archive"):
        prepare_here(noise_archive, noise_archive / "out")


def test_labels_of_recordings_that_are_not_there_are_an_error_with_examples(noise_archive, tmp_path):
    labels = tmp_path / "labels.csv"
    labels.write_text("path,begin_s,end_s,low_hz,high_hz,label\nghost/x.wav,1,2,1000,2000,call\n")
    with pytest.raises(DataError, match=r"ghost/x\.wav"):
        prepare_here(noise_archive, tmp_path / "out", labels)


def test_labels_that_the_detector_cannot_hear_are_counted_and_said(tmp_path, capsys):
    write_noise(tmp_path / "audio/bat.wav", 12, 0)
    lines = ["bat.wav,1,2,40000,60000", "bat.wav,3,4,2000,9000", "bat.wav,5,6,,"]
    (tmp_path / "boxes.csv").write_text("\n".join(["file,begin_s,end_s,low_hz,high_hz", *lines]))
    inputs = PrepareInputs(str(tmp_path / "audio"), str(tmp_path / "out"), str(tmp_path / "boxes.csv"))
    assert prepare(inputs, field(), runner=HERE) == 0
    assert "1 labels lie wholly outside 20 to 8000 Hz" in capsys.readouterr().out
    counts = json.loads((tmp_path / "out/manifest.json").read_text())["counts"]
    assert (counts["labels"], counts["labels_out_of_band"]) == (3, 1)


def test_an_archive_of_nothing_and_one_of_broken_files_fail(tmp_path):
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match="no recordings"):
        prepare_here(tmp_path / "empty", tmp_path / "out1")
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "x.wav").write_bytes(b"")
    with pytest.raises(DataError, match="EMPTY_FILE"):
        prepare_here(tmp_path / "broken", tmp_path / "out2")
    assert not (tmp_path / "out2" / "manifest.json").exists()


def test_synthetic_copies_of_birdeep_are_left_out(tmp_path):
    write_noise(tmp_path / "a" / "AM1" / "x.wav", 6, 0)
    write_noise(tmp_path / "a" / "Data Augmentation" / "x.wav", 6, 1)
    prepare_here(tmp_path / "a", tmp_path / "out")
    assert open_prepared(tmp_path / "out").recordings["path"].to_pylist() == ["AM1/x.wav"]


def test_another_split_rewrites_no_spectrogram(prepared_dir, tmp_path):
    shutil.copytree(prepared_dir, tmp_path / "out")
    before = content(tmp_path / "out")
    resplit(str(tmp_path / "out"), apply_overrides(field(), {"split.ood_sites": ("S2",), "seed": 4}))
    after = content(tmp_path / "out")
    assert {name for name in before if before[name] != after[name]} == {"splits.parquet", "stats.json"}
    prepared = open_prepared(tmp_path / "out")
    assert "site_ood" in prepared.splits["split"].to_pylist()
    assert prepared.manifest.config["split"]["ood_sites"] == ["S2"]


def test_what_is_not_named_stays_held_out_when_an_archive_is_dealt_again(prepared_dir, tmp_path):
    """`mast split P --set seed=1`, which a warning advises, made the held-out site one to train on."""
    shutil.copytree(prepared_dir, tmp_path / "out")
    out = str(tmp_path / "out")
    resplit(out, apply_overrides(field(), {"split.ood_sites": ("S2",), "seed": 4}))
    assert main(["split", out, "--set", "seed=1"]) == 0
    config = open_prepared(out).manifest.config
    assert (config["split"]["ood_sites"], config["seed"]) == (["S2"], 1)
    assert main(["split", out, "--recipe", "field"]) == 0
    assert open_prepared(out).manifest.config["split"]["ood_sites"] == []


def test_an_archive_and_its_table_grow_together(tmp_path, capsys):
    for name in ("a", "b"):
        write_noise(tmp_path / "audio" / f"{name}.wav", 6, ord(name))
    table, out = tmp_path / "sites.csv", str(tmp_path / "out")
    lines = ["file,site", "a.wav,S1", "b.wav,S1"]

    def prepared_with(*rows):
        table.write_text("\n".join(rows))
        inputs = PrepareInputs(str(tmp_path / "audio"), out, table=str(table))
        assert prepare(inputs, field(), runner=HERE) == 0
        recordings = open_prepared(out).recordings
        return dict(zip(recordings["path"].to_pylist(), recordings["site"].to_pylist(), strict=True))

    assert prepared_with(*lines) == {"a.wav": "S1", "b.wav": "S1"}
    write_noise(tmp_path / "audio" / "c.wav", 6, 3)
    capsys.readouterr()
    assert prepared_with(*lines, "c.wav,S2") == {"a.wav": "S1", "b.wav": "S1", "c.wav": "S2"}
    assert "resuming: 2 of 3 done" in capsys.readouterr().out
    corrected = prepared_with(lines[0], "a.wav,S9", *lines[2:], "c.wav,S2")
    assert corrected == {"a.wav": "S9", "b.wav": "S1", "c.wav": "S2"}
    assert "resuming: 2 of 3 done" in capsys.readouterr().out


def test_who_deals_an_archive_anew_is_told_that_models_may_have_learned_what_is_held_out(tmp_path, caplog):
    """A split that notes no settings is of an older version; one of other settings is dealt anew too."""

    def grow(number, **knobs):
        write_noise(tmp_path / "a" / f"{number}.wav", 6, number)
        caplog.clear()
        prepare_here(tmp_path / "a", tmp_path / "out", **knobs)
        return [record.getMessage() for record in caplog.records if "dealt anew" in record.getMessage()]

    assert grow(0) == [] and grow(1) == []  # the same settings: what was dealt stays
    (said,) = grow(2, seed=3)
    assert "was dealt with other settings of split or seed" in said and "train them again" in said
    table = pq.read_table(tmp_path / "out" / "splits.parquet")
    pq.write_table(table.replace_schema_metadata(None), tmp_path / "out" / "splits.parquet")
    (said,) = grow(3, seed=3)
    assert "by a version that did not note its settings" in said


def test_a_refused_split_leaves_the_old_one_whole(prepared_dir, tmp_path):
    shutil.copytree(prepared_dir, tmp_path / "out")
    before = content(tmp_path / "out")
    with pytest.raises(ConfigError, match="nowhere"):
        resplit(str(tmp_path / "out"), apply_overrides(field(), {"split.ood_sites": ("nowhere",)}))
    assert content(tmp_path / "out") == before and open_prepared(tmp_path / "out").splits.num_rows


def test_a_refused_split_leaves_an_archive_that_has_grown_as_it_was_dealt(prepared_dir, tmp_path):
    """What was dealt in several runs is not what one run deals: training recordings became held out without a word."""
    shutil.copytree(prepared_dir, tmp_path / "out")
    out = str(tmp_path / "out")
    other = {"train": "test", "test": "train"}
    rows = [
        row._replace(split=other.get(row.split, row.split))
        for row in rows_of_table(open_prepared(out).splits)
    ]
    deal_as(out, rows, field())
    before = content(tmp_path / "out")
    with pytest.raises(ConfigError, match="nowhere"):
        resplit(out, apply_overrides(field(), {"split.ood_sites": ("nowhere",)}))
    assert content(tmp_path / "out") == before


def test_an_unfinished_folder_is_not_opened(tmp_path):
    (tmp_path / "attempts" / "u").mkdir(parents=True)
    (tmp_path / "attempts" / "u" / "r-001.json").write_text("{}")
    with pytest.raises(DataError, match="not finished"):
        open_prepared(tmp_path)


def test_a_column_of_the_table_groups_recordings(tmp_path, capsys):
    rows = ["file,event_id"]
    for number in range(9):
        write_noise(tmp_path / "a" / f"{number}.wav", 6, number)
        rows.append(f"{number}.wav,bird{number // 3}")
    (tmp_path / "birds.csv").write_text("\n".join(rows))
    (tmp_path / "labels.csv").write_text(
        "file,begin_s,end_s,low_hz,high_hz\n" + "".join(f"{n}.wav,1,2,1000,2000\n" for n in range(9))
    )
    archive, out, labels = (str(tmp_path / name) for name in ("a", "out", "labels.csv"))
    inputs = PrepareInputs(archive, out, labels, str(tmp_path / "birds.csv"), group_column="event_id")
    config = apply_overrides(field(), {"split.unit": "group", "split.train": 0.34, "split.val": 0.33})
    assert prepare(inputs, config, runner=HERE) == 0
    archive = open_prepared(tmp_path / "out")
    assert archive.recordings["group"].to_pylist() == [f"bird{n // 3}" for n in range(9)]
    names = dict(
        zip(archive.splits["recording_id"].to_pylist(), archive.splits["split"].to_pylist(), strict=True)
    )
    dealt = [names[rid] for rid in archive.recording_ids]
    assert sorted(dealt[::3]) == ["test", "train", "val"] and all(
        len(set(dealt[n : n + 3])) == 1 for n in (0, 3, 6)
    )
    assert "leak audit: clean" in capsys.readouterr().out
    wrong = PrepareInputs(
        str(tmp_path / "a"), out + "2", labels, str(tmp_path / "birds.csv"), group_column="bird"
    )
    with pytest.raises(DataError, match=r"no column 'bird'.*\n.*event_id"):
        prepare(wrong, config, runner=HERE)


def test_a_recording_whose_boxes_all_begin_after_its_end_is_not_background(tmp_path, capsys):
    """Times of a table that run on over several files: the boxes were left out, and their recordings silent."""
    rows = ["file,begin_s,end_s,low_hz,high_hz"]
    for number in range(4):
        write_noise(tmp_path / "a" / f"{number}.wav", 10, number)
        rows.append(f"{number}.wav,{1 + 10 * (number > 1)},{2 + 10 * (number > 1)},1000,2000")
    (tmp_path / "labels.csv").write_text("\n".join([*rows, "3.wav,1,2,1000,2000"]))
    assert prepare_here(tmp_path / "a", tmp_path / "out", tmp_path / "labels.csv") == 0
    archive = open_prepared(tmp_path / "out")
    assert archive.recordings["is_annotated"].to_pylist() == [True, True, False, True]
    said = capsys.readouterr().out
    assert "2 boxes begin after the end of their recording and are left out" in said
    assert "1 boxes of these are all that their recordings have" in said and "2.wav at 11 to 12 s" in said


def test_leaks_and_what_the_pool_has_heard_are_told_by_path(tmp_path, caplog):
    header = "file,begin_s,end_s,low_hz,high_hz\n"
    for number in range(8):
        write_noise(tmp_path / "a" / f"{number}.wav", 30, number)
    (tmp_path / "labels.csv").write_text(header + "0.wav,1,2,1000,2000\n")
    places = (tmp_path / "a", tmp_path / "out", tmp_path / "labels.csv")
    prepare_here(*places, **{"split.unit": "chunk"})
    (tmp_path / "labels.csv").write_text(header + "".join(f"{n}.wav,1,2,1000,2000\n" for n in range(8)))
    prepare_here(*places, **{"split.unit": "chunk"})
    leaks = [text for text in caplog.messages if text.startswith("leak: ")]
    heard = [text for text in caplog.messages if "have labels now and are held out" in text]
    assert leaks and heard
    assert all(re.search(r"\(e\.g\. \d\.wav\)", text) for text in [*leaks, *heard])


def test_what_was_rejected_is_named_by_reason_setting_and_file(tmp_path, capsys):
    write_noise(tmp_path / "a/good.wav", 6, 1)
    write_noise(tmp_path / "a/short.wav", 0.5, 2)
    (tmp_path / "a/notes.wav").write_text("no sound")
    assert prepare_here(tmp_path / "a", tmp_path / "out") == 4
    said = capsys.readouterr().out
    assert f"NOT_AUDIO 1, TOO_SHORT 1 (audio.min_seconds); see {tmp_path}/out/rejects.parquet" in said


def test_channels_that_cancel_each_other_are_said(tmp_path, caplog):
    for number in range(3):
        sound = np.random.default_rng(number).normal(0, 0.1, 16_000 * 12)
        (tmp_path / "in").mkdir(exist_ok=True)
        pair = np.column_stack([sound, -sound if number == 1 else sound])
        sf.write(tmp_path / f"in/A_2024050{number + 1}_060000.wav", pair, 16_000)
    assert prepare_here(tmp_path / "in", tmp_path / "out") == 0
    assert "1 recording has channels in opposite phase" in caplog.text
    assert "(e.g. A_20240502_060000.wav)" in caplog.text
    assert "audio.channel=first" in caplog.text
    rejects = pq.read_table(tmp_path / "out" / "rejects.parquet")
    assert rejects["reason"].to_pylist() == ["CHANNELS_CANCEL"]
