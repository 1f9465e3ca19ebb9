"""Learning rates and unfreezing as functions of samples seen."""

import math
from dataclasses import replace

import pytest

from mast_ray.config.errors import ConfigError
from mast_ray.config.recipes import field, paper
from mast_ray.config.stage_knobs import lengthened
from mast_ray.training.schedule import (
    NEVER,
    Schedule,
    Unfreezing,
    samples_per_worker,
    schedule_of,
    unfreezing_of,
)

PLAIN = Schedule(
    samples_per_epoch=640, batch_size=64, epochs=10, learning_rate=1.0, min_learning_rate=0.1, warmup_epochs=2
)


def test_the_rate_climbs_in_a_line_peaks_after_warm_up_and_falls_as_a_cosine():
    # Half a batch into the first of 20 warm-up steps: 32 / 1280.
    assert PLAIN.rate_at(0) == pytest.approx(32 / 1280)
    assert PLAIN.rate_at(9 * 64) == pytest.approx((9 * 64 + 32) / 1280)
    middle = 1280 + (6400 - 1280) // 2
    assert PLAIN.rate_at(middle - 32) == pytest.approx(0.55)
    assert PLAIN.rate_at(6400) == pytest.approx(0.1)
    rates = [PLAIN.rate_at(step * 64) for step in range(100)]
    assert rates[:20] == sorted(rates[:20]) and rates[20:] == sorted(rates[20:], reverse=True)


def test_another_batch_size_keeps_the_curve_over_samples():
    half = replace(PLAIN, batch_size=32)
    for samples in (640, 1920, 5120):
        assert half.rate_at(samples + 16) == pytest.approx(PLAIN.rate_at(samples), rel=1e-12)


def test_a_step_limit_shortens_the_whole_curve():
    short = replace(PLAIN, max_steps=50)
    assert short.num_steps == 50
    assert short.rate_at(50 * 64) == pytest.approx(0.1)


def test_an_epoch_drops_the_incomplete_batch_and_a_small_set_still_has_one():
    assert replace(PLAIN, samples_per_epoch=700).steps_per_epoch == 10
    assert replace(PLAIN, samples_per_epoch=5).steps_per_epoch == 1


def test_validation_comes_every_n_epochs_and_at_the_end():
    every_two = replace(PLAIN, validate_every_epochs=2, max_steps=55)
    assert [step for step in range(1, 56) if every_two.is_validation_step(step)] == [20, 40, 55]
    twice = replace(PLAIN, validate_every_epochs=0.5, epochs=1)
    assert [step for step in range(1, 11) if twice.is_validation_step(step)] == [5, 10]


def test_checkpoints_come_every_epoch_and_every_few_where_epochs_are_short():
    assert replace(PLAIN, samples_per_epoch=64 * 50).checkpoint_interval == 50
    assert replace(PLAIN, samples_per_epoch=64 * 30, validate_every_epochs=4).checkpoint_interval == 60
    # weights that were the best of their validation are kept until the next checkpoint: four at the most
    assert PLAIN.checkpoint_interval == 40
    assert replace(PLAIN, validate_every_epochs=0.1).checkpoint_interval == 10


def test_a_few_labelled_chunks_are_learned_for_1800_steps_with_50_checkpoints_and_not_one_each_step():
    knobs = lengthened(field().detector, 40)  # 40 chunks are one step of 64
    few = schedule_of(knobs, 40)
    assert (few.num_steps, few.steps_per_epoch, knobs.validate_every_epochs) == (1800, 1, 9)
    assert few.checkpoint_interval == 36 and few.num_steps // few.checkpoint_interval == 50


def test_the_papers_three_tables_unfreeze_as_printed():
    config = paper()
    supervised, stage1, stage2 = map(
        unfreezing_of, (config.detector, config.self_train.stage1, config.self_train.stage2)
    )
    assert [supervised.epoch_of_block(block, 12) for block in range(12)] == [NEVER] * 8 + [0.0] * 4
    assert [stage1.epoch_of_block(block, 12) for block in range(12)] == [50.0] * 3 + [40.0] * 3 + [
        30.0
    ] * 3 + [20.0] * 3
    assert [stage2.epoch_of_block(block, 12) for block in range(12)] == [9.0] * 6 + [3.0] * 6
    assert supervised.epoch_of_stem(12) == math.inf and stage1.epoch_of_stem(12) == 50.0
    assert Unfreezing().epoch_of_block(0, 12) == 0.0
    everything = unfreezing_of(field().detector)  # of the largest encoder too
    assert everything.epoch_of_block(0, 32) == everything.epoch_of_stem(32) == 0.0


def test_schedules_come_from_config_sections():
    schedule = schedule_of(field().pretrain, 100_000)
    assert (schedule.steps_per_epoch, schedule.num_steps) == (1562, 624_800)
    assert schedule.learning_rate == 5e-5 and schedule.min_learning_rate == 5e-7


def test_a_batch_is_split_over_any_number_of_workers_that_it_has_chunks_for():
    assert samples_per_worker(64, 2, 4, "detector") == 8
    assert samples_per_worker(50, 1, 8, "detector") == 7  # shares of 6 and 7
    assert samples_per_worker(256, 2, 3, "detector") == 43  # shares of 85 and 86, in parts of 42 and 43
    with pytest.raises(
        ConfigError, match=r"detector\.batch_size=6 cannot be split .*--set detector\.batch_size=8"
    ):
        samples_per_worker(6, 2, 4, "detector")


def test_a_warm_up_longer_than_the_run_takes_half_of_it():
    short = replace(PLAIN, epochs=2, warmup_epochs=50)  # 20 steps
    rates = [short.rate_at(step * 64) for step in range(20)]
    assert rates[:10] == sorted(rates[:10]) and rates[10:] == sorted(rates[10:], reverse=True)
    assert rates[9] == pytest.approx(9.5 / 10) and rates[-1] < 0.11
