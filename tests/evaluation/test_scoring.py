"""Tables of detections against tables of annotations: whose recordings, which chunks, what was left out."""

from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest
from tables_in_memory import prepared_in_memory

from mast_ray.config.errors import DataError
from mast_ray.config.loading import apply_overrides
from mast_ray.config.recipes import field
from mast_ray.evaluation.event_boxes import Blocks, boxes_of_events, is_within
from mast_ray.evaluation.events import (
    events_from_annotations,
    events_from_arrow,
    numbers_in,
    recordings_from_arrow,
    renumbered,
    with_facts_of,
)
from mast_ray.evaluation.ignored_regions import in_regions
from mast_ray.evaluation.metrics import summarise
from mast_ray.evaluation.score_sheet import score_rows
from mast_ray.evaluation.scoring import (
    ELSEWHERE,
    UNJUDGED,
    breakdown_by,
    figures_of,
    left_out,
    outcomes,
    score_chunks,
    score_tables,
    sums_of,
)
from mast_ray.evaluation.split_truth import truth_of_split
from mast_ray.evaluation.whole_recordings import score_stitched, score_whole, stitched_events
from mast_ray.inference.detection_rows import RowKnobs, stitched_boxes
from mast_ray.inference.window_detector import WindowBoxes
from mast_ray.recordings.annotations.model import Annotation, AnnotationSet
from mast_ray.self_training.operator import PoolDetections
from mast_ray.spectrogram.grid import boxes_from_seconds_hertz, hertz_to_bin
from mast_ray.tables.reading.chunk_sets import chunks_of_split
from mast_ray.tables.schemas import DETECTIONS, IGNORED, LABELS, RECORDINGS

MIDNIGHT_US = 1_700_006_400_000_000  # 2023-11-15 00:00 UTC
NAN = float("nan")


def recordings_table(num=3, **columns):
    rows = [
        {
            "recording_id": f"id{n}", "path": f"site{n % 2}/rec{n}.wav", "site": f"site{n % 2}", "duration_s": 60.0,
            "num_chunks": 11, "is_annotated": n != 2, "start_utc": MIDNIGHT_US + n * 3_600_000_000, "utc_offset_s": 3600,
        }
        | columns
        for n in range(num)
    ]  # fmt: skip
    return pa.Table.from_pylist(rows, schema=RECORDINGS)


def labels_table(rows):
    names = ("recording_id", "begin_s", "end_s", "low_hz", "high_hz", "label")
    return pa.Table.from_pylist(
        [dict(zip(names, row, strict=True)) | {"score": 1.0} for row in rows], schema=LABELS
    )


def detections_table(rows, chunk=None):
    names = ("recording_id", "begin_s", "end_s", "low_hz", "high_hz", "score")
    return pa.Table.from_pylist(
        [dict(zip(names, row, strict=True)) | {"chunk": chunk} for row in rows], schema=DETECTIONS
    )


def truth_of(labels, num=3, **columns):
    table = recordings_table(num, **columns)
    everything, annotated = recordings_from_arrow(table), recordings_from_arrow(table, only_annotated=True)
    return renumbered(events_from_arrow(labels_table(labels), everything), annotated)


def test_only_annotated_recordings_count_and_what_is_left_out_is_counted():
    truth = truth_of([("id0", 1.0, 2.0, 1000.0, 3000.0, "wren")])
    found = [
        ("id0", 1.0, 2.0, 1000.0, 3000.0, 0.9),
        ("id1", 5.0, 6.0, 1000.0, 2000.0, 0.8),
        ("id2", 5.0, 6.0, 1e3, 2e3, 0.7),
    ]
    scored = score_tables(events_from_arrow(detections_table(found)), truth)
    metrics, intervals = figures_of(scored, 0.0, num_resamples=50)
    assert scored.unit == "recording" and scored.num_recordings == 2
    assert left_out([scored], 0.5)[ELSEWHERE] == 1
    assert (metrics.num_truth, metrics.num_detections, metrics.num_true_positives) == (1, 2, 1)
    assert intervals["precision"].estimate == pytest.approx(0.5)
    assert sums_of(scored, 0.0).num_recordings == 2
    silent = score_tables(events_from_arrow(detections_table(found)), truth, unlisted="silent")
    assert (silent.num_recordings, len(silent.detections)) == (3, 3)


