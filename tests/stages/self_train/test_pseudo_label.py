"""Detections of a pool are those of the detector chunk by chunk, each chunk once,
whatever happened on the way.
"""

import json
import shutil
import threading
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from seed_detector import write_seed_detector
from small_archive import make_prepared, small_config

from mast_ray.config.errors import ConfigError, DataError, RunActiveError
from mast_ray.config.loading import apply_overrides
from mast_ray.self_training.pool import has_parts, keys_of, read_pool
from mast_ray.spectrogram.grid import end_of_sound
from mast_ray.stages.detect.chunks import chunk_units, chunks_of_items
from mast_ray.stages.runner import HERE, ON_RAY
from mast_ray.stages.search.tune import holds_detections, usable_pool
from mast_ray.stages.self_train.operator_task import Teacher
from mast_ray.stages.self_train.pseudo_label import run_pseudo_label
from mast_ray.stages.self_train.pseudo_stage import make_pseudo_labels
from mast_ray.storage.storage import open_storage
from mast_ray.tables.prepared import data_hash, open_prepared
from mast_ray.tables.reading.chunk_sets import chunks_of_split, runs_of_split
from mast_ray.tables.reading.reader import ChunkReader
from mast_ray.training.assembly import load_detector
from mast_ray.training.files.model_files import read_card

pytestmark = pytest.mark.slow  # trains or runs a network


@pytest.fixture(scope="module")
def archive(tmp_path_factory):
    return make_prepared(tmp_path_factory.mktemp("small"), num_recordings=5, seconds=11)


@pytest.fixture(scope="module")
def config():
    return small_config(**{"evaluate.max_detections": 20, "self_train.score_parts": False})


@pytest.fixture(scope="module")
def detector(archive, config, tmp_path_factory):
    return write_seed_detector(config, archive, tmp_path_factory.mktemp("detector"))


@pytest.fixture(scope="module")
def labelled(archive, config, detector, tmp_path_factory):
    out = tmp_path_factory.mktemp("labelled")
    run_pseudo_label(config, detector, str(archive), str(out), runner=HERE, chunks_per_unit=2)
    return out


def rows_of(folder: Path) -> pa.Table:
    table = pa.concat_tables(pq.read_table(path) for path in (folder / "detections").iterdir())
    return table.sort_by(
        [
            ("recording_id", "ascending"),
            ("chunk", "ascending"),
            ("score", "descending"),
            ("begin_s", "ascending"),
        ]
    )


def test_units_hold_every_chunk_of_the_pool_once_in_stretches(archive):
    prepared = open_prepared(str(archive))
    units = chunk_units(prepared, runs_of_split(prepared, "pool"), 2)
    assert all(unit.num_bytes <= 2 for unit in units)
    found = np.concatenate([keys_of(chunks_of_items(prepared, unit.items)) for unit in units])
    assert np.sort(found).tolist() == keys_of(chunks_of_split(prepared, "pool")).tolist()


def test_stored_detections_are_what_the_detector_says_of_each_chunk_alone(
    archive, config, detector, labelled
):
    prepared = open_prepared(str(archive))
    pool = chunks_of_split(prepared, "pool")
    model, card = load_detector(detector)
    stored = read_pool(open_storage(str(labelled)), prepared, pool)
    assert stored.num_chunks == len(pool) and len(np.unique(stored.chunk)) == len(pool)
    position = {key: row for row, key in enumerate(keys_of(pool).tolist())}
    duration = dict(zip(prepared.recording_ids, prepared.recordings["duration_s"].to_pylist(), strict=True))
    for raw in ChunkReader(prepared, pool.take(np.array([0, 3])), batch_size=1, num_threads=1).sequential():
        name, _, k = raw.chunk_ids[0].partition(":")
        row = prepared.recording_ids.index(name)
        with torch.no_grad():
            values = card.normaliser()(raw.values, raw.scale, raw.offset)
            alone = model.detect(values, 0.01, 0.7, 20, end_frames=end_of_sound(raw.valid_frames))
        own = stored.chunk == position[row << 32 | int(k)]
        expected = alone.corners[0][alone.is_valid[0]].double().numpy()
        expected[:, 2] = np.minimum(expected[:, 2], (duration[name] - int(k) * 5.12) * 100)
        expected = expected[expected[:, 0] < expected[:, 2]]
        assert np.allclose(stored.boxes[own], expected, atol=1e-2)
        assert (np.diff(stored.score[own]) <= 0).all()


