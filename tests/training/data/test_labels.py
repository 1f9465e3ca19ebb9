"""Whose boxes a detector learns from: experts, pseudo-labels, or both."""

import shutil
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest
from archive_of_noise import write_archive

from mast_ray.config.errors import DataError
from mast_ray.config.loading import apply_overrides
from mast_ray.config.recipes import tiny
from mast_ray.storage.storage import open_storage
from mast_ray.tables.prepared import read_table, write_table
from mast_ray.tables.reading.chunk_sets import ChunkSet, chunks_of_split
from mast_ray.tables.reading.reader import ChunkReader
from mast_ray.training.data.labels import (
    PSEUDO_LABELS,
    LabelSource,
    attach_boxes,
    labelled_chunks,
    pseudo_label_tables,
    quiet_chunks,
    refuse_untaught,
    with_content,
)


@pytest.fixture(scope="module")
def prepared(tmp_path_factory):
    return write_archive(tmp_path_factory.mktemp("archive") / "prepared")


@pytest.fixture
def folder(prepared, tmp_path):
    """Pseudo-labels on chunks 1 and 2 of r0 and chunk 0 of r1; the box lies where
    neighbouring chunks overlap.
    """
    chunks = ChunkSet(np.array([0, 0, 1], np.int32), np.array([1, 2, 0], np.int32), np.ones(3, np.float32))
    boxes = pa.table(
        {
            "recording_id": ["r0", "r1"],
            "chunk": pa.array([1, 0], pa.int32()),
            "begin_s": [5.12 + 6.0, 2.0],
            "end_s": [5.12 + 7.0, 3.0],
            "low_hz": [1000.0, 2000.0],
            "high_hz": [2000.0, 4000.0],
            "score": pa.array([0.6, 0.9], pa.float32()),
        }
    )
    tables = pseudo_label_tables(prepared, chunks, np.arange(3), np.array([0.6, 0.3, 0.9]), boxes)
    for name, table in tables.items():
        write_table(open_storage(tmp_path), name, table)
    return str(tmp_path)


def reader_of(prepared, source, **knobs):
    labelled = labelled_chunks(prepared, source, apply_overrides(tiny(), knobs))
    reader = ChunkReader(prepared, labelled.chunks, batch_size=2, lanes=2)
    attach_boxes(reader, prepared, labelled)
    ids = reader.chunks.ids(prepared)
    counts = dict(zip(ids, reader.boxes.counts().tolist(), strict=True))
    weights = dict(zip(ids, reader.chunks.weight.tolist(), strict=True))
    return reader, counts, weights


def test_experts_label_the_train_split(prepared):
    _, counts, weights = reader_of(prepared, LabelSource("expert"))
    assert len(counts) == 25 and sum(counts.values()) == 5
    assert counts["r0:0"] == 1 and set(weights.values()) == {1.0}


def test_pseudo_labels_stay_in_the_chunk_they_were_made_for(prepared, folder):
    reader, counts, weights = reader_of(prepared, LabelSource("pseudo", folder))
    # The box of r0:1 ends 1.88 s into chunk 2, which saw it and did not report it.
    assert counts == {"r0:1": 1, "r0:2": 0, "r1:0": 1}
    assert weights == pytest.approx({"r0:1": 0.6, "r0:2": 0.3, "r1:0": 0.9})
    place = reader.chunks.ids(prepared).index("r0:1")
    corners = reader.boxes.corners[reader.boxes.start[place]]
    assert corners[0] == 600 and corners[2] == 700


def test_where_experts_looked_their_boxes_win(prepared, folder):
    _, counts, weights = reader_of(prepared, LabelSource("both", folder), **{"split.budget_chunks": 20})
    experts = set(chunks_of_split(prepared, "train").ids(prepared))
    assert set(counts) <= experts and len(counts) >= 20
    assert {name for name, weight in weights.items() if weight != 1.0} <= {"r0:1", "r0:2", "r1:0"}


def test_a_label_budget_takes_that_many_chunks_and_the_same_ones_each_time(prepared):
    first = reader_of(prepared, LabelSource("expert"), **{"split.budget_chunks": 7})[1]
    again = reader_of(prepared, LabelSource("expert"), **{"split.budget_chunks": 7})[1]
    assert len(first) == 7 and first == again
    other = reader_of(prepared, LabelSource("expert"), **{"split.budget_chunks": 7, "seed": 1})[1]
    assert other != first


def test_a_folder_that_holds_no_pseudo_labels_is_refused(prepared, tmp_path):
    with pytest.raises(DataError, match="not a folder of pseudo-labels"):
        labelled_chunks(prepared, LabelSource("pseudo", str(tmp_path / "nothing")), tiny())