def test_left_out_are_detections_that_would_count_and_that_no_split_holds():
    """Two splits of one table: id0 and id1; what lies in id2 belongs to neither, one of its two is below the threshold."""
    found = events_from_arrow(
        detections_table(
            [(f"id{n}", 5.0, 6.0, 1e3, 2e3, s) for n, s in ((0, 0.9), (1, 0.9), (2, 0.8), (2, 0.1))]
        )
    )
    whole = recordings_from_arrow(recordings_table())
    labels = events_from_arrow(labels_table([("id0", 5.0, 6.0, 1e3, 2e3, "wren")]), whole)
    splits = [score_tables(found, renumbered(labels, whole.take(np.array([n])))) for n in (0, 1)]
    assert [len(one.left_out[ELSEWHERE].row) for one in splits] == [3, 3]
    assert left_out(splits, 0.5)[ELSEWHERE] == 1 and left_out(splits, 0.0)[ELSEWHERE] == 2
    assert left_out(splits[:1], 0.5)[ELSEWHERE] == 2


def test_a_site_has_all_its_recordings_also_those_without_a_call_or_a_detection():
    """Five recordings of one site, calls in two of them: the site's line is that of the whole."""
    truth = truth_of(
        [(f"id{n}", 1.0, 2.0, 1e3, 3e3, "wren") for n in (0, 1)], num=5, site="ridge", is_annotated=True
    )
    found = detections_table([("id0", 1.0, 2.0, 1e3, 3e3, 0.9)])
    scored = score_tables(events_from_arrow(found), truth)
    (cell,) = breakdown_by(scored, "site", 0.5, 100)
    metrics, intervals = figures_of(scored, 0.5, 100)
    assert cell.num_recordings == 5 and cell.metrics == metrics and repr(cell.intervals) == repr(intervals)


def test_events_above_8_khz_are_left_out_in_mel_space_and_scored_in_hertz():
    truth = truth_of([("id0", 1.0, 2.0, 9000.0, 12000.0, "bat")])
    found = events_from_arrow(detections_table([("id0", 1.0, 2.0, 9000.0, 12000.0, 0.9)]))
    mel = score_tables(found, truth)
    left = left_out([mel], 0.5)
    assert left["annotations outside 20-8000 Hz"] == 1 == left["detections outside 20-8000 Hz"]
    assert score_tables(found, truth, space="hertz").matches.iou.tolist() == [1.0]


def test_overlap_in_mel_space_differs_from_overlap_in_hertz():
    # 500-8000 Hz against 4000-8000 Hz: just over half in hertz, far less in mel bins.
    truth = truth_of([("id0", 1.0, 2.0, 500.0, 8000.0, "")])
    found = events_from_arrow(detections_table([("id0", 1.0, 2.0, 4000.0, 8000.0, 0.9)]))
    assert score_tables(found, truth, space="hertz").matches.iou[0] == pytest.approx(4000 / 7500)
    assert score_tables(found, truth, space="mel").matches.iou[0] == 0.0


def found_in(rows):
    """Detections as (index of the chunk, begin_s and end_s within it, low_hz, high_hz, score)."""
    chunk, begin_s, end_s, low_hz, high_hz, score = map(np.array, zip(*rows, strict=True))
    boxes, _ = boxes_from_seconds_hertz(begin_s, end_s, low_hz, high_hz, rounding="none")
    return PoolDetections(chunk, boxes, score, num_chunks=int(chunk.max()) + 1)


def test_what_a_model_finds_in_chunks_is_scored_chunk_by_chunk_with_truths_cut_at_the_borders():
    """One call from 9 to 12 s lies in chunks 0 (9-10.24 s), 1 (whole) and 2 (10.24-12 s); chunks begin every 5.12 s."""
    archive = prepared_in_memory({"a": "test", "b": "test"}, [("a", 9.0, 12.0, 1000.0, 3000.0)])
    chunks = chunks_of_split(archive, "test")
    found = found_in(
        [(0, 9.0, 10.24, 1e3, 3e3, 0.9), (1, 3.88, 6.88, 1e3, 3e3, 0.8), (5, 1.0, 2.0, 1e3, 3e3, 0.7), (20, 1.0, 2.0, 1e3, 3e3, 0.6)]
    )  # fmt: skip
    scored = score_chunks(archive, chunks, found, field())
    assert scored.unit == "chunk" and scored.matches.num_truth == 3
    assert scored.matches.is_true_positive.tolist() == [True, True, False, False]
    assert scored.recording_of_group.tolist() == [0] * 11 + [1] * 11 and scored.num_recordings == 2
    np.testing.assert_allclose(
        scored.detections.begin_s, [9.0, 9.0, 26.6, 47.08]
    )  # chunk 20 is the tenth of b
    assert scored.detections.recording.tolist() == [0, 0, 0, 1] and scored.truth.chunk.tolist() == [0, 1, 2]
    assert scored.truth.begin_s.tolist() == [9.0] * 3 and scored.truth.recordings.site == ("A", "B")
    cells = {
        c.name: (c.metrics.num_truth, c.metrics.num_detections) for c in breakdown_by(scored, "site", 0.5, 10)
    }
    assert cells == {"A": (3, 3), "B": (0, 1)}


