"""Two training processes over gloo without Ray: each runs the same function and
leaves what it returns in a file.
"""

from __future__ import annotations

import json
import multiprocessing
import os
from pathlib import Path

import torch
import torch.distributed as dist
from torch.multiprocessing import start_processes
from toy import SCHEDULE, ToyFeed, toy_engine, toy_fit

from mast_ray.training.worker import GroupWorker


def run_crew(function, folder: Path, world_size: int, **arguments) -> list:
    """Results of all ranks."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "store").unlink(missing_ok=True)
    # forked off a server that has imported everything: importing takes each of them seconds
    multiprocessing.set_forkserver_preload(["deepspeed", "crew", "mast_ray.training.assembly"])
    given = (function, str(folder), world_size, arguments)
    start_processes(_member, given, nprocs=world_size, start_method="forkserver")
    return [json.loads((folder / f"rank{rank}.json").read_text()) for rank in range(world_size)]


def _member(rank, function, folder, world_size, arguments):
    os.environ["LOCAL_RANK"] = str(rank)
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=world_size)
    result = function(GroupWorker("cpu"), Path(folder), **arguments)
    (Path(folder) / f"rank{rank}.json").write_text(json.dumps(result))
    dist.barrier()
    dist.destroy_process_group()


def fit_toy(worker, folder, engine="torch", zero_stage=1, precision="fp32", stop_before=None, accumulate=1):
    """A toy fit by one rank; returns the chunks it saw."""
    from dataclasses import replace

    schedule = replace(SCHEDULE, accumulate=accumulate)
    built = toy_engine(
        engine, schedule=schedule, num_processes=worker.world_size, zero_stage=zero_stage, precision=precision
    )
    feed = ToyFeed(schedule, worker.rank, worker.world_size, stop_before=stop_before)
    try:
        toy_fit(folder / "run", built, feed, worker=worker, schedule=schedule)
    except KeyboardInterrupt:
        assert stop_before is not None
    return feed.seen


def hand_over(worker, folder, engines, steps_each=2) -> dict:
    """A toy run whose engines take turns, each with the state of the one before; how far a state was from the one that
    was loaded, and the weights of the head in the end.
    """
    state, lost = None, []
    for turn, (name, zero_stage) in enumerate(engines):
        engine = toy_engine(name, num_processes=worker.world_size, zero_stage=zero_stage)
        if state is not None:
            engine.load_state(state)
            lost.append(largest_loss(state, engine.state()))
        first = turn * steps_each
        feed = ToyFeed(SCHEDULE, worker.rank, worker.world_size)
        for step, (batch, _) in enumerate(feed.micro_batches(first, first + steps_each, None), first):
            engine.set_epoch(SCHEDULE.epoch_of_step(step))
            weight = len(batch.weight) * worker.world_size / SCHEDULE.batch_size
            engine.backward(batch, is_last=True, weight=weight)
            engine.step(SCHEDULE.rate_at(step * SCHEDULE.batch_size))
        state = engine.state()
    return {
        "lost": lost,
        "head": state.weights["head.weight"].flatten().tolist(),
        "steps": state.optimizer_steps,
    }


def largest_loss(first, second) -> float:
    """Between two engine states; infinite where one has what the other has not."""
    if first.optimizer_steps != second.optimizer_steps:
        return float("inf")
    parts = ("weights", "average", "first_moment", "second_moment")
    return max(
        float((getattr(first, part)[name] - getattr(second, part)[name]).abs().max())
        for part in parts
        for name in getattr(first, part)
    )


def detection_losses(worker, folder, steps=2, engine="torch", adapter="upsampling") -> list:
    """Losses of the first steps of a real detector on the archive of noise below
    `folder`, means over workers.
    """
    from mast_ray.config.loading import apply_overrides
    from mast_ray.config.recipes import tiny
    from mast_ray.spectrogram.augmentation import AugmentStrength
    from mast_ray.stages.train.work import EXPERTS
    from mast_ray.tables.prepared import open_prepared
    from mast_ray.tables.reading.reader import ChunkReader
    from mast_ray.training.assembly import detection, engine_of
    from mast_ray.training.data.augmenting import StepAugmentation, noise_bank
    from mast_ray.training.data.feed import ReaderFeed
    from mast_ray.training.data.labels import attach_boxes, labelled_chunks, quiet_chunks
    from mast_ray.training.loop import seed_draws
    from mast_ray.training.progress import Stopwatch
    from mast_ray.training.schedule import schedule_of
    from mast_ray.training.step_notes import StepNotes

    knobs = {"detector.batch_size": 4, "cluster.lanes": 4, "cluster.use_gpu": "no", "cluster.engine": engine,
             "model.adapter": adapter}  # fmt: skip
    config = apply_overrides(tiny(), knobs)
    prepared, knobs = open_prepared(folder / "prepared"), config.detector
    normalisation = prepared.normalisation()
    labelled = labelled_chunks(prepared, EXPERTS, config)
    reader = ChunkReader(prepared, labelled.chunks, batch_size=4, lanes=4, num_threads=1)
    attach_boxes(reader, prepared, labelled)
    schedule, objective = schedule_of(knobs, len(reader)), detection(config, knobs, worker.rank)
    engine = engine_of(objective, config, knobs, schedule, worker, "detector")
    bank = noise_bank(
        prepared, quiet_chunks(reader, prepared, labelled, config), normalisation, "real", worker.device, 0
    )
    augmentation = StepAugmentation(
        AugmentStrength(), 0.9, normalisation, batch_size=4, seed=0, device=worker.device, noise_bank=bank
    )
    feed = ReaderFeed(reader, worker, schedule, normalisation, augmentation=augmentation)
    found = []
    engine.set_epoch(0.0)
    for step, (batch, rows) in enumerate(feed.micro_batches(0, steps, Stopwatch(1))):
        seed_draws(engine.objective, step, rows, schedule.batch_size, worker.rank)
        watch = StepNotes(worker.device)
        losses = engine.backward(batch, is_last=True)
        watch.add(step, losses, engine.step(1e-3), batch.chunk_ids)
        found.append(watch.read()[0])
    return found
