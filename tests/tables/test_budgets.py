"""Budgets that fit the data and the minutes there are."""

from dataclasses import replace

import pytest

from mast_ray.config.loading import apply_overrides
from mast_ray.config.recipes import RECIPES, tiny
from mast_ray.config.stage_knobs import lengthened
from mast_ray.tables.assumed_rates import CPU_TINY, Rates
from mast_ray.tables.budgets import LEAST_STEPS, fitted_budget
from mast_ray.training.schedule import schedule_of

TWO_ROUNDS = apply_overrides(RECIPES["field"](), {"self_train.rounds": 2})
RATES = Rates(pretrain_chunks_per_gpu_s=100.0, train_chunks_per_gpu_s=10.0, infer_chunks_per_gpu_s=100.0)


def test_without_a_limit_the_recipe_stands():
    budget = fitted_budget(TWO_ROUNDS, 1000, 100, RATES, 0)
    assert budget.overrides == {}
    assert budget.minutes["pretrain"] == pytest.approx(400 * 1000 / 100 / 60)
    # both rounds label the pool, at 100 chunks a second
    assert budget.minutes["self_train.stage1"] == pytest.approx(2 * (1000 / 100 + 80 * 1000 / 10) / 60)
    assert budget.minutes["self_train.stage2"] == pytest.approx(2 * 40 * 100 / 10 / 60)


def test_a_limit_shortens_stages_and_keeps_their_shape():
    config = TWO_ROUNDS
    budget = fitted_budget(config, 3000, 300, RATES, 60.0, keeps_rounds=True)
    assert budget.total_minutes <= 60.0
    shorter = apply_overrides(config, budget.overrides)
    assert shorter.pretrain.epochs == 30  # a quarter of an hour at half a minute an epoch
    assert shorter.pretrain.warmup_epochs == pytest.approx(20 * 30 / 400)
    stage1, printed = shorter.self_train.stage1, config.self_train.stage1
    assert stage1.epochs == 1  # one epoch of two rounds takes 10 of its 15 minutes
    assert stage1.unfreeze_start_epoch / stage1.epochs == pytest.approx(
        printed.unfreeze_start_epoch / printed.epochs
    )


