"""What a mission takes and costs: the table of `mast plan --price`, and the table of steps of a run."""

import json

import pytest

from mast_ray.tables.planning import Hardware, StagePlan
from mast_ray.verbs.main import run_verb
from mast_ray.verbs.pipeline import Costs, Step, run_steps, stage_table
from mast_ray.verbs.plan import plan_lines


def test_a_stage_costs_all_gpus_for_its_hours_also_where_they_wait():
    stages = [
        StagePlan("prepare", 0.5, 0.0, 2_000_000_000, "cores"),
        StagePlan("pretrain", 2.0, 16.0, 0, "GPU"),
    ]
    lines = plan_lines(stages, Hardware(num_gpus=8), price=3.0)
    assert [line.split() for line in lines] == [
        ["stage", "hours", "GPU-hours", "cost", "written", "limited", "by"],
        ["prepare", "0.50", "0.0", "12.00", "2.0", "GB", "cores"],  # 0.5 h x 8 x 3
        ["pretrain", "2.00", "16.0", "48.00", "-", "GPU"],
        ["total", "2.50", "16.0", "60.00"],
    ]
    assert "cost" not in plan_lines(stages, Hardware(num_gpus=8))[0]


def test_a_negative_price_is_refused(capsys):
    assert run_verb("plan", ["--hours", "10", "--price", "-1"]) == 2
    assert "--price -1 must be 0 or more" in capsys.readouterr().err


def test_a_plan_names_no_number_of_recordings_that_it_was_not_told(capsys):
    assert run_verb("plan", ["--hours", "10"]) == 0
    assert "10.0 h (3.5 GB)" in capsys.readouterr().out
    assert run_verb("plan", ["--hours", "10", "--recordings", "1200"]) == 0
    assert "10.0 h in 1,200 recordings (3.5 GB)" in capsys.readouterr().out


STEPS = [
    Step("prepare", "prepare", ()),
    Step("train a detector", "train", (), expected_s=1800.0),
    Step("report", "report", ()),
]


def test_the_table_of_steps_says_what_was_taken_what_is_left_and_what_it_costs():
    costs = Costs(num_gpus=4, price_per_gpu_hour=2.0)
    table = stage_table(STEPS, 1, {"prepare": 900.0, "train a detector": 360.0}, costs)
    assert [line.split() for line in table.splitlines()] == [
        ["step", "taken", "left", "GPU-h", "cost"],
        ["prepare", "done", "15:00", "1.00", "2.00"],  # a quarter of an hour on four GPUs
        [
            "train",
            "a",
            "detector",
            "next",
            "6:00",
            "24:00",
            "0.40",
            "0.80",
        ],  # 30 minutes less the 6 before a kill
        ["report", "to", "do", "0:00", "-", "0.00", "0.00"],
        ["all", "steps", "21:00", ">", "24:00", "1.40", "2.80"],
    ]


def test_without_gpus_and_prices_the_table_is_of_times_alone():
    table = stage_table(STEPS, 3, {"prepare": 61.0}, Costs())
    assert table.splitlines()[0].split() == ["step", "taken", "left"]
    assert table.splitlines()[-1].split() == ["all", "steps", "1:01"]


def test_times_of_an_interrupted_run_add_up(tmp_path, capsys):
    codes = iter([0, 75])
    assert run_steps(STEPS, lambda verb, argv: next(codes), tmp_path / "run") == 75
    assert "stopped at step 2 of 3" in capsys.readouterr().err
    assert run_steps(STEPS, lambda verb, argv: 4 if verb == "prepare" else 0, tmp_path / "run") == 4
    assert list(json.loads((tmp_path / "run" / "steps.json").read_text())) == [step.title for step in STEPS]


@pytest.mark.parametrize("hours", ["null", '"12"', "-3", "NaN"])
def test_an_inventory_whose_figures_are_none_is_refused_by_name(hours, tmp_path, capsys):
    path = tmp_path / "inventory.json"
    path.write_text(f'{{"hours": {hours}, "num_files": 3, "num_bytes": 5000}}')
    assert run_verb("plan", ["--inventory", str(path)]) == 2
    said = capsys.readouterr().err
    assert "hours=" in said and "mast inventory ARCHIVE --json FILE" in said
