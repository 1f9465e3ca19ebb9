"""What is written is read back: |dt| <= 1 ms, |df| <= 0.1 Hz, and other programs read it too."""

import csv
import json
import resource
import unicodedata
from typing import get_args

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mast_ray.config.errors import DataError
from mast_ray.recordings.annotations.model import Annotation, AnnotationSet, AudioFacts
from mast_ray.recordings.annotations.paths import RecordingIndex
from mast_ray.recordings.annotations.reading import parse_annotations, read_annotations
from mast_ray.recordings.annotations.writing import WriteFormat, annotations_as_text, write_annotations

PATHS = ["ridge/a_20230531_092000.wav", "ridge/b.flac", "river/a_20230531_092000.wav"]
FACTS = {path: AudioFacts(duration_s=90_000.0, sample_rate_hz=384_000) for path in PATHS}

times = st.floats(0, 86_400, allow_nan=False)
frequencies = st.floats(0, 192_000, allow_nan=False)
# as they are kept: letters and accents in one
labels = (
    st.text(st.characters(exclude_categories=("Cs", "Cc", "Zs", "Zl", "Zp")), max_size=12)
    .map(lambda s: unicodedata.normalize("NFC", s))
    .filter(lambda s: s == s.strip("\"' \ufeff"))
)


@st.composite
def annotations(draw):
    begin_s, end_s = sorted((draw(times), draw(times)))
    low_hz, high_hz = sorted((draw(frequencies), draw(frequencies))) if draw(st.booleans()) else (None, None)
    score = draw(st.none() | st.floats(0, 1))
    return Annotation(draw(st.sampled_from(PATHS)), begin_s, end_s, low_hz, high_hz, draw(labels), score)


def in_order(annotation):
    """By place and time as they are written, then by all that may tell two boxes of one moment apart."""
    times = (round(annotation.begin_s, 5), round(annotation.end_s, 5))
    band_and_score = (annotation.low_hz, annotation.high_hz, annotation.score)
    return (
        annotation.path,
        *times,
        annotation.label,
        *(-1.0 if v is None else round(v, 3) for v in band_and_score),
    )


@pytest.mark.parametrize("format", get_args(WriteFormat))
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(events=st.lists(annotations(), max_size=6))
def test_boxes_survive_a_round_trip(format, events):
    if format == "audacity":  # one file belongs to one recording
        events = [event for event in events if event.path == PATHS[0]]
    paths = PATHS[:1] if format == "audacity" else PATHS
    if format == "birdeep":
        events = [event for event in events if event.label.lower() != "no audio"]
    if format == "raven":  # a table over many files cannot name a recording without selections
        paths = sorted({event.path for event in events}) or PATHS[:1]
    text = annotations_as_text(AnnotationSet(tuple(events), frozenset(paths)), format, facts=FACTS)
    found = parse_annotations(text.encode(), "table.txt", format, index=RecordingIndex(paths))
    assert found.problems == found.unresolved == ()
    assert len(found.annotations) == len(events)
    for got, want in zip(sorted(found.annotations, key=in_order), sorted(events, key=in_order), strict=True):
        assert got.path == want.path
        assert got.begin_s == pytest.approx(want.begin_s, abs=1e-3)
        assert got.end_s == pytest.approx(want.end_s, abs=1e-3)
        assert got.is_time_only == want.is_time_only
        if not want.is_time_only:
            assert got.low_hz == pytest.approx(want.low_hz, abs=0.1)
            assert got.high_hz == pytest.approx(want.high_hz, abs=0.1)
        assert got.label == want.label
        if format in ("csv", "raven", "aoef", "coco"):
            assert got.score == (None if want.score is None else pytest.approx(want.score, abs=1e-5))
    assert found.annotated_paths == frozenset(paths)


EVENTS = AnnotationSet(
    (
        Annotation(PATHS[0], 1.0, 2.5, 1000.0, 4000.0, "Pitta", 0.75, {"note": "far", "observer": "B"}),
        Annotation(PATHS[0], 0.5, 0.75, None, None, "thunder"),
        Annotation(PATHS[2], 3.0, 3.1, 2000.0, 9000.0, "Pitta", 0.5),
    ),
    frozenset(PATHS),
)


