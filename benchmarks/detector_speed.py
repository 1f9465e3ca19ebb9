"""Detector training end to end on one device: eager, recorded as a CUDA graph, compiled, and both (`graphs`).

The step is the one that `mast train` runs: stored bytes travel to the device, are normalised and augmented
there, then forward, losses, backward, clipping, fused AdamW and moving average. Only the tables are missing:
the same few batches come again and again from pinned memory.

    python benchmarks/detector_speed.py --out speed.json         # ViT-S at batch 32, ViT-B at batch 256
    python benchmarks/detector_speed.py --cases tiny:4 --steps 2 # smoke on a CPU
    python benchmarks/detector_speed.py --cases small:32 --set model.adapter=hybrid
    python benchmarks/detector_speed.py --cases small:32 --profile 5  # and where the time of five steps goes, by kernel
"""

from __future__ import annotations

import argparse
import json
import logging
import platform
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from mast_ray.boxes.batch import pad_boxes
from mast_ray.config.loading import apply_overrides, parse_set
from mast_ray.config.tree import Config
from mast_ray.spectrogram.augmentation import AugmentStrength
from mast_ray.spectrogram.normalisation import Normalisation
from mast_ray.tables.reading.reader import RawChunks
from mast_ray.training.assembly import detection, engine_of
from mast_ray.training.data.augmenting import StepAugmentation
from mast_ray.training.data.feed import ReaderFeed
from mast_ray.training.loop import MicroBatch, seed_draws
from mast_ray.training.progress import Stopwatch
from mast_ray.training.schedule import schedule_of
from mast_ray.training.step_notes import StepNotes
from mast_ray.training.worker import LocalWorker

SECTION = "detector"
GOALS = {"small:32": 1_500, "base:256": 667}  # chunks/s on one H200
MANY_STEPS = 10**6
NORMALISATION = Normalisation(mean=0.0, std=1.0)


def main() -> None:
    args = arguments()
    logging.basicConfig(level=logging.WARNING, format="%(message)s")
    device = torch.device(args.device)
    header = {
        "device": torch.cuda.get_device_name() if device.type == "cuda" else platform.machine(),
        "torch": torch.__version__,
        "boxes_per_chunk": args.boxes,
        "settings": args.set,
    }
    print(json.dumps(header), flush=True)
    rows: list[dict[str, Any]] = []
    for case in args.cases:
        size, _, batch = case.partition(":")
        for row in measure(size, int(batch), args, device):
            rows.append(row)
            print(json.dumps(row), flush=True)
            if args.out:  # after every row: a run that is cut short has what it measured
                report = {"configuration": header, "goals": GOALS, "results": rows}
                args.out.write_text(json.dumps(report, indent=2) + "\n")


def arguments() -> argparse.Namespace:
    has_gpu = torch.cuda.is_available()
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--device", default="cuda" if has_gpu else "cpu")
    add(
        "--cases",
        nargs="+",
        default=["small:32", "base:256"] if has_gpu else ["tiny:4"],
        metavar="SIZE:BATCH",
    )
    add(
        "--variants", nargs="+", default=["eager", "recorded", "compiled", "graphs"] if has_gpu else ["eager"]
    )
    add("--steps", type=int, default=0, help="measured steps; 0: about 2,500 chunks")
    add("--boxes", type=int, default=12, help="boxes per chunk")
    add("--set", action="append", default=[], metavar="KEY=VALUE", help="any knob, e.g. model.adapter=hybrid")
    add("--profile", type=int, default=0, metavar="STEPS", help="also list the operations of so many steps")
    add("--out", type=Path)
    return parser.parse_args()


def measure(
    size: str, batch: int, args: argparse.Namespace, device: torch.device
) -> Iterator[dict[str, Any]]:
    """Rows of one case. Compiled and recorded share one network, so that it is compiled once."""
    torch.compiler.reset()  # nothing of the case before is taken for this one's
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats()
    if "eager" in args.variants:
        yield Run(size, batch, "off", args, device).row("eager", args)
    if "recorded" in args.variants:
        run = Run(size, batch, "graph", args, device)
        yield run.row("recorded", args) | {"recorded": run.engine.graphs.num_recorded}
    if "compiled" in args.variants or "graphs" in args.variants:
        run = Run(size, batch, "on", args, device)
        graphs, run.engine.graphs = run.engine.graphs, None
        if "compiled" in args.variants:
            yield run.row("compiled", args)
        if "graphs" in args.variants and graphs is not None:
            run.engine.graphs = graphs
            yield run.row("graphs", args) | {"recorded": graphs.num_recorded}


