"""Recordings decoded side by side by threads, handed over in an order that no thread's speed can change.

Every recording is dealt to a thread by its size; a thread decodes its own one after the other, a few blocks ahead.
The pieces are taken from the threads in turn: the sequence depends on the recordings alone, memory on the number of
threads.
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
from mast_ray.tables.preparing.source_faults import note_success, stop_if_unreachable
from mast_ray.tables.preparing.unit_work import blocks_with_beat, metadata_of, open_source, opened, record_of
from mast_ray.tables.reading.handover import Handover

SegmentKind = Literal["logmel", "samples"]
BLOCKS_AHEAD = 3  # per number: a minute of samples is 4 MB


class Ending(NamedTuple):
    """What became of a recording: a record of it, or why it was rejected."""

    record: RecordingRecord | None
    clock: datetime | None = None  # as the recorder's clock showed it
    reason: str = ""
    detail: str = ""
    is_final: bool = True  # False: a disk, a mount or a network failed, and the next run tries again


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
    num_threads: int = 2


def deal_to_threads(items: Sequence[Item], num_threads: int) -> list[list[Item]]:
    """Each item to the thread with the fewest bytes so far: threads end together, whatever the lengths."""
    threads: list[list[Item]] = [[] for _ in range(max(1, min(num_threads, len(items))))]
    loads = [0] * len(threads)
    for item in items:
        number = loads.index(min(loads))
        threads[number].append(item)
        loads[number] += max(1, item.num_bytes)
    return threads


class DecodeThreads:
    """Threads over an archive; `pieces` is gone through once. `busy_s` adds up
    what all threads spent working.
    """

    def __init__(
        self, archive: Storage, items: Sequence[Item], knobs: DecodeKnobs, sites: SiteTable | None
    ) -> None:
        self._archive, self._knobs, self._sites = archive, knobs, sites
        self._dealt = deal_to_threads(items, knobs.num_threads)
        self._handovers = [Handover[Piece](BLOCKS_AHEAD) for _ in self._dealt]
        self._busy_s = [0.0] * len(self._dealt)

    @property
    def busy_s(self) -> float:
        return sum(self._busy_s)

    @contextmanager
    def started(self) -> Iterator[DecodeThreads]:
        """Decoding for the length of a block."""
        with ExitStack() as stack:
            for number, handover in enumerate(self._handovers):
                stack.enter_context(handover.fed_by(self._pieces_of(number), f"decode-{number}"))
            try:
                yield self
            finally:
                for handover in self._handovers:  # all at once, before the first is waited for
                    handover.stop()

    def pieces(self) -> Iterator[Piece]:
        """Pieces of all recordings, a block of each thread in turn."""
        still_open = list(range(len(self._dealt)))
        while still_open:
            for number in tuple(still_open):
                piece = self._handovers[number].take()
                if piece is None:
                    still_open.remove(number)
                else:
                    yield piece

    def _pieces_of(self, number: int) -> Generator[Piece, None, None]:
        torch.set_num_threads(1)  # of this thread alone: threads are the parallelism
        logmel = LogMel() if self._knobs.kind == "logmel" else None
        for item in self._dealt[number]:
            begun_s = time.perf_counter()
            for piece in self._decode(item, logmel):
                self._busy_s[number] += time.perf_counter() - begun_s
                yield piece
                begun_s = time.perf_counter()

    def _decode(self, item: Item, logmel: LogMel | None) -> Iterator[Piece]:
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
                for block in blocks_with_beat(reading, knobs.audio.block_s, lambda: None):
                    rows = stream.push(block)
                    if len(rows):
                        yield Piece(item, at, rows)
                        at += len(rows)
                note_success(self._archive, item)
                rows = stream.finish()
                place = metadata_of(
                    item.path, reading.info.header, knobs.audio, self._sites, reading.duration_s
                )
                record = record_of(item, reading, place, knobs.short_recordings)
                clock = None if "clock_reset" in place.time_flags else place.local
                yield Piece(item, at, rows, Ending(record, clock))
        except UnreadableRecording as error:
            stop_if_unreachable(self._archive, item, error)
            nothing = stream.push(np.zeros(0, np.float32))[:0]
            yield Piece(
                item, at, nothing, Ending(None, None, str(error.reason), error.detail, error.is_final)
            )


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
