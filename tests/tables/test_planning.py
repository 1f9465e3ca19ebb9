"""The arithmetic of `mast plan`, by hand."""

import pytest

from mast_ray.config.loading import apply_overrides
from mast_ray.config.recipes import RECIPES
from mast_ray.tables.assumed_rates import Rates, gpu_rates
from mast_ray.tables.planning import Archive, Hardware, learned_chunks, plan_stages, stored_bytes

RATES = Rates(1000.0, 1000.0, 2000.0, 500.0, 2000.0, 1000.0)


def stages(archive, gpus=1, **options):
    config = RECIPES["field"]()
    return {s.name: s for s in plan_stages(archive, config, Hardware(gpus, 10), options.get("rates", RATES))}


def test_the_papers_pool_has_its_size():
    assert stored_bytes(481_245, "float16") == 481_245 * 512 * 128 * 2
    assert Archive(661.7, 1, 1).num_chunks == pytest.approx(481_245, rel=0.04)


def test_ten_million_clips_of_a_second_are_ten_million_chunks():
    clips = Archive(hours=10_000_000 / 3600, num_recordings=10_000_000, num_bytes=10**12)
    assert clips.num_chunks == 10_000_000  # a chunk is padded: by their hours they would be 1,953,125
    assert Archive(hours=clips.hours, num_recordings=1, num_bytes=1).num_chunks == 1_953_125
    # 2,000 a second on one GPU
    assert stages(clips)["detect"].hours == pytest.approx(10_000_000 / 2000 / 3600)


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


def test_rates_are_those_of_the_model_that_is_planned():
    field, paper = RECIPES["field"](), RECIPES["paper"]()
    ours, printed = gpu_rates(field), gpu_rates(paper)
    assert (printed.pretrain_chunks_per_gpu_s, printed.train_chunks_per_gpu_s) == (2050.0, 845.0)
    assert (ours.pretrain_chunks_per_gpu_s, ours.train_chunks_per_gpu_s) == (930.0, 645.0)
    alone = gpu_rates(apply_overrides(field, {"pretrain.side_path": False}))
    assert (alone.pretrain_chunks_per_gpu_s, alone.train_chunks_per_gpu_s) == (2050.0, 645.0)
    assert gpu_rates(apply_overrides(field, {"model.name": "fcos"})) == printed
    assert ours.decode_x_per_core == printed.decode_x_per_core


def test_few_labels_are_gone_through_as_often_as_the_recipe_asks():
    knobs = RECIPES["field"]().detector
    assert (knobs.epochs, knobs.batch_size, knobs.min_steps) == (200, 64, 1800)
    assert learned_chunks(knobs, 7200) == 7200 * 200
    assert learned_chunks(knobs, 128) == 900 * 128, "two steps a pass: 900 passes for 1,800 steps"
    assert learned_chunks(knobs, 10) == 1800 * 64, "a batch is filled"
    assert learned_chunks(knobs.model_copy(update={"max_steps": 100}), 7200) == 100 * 64


@pytest.mark.parametrize(
    ("curriculum", "pool_passes", "label_passes", "hears"),
    [("two_stage", 80.0, 40, 1), ("stage2_only", 0.0, 40, 0), ("mixed", 160.0, 0, 1), ("mixed_then_expert", 160.0, 40, 1),
     ("union", 80.0, 80, 1), ("ceiling", 160.0, 0, 0)],
)  # fmt: skip
def test_a_round_takes_what_its_curriculum_trains(curriculum, pool_passes, label_passes, hears):
    archive = Archive(1000.0, 10_000, 10**9, 10.24)
    knobs = {"self_train.curriculum": curriculum, "self_train.rounds": 3, "self_train.teacher_hearings": 2}
    config = apply_overrides(RECIPES["field"](), knobs)
    found = {one.name: one for one in plan_stages(archive, config, Hardware(1, 10), RATES)}
    learned = 3 * (archive.num_chunks * pool_passes + 7200 * label_passes)
    assert found["self-train"].hours == pytest.approx(learned / 500 / 3600)
    assert ("pseudo-label" in found) == bool(hears)
    if hears:
        assert found["pseudo-label"].hours == pytest.approx(3 * 2 * archive.num_chunks / 2000 / 3600)


def test_without_labels_only_what_needs_none_is_planned():
    assert set(stages(Archive(10.0, 10, 10**9))) == {"prepare", "pretrain", "detect"}
