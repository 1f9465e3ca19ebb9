"""What makes a self-training another one, and when its teacher may move."""

import pytest
from tables_in_memory import prepared_in_memory

from mast_ray.config.errors import DataError
from mast_ray.config.loading import apply_overrides
from mast_ray.config.recipes import RECIPES
from mast_ray.stages.runner import HERE
from mast_ray.stages.self_train.self_train import _Generation, _SelfTraining
from mast_ray.stages.self_train.settings import key_of, refuse_missing_experts, with_fitting_teacher
from mast_ray.tables.reading.chunk_sets import chunks_of_split

FIELD = RECIPES["field"]()
CALL = (10.0, 11.0, 1000.0, 2000.0)
MOVING = apply_overrides(
    FIELD,
    {
        "self_train.curriculum": "mixed",
        "self_train.teacher": "moving_average",
        "self_train.student": "teacher",
    },
)


@pytest.mark.parametrize(
    ("knob", "value", "differs"),
    [
        ("augment.mixup", 0.5, True),
        ("split.budget_chunks", 2, True),
        ("labels.time_only", "teach", True),
        ("model.finest_level", "4x4", True),
        ("self_train.stage1.epochs", 9, True),
        ("model.compile", "off", False),
        ("cluster.num_workers", 2, False),
    ],
)
def test_whatever_students_learn_by_makes_another_self_training(knob, value, differs):
    assert (key_of(apply_overrides(FIELD, {knob: value}), "") != key_of(FIELD, "")) == differs


@pytest.mark.parametrize(
    ("knobs", "also", "teacher"),
    [
        ({}, (), "moving_average"),
        ({}, ("another",), "fixed"),
        ({"self_train.teacher_hearings": 3}, (), "fixed"),
        ({"self_train.score_weight": 0.9}, (), "fixed"),
        ({"self_train.curriculum": "two_stage", "self_train.teacher_hearings": 3}, (), "moving_average"),
    ],
)
def test_a_teacher_whose_scores_are_others_than_the_thresholds_does_not_move(knobs, also, teacher, caplog):
    chosen = with_fitting_teacher(apply_overrides(MOVING, knobs), also)
    assert chosen.self_train.teacher == teacher
    assert bool(caplog.records) == (teacher == "fixed")


@pytest.mark.parametrize(
    ("splits", "labels", "curriculum", "is_refused"),
    [
        ({"a": ""}, [], "two_stage", True),
        ({"a": ""}, [], "union", True),
        ({"a": ""}, [], "stage1_only", False),
        ({"a": "train", "b": "val"}, [("b", *CALL)], "two_stage", True),
        ({"a": "train", "b": "val"}, [("b", *CALL)], "union", False),
        ({"a": "train", "b": "val"}, [("a", *CALL)], "two_stage", False),
    ],
)
def test_experts_that_a_curriculum_needs_are_missed_before_the_pool_is_labelled(
    splits, labels, curriculum, is_refused
):
    archive = prepared_in_memory(splits, labels)
    config = apply_overrides(FIELD, {"self_train.curriculum": curriculum})
    if is_refused:
        with pytest.raises(
            DataError, match=f"no expert box .*curriculum={curriculum} needs some:\\n--set .*=stage1_only"
        ):
            refuse_missing_experts(config, archive)
    else:
        refuse_missing_experts(config, archive)


def test_an_archive_without_annotations_is_not_said_to_need_another_split():
    with pytest.raises(DataError, match=r"nothing in train: it has pool\nnothing in it is annotated"):
        chunks_of_split(prepared_in_memory({"a": ""}, []), "train")
    with pytest.raises(DataError, match="deal the recordings again"):
        chunks_of_split(prepared_in_memory({"a": "train"}, [("a", *CALL)]), "val")


@pytest.mark.parametrize("labelled", ["b", "c"])
def test_the_last_round_is_delivered_where_that_is_asked_for_whichever_split_may_choose(labelled):
    archive = prepared_in_memory({"a": "train", "b": "val", "c": "ood_dev"}, [(labelled, *CALL)])
    config = apply_overrides(FIELD, {"self_train.keep": "last"})
    training = _SelfTraining(config, "", archive, "", archive.storage, HERE, None)
    rounds = [_Generation(number, "", None, None) for number in range(3)]  # figures are not asked for
    assert training._choose(rounds) == (2, "round 2 is the last (self_train.keep=last)")
