"""Boxes joined to chunks: expert labels reach every chunk they touch, detections of a chunk stay in it."""

from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest

from mast_ray.spectrogram.grid import seconds_hertz_from_boxes
from mast_ray.tables.reading.chunk_sets import box_table, chunks_of_blocks


def per_chunk_labels(prepared, chunk):
    """6.0 to 7.0 s of the first recording: frames 600 to 700, which chunks 0 and 1 both see."""
    return pa.table(
        {
            "recording_id": prepared.recording_ids[:1] * 2,
            "chunk": pa.array(chunk, pa.int32()),
            "begin_s": [6.0, 6.2], "end_s": [7.0, 6.8],
            "low_hz": [1000.0, 1000.0], "high_hz": [2000.0, 2000.0],
            "score": pa.array([0.5, 0.25], pa.float32()),
        }
    )  # fmt: skip


def boxes_by_chunk(prepared, labels):
    chunks = chunks_of_blocks(prepared, np.array([0]), np.zeros(1), np.full(1, 1e9))
    table = box_table(prepared, chunks, labels)
    spans = np.split(table.corners[:, 0::2], table.start[1:-1])
    return {int(k): rows.tolist() for k, rows in zip(chunks.chunk, spans, strict=True) if len(rows)}


def test_a_detection_of_one_chunk_does_not_spread_into_its_neighbour(prepared):
    found = boxes_by_chunk(prepared, per_chunk_labels(prepared, [0, 1]))
    assert found == {0: [[600.0, 700.0]], 1: [[108.0, 168.0]]}


def test_rows_without_a_chunk_join_every_chunk_they_touch(prepared):
    found = boxes_by_chunk(prepared, per_chunk_labels(prepared, [1, None]))
    assert found == {0: [[620.0, 680.0]], 1: [[88.0, 188.0], [108.0, 168.0]]}


def test_a_box_found_in_a_chunk_keeps_its_fractions_and_an_annotation_is_put_on_the_grid(prepared):
    box = np.array([[100.75, 20.25, 150.5, 40.75]])  # of chunk 1, which begins at frame 512
    begin_s, low_hz, end_s, high_hz = seconds_hertz_from_boxes(box + [512, 0, 512, 0]).T
    labels = pa.table(
        {"recording_id": prepared.recording_ids[:1], "chunk": pa.array([1], pa.int32()), "begin_s": begin_s,
         "end_s": end_s, "low_hz": low_hz, "high_hz": high_hz, "score": pa.array([0.5], pa.float32())}
    )  # fmt: skip
    chunks = chunks_of_blocks(prepared, np.array([0]), np.zeros(1), np.full(1, 1e9))
    np.testing.assert_allclose(box_table(prepared, chunks, labels).corners, box, atol=1e-4)
    annotation = box_table(prepared, chunks, labels.drop_columns("chunk"))
    of_chunk_1 = annotation.corners[annotation.start[1] : annotation.start[2]]
    np.testing.assert_array_equal(of_chunk_1, [[100, 20, 150, 41]])


def test_a_found_box_that_begins_at_its_chunk_and_is_as_short_as_may_be_is_not_taken_for_a_remnant(prepared):
    # 100 ms at both ends of chunk 1
    boxes = np.array([[512.0, 20.0, 522.0, 40.0], [1526.0, 20.0, 1536.0, 40.0]])
    begin_s, low_hz, end_s, high_hz = seconds_hertz_from_boxes(boxes).T
    labels = pa.table(
        {"recording_id": prepared.recording_ids[:1] * 2, "chunk": pa.array([1, 1], pa.int32()), "begin_s": begin_s,
         "end_s": end_s, "low_hz": low_hz, "high_hz": high_hz, "score": pa.array([0.5, 0.5], pa.float32())}
    )  # fmt: skip
    assert boxes_by_chunk(prepared, labels) == {1: [[0.0, 10.0], [1014.0, 1024.0]]}


@pytest.mark.parametrize(("min_remnant_s", "chunks"), [(0.1, [1]), (0.05, [0, 1])])
def test_the_shortest_remnant_of_a_cut_annotation_is_a_setting(prepared, min_remnant_s, chunks):
    """10.19 to 10.89 s: chunk 0 ends at 10.24 s and sees 50 ms of it, chunk 1 all of it."""
    labels = pa.table(
        {"recording_id": prepared.recording_ids[:1], "begin_s": [10.19], "end_s": [10.89], "low_hz": [1000.0],
         "high_hz": [2000.0], "score": pa.array([1.0], pa.float32())}
    )  # fmt: skip
    everything = chunks_of_blocks(prepared, np.array([0]), np.zeros(1), np.full(1, 1e9)).take(np.arange(2))
    assert np.flatnonzero(box_table(prepared, everything, labels).counts()).tolist() == [1]
    found = box_table(prepared, everything, labels, min_remnant_s=min_remnant_s)
    assert np.flatnonzero(found.counts()).tolist() == chunks


def test_uncertain_regions_are_ignored_and_calls_without_a_band_teach_time_only_when_asked(prepared):
    """A box, a call in time only, and an uncertain box: all within the first chunk."""
    labels = pa.table(
        {"recording_id": prepared.recording_ids[:1] * 2, "begin_s": [1.0, 2.0], "end_s": [1.5, 2.5],
         "low_hz": [1000.0, None], "high_hz": [2000.0, None], "score": pa.array([1.0, 1.0], pa.float32())}
    )  # fmt: skip
    ignored = pa.table(
        {"recording_id": prepared.recording_ids[:1], "begin_s": [3.0], "end_s": [3.5], "low_hz": [1000.0],
         "high_hz": [2000.0], "label": ["?"], "why": ["uncertain"]}
    )  # fmt: skip
    chunks = chunks_of_blocks(prepared, np.array([0]), np.zeros(1), np.full(1, 1e9)).take(np.array([0]))
    table = box_table(prepared, chunks, labels, ignored=ignored)
    assert table.label_row.tolist() == [0, 1, -1]
    for time_only, is_object in (("ignore", [True, False, False]), ("teach", [True, True, False])):
        padded = replace(table, time_only=time_only).padded(np.array([0]))
        by_begin = np.argsort(padded.corners[0, :3, 0].numpy())
        assert padded.corners[0, by_begin, 0].tolist() == [100, 200, 300]
        assert padded.is_object[0, by_begin].tolist() == is_object
        assert padded.is_ignored[0, by_begin].tolist() == [False, True, True]
        assert padded.corners[0, by_begin[1], 1::2].tolist() == [0, 128]
