"""Three rounds of review and learning on one archive are three short commands. The expert is the truth, the detector has
learned nothing, and a round is two steps: what is tested is that rounds follow each other.
"""

import itertools
import json
from datetime import UTC, datetime

import pytest
from folder_content import content
from study_archive import TONES_HZ, make_study_archive, write_fresh_detector

from mast_ray.evaluation.review.corrections import (
    Action,
    append_actions,
    log_path,
    new_action_id,
    read_logs,
    stamped,
)
from mast_ray.evaluation.review.review_state import fold_log
from mast_ray.reporting.detection_tables import read_detections, read_recordings
from mast_ray.reporting.exports.rows import detection_id
from mast_ray.stages.learn.places import find_run
from mast_ray.stages.review.found_boxes import load_boxes
from mast_ray.stages.review.session import ReviewSession
from mast_ray.storage.storage import open_storage
from mast_ray.tables.prepared import open_prepared
from mast_ray.verbs.main import run_verb

pytestmark = pytest.mark.slow  # trains and detects, three times
KNOBS = ("--recipe", "tiny", "--set", "evaluate.max_detections=20", "--set", "evaluate.bootstrap=50", "--set",
         "self_train.stage2.max_steps=2", "--set", "self_train.stage2.batch_size=4", "--set", "cluster.use_gpu=no")  # fmt: skip


def tones(number):
    """begin_s, end_s, low_hz, high_hz, label of the calls of the study archive's recording."""
    for place, begin in enumerate(range(1, 15, 3)):
        label = ("low", "high")[(place + number) % 2]
        yield float(begin), begin + 1.0, TONES_HZ[label] - 200, TONES_HZ[label] + 200, label


def review(run, numbers):
    """Recordings that are gone through: some boxes are rejected, calls are drawn and named, one of the first round's in
    every round; four boxes are judged at random.
    """
    row_of = {row["path"]: row for row in read_recordings(str(run / "detections")).to_pylist()}
    paths = sorted(row_of)
    threshold = load_boxes(str(run / "detections"), open_storage(run.parent / "archive"), None).threshold
    # boxes below it say nothing of the precision
    found = read_detections(str(run / "detections"), threshold).to_pylist()
    actions = []

    def add(queue="recording", **fields):
        actions.append(
            stamped(Action(reviewer="Ana", queue=queue, **fields), datetime.now(UTC), new_action_id())
        )

    for number in numbers:
        where = {"recording_id": row_of[paths[number]]["recording_id"], "path": paths[number]}
        add(action="looked", **where, begin_s=0.0, end_s=16.0)
        for begin_s, end_s, low_hz, high_hz, label in tones(number):
            corners = {"begin_s": begin_s, "end_s": end_s, "low_hz": low_hz, "high_hz": high_hz}
            add(action="draw", **where, **corners, label=label)
    for row in [row for row in found if row["path"] == paths[6]][:4]:
        box = {name: row[name] for name in ("begin_s", "end_s", "low_hz", "high_hz")}
        name = detection_id(row["path"], *box.values())
        where = {"recording_id": row["recording_id"], "path": row["path"], "score": row["score"]}
        add("random", action="reject", box_id=name, detection_id=name, **where, **box)
    append_actions(log_path(run / "corrections", "Ana"), actions)


def test_three_rounds_are_three_short_commands(tmp_path):
    prepared = make_study_archive(tmp_path)
    write_fresh_detector(tmp_path / "run" / "model", prepared)
    argv = [str(tmp_path / "run/model"), str(tmp_path / "archive"), "--out", str(tmp_path / "run/detections")]
    assert run_verb("detect", [*argv, "--runner", "here", *KNOBS]) == 0
    runs = [tmp_path / name for name in ("run", "run-2", "run-3", "run-4")]
    for (before, after), numbers in zip(itertools.pairwise(runs), ((0, 1, 2), (0, 3), (0, 4)), strict=True):
        review(before, numbers)
        seen = content(before)
        assert run_verb("learn", [str(before), "--minutes", "0.1", *KNOBS]) == 0
        assert content(before) == seen
        record = json.loads((after / "learn.json").read_text())
        assert (record["kept"] == "adapted") == (record["held_out"]["gain"]["estimate"] > 0)
        assert len(record["rounds"]) == runs.index(after)
        assert record["precision_of_the_run"]["estimate"] == 0.0  # four of this run's boxes, and no others
        assert len((after / "verdicts.csv").read_text().splitlines()) == 1 + 4

        # a call that was drawn in every round is one call, and no recording changes sides
        archive = open_prepared(str(after / "prepared"))
        assert len(archive.labels) == 5 * len({0, 1, 2, *range(3, 2 + runs.index(after))})
        sides = {(row["recording_id"], row["split"]) for row in archive.splits.to_pylist()}
        assert len(sides) == len({recording for recording, _ in sides})
        if before != runs[0]:
            earlier = open_prepared(str(before / "prepared")).splits.to_pylist()
            assert {(row["recording_id"], row["split"]) for row in earlier} <= sides

    place = find_run(str(runs[-1]))  # ready for a fourth
    assert len(place.rounds) == 3 and place.labels == "" and place.model.endswith("run-4/model")
    found = load_boxes(str(runs[-1] / "detections"), open_storage(tmp_path / "archive"), None)
    session = ReviewSession(found, runs[-1] / "corrections", "Ana", rounds=place.rounds)
    is_same = record["kept"] == "present"  # then the boxes are those that were judged
    if record["kept"] != "retuned":  # the same boxes, from another threshold on
        assert session.figures()["precision"]["num"] == (4 if is_same else 0)
    boxes = fold_log(read_logs(runs[-1] / "corrections").actions)["Ana"].boxes
    assert len(boxes) == 5 * 7 + len({box.box_id for box in boxes.values() if box.detection_id})
