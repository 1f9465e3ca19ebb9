"""What was gone through: outside it is neither truth nor background."""

import json
import math

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from noise_files import write_noise

from mast_ray.config.loading import apply_overrides
from mast_ray.config.recipes import field
from mast_ray.recordings.annotations.model import Annotation, AnnotationSet, Span, merge_annotations
from mast_ray.recordings.annotations.reading import parse_annotations, parse_listened
from mast_ray.stages.prepare import PrepareInputs, prepare
from mast_ray.stages.runner import HERE
from mast_ray.tables.labels.spans import complement, outside_spans, unheard_parts, with_listened
from mast_ray.tables.prepared import open_prepared
from mast_ray.tables.reading.chunk_sets import box_table, chunks_of_blocks, heard_chunks


def knobs(**settings):
    return apply_overrides(field(), {f"labels.{name}": value for name, value in settings.items()}).labels


@pytest.mark.parametrize(
    ("intervals", "want"),
    [
        ([], [(0, 10)]),
        ([(0, 10)], []),
        ([(2, 4), (3, 6)], [(0, 2), (6, 10)]),
        ([(8, math.inf), (0, 3)], [(3, 8)]),
        ([(0.005, 9.995)], []),  # less than a frame at both ends
        ([(0, 0)], [(0, 10)]),
    ],
)
def test_the_complement_of_what_was_heard(intervals, want):
    assert complement(intervals, 10.0) == want


def test_a_call_is_outside_when_its_middle_is():
    spans = [Span("a.wav", 0, 5), Span("a.wav", 20, 25)]
    calls = [Annotation("a.wav", *times) for times in ((4, 5.9), (4, 6.2), (19, 23), (10, 11))]
    assert outside_spans([*calls, Annotation("b.wav", 10, 11)], spans) == [calls[1], calls[3]]


def test_whoever_listened_for_some_species_vouches_for_no_background_of_a_detector_of_more():
    found = AnnotationSet(annotated_paths=frozenset({"a.wav"}))
    duration = {"a.wav": 10.0}
    assert unheard_parts(found, duration, knobs()) == {}
    assert unheard_parts(found, duration, knobs(listened_for=("Turdus*",))) == {"a.wav": [(0, 10)]}
    asked = knobs(listened_for=("Turdus*",), include=("Turdus merula",))
    assert unheard_parts(found, duration, asked) == {}
    asked = knobs(listened_for=("Turdus*",), include=("Turdus merula", "Parus major"))
    assert unheard_parts(found, duration, asked) == {"a.wav": [(0, 10)]}


def test_a_table_of_what_was_listened_to_is_the_whole_truth_about_it():
    table = "file,begin_s,end_s,label\na.wav,0,30,\na.wav,60,90,\nb.wav,,,\nc.wav,0,9,wren\nc.wav,0,9,tit\n"
    listened = parse_listened(table.encode(), "heard.csv")
    assert listened.annotated_paths == {"a.wav", "b.wav", "c.wav"}
    assert set(listened.spans) == {
        Span("a.wav", 0, 30), Span("a.wav", 60, 90), Span("c.wav", 0, 9, ("wren", "tit")),
    }  # fmt: skip
    boxes = AnnotationSet((Annotation("d.wav", 1, 2),), frozenset({"d.wav"}))
    both = with_listened(boxes, listened)
    duration = {"a.wav": 90.0, "b.wav": 60.0, "c.wav": 9.0, "d.wav": 5.0}
    assert unheard_parts(both, duration, knobs(include=("wren",))) == {"a.wav": [(30, 60)], "d.wav": [(0, 5)]}
    assert outside_spans(boxes.annotations, both.spans) == list(boxes.annotations)


def test_columns_of_a_table_of_boxes_say_what_was_listened_to():
    table = "file,begin_s,end_s,clip_start_s,clip_end_s\na.wav,12,13,10,20\na.wav,,,40,50\n"
    found = parse_annotations(table.encode(), "boxes.csv")
    assert len(found.annotations) == 1
    assert found.spans == (Span("a.wav", 10, 20), Span("a.wav", 40, 50))


