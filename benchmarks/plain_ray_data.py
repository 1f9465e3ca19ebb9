"""The rival of the feeds: a Ray Train loop over Ray Data's own `iter_torch_batches`, with the same step.

Segments come as they lie in the files; two neighbours of a batch make a chunk, whatever recording they are of: nothing
is cut, joined or shuffled, which is less than a training needs. A module of its own, so that workers can import it.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import ray.data
import ray.train
import ray.train.torch
import torch
from torch import Tensor

from mast_ray.boxes.batch import ChunkBatch, pad_boxes
from mast_ray.config.tree import Config
from mast_ray.tables.prepared import open_prepared
from mast_ray.training.assembly import engine_of, reconstruction
from mast_ray.training.loop import seed_draws
from mast_ray.training.schedule import schedule_of
from mast_ray.training.worker import LocalWorker


def measured(config: Config, prepared: str, work: Path, warmup: int) -> dict[str, float]:
    """Chunks per second after the first `warmup` steps, and the share of them spent waiting for a batch."""
    use_gpu = torch.cuda.is_available() and config.cluster.use_gpu != "no"
    out = work / "plain_ray_data.json"
    data = ray.data.read_parquet(f"{prepared}/frames", columns=["logmel"])
    ray.train.torch.TorchTrainer(
        loop,
        train_loop_config={"config": config, "prepared": prepared, "warmup": warmup, "out": str(out)},
        scaling_config=ray.train.ScalingConfig(
            num_workers=1,
            use_gpu=use_gpu,
            resources_per_worker={"CPU": config.cluster.cpus_per_worker} | ({"GPU": 1} if use_gpu else {}),
        ),
        run_config=ray.train.RunConfig(storage_path=str((work / "ray").resolve())),
        datasets={"frames": data},
    ).fit()
    return json.loads(out.read_text())


def loop(settings: dict[str, Any]) -> None:
    config: Config = settings["config"]
    device = ray.train.torch.get_device()
    knobs = config.pretrain
    normalisation = open_prepared(settings["prepared"]).normalisation()
    schedule = schedule_of(knobs, knobs.batch_size * 1000)
    engine = engine_of(reconstruction(config), config, knobs, schedule, LocalWorker(device), "pretrain")
    engine.set_epoch(0.0)
    batches = chunks_without_end(ray.train.get_dataset_shard("frames"), knobs.batch_size)
    begun, waited = 0.0, 0.0
    for step in range(schedule.num_steps):
        if step == settings["warmup"]:
            synchronise(device)
            begun, waited = time.perf_counter(), 0.0
        asked = time.perf_counter()
        values = next(batches)
        waited += time.perf_counter() - asked
        ones = torch.ones(len(values), device=device)
        logmel = normalisation(values.to(device), ones, ones)
        batch = ChunkBatch(logmel, pad_boxes([torch.zeros(0, 4)] * len(values)).to(device), ones)
        rows = torch.arange(len(values), device=device)
        seed_draws(engine.objective, step, rows, len(values), 0)
        engine.backward(batch, is_last=True)
        engine.step(1e-4)
    synchronise(device)
    seconds = time.perf_counter() - begun
    steps = schedule.num_steps - settings["warmup"]
    figures = {"chunks_per_s": steps * knobs.batch_size / seconds, "host_wait_share": waited / seconds}
    Path(settings["out"]).write_text(json.dumps(figures))


def chunks_without_end(shard: ray.data.DataIterator, batch_size: int) -> Iterator[Tensor]:
    while True:
        for batch in shard.iter_torch_batches(batch_size=2 * batch_size, drop_last=True, prefetch_batches=4):
            yield batch["logmel"].reshape(batch_size, 1024, 128)


def synchronise(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize()
