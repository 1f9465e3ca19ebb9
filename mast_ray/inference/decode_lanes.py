"""Recordings decoded side by side by threads, handed over in an order that no thread's speed can change.

Every recording is dealt to a lane by its size; a lane decodes its own one after the other, a few
blocks ahead. The pieces are taken from the lanes in turn: the sequence depends on the recordings
alone, memory on the number of lanes.
"""

from __future__ import annotations

import time
from collections.abc import Generator, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from datetime import datetime
from typing import Literal, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from mast_ray.config.tree import AudioConfig
from mast_ray.recordings.clock_and_site.site_tables import SiteTable
from mast_ray.recordings.decoding.faults import UnreadableRecording
from mast_ray.recordings.decoding.reading import Limits
from mast_ray.spectrogram.chunking import SegmentStream, ShortRecordings
from mast_ray.spectrogram.grid import NUM_BINS, SEGMENT_FRAMES
from mast_ray.spectrogram.logmel import LogMel
from mast_ray.spectrogram.sample_segments import SampleSegments
from mast_ray.storage.storage import Storage
from mast_ray.storage.units import Item
from mast_ray.tables.preparing.recording_record import RecordingRecord
from mast_ray.tables.preparing.unit_work import metadata_of, open_source, opened, record_of, watched
from mast_ray.tables.reading.handover import Handover

SegmentKind = Literal["logmel", "samples"]
BLOCKS_AHEAD = 3  # per lane: a minute of samples is 4 MB


class Ending(NamedTuple):
    """What became of a recording: a record of it, or why it was rejected."""

    record: RecordingRecord | None
    clock: datetime | None = None  # as the recorder's clock showed it
    reason: str = ""
    detail: str = ""


class Piece(NamedTuple):
    """Consecutive segments of a recording; `ending` comes with the last ones."""

    item: Item
    first_segment: int
    segments: NDArray[np.float32]  # (n, 512, F) log-mel, or (n, 82160) samples
    ending: Ending | None = None


@dataclass(frozen=True)
class DecodeKnobs:
    """How recordings become segments."""

    audio: AudioConfig
    limits: Limits
    short_recordings: ShortRecordings = "pad"
    kind: SegmentKind = "logmel"
    num_lanes: int = 2


def deal_to_lanes(items: Sequence[Item], num_lanes: int) -> list[list[Item]]:
    """Each item to the lane with the fewest bytes so far: lanes end together, whatever the lengths."""
    lanes: list[list[Item]] = [[] for _ in range(max(1, min(num_lanes, len(items))))]
    loads = [0] * len(lanes)
    for item in items:
        lane = loads.index(min(loads))
        lanes[lane].append(item)
        loads[lane] += max(1, item.num_bytes)
    return lanes


class DecodeLanes:
    """Threads over an archive; `pieces` is gone through once. `busy_s` adds up
    what all lanes spent working.
    """

    def __init__(
        self, archive: Storage, items: Sequence[Item], knobs: DecodeKnobs, sites: SiteTable | None
    ) -> None:
        self._archive, self._knobs, self._sites = archive, knobs, sites
        self._lanes = deal_to_lanes(items, knobs.num_lanes)
        self._handovers = [Handover[Piece](BLOCKS_AHEAD) for _ in self._lanes]
        self._busy_s = [0.0] * len(self._lanes)

    @property
    def busy_s(self) -> float:
        return sum(self._busy_s)

    @contextmanager
    def started(self) -> Iterator[DecodeLanes]:
        """Decoding for the length of a block."""
        with ExitStack() as stack:
            for lane, handover in enumerate(self._handovers):
                stack.enter_context(handover.fed_by(self._pieces_of(lane), f"decode-{lane}"))
            try:
                yield self
            finally:
                for handover in self._handovers:  # all at once, before the first is waited for
                    handover.stop()

    def pieces(self) -> Iterator[Piece]:
        """Pieces of all recordings, a block of each lane in turn."""
        open_lanes = list(range(len(self._lanes)))
        while open_lanes:
            for lane in tuple(open_lanes):
                piece = self._handovers[lane].take()
                if piece is None:
                    open_lanes.remove(lane)
                else:
                    yield piece

    def _pieces_of(self, lane: int) -> Generator[Piece, None, None]:
        torch.set_num_threads(1)  # of this thread alone: lanes are the parallelism
        logmel = LogMel() if self._knobs.kind == "logmel" else None
        for item in self._lanes[lane]:
            begun_s = time.perf_counter()
            for piece in self._decoded(item, logmel):
                self._busy_s[lane] += time.perf_counter() - begun_s
                yield piece
                begun_s = time.perf_counter()

    def _decoded(self, item: Item, logmel: LogMel | None) -> Iterator[Piece]:
        knobs = self._knobs
        stream = (
            _LogMelSegments(knobs.short_recordings, logmel)
            if logmel
            else SampleSegments(knobs.short_recordings)
        )
        at = 0
        try:
            with (
                open_source(self._archive, item) as source,
                opened(source, knobs.audio, knobs.limits) as reading,
            ):
                for block in watched(reading, knobs.audio.block_s, lambda: None):
                    rows = stream.push(block)
                    if len(rows):
                        yield Piece(item, at, rows)
                        at += len(rows)
                rows = stream.finish()
                place = metadata_of(item.path, reading.info.header, knobs.audio, self._sites)
                record = record_of(item, reading, place, knobs.short_recordings)
                clock = None if "clock_reset" in place.time_flags else place.local
                yield Piece(item, at, rows, Ending(record, clock))
        except UnreadableRecording as error:
            nothing = stream.push(np.zeros(0, np.float32))[:0]
            yield Piece(item, at, nothing, Ending(None, None, str(error.reason), error.detail))


class _LogMelSegments:
    """SegmentStream with arrays for segments, as SampleSegments gives them."""

    def __init__(self, short_recordings: ShortRecordings, logmel: LogMel) -> None:
        self._stream = SegmentStream(short_recordings, logmel)

    def push(self, samples: NDArray[np.float32]) -> NDArray[np.float32]:
        return self._stacked(self._stream.push(samples))

    def finish(self) -> NDArray[np.float32]:
        return self._stacked(self._stream.finish())

    @staticmethod
    def _stacked(segments: list) -> NDArray[np.float32]:
        if not segments:
            return np.zeros((0, SEGMENT_FRAMES, NUM_BINS), np.float32)
        return np.stack([segment.logmel for segment in segments])