class Run:
    """A training run from the feed to the moving average, one step at a time."""

    def __init__(
        self,
        size: str,
        batch: int,
        compiles: str,
        args: argparse.Namespace,
        device: torch.device,
    ) -> None:
        knobs = {
            "model.size": size, "model.compile": compiles, "detector.batch_size": batch,
            "detector.unfrozen_blocks": 100, "detector.max_steps": MANY_STEPS, "detector.epochs": MANY_STEPS,
        }  # fmt: skip
        self.config = apply_overrides(Config(), knobs | parse_set(args.set))
        self.case, self.batch, self.device, self.worker = (
            f"{size}:{batch}",
            batch,
            device,
            LocalWorker(device),
        )
        objective = detection(self.config, self.config.detector)
        self.schedule = schedule_of(self.config.detector, 64 * batch)
        self.engine: Any = engine_of(
            objective, self.config, self.config.detector, self.schedule, self.worker, SECTION
        )
        self.num_parameters = sum(p.numel() for p in objective.parameters())
        feed = ReaderFeed(
            RepeatedChunks(batch, args.boxes, device.type == "cuda"),  # type: ignore[arg-type]
            self.worker,
            self.schedule,
            NORMALISATION,
            augmentation=self._augmentation(),
            least_slots=16 if compiles != "off" else 0,
        )
        self.batches = feed.micro_batches(0, MANY_STEPS, Stopwatch(1))
        self.watch, self.num_steps = StepNotes(device), 0

    def _augmentation(self) -> StepAugmentation:
        return StepAugmentation(
            AugmentStrength.of_config(self.config.augment),
            self.config.detector.augment_probability,
            NORMALISATION,
            batch_size=self.batch,
            seed=0,
            device=self.device,
            noise_bank=torch.randn((64, 1024, 128), device=self.device),
        )

    def step(self) -> None:
        part: MicroBatch = next(self.batches)
        self.engine.set_epoch(0.0)
        self.engine.objective.begin_step([])
        seed_draws(self.engine.objective, self.num_steps, part.rows, self.batch, 0)
        losses = self.engine.backward(part.batch, is_last=True)
        norm = self.engine.step(1e-4)
        self.watch.add(self.num_steps, losses, norm, ())
        self.num_steps += 1

    def row(self, variant: str, args: argparse.Namespace) -> dict[str, Any]:
        """Steps until the pace is settled, then the measured ones; losses are read once, at the end."""
        steps = args.steps or max(8, 2_500 // self.batch)
        begun_s = time.perf_counter()
        self.step()
        self._wait()
        first_s = time.perf_counter() - begun_s
        for _ in range(min(5, steps)):
            self.step()
        self.watch.read()
        begun_s = time.perf_counter()
        for _ in range(steps):
            self.step()
        self._wait()
        seconds = (time.perf_counter() - begun_s) / steps
        means, skipped = self.watch.read()
        row: dict[str, Any] = {
            "case": self.case,
            "variant": variant,
            "model": f"{self.config.model.name} {self.config.model.adapter}",
            "millions_of_parameters": round(self.num_parameters / 1e6, 2),
            "steps": steps,
            "chunks_per_s": round(self.batch / seconds, 1),
            "ms_per_step": round(1000 * seconds, 2),
            "first_step_s": round(first_s, 1),
            "loss": round(means["loss"], 4),
            "skipped_steps": skipped,
        }
        if self.case in GOALS and self.device.type == "cuda":
            row["reached"] = self.batch / seconds >= GOALS[self.case]
        if self.device.type == "cuda":
            row["peak_memory_gib"] = round(torch.cuda.max_memory_allocated() / 2**30, 2)
        if args.profile:
            row["profile"] = self.profile(args.profile)
        return row

    def profile(self, steps: int) -> dict[str, Any]:
        """Milliseconds and launches a step of what runs on the device (of operators on a CPU), the longest first, and
        how long the host needs to launch a step when the device is not waited for.
        """
        activity = torch.profiler.ProfilerActivity
        is_cuda = self.device.type == "cuda"
        self._wait()
        begun_s = time.perf_counter()
        for _ in range(steps):
            self.step()
        host_s = (time.perf_counter() - begun_s) / steps
        self._wait()
        is_recorded = (
            self.engine.graphs is not None
        )  # a recorded step is one launch: its operators are not seen
        activities = [activity.CUDA] * is_cuda + [activity.CPU] * (not is_recorded)
        with torch.profiler.profile(activities=activities, record_shapes=not is_recorded) as seen:
            for _ in range(steps):
                self.step()
            self._wait()
        kernels = _longest(seen.key_averages(), is_cuda, of_operators=not is_cuda)
        found = {
            "host_ms": round(1000 * host_s, 2),
            "device_ms": round(sum(us for us, *_ in kernels) / 1000 / steps, 2),
            "launches": round(sum(count for *_, count in kernels) / steps),
            "longest": _as_rows(kernels, steps),
        }
        if not is_recorded:
            operators = _longest(seen.key_averages(group_by_input_shape=True), is_cuda, of_operators=True)
            found["operators"] = _as_rows(operators, steps)
        return found

    def _wait(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize()


Spent = tuple[float, str, int]  # microseconds on the device, of what, how often


def _longest(averages: Any, is_cuda: bool, of_operators: bool) -> list[Spent]:
    """Where the time on the device went, the longest first: by kernel, or by operator (and shapes, where they are told)."""
    spent = []
    for one in averages:
        is_operator = one.device_type == torch.autograd.DeviceType.CPU
        us = one.self_device_time_total if is_cuda else one.self_cpu_time_total
        if is_operator == of_operators and us > 0:
            shapes = [shape for shape in one.input_shapes or [] if shape]
            spent.append((us, f"{one.key} {shapes}" if shapes else one.key, one.count))
    return sorted(spent, reverse=True)


def _as_rows(spent: list[Spent], steps: int) -> list[dict[str, Any]]:
    return [
        {"name": name[:160], "ms": round(us / 1000 / steps, 3), "launches": round(count / steps, 1)}
        for us, name, count in spent[:60]
    ]


class RepeatedChunks:
    """What a feed needs of a reader: the same few batches of noise with bright boxes, in every epoch."""

    steps_per_epoch = MANY_STEPS

    def __init__(self, batch: int, boxes_per_chunk: int, pin_memory: bool) -> None:
        generator = torch.Generator().manual_seed(0)
        self.batches = []
        for number in range(4):
            low = torch.rand((batch, boxes_per_chunk, 2), generator=generator) * torch.tensor([900.0, 100.0])
            size = torch.rand((batch, boxes_per_chunk, 2), generator=generator) * torch.tensor([120.0, 26.0])
            values = torch.randint(100, 140, (batch, 1024, 128), dtype=torch.uint8, generator=generator)
            index = torch.arange(batch) + number * batch
            raw = RawChunks(
                values=values.pin_memory() if pin_memory else values,
                scale=torch.full((batch,), 0.05),
                offset=torch.full((batch,), -6.0),
                valid_frames=torch.full((batch,), 1024, dtype=torch.int32),
                boxes=pad_boxes(list(torch.cat([low, low + size + 2.0], dim=-1))),
                weight=torch.ones(batch),
                sample_index=index,
                is_pseudo=torch.zeros(batch, dtype=torch.bool),
                limits=torch.ones(batch, 2),
                chunk_ids=tuple(map(str, index.tolist())),
            )
            self.batches.append(raw)

    def epoch(self, epoch: int, rank: int, world_size: int, start_step: int) -> Iterator[RawChunks]:
        for step in range(start_step, self.steps_per_epoch):
            yield self.batches[step % len(self.batches)]


if __name__ == "__main__":
    main()
