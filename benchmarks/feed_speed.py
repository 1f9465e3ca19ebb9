"""Pretraining through Ray Train by each feed, and the engines' steps, beside the bare step, on one machine.

    python benchmarks/feed_speed.py --limit 500 --set pretrain.side_path=false --out FILE             # one GPU
    python benchmarks/feed_speed.py --work DIR --size tiny --batch 8 --recordings 40 --steps 12 --warmup 4 \\
        --large tiny --large-batch 4 --detector-batch 4 --limit 300                                   # two cores

Rows, in this order, until the time is up (each is written to --out as soon as it is there):
bare        the compiled step through the torch engine on chunks that lie on the device
ray_data    `mast pretrain` with cluster.feed=ray_data: Ray Data reads, streaming_split deals, kept in the object store
reader      `mast pretrain` with cluster.feed=reader
iter_torch_batches   a Ray Train loop over Ray Data's own batches, with the same step (plain_ray_data.py)
engines     torch, ZeRO-1, 2, 3 and offload, for pretraining and detector training: chunks/s and GiB
large       ViT-L, not compiled, at a batch that does not fit: activations kept, and computed again
The archive is noise, made without decoding any audio (ingest.py). Rates leave out the first --warmup steps.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ.setdefault("PYTORCH_NVML_BASED_CUDA_CHECK", "1")  # the device is for the rows' own processes

import torch

from mast_ray.models.encoder import ENCODER_SHAPES

BENCHMARKS = Path(__file__).resolve().parent
PARTS = ("feeds", "engines", "large")


class Table:
    """Rows as they come, on the screen and on disk, and the time that is left."""

    def __init__(self, args: argparse.Namespace) -> None:
        self.args, self.begun_s, self.rows = args, time.monotonic(), []
        self.longest_s = 0.0

    def left_s(self) -> float:
        return self.args.limit - (time.monotonic() - self.begun_s)

    def add(self, name: str, make: Callable[[float], dict[str, Any]]) -> dict[str, Any]:
        """A row, unless there is no time for it; a failure is a row too."""
        left_s, begun_s = self.left_s(), time.monotonic()
        if left_s < min(45.0, self.longest_s):
            row: dict[str, Any] = {"row": name, "left_out": f"{left_s:.0f} s were left"}
        else:
            try:
                row = {"row": name} | make(left_s)
            except subprocess.TimeoutExpired:
                row = {"row": name, "left_out": "not done in time"}
            except Exception as error:
                row = {"row": name, "failed": f"{type(error).__name__}: {str(error)[-500:]}"}
        row["seconds"] = round(time.monotonic() - begun_s, 1)
        self.longest_s = max(self.longest_s, row["seconds"] if "failed" not in row else 0.0)
        self.rows.append(row)
        print(json.dumps(row), flush=True)
        self.write()
        return row

    def write(self) -> None:
        self.args.out.parent.mkdir(parents=True, exist_ok=True)
        about = {
            "machine": platform.machine(), "cores": os.cpu_count(), "torch": torch.__version__,
            "settings": {k: str(v) for k, v in vars(self.args).items() if k not in ("work", "out")},
        }  # fmt: skip
        self.args.out.write_text(json.dumps({"configuration": about, "results": self.rows}, indent=1) + "\n")


def main() -> None:
    args = arguments()
    os.environ["PYTHONPATH"] = os.pathsep.join(
        [str(BENCHMARKS.parent), str(BENCHMARKS), *filter(None, [os.environ.get("PYTHONPATH")])]
    )
    table = Table(args)
    bare = 0.0
    if "feeds" in args.parts:
        bare = table.add("bare", lambda left_s: step_row("pretrain", "torch", args.batch, args, left_s)).get(
            "chunks_per_s", 0.0
        )
        for name in ("archive", *args.feeds):
            table.add(name, lambda left_s, name=name: feed_row(name, args, left_s, bare))
    if "engines" in args.parts:
        for what in args.trainings:
            batch = args.batch if what == "pretrain" else args.detector_batch
            for engine in args.engines:
                if what == "pretrain" and engine == "torch" and bare:
                    continue
                table.add(
                    f"{what} {engine}",
                    lambda left_s, row=(what, engine, batch): step_row(*row, args, left_s),
                )
    if "large" in args.parts:
        for kept in ("off", "on"):
            options = ["--size", args.large, "--checkpoint-activations", kept, "--compile", "off"]
            table.add(
                f"{args.large}, activations {'kept' if kept == 'off' else 'computed again'}",
                lambda left_s, options=options: step_row(
                    "pretrain", "torch", args.large_batch, args, left_s, options
                ),
            )
    print(f"written to {args.out} after {time.monotonic() - table.begun_s:.0f} s")


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--work", type=Path, default=Path(tempfile.gettempdir()) / "mast-feed-speed")
    add("--out", type=Path, default=BENCHMARKS / "results" / "feed_speed.json")
    add("--limit", type=float, default=300.0, help="seconds after which no row begins")
    add("--parts", nargs="+", choices=PARTS, default=list(PARTS))
    add("--feeds", nargs="+", default=["ray_data", "reader", "iter_torch_batches"])
    add("--engines", nargs="+", default=["torch", "zero1", "zero2", "zero3", "offload"])
    add(
        "--trainings",
        nargs="+",
        choices=("pretrain", "train"),
        default=["pretrain", "train"],
        help="of the engines",
    )
    add("--size", choices=tuple(ENCODER_SHAPES), default="base")
    add("--batch", type=int, default=256)
    add("--detector-batch", type=int, default=64)
    add("--large", choices=tuple(ENCODER_SHAPES), default="large")
    add("--large-batch", type=int, default=1024)
    add("--recordings", type=int, default=1200, help="of a minute, 12 chunks each")
    add("--steps", type=int, default=160)
    add("--warmup", type=int, default=40)
    add("--cpus-per-worker", type=float, default=0.5)
    add("--threads", type=int, default=0)
    add("--set", dest="sets", action="append", default=[], metavar="KEY=VALUE", help="for every row")
    return parser.parse_args()


def step_row(
    what: str,
    variant: str,
    batch: int,
    args: argparse.Namespace,
    left_s: float,
    options: list[str] | None = None,
) -> dict[str, Any]:
    """One row of model_steps.py, in a process of its own so that it leaves no memory behind."""
    out = args.work / "step.json"
    args.work.mkdir(parents=True, exist_ok=True)
    steps = max(2, args.steps // 8)
    command = [
        *(sys.executable, str(BENCHMARKS / "model_steps.py"), "--what", what, "--variants", variant),
        *(
            "--batch",
            str(batch),
            "--steps",
            str(steps),
            "--warmup",
            str(max(1, steps // 5)),
            "--out",
            str(out),
        ),
        *(["--size", args.size] if options is None else options),
        *(part for one in args.sets for part in ("--set", one)),
    ]
    run(command, left_s)
    return json.loads(out.read_text())["results"][0]


def feed_row(name: str, args: argparse.Namespace, left_s: float, bare: float) -> dict[str, Any]:
    """One whole pretraining, in a process of its own."""
    out = args.work / "feed.json"
    out.unlink(missing_ok=True)
    run(
        [sys.executable, str(BENCHMARKS / "feed_row.py"), name, json.dumps(settings_of(args)), str(out)],
        left_s,
    )
    row = json.loads(out.read_text())
    return row | (
        {"share_of_bare": round(row["chunks_per_s"] / bare, 3)} if bare and "chunks_per_s" in row else {}
    )


def settings_of(args: argparse.Namespace) -> dict[str, Any]:
    names = ("size", "batch", "recordings", "steps", "warmup", "cpus_per_worker", "threads", "sets")
    return {"work": str(args.work)} | {name: getattr(args, name) for name in names}


def run(command: list[str], left_s: float) -> None:
    done = subprocess.run(command, capture_output=True, text=True, timeout=max(10.0, left_s))
    if done.returncode:
        raise RuntimeError(
            f"{command[1]} ended with {done.returncode}: {(done.stderr or done.stdout)[-1500:]}"
        )


if __name__ == "__main__":
    main()
