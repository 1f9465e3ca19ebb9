"""What a mission takes and costs: the table of `mast plan --price`."""

from mast_ray.tables.planning import Hardware, StagePlan
from mast_ray.verbs.main import run_verb
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
