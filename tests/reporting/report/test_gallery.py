"""The gallery shows the hardest misses and the most confident false alarms first,
once each, and survives bad files.
"""

import numpy as np
import pyarrow as pa
import pytest

from mast_ray.reporting.exports.rows import detection_id
from mast_ray.reporting.report.gallery import (
    GallerySettings,
    absolute_time,
    build_gallery,
    stitched,
    window_of,
)
from mast_ray.storage.storage import open_storage
from mast_ray.tables.schemas import DETECTIONS, LABELS

BOX = {"begin_s": 5.0, "end_s": 6.0, "low_hz": 1000.0, "high_hz": 2000.0}


def detections_of(season, rows):
    one = season.recordings.slice(0, 1).to_pylist()[0]
    base = {"recording_id": one["recording_id"], "path": one["path"], "site": one["site"]}
    return pa.Table.from_pylist([base | BOX | row for row in rows], schema=DETECTIONS)


def labels_of(season, rows):
    name = season.recordings.column("recording_id")[0].as_py()
    return pa.Table.from_pylist(
        [{"recording_id": name, "score": 1.0, "label": "x"} | BOX | row for row in rows], schema=LABELS
    )


def built(season, detections, labels, **settings):
    return build_gallery(
        detections, labels, season.recordings, open_storage(season.audio), GallerySettings(**settings)
    )


def test_misses_and_false_alarms_take_turns_before_hits(season):
    found = detections_of(
        season,
        [
            {"score": 0.9},
            {"begin_s": 12.0, "end_s": 12.5, "score": 0.5},
            {"begin_s": 18.0, "end_s": 18.4, "score": 0.8},
        ],
    )
    truth = labels_of(season, [{}, {"begin_s": 1.0, "end_s": 1.5}])
    gallery = built(season, found, truth, window_s=3.0)
    assert [e.kind for e in gallery.examples] == ["miss", "false_alarm", "false_alarm", "hit"]
    assert [e.boxes[e.focus].score for e in gallery.examples] == [None, 0.8, 0.5, 0.9]
    assert gallery.examples[0].boxes[0].outcome == "miss"


def test_a_detection_under_the_threshold_leaves_its_call_missed(season):
    found, truth = detections_of(season, [{"score": 0.2}]), labels_of(season, [{}])
    gallery = built(season, found, truth, threshold=0.5)
    assert [e.kind for e in gallery.examples] == ["miss"]
    assert {b.kind for b in gallery.examples[0].boxes} == {"truth", "prediction"}


def test_misses_that_nothing_came_near_come_before_those_just_under_the_threshold(season):
    found = detections_of(season, [{"score": 0.4}])
    truth = labels_of(season, [{}, {"begin_s": 12.0, "end_s": 13.0}])
    examples = built(season, found, truth, threshold=0.5, window_s=3.0).examples
    assert [e.boxes[e.focus].begin_s for e in examples] == [12.0, 5.0]


def test_two_misses_in_one_window_are_one_example(season):
    truth = labels_of(season, [{}, {"begin_s": 6.2, "end_s": 6.9}])
    examples = built(season, detections_of(season, []), truth, window_s=6.0).examples
    assert len(examples) == 1 and len(examples[0].boxes) == 2


def test_where_nobody_annotated_there_are_no_false_alarms(season):
    found = detections_of(season, [{"score": 0.9}])
    quiet = season.recordings.set_column(15, "is_annotated", pa.array([False] * len(season.recordings)))
    gallery = build_gallery(found, None, quiet, open_storage(season.audio), GallerySettings())
    assert [e.kind for e in gallery.examples] == ["detection"]
    assert gallery.examples[0].boxes[0].outcome == "unknown"


def test_examples_are_of_what_the_threshold_lets_through_not_of_the_many_far_below(season):
    quiet = season.recordings.set_column(15, "is_annotated", pa.array([False] * len(season.recordings)))
    faint = [{"begin_s": t / 100, "end_s": t / 100 + 0.1, "score": 0.02} for t in range(1900)]
    heard = [{"begin_s": t, "end_s": t + 0.1, "score": s} for t, s in ((4.0, 0.9), (9.0, 0.6), (14.0, 0.3))]

    def scores(rows):
        settings = GallerySettings(num_examples=3, threshold=0.5, window_s=2.0)
        shown = build_gallery(
            detections_of(season, rows), None, quiet, open_storage(season.audio), settings
        ).examples
        return [e.boxes[e.focus].score for e in shown]

    assert scores(faint + heard) == [0.9, 0.6, 0.3]
    assert scores(faint) == [0.02, 0.02, 0.02]  # nothing else: that is what there is to hear


