"""Several prepared archives as one: everything of each, told apart, with one statistics."""

import shutil

import numpy as np
import pytest
from small_archive import make_prepared, small_config

from mast_ray.config.errors import ConfigError, DataError
from mast_ray.stages.prepare import PrepareInputs, prepare
from mast_ray.stages.runner import HERE
from mast_ray.storage.storage import open_storage
from mast_ray.tables.backgrounds import with_background
from mast_ray.tables.dealing.resplit import resplit
from mast_ray.tables.joining import join_archives, one_archive, shared_text
from mast_ray.tables.prepared import data_hash, open_prepared
from mast_ray.tables.reading.chunk_sets import chunks_of_split
from mast_ray.tables.reading.reader import ChunkReader


@pytest.fixture(scope="module")
def places(tmp_path_factory):
    """Two archives with the same file names, the second a hundredth as loud."""
    root = tmp_path_factory.mktemp("two")
    loud = make_prepared(root / "loud", num_recordings=4, seconds=16)
    faint = make_prepared(root / "faint", num_recordings=6, seconds=16, level=0.01)
    return str(loud), str(faint)


@pytest.fixture(scope="module")
def both(places, tmp_path_factory):
    return join_archives(places, open_storage(tmp_path_factory.mktemp("joined")), small_config())


def members(places):
    return [open_prepared(place) for place in places]


def test_recordings_of_the_same_name_and_size_do_not_meet(places, both):
    loud, faint = members(places)
    assert set(loud.recording_ids) & set(faint.recording_ids)  # by path and size: they would
    assert len(set(both.recording_ids)) == 4 + 6
    assert len(set(both.recordings.column("path").to_pylist())) == 10
    assert len(both.labels) == len(loud.labels) + len(faint.labels)
    assert (both.rows_of(both.labels.column("recording_id")) >= 0).all()


def test_splits_are_those_of_each(places, both):
    for split in ("train", "val", "test", "pool"):
        own = [chunks_of_split(one, split) for one in members(places)]
        chunks = chunks_of_split(both, split)
        assert len(chunks) == sum(map(len, own))
        assert chunks.recording.tolist() == [*own[0].recording, *(own[1].recording + 4)]


def test_chunks_read_and_their_boxes_are_those_of_the_archives(places, both):
    def read(prepared):
        reader = ChunkReader(prepared, chunks_of_split(prepared, "train"), prepared.labels, batch_size=1)
        return {
            batch.chunk_ids[0]: (
                batch.offset + batch.scale * batch.values.float(),
                batch.boxes.corners[batch.boxes.is_object],
                batch.background,
            )
            for batch in reader.sequential()
        }

    found = read(with_background(both, "median"))
    for number, one in enumerate(members(places)):
        for name, (values, corners, background) in read(with_background(one, "median")).items():
            assert (found[f"{number}.{name}"][0] == values).all()
            assert (found[f"{number}.{name}"][1] == corners).all() and len(corners)
            assert (found[f"{number}.{name}"][2] == background).all()


def test_the_statistics_are_those_of_both_pools(places, both):
    def pool_values(one):
        reader = ChunkReader(one, chunks_of_split(one, "pool"), batch_size=1)
        frames = {}
        for batch in reader.sequential():  # chunks overlap by a segment: each segment once
            name, chunk = batch.chunk_ids[0].split(":")
            values = (batch.offset + batch.scale * batch.values.float())[0, : batch.valid_frames[0]]
            frames[name, int(chunk)] = values[:512].numpy()
            frames[name, int(chunk) + 1] = values[512:].numpy()
        return np.concatenate(list(frames.values())).astype(np.float64).ravel()

    values = np.concatenate([pool_values(one) for one in members(places)])
    # the sums were taken before values were stored in eight bits
    assert both.moments.count == values.size
    assert both.moments.mean == pytest.approx(values.mean(), abs=5e-3)
    assert both.moments.std == pytest.approx(values.std(), abs=5e-3)
    loud, faint = members(places)
    assert (
        loud.moments.mean - faint.moments.mean > 2
    )  # log of a hundredth, less where noise is under the floor


def test_levels_are_gone_above_the_background(places, both):
    loud, faint = (with_background(one, "median").normalisation() for one in members(places))
    own = with_background(both, "median").normalisation()
    assert abs(loud.mean - faint.mean) < 0.3 and min(loud.mean, faint.mean) <= own.mean <= max(
        loud.mean, faint.mean
    )


def test_archives_of_other_precision_are_read_together(places, tmp_path):
    root = open_storage(places[0]).url.rsplit("/", 1)[0]
    exact = small_config(**{"spectrogram.storage": "float16"})
    inputs = PrepareInputs(f"{root}/archive", str(tmp_path / "exact"), f"{root}/labels.csv")
    assert prepare(inputs, exact, runner=HERE) == 0
    joined = join_archives([places[0], str(tmp_path / "exact")], open_storage(tmp_path / "both"), exact)
    assert joined.storage_type == "float16"
    reader = ChunkReader(joined, chunks_of_split(joined, "train"), batch_size=2)
    values = {
        name: value
        for batch in reader.sequential()
        for name, value in zip(
            batch.chunk_ids, batch.offset[:, None, None] + batch.scale[:, None, None] * batch.values.float(), strict=True
        )
    }  # fmt: skip
    names = [name[2:] for name in values if name.startswith("0.") and f"1.{name[2:]}" in values]
    assert names
    for name in names:  # eight bits over the range of a recording
        assert (values[f"0.{name}"] - values[f"1.{name}"]).abs().max() < 0.1


def test_a_folder_keeps_its_archives_and_names_each_once(places, tmp_path):
    config = small_config()
    assert one_archive(places[0], str(tmp_path), "train", config) == open_storage(places[0]).url
    url = one_archive(places, str(tmp_path), "train", config)
    assert url.endswith("/archives") and one_archive(list(places), str(tmp_path), "train", config) == url
    with pytest.raises(DataError, match="began with"):
        one_archive(places[::-1], str(tmp_path), "train", config)
    with pytest.raises(ConfigError, match="named twice"):
        one_archive([places[0], places[0]], str(tmp_path / "other"), "train", config)
    with pytest.raises(DataError, match="stands for several"):
        resplit(url, config)
    with pytest.raises(DataError, match="holds no prepared archive"):
        one_archive([places[0], str(tmp_path / "nothing")], str(tmp_path / "third"), "train", config)
    assert not (tmp_path / "third").exists()


def test_what_an_archive_holds_names_the_joined_one_too(places, both, tmp_path):
    other = join_archives(places[::-1], open_storage(tmp_path), small_config())
    assert data_hash(both) != data_hash(other) and data_hash(both) == data_hash(open_prepared(both.storage))


def test_recordings_that_are_in_both_archives_are_said(places, both, tmp_path, caplog):
    copy = tmp_path / "copy"
    shutil.copytree(places[0], copy)
    join_archives([places[0], str(copy)], open_storage(tmp_path / "joined"), small_config())
    num_labels = len(open_prepared(places[0]).labels)
    assert "4 recordings have the same audio as one of an archive before theirs" in caplog.text
    assert num_labels and f"their {num_labels:,} labels are taught and tested twice" in caplog.text
    assert shared_text(both) == ""
