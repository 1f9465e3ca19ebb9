"""Which engine `auto` takes, and why; what settings ask of one."""

import pytest
import torch

from mast_ray.boxes.batch import ChunkBatch, pad_boxes
from mast_ray.config.loading import apply_overrides
from mast_ray.config.recipes import tiny
from mast_ray.training.assembly import detection, engine_of, reconstruction
from mast_ray.training.engine_choice import choose_engine
from mast_ray.training.schedule import schedule_of
from mast_ray.training.worker import LocalWorker


@pytest.mark.parametrize(
    ("device", "processes", "name", "reason"),
    [
        ("cuda", 1, "torch", "nothing to shard"),
        ("cuda", 2, "deepspeed", "over 2 GPU workers"),
        ("cuda", 64, "deepspeed", "over 64 GPU workers"),
        ("cpu", 1, "torch", "CPU workers"),
        ("cpu", 8, "torch", "CPU workers"),
    ],
)
def test_auto_takes_deepspeed_on_two_or_more_gpu_workers_and_says_why(device, processes, name, reason):
    choice = choose_engine("auto", torch.device(device), processes)
    assert choice.name == name and reason in choice.reason


def test_a_named_engine_is_taken_whatever_the_hardware():
    assert choose_engine("torch", torch.device("cuda"), 8) == ("torch", "as configured")
    assert choose_engine("deepspeed", torch.device("cpu"), 1) == ("deepspeed", "as configured")


def masked_batch():
    logmel = torch.randn(2, 1, 1024, 128, generator=torch.Generator().manual_seed(0))
    return ChunkBatch(logmel, pad_boxes([torch.zeros(0, 4)] * 2), torch.ones(2))


def one_loss(**knobs):
    config = apply_overrides(tiny(), {"pretrain.batch_size": 2, "cluster.use_gpu": "no"} | knobs)
    schedule = schedule_of(config.pretrain, 4)
    objective = reconstruction(config)
    engine = engine_of(objective, config, config.pretrain, schedule, LocalWorker(), "pretrain")
    engine.set_epoch(0.0)
    losses = engine.backward(masked_batch(), is_last=True)
    return float(losses["loss"]), float(engine.step(1e-3)), objective


def test_activations_computed_again_change_neither_loss_nor_gradient_norm():
    kept_loss, kept_norm, kept = one_loss()
    again_loss, again_norm, again = one_loss(**{"cluster.checkpoint_activations": "on"})
    assert (kept_loss, kept_norm) == (again_loss, again_norm)
    stacks = (again.autoencoder.encoder, again.autoencoder.decoder)
    assert all(stack.recomputes for stack in stacks) and not kept.autoencoder.encoder.recomputes


def test_a_model_without_such_blocks_says_that_the_setting_is_left_aside(caplog):
    knobs = {"model.name": "resnet_fpn", "cluster.checkpoint_activations": "on", "cluster.use_gpu": "no"}
    config = apply_overrides(tiny(), knobs)
    objective = detection(config, config.detector)
    engine_of(objective, config, config.detector, schedule_of(config.detector, 8), LocalWorker(), "detector")
    assert "cluster.checkpoint_activations=on is left aside: model.name=resnet_fpn" in caplog.text
