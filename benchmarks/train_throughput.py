"""Training through Ray Train from Parquet written by `mast prepare`, beside the bare compiled step
of model_steps.py on the same device.

    python benchmarks/train_throughput.py --work DIR --out train_throughput.json                      # one GPU, ViT-B, batch 256
    python benchmarks/train_throughput.py --work DIR --prepared PREPARED --what pretrain --engines torch deepspeed
    python benchmarks/train_throughput.py --work DIR --hours 0.2 --size tiny --batch 4 --steps 20 --warmup 10   # smoke check on a CPU

Without --prepared an archive is synthesised and prepared first (20,000 chunks are 29 hours). Rates leave
out the first `--warmup` steps (compilation), checkpoints and validation; the share of time waiting for data
counts only while the device was idle.
"""

from __future__ import annotations

import argparse
import json
import platform
import shutil
import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import torch

from mast_ray.config.loading import apply_overrides
from mast_ray.config.recipes import field
from mast_ray.config.tree import Config
from mast_ray.stages.runner import RUNNERS
from mast_ray.stages.train.train import run_pretrain, run_train_detector
from mast_ray.storage.storage import open_storage
from mast_ray.tables.prepared import open_prepared
from mast_ray.tables.reading.chunk_sets import chunks_of_split
from mast_ray.training.files.metrics_log import read_metrics

BENCHMARKS = Path(__file__).resolve().parent


def main() -> None:
    args = arguments()
    args.work.mkdir(parents=True, exist_ok=True)
    prepared = args.prepared or made_archive(args)
    opened = open_prepared(prepared)
    header = {
        "device": torch.cuda.get_device_name() if args.device == "cuda" else platform.machine(),
        "torch": torch.__version__,
        "size": args.size,
        "batch": args.batch,
        "steps": args.steps,
        "compile": args.compile,
        "runner": args.runner,
        "pool_chunks": len(chunks_of_split(opened, "pool")),
        "train_chunks": len(chunks_of_split(opened, "train")),
        "storage": opened.storage_type,
    }
    print(json.dumps(header, indent=2), flush=True)
    rows = []
    for what in args.what:
        bare = bare_rate(what, args)
        print(json.dumps({"what": what, "bare_step_chunks_per_s": bare}), flush=True)
        for engine in args.engines:
            row = trained(what, engine, prepared, args) | {"bare_chunks_per_s": bare}
            row["share_of_bare"] = round(row["chunks_per_s"] / bare, 3)
            rows.append(row)
            print(json.dumps(row), flush=True)
    if args.out:
        args.out.write_text(json.dumps({"configuration": header, "results": rows}, indent=2) + "\n")


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    has_gpu = torch.cuda.is_available()
    add = parser.add_argument
    add("--work", type=Path, required=True, help="folder for archive, tables and runs")
    add("--prepared", default="", help="prepared archive to use instead of making one")
    add("--hours", type=float, default=29.5, help="hours of audio to synthesise")
    add("--size", choices=("tiny", "small", "base"), default="base")
    add("--batch", type=int, default=256)
    add("--steps", type=int, default=200)
    add("--warmup", type=int, default=40)
    add("--what", nargs="+", choices=("pretrain", "train"), default=["pretrain", "train"])
    add("--engines", nargs="+", choices=("torch", "deepspeed"), default=["torch", "deepspeed"])
    add("--zero-stage", type=int, default=1)
    add("--threads", type=int, default=0, help="reader threads; 0: chosen by the reader")
    add("--compile", choices=("yes", "no"), default="yes" if has_gpu else "no")
    add("--runner", choices=("ray", "here"), default="ray")
    add("--set", dest="sets", action="append", default=[], metavar="KEY=VALUE")
    add("--out", type=Path)
    args = parser.parse_args()
    args.device = "cuda" if has_gpu else "cpu"
    return args


def made_archive(args: argparse.Namespace) -> str:
    """`mast synth`, then `mast prepare`, unless they are there; annotated for the most part,
    so that both trainings have chunks.
    """
    archive, prepared = args.work / "archive", args.work / "prepared"
    mast = [sys.executable, "-m", "mast_ray.verbs.main"]
    synth = [
        "synth",
        "--out",
        str(archive),
        "--hours",
        str(args.hours),
        "--labelled-share",
        "0.8",
        "--minutes",
        "2",
    ]
    subprocess.run([*mast, *synth], check=True)
    prepare = ["prepare", str(archive), "--annotations", str(archive / "annotations"), "--out", str(prepared)]
    subprocess.run([*mast, *prepare, "--runner", args.runner], check=True)
    return str(prepared)


