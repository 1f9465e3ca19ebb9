"""Outputs that were damaged after they were finished: noticed, named, and only what was lost is done again."""

import hashlib
import json
import os
import shutil

import pytest
from tones import Tone, sweep_tones, write_tones

from mast_ray.config.errors import DataError
from mast_ray.config.recipes import tiny
from mast_ray.reporting.detection_tables import read_detections
from mast_ray.stages.detect.detect import SEALED
from mast_ray.stages.prepare import PrepareInputs, prepare
from mast_ray.stages.runner import HERE
from mast_ray.storage.lease import held_lease
from mast_ray.storage.outputs import mend
from mast_ray.storage.storage import open_storage
from mast_ray.tables.prepared import open_prepared
from mast_ray.tables.reading.chunk_sets import chunks_of_split
from mast_ray.tables.reading.reader import ChunkReader


@pytest.fixture(scope="module")
def archive(tmp_path_factory):
    root = tmp_path_factory.mktemp("damaged") / "in"
    for hour in range(8):
        write_tones(root / f"A/A_20240501_{hour:02d}0000.wav", [Tone(2.0, 2.5, 1500.0)], 12.0, seed=hour)
    return root


def prepared(archive, out, verify=False):
    return prepare(PrepareInputs(str(archive), str(out), verify=verify), tiny(), runner=HERE)


def content(out):
    """Every file a reader may read, by its hash."""
    files = [path for path in out.rglob("*") if path.is_file() and path.suffix in (".parquet", ".arrow")]
    return {str(path.relative_to(out)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def flip(path):
    """One byte in the middle, as a bad disk does."""
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 0xFF
    path.write_bytes(data)


def read_every_chunk(out):
    archive = open_prepared(str(out))
    return sum(
        len(batch.chunk_ids)
        for batch in ChunkReader(
            archive, chunks_of_split(archive, "pool"), batch_size=2, num_threads=1
        ).sequential()
    )


def test_prepare_does_again_what_was_deleted_emptied_or_flipped(archive, tmp_path, capsys):
    out = tmp_path / "out"
    assert prepared(archive, out) == 0
    whole = content(out)
    frames = sorted((out / "frames").iterdir())
    assert len(frames) == 2
    frames[0].unlink()
    with pytest.raises(DataError, match="is missing:\nrun the command that wrote this folder again"):
        read_every_chunk(out)
    assert prepared(archive, out) == 0 and content(out) == whole
    assert "1 units were damaged and are done again\nresuming: 4 of 8 done" in capsys.readouterr().out
    frames[1].write_bytes(b"")
    next((out / "commit").iterdir()).write_bytes(b"")
    assert prepared(archive, out) == 0 and content(out) == whole
    flip(frames[1])
    with pytest.raises(DataError, match="is damaged:\nrun the same `mast prepare` with --verify"):
        read_every_chunk(out)
    capsys.readouterr()
    assert prepared(archive, out, verify=True) == 0 and content(out) == whole
    assert "resuming: 4 of 8 done" in capsys.readouterr().out
    assert prepared(archive, out) == 0 and "already done" in capsys.readouterr().out


@pytest.mark.parametrize(
    "name", ["manifest.json", "recordings.parquet", "labels.parquet", "index.parquet", "splits.parquet"]
)
def test_an_emptied_table_is_named_by_readers_and_written_again_by_prepare(archive, tmp_path, name):
    out = tmp_path / "out"
    prepared(archive, out)
    whole = content(out)
    (out / name).write_bytes(b"")
    with pytest.raises(DataError, match=f"{name} is damaged:\nrun the command"):
        open_prepared(str(out))
    (out / name).unlink()
    if name == "splits.parquet":
        with pytest.raises(DataError, match=f"{name} is missing"):
            open_prepared(str(out))
    assert prepared(archive, out) == 0 and content(out) == whole


def test_detect_does_again_the_units_whose_files_are_gone_or_changed(archive, tmp_path, capsys):
    out = tmp_path / "out"
    assert sweep_tones(archive, out) == 0
    before, rows = content(out), read_detections(str(out)).sort_by("path").to_pylist()
    lost = next(path for path in (out / "detections").rglob("*.parquet"))
    lost.unlink()
    (out / "manifest.json").write_bytes(b"")
    commits = sorted((out / "commit").iterdir())
    commits[-1].write_bytes(b"{}")
    capsys.readouterr()
    with pytest.raises(DataError, match="is damaged"):
        read_detections(str(out))
    assert sweep_tones(archive, out) == 0
    assert content(out) == before and read_detections(str(out)).sort_by("path").to_pylist() == rows
    flip(lost)
    stage = open_storage(out)
    assert mend(stage, SEALED[0]) == 0  # sizes say nothing of it
    assert mend(stage, SEALED[0], reads_all=True) == 1
    assert json.loads((out / "manifest.json").read_text())["counts"]["seal"]["files"] > 3


def test_an_emptied_lease_is_held_by_nobody_known_and_ends(tmp_path):
    stage = open_storage(tmp_path)
    with held_lease(stage):
        pass
    (tmp_path / "lease" / "000001.json").write_bytes(b"")
    (tmp_path / "lease" / "000001.beat").unlink()
    with held_lease(stage, ttl_s=0.2) as lease:
        assert lease.generation == 2


def touch(archive):
    """Copied, restored from a backup, or synced: the same bytes of another time."""
    for path in archive.rglob("*.wav"):
        os.utime(path, ns=(path.stat().st_atime_ns, path.stat().st_mtime_ns + 5_000_000_000))


def test_an_archive_whose_files_were_touched_and_not_changed_gives_the_same_tables_again(archive, tmp_path):
    """The files of the second time have the names of the first: none is counted twice, none is lost."""
    own = tmp_path / "in"
    shutil.copytree(archive, own)
    assert prepared(own, tmp_path / "prepared") == 0 and sweep_tones(own, tmp_path / "found") == 0
    names = ("index.parquet", "backgrounds.parquet", "splits.parquet", "stats.json")
    before = {name: (tmp_path / "prepared" / name).read_bytes() for name in names}
    rows = read_detections(str(tmp_path / "found")).sort_by("path").to_pylist()
    touch(own)
    assert prepared(own, tmp_path / "prepared") == 0 and sweep_tones(own, tmp_path / "found") == 0
    assert {name: (tmp_path / "prepared" / name).read_bytes() for name in names} == before
    assert read_detections(str(tmp_path / "found")).sort_by("path").to_pylist() == rows
    counts = json.loads((tmp_path / "found" / "manifest.json").read_text())["counts"]
    assert counts["detections"] == len(rows)
    assert sweep_tones(own, tmp_path / "found") == 0  # and finds its files whole
    assert len(read_detections(str(tmp_path / "found"))) == len(rows) > 0
