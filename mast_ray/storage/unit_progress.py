"""The progress line of a job over units: recordings, hours of audio, times real
time, time left, failures so far.

On a terminal it is rewritten in place; elsewhere, as in the log of a submitted job, a line is printed every tenth of the
work and whenever a minute has passed: a tenth of ten million recordings takes hours. Time is handed in.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TextIO

from mast_ray.storage.unit_runner import UnitReport

EVERY_S = 60.0


@dataclass
class UnitProgress:
    """Adds up reports and prints now and then."""

    verb: str
    num_items: int  # to be done in this run
    num_bytes: int
    out: TextIO = field(default_factory=lambda: sys.stderr)
    now: Callable[[], float] = time.monotonic
    items_done: int = 0
    bytes_done: int = 0
    rejected: int = 0
    audio_s: float = 0.0
    detections: float | None = None  # shown once a unit has reported some

    def __post_init__(self) -> None:
        self._started_s = self.now()
        self._next_share = 0.1
        self._printed_s = self._started_s

    def add(self, report: UnitReport) -> None:
        self.items_done += report.num_items
        self.bytes_done += report.num_bytes
        self.rejected += report.num_rejected
        self.audio_s += report.notes.get("audio_s", 0.0)
        if "detections" in report.notes:
            self.detections = (self.detections or 0) + report.notes["detections"]
        share = self.items_done / max(1, self.num_items)
        if self.out.isatty():
            print(f"\r{self.line()}\x1b[K", end="", file=self.out, flush=True)
        elif share >= self._next_share or self.now() - self._printed_s >= EVERY_S:
            self._next_share = int(share * 10 + 1.000001) / 10
            self._printed_s = self.now()
            print(self.line(), file=self.out, flush=True)

    def seconds_left(self) -> float:
        """By bytes, because recordings differ in length; by their number while only empty files are done."""
        passed_s = self.now() - self._started_s
        if not self.bytes_done:
            return passed_s * (self.num_items - self.items_done) / max(1, self.items_done)
        return passed_s * (self.num_bytes - self.bytes_done) / self.bytes_done

    def line(self) -> str:
        passed_s = max(1e-9, self.now() - self._started_s)
        left = round(self.seconds_left())
        found = "" if self.detections is None else f"{self.detections:,.0f} detections, "
        return (
            f"{self.verb}: {self.items_done:,} of {self.num_items:,} recordings, {self.audio_s / 3600:,.1f} h, "
            f"{self.audio_s / passed_s:,.0f} x real time, {found}{self.rejected:,} rejected, "
            f"{left // 3600}:{left // 60 % 60:02d}:{left % 60:02d} left"
        )

    def close(self) -> None:
        if self.out.isatty():
            print(file=self.out)