def test_labels_without_frequencies_are_matched_by_time_and_every_figure_in_time_says_so():
    archive = prepared_in_memory(
        {"a": "test"}, [("a", 1.0, 2.0, None, None), ("a", 3.0, 4.0, 1000.0, 2000.0)]
    )
    chunks = chunks_of_split(archive, "test")
    found = found_in([(0, 1.0, 2.0, 5e3, 6e3, 0.9), (0, 3.0, 4.0, 5e3, 6e3, 0.8)])
    metrics, _ = figures_of(score_chunks(archive, chunks, found, field()), 0.5, 10)
    # the second lies in the wrong band: a false alarm as a box, right in time
    assert (metrics.num_truth, metrics.num_true_positives, metrics.num_time_only_truth) == (2, 1, 1)
    assert (metrics.f1, metrics.time_f1) == (0.5, 1.0)


def ignored_table(rows):
    names = ("recording_id", "begin_s", "end_s", "low_hz", "high_hz")
    return pa.Table.from_pylist([dict(zip(names, row, strict=True)) for row in rows], schema=IGNORED)


def test_where_nobody_looked_or_was_sure_a_detection_is_neither_right_nor_wrong():
    """Nobody went through 5 to 9 s; an uncertain call lies from 1 to 3 kHz at 2 s. The call at 8 s was labelled all the same."""
    archive = prepared_in_memory({"a": "test"}, [("a", 8.0, 9.0, 1000.0, 3000.0)])
    archive = replace(
        archive, ignored=ignored_table([("a", 5.0, 9.0, None, None), ("a", 2.0, 3.0, 1e3, 3e3)])
    )
    rows = [
        (0, 6.0, 7.0, 1e3, 2e3, 0.9),  # where nobody looked: left out
        (0, 8.0, 9.0, 1e3, 3e3, 0.8),  # there too, but it hits the labelled call
        (0, 2.0, 3.0, 1e3, 3e3, 0.7),  # the uncertain call: left out
        (0, 2.0, 3.0, 4e3, 7e3, 0.6),  # in another band: a false alarm
        (0, 4.7, 5.2, 1e3, 2e3, 0.5),  # two fifths of it were not gone through: a false alarm
    ]
    chunks = chunks_of_split(archive, "test").take(np.array([0]))
    scored = score_chunks(archive, chunks, found_in(rows), field())
    assert scored.matches.score.tolist() == [0.8, 0.6, 0.5] == scored.detections.score.tolist()
    assert scored.matches.is_true_positive.tolist() == [True, False, False]
    assert left_out([scored], 0.0) == {UNJUDGED: 2} and summarise(scored.matches, 0.0).f1 == 0.5
    whole = score_chunks(archive, chunks, found_in(rows), field(), archive.labels)  # a truth that is whole
    assert len(whole.matches.score) == 5 and not whole.left_out
    seconds = [("a", *row[1:]) for row in rows]
    found = events_from_arrow(detections_table(seconds), recordings_from_arrow(archive.recordings))
    tables = score_whole(archive, found, "test", field())
    assert (
        tables.matches.score.tolist() == pytest.approx([0.8, 0.6, 0.5])
        and len(tables.left_out[UNJUDGED].row) == 2
    )


def test_a_recording_too_short_for_a_chunk_is_no_miss_of_a_model():
    """As with spectrogram.short_recordings=drop: b has no chunk, so that neither way of scoring speaks of it."""
    archive = prepared_in_memory(
        {"a": "test", "b": "test"}, [("a", 2.0, 3.0, 1e3, 3e3), ("b", 2.0, 3.0, 1e3, 3e3)]
    )
    counts = pa.array([11, 0], pa.int32())
    place = archive.recordings.column_names.index("num_chunks")
    archive = replace(archive, recordings=archive.recordings.set_column(place, "num_chunks", counts))
    assert set(chunks_of_split(archive, "test").recording.tolist()) == {0}
    found = events_from_arrow(
        detections_table([("a", 2.0, 3.0, 1e3, 3e3, 0.9)]), recordings_from_arrow(archive.recordings)
    )
    scored = score_whole(archive, found, "test", field())
    assert (scored.num_recordings, summarise(scored.matches, 0.0).recall) == (1, 1.0)
    # another tool's table may speak of it
    assert len(truth_of_split(archive, "test").events) == 2


