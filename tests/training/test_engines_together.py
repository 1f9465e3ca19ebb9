"""DeepSpeed, DDP and a single process are the same training: same losses, same
weights, same resumed runs (CPU, gloo).
"""

import itertools

import pytest
import torch
from archive_of_noise import write_archive
from crew import detection_losses, fit_toy, hand_over, run_crew
from toy import SCHEDULE, ToyFeed, losses_of, toy_engine, toy_files, toy_fit, weights_equal

from mast_ray.training.data.online_teacher import sharing
from mast_ray.training.worker import LocalWorker

pytestmark = [pytest.mark.deepspeed, pytest.mark.slow]


def final_state(folder):
    checkpoints = toy_files(folder).checkpoints
    return checkpoints.read(checkpoints.newest_good()).engine


def largest_difference(first, second):
    return max(float((first[name] - second[name]).abs().max()) for name in first)


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    folder = tmp_path_factory.mktemp("alone")
    toy_fit(folder, toy_engine(), ToyFeed(SCHEDULE))
    return folder


@pytest.mark.parametrize(
    "engine, zero_stage", [("torch", 0), ("deepspeed", 1), ("deepspeed", 2), ("deepspeed", 3)]
)
def test_two_workers_give_the_losses_and_weights_of_one_process(alone, tmp_path, engine, zero_stage):
    seen = run_crew(fit_toy, tmp_path, 2, engine=engine, zero_stage=zero_stage)
    assert sorted(seen[0][:4] + seen[1][:4]) == [f"s0:{row}" for row in range(8)]
    assert losses_of(tmp_path / "run") == pytest.approx(losses_of(alone), rel=1e-5)
    expected, state = final_state(alone), final_state(tmp_path / "run")
    assert largest_difference(expected.weights, state.weights) < 1e-6
    assert largest_difference(expected.average, state.average) < 1e-6
    assert largest_difference(expected.second_moment, state.second_moment) < 1e-6
    assert expected.optimizer_steps == state.optimizer_steps


@pytest.mark.parametrize("zero_stage", [0, 1, 2, 3])
@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16"])
def test_every_zero_stage_and_precision_trains_freezes_and_skips_like_plain_torch(
    tmp_path, zero_stage, precision
):
    plain = toy_engine(precision=precision)
    sharded = toy_engine("deepspeed", precision=precision, zero_stage=zero_stage)
    toy_fit(tmp_path / "plain", plain, ToyFeed(SCHEDULE, spoil=[6]))
    toy_fit(tmp_path / "sharded", sharded, ToyFeed(SCHEDULE, spoil=[6]))
    first, second = plain.state(), sharded.state()
    assert (
        first.optimizer_steps == second.optimizer_steps
    )  # the same steps were skipped, the same blocks joined
    tolerance = 1e-6 if precision == "fp32" else 2e-3
    assert largest_difference(first.weights, second.weights) < tolerance
    assert losses_of(tmp_path / "plain")[:6] == pytest.approx(
        losses_of(tmp_path / "sharded")[:6], rel=tolerance * 10
    )
    assert first.loss_scale == second.loss_scale
    shared = sharded.shared_averages()  # what an online teacher looks at; in pieces under ZeRO-3
    assert (shared is None) == (zero_stage == 3)
    if shared is not None:
        assert all(torch.equal(shared[name], second.average[name]) for name in shared)


@pytest.mark.parametrize("engine", ["torch", "deepspeed"])
def test_two_workers_stopped_and_started_again_end_with_the_same_bits(tmp_path, engine):
    run_crew(fit_toy, tmp_path / "whole", 2, engine=engine)
    run_crew(fit_toy, tmp_path / "stopped", 2, engine=engine, stop_before=8)
    seen = run_crew(fit_toy, tmp_path / "stopped", 2, engine=engine)
    assert seen[0][0] == "s6:0" and seen[1][0] == "s6:4"
    assert weights_equal(
        final_state(tmp_path / "whole/run").weights, final_state(tmp_path / "stopped/run").weights
    )
    assert weights_equal(
        final_state(tmp_path / "whole/run").average, final_state(tmp_path / "stopped/run").average
    )


@pytest.mark.parametrize("before, after", [(3, 1), (1, 3)])  # three have shares of 2, 3 and 3
def test_a_run_goes_on_with_another_number_of_workers_on_the_same_global_batches(
    alone, tmp_path, before, after
):
    first = run_crew(fit_toy, tmp_path, before, engine="deepspeed", stop_before=8)
    second = run_crew(fit_toy, tmp_path, after, engine="deepspeed")
    per_step = {}
    for name in (name for seen in second for name in seen):
        per_step.setdefault(int(name[1 : name.index(":")]), set()).add(int(name.split(":")[1]))
    assert sorted(per_step) == list(range(6, 16))
    assert all(rows == set(range(8)) for rows in per_step.values())
    assert first[0][0] == "s0:0"
    assert largest_difference(final_state(alone).weights, final_state(tmp_path / "run").weights) < 1e-6