def bare_rate(what: str, args: argparse.Namespace) -> float:
    """The bare step on synthetic tensors, in a process of its own so that it leaves no memory behind."""
    out = args.work / "bare.json"
    command = [
        *(sys.executable, str(BENCHMARKS / "model_steps.py"), "--device", args.device, "--size", args.size),
        *(
            "--batch",
            str(args.batch),
            "--what",
            what,
            "--variants",
            "compiled" if args.compile == "yes" else "eager",
        ),
        *(
            "--steps",
            str(max(2, args.steps // 8)),
            "--warmup",
            "5" if args.device == "cuda" else "1",
            "--out",
            str(out),
        ),
    ]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return json.loads(out.read_text())["results"][0]["chunks_per_s"]


def trained(what: str, engine: str, prepared: str, args: argparse.Namespace) -> dict[str, Any]:
    """One real training run; its rate from the metrics it left."""
    out = args.work / f"{what}-{engine}"
    shutil.rmtree(out, ignore_errors=True)
    config = config_of(what, engine, args)
    if what == "pretrain":
        summary = run_pretrain(config, prepared, str(out), runner=RUNNERS[args.runner])
    else:
        summary = run_train_detector(config, prepared, str(out), runner=RUNNERS[args.runner])
    rows = [row for row in read_metrics(open_storage(out)) if row["kind"] == "train"]
    rate, steady = steady_rate(rows, args.warmup)
    label = engine if engine == "torch" else f"deepspeed ZeRO-{args.zero_stage}"
    shares = [row["model_flops_share"] for row in steady if "model_flops_share" in row]
    return {
        "what": what,
        "engine": label,
        "chunks_per_s": round(rate.chunks_per_s, 1),
        "wait_share": round(rate.wait_share, 4),
        "model_flops_share": round(sum(shares) / len(shares), 3) if shares else None,
        "measured_steps": rate.samples // args.batch,
        "first_loss": rows[0]["loss"],
        "last_loss": rows[-1]["loss"],
        "validation": summary.last,
    }


class Rate(NamedTuple):
    chunks_per_s: float
    wait_share: float  # of the time
    samples: int


def steady_rate(rows: list[dict[str, Any]], warmup: int) -> tuple[Rate, list[dict[str, Any]]]:
    """The rate after the first `warmup` steps by the metrics of a run, and the rows that count."""
    start = {"step": 0, "samples": 0}
    steady = [(row, before) for before, row in pairwise([start, *rows]) if before["step"] >= warmup]
    steady = steady or [(rows[-1], ([start, *rows])[-2])]
    samples = [row["samples"] - before["samples"] for row, before in steady]
    seconds = [count / row["chunks_per_s"] for count, (row, _) in zip(samples, steady, strict=True)]
    waited = sum(row["wait_share"] * spent for spent, (row, _) in zip(seconds, steady, strict=True))
    rate = Rate(sum(samples) / sum(seconds), waited / sum(seconds), sum(samples))
    return rate, [row for row, _ in steady]


def config_of(what: str, engine: str, args: argparse.Namespace) -> Config:
    section = {"pretrain": "pretrain", "train": "detector"}[what]
    knobs: dict[str, Any] = {
        "model.size": args.size,
        "model.compile": args.compile == "yes",
        f"{section}.batch_size": args.batch,
        f"{section}.epochs": 10_000,
        f"{section}.max_steps": args.steps,
        f"{section}.validate_every_epochs": 10_000,
        f"{section}.learning_rate": 1e-4,
        "cluster.engine": engine,
        "cluster.zero_stage": args.zero_stage,
        "cluster.checkpoint_every_steps": 10**9,
        "cluster.reader_threads": args.threads,
        "evaluate.batch_size": min(64, args.batch),
        "detector.unfrozen_blocks": 12,  # as the bare step: everything trains
        "detector.backbone_multiplier": 1.0,
    }
    knobs |= dict(item.split("=", 1) for item in args.sets)
    return apply_overrides(field(), knobs)


if __name__ == "__main__":
    main()
