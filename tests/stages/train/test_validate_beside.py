"""Weights scored by a process beside the training get the figures that the workers would have given them."""

import json

import pytest
from safetensors.torch import load_file
from small_archive import make_prepared, small_config

from mast_ray.config.tree import ClusterConfig
from mast_ray.on_ray.beside import Room, room_beside
from mast_ray.stages.runner import HERE, ON_RAY
from mast_ray.stages.train.train import run_pretrain, run_train_detector
from mast_ray.storage.spread import Resources


def cluster(**knobs):
    return ClusterConfig(num_workers=2, **knobs)


@pytest.mark.parametrize(
    ("knobs", "offered", "use_gpu", "room"),
    [
        ({}, Resources(16, 2), True, None),  # both GPUs are the workers'
        ({}, Resources(16, 3), True, (1.0, 1.0, 1.0)),
        ({}, Resources(16, 0), False, None),
        ({"validate": "inline"}, Resources(16, 3), True, None),
        ({"validate": "beside"}, Resources(2, 2), True, (0.0, 0.1, 0.9)),
        ({"validate": "beside"}, Resources(3, 0), False, (1.0, 0.0, 0.0)),
        ({"validate": "beside"}, Resources(2, 0), False, (0.0, 0.0, 0.0)),
        ({"validate": "beside", "cpus_per_worker": 4.0}, Resources(12, 4), True, (4.0, 1.0, 1.0)),
    ],
)
def test_where_weights_are_scored(knobs, offered, use_gpu, room):
    found = room_beside(cluster(**knobs), offered, use_gpu)
    assert (None if found is None else found[:3]) == room
    assert found is None or isinstance(found, Room)


def figures_of(folder):
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    rows = [row for row in rows if row["kind"] == "validation"]
    return sorted(rows, key=lambda row: row["step"])


def close(figures):
    """The same names, and numbers that differ in last bits at the most; `kind` is a word."""
    return {
        name: pytest.approx(value, rel=1e-5, nan_ok=True) if isinstance(value, float) else value
        for name, value in figures.items()
    }


@pytest.mark.ray
@pytest.mark.slow
def test_beside_on_ray_gives_the_figures_weights_and_choice_of_inline(tmp_path):
    from mast_ray.on_ray.session import ray_session

    prepared = str(make_prepared(tmp_path / "small", num_recordings=8, seconds=11))
    knobs = {"detector.max_steps": 6, "detector.validate_every_epochs": 0.5, "pretrain.epochs": 2}
    config = small_config(**knobs | {"cluster.validate": "beside"})
    stages = {"encoder": run_pretrain, "detector": run_train_detector}
    with ray_session(num_cpus=2):
        found = {
            name: train(config, prepared, str(tmp_path / "beside" / name), runner=ON_RAY)
            for name, train in stages.items()
        }
    for name, train in stages.items():
        beside = found[name]
        inline = train(small_config(**knobs), prepared, str(tmp_path / "inline" / name), runner=HERE)
        # of two processes: sums of their threads may differ in last bits
        rows, wanted = (figures_of(tmp_path / where / name) for where in ("beside", "inline"))
        assert rows == [close(row) for row in wanted] and len(wanted) >= 2
        assert beside.best_step == inline.best_step
        weights = [
            load_file(tmp_path / where / name / "weights.safetensors") for where in ("beside", "inline")
        ]
        assert list(weights[0]) == list(weights[1])
        for key, values in weights[0].items():
            assert (values - weights[1][key]).abs().float().mean() < 1e-4, key
        assert (beside.best, beside.last) == (close(inline.best), close(inline.last))


@pytest.mark.slow
def test_in_one_process_nothing_is_beside_and_that_is_said(tmp_path, caplog):
    prepared = str(make_prepared(tmp_path / "small", num_recordings=8, seconds=11))
    config = small_config(**{"pretrain.max_steps": 2, "cluster.validate": "beside"})
    with caplog.at_level("WARNING"):
        summary = run_pretrain(config, prepared, str(tmp_path / "encoder"), runner=HERE)
    assert summary.best_step > 0 and "validation is inline" in caplog.text
