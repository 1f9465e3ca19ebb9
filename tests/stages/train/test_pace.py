"""How fast this machine trains: measured once for a run, and what is planned from it."""

import json

import pytest

from mast_ray.config.recipes import RECIPES
from mast_ray.stages.train import pace
from mast_ray.storage.storage import open_storage
from mast_ray.tables.assumed_rates import CPU_TINY
from mast_ray.training.files.shipped import shipped_model


def test_a_run_measures_once_and_plans_the_same_when_it_is_started_again(tmp_path, monkeypatch):
    measured = iter((2.3456, 9.0))
    monkeypatch.setattr(pace, "chunks_per_second", lambda config, model: next(measured))
    out = open_storage(tmp_path)
    first = pace.pace_of_run(RECIPES["tiny"](), "model", out)
    assert first == 2.3
    assert pace.pace_of_run(RECIPES["tiny"](), "model", out) == first
    assert json.loads((tmp_path / pace.PACE).read_text()) == {"train_chunks_per_s": 2.3}


def test_a_pace_that_was_never_written_to_its_end_is_measured_again(tmp_path, monkeypatch):
    monkeypatch.setattr(pace, "chunks_per_second", lambda config, model: 3.0)
    (tmp_path / pace.PACE).write_bytes(b"")
    out = open_storage(tmp_path)
    assert [pace.pace_of_run(RECIPES["tiny"](), "model", out) for _ in range(2)] == [3.0, 3.0]


def test_a_measured_pace_is_that_of_a_real_step():
    assert 0.01 < pace.chunks_per_second(RECIPES["tiny"](), str(shipped_model("tiny"))) < 1000


def test_a_machine_of_half_the_pace_has_half_of_every_assumed_rate_of_a_processor():
    rates = pace.cpu_rates(CPU_TINY.train_chunks_per_gpu_s / 2)
    for name in ("pretrain_chunks_per_gpu_s", "train_chunks_per_gpu_s", "infer_chunks_per_gpu_s"):
        assert getattr(rates, name) == pytest.approx(getattr(CPU_TINY, name) / 2)
    assert rates.decode_x_per_core == CPU_TINY.decode_x_per_core
