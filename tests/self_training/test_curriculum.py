"""What a round consists of, by name, and how far weights moved."""

import pytest
import torch

from mast_ray.self_training.curriculum import needs_pseudo_labels, steps_of, weight_drift


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("two_stage", [("stage1", "pseudo", "teacher"), ("stage2", "expert", "stage1")]),
        ("stage1_only", [("stage1", "pseudo", "teacher")]),
        ("stage2_only", [("stage2", "expert", "teacher")]),
        ("union", [("union", "both", "teacher")]),
    ],
)
def test_a_curriculum_names_its_trainings_their_labels_and_where_they_start(name, expected):
    steps = steps_of(name)
    assert [(step.name, step.labels, step.start) for step in steps] == expected
    assert needs_pseudo_labels(name) == (name != "stage2_only")


def test_drift_is_the_length_of_the_move_over_the_length_of_the_weights():
    before = {"encoder.a": torch.tensor([3.0, 4.0]), "head.b": torch.tensor([0.0]), "steps": torch.tensor(1)}
    after = {"encoder.a": torch.tensor([3.0, 4.0]), "head.b": torch.tensor([2.5]), "steps": torch.tensor(9)}
    assert weight_drift(before, after) == pytest.approx(0.5)  # moved 2.5, length 5
    assert weight_drift(before, after, "encoder.") == 0.0
