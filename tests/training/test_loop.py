"""The loop on a toy objective in this process: it learns, resumes exactly, skips
bad steps, and explains itself.
"""

import math
import re
from dataclasses import replace

import pytest
import torch
from toy import SCHEDULE, ToyFeed, ToyObjective, losses_of, toy_engine, toy_files, toy_fit, weights_equal

from mast_ray.config.errors import ConfigError, TemporaryError
from mast_ray.storage.storage import open_storage
from mast_ray.training.files.metrics_log import read_metrics
from mast_ray.training.loop import FitOptions
from mast_ray.training.step_notes import TrainingDivergedError


def test_a_fit_of_four_epochs_learns_validates_each_epoch_and_leaves_best_and_last_checkpoints(tmp_path):
    engine = toy_engine()
    result = toy_fit(tmp_path, engine, ToyFeed(SCHEDULE))
    assert result.position.steps_done == SCHEDULE.num_steps == 16
    assert result.position.samples_seen == 128
    losses = losses_of(tmp_path)
    assert sum(losses[-4:]) < 0.7 * sum(losses[:4])
    validations = [row for row in read_metrics(open_storage(tmp_path)) if row["kind"] == "validation"]
    assert [row["step"] for row in validations] == [4, 8, 12, 16]
    files = toy_files(tmp_path)
    assert files.checkpoints.names() == ["step-0000000015", "step-0000000016"]
    best = min(validations, key=lambda row: row["error"])
    assert result.position.best_step == best["step"]
    probe = ToyObjective()
    probe.load_state_dict(files.best.read(best["step"]))


def test_epochs_of_a_step_share_checkpoints(tmp_path):
    short = replace(SCHEDULE, samples_per_epoch=8, epochs=40, validate_every_epochs=8)
    options = FitOptions(log_every_steps=1000)  # besides: at validations and checkpoints
    toy_fit(tmp_path, toy_engine(schedule=short), ToyFeed(short), schedule=short, options=options)
    assert toy_files(tmp_path).checkpoints.names() == ["step-0000000032", "step-0000000040"]
    rows = read_metrics(open_storage(tmp_path))
    assert [row["step"] for row in rows if row["kind"] == "train"] == [8, 16, 24, 32, 40]


@pytest.mark.parametrize("stop", [1, 5, 9, 15])
def test_a_run_stopped_before_any_step_and_started_again_ends_with_the_same_bits(tmp_path, stop):
    undisturbed = toy_engine()
    toy_fit(tmp_path / "whole", undisturbed, ToyFeed(SCHEDULE))
    with pytest.raises(KeyboardInterrupt):
        toy_fit(tmp_path / "stopped", toy_engine(), ToyFeed(SCHEDULE, stop_before=stop))
    resumed, feed = toy_engine(), ToyFeed(SCHEDULE)
    result = toy_fit(tmp_path / "stopped", resumed, feed)
    assert result.resumed_from_step == stop // 3 * 3
    assert feed.seen[0] == f"s{stop // 3 * 3}:0"
    first, second = undisturbed.state(), resumed.state()
    assert weights_equal(first.weights, second.weights)
    assert weights_equal(first.average, second.average)
    assert weights_equal(first.second_moment, second.second_moment)
    assert losses_of(tmp_path / "stopped") == losses_of(tmp_path / "whole")


def test_a_finished_run_started_again_does_no_step(tmp_path):
    toy_fit(tmp_path, toy_engine(), ToyFeed(SCHEDULE))
    feed = ToyFeed(SCHEDULE)
    assert toy_fit(tmp_path, toy_engine(), feed).resumed_from_step == 16
    assert feed.seen == []


def test_a_damaged_newest_checkpoint_is_left_for_the_one_before_and_the_end_is_the_same(tmp_path):
    undisturbed = toy_engine()
    toy_fit(tmp_path / "whole", undisturbed, ToyFeed(SCHEDULE))
    with pytest.raises(KeyboardInterrupt):
        toy_fit(tmp_path / "damaged", toy_engine(), ToyFeed(SCHEDULE, stop_before=8))
    newest = tmp_path / "damaged" / "checkpoints" / "step-0000000006" / "weights.safetensors"
    data = bytearray(newest.read_bytes())
    data[-3] ^= 1
    newest.write_bytes(data)
    resumed = toy_engine()
    assert toy_fit(tmp_path / "damaged", resumed, ToyFeed(SCHEDULE)).resumed_from_step == 3
    assert weights_equal(undisturbed.state().weights, resumed.state().weights)


def test_a_run_whose_last_checkpoint_cannot_be_written_has_not_come_to_its_end(tmp_path):
    undisturbed = toy_engine()
    toy_fit(tmp_path / "whole", undisturbed, ToyFeed(SCHEDULE))
    in_the_way = tmp_path / "stopped/checkpoints/step-0000000016"

    class InTheWay(ToyFeed):
        """Something lies where the last checkpoint should go."""

        def micro_batches(self, first_step, num_steps, watch):
            for step, batch in enumerate(super().micro_batches(first_step, num_steps, watch)):
                if step == 15:
                    in_the_way.touch()
                yield batch

    with pytest.raises(TemporaryError, match="the checkpoint of the last step could not be written"):
        toy_fit(tmp_path / "stopped", toy_engine(), InTheWay(SCHEDULE))
    in_the_way.unlink()
    resumed = toy_engine()
    assert toy_fit(tmp_path / "stopped", resumed, ToyFeed(SCHEDULE)).resumed_from_step == 15
    assert weights_equal(undisturbed.state().weights, resumed.state().weights)


