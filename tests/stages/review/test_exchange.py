"""Corrections leave as Raven tables and AOEF and come back the same."""

import json
from dataclasses import replace
from datetime import UTC, datetime

import pytest
import review_run
from review_run import PATHS, write_run

from mast_ray.config.errors import DataError
from mast_ray.config.tree import LabelsConfig
from mast_ray.recordings.annotations.reading import read_annotations
from mast_ray.stages.review.exchange import LISTENED, TABLES, export_corrections, import_corrections
from mast_ray.stages.review.found_boxes import detections_of, load_boxes
from mast_ray.stages.review.session import ReviewSession
from mast_ray.storage.storage import open_storage
from mast_ray.tables.labels.choice import role_of
from mast_ray.verbs.main import run_verb


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    return write_run(tmp_path_factory.mktemp("exchange"))


@pytest.fixture(scope="module")
def found(place):
    return load_boxes(detections_of(str(place[0])), open_storage(place[1]), 0.5)


@pytest.fixture()
def reviewed(found, tmp_path):
    session = ReviewSession(found, tmp_path / "one", "Ana")
    session.act("accept", "random", [found.ids[0]])
    session.act("reject", "random", [found.ids[1]])
    session.act("name", "uncertain", [found.ids[9]], label="Hyla")
    session.act("change", "uncertain", [found.ids[20]], corners=(14.5, 2000.0, 16.0, 3000.0))
    session.act("draw", "recording", recording=2, corners=(27.0, 500.0, 29.0, 900.0), label="Bufo")
    session.act("looked", "recording", recording=2, corners=(20.0, 0.0, 30.0, 8000.0))
    return session


def told(session):
    """What a session comes to, without ids of drawn boxes and queues."""
    boxes = {
        (b.detection_id, b.path, round(b.begin_s, 2), round(b.end_s, 2), round(b.low_hz), round(b.high_hz), b.label, b.verdict)
        for b in session.boxes.values()
    }  # fmt: skip
    return boxes, [session.spans_of(number) for number in range(3)]


@pytest.mark.parametrize("format", ["raven", "aoef"])
def test_out_and_in_again_nothing_is_lost_and_twice_is_once(reviewed, found, tmp_path, format):
    out = export_corrections(reviewed.states(), found, tmp_path / "out", format)
    assert (out.num_calls, out.num_rejected, out.num_disputed) == (4, 1, 0)
    other = ReviewSession(found, tmp_path / "two", "Ana")
    read = import_corrections(tmp_path / "out", found, "Ana")
    assert read.problems == ()
    assert other.add(read.actions) == list(read.actions)
    assert told(other) == told(reviewed)
    assert other.add(import_corrections(tmp_path / "out", found, "Ana").actions) == []
    other.undo()
    assert not other.boxes  # an import is one press


@pytest.mark.parametrize("format", ["raven", "aoef"])
def test_readers_of_annotations_know_calls_from_rejected_boxes_and_what_was_looked_at(
    reviewed, found, tmp_path, format
):
    export_corrections(reviewed.states(), found, tmp_path / "out", format)
    read = read_annotations(tmp_path / "out" / TABLES, recordings=PATHS)
    assert sorted(a.said for a in read.annotations) == ["call"] * 4 + ["no_call"]
    assert {a.label for a in read.annotations} >= {"Hyla", "Bufo"}
    lines = (tmp_path / "out" / LISTENED).read_text().splitlines()
    assert lines[0] == "file,begin_s,end_s" and len(lines) == 2 and lines[1].endswith(",20,30")
    if format == "aoef":  # clips say it themselves
        last = found.recordings[2].path
        assert {(s.begin_s, s.end_s) for s in read.spans if s.path == last} >= {(20.0, 30.0)}
        assert {s.end_s for s in read.spans if s.path != last} == {0.0}


def test_soundevent_reads_what_is_written(reviewed, found, tmp_path):
    io = pytest.importorskip("soundevent.io")
    export_corrections(reviewed.states(), found, tmp_path / "out", "aoef")
    loaded = io.load(tmp_path / "out" / TABLES / "calls.aoef.json", type="annotation_set")
    assert sum(len(clip.sound_events) for clip in loaded.clip_annotations) == 4


