"""The work of one detect unit, pure of Ray: recordings -> detections by site and date, and
what is known of each recording.

    detections/site=<site>/date=<date>/<unit>-<sha>.parquet   rows of detection_rows.ROWS
    recordings/<unit>-<sha>.arrow                             one row per readable recording, gathered into recordings.parquet in the end

Decoding threads, the detector and stitching work at the same time; the tables do not depend on who is faster.
"""

from __future__ import annotations

import hashlib
import io
import re
import time
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from mast_ray.config.names import MOST_BYTES, short_name
from mast_ray.inference.decode_threads import DecodeKnobs, DecodeThreads, Ending, Piece
from mast_ray.inference.detection_rows import RowKnobs, dates_of, detection_rows, stitched_boxes
from mast_ray.inference.window_detector import WindowBoxes, WindowDetector
from mast_ray.recordings.clock_and_site.site_tables import SiteTable
from mast_ray.storage.ledger import Attempt
from mast_ray.storage.storage import Storage
from mast_ray.storage.unit_runner import WorkDone
from mast_ray.storage.units import DataFile, Item, Outcome, Unit
from mast_ray.tables.preparing.recording_record import RecordingRecord
from mast_ray.tables.schemas import RECORDINGS, SITE_KEY

SALVAGE = (("salvage_reason", pa.string()), ("salvage_detail", pa.string()), ("salvage_s", pa.float64()))
UNIT_RECORDINGS = pa.schema([*RECORDINGS, *SALVAGE])
_UNSAFE = re.compile(r"[/\\%=:*?\"<>|\x00-\x1f\x7f]")  # what folders, Hive and URLs keep for themselves


@dataclass
class _Recording:
    """A recording under way: boxes of its windows, and how it ended."""

    item: Item
    found: list[WindowBoxes] = field(default_factory=list)
    num_windows: int = 0  # collected
    ending: Ending | None = None
    rows: Future[pa.Table] | None = None


class DetectWork:
    """Holds the detector; called with an attempt and its items."""

    def __init__(
        self,
        archive: Storage,
        stage: Storage,
        detector: WindowDetector,
        decode: DecodeKnobs,
        rows: RowKnobs,
        sites: SiteTable | None = None,
    ) -> None:
        self._archive, self._stage, self._sites = archive, stage, sites
        self.detector, self._decode, self._rows = detector, decode, rows

    def __call__(self, attempt: Attempt, items: Sequence[Item]) -> WorkDone:
        begun_s, waited_s = time.perf_counter(), self.detector.waited_s
        recordings = {item.item_id: _Recording(item) for item in items}
        notes = {"decode_s": 0.0, "starved_s": 0.0}
        with ThreadPoolExecutor(1, thread_name_prefix="stitch") as stitching:

            def found(item_id: str, boxes: WindowBoxes) -> None:
                recording = recordings[item_id]
                recording.found.append(boxes)
                recording.num_windows += boxes.num_windows
                self._stitch_when_complete(recording, stitching)

            for group in attempt.groups(items):
                self.detector.begin(found)
                decoding = DecodeThreads(self._archive, group, self._decode, self._sites)
                with decoding.started():
                    taken_s = time.perf_counter()
                    for piece in decoding.pieces():
                        notes["starved_s"] += time.perf_counter() - taken_s
                        attempt.beat()
                        self._take(recordings[piece.item.item_id], piece, stitching)
                        taken_s = time.perf_counter()
                self.detector.flush()
                notes["decode_s"] += decoding.busy_s
            tables = [(r, r.rows.result()) for r in recordings.values() if r.rows is not None]
        attempt.beat()
        files = self._write(attempt.unit, tables)
        done = [recording for recording, _ in tables]
        notes |= {
            "audio_s": sum(r.ending.record.duration_s for r in done if r.ending and r.ending.record),
            "detections": float(sum(len(table) for _, table in tables)),
            "device_s": self.detector.waited_s - waited_s,
            "work_s": time.perf_counter() - begun_s,
        }
        return WorkDone([_outcome(r) for r in recordings.values()], files, notes)

    def _take(self, recording: _Recording, piece: Piece, stitching: ThreadPoolExecutor) -> None:
        recording.ending = piece.ending
        is_last = piece.ending is not None
        record = piece.ending.record if piece.ending is not None else None
        num_frames = record.num_frames if record is not None else None
        self.detector.push(recording.item.item_id, piece.first_segment, piece.segments, is_last, num_frames)
        if is_last:
            self._stitch_when_complete(recording, stitching)

    def _stitch_when_complete(self, recording: _Recording, stitching: ThreadPoolExecutor) -> None:
        ending = recording.ending
        if ending is None:
            return
        if ending.record is None:
            recording.found = []  # rejected in the middle: nothing of it counts
        elif recording.num_windows == ending.record.num_chunks and recording.rows is None:
            found, recording.found = recording.found, []
            recording.rows = stitching.submit(self._table, recording.item.item_id, found, ending)

    def _table(self, item_id: str, found: list[WindowBoxes], ending: Ending) -> pa.Table:
        record = ending.record
        assert record is not None
        boxes = stitched_boxes(found, record.num_frames, self._rows, record.site, record.sample_rate_hz)
        return detection_rows(boxes, record, ending.clock, self._rows, item_id)

    def _write(self, unit: Unit, tables: list[tuple[_Recording, pa.Table]]) -> list[DataFile]:
        """Publish one file per site and date, and one of recordings."""
        if not tables:
            return []
        parts: dict[tuple[str, str], list[pa.Table]] = {}
        records = []
        for recording, table in tables:
            record = recording.ending.record if recording.ending else None
            assert record is not None
            records.append(_record_row(recording.item, record))
            dates = dates_of(table)
            if not len(table):  # analysed and silent is not the same as not analysed: its day has a file too
                clock = recording.ending.clock if recording.ending else None
                parts.setdefault((record.site, f"{clock:%Y-%m-%d}" if clock else ""), []).append(table)
            for date in np.unique(dates):
                parts.setdefault((record.site, str(date)), []).append(table.filter(pa.array(dates == date)))
        files = [
            put_file(
                self._stage,
                unit,
                partition_folder(*place),
                parquet_bytes(pa.concat_tables(part, promote_options="default"), place[0]),
                "parquet",
            )
            for place, part in sorted(parts.items())
        ]
        known = pa.Table.from_pylist(records, schema=UNIT_RECORDINGS)
        return [*files, put_file(self._stage, unit, "recordings", arrow_bytes(known), "arrow")]