def test_a_step_that_is_not_finite_is_skipped_counted_and_leaves_the_weights_alone(tmp_path):
    engine = toy_engine()
    before = {}

    class Watching(ToyFeed):
        def micro_batches(self, first_step, num_steps, watch):
            for step, batch in enumerate(super().micro_batches(first_step, num_steps, watch)):
                if step in (5, 6):
                    before[step] = {
                        name: value.clone() for name, value in engine.objective.state_dict().items()
                    }
                yield batch

    result = toy_fit(tmp_path, engine, Watching(SCHEDULE, spoil=[5]))
    assert result.position.skipped_steps == 1
    assert weights_equal(before[5], before[6])
    assert all(torch.isfinite(value).all() for value in engine.state().weights.values())
    assert math.isnan(float(losses_of(tmp_path)[5]))


def test_twenty_bad_steps_in_a_row_stop_the_run_and_name_components_and_chunks(tmp_path):
    schedule = replace(SCHEDULE, epochs=20)
    options = FitOptions(log_every_steps=7)
    with pytest.raises(TrainingDivergedError) as error:
        toy_fit(
            tmp_path, toy_engine(), ToyFeed(schedule, spoil=range(3, 80)), schedule=schedule, options=options
        )
    text = str(error.value)
    assert "20 steps in a row" in text and "squared_error=nan" in text and "s23:0" in text
    assert len(text.splitlines()) <= 3


def test_nineteen_bad_steps_in_a_row_are_survived(tmp_path):
    schedule = replace(SCHEDULE, epochs=8)
    result = toy_fit(
        tmp_path, toy_engine(), ToyFeed(schedule, spoil=range(3, 22)), schedule=schedule, options=FitOptions()
    )
    assert result.position.skipped_steps == 19


def test_another_run_in_the_same_folder_is_refused_by_the_setting_that_differs(tmp_path):
    toy_fit(tmp_path, toy_engine(), ToyFeed(SCHEDULE), identity={"seed": 0, "data": "a"})
    folder = re.escape(str(tmp_path))  # all of it: scores beside the checkpoints are of those settings too
    with pytest.raises(
        ConfigError, match=rf"^{folder} holds a run with other settings \(data: recordings or labels\)"
    ):
        toy_fit(tmp_path, toy_engine(), ToyFeed(SCHEDULE), identity={"seed": 0, "data": "b"})


@pytest.mark.parametrize("name", ["torch", pytest.param("deepspeed", marks=pytest.mark.deepspeed)])
def test_a_run_of_a_network_that_has_changed_shape_is_refused_with_what_to_do(tmp_path, monkeypatch, name):
    toy_fit(tmp_path, toy_engine(), ToyFeed(SCHEDULE))
    assert toy_fit(tmp_path, toy_engine(name, zero_stage=3), ToyFeed(SCHEDULE)).resumed_from_step == 16
    begin = ToyObjective.__init__

    def begin_wider(self):
        begin(self)
        self.adapter, self.head = torch.nn.Linear(16, 24), torch.nn.Linear(24, 1, bias=False)

    monkeypatch.setattr(ToyObjective, "__init__", begin_wider)
    with pytest.raises(
        ConfigError, match=r"another shape \(4 weights: adapter.bias, adapter.weight\)"
    ) as error:
        toy_fit(tmp_path, toy_engine(name, zero_stage=3), ToyFeed(SCHEDULE))
    assert len(str(error.value).splitlines()) <= 3


def test_frozen_blocks_do_not_move_until_their_epoch_and_then_move(tmp_path):
    engine = toy_engine()
    history = []

    class Watching(ToyFeed):
        def micro_batches(self, first_step, num_steps, watch):
            for batch in super().micro_batches(first_step, num_steps, watch):
                history.append({name: value.clone() for name, value in engine.objective.state_dict().items()})
                yield batch

    toy_fit(tmp_path, engine, Watching(SCHEDULE))
    history.append(engine.state().weights)
    # Block 2 trains from the start, block 1 from epoch 1 (step 4), block 0 and the
    # stem from epoch 2 (step 8).
    first_moves = {
        name: next(
            step for step in range(16) if not torch.equal(history[step][name], history[step + 1][name])
        )
        for name in history[0]
    }
    assert first_moves["head.weight"] == first_moves["encoder.blocks.2.weight"] == 0
    assert first_moves["encoder.blocks.1.weight"] == 4
    assert first_moves["encoder.blocks.0.weight"] == first_moves["encoder.patch.weight"] == 8


def test_accumulation_gives_the_losses_and_weights_of_the_undivided_batch(tmp_path):
    whole, parts = toy_engine(), toy_engine(schedule=replace(SCHEDULE, accumulate=4))
    toy_fit(tmp_path / "whole", whole, ToyFeed(SCHEDULE))
    schedule = replace(SCHEDULE, accumulate=4)
    toy_fit(tmp_path / "parts", parts, ToyFeed(schedule), schedule=schedule)
    assert losses_of(tmp_path / "parts") == pytest.approx(losses_of(tmp_path / "whole"), rel=1e-5)


def test_out_of_memory_names_the_batch_that_fits_and_the_setting_that_makes_it(tmp_path):
    engine = toy_engine()

    class Small(ToyObjective):
        def forward(self, batch):
            if len(batch.logmel) > 3:
                raise torch.OutOfMemoryError("out of memory")
            return super().forward(batch)

    engine.objective.__class__ = Small
    with pytest.raises(ConfigError) as error:
        toy_fit(tmp_path, engine, ToyFeed(SCHEDULE), options=FitOptions(section="pretrain"))
    assert "2 fit" in str(error.value) and "--set pretrain.accumulate=4" in str(error.value)