def test_a_row_moved_in_raven_is_a_change_and_one_without_a_detection_is_drawn(reviewed, found, tmp_path):
    export_corrections(reviewed.states(), found, tmp_path / "out", "raven")
    tables = [p for p in (tmp_path / "out" / TABLES).rglob("*.txt") if "false_positives" not in str(p)]
    moved = 0
    for path in tables:
        text = path.read_text()
        if found.ids[0] in text:  # the accepted box, 1.0 to 1.8 s: moved to 1.1 s
            path.write_text(text.replace("\t1.000000\t", "\t1.100000\t"))
            moved += 1
    assert moved == 1
    actions = import_corrections(tmp_path / "out", found, "Bo").actions
    own = [a for a in actions if a.box_id == found.ids[0]]
    assert [(a.action, a.begin_s) for a in own] == [("change", 1.1)]
    assert [a.label for a in actions if a.action == "draw"] == ["Bufo"]


def test_a_foreign_table_says_calls_and_nothing_about_what_was_looked_at(found, tmp_path):
    table = tmp_path / "own.csv"
    table.write_text(
        f"file,begin_s,end_s,low_hz,high_hz,label\n{found.recordings[0].path},5,6,700,900,Bufo\nnowhere.wav,1,2,3,4,x\n"
    )
    read = import_corrections(table, found, "Ana")
    assert [(a.action, a.begin_s, a.label, a.queue) for a in read.actions] == [
        ("draw", 5.0, "Bufo", "import")
    ]
    assert any("nowhere" in problem for problem in read.problems)


def test_disputed_boxes_are_nobodys_word(found, tmp_path):
    ana, bo = (ReviewSession(found, tmp_path / "c", name) for name in ("Ana", "Bo"))
    ana.act("accept", "random", [found.ids[0], found.ids[2]])
    bo.act("reject", "random", [found.ids[0]])
    out = export_corrections(ana.states(), found, tmp_path / "out", "raven")
    assert (out.num_calls, out.num_rejected, out.num_disputed) == (1, 0, 1)


def test_the_verb_exports_and_imports(place, found, tmp_path, capsys):
    run, audio = place
    ReviewSession(found, tmp_path / "c", "Ana").act("accept", "random", [found.ids[0]])
    common = [str(run), "--audio", str(audio), "--threshold", "0.5"]
    assert (
        run_verb(
            "review",
            [*common, "--corrections", str(tmp_path / "c"), "--export", str(tmp_path / "o"), "--as", "aoef"],
        )
        == 0
    )
    assert "1 calls, 0 rejected" in capsys.readouterr().out
    argv = [*common, "--corrections", str(tmp_path / "d"), "--import", str(tmp_path / "o")]
    assert run_verb("review", argv) == 2  # whose?
    assert run_verb("review", [*argv, "--reviewer", "Bo"]) == 0
    (line,) = (tmp_path / "d" / "Bo.jsonl").read_text().splitlines()
    assert json.loads(line)["detection_id"] == found.ids[0] and json.loads(line)["queue"] == "import"
    empty = [*common, "--corrections", str(tmp_path / "e"), "--export", str(tmp_path / "x")]
    assert run_verb("review", empty) == 3
    assert not (tmp_path / "x").exists()
    path = found.recordings[0].path
    (tmp_path / "silent").mkdir()
    (tmp_path / "silent/listened.csv").write_text(f"file,begin_s,end_s\n{path},0,10\n")
    silent = [*common, "--corrections", str(tmp_path / "s"), "--reviewer", "Bo"]
    assert run_verb("review", [*silent, "--import", str(tmp_path / "silent")]) == 0
    assert (
        run_verb("review", [*silent, "--export", str(tmp_path / "y")]) == 0
    )  # gone through, and nothing there
    assert path in (tmp_path / "y/listened.csv").read_text()


def test_nothing_to_import_is_said(found, tmp_path):
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError):
        import_corrections(tmp_path / "empty", found, "Ana")


def test_a_call_of_several_rounds_is_exported_once(found, tmp_path):
    first = ReviewSession(found, tmp_path / "c", "Ana")
    first.act("accept", "random", [found.ids[0]])
    end = datetime.now(UTC).isoformat()
    moved = replace(found, begin_s=found.begin_s + 0.1, end_s=found.end_s + 0.1)
    new = replace(moved, ids=tuple(f"new{name}" for name in found.ids))
    second = ReviewSession(new, tmp_path / "c", "Ana", rounds=(end,))
    second.act("accept", "random", [new.ids[0]])
    assert export_corrections(second.states(), new, tmp_path / "out", "raven", (end,)).num_calls == 1
    assert export_corrections(second.states(), new, tmp_path / "out2", "raven").num_calls == 2