@pytest.mark.parametrize("knob", ["self_train.threshold", "self_train.ignore_above"])
def test_a_threshold_below_the_floor_of_detections_still_gets_what_lies_above_it(
    archive, config, detector, labelled, tmp_path, knob
):
    high = apply_overrides(config, {"evaluate.score_floor": 0.99, knob: config.evaluate.score_floor})
    run_pseudo_label(high, detector, str(archive), str(tmp_path), runner=HERE, chunks_per_unit=2)
    assert len(rows_of(tmp_path))
    assert rows_of(tmp_path).equals(rows_of(labelled))


def test_only_a_part_of_the_pool_is_labelled_where_only_a_part_will_be_learned(
    archive, config, detector, labelled, tmp_path
):
    prepared = open_prepared(str(archive))
    few = apply_overrides(
        config, {"self_train.max_chunks": 1, "self_train.empty_chunks": "drop", "self_train.policy": "fixed"}
    )
    found = tmp_path / "found"
    manifest, _ = run_pseudo_label(few, detector, str(archive), str(found), runner=HERE)
    pool = len(chunks_of_split(prepared, "pool"))
    assert 3 <= manifest.counts["chunks"] < pool  # three for the one to learn, in whole stretches
    stored, every = (
        {(row["recording_id"], row["chunk"]): row["score"] for row in rows_of(folder).to_pylist()}
        for folder in (found, labelled)
    )
    assert len(stored) == manifest.counts["chunks"], "every chunk has some box above the floor"
    assert stored == {place: every[place] for place in stored}, "what is labelled is labelled as ever"
    # a search takes what self-training has stored, of a part as of all; not what another detector has
    inputs = {"model": read_card(detector).weights_sha256, "prepared": data_hash(prepared)}
    assert all(holds_detections(open_storage(str(folder)), inputs) for folder in (found, labelled))
    assert not holds_detections(open_storage(str(found)), inputs | {"model": "another"})
    assert not holds_detections(open_storage(str(tmp_path / "nothing")), inputs)
    teacher = Teacher(manifest.inputs["model"], threshold=0.01, kept_share=0.0, round=1)
    made = make_pseudo_labels(few, prepared, open_storage(str(found)), str(tmp_path / "pseudo"), teacher)
    names = prepared.recording_ids
    chunks = made.chunks
    assert {(names[r], k) for r, k in zip(chunks.recording, chunks.chunk, strict=True)} == set(stored)
    assert made.figures["train_chunks"] == 1
    # chunks that nobody labelled are no silence
    silent = apply_overrides(few, {"self_train.empty_chunks": "negative", "self_train.threshold": 1.0})
    made = make_pseudo_labels(silent, prepared, open_storage(str(found)), str(tmp_path / "silent"), teacher)
    kept = pq.read_table(tmp_path / "silent" / "pseudo_chunks.parquet")
    assert set(zip(kept["recording_id"].to_pylist(), kept["chunk"].to_pylist(), strict=True)) <= set(stored)
    assert len(kept) == 1 and made.figures["figures"]["boxes_per_chunk"] == 0


