"""In which order a review offers boxes."""

import json

import numpy as np
import pyarrow.parquet as pq
import pytest
from review_run import PATHS, write_run

from mast_ray.config.errors import ConfigError, DataError
from mast_ray.evaluation.figure_tables import csv_bytes
from mast_ray.stages.review.asked import AskedQueues
from mast_ray.stages.review.found_boxes import audio_of, detections_of, load_boxes
from mast_ray.stages.review.queues import (
    Task,
    look_alikes,
    plan_tasks,
    random_order,
    site_hour_cells,
    uncertain_order,
)
from mast_ray.stages.review.session import ReviewSession
from mast_ray.storage.storage import open_storage


def test_the_most_uncertain_lies_nearest_to_the_threshold_in_odds():
    # odds 9, 1/9, 1, 3 against 3 (threshold 0.75): ratios 3, 27, 3, 1
    assert uncertain_order(np.array([0.9, 0.1, 0.5, 0.75]), 0.75).tolist() == [3, 0, 2, 1]


def test_the_random_order_is_that_of_the_names_and_knows_nothing_of_scores():
    ids = [f"box{n}" for n in range(200)]
    score = np.linspace(0, 1, 200)
    order = random_order(ids, score, 0.5).tolist()
    assert sorted(order) == list(range(100, 200))
    assert abs(np.corrcoef(order, np.arange(100))[0, 1]) < 0.3
    fewer = random_order(ids[:150], score[:150], 0.5).tolist()
    assert fewer == [row for row in order if row < 150]  # the same order, whatever else is there


def test_cells_hold_what_is_above_the_threshold_with_the_highest_score_first():
    cells = site_hour_cells(
        ["A", "B", "A", "A"], np.array([5, -1, 5, 6]), np.array([0.6, 0.9, 0.8, 0.1]), 0.5
    )
    assert [(c.site, c.hour, c.rows.tolist()) for c in cells] == [("A", 5, [2, 0]), ("B", -1, [1])]


def test_look_alikes_stand_together():
    rng = np.random.default_rng(0)
    kind = np.arange(60) % 3
    vectors = (np.eye(3)[kind] + rng.normal(0, 0.01, (60, 3))).astype(np.float32)
    groups = look_alikes(vectors, np.arange(60), np.full(60, 0.9), 0.5)
    assert sorted(sorted(set(kind[g.rows].tolist())) for g in groups) == [[0], [1], [2]]


def test_tasks_of_a_plan_are_cut_to_their_recordings_and_strangers_are_counted():
    text = "order,path,begin_s,end_s,reason\n1,a.wav,5.12,15.36,dawn\n2,../../etc/passwd,0,5,x\n3,a.wav,30,40,late\n4,a.wav,x,y,odd\n"
    tasks, left_out = plan_tasks(text, {"a.wav": 12.0})
    assert [(t.path, t.begin_s, t.end_s, t.reason) for t in tasks] == [("a.wav", 5.12, 12.0, "dawn")]
    assert left_out == 3


@pytest.mark.parametrize(
    "text",
    [
        "order;path;begin_s;end_s;reason\r\n1;a.wav;5,12;15,36;dawn\r\n",
        "order\tpath\tbegin_s\tend_s\treason\n1\ta.wav\t5.12\t15.36\tdawn\n",
    ],
)
def test_tasks_of_a_plan_that_a_spreadsheet_saved_are_the_same(text):
    assert plan_tasks(text, {"a.wav": 20.0}) == ([Task("a.wav", 5.12, 15.36, "dawn")], 0)


def test_a_recording_that_a_spreadsheet_would_take_for_a_formula_is_found_in_its_plan():
    written = csv_bytes(("path", "begin_s", "end_s", "reason"), [("=a.wav", 0.0, 10.0, "dawn")]).decode()
    assert plan_tasks(written, {"=a.wav": 10.0}) == ([Task("=a.wav", 0.0, 10.0, "dawn")], 0)


@pytest.fixture()
def asked(tmp_path):
    run, audio = write_run(tmp_path, embedded=True)
    found = load_boxes(detections_of(str(run)), open_storage(audio), 0.5)
    return AskedQueues(ReviewSession(found, tmp_path / "corrections", "Ana"))


def test_boxes_down_to_half_the_threshold_are_loaded_by_recording_and_time(asked):
    assert len(asked.found) == 24 and asked.found.threshold == 0.5
    assert [r.path for r in asked.found.recordings] == sorted(PATHS)
    assert (np.diff(asked.found.recording) >= 0).all()
    assert asked.available() == ["uncertain", "random", "site_hour", "recording", "cluster"]


