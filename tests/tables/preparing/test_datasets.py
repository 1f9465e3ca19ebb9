"""Public data sets in their own layouts: BIRDeep's folders and CSVs, BirdSet's Parquet
with audio inside or beside it.
"""

import io

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import soundfile
from noise_files import RATE_HZ, write_noise

from mast_ray.config.errors import DataError
from mast_ray.config.recipes import birdeep, field
from mast_ray.stages.prepare import PrepareInputs, prepare
from mast_ray.stages.runner import HERE
from mast_ray.storage.storage import open_storage
from mast_ray.tables.prepared import open_prepared
from mast_ray.tables.preparing.birdset import BirdSetArchive, birdset_archive, birdset_labels

HEADER = "path,annotator,recorder,date,time,audio_duration,start_time,end_time,low_frequency,high_frequency,specie,bbox"


def birdeep_row(recorder, date, begin_s, end_s, label, folder=""):
    path = f"{folder}{recorder}/2023_05_10/{recorder}_{date}_060000.WAV"
    box = f"{begin_s},{end_s},2000.0,4000.0" if begin_s is not None else ",,,"
    return f"{path},Edu,{recorder},2023/05/10,06:00:00,00:00:10,{box},{label},"


def test_birdeep_is_prepared_from_its_own_layout_with_held_out_recorders(tmp_path):
    root = tmp_path / "birdeep"
    for number, recorder in enumerate(("AM1", "AM2", "AM3", "AM4", "AM15")):
        write_noise(root / "Audios" / recorder / "2023_05_10" / f"{recorder}_20230510_060000.WAV", 10, number)
    write_noise(root / "Data Augmentation" / "AM1_20230510_060000_noise.WAV", 10, 50)
    rows = [birdeep_row(r, "20230510", 1.0, 2.0, "Galerida theklae") for r in ("AM1", "AM4", "AM15")]
    rows += [birdeep_row("AM2", "20230510", None, None, "No audio")]
    copies = [birdeep_row("AM1", "20230510", 1.0, 2.0, "Galerida theklae", "Data Augmentation/x/")]
    (root / "train.csv").write_text("\n".join([HEADER, *rows, *copies]) + "\n")
    (root / "all.csv").write_text("\n".join([HEADER, *rows]) + "\n")  # the same events once more
    (root / "README.csv").write_text("a,b\n1,2\n")
    assert (
        prepare(PrepareInputs(str(root), str(tmp_path / "out"), dataset="birdeep"), birdeep(), runner=HERE)
        == 0
    )
    prepared = open_prepared(tmp_path / "out")
    site_of = dict(zip(prepared.recording_ids, prepared.recordings["site"].to_pylist(), strict=True))
    assert sorted(site_of.values()) == ["AM1", "AM15", "AM2", "AM3", "AM4"]
    assert sorted(site_of[rid] for rid in prepared.labels["recording_id"].to_pylist()) == [
        "AM1",
        "AM15",
        "AM4",
    ]
    split_of = {site_of[row["recording_id"]]: row for row in prepared.splits.to_pylist()}
    assert split_of["AM4"]["split"] == split_of["AM15"]["split"] == "site_ood"
    annotated = dict(
        zip(
            prepared.recordings["site"].to_pylist(),
            prepared.recordings["is_annotated"].to_pylist(),
            strict=True,
        )
    )
    assert annotated == {"AM1": True, "AM2": True, "AM3": False, "AM4": True, "AM15": True}


def test_birdeep_without_its_table_says_what_is_missing(tmp_path):
    write_noise(tmp_path / "a" / "AM1" / "AM1_20230510_060000.WAV", 6, 0)
    with pytest.raises(DataError, match="no BIRDeep annotation table"):
        prepare(
            PrepareInputs(str(tmp_path / "a"), str(tmp_path / "out"), dataset="birdeep"),
            birdeep(),
            runner=HERE,
        )


def ogg(seconds, seed):
    sink = io.BytesIO()
    samples = np.random.default_rng(seed).normal(0, 0.1, int(seconds * RATE_HZ)).astype(np.float32)
    soundfile.write(sink, samples, RATE_HZ, format="OGG", subtype="VORBIS")
    return sink.getvalue()


def birdset_table(names, with_audio):
    rows = len(names)
    columns = {
        "filepath": names,
        "start_time": ["00:00:01", None, "00:00:03.5"][:rows],
        "end_time": ["00:00:02", None, "00:00:04"][:rows],
        "low_freq": [1000, None, None][:rows],
        "high_freq": [3000, None, None][:rows],
        "ebird_code": ["rebnut", None, "amerob"][:rows],
        "lat": [42.5] * rows,
        "long": [-72.2] * rows,
        "microphone": ["SongMeter 2"] * rows,
    }
    if with_audio:
        sounds = {name: ogg(8, number) for number, name in enumerate(dict.fromkeys(names))}
        columns["audio"] = [{"bytes": sounds[name], "path": name} for name in names]
    return pa.table(columns)


@pytest.mark.parametrize("with_audio", [True, False])
def test_birdset_pools_are_prepared_with_audio_inside_or_beside_the_table(tmp_path, with_audio):
    root = tmp_path / "pool"
    root.mkdir()
    names = ["XC1.ogg", "XC2.ogg", "XC1.ogg"]
    pq.write_table(birdset_table(names, with_audio), root / "shard-00000.parquet", row_group_size=2)
    if not with_audio:
        (root / "audio").mkdir()
        for number, name in enumerate(("XC1.ogg", "XC2.ogg")):
            (root / "audio" / name).write_bytes(ogg(8, number))
    assert (
        prepare(PrepareInputs(str(root), str(tmp_path / "out"), dataset="birdset"), field(), runner=HERE) == 0
    )
    prepared = open_prepared(tmp_path / "out")
    assert prepared.recordings.num_rows == 2  # XC1 is named twice and stored once
    assert prepared.recordings["site"].to_pylist() == ["SongMeter 2"] * 2
    assert prepared.recordings["latitude"].to_pylist() == [42.5] * 2
    labels = prepared.labels.to_pylist()
    assert [(row["begin_s"], row["end_s"], row["low_hz"], row["label"]) for row in labels] == [
        (1.0, 2.0, 1000.0, "rebnut"),
        (3.5, 4.0, None, "amerob"),
    ]
    assert sorted(prepared.recordings["is_annotated"].to_pylist()) == [False, True]


def test_audio_inside_parquet_is_read_back_byte_for_byte(tmp_path):
    table = birdset_table(["XC1.ogg", "XC2.ogg", "XC1.ogg"], True)
    pq.write_table(table, tmp_path / "s.parquet", row_group_size=1)
    archive = birdset_archive(open_storage(tmp_path))
    assert isinstance(archive, BirdSetArchive)
    assert [entry.key for entry in archive.list()] == ["s.parquet/XC1.ogg", "s.parquet/XC2.ogg"]
    assert archive.read_bytes("s.parquet/XC2.ogg") == table["audio"][1].as_py()["bytes"]
    with pytest.raises(DataError, match="read-only"):
        archive.write_atomic("x", b"")


def test_a_birdset_row_without_its_file_is_unresolved(tmp_path):
    pq.write_table(birdset_table(["gone.ogg"], False), tmp_path / "s.parquet")
    found, _ = birdset_labels(open_storage(tmp_path), ["other.ogg"])
    assert found.unresolved == ("gone.ogg",) and not found.annotations