def partition_folder(site: str, date: str) -> str:
    """Hive style; whatever a site is called, its folder is one plain name that a disk takes.

    Three bytes of Thai are nine when they are written out, so a long name keeps its own letters; one that is still
    too long is cut, and its files say the whole (parquet_bytes).
    """
    name = f"site={quote(site, safe=' ')}"
    if len(name) > MOST_BYTES:
        name = short_name("site=" + _UNSAFE.sub(lambda odd: quote(odd[0], safe=""), site))
    return f"detections/{name}/date={date}"


def parquet_bytes(table: pa.Table, site: str = "") -> tuple[bytes, int]:
    """As Parquet; the name of the site is written into the file too, where no folder's name can hold it."""
    if site and len(f"site={quote(site, safe=' ')}") > MOST_BYTES:
        table = table.replace_schema_metadata((table.schema.metadata or {}) | {SITE_KEY: site.encode()})
    sink = io.BytesIO()
    pq.write_table(table, sink, compression="zstd")
    return sink.getvalue(), len(table)


def arrow_bytes(table: pa.Table) -> tuple[bytes, int]:
    sink = io.BytesIO()
    with pa.ipc.new_file(sink, table.schema, options=pa.ipc.IpcWriteOptions(compression="zstd")) as writer:
        writer.write_table(table)
    return sink.getvalue(), len(table)


def put_file(stage: Storage, unit: Unit, folder: str, content: tuple[bytes, int], ending: str) -> DataFile:
    """Publish a small file under a name made of unit and content: two attempts with one result share it."""
    data, num_rows = content
    digest = hashlib.sha256(data).hexdigest()
    key = f"{folder}/{unit.stem}-{digest[:12]}.{ending}"
    stage.write_atomic(key, data)
    return DataFile(key, num_rows, digest, len(data))


def _outcome(recording: _Recording) -> Outcome:
    ending = recording.ending
    assert ending is not None, f"{recording.item.path} has no ending"
    if ending.record is None:
        return Outcome(
            recording.item.item_id, "rejected", ending.reason, ending.detail, is_final=ending.is_final
        )
    return Outcome(recording.item.item_id, "done")


def _record_row(item: Item, record: RecordingRecord) -> dict[str, Any]:
    salvage = record.salvage or (None, None, None)
    return record.row(item.item_id, False) | dict(zip((name for name, _ in SALVAGE), salvage, strict=True))
