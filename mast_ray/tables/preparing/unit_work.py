"""From recordings to frames files: the work of one prepare unit, pure of Ray.

Every recording ends as an outcome: done (with what `recordings.parquet` will say about it) or rejected with a
reason. What is wrong with one recording never reaches another; what is wrong with the storage stops the job.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, BinaryIO

import numpy as np
import pyarrow.parquet as pq
from numpy.typing import NDArray

from mast_ray.config.tree import AudioConfig, Config
from mast_ray.recordings.clock_and_site.clock import RecordingMetadata, recording_metadata
from mast_ray.recordings.clock_and_site.site_tables import SiteTable
from mast_ray.recordings.decoding.faults import Reason, UnreadableRecording
from mast_ray.recordings.decoding.headers import Header
from mast_ray.recordings.decoding.reading import Limits, Reading, open_recording
from mast_ray.spectrogram.chunking import ShortRecordings, num_chunks_of, segments_of_blocks
from mast_ray.spectrogram.logmel import LogMel, num_frames_of, one_thread
from mast_ray.storage.entries import BROKEN_LINK
from mast_ray.storage.ledger import Attempt
from mast_ray.storage.storage import Storage
from mast_ray.storage.unit_runner import WorkDone, publish_file
from mast_ray.storage.units import DataFile, Item, Outcome
from mast_ray.tables.backgrounds import BackgroundRows
from mast_ray.tables.preparing.frames_writer import FramesWriter
from mast_ray.tables.preparing.recording_record import RecordingRecord, Salvage
from mast_ray.tables.preparing.source_faults import meaning_of_fault, note_success, stop_if_unreachable

WHOLE_BYTES = 64 << 20  # remote files up to this size come in one request


@dataclass(frozen=True)
class PrepareWork:
    """Decode, log-mel, write: called with an attempt and its items, in whatever process."""

    archive: Storage
    stage: Storage
    audio: AudioConfig
    storage_type: str
    short_recordings: ShortRecordings
    rows_per_group: int
    sites: SiteTable | None = None
    limits: Limits = field(default_factory=Limits)

    @classmethod
    def of(cls, archive: Storage, stage: Storage, config: Config, sites: SiteTable | None) -> PrepareWork:
        return cls(
            archive, stage, config.audio, config.spectrogram.storage, config.spectrogram.short_recordings,
            config.prepare.rows_per_group, sites, limits_of(config.audio),
        )  # fmt: skip

    def __call__(self, attempt: Attempt, items: Sequence[Item]) -> WorkDone:
        logmel = LogMel()
        outcomes: list[Outcome] = []
        with one_thread(), self.stage.scratch_file() as path:
            writer = FramesWriter(path, self.storage_type, self.rows_per_group)
            backgrounds = BackgroundRows()
            for item in items:
                attempt.begin_item(item.item_id)
                outcomes.append(self._prepare(item, writer, backgrounds, logmel, attempt))
            writer.close()
            files = self._publish(attempt, path, writer, backgrounds) if writer.num_rows else []
        audio_s = sum((outcome.record or {}).get("duration_s", 0.0) for outcome in outcomes)
        return WorkDone(outcomes, files, {"audio_s": audio_s})

    def _publish(
        self, attempt: Attempt, path: Any, writer: FramesWriter, backgrounds: BackgroundRows
    ) -> list[DataFile]:
        frames = publish_file(self.stage, path, "frames", attempt.unit, writer.num_rows)
        files = [frames]
        for folder, table in (("index", writer.index(frames.key)), ("backgrounds", backgrounds.table())):
            with self.stage.scratch_file() as table_path:
                pq.write_table(table, table_path, compression="zstd")
                files.append(publish_file(self.stage, table_path, folder, attempt.unit, len(table)))
        return files

    def _prepare(
        self,
        item: Item,
        writer: FramesWriter,
        backgrounds: BackgroundRows,
        logmel: LogMel,
        attempt: Attempt,
    ) -> Outcome:
        try:
            with (
                open_source(self.archive, item) as source,
                opened(source, self.audio, self.limits) as reading,
            ):
                blocks = blocks_with_beat(reading, self.audio.block_s, attempt.beat)
                segments = segments_of_blocks(blocks, self.short_recordings, logmel)
                writer.add(item.item_id, backgrounds.measuring(item.item_id, segments))
                note_success(self.archive, item)
                place = metadata_of(
                    item.path, reading.info.header, self.audio, self.sites, reading.duration_s
                )
                return Outcome(
                    item.item_id,
                    "done",
                    record=record_of(item, reading, place, self.short_recordings).to_json(),
                )
        except UnreadableRecording as error:
            stop_if_unreachable(self.archive, item, error)
            return rejection(item, error)


def rejection(item: Item, error: UnreadableRecording) -> Outcome:
    return Outcome(item.item_id, "rejected", str(error.reason), error.detail, is_final=error.is_final)


def record_of(
    item: Item, reading: Reading, place: RecordingMetadata, short_recordings: ShortRecordings
) -> RecordingRecord:
    """What recordings.parquet will say about a recording that was read to its end."""
    salvage = reading.salvage
    return RecordingRecord(
        path=item.path,
        site=place.site,
        start_utc=place.start_utc,
        utc_offset_s=place.utc_offset_s,
        time_source=place.time_source,
        time_flags=",".join(place.time_flags),
        latitude=place.latitude,
        longitude=place.longitude,
        duration_s=reading.duration_s,
        sample_rate_hz=reading.info.sample_rate_hz,
        num_channels=reading.info.num_channels,
        num_bytes=item.num_bytes,
        num_frames=num_frames_of(reading.num_samples),
        num_chunks=num_chunks_of(reading.num_samples, short_recordings),
        fingerprint=reading.fingerprint,
        start_local=place.local,
        group=place.group,
        salvage=Salvage(str(salvage.reason), salvage.detail, salvage.readable_s) if salvage else None,
    )


def limits_of(audio: AudioConfig) -> Limits:
    """What the settings still take for a recording."""
    return Limits(
        min_rate_hz=audio.min_sample_rate_hz,
        min_duration_s=max(0.025, audio.min_seconds),
        max_duration_s=audio.max_hours * 3600.0,
    )


def opened(source: Any, audio: AudioConfig, limits: Limits) -> Reading:
    """Open a recording as the settings say."""
    try:
        return open_recording(source, channel="mean" if audio.channel == "mean" else 0, limits=limits)
    except Exception as error:
        raise meaning_of_fault(error) from error


def open_source(archive: Storage, item: Item, whole: bool = True) -> _Source:
    """What the decoder reads from: a path for local files, a whole small file, or
    ranges of a large remote one.

    `whole` false: only the header is wanted, so a remote file is read by ranges in any case.
    """
    return _Source(archive, item, WHOLE_BYTES, 8 << 20) if whole else _Source(archive, item, 1 << 18, 1 << 16)


class _Source:
    def __init__(self, archive: Storage, item: Item, whole_bytes: int, read_ahead_bytes: int) -> None:
        self._archive, self._item = archive, item
        self._whole_bytes, self._read_ahead_bytes = whole_bytes, read_ahead_bytes
        self._file: BinaryIO | None = None

    def __enter__(self) -> Any:
        if self._item.version == BROKEN_LINK:
            raise UnreadableRecording(Reason.MISSING, "a link that leads to no file")
        local = self._archive.local_path(self._item.path)
        if local is not None:
            return local
        try:
            if self._item.num_bytes <= self._whole_bytes:
                self._file = io.BytesIO(self._archive.read_bytes(self._item.path))
            else:
                self._file = self._archive.open_read(self._item.path, self._read_ahead_bytes)
        except Exception as error:
            raise meaning_of_fault(error) from error
        return self._file

    def __exit__(self, *_: object) -> None:
        if self._file is not None:
            self._file.close()


def metadata_of(
    path: str, header: Header | None, audio: AudioConfig, sites: SiteTable | None, duration_s: float = 0.0
) -> RecordingMetadata:
    """Time and place of a recording by every source there is."""
    read = partial(
        recording_metadata, path, header=header, zone=audio.timezone, site_from=audio.site_from, duration_s=duration_s
    )  # fmt: skip
    return read() if sites is None else read(row=sites.row_of(path, read().site))


def blocks_with_beat(
    reading: Reading, block_s: float, beat: Callable[[], None]
) -> Iterator[NDArray[np.float32]]:
    """Blocks with a beat for the watchdog; an unforeseen error of a decoder
    rejects the recording, not the job.
    """
    try:
        for block in reading.blocks(block_s):
            beat()
            yield block
    except MemoryError:
        raise
    except Exception as error:
        raise meaning_of_fault(error) from error