@pytest.mark.parametrize(
    "engine, accumulate", [("torch", 2), pytest.param("deepspeed", 1, marks=pytest.mark.long)]
)
def test_four_workers_then_three_then_four_see_the_samples_of_one_and_end_alike(
    alone, tmp_path, engine, accumulate
):
    """A batch of 8 over three workers: shares of 2, 3 and 3, each counted by its size."""
    seen = []
    for workers, stop_before in ((4, 4), (3, 10), (4, None)):
        crew = run_crew(
            fit_toy, tmp_path, workers, engine=engine, stop_before=stop_before, accumulate=accumulate
        )
        seen.append([name for member in crew for name in member])
    # checkpoints after 3, 6, 9 and 12 steps: the stops before steps 4 and 10 go back to steps 3 and 9
    for names, steps in zip(seen, (range(4), range(3, 10), range(9, 16)), strict=True):
        assert sorted(names) == sorted(f"s{step}:{row}" for step in steps for row in range(8))
    expected, state = final_state(alone), final_state(tmp_path / "run")
    assert largest_difference(expected.weights, state.weights) < 1e-6
    assert largest_difference(expected.second_moment, state.second_moment) < 1e-6
    assert losses_of(tmp_path / "run") == pytest.approx(losses_of(alone), rel=1e-5)


def test_state_goes_from_engine_to_engine_and_stage_to_stage_without_a_loss(tmp_path):
    engines = [
        ("deepspeed", 3),
        ("torch", 0),
        ("deepspeed", 1),
        ("deepspeed", 3),
        ("deepspeed", 2),
        ("deepspeed", 0),
    ]
    alone = hand_over(LocalWorker(), tmp_path, [("torch", 0)] * 6)
    for member in run_crew(hand_over, tmp_path, 3, engines=engines):
        assert member["lost"] == [0.0] * 5
        assert member["head"] == pytest.approx(alone["head"], abs=1e-6)
        assert member["steps"] == alone["steps"]


def test_the_moments_of_an_offloaded_optimizer_are_those_of_plain_torch(alone, tmp_path):
    toy_fit(tmp_path, toy_engine("deepspeed", zero_stage=2, offload="optimizer"), ToyFeed(SCHEDULE))
    assert largest_difference(final_state(alone).second_moment, final_state(tmp_path).second_moment) < 1e-6
    assert largest_difference(final_state(alone).weights, final_state(tmp_path).weights) < 1e-6


@pytest.mark.parametrize(
    "engine, workers, adapter",
    [("torch", 2, "hybrid"), ("deepspeed", 2, "upsampling"), ("torch", 3, "upsampling")],
)
def test_a_real_detector_has_the_same_losses_on_some_workers_as_on_one(tmp_path, engine, workers, adapter):
    write_archive(tmp_path / "prepared")
    # Fresh batch norms on noise: 1e-7 of the weights moves the gradient's norm by 1e-3 (torch's own norm in float32 is further
    # from float64 than the one over workers), and with it all that comes after the first step.
    steps, exactness = (1, 2e-2) if adapter == "hybrid" else (2, 2e-4)
    alone = detection_losses(LocalWorker(), tmp_path, steps, adapter=adapter)
    together = run_crew(detection_losses, tmp_path, workers, steps=steps, engine=engine, adapter=adapter)
    assert all(member == together[0] for member in together)
    for one, two in zip(alone, together[0], strict=True):
        # Every term is a mean over the global batch: assignment, augmentation and contrastive
        # draws do not depend on the workers.
        assert one.pop("gradient_norm") == pytest.approx(two.pop("gradient_norm"), rel=exactness)
        assert one == pytest.approx(two, rel=2e-4)
    assert max(one["contrastive"] for one in alone) > 0  # some batch has calls


def test_an_online_teacher_shares_the_averages_of_a_sharded_engine_as_they_move():
    engine = toy_engine("deepspeed", zero_stage=2)
    teacher = sharing(engine.objective, engine.shared_averages())
    engine.set_epoch(0.0)
    for batch, _ in itertools.islice(ToyFeed(SCHEDULE).micro_batches(0, 2, None), 2):
        engine.backward(batch, is_last=True)
        engine.step(1e-2)
    averaged = engine.averaged_weights()
    assert all(torch.equal(value, averaged[name]) for name, value in teacher.named_parameters())
    assert not torch.equal(teacher.head.weight, engine.objective.head.weight)
