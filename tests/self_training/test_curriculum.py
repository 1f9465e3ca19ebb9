"""What a round consists of, by name, and how far weights moved."""

import pytest
import torch

from mast_ray.self_training.curriculum import (
    averaged_weights,
    drifts,
    needs_pseudo_labels,
    needs_truth,
    steps_of,
    weight_drift,
)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("two_stage", [("stage1", "pseudo", "teacher"), ("stage2", "expert", "stage1")]),
        ("stage1_only", [("stage1", "pseudo", "teacher")]),
        ("stage2_only", [("stage2", "expert", "teacher")]),
        ("union", [("union", "both", "teacher")]),
        ("mixed", [("mixed", "mixed", "teacher")]),
        ("mixed_then_expert", [("mixed", "mixed", "teacher"), ("stage2", "expert", "mixed")]),
        ("control", [("control", "control", "teacher")]),
        ("ceiling", [("ceiling", "truth", "teacher")]),
    ],
)
def test_a_curriculum_names_its_trainings_their_labels_and_where_they_start(name, expected):
    steps = steps_of(name)
    assert [(step.name, step.labels, step.start) for step in steps] == expected
    assert needs_pseudo_labels(name) == (name not in ("stage2_only", "ceiling"))
    assert needs_truth(name) == (name == "ceiling")


def test_averaged_weights_lie_on_the_line_between_teacher_and_student():
    teacher = {"head.b": torch.tensor([0.0, 2.0]), "steps": torch.tensor(3)}
    student = {"head.b": torch.tensor([4.0, -2.0]), "steps": torch.tensor(9)}
    for share, expected in [(0.0, [4.0, -2.0]), (0.25, [3.0, -1.0]), (1.0, [0.0, 2.0])]:
        between = averaged_weights(teacher, student, share)
        assert between["head.b"].tolist() == expected and between["steps"].item() == 9


def test_drift_is_the_length_of_the_move_over_the_length_of_the_weights():
    before = {"encoder.a": torch.tensor([3.0, 4.0]), "head.b": torch.tensor([0.0]), "steps": torch.tensor(1)}
    after = {"encoder.a": torch.tensor([3.0, 4.0]), "head.b": torch.tensor([2.5]), "steps": torch.tensor(9)}
    assert weight_drift(before, after) == pytest.approx(0.5)  # moved 2.5, length 5
    assert weight_drift(before, after, "encoder.") == 0.0


def test_drift_is_told_of_models_of_one_kind_only():
    student, teacher = (
        {"encoder.a": torch.full((4,), value), "head.b": torch.ones(2)} for value in (2.0, 1.0)
    )
    assert drifts(student, teacher, {"settings": torch.ones(3)}) == {
        "weight_drift": pytest.approx((4 / 6) ** 0.5),
        "encoder_drift": pytest.approx(1.0),
    }
    assert drifts(student, {"settings": torch.ones(3)}, student) == {"weight_drift_from_seed": 0.0}