def test_a_disk_that_fills_leaves_no_table_with_some_of_the_calls(tmp_path):
    many = [Annotation(PATHS[1], float(second), second + 0.5, 1000.0, 2000.0, "call") for second in range(20)]
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, before[1]))
    try:
        with pytest.raises(OSError):
            write_annotations(AnnotationSet(tuple(many), frozenset(PATHS[1:2])), tmp_path / "tables", "raven")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


def test_one_raven_table_per_recording_lies_where_the_recording_lies(tmp_path):
    written = write_annotations(EVENTS, tmp_path / "tables", "raven", facts=FACTS)
    assert sorted(path.relative_to(tmp_path).as_posix() for path in written) == [
        "tables/ridge/a_20230531_092000.Table.1.selections.txt",
        "tables/ridge/b.Table.1.selections.txt",
        "tables/river/a_20230531_092000.Table.1.selections.txt",
    ]
    header, first, second = written[0].read_text().splitlines()
    assert header.split("\t")[:7] == [
        "Selection",
        "View",
        "Channel",
        "Begin Time (s)",
        "End Time (s)",
        "Low Freq (Hz)",
        "High Freq (Hz)",
    ]
    assert first.split("\t")[:5] == ["1", "Waveform 1", "1", "0.500000", "0.750000"]  # no band
    assert second.split("\t")[1:7] == ["Spectrogram 1", "1", "1.000000", "2.500000", "1000.000", "4000.000"]
    back = read_annotations(tmp_path / "tables", recordings=PATHS)
    assert back.annotated_paths == frozenset(PATHS)  # the empty table counts
    assert {(a.path, a.label, a.score) for a in back.annotations} == {
        (a.path, a.label, a.score) for a in EVENTS.annotations
    }
    assert next(a.extra for a in back.annotations if a.label == "Pitta" and a.begin_s == 1.0) == {
        "note": "far",
        "observer": "B",
    }


def test_times_run_on_in_a_raven_table_over_many_files():
    facts = {path: AudioFacts(60.0, 48_000) for path in PATHS}
    lines = annotations_as_text(EVENTS, "raven", facts=facts).splitlines()
    columns = lines[0].split("\t")
    last = dict(zip(columns, lines[-1].split("\t"), strict=True))
    assert (last["Begin Time (s)"], last["File Offset (s)"], last["Begin Path"]) == (
        "123.000000",
        "3.000000",
        PATHS[2],
    )
    with pytest.raises(DataError, match="one table per recording"):
        annotations_as_text(EVENTS, "raven")


def test_no_frequency_above_nyquist_is_written():
    facts = {path: AudioFacts(60.0, 16_000) for path in PATHS}
    found = parse_annotations(annotations_as_text(EVENTS, "csv", facts=facts).encode(), "x.csv")
    assert max(a.high_hz for a in found.annotations if a.high_hz) == 8_000.0


def test_recordings_that_share_a_stem_get_tables_of_their_own(tmp_path):
    twins = AnnotationSet(
        (Annotation("x.wav", 0.0, 1.0), Annotation("x.flac", 2.0, 3.0)), frozenset({"x.wav", "x.flac"})
    )
    written = write_annotations(twins, tmp_path, "audacity")
    assert sorted(path.name for path in written) == ["x.flac.txt", "x.wav.txt"]
    assert {
        (a.path, a.begin_s) for a in read_annotations(tmp_path, recordings=["x.wav", "x.flac"]).annotations
    } == {
        ("x.wav", 0.0),
        ("x.flac", 2.0),
    }


FORMULAS = [
    "=cmd|' /C calc'!A0", "+1+1", "-2+3", "@SUM(A1)", "=HYPERLINK(\"http://x\",\"y\")", "=1+1;=2", "'=1", "''=1", "-", "=IMPORTXML(\"u\")",
]  # fmt: skip


@pytest.mark.parametrize("payload", FORMULAS)
@pytest.mark.parametrize("format", ["csv", "birdeep", "raven", "audacity"])
def test_a_formula_in_a_label_is_harmless_in_a_spreadsheet_and_comes_back(format, payload):
    events = AnnotationSet(
        (Annotation("=x.wav", 0.0, 1.0, 1.0, 2.0, payload, None, {"note": payload}),), frozenset({"=x.wav"})
    )
    text = annotations_as_text(events, format)
    if format in ("csv", "birdeep"):
        cells = [cell for row in csv.reader(text.splitlines()) for cell in row]
    else:
        cells = [cell for line in text.splitlines() for cell in line.split("\t")]
    assert not any(cell[:1] in ("=", "+", "-", "@") for cell in cells)
    found = parse_annotations(text.encode(), "x.txt", format, index=RecordingIndex(["=x.wav"]))
    assert found.annotations[0].label == payload
    assert found.annotations[0].path == "=x.wav"