def test_a_stage_of_which_not_one_epoch_fits_is_cut_to_the_steps_that_do():
    config = TWO_ROUNDS
    budget = fitted_budget(config, 10**6, 10**5, RATES, 60.0, keeps_rounds=True)
    assert budget.total_minutes <= 60.0
    shorter = apply_overrides(config, budget.overrides)
    stage2, printed = shorter.self_train.stage2, config.self_train.stage2
    # a fifth of an hour for two rounds, 10 chunks/s
    assert (stage2.epochs, stage2.max_steps) == (1, 720 * 10 // 2 // printed.batch_size)
    share = stage2.max_steps * stage2.batch_size / 10**5
    warmup = printed.warmup_epochs / printed.epochs  # as a share of all there is
    assert stage2.warmup_epochs == pytest.approx(warmup * share, rel=0.01)
    assert shorter.pretrain.max_steps == 900 * 100 // config.pretrain.batch_size


def test_no_more_of_a_large_pool_is_labelled_than_there_is_time_to_learn():
    config = TWO_ROUNDS
    shorter = apply_overrides(
        config, fitted_budget(config, 10**6, 10**5, RATES, 60.0, keeps_rounds=True).overrides
    )
    # a quarter of an hour for two rounds: a chunk is learned in 0.1 s, and three are labelled for it in 0.03 s
    knobs, printed = shorter.self_train, config.self_train.stage1
    assert (knobs.max_chunks, knobs.most_labelled) == (3461, 3 * 3461)
    assert (knobs.stage1.epochs, knobs.stage1.max_steps) == (1, 0)
    assert knobs.stage1.unfreeze_start_epoch == pytest.approx(printed.unfreeze_start_epoch / printed.epochs)
    every = apply_overrides(config, {"self_train.empty_chunks": "negative"})
    overrides = fitted_budget(every, 10**6, 10**5, RATES, 60.0, keeps_rounds=True).overrides
    assert overrides["self_train.max_chunks"] == 4090  # 0.11 s: chunks without a box are learned too
    # all 1000 are labelled in 10 s a round, and 80 of the 90 s are left to learn: not as if three for one were to be labelled
    nearly = fitted_budget(config, 1000, 100, RATES, 12.0, keeps_rounds=True)
    assert nearly.overrides["self_train.max_chunks"] == 800
    assert nearly.minutes["self_train.stage1"] == pytest.approx(0.25 * 12.0)
    own = apply_overrides(config, {"self_train.max_chunks": 500})
    assert (
        "self_train.max_chunks"
        not in fitted_budget(own, 10**6, 10**5, RATES, 60.0, keeps_rounds=True).overrides
    )
    unlabelled = apply_overrides(config, {"self_train.curriculum": "stage2_only"})
    assert (
        "self_train.max_chunks"
        not in fitted_budget(unlabelled, 10**6, 10**5, RATES, 60.0, keeps_rounds=True).overrides
    )


def test_however_little_time_there_is_a_stage_has_some_steps():
    budget = fitted_budget(TWO_ROUNDS, 10**6, 10**5, RATES, 0.01, keeps_rounds=True)
    named = ("pretrain", "detector", "self_train.stage1", "self_train.stage2")
    assert [budget.overrides.get(f"{name}.max_steps") for name in named] == [10, 10, None, 10]
    assert budget.overrides["self_train.max_chunks"] == 10 * TWO_ROUNDS.self_train.stage1.batch_size
    few = fitted_budget(TWO_ROUNDS, 100, 50, RATES, 0.01, keeps_rounds=True)
    assert not [key for key in few.overrides if key.endswith("max_steps")], "an epoch has fewer"
    assert all(few.overrides[f"{name}.epochs"] == 10 for name in named), "a step each"


def test_from_a_detector_nothing_is_pretrained_and_the_labels_are_gone_through_once_more():
    config = TWO_ROUNDS
    budget = fitted_budget(config, 1000, 100, RATES, 0, "detector")
    assert set(budget.minutes) == {"self_train.stage1", "self_train.stage2"}
    assert budget.minutes["self_train.stage2"] == pytest.approx(3 * 40 * 100 / 10 / 60)
    limited = fitted_budget(config, 1000, 100, RATES, 10.0, "detector", keeps_rounds=True)
    assert limited.overrides["self_train.stage2.epochs"] == 12  # 6 of 10 minutes at half a minute an epoch
    assert limited.total_minutes <= 10.0


def test_first_lessons_go_through_the_pool_once_more_and_nothing_is_pretrained():
    config = TWO_ROUNDS
    budget = fitted_budget(config, 1000, 100, RATES, 0, "lessons")
    assert list(budget.minutes) == ["first_lessons", "detector", "self_train.stage1", "self_train.stage2"]
    once = (1000 / 100 + 80 * 1000 / 10) / 60  # the pool is labelled, and learned
    assert budget.minutes["first_lessons"] == pytest.approx(once)
    assert budget.minutes["self_train.stage1"] == pytest.approx(2 * once)
    assert budget.minutes["self_train.stage2"] == pytest.approx(2 * 40 * 100 / 10 / 60)


def test_a_limit_holds_where_few_labels_are_gone_through_often():
    """min_steps of recipe `tiny` made 60 steps of what was cut to one epoch, and no estimate knew of them."""
    config = apply_overrides(RECIPES["tiny"](), {"self_train.rounds": 2})
    knobs = config.self_train.stage2
    assert knobs.min_steps == 60 and knobs.batch_size == 4
    whole = fitted_budget(config, 200, 12, RATES, 0, "detector")
    # 60 steps of 4 chunks at 10 a second, in both rounds and before them
    assert whole.minutes["self_train.stage2"] == pytest.approx(3 * 60 * 4 / 10 / 60)
    rates = replace(RATES, train_chunks_per_gpu_s=2.0)
    cut = fitted_budget(config, 200, 12, rates, 5.0, "detector", keeps_rounds=True)
    # three minutes for three trainings at 2 chunks a second: 10 passes over 12 chunks each
    shorter = apply_overrides(config, cut.overrides).self_train.stage2
    assert (shorter.epochs, shorter.min_steps) == (10, 0)
    assert cut.minutes["self_train.stage2"] == pytest.approx(3 * 10 * 12 / 2 / 60)


@pytest.mark.parametrize("labelled", [1, 3, 5, 20])
@pytest.mark.parametrize("minutes", [0, 1, 3, 10])
def test_very_few_labels_take_as_long_as_is_said_and_are_validated_as_often_as_the_recipe_does(
    labelled, minutes
):
    """A batch is filled whatever there is to fill it: a pass over one chunk took four times as long as was said. And 48 steps
    were validated 48 times, which was in no budget.
    """
    rates = replace(CPU_TINY, train_chunks_per_gpu_s=2.0, infer_chunks_per_gpu_s=8.0)
    config = tiny()
    budget = fitted_budget(config, 30, labelled, rates, minutes, "detector")
    knobs = apply_overrides(config, budget.overrides).self_train.stage2
    schedule = schedule_of(lengthened(knobs, labelled), labelled)
    times = budget.overrides.get("self_train.rounds", config.self_train.rounds) + 1
    taken = times * schedule.num_samples / rates.train_chunks_per_gpu_s / 60
    assert 0.7 * budget.minutes["self_train.stage2"] <= taken <= 1.001 * budget.minutes["self_train.stage2"]
    assert schedule.num_steps >= LEAST_STEPS
    least = times * 4 * max(LEAST_STEPS, labelled // 4) / rates.train_chunks_per_gpu_s / 60
    assert not minutes or taken <= max(minutes, least)
    validations = sum(schedule.is_validation_step(step + 1) for step in range(schedule.num_steps))
    assert 1 <= validations <= config.self_train.stage2.epochs + 1


def test_the_boxes_have_their_length_before_the_pool_has_any_time():
    """Of 8 minutes on NIPS4Bplus a training on the boxes had 2.4, the round of self-training the rest: F1 0.27 on validation, where
    the same steps on the boxes alone reach 0.31.
    """
    config, rates = tiny(), replace(CPU_TINY, train_chunks_per_gpu_s=2.8, infer_chunks_per_gpu_s=50.0)
    whole_min = config.self_train.stage2.epochs * 397 / 2.8 / 60
    short = fitted_budget(config, 1015, 397, rates, 1.1 * whole_min, "detector")
    assert short.overrides == {"self_train.rounds": 0}
    assert short.minutes == {"self_train.stage2": pytest.approx(whole_min)}
    half = fitted_budget(config, 1015, 397, rates, 0.5 * whole_min, "detector")
    assert half.overrides["self_train.rounds"] == 0
    assert half.overrides["self_train.stage2.epochs"] == config.self_train.stage2.epochs // 2
    twice = fitted_budget(
        config, 1015, 397, rates, 2.0 * whole_min, "detector"
    )  # what is left is too little for a round
    assert twice.overrides["self_train.rounds"] == 0
    assert twice.overrides["self_train.stage2.epochs"] == 2 * config.self_train.stage2.epochs
    long = fitted_budget(config, 1015, 397, rates, 3.0 * whole_min, "detector")
    assert not [
        key for key in long.overrides if key.startswith("self_train.stage2") or key.endswith("rounds")
    ]
    assert long.minutes["self_train.stage2"] == pytest.approx(2 * whole_min)
    assert 0 < long.minutes["self_train.stage1"] <= 1.001 * whole_min
    asked = fitted_budget(config, 1015, 397, rates, 1.1 * whole_min, "detector", keeps_rounds=True)
    assert "self_train.rounds" not in asked.overrides and asked.minutes["self_train.stage1"] > 0


@pytest.mark.parametrize(
    ("start", "first"), [("scratch", "pretrain"), ("lessons", "first_lessons"), ("detector", None)]
)
def test_without_a_round_all_but_what_comes_before_is_for_the_boxes(start, first):
    config = tiny()
    budget = fitted_budget(config, 3000, 3000, replace(CPU_TINY, train_chunks_per_gpu_s=2.0), 20.0, start)
    assert budget.overrides["self_train.rounds"] == 0
    on_boxes = "self_train.stage2" if start == "detector" else "detector"
    assert list(budget.minutes) == ([first] if first else []) + [on_boxes]
    assert budget.minutes[on_boxes] == pytest.approx(20.0 if first is None else 15.0, rel=0.05)
    assert budget.total_minutes <= 20.0


def test_no_rounds_take_no_time():
    none = apply_overrides(tiny(), {"self_train.rounds": 0})
    assert list(fitted_budget(none, 1000, 100, RATES, 0, "detector").minutes) == ["self_train.stage2"]
    assert list(fitted_budget(none, 1000, 100, RATES, 0).minutes) == ["pretrain", "detector"]
    limited = fitted_budget(
        none, 1000, 100, RATES, 1.0
    )  # a chunk in 0.1 s: 45 s are four passes over the boxes
    assert list(limited.minutes) == ["pretrain", "detector"] and limited.overrides["detector.epochs"] == 4
    assert "self_train.rounds" not in limited.overrides
