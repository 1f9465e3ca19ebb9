"""The moving average equals the formula written out, and spans the same samples for every batch size."""

import pytest
import torch
from toy import SCHEDULE, ToyFeed, toy_engine, toy_fit

from mast_ray.training.ema import MovingAverage, average_decay, rescaled_decay


def test_the_decay_is_rescaled_so_that_a_sample_counts_the_same_in_every_batch_size():
    assert rescaled_decay(0.9995, 64) == 0.9995
    assert rescaled_decay(0.9995, 256) == pytest.approx(0.9995**4)
    assert rescaled_decay(0.9995, 32) ** 2 == pytest.approx(0.9995)


def test_a_run_too_short_for_its_average_keeps_a_hundredth_of_its_first_weights():
    """800 steps of 64 (300 chunks, 200 epochs): at 0.9995 two thirds of what is exported
    would never have been trained.
    """
    assert pytest.approx(0.670, abs=5e-4) == 0.9995**800
    average = MovingAverage([torch.ones(1, dtype=torch.float64)], average_decay(0.9995, 64, 800))
    for _ in range(800):
        average.update([torch.zeros(1)])
    assert float(average.averages[0]) == pytest.approx(0.01, rel=1e-3)
    assert average_decay(0.9995, 64, 9_300) == 0.9995  # as in the paper
    assert average_decay(0.9, 64, 200) == 0.9
    assert average_decay(0.9995, 32, 1) == 0.01


def test_an_average_is_the_weighted_sum_of_what_it_saw():
    values = [torch.tensor([float(step), -2.0 * step]) for step in range(6)]
    average = MovingAverage([values[0]], 0.8)
    for value in values[1:]:
        average.update([value])
    expected = 0.8**5 * values[0] + sum(0.2 * 0.8 ** (5 - step) * values[step] for step in range(1, 6))
    assert torch.allclose(average.averages[0], expected, atol=1e-6)


def test_half_precision_weights_are_averaged_in_single_precision():
    average = MovingAverage([torch.zeros(1, dtype=torch.bfloat16)], 0.999)
    for _ in range(10):
        average.update([torch.ones(1, dtype=torch.bfloat16)])
    assert average.averages[0].dtype == torch.float32
    assert float(average.averages[0]) == pytest.approx(1 - 0.999**10, rel=1e-4)


def test_the_average_of_a_fit_equals_a_reference_kept_beside_it(tmp_path):
    engine = toy_engine()
    reference = {name: value.double().clone() for name, value in engine.objective.state_dict().items()}

    class Watching(ToyFeed):
        def micro_batches(self, first_step, num_steps, watch):
            for step, batch in enumerate(super().micro_batches(first_step, num_steps, watch)):
                if step > 0:
                    follow()
                yield batch

    def follow():
        for name, value in engine.objective.state_dict().items():
            reference[name] = 0.9 * reference[name] + 0.1 * value.double()

    toy_fit(tmp_path, engine, Watching(SCHEDULE))
    follow()
    for name, value in engine.averaged_weights().items():
        assert torch.allclose(value.double(), reference[name], atol=1e-6), name