def test_boxes_of_a_recording_in_a_folder_called_negative_come_back_as_they_were(tmp_path, monkeypatch):
    monkeypatch.setattr(review_run, "PATHS", ("negative/x.wav", "noise/y.wav", "ridge/z.wav"))
    run, audio = write_run(tmp_path)
    found = load_boxes(detections_of(str(run)), open_storage(audio), 0.5)
    session = ReviewSession(found, tmp_path / "one", "Ana")
    session.act("accept", "random", [found.ids[0], found.ids[9], found.ids[17]])
    session.act("reject", "random", [found.ids[1], found.ids[10]])
    export_corrections(session.states(), found, tmp_path / "out", "raven")
    other = ReviewSession(found, tmp_path / "two", "Ana")
    other.add(import_corrections(tmp_path / "out", found, "Ana").actions)
    assert told(other) == told(session)


def test_what_mast_export_wrote_can_be_corrected_and_imported(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(review_run, "LABELS", (None, None, "Rana"))
    run, audio = write_run(tmp_path)
    detections = detections_of(str(run))
    found = load_boxes(detections, open_storage(audio), 0.0)
    assert run_verb("export", [detections, "--to", "raven", "--out", str(tmp_path / "raven")]) == 0
    for path in (tmp_path / "raven").rglob("*.txt"):
        path.write_text(path.read_text().replace("\t1.000000\t", "\t1.100000\t"))  # the first box of each
    actions = import_corrections(tmp_path / "raven", found, "Ana").actions
    assert sorted(a.action for a in actions) == ["accept"] * 21 + ["change"] * 3
    assert {a.begin_s for a in actions if a.action == "change"} == {1.1}
    assert {a.label for a in actions} == {"", "Rana"}  # `call` is no name


def test_a_row_named_no_call_is_rejected_and_one_that_was_deleted_says_nothing_and_is_counted(
    place, found, tmp_path, capsys
):
    """`no call` was taken for the name of a call; a deleted row cannot be told from one that was never there."""
    run, audio = place
    tables = tmp_path / "tables"
    assert run_verb("export", [str(run), "--threshold", "0.5", "--to", "raven", "--out", str(tables)]) == 0
    (table,) = (path for path in tables.rglob("*.txt") if "\tRana\t" in path.read_text())
    head, _, two, three, *others = table.read_text().splitlines(keepends=True)
    two, three = two.replace("\tRana\t", "\tno call\t"), three.replace("\tRana\t", "\tRain\t")
    drawn = (
        others[-1].replace("\tRana\t", "\tnoise\t").replace("\t25.5", "\t20.5").replace("\t26.3", "\t21.3")
    )
    drawn = drawn.replace(found.ids[23], "")
    table.write_text("".join((head, two, three, *others, drawn)))  # the first is deleted
    argv = [str(run), "--audio", str(audio), "--threshold", "0.5", "--corrections", str(tmp_path / "c"), "--reviewer", "Bo"]  # fmt: skip
    capsys.readouterr()
    assert run_verb("review", [*argv, "--import", str(tables)]) == 0
    said = capsys.readouterr().out
    assert "note: 1 boxes from score 0.5 on have no row" in said and ": 14 new of 14 boxes" in said
    assert "20.50 s: neither a call nor a detection that was rejected" in said
    actions = [json.loads(line) for line in (tmp_path / "c/Bo.jsonl").read_text().splitlines()]
    verdicts = {a["detection_id"]: a["action"] for a in actions if a["path"] == PATHS[2]}
    assert verdicts == dict(zip(found.ids[20:24], ("reject", "reject", "accept", "accept"), strict=True))


def test_a_name_that_the_model_gives_itself_is_that_of_a_call(tmp_path, monkeypatch):
    """Who trains on rain (labels.no_animal=keep) has calls of that name."""
    monkeypatch.setattr(review_run, "LABELS", ("rain", "rain", "Rana"))
    run, audio = write_run(tmp_path)
    detections = detections_of(str(run))
    found = load_boxes(detections, open_storage(audio), 0.0)
    assert run_verb("export", [detections, "--to", "raven", "--out", str(tmp_path / "raven")]) == 0
    read = import_corrections(tmp_path / "raven", found, "Ana")
    assert {a.action for a in read.actions} == {"accept"} and read.num_without_row == 0


def test_a_row_that_was_named_anew_is_told_as_one_box(place, found, tmp_path, capsys):
    """It is accepted and named: two actions, and 32 rows were told as 64 corrections."""
    run, audio = place
    tables, path = tmp_path / "tables", PATHS[2]
    assert run_verb("export", [str(run), "--threshold", "0.5", "--to", "raven", "--out", str(tables)]) == 0
    for table in tables.rglob("*.txt"):
        table.write_text(table.read_text().replace("\tRana\t", "\tBufo\t"))  # the five boxes of one recording
    (tmp_path / "drawn").mkdir()
    (tmp_path / "drawn/tables").symlink_to(tables)
    (tmp_path / "drawn/listened.csv").write_text(f"file,begin_s,end_s\n{path},0,10\n{path},20,30\n")
    argv = [str(run), "--audio", str(audio), "--threshold", "0.5", "--corrections", str(tmp_path / "c"), "--reviewer", "Bo"]  # fmt: skip
    capsys.readouterr()
    assert run_verb("review", [*argv, "--import", str(tables)]) == 0
    assert ": 15 new of 15 boxes are Bo's now" in capsys.readouterr().out
    assert run_verb("review", [*argv, "--import", str(tmp_path / "drawn")]) == 0
    assert ": 0 new of 15 boxes and 2 new of 2 stretches are Bo's now" in capsys.readouterr().out
    assert len((tmp_path / "c/Bo.jsonl").read_text().splitlines()) == 15 + 5 + 2


@pytest.mark.parametrize("format", ["raven", "aoef"])
def test_a_box_without_a_name_comes_back_without_one(tmp_path, monkeypatch, format):
    monkeypatch.setattr(review_run, "LABELS", (None, None, None))
    run, audio = write_run(tmp_path)
    found = load_boxes(detections_of(str(run)), open_storage(audio), 0.5)
    session = ReviewSession(found, tmp_path / "one", "Ana")
    session.act("accept", "random", [found.ids[0]])
    session.act("change", "uncertain", [found.ids[20]], corners=(14.5, 2000.0, 16.0, 3000.0))
    session.act("draw", "recording", recording=2, corners=(27.0, 500.0, 29.0, 900.0))
    export_corrections(session.states(), found, tmp_path / "out", format)
    assert {a.label for a in read_annotations(tmp_path / "out" / TABLES).annotations} == {""}
    other = ReviewSession(found, tmp_path / "two", "Ana")
    other.add(import_corrections(tmp_path / "out", found, "Ana").actions)
    assert told(other) == told(session)


def test_tables_of_an_earlier_export_that_hold_no_longer_are_not_left_beside_the_new_ones(found, tmp_path):
    session = ReviewSession(found, tmp_path / "c", "Ana")
    session.act("accept", "random", [found.ids[0], found.ids[20]])
    out = tmp_path / "out"
    first = export_corrections(session.states(), found, out, "raven")
    assert export_corrections(session.states(), found, out, "raven") == first  # again: the same
    session.act("reject", "random", [found.ids[20]])  # now its recording holds no call
    before = {path: path.read_bytes() for path in out.rglob("*.*")}
    with pytest.raises(DataError, match="1 tables that do not belong"):
        export_corrections(session.states(), found, out, "raven")
    with pytest.raises(DataError, match="2 tables"):
        export_corrections(session.states(), found, out, "aoef")  # both would be read
    assert before == {path: path.read_bytes() for path in out.rglob("*.*")}  # nothing is half written


def test_a_box_moved_in_frequency_alone_is_moved_when_it_was_moved_before(found, tmp_path):
    session = ReviewSession(found, tmp_path / "c", "Ana")
    session.act("change", "uncertain", [found.ids[20]], corners=(14.5, 2000.0, 16.0, 3000.0))
    export_corrections(session.states(), found, tmp_path / "out", "raven")
    (table,) = (tmp_path / "out" / TABLES).rglob("*.txt")
    table.write_text(table.read_text().replace("\t3000.000\t", "\t5000.000\t"))
    assert len(session.add(import_corrections(tmp_path / "out", found, "Ana").actions)) == 1
    assert [box.high_hz for box in session.boxes.values()] == [5000.0]


@pytest.mark.parametrize("format", ["raven", "aoef"])
def test_boxes_above_what_the_page_shows_are_exported_as_they_were_imported(found, tmp_path, format):
    table = tmp_path / "table.csv"
    rows = (f"{PATHS[0]},1,2,4000,9500,wren", f"{PATHS[0]},3,4,9000,12000,bat")
    table.write_text("\n".join(("file,begin_s,end_s,low_hz,high_hz,label", *rows)))
    session = ReviewSession(found, tmp_path / "c", "Ana")
    session.add(import_corrections(table, found, "Ana").actions)
    export_corrections(session.states(), found, tmp_path / "out", format)
    read = read_annotations(tmp_path / "out" / TABLES).annotations
    assert {(a.label, a.low_hz, a.high_hz) for a in read} == {("wren", 4000, 9500), ("bat", 9000, 12000)}


def test_a_row_that_stands_twice_in_a_table_is_one_call(found, tmp_path):
    table = tmp_path / "table.csv"
    rows = (f"{PATHS[0]},1,2,4000,6000,wren", f"{PATHS[0]},1.0001,2,4000,6000,wren")
    table.write_text("\n".join(("file,begin_s,end_s,low_hz,high_hz,label", *rows)))
    read = import_corrections(table, found, "Ana")
    assert len(read.actions) == 1 and "stand twice" in read.problems[0]


def test_an_accepted_call_that_the_model_could_not_name_stays_a_call(tmp_path, monkeypatch):
    """`unknown` in a table would be neither call nor background for `mast prepare`."""
    monkeypatch.setattr(review_run, "LABELS", ("unknown", "unknown", "unknown"))
    run, audio = write_run(tmp_path)
    found = load_boxes(detections_of(str(run)), open_storage(audio), 0.5)
    assert (
        run_verb("export", [detections_of(str(run)), "--to", "raven", "--out", str(tmp_path / "raven")]) == 0
    )
    session = ReviewSession(found, tmp_path / "c", "Ana")
    session.add(import_corrections(tmp_path / "raven", found, "Ana").actions)
    export_corrections(session.states(), found, tmp_path / "out", "raven")
    read = read_annotations(tmp_path / "out" / TABLES)
    assert {role_of(a.label, LabelsConfig()) for a in read.annotations} == {"call"}


def test_boxes_that_cannot_be_are_left_out_by_their_reason_and_the_others_are_taken(found, tmp_path):
    table = tmp_path / "table.csv"
    rows = (
        "1,2,3000,3000",
        "4,4,500,900",
        "1000,1001,500,900",
        "6,7,-20,900",
        "8,9,-20,-10",
        "10,11,500,900",
    )
    lines = [f"{PATHS[0]},{row},wren" for row in rows]
    table.write_text("\n".join(("file,begin_s,end_s,low_hz,high_hz,label", *lines)))
    session, read = ReviewSession(found, tmp_path / "c", "Ana"), import_corrections(table, found, "Ana")
    assert len(session.add(read.actions)) == 2
    assert {(b.begin_s, b.low_hz, b.high_hz) for b in session.boxes.values()} == {(6, 0, 900), (10, 500, 900)}
    assert [problem.split(" (e.g.")[0] for problem in read.problems[:2]] == [
        "1 boxes have no length and are left out",
        "2 boxes have no height and are left out",
    ]
    assert "1000.00 s: begins after the end of its recording" in read.problems[2]


def test_lines_of_any_reviewer_that_cannot_be_read_are_told_when_all_are_exported(
    place, found, tmp_path, caplog
):
    """Those of the others were left out in silence, and brackets in brackets ended it."""
    logs = tmp_path / "corrections"
    ReviewSession(found, logs, "Ana").act("accept", "random", [found.ids[0]])
    (logs / "Bo.jsonl").write_text("[" * 100_000 + '\n{"version":1,"id":"cut sho')
    typed = [
        str(place[0]),
        "--audio",
        str(place[1]),
        "--corrections",
        str(logs),
        "--export",
        str(tmp_path / "tables"),
    ]
    assert run_verb("review", typed) == 0
    assert [line for line in (1, 2) if f"Bo.jsonl, line {line} was left out" in caplog.text] == [1, 2]