def at_rate(archive, rate_hz):
    """The same archive, of recordings at another rate."""
    place = archive.recordings.column_names.index("sample_rate_hz")
    rates = pa.array([rate_hz] * len(archive.recordings), pa.int32())
    return replace(archive, recordings=archive.recordings.set_column(place, "sample_rate_hz", rates))


def test_what_is_scored_is_what_detect_writes_also_below_16_khz():
    """At 8 kHz a call up to 4 kHz is a hit, although the network draws its box up to 8 kHz, and a box above that is none: neither
    chunk by chunk nor on whole recordings, where detect joins what two chunks found of one call.
    """
    labels = [("a", 6.0, 7.0, 1e3, 4e3), ("a", 20.0, 21.0, 2e3, 4e3)]
    archive = prepared_in_memory({"a": "test"}, labels)
    chunks = chunks_of_split(archive, "test")
    found = found_in([
        (0, 6.0, 7.0, 1e3, 8e3, 0.9), (1, 0.88, 1.88, 1e3, 5e3, 0.8), (2, 1.0, 2.0, 4.2e3, 7e3, 0.7),
        (3, 4.64, 5.64, 2e3, 3.5e3, 0.6),
    ])  # fmt: skip
    fast, slow = (score_chunks(at_rate(archive, rate), chunks, found, field()) for rate in (16_000, 8_000))
    assert fast.matches.score.tolist() == [0.9, 0.8, 0.7, 0.6]
    assert slow.matches.score.tolist() == [0.9, 0.8, 0.6] == slow.detections.score.tolist()
    assert slow.matches.iou.tolist() == pytest.approx(
        [1.0, 1.0, boxes_share(3.5e3)], abs=0.02
    )  # truths on whole bins
    assert slow.detections.high_hz.tolist() == pytest.approx([4e3, 4e3, 3.5e3])
    whole = score_stitched(at_rate(archive, 8_000), slow, "test", field()).detections
    windows = [
        WindowBoxes(1, found.chunk[[n]], found.boxes[[n]].astype(np.float32), found.score[[n]].astype(np.float32), None)
        for n in range(4)
    ]  # fmt: skip
    written = stitched_boxes(windows, 5998, RowKnobs(), "A", 8_000)
    assert np.round(whole.score, 6).tolist() == np.round(written.score, 6).tolist() == [0.9, 0.6]
    np.testing.assert_allclose(boxes_of_events(whole)[0], written.boxes, atol=1e-4)


def boxes_share(high_hz):
    """Of the bins from 2 to 4 kHz those below a frequency."""
    low, high, top = (float(hertz_to_bin(hertz)) for hertz in (2e3, high_hz, 4e3))
    return (high - low) / (top - low)