def test_classification_and_centerness_are_stored_where_a_search_may_ask_for_them(
    archive, config, detector, labelled, tmp_path
):
    prepared = open_prepared(str(archive))
    pool, held_out = chunks_of_split(prepared, "pool"), chunks_of_split(prepared, "val")
    assert read_pool(open_storage(str(labelled)), prepared, pool, with_parts=True).parts is None
    assert not has_parts(open_storage(str(labelled)))
    arguments = (detector, str(archive), str(tmp_path / "val"))
    run_pseudo_label(config, *arguments, splits=("val",), runner=HERE)
    stage = open_storage(str(tmp_path / "val"))
    stored = read_pool(stage, prepared, held_out, with_parts=True)
    assert np.allclose(np.sqrt(stored.parts.prod(axis=1)), stored.score, atol=1e-6) and len(stored.score) > 5
    by_class = read_pool(stage, prepared, held_out, score_weight=1.0)
    assert np.array_equal(by_class.score, stored.parts[:, 0])
    weighed = apply_overrides(config, {"self_train.score_weight": 0.8})
    run_pseudo_label(weighed, detector, str(archive), str(tmp_path / "pool"), runner=HERE)
    again = read_pool(open_storage(str(tmp_path / "pool")), prepared, pool, with_parts=True)
    assert has_parts(open_storage(str(tmp_path / "pool")))
    own, scores_only, whole = (open_storage(str(p)) for p in (tmp_path / "own", labelled, tmp_path / "pool"))
    inputs = {"model": read_card(detector).weights_sha256, "prepared": data_hash(prepared)}
    assert usable_pool(scores_only, own, True, inputs) is own  # of a search by `mast tune --self-trained`
    assert usable_pool(scores_only, own, False, inputs) is scores_only
    assert usable_pool(whole, own, True, inputs) is whole
    assert usable_pool(own, own, True, inputs) is own
    assert again.parts is not None and len(again.score) == len(
        read_pool(open_storage(str(labelled)), prepared, pool).score
    )


def test_a_lost_unit_is_done_again_and_nothing_else(archive, config, detector, labelled, tmp_path):
    shutil.copytree(labelled, tmp_path, dirs_exist_ok=True)
    arguments = (config, detector, str(archive), str(tmp_path))
    before = {path.name: path.stat().st_mtime_ns for path in (tmp_path / "detections").iterdir()}
    commit = sorted((tmp_path / "commit").iterdir())[0]
    lost = json.loads(commit.read_text())["files"][0]["key"].rsplit("/")[-1]
    commit.unlink()
    (tmp_path / "manifest.json").unlink()
    manifest, was_done = run_pseudo_label(*arguments, runner=HERE, chunks_per_unit=2)
    after = {path.name: path.stat().st_mtime_ns for path in (tmp_path / "detections").iterdir()}
    assert before.keys() == after.keys()  # names carry content hashes
    assert [name for name in after if after[name] != before[name]] == [lost]
    assert not was_done and manifest.counts["chunks"] == len(
        chunks_of_split(open_prepared(str(archive)), "pool")
    )
    assert rows_of(tmp_path).equals(rows_of(labelled))
    assert run_pseudo_label(*arguments, runner=HERE).was_done


def test_another_model_into_the_same_folder_is_refused(archive, config, labelled, tmp_path):
    other = write_seed_detector(config, archive, tmp_path / "other", seed=1)
    (labelled / "manifest.json").rename(labelled / "kept.json")
    try:
        with pytest.raises(ConfigError, match="was begun with model="):
            run_pseudo_label(config, other, str(archive), str(labelled), runner=HERE)
    finally:
        (labelled / "kept.json").rename(labelled / "manifest.json")


def test_a_split_that_is_not_there_is_named(archive, config, detector, tmp_path):
    with pytest.raises(DataError, match=r"has nothing in site_ood: it has .*pool"):
        run_pseudo_label(config, detector, str(archive), str(tmp_path), splits=("site_ood",), runner=HERE)


@pytest.mark.ray
@pytest.mark.slow
def test_two_actors_on_ray_store_the_same_as_this_process(archive, config, detector, labelled, tmp_path):
    from mast_ray.config.loading import apply_overrides

    spread = apply_overrides(config, {"cluster.num_workers": 2, "cluster.cpus_per_worker": 0.5})
    run_pseudo_label(spread, detector, str(archive), str(tmp_path), runner=ON_RAY, chunks_per_unit=2)
    assert rows_of(tmp_path).equals(rows_of(labelled))


def test_a_run_that_was_taken_over_leaves_the_pool_to_the_other(
    archive, config, detector, tmp_path, monkeypatch
):
    def taken_over(task, run, *_):
        run.stage.write_atomic("lease/000002.json", b"{}")
        threading.Event().wait(30)

    monkeypatch.setattr("mast_ray.stages.detect.chunks._work_off", taken_over)
    with pytest.raises(RunActiveError, match="taken over"):
        run_pseudo_label(config, detector, str(archive), str(tmp_path), runner=HERE)
