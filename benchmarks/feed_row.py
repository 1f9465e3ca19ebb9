"""One row of feed_speed.py: a pretraining through Ray Train by one feed, in this process.

python benchmarks/feed_row.py ray_data '{"work": "DIR", "size": "tiny", "batch": 8, ...}' out.json
"""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from typing import Any

from ingest import make_prepared
from train_throughput import steady_rate

from mast_ray.config.loading import apply_overrides, parse_set
from mast_ray.config.recipes import field
from mast_ray.config.tree import Config
from mast_ray.on_ray.session import quiet_ray_data, ray_session
from mast_ray.stages.train.train import run_pretrain
from mast_ray.storage.storage import open_storage
from mast_ray.training.files.metrics_log import read_metrics

SEGMENTS = 13  # of a minute


def main() -> None:
    name, settings, out = sys.argv[1], json.loads(sys.argv[2]), Path(sys.argv[3])
    work = Path(settings["work"])
    prepared = work / f"noise_{settings['recordings']}"
    if not (prepared / "manifest.json").exists():
        shutil.rmtree(prepared, ignore_errors=True)
        make_prepared(prepared, settings["recordings"], SEGMENTS, "uint8")
    if name == "archive":
        out.write_text(json.dumps({"recordings": settings["recordings"]}))
        return
    with ray_session():
        quiet_ray_data()
        if name == "iter_torch_batches":
            from plain_ray_data import measured

            row = measured(config_of("reader", settings), str(prepared), work, settings["warmup"])
        else:
            row = trained(name, settings, prepared, work)
    row["chunks_per_s"] = round(row["chunks_per_s"], 1)
    out.write_text(json.dumps(row))


def trained(feed: str, settings: dict[str, Any], prepared: Path, work: Path) -> dict[str, float]:
    """A real run; its rate from the metrics it left."""
    out = work / f"pretrain-{feed}"
    shutil.rmtree(out, ignore_errors=True)
    run_pretrain(config_of(feed, settings), str(prepared), str(out))
    rows = [row for row in read_metrics(open_storage(out)) if row["kind"] == "train"]
    rate, _ = steady_rate(rows, settings["warmup"])
    return {
        "chunks_per_s": rate.chunks_per_s,
        "wait_share": round(rate.wait_share, 4),
        "first_loss": rows[0]["loss"],
        "last_loss": rows[-1]["loss"],
    }


def config_of(feed: str, settings: dict[str, Any]) -> Config:
    knobs: dict[str, Any] = {
        "model.size": settings["size"],
        "spectrogram.background": "none",
        "pretrain.batch_size": settings["batch"],
        "pretrain.epochs": 10_000,
        "pretrain.max_steps": settings["steps"],
        "pretrain.validate_every_epochs": 10_000,
        "pretrain.learning_rate": 1e-4,
        "cluster.feed": feed,
        "cluster.engine": "torch",
        "cluster.cpus_per_worker": settings["cpus_per_worker"],
        "cluster.checkpoint_every_steps": 10**9,
        "cluster.reader_threads": settings["threads"],
        "evaluate.batch_size": min(64, settings["batch"]),
    }
    return apply_overrides(field(), knobs | parse_set(settings["sets"]))


if __name__ == "__main__":
    main()
