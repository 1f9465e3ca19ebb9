"""Checkpoints: whole or not at all, damage of any kind is noticed, failing
storage is survived three times.
"""

import errno
import os
import random

import pytest
import torch
from toy import weights_equal

from mast_ray.config.errors import DataError, TemporaryError
from mast_ray.storage.storage import LocalStorage, open_storage
from mast_ray.training.engine import EngineState
from mast_ray.training.files.checkpoints import Checkpoints, Position, TrainingState


def state(step: int) -> TrainingState:
    generator = torch.Generator().manual_seed(step)
    weights = {"a.weight": torch.randn(7, 5, generator=generator), "steps": torch.tensor(step)}
    first, second = ({"a.weight": torch.randn(7, 5, generator=generator)} for _ in range(2))
    engine = EngineState(
        weights, {"a.weight": weights["a.weight"] + 1}, first, second, {"a.weight": 3.0}, (2.0, 5)
    )
    return TrainingState(Position(step, step * 8, 1, 2, 0.5, {"f1": 0.5}), engine, {"seed": 0})


def test_what_is_written_is_what_is_read(tmp_path):
    checkpoints = Checkpoints(open_storage(tmp_path))
    checkpoints.write(state(10))
    again = checkpoints.read(checkpoints.newest_good())
    assert again.position == state(10).position and again.identity == {"seed": 0}
    for part in ("weights", "average", "first_moment", "second_moment"):
        assert weights_equal(getattr(again.engine, part), getattr(state(10).engine, part))
    assert again.engine.optimizer_steps == {"a.weight": 3.0} and again.engine.loss_scale == (2.0, 5)


def test_the_two_newest_are_kept(tmp_path):
    checkpoints = Checkpoints(open_storage(tmp_path))
    for step in (2, 4, 6, 8):
        checkpoints.write(state(step))
    assert checkpoints.names() == ["step-0000000006", "step-0000000008"]


def test_a_hundred_random_damages_to_any_file_are_all_noticed_and_the_previous_one_is_used(
    tmp_path, record_property
):
    checkpoints = Checkpoints(open_storage(tmp_path))
    checkpoints.write(state(2))
    rng = random.Random(0)
    noticed, damaged = 0, set()
    for _ in range(100):
        checkpoints.write(state(4))
        files = sorted((tmp_path / "step-0000000004").iterdir())
        victim = rng.choice(files)
        damaged.add(victim.name)
        data = bytearray(victim.read_bytes())
        if rng.random() < 0.5:
            data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
        else:
            del data[rng.randrange(len(data)) :]
        victim.write_bytes(data)
        noticed += checkpoints.newest_good() == "step-0000000002"
    record_property("figure", f"{noticed} of 100 damages noticed")
    assert noticed == 100
    assert damaged == {
        "manifest.json",
        "state.json",
        "weights.safetensors",
        "average.safetensors",
        "moments.safetensors",
    }


@pytest.mark.parametrize("missing", ["manifest.json", "weights.safetensors", "state.json"])
def test_a_missing_file_is_noticed(tmp_path, missing):
    checkpoints = Checkpoints(open_storage(tmp_path))
    checkpoints.write(state(2))
    checkpoints.write(state(4))
    (tmp_path / "step-0000000004" / missing).unlink()
    assert checkpoints.newest_good() == "step-0000000002"
    with pytest.raises(DataError):
        checkpoints.read("step-0000000004")


def test_folders_that_were_never_finished_are_removed_and_good_ones_stay(tmp_path):
    checkpoints = Checkpoints(open_storage(tmp_path))
    checkpoints.write(state(2))
    checkpoints.write(state(4))
    (tmp_path / "step-0000000004" / "manifest.json").unlink()
    (tmp_path / ".tmp-left-by-a-kill").write_bytes(b"half")
    assert checkpoints.clean() == ["step-0000000004"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["step-0000000002"]


class FullDisk(LocalStorage):
    """A folder on a disk that is full from the n-th write on."""

    def publish(self, path, key):
        if (left := int(os.environ["WRITES_LEFT"])) == 0:
            raise OSError(errno.ENOSPC, "No space left on device", str(path))
        os.environ["WRITES_LEFT"] = str(left - 1)
        super().publish(path, key)


@pytest.mark.parametrize("writes", range(4))
def test_a_disk_that_fills_in_mid_write_leaves_nothing_behind_and_the_last_good_one_loads(
    tmp_path, monkeypatch, writes
):
    monkeypatch.setenv("WRITES_LEFT", "100")
    checkpoints = Checkpoints(FullDisk(str(tmp_path)))
    assert checkpoints.write(state(2))
    monkeypatch.setenv("WRITES_LEFT", str(writes))
    assert not checkpoints.write(state(4))
    assert checkpoints.names() == ["step-0000000002"]
    assert checkpoints.read(checkpoints.newest_good()).position.steps_done == 2


def test_two_failures_in_a_row_are_survived_and_the_third_stops_the_run_and_says_why(
    tmp_path, monkeypatch, caplog
):
    checkpoints = Checkpoints(FullDisk(str(tmp_path)))
    for _ in range(2):  # a success in between starts the count again
        monkeypatch.setenv("WRITES_LEFT", "0")
        assert not checkpoints.write(state(2)) and not checkpoints.write(state(3))
        monkeypatch.setenv("WRITES_LEFT", "100")
        assert checkpoints.write(state(4))
    assert "No space left on device" in caplog.text
    monkeypatch.setenv("WRITES_LEFT", "0")
    checkpoints.write(state(6))
    checkpoints.write(state(8))
    with pytest.raises(TemporaryError, match="3 checkpoints in a row") as error:
        checkpoints.write(state(10))
    assert "No space left" in str(error.value) and len(str(error.value).splitlines()) <= 3
    assert checkpoints.newest_good() == "step-0000000004"


def test_old_checkpoints_that_cannot_be_removed_stop_nothing_and_go_later(tmp_path, monkeypatch, caplog):
    checkpoints = Checkpoints(LocalStorage(str(tmp_path)))
    assert checkpoints.write(state(2)) and checkpoints.write(state(4))

    def away(*arguments):
        raise TemporaryError("cannot list the store: try again later")

    with monkeypatch.context() as outage:
        outage.setattr(Checkpoints, "names", away)
        assert checkpoints.write(state(6)) and "stay in" in caplog.text
    assert len(checkpoints.names()) == 3
    assert checkpoints.write(state(8))
    assert checkpoints.names() == ["step-0000000006", "step-0000000008"]