def test_pseudo_labels_are_named_by_what_they_are_not_by_where_they_lie(folder, tmp_path_factory):
    """So that a run does not go on with others that were made in the same place."""
    settings, copy = tiny().storage, tmp_path_factory.mktemp("elsewhere") / "copy"
    shutil.copytree(folder, copy)
    first, moved = (with_content(LabelSource("pseudo", str(place)), settings) for place in (folder, copy))
    assert first.describe() == moved.describe()
    write_table(open_storage(folder), PSEUDO_LABELS, read_table(open_storage(folder), PSEUDO_LABELS).slice(1))
    assert with_content(LabelSource("pseudo", folder), settings).describe() != first.describe()
    with pytest.raises(DataError, match=r"it has no pseudo_chunks\.parquet\ngive round1/pseudo"):
        with_content(LabelSource("pseudo", str(copy / "nothing")), settings)
    assert with_content(LabelSource("expert"), settings) == LabelSource("expert")


@pytest.mark.parametrize("left", ["nothing", "boxes to ignore"])
def test_pseudo_labels_without_an_object_name_the_threshold_that_took_them_all(prepared, folder, left):
    table = read_table(open_storage(folder), PSEUDO_LABELS)
    boxes = {name: table.column(name) for name in table.column_names} | {"is_ignored": [True] * len(table)}
    kept = table.slice(0, 0) if left == "nothing" else pa.table(boxes)
    write_table(open_storage(folder), PSEUDO_LABELS, kept)
    config = apply_overrides(tiny(), {"self_train.threshold": 0.5, "self_train.policy": "fixed"})
    with pytest.raises(DataError) as caught:
        labelled_chunks(prepared, LabelSource("pseudo", folder), config)
    assert "no pseudo-box" in str(caught.value) and "--set self_train.threshold=0.25" in str(caught.value)
    assert "mast prepare" not in str(caught.value)


def test_background_is_where_an_expert_heard_nothing_also_for_pseudo_labels_that_have_no_empty_chunk(
    prepared, folder
):
    """20 of the 25 training chunks have no box; pseudo-labels leave r0:2 empty,
    which may hold a call they missed.
    """

    def quiet(source, **knobs):
        config = apply_overrides(tiny(), knobs)
        labelled = labelled_chunks(prepared, source, config)
        reader = ChunkReader(prepared, labelled.chunks, batch_size=2, lanes=2)
        attach_boxes(reader, prepared, labelled)
        return quiet_chunks(reader, prepared, labelled, config).ids(prepared)

    by_experts = quiet(LabelSource("expert"))
    assert len(by_experts) == 20 and "r0:0" not in by_experts
    assert sorted(quiet(LabelSource("pseudo", folder))) == sorted(by_experts)
    assert len(quiet(LabelSource("pseudo", folder), **{"split.budget_chunks": 7})) <= 7


def without_bands(prepared, rows):
    """The same archive whose labels of some rows say only when."""
    labels = prepared.labels.to_pylist()
    for row in rows:
        labels[row] |= {"low_hz": None, "high_hz": None}
    return replace(prepared, labels=pa.Table.from_pylist(labels, schema=prepared.labels.schema))


def test_labels_that_teach_nothing_are_an_error_before_training_and_teach_time_when_asked(prepared):
    in_time = without_bands(prepared, range(6))
    labelled = labelled_chunks(in_time, LabelSource("expert"), tiny())
    reader = ChunkReader(in_time, labelled.chunks, batch_size=2, lanes=2)
    attach_boxes(reader, in_time, labelled)
    with pytest.raises(DataError, match=r"all 5 labels .* without frequencies") as caught:
        refuse_untaught(reader.boxes, 6, "archive")
    assert "labels.time_only=teach" in str(caught.value) and str(caught.value).count("\n") == 1
    attach_boxes(reader, in_time, labelled, time_only="teach")
    assert refuse_untaught(reader.boxes, 6, "archive") == ""
    assert reader.boxes.teaches.sum() == 5


def test_some_labels_without_frequencies_are_counted_before_training(prepared):
    mixed = without_bands(prepared, [0, 2])
    labelled = labelled_chunks(mixed, LabelSource("expert"), tiny())
    reader = ChunkReader(mixed, labelled.chunks, batch_size=2, lanes=2)
    attach_boxes(reader, mixed, labelled)
    assert refuse_untaught(reader.boxes, 6, "archive").startswith(
        "2 labels of the training chunks have no freq"
    )


def test_training_chunks_without_any_label_are_an_error(prepared):
    empty = replace(prepared, labels=prepared.labels.slice(5))  # of the validation recording only
    labelled = labelled_chunks(empty, LabelSource("expert"), tiny())
    reader = ChunkReader(empty, labelled.chunks, batch_size=2, lanes=2)
    attach_boxes(reader, empty, labelled)
    with pytest.raises(DataError, match="not one of its 1 labels lies in the training chunks"):
        refuse_untaught(reader.boxes, 1, "archive")
    # dealing the recordings again, as was advised, changes nothing about a budget of one chunk
    with pytest.raises(DataError, match=r"split.budget_chunks=1 draws: .*\n.*--set split.budget_chunks=4"):
        refuse_untaught(reader.boxes, 1, "archive", budget_chunks=1)