@pytest.mark.slow
def test_a_fifth_of_the_places_is_kept_for_hits(season):
    gallery = built(season, season.detections, season.labels, num_examples=20, threshold=0.2)
    kinds = [e.kind for e in gallery.examples]
    assert len(kinds) == 20 and kinds.count("hit") == 4 and kinds[-1] == "hit"


def test_a_missing_recording_is_passed_over_and_counted(season):
    missing = season.recordings.set_column(1, "path", pa.array(["gone.wav"] * len(season.recordings)))
    gallery = build_gallery(
        season.detections, season.labels, missing, open_storage(season.audio), GallerySettings(num_examples=5)
    )
    assert gallery.examples == () and "could not be read" in gallery.note


def test_recordings_that_a_link_leads_to_are_not_played_and_end_no_report(season, tmp_path, caplog):
    (tmp_path / "linked").symlink_to(season.audio.resolve())
    paths = [f"linked/{path}" for path in season.recordings.column("path").to_pylist()]
    linked = season.recordings.set_column(1, "path", pa.array(paths))
    settings = GallerySettings(num_examples=5)
    gallery = build_gallery(season.detections, season.labels, linked, open_storage(tmp_path), settings)
    assert gallery.examples == () and "could not be read" in gallery.note
    assert len(caplog.messages) == 1 and "where a link leads to" in caplog.text


def test_the_size_limit_ends_the_gallery(season):
    gallery = built(season, season.detections, season.labels, max_bytes=200_000)
    assert 2 <= len(gallery.examples) <= 6


@pytest.mark.parametrize(
    ("begin_s", "end_s", "window"),
    [
        (5.0, 6.0, (3.0, 8.0)),
        (0.2, 0.4, (0.0, 5.0)),
        (19.5, 20.0, (15.0, 20.0)),
        (3.0, 9.0, (2.0, 10.0)),
        (2.0, 19.0, (1.0, 16.0)),
    ],
)
def test_windows_hold_the_box_with_a_second_around_it(begin_s, end_s, window):
    assert window_of(begin_s, end_s, 20.0, 5.0) == window


def test_doubles_of_overlapping_chunks_are_shown_once(season):
    rows = [
        {"score": 0.9, "chunk": 0, "begin_s": 6.0, "end_s": 7.0},
        {"score": 0.8, "chunk": 1, "begin_s": 6.0, "end_s": 7.0},
    ]
    assert stitched(detections_of(season, rows)).column("chunk").to_pylist() == [0]


def test_times_are_given_in_local_time_and_utc(season):
    start = season.recordings.column("start_utc")[0].as_py()
    assert absolute_time(start, 25200, 3.0) == "2024-05-06 00:00:03 +07:00 (17:00:03 UTC)"
    assert absolute_time(start, None, 3.0) == "2024-05-05 17:00:03 UTC"
    assert absolute_time(None, None, 3.0) == ""


def test_time_only_labels_span_the_band_and_can_be_found(season):
    truth = labels_of(season, [{"low_hz": None, "high_hz": None}])
    gallery = built(season, detections_of(season, [{"score": 0.9}]), truth)
    assert [e.kind for e in gallery.examples] == ["hit"]
    box = next(b for b in gallery.examples[0].boxes if b.kind == "truth")
    assert (box.low_hz, box.high_hz) == (20.0, 8000.0)


def test_neighbours_are_the_most_similar_other_detections(season):
    vectors = [[1.0, 0.0], [0.6, 0.8], [0.0, 1.0]]
    found = detections_of(
        season,
        [
            {"score": 0.9},
            {"begin_s": 10.0, "end_s": 11.0, "score": 0.8},
            {"begin_s": 15.0, "end_s": 16.0, "score": 0.7},
        ],
    )
    found = found.append_column("embedding", pa.array(vectors, pa.list_(pa.float32(), 2)))
    gallery = build_gallery(found, None, season.recordings, open_storage(season.audio), GallerySettings())
    first = gallery.examples[0]
    assert [n.begin_s for n in first.neighbours] == [10.0, 15.0]
    assert np.allclose([n.similarity for n in first.neighbours], [0.6, 0.0], atol=1e-6)


def test_a_box_has_the_same_name_everywhere():
    name = detection_id("a/b.wav", 1.0, 2.0, 500.0, 900.0)
    assert len(name) == 16 and name == detection_id("a/b.wav", 1.0000001, 2.0, 500.0, 900.0)
    assert name != detection_id("a/b.wav", 1.002, 2.0, 500.0, 900.0)