def test_coco_loads_in_pycocotools(tmp_path, capsys):
    coco = pytest.importorskip("pycocotools.coco")
    path = tmp_path / "boxes.json"
    write_annotations(EVENTS, path, "coco", facts=FACTS)
    loaded = coco.COCO(str(path))
    capsys.readouterr()
    assert len(loaded.getImgIds()) == 3
    assert loaded.loadAnns(loaded.getAnnIds())[1]["bbox"] == [1.0, 1000.0, 1.5, 3000.0]


@pytest.mark.slow  # pulls in pandera
def test_crowsetta_reads_our_raven_tables(tmp_path):
    crowsetta = pytest.importorskip("crowsetta")
    [path, *_] = write_annotations(EVENTS, tmp_path / "tables", "raven", facts=FACTS)
    boxes = crowsetta.formats.bbox.Raven.from_file(path, annot_col="Label").to_bbox()
    assert [(box.onset, box.offset, box.label) for box in boxes][-1] == (1.0, 2.5, "Pitta")


@pytest.mark.slow  # pulls in pandera
def test_crowsetta_reads_our_audacity_labels(tmp_path):
    crowsetta = pytest.importorskip("crowsetta")
    path = tmp_path / "a.txt"
    only_boxes = AnnotationSet(EVENTS.annotations[:1], frozenset({PATHS[0]}))
    write_annotations(only_boxes, path, "audacity")
    boxes = crowsetta.formats.bbox.AudBBox.from_file(path).to_bbox()
    assert [(b.onset, b.offset, b.low_freq, b.high_freq, b.label) for b in boxes] == [
        (1.0, 2.5, 1000.0, 4000.0, "Pitta")
    ]


def test_the_same_annotations_give_the_same_file():
    assert annotations_as_text(EVENTS, "aoef", facts=FACTS) == annotations_as_text(
        EVENTS, "aoef", facts=FACTS
    )
    assert (
        json.loads(annotations_as_text(EVENTS, "aoef", facts=FACTS))["data"]["collection_type"]
        == "annotation_set"
    )


@pytest.mark.slow
def test_soundevent_reads_our_aoef_and_we_read_what_it_writes(tmp_path):
    io = pytest.importorskip("soundevent.io")
    path = tmp_path / "ours.json"
    write_annotations(EVENTS, path, "aoef", facts=FACTS)
    loaded = io.load(path)
    clips = {str(clip.clip.recording.path): clip for clip in loaded.clip_annotations}
    assert set(clips) == set(PATHS)
    boxes = [event.sound_event.geometry.coordinates for event in clips[PATHS[0]].sound_events]
    assert boxes == [[0.5, 0.75], [1.0, 1000.0, 2.5, 4000.0]]
    io.save(loaded, tmp_path / "theirs.json")
    back = read_annotations(tmp_path / "theirs.json", recordings=PATHS)
    assert {(a.path, a.begin_s, a.high_hz, a.label, a.score) for a in back.annotations} == {
        (a.path, a.begin_s, a.high_hz, a.label, a.score) for a in EVENTS.annotations
    }
    assert back.annotated_paths == frozenset(PATHS)


def test_a_prediction_with_several_names_is_called_by_the_likeliest():
    data = {
        "collection_type": "prediction_set",
        "recordings": [{"uuid": "r", "path": "a.wav", "duration": 9.0}],
        "tags": [{"id": n, "key": "species", "value": name} for n, name in enumerate(("bat", "wren", "owl"))],
        "clips": [{"uuid": "c", "recording": "r", "start_time": 0.0, "end_time": 9.0}],
        "clip_predictions": [{"clip": "c"}],
        "sound_events": [
            {
                "uuid": "e",
                "recording": "r",
                "geometry": {"type": "BoundingBox", "coordinates": [1, 500, 2, 900]},
            }
        ],
        "sound_event_predictions": [
            {"sound_event": "e", "score": 0.8, "tags": [[0, 0.1], [1, 0.7], [2, 0.2]]}
        ],
    }
    (found,) = parse_annotations(json.dumps({"data": data}).encode(), "x.json").annotations
    assert (found.label, found.score) == ("wren", 0.8)
