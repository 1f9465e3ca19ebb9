"""Two training processes over gloo without Ray: each runs the same function and leaves what it returns in a file."""

from __future__ import annotations

import json
import os
from pathlib import Path

import torch
import torch.distributed as dist
import torch.multiprocessing as multiprocessing
from toy import SCHEDULE, ToyFeed, toy_engine, toy_fit

from mast_ray.training.worker import GroupWorker


def run_crew(function, folder: Path, world_size: int, **arguments) -> list:
    """Results of all ranks."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "store").unlink(missing_ok=True)
    multiprocessing.spawn(_member, (function, str(folder), world_size, arguments), nprocs=world_size)
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
