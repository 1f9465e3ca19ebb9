"""How fast a run goes and how long it will take: chunks/s, share of time waiting for data, MFU, time left."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TextIO

import torch

from mast_ray.boxes.batch import ChunkBatch, pad_boxes
from mast_ray.spectrogram.grid import CHUNK_FRAMES, NUM_BINS
from mast_ray.training.engine import Objective

QUIET_EVERY_S = 60.0


@dataclass(frozen=True)
class Pace:
    """Measured since the last look."""

    chunks_per_s: float
    wait_share: float  # of wall time spent waiting for the reader
    model_flops_share: (
        float | None
    )  # MFU: arithmetic of the model / peak of the device; None when either is unknown
    left_s: float


class Stopwatch:
    """Counts samples and waiting; `look` returns the pace since the previous look."""

    def __init__(
        self,
        total_samples: int,
        *,
        flops_per_sample: float | None = None,
        peak_flops: float | None = None,
        now: Callable[[], float] = time.perf_counter,
    ) -> None:
        self.total_samples, self.now = total_samples, now
        self.flops_per_sample, self.peak_flops = flops_per_sample, peak_flops
        self._looked_s, self._looked_samples, self._waited_s = now(), 0, 0.0

    def waited(self, seconds: float) -> None:
        self._waited_s += seconds

    def look(self, samples_seen: int) -> Pace:
        now = self.now()
        elapsed_s = max(now - self._looked_s, 1e-9)
        rate = (samples_seen - self._looked_samples) / elapsed_s
        share = None
        if self.flops_per_sample and self.peak_flops:
            share = rate * self.flops_per_sample / self.peak_flops
        left_s = (self.total_samples - samples_seen) / rate if rate > 0 else float("inf")
        pace = Pace(rate, min(1.0, self._waited_s / elapsed_s), share, left_s)
        self._looked_s, self._looked_samples, self._waited_s = now, samples_seen, 0.0
        return pace

    def restart(self, samples_seen: int) -> None:
        """Forget what has passed: validation, checkpoints and compilation are not training time."""
        self._looked_s, self._looked_samples, self._waited_s = self.now(), samples_seen, 0.0


class ProgressLine:
    """One line that rewrites itself on a terminal; elsewhere a plain line at most once a minute."""

    def __init__(self, stream: TextIO | None = None, now: Callable[[], float] = time.monotonic) -> None:
        self.stream = stream if stream is not None else sys.stderr
        self.is_terminal = self.stream.isatty()
        self.now, self._shown_s = now, -float("inf")

    def show(self, text: str, *, final: bool = False) -> None:
        if self.is_terminal:
            self.stream.write(f"\r\x1b[2K{text}" + ("\n" if final else ""))
        elif final or self.now() - self._shown_s >= QUIET_EVERY_S:
            self._shown_s = self.now()
            self.stream.write(text + "\n")
        self.stream.flush()

    def clear(self) -> None:
        """Leave the line of a terminal to what comes next."""
        if self.is_terminal:
            self.stream.write("\r\x1b[2K")
            self.stream.flush()


def progress_text(step: int, num_steps: int, epoch: float, loss: float, pace: Pace) -> str:
    """One line for people."""
    share = "" if pace.model_flops_share is None else f", MFU {pace.model_flops_share:.0%}"
    return (
        f"step {step}/{num_steps} (epoch {epoch:.1f}): loss {loss:.4f}, {pace.chunks_per_s:,.0f} chunks/s, "
        f"waiting {pace.wait_share:.1%}{share}, {duration_text(pace.left_s)} left"
    )


def duration_text(seconds: float) -> str:
    """1:02:03, or ? when unknown."""
    if seconds == float("inf"):
        return "?"
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{seconds:02d}"


PEAK_FLOPS = {
    "H200": 989e12,
    "H100": 989e12,
    "A100": 312e12,
    "L40": 181e12,
    "L4": 121e12,
    "A10": 125e12,
    "V100": 125e12,
}


def peak_flops_of(device: torch.device) -> float | None:
    """Dense 16-bit peak of a known GPU in FLOP/s."""
    if device.type != "cuda":
        return None
    name = torch.cuda.get_device_name(device)
    return next((peak for key, peak in PEAK_FLOPS.items() if key in name), None)


def flops_of_chunk(objective: Objective, device: torch.device) -> float | None:
    """Arithmetic of one training step per chunk: three times the forward pass,
    counted on one chunk (GPUs only).
    """
    if device.type != "cuda" or objective.may_skip_parameters:
        return None
    from torch.utils.flop_counter import FlopCounterMode  # imports triton

    chunk = torch.zeros((1, 1, CHUNK_FRAMES, NUM_BINS), device=device)
    batch = ChunkBatch(
        chunk, pad_boxes([torch.zeros((0, 4))]).to(device), torch.ones(1, device=device), ("count",)
    )
    is_training = objective.training
    try:
        # A compiled step would be traced for this odd batch, and counts nothing.
        with (
            torch.no_grad(),
            torch.compiler.set_stance("force_eager"),
            FlopCounterMode(display=False) as counter,
        ):
            objective(batch)
    finally:
        objective.train(is_training)
    return 3.0 * counter.get_total_flops()
