"""The arithmetic of `mast plan`, by hand."""

import pytest

from mast_ray.config.recipes import RECIPES
from mast_ray.tables.assumed_rates import Rates
from mast_ray.tables.planning import Archive, Hardware, plan_stages, stored_bytes

RATES = Rates(1000.0, 1000.0, 2000.0, 500.0, 2000.0, 1000.0)


def stages(archive, gpus=1, **options):
    config = RECIPES["field"]()
    return {s.name: s for s in plan_stages(archive, config, Hardware(gpus, 10), options.get("rates", RATES))}


def test_the_papers_pool_has_its_size():
    assert stored_bytes(481_245, "float16") == 481_245 * 512 * 128 * 2
    assert Archive(661.7, 1, 1).num_chunks == pytest.approx(481_245, rel=0.04)


def test_stages_are_as_slow_as_their_slowest_part():
    archive = Archive(hours=1000.0, num_recordings=10_000, num_bytes=345_600_000_000, labelled_hours=10.24)
    found = stages(archive)
    # prepare: 3.6e6 s at 1000x on 10 cores, twice (decode, log-mel): 0.2 h; network
    # 345,600 MB at 1000 MB/s: 0.096 h
    assert found["prepare"].hours == pytest.approx(0.2) and found["prepare"].limit == "cores"
    assert found["prepare"].gpu_hours == 0
    # detect: 703,125 chunks at 2000/s: 0.0977 h; decode 0.1 h on the cores
    assert found["detect"].limit == "cores" and found["detect"].hours == pytest.approx(0.1)
    # train: 7200 chunks x 200 epochs at 500/s
    assert found["train"].hours == pytest.approx(7200 * 200 / 500 / 3600)


def test_more_gpus_take_less_time_and_the_same_gpu_hours():
    archive = Archive(1000.0, 10_000, 10**9, 24.0)
    one, eight = stages(archive, 1), stages(archive, 8)
    assert eight["train"].hours == pytest.approx(one["train"].hours / 8)
    assert eight["train"].gpu_hours == pytest.approx(one["train"].gpu_hours)
    assert eight["pretrain"].limit == "network"  # eight GPUs of one node outrun its network card


def test_without_labels_only_what_needs_none_is_planned():
    assert set(stages(Archive(10.0, 10, 10**9))) == {"prepare", "pretrain", "detect"}
