"""Trials of a search, known from their folders alone."""

import json

from mast_ray.self_training.trial_records import LAST, Diary, mark_stopped, read_trials, trial_name
from mast_ray.storage.storage import open_storage

FIRST, SECOND = {"lambda_iou": 2.0, "threshold": 0.25}, {"lambda_iou": 0.5, "threshold": 0.125}


def _folder(tmp_path, sample):
    return open_storage(tmp_path).at(f"trials/{trial_name(sample)}")


def test_a_name_belongs_to_the_sample_in_any_order_of_its_parameters():
    assert trial_name(FIRST) == trial_name(dict(reversed(FIRST.items()))) != trial_name(SECOND)


def test_a_trial_is_open_until_it_has_a_result_or_was_stopped(tmp_path):
    heard = []
    diary = Diary(_folder(tmp_path, FIRST), FIRST, heard.append)
    assert [(r.status, r.objective, r.sample) for r in read_trials(open_storage(tmp_path))] == [
        ("open", None, FIRST)
    ]
    diary.tell({"objective": 0.25, "stage": "stage1"}, "stage1:4")
    diary.tell({"objective": 0.5, "stage": "stage2", "stage2_f1": 0.5}, LAST)
    assert heard == [
        {"objective": 0.25, "stage": "stage1", "epochs": 1},
        {"objective": 0.5, "stage": "stage2", "stage2_f1": 0.5, "epochs": 2},
    ]
    Diary(_folder(tmp_path, SECOND), SECOND, heard.append).tell(
        {"objective": 0.125, "stage": "stage1"}, "stage1:4"
    )
    mark_stopped(open_storage(tmp_path), SECOND)
    mark_stopped(open_storage(tmp_path), FIRST)  # it has its result: it is done
    done, stopped = read_trials(open_storage(tmp_path))
    assert (done.status, done.objectives, stopped.status, stopped.objectives) == (
        "done", (0.25, 0.5), "stopped early", (0.125,),
    )  # fmt: skip
    assert stopped.row()["objective_of"] == "stage1"  # not of the kind of the other's
    row = done.row()
    assert row | {"seconds": 0} == {
        "trial": trial_name(FIRST), "status": "done", "config.lambda_iou": 2.0, "config.threshold": 0.25, "objective": 0.5,
        "objective_of": "final",
        "stage1_f1": None, "stage2_f1": 0.5, "score_threshold": None, "boxes_per_chunk": None, "epochs": 2, "seconds": 0,
    }  # fmt: skip
    assert stopped.row("error")["objective"] is None and stopped.row("error")["objective_of"] is None


def test_a_killed_trial_goes_on_in_its_diary_and_a_repeated_epoch_counts_once(tmp_path):
    heard = []
    folder = _folder(tmp_path, FIRST)
    Diary(folder, FIRST, heard.append).tell({"objective": 0.1}, "stage1:4")
    again = Diary(folder, FIRST, heard.append)
    again.tell({"objective": 0.2}, "stage1:4")  # killed between report and checkpoint
    again.tell({"objective": 0.3}, "stage1:8")
    assert [report["epochs"] for report in heard] == [1, 1, 2]
    (record,) = read_trials(open_storage(tmp_path))
    assert record.objectives == (0.2, 0.3) and record.began_s > 0


def test_what_is_not_a_record_is_passed_over(tmp_path):
    stage = open_storage(tmp_path)
    assert read_trials(stage) == []
    stage.write_atomic("trials/old/trial.json", json.dumps({"objective": 1}).encode())
    stage.write_atomic("trials/x/stage1/diary.json", b"{}")
    assert read_trials(stage) == []