def aoef(clips, states=None):
    """A project over one recording of 30 s."""
    data = {
        "collection_type": "annotation_project",
        "recordings": [{"uuid": "r", "path": "a.wav", "duration": 30.0, "samplerate": 16000, "channels": 1}],
        "clips": [{"uuid": f"c{n}", "recording": "r", "start_time": b, "end_time": e} for n, (b, e) in enumerate(clips)],
        "clip_annotations": [{"uuid": f"x{n}", "clip": f"c{n}"} for n in range(len(clips))],
        "tasks": [{"clip": f"c{n}", "status_badges": [{"state": s}] if s else []} for n, s in enumerate(states or [])],
    }  # fmt: skip
    return parse_annotations(json.dumps({"version": "1.1.0", "data": data}).encode(), "project.json")


def test_clips_of_a_project_are_what_was_gone_through():
    assert aoef([(0, 10), (20, 30)]).spans == (Span("a.wav", 0, 10), Span("a.wav", 20, 30))
    assert aoef([(0, 10), (10, 20), (20, 31)]).spans == ()  # all of it
    done = aoef([(0, 10), (10, 20), (20, 30)], ["completed", "assigned", "verified"])
    assert done.spans == (Span("a.wav", 0, 10), Span("a.wav", 20, 30))
    assert aoef([(0, 10), (10, 30)], ["completed", "rejected"]).spans == (Span("a.wav", 0, 10),)
    assert aoef([(0, 10), (10, 30)], ["", ""]).spans == ()  # nobody uses the states


def test_what_one_table_went_through_wholly_was_gone_through():
    part = AnnotationSet(
        annotated_paths=frozenset({"a.wav", "b.wav"}), spans=(Span("a.wav", 0, 5), Span("b.wav", 0, 5))
    )
    whole = AnnotationSet(annotated_paths=frozenset({"a.wav"}))
    assert merge_annotations([part, whole]).spans == (Span("b.wav", 0, 5),)


@pytest.fixture
def prepared(tmp_path):
    """One recording of 40 s, of which 0 to 11 s were listened to, with a call inside and one outside."""
    write_noise(tmp_path / "audio/a.wav", 40, 1)
    (tmp_path / "boxes.csv").write_text(
        "file,begin_s,end_s,low_hz,high_hz\na.wav,2,3,1000,2000\na.wav,30,31,1000,2000\n"
    )
    (tmp_path / "heard.csv").write_text("file,begin_s,end_s\na.wav,0,11\n")
    inputs = PrepareInputs(
        str(tmp_path / "audio"),
        str(tmp_path / "out"),
        str(tmp_path / "boxes.csv"),
        listened=str(tmp_path / "heard.csv"),
    )
    assert prepare(inputs, field(), runner=HERE) == 0
    return open_prepared(tmp_path / "out")


def test_what_was_not_gone_through_is_an_ignored_region_and_its_boxes_are_left_out(prepared, capsys):
    assert [(row["begin_s"], row["end_s"]) for row in prepared.labels.to_pylist()] == [(2, 3)]
    rows = prepared.ignored.to_pylist()
    assert [(r["begin_s"], r["end_s"], r["low_hz"], r["why"]) for r in rows] == [
        (11, 40, None, "not_gone_through")
    ]
    assert pq.read_table(f"{prepared.storage.url}/ignored.parquet").equals(prepared.ignored)


def test_training_ignores_it_and_leaves_out_chunks_of_nothing_else(prepared):
    chunks = chunks_of_blocks(prepared, np.array([0]), np.zeros(1), np.full(1, 1e9))
    assert len(chunks) == 7
    heard = heard_chunks(prepared, chunks)
    # chunk 2 begins at 10.24 s and still holds 0.76 s that were listened to; chunk 3 begins at 15.36 s
    assert heard.chunk.tolist() == [0, 1, 2]
    table = box_table(prepared, heard, prepared.labels, ignored=prepared.ignored)
    regions = [table.corners[i].tolist() for i in np.flatnonzero(table.is_ignored)]
    assert regions == [[1100 - 512, 0, 1024, 128], [1100 - 1024, 0, 1024, 128]]


def test_without_anything_unheard_every_chunk_stays(prepared):
    from dataclasses import replace

    whole = replace(prepared, ignored=prepared.ignored.slice(0, 0))
    chunks = chunks_of_blocks(whole, np.array([0]), np.zeros(1), np.full(1, 1e9))
    assert len(heard_chunks(whole, chunks)) == len(chunks)
    assert isinstance(whole.ignored, pa.Table)