@pytest.mark.parametrize("num_regions", [0, 1, 40, 200])
def test_regions_to_ignore_agree_with_a_raster(num_regions):
    rng = np.random.default_rng(0)

    def boxes(count):
        begin, low = rng.integers(0, 90, count), rng.integers(0, 60, count)
        ends = begin + rng.integers(1, 20, count), low + rng.integers(1, 30, count)
        return np.stack([begin, low, *ends], axis=1).astype(np.float64)

    found, regions = boxes(200), boxes(num_regions)
    regions[: num_regions // 4, 1::2] = np.nan
    group, region_group = rng.integers(0, 5, 200), rng.integers(0, 5, num_regions)
    unknown = np.zeros((5, 110, 90), bool)  # one cell per frame and bin
    for (begin, low, end, high), own in zip(regions, region_group, strict=True):
        band = slice(None) if np.isnan(low) else slice(int(low), int(high))
        unknown[own, int(begin) : int(end), band] = True
    expected = [
        bool(unknown[own, begin:end, low:high].mean() >= 0.5)
        for (begin, low, end, high), own in zip(found.astype(int).tolist(), group, strict=True)
    ]
    assert in_regions(group, found, region_group, regions).tolist() == expected
    assert num_regions < 40 or 10 < sum(expected) < 190


@pytest.mark.parametrize(
    ("regions", "is_inside"),
    [
        ([[0, 0, 35, 100]], False),  # 0.35 of a box of 100 x 100
        ([[0, 0, 35, 100], [1, 0, 35, 100]], False),  # two people: 0.69 in sum, 0.35 together
        ([[0, 0, 35, 100], [20, 0, 49, 100]], False),  # 0.49
        ([[0, 0, 35, 100], [20, 0, 50, 100]], True),  # 0.50
        ([[0, 0, 40, 100], [0, 0, 100, 16]], False),  # 0.4 + 0.6 x 0.16 = 0.496
        ([[0, 0, 40, 100], [0, 0, 100, 17]], True),  # 0.4 + 0.6 x 0.17 = 0.502
        ([[-50, NAN, 30, NAN], [10, NAN, 45, NAN], [80, 0, 140, 20]], False),  # 0.45 + 0.2 x 0.2 = 0.49
        ([[-50, NAN, 30, NAN], [10, NAN, 45, NAN], [80, 0, 140, 25]], True),  # 0.45 + 0.2 x 0.25 = 0.50
        ([[0, 0, 35, 100]] * 40, False),
    ],
)
def test_regions_that_overlap_count_once(regions, is_inside):
    same = np.zeros(len(regions), np.int64)
    box = np.array([[0.0, 0.0, 100.0, 100.0]])
    assert in_regions(same[:1], box, same, np.array(regions, np.float64)).tolist() == [is_inside]
    # far from the origin, in other units, beside a box of another group
    scale, shift = np.array([0.01, 3.0, 0.01, 3.0]), np.array([5000.0, 70.0, 5000.0, 70.0])
    boxes = np.concatenate([box, box]) * scale + shift
    moved = np.array(regions, np.float64) * scale + shift
    assert in_regions(np.array([7, 2]), boxes, same + 2, moved).tolist() == [False, is_inside]


def test_a_box_without_a_band_lies_in_regions_by_its_time():
    box = np.array([[0.0, NAN, 100.0, NAN]])
    two = np.zeros(2, np.int64)
    for end, is_inside in ((49.0, False), (50.0, True)):
        regions = np.array([[0.0, 10.0, 30.0, 20.0], [20.0, 0.0, end, 5.0]])
        assert in_regions(two[:1], box, two, regions).tolist() == [is_inside]


def test_detections_of_chunks_are_no_table_of_recordings():
    truth = truth_of([("id0", 9.0, 12.0, 1000.0, 3000.0, "wren")])
    with pytest.raises(DataError, match="prepared archive"):
        score_tables(events_from_arrow(detections_table([("id0", 9.0, 12.0, 1e3, 3e3, 0.9)], chunk=1)), truth)


def test_blocks_of_a_split_leave_the_rest_of_a_recording_out():
    truth = truth_of(
        [("id0", 5.0, 6.0, 1000.0, 3000.0, "early"), ("id0", 45.0, 46.0, 1000.0, 3000.0, "late")]
    )
    found = [("id0", 5.0, 6.0, 1000.0, 3000.0, 0.9), ("id0", 45.0, 46.0, 1000.0, 3000.0, 0.8)]
    blocks = Blocks(np.array([0]), np.array([30.0]), np.array([60.0]))
    scored = score_tables(events_from_arrow(detections_table(found)), truth, blocks=blocks)
    assert set(scored.truth.label) == {"late"}
    assert scored.matches.is_true_positive.tolist() == [True]
    # nor is what cannot be seen counted there
    bats = [("id0", begin, begin + 1.0, 9000.0, 12000.0) for begin in (5.0, 45.0, 50.0)]
    unseen = events_from_arrow(detections_table([(*bat, 0.9) for bat in bats]))
    left = left_out([score_tables(unseen, truth_of([(*bat, "bat") for bat in bats]), blocks=blocks)], 0.75)
    assert left["annotations outside 20-8000 Hz"] == 2 == left["detections outside 20-8000 Hz"]


@pytest.mark.parametrize(("min_remnant_s", "num_truth"), [(0.1, 2), (0.05, 3)])
def test_the_shortest_remnant_of_a_truth_cut_by_a_chunk_is_a_setting(min_remnant_s, num_truth):
    """Chunk 0 ends at 10.24 s and sees 50 ms of the call, chunk 1 all of it, chunk 2 the rest."""
    archive = prepared_in_memory({"a": "test"}, [("a", 10.19, 10.89, 1000.0, 3000.0)])
    config = apply_overrides(field(), {"spectrogram.min_remnant_s": min_remnant_s})
    found = found_in([(1, 5.07, 5.77, 1e3, 3e3, 0.9)])
    scored = score_chunks(archive, chunks_of_split(archive, "test"), found, config)
    assert scored.matches.num_truth == num_truth


def test_event_is_in_a_block_when_its_middle_is():
    truth = truth_of(
        [("id0", 9.0, 10.0, 1e3, 2e3, ""), ("id0", 9.0, 12.0, 1e3, 2e3, ""), ("id1", 1.0, 2.0, 1e3, 2e3, "")]
    )
    blocks = Blocks(np.array([0, 0]), np.array([20.0, 0.0]), np.array([30.0, 10.0]))
    assert is_within(truth, blocks).tolist() == [True, False, False]
    every = Blocks(np.array([1, 0, 0]), np.array([1.5, 10.0, 0.0]), np.array([30.0, 11.0, 9.5]))
    # middles 9.5 (the last of the first block), 10.5, and 1.5 of the other recording: a block holds both its ends
    assert is_within(truth, every).tolist() == [True, True, True]
    later = Blocks(np.array([0, 1]), np.array([0.0, 2.0]), np.array([9.0, 30.0]))
    assert is_within(truth, later).tolist() == [False, False, False]
    assert is_within(truth, Blocks(*np.zeros((3, 0)))).tolist() == [False] * 3


def test_breakdowns_by_site_hour_duration_bandwidth_and_label_hold_the_right_events():
    truth = truth_of([("id0", 1.0, 2.5, 1000.0, 1400.0, "wren"), ("id1", 1.0, 1.2, 1000.0, 3000.0, "frog")])
    found = events_from_arrow(
        detections_table([("id0", 1.0, 2.5, 1000.0, 1400.0, 0.9), ("id1", 9.0, 9.2, 2e3, 5e3, 0.6)])
    )
    scored = score_tables(found, truth)

    def counts(by):
        cells = breakdown_by(scored, by, 0.5, num_resamples=20)
        return {
            c.name: (c.metrics.num_truth, c.metrics.num_detections, c.metrics.num_true_positives)
            for c in cells
        }

    assert counts("site") == {"site0": (1, 1, 1), "site1": (1, 1, 0)}
    assert counts("hour") == {"01 h": (1, 1, 1), "02 h": (1, 1, 0)}  # local time is an hour ahead of UTC
    assert counts("duration") == {"0.1-0.3 s": (1, 1, 0), "1-3 s": (1, 1, 1)}
    assert counts("bandwidth") == {"0-500 Hz": (1, 1, 1), "2000-4000 Hz": (1, 1, 0)}
    assert counts("label") == {"frog": (1, 0, 0), "wren": (1, 1, 1)}


def test_detections_without_names_have_a_recall_of_every_label_and_no_precision_that_is_always_one():
    truth = truth_of([("id0", 1.0, 2.5, 1000.0, 1400.0, "wren"), ("id1", 1.0, 1.2, 1000.0, 3000.0, "wren")])
    found = events_from_arrow(
        detections_table([("id0", 1.0, 2.5, 1000.0, 1400.0, 0.9), ("id1", 9.0, 9.2, 2e3, 5e3, 0.6)])
    )
    scored = score_tables(found, truth)
    (row,) = [row for row in score_rows(scored, "test", 0.5, 20, 0, by=("label",)) if row.by == "label"]
    known = {name for name, one in row.figures.items() if one.estimate == one.estimate}
    assert known == {"recall", "time_recall", "mean_iou"} and row.figures["recall"].estimate == 0.5
    assert all(row.figures[name].method == "none" for name in set(row.figures) - known)
    (whole,) = [row for row in score_rows(scored, "test", 0.5, 20, 0) if row.is_whole]
    assert whole.figures["precision"].estimate == 0.5


def test_annotation_files_and_tables_meet_by_the_end_of_their_paths():
    found = AnnotationSet(
        (
            Annotation("rec0.wav", 1.0, 2.0, 1000.0, 3000.0, "x", 0.8),
            Annotation("rec1.wav", 3.0, 4.0, score=0.6),
        ),
        frozenset({"rec0.wav", "rec1.wav", "elsewhere.wav"}),
    )
    events = events_from_annotations(found)
    truth = truth_of([("id0", 1.0, 2.0, 1000.0, 3000.0, "wren"), ("id1", 3.0, 4.0, None, None, "frog")])
    assert numbers_in(truth.recordings, events.recordings).tolist() == [-1, 0, 1]
    scored = score_tables(events, truth)
    assert scored.matches.is_true_positive.all()
    assert scored.matches.truth_is_time_only.tolist() == [False, True]


def test_ids_on_one_side_and_paths_on_the_other_cannot_meet_and_say_so():
    by_id = events_from_arrow(detections_table([("id0", 1.0, 2.0, 1e3, 2e3, 0.9)]))
    by_path = events_from_annotations(AnnotationSet((Annotation("rec0.wav", 1.0, 2.0),)))
    with pytest.raises(DataError, match="--recordings"):
        score_tables(by_id, by_path)


def test_sites_and_hours_are_taken_from_the_detections_when_annotations_have_none():
    row = {"recording_id": "id0", "path": "a/rec0.wav", "site": "ridge", "begin_s": 600.0, "end_s": 601.0, "low_hz": 1e3,
           "high_hz": 2e3, "score": 0.9, "start_utc": MIDNIGHT_US + 600_000_000, "utc_offset_s": 7200}  # fmt: skip
    found = events_from_arrow(pa.Table.from_pylist([row], schema=DETECTIONS))
    truth = events_from_annotations(AnnotationSet((Annotation("a/rec0.wav", 600.0, 601.0, 1e3, 2e3),)))
    scored = score_tables(found, truth)
    assert [c.name for c in breakdown_by(scored, "site", 0.0, 10)] == ["ridge"]
    assert [c.name for c in breakdown_by(scored, "hour", 0.0, 10)] == ["02 h"]
    # the row says when the event began, ten minutes after the recording did
    assert found.recordings.start_local_s.tolist() == [MIDNIGHT_US / 1e6 + 7200]
    assert found.local_s.tolist() == [MIDNIGHT_US / 1e6 + 7200 + 600]


def test_outcomes_list_hits_false_alarms_and_misses_at_the_threshold():
    truth = truth_of([("id0", 1.0, 2.0, 1e3, 3e3, "wren"), ("id0", 11.0, 12.0, 1e3, 3e3, "frog")])
    found = [
        ("id0", 1.0, 2.0, 1e3, 3e3, 0.875),
        ("id1", 5.0, 6.0, 1e3, 2e3, 0.75),
        ("id0", 11.0, 12.0, 1e3, 3e3, 0.25),
    ]
    columns = outcomes(
        score_tables(events_from_arrow(detections_table(found)), truth), 0.75
    )  # what is at it counts
    assert columns["outcome"] == ["hit", "false_alarm", "miss"]
    assert columns["iou"].tolist() == [pytest.approx(1.0, abs=0.05), 0.0, 0.0]
    assert columns["score"][:2].tolist() == [0.875, 0.75] and np.isnan(columns["score"][2])
    assert columns["label"] == ["wren", "", "frog"]
    assert columns["recording"] == ["site0/rec0.wav", "site1/rec1.wav", "site0/rec0.wav"]


def test_chunks_of_every_recording_are_stitched_on_their_own():
    """A call of 8 to 12 s is cut at the end of chunk 0 (10.24 s) and whole in chunk 1 (from 5.12 s)."""
    rows = [("id1", 1.0, 2.0, 1e3, 3e3, 0.5), ("id0", 8.0, 10.24, 1e3, 3e3, 0.75), ("id0", 8.0, 12.0, 1e3, 3e3, 0.5),
            ("id1", 13.0, 14.0, 1e3, 3e3, 0.25)]  # fmt: skip
    events = events_from_arrow(detections_table(rows), recordings_from_arrow(recordings_table(2)))
    whole = stitched_events(replace(events, chunk=np.array([0, 0, 1, 1])), np.array([6000, 6000]))
    assert whole.recording.tolist() == [0, 1, 1] and not whole.is_per_chunk
    assert whole.begin_s == pytest.approx([8.0, 1.0, 13.0]) and whole.end_s == pytest.approx(
        [12.0, 2.0, 14.0]
    )
    none = events.take(np.zeros(4, bool))
    assert len(stitched_events(none, np.array([6000, 6000]))) == 0


def test_truths_lie_on_the_grid_and_detections_keep_their_fractions():
    events = events_from_arrow(labels_table([("id0", 1.004, 2.006, 1000.0, 3000.0, "")]))
    rounded, _ = boxes_of_events(events, "mel", "grid")
    kept, _ = boxes_of_events(events, "mel", "none")
    assert rounded[0, 0::2].tolist() == [100.0, 200.0]
    np.testing.assert_allclose(kept[0, 0::2], [100.4, 200.6])
    assert rounded[0, 1] == np.rint(kept[0, 1]) and rounded[0, 3] == np.rint(kept[0, 3])


def test_events_of_recordings_that_were_not_asked_for_are_left_out():
    rows = [(name, 1.0, 2.0, 1e3, 2e3, 0.9) for name in ("id2", "elsewhere", "id1", "id0")]
    two = recordings_from_arrow(recordings_table(2))
    assert events_from_arrow(detections_table(rows), two).recording.tolist() == [1, 0]
    assert renumbered(events_from_arrow(detections_table(rows)), two).recording.tolist() == [1, 0]


def test_half_a_band_is_none():
    found = events_from_arrow(detections_table([("id0", 1.0, 2.0, 1e3, None, 0.9)]))
    written = events_from_annotations(AnnotationSet((Annotation("a.wav", 1.0, 2.0, high_hz=1e3, score=0.4),)))
    for events in (found, written):
        assert np.isnan([events.low_hz, events.high_hz]).all()
    assert written.score.tolist() == [0.4]


def test_lists_of_recordings_meet_by_path_where_some_have_no_id():
    mine, theirs = (recordings_from_arrow(recordings_table(2)) for _ in range(2))
    partly = replace(theirs, ids=("", "id0"))
    assert numbers_in(mine, partly).tolist() == numbers_in(partly, mine).tolist() == [0, 1]
    assert mine.joined(partly).ids == ("",) * 4 and mine.joined(theirs).ids == ("id0", "id1") * 2
    with pytest.raises(DataError, match="--recordings"):
        numbers_in(mine, replace(partly, paths=("", "rec1.wav")))


def test_facts_that_a_list_of_recordings_has_are_not_taken_from_another():
    known = recordings_from_arrow(recordings_table(2))
    nothing = np.array([NAN, 5.0])
    partly = replace(
        known, site=("", "mine"), start_local_s=nothing, num_chunks=np.array([-1, 0]), duration_s=nothing
    )
    filled = with_facts_of(partly, known)
    assert filled.site == ("site0", "mine") and filled.num_chunks.tolist() == [11, 0]
    assert filled.start_local_s.tolist() == [MIDNIGHT_US / 1e6 + 3600, 5.0]
    assert filled.duration_s.tolist() == [60.0, 5.0]


def test_rows_without_a_begin_or_an_end_are_refused():
    row = ("id0", 1.0, 2.0, 1e3, 2e3, 0.9)
    for lost in (("id0", None, *row[2:]), (*row[:2], None, *row[3:])):
        table = detections_table([row, lost, row])
        with pytest.raises(DataError, match="1 of 3 rows"):
            events_from_arrow(table)


def test_a_table_without_times_is_refused_with_the_columns_it_has():
    with pytest.raises(DataError, match="begin_s"):
        events_from_arrow(pa.table({"recording_id": ["a"], "onset": [1.0]}))


def test_a_box_that_reaches_into_the_unknown_on_several_sides_is_left_out():
    """Judged alone: 10 to 20 frames and 40 to 60 bins; all around it nobody looked."""
    nan = NAN
    regions = np.array([[0, nan, 10, nan], [20, nan, 99, nan], [10, 0, 20, 40], [10, 60, 20, 128]])
    found = np.array([[7, 35, 17, 55], [9, 39, 19, 59], [5, 30, 15, 50]], np.float64)
    # outside it: 0.475 of the first (0.3 before, 0.175 below), 0.145 of the second, 0.75 of the third (0.5 before, 0.25 below)
    same = np.zeros(4, np.int64)
    assert in_regions(same[:3], found, same, regions).tolist() == [False, False, True]
    assert in_regions(same[:1], np.array([[7.0, 30, 17, 50]]), same, regions).tolist() == [True]  # 0.3 + 0.35


def test_a_score_that_is_not_a_number_is_refused_and_none_at_all_is_one():
    row = ("id0", 1.0, 2.0, 1e3, 2e3)
    assert events_from_arrow(detections_table([(*row, None)])).score.tolist() == [1.0]
    with pytest.raises(DataError, match=r"1 of 2 rows .* not a number"):
        events_from_arrow(detections_table([(*row, 0.5), (*row, float("nan"))]))