def test_a_page_of_a_queue_and_the_next_open_one(asked):
    page = asked.items("random", 0, 2, 3)
    assert page["total"] == 3 * 5 and len(page["items"]) == 3  # 0.54, 0.62, ... 0.86 reach 0.5
    first = asked.items("random", 0, 0, 1)["items"][0]["id"]
    assert asked.next_open("random", 0, -1) == 0
    asked.session.act("accept", "uncertain", [first])
    assert asked.next_open("random", 0, -1) == 0  # judged elsewhere: still to be met at random
    asked.session.act("accept", "random", [first])
    assert asked.next_open("random", 0, -1) == 1
    assert asked.next_open("random", 0, 14) == 1  # round to the beginning


def test_a_cell_counts_what_was_judged_in_it(asked):
    (cell, *_), rows = asked.cells_json(), asked.rows("site_hour", 0)
    asked.session.act("reject", "site_hour", [asked.found.ids[rows[0]]])
    assert (cell["judged"], asked.cells_json()[0]["judged"]) == (0, 1)


def test_a_group_is_open_until_all_of_it_is_judged(asked):
    members = [box["id"] for box in asked.members(0)]
    asked.session.act("accept", "cluster", members[:-1])
    assert asked.next_open("cluster", 0, -1) == 0
    asked.session.act("reject", "cluster", members[-1:])
    assert asked.next_open("cluster", 0, -1) != 0


def test_a_task_of_the_plan_is_open_until_its_whole_stretch_was_looked_at(asked):
    path = asked.found.recordings[1].path
    planned = AskedQueues(asked.session, [Task(path, 0.0, 10.24, "dawn"), Task(path, 20.0, 30.0, "late")])
    assert planned.available()[-1] == "plan" and planned.items("plan", 0, 0, 9)["total"] == 2
    asked.session.act("looked", "plan", recording=1, corners=(0.0, 0.0, 5.0, 8000.0))
    assert planned.next_open("plan", 0, -1) == 0
    asked.session.act("looked", "plan", recording=1, corners=(5.0, 0.0, 10.24, 8000.0))
    assert planned.next_open("plan", 0, -1) == 1
    assert [item["looked"] for item in planned.items("plan", 0, 0, 9)["items"]] == [True, False]


@pytest.mark.parametrize("name", ["", "mine", "../random"])
def test_a_queue_that_is_not_there_is_said(asked, name):
    with pytest.raises(DataError, match="no queue"):
        asked.items(name, 0, 0, 5)


def test_where_no_detection_reaches_the_threshold_all_queues_of_them_are_empty(tmp_path):
    """The page asked for the first site and hour and got an error."""
    run, audio = write_run(tmp_path)
    found = load_boxes(detections_of(str(run)), open_storage(audio), 1.0)
    asked = AskedQueues(ReviewSession(found, tmp_path / "corrections", "Ana"))
    for name in ("site_hour", "random", "recording"):
        assert asked.items(name, 0, 0, 5) == {"total": 0, "items": []} and asked.next_open(name, 0, -1) == -1


def test_a_run_says_what_it_lacks(tmp_path):
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match="mast detect"):
        detections_of(str(tmp_path / "empty"))
    with pytest.raises(ConfigError, match="--audio"):
        audio_of(str(tmp_path / "empty"), str(tmp_path / "empty"), "")


def test_detections_of_recordings_that_are_gone_are_left_out_aloud(tmp_path, capsys):
    """A table alone, whose recordings are read from the folder: boxes of one that was deleted vanished in silence."""
    run, audio = write_run(tmp_path)
    (run / "detections/recordings.parquet").unlink()
    (audio / PATHS[2]).unlink()
    found = load_boxes(str(run / "detections/boxes.parquet"), open_storage(audio), 0.5)
    assert {found.recordings[row].path for row in found.recording} == set(PATHS[:2])
    said = capsys.readouterr().err
    assert "detections of 1 recordings are left out" in said and PATHS[2] in said


def test_a_table_that_names_no_recordings_is_told_what_to_give(tmp_path):
    run, audio = write_run(tmp_path)
    table = run / "detections/boxes.parquet"
    (run / "detections/recordings.parquet").unlink()
    pq.write_table(pq.read_table(table).drop_columns(["path"]), table)
    with pytest.raises(DataError, match=r"does not say which file.*\n.*mast detect"):
        load_boxes(str(table), open_storage(audio), 0.5)


def test_the_recordings_are_where_detect_found_them_unless_said(tmp_path):
    run, audio = write_run(tmp_path)
    detections = detections_of(str(run))
    text = json.dumps(
        {"stage": "detect", "key": "", "inputs": {}, "counts": {"archive": str(audio)}, "config": {}}
    )
    (run / "detections" / "manifest.json").write_text(text)
    assert audio_of(str(run), detections, "").url == str(audio)
    assert audio_of(str(run), detections, str(tmp_path)).url == str(tmp_path)
    with pytest.raises(DataError, match="not_mounted holds no file"):
        audio_of(str(run), detections, str(tmp_path / "not_mounted"))
