"""What is known of a recording once it was read to its end: the value that travels from a worker to the tables."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from datetime import datetime
from typing import Any, Literal, NamedTuple

from mast_ray.storage.units import Item

TIMES = ("start_utc", "start_local")


class Salvage(NamedTuple):
    """Why only a part of a recording could be used, and how much."""

    reason: str
    detail: str
    readable_s: float


@dataclass(frozen=True)
class RecordingRecord:
    """Columns of schemas.RECORDINGS, as far as the recording itself tells them."""

    path: str
    site: str
    start_utc: datetime | None
    utc_offset_s: int | None
    time_source: str
    time_flags: str
    latitude: float | None
    longitude: float | None
    duration_s: float
    sample_rate_hz: int
    num_channels: int
    num_bytes: int
    num_frames: int
    num_chunks: int
    fingerprint: str
    start_local: datetime | None = (
        None  # as the recorder's clock showed it; not kept by units of before, nor is
    )
    group: str = ""  # recordings that no split may part
    salvage: Salvage | None = None

    def columns(self) -> dict[str, Any]:
        return {f.name: getattr(self, f.name) for f in fields(self) if f.name != "salvage"}

    def row(self, recording_id: str, is_annotated: bool) -> dict[str, Any]:
        """A row of recordings.parquet."""
        about = {"is_annotated": is_annotated, "is_salvaged": self.salvage is not None}
        return self.columns() | {"recording_id": recording_id} | about

    def to_json(self) -> dict[str, Any]:
        """As a commit keeps it."""
        times = {name: value.isoformat() for name in TIMES if (value := getattr(self, name)) is not None}
        return self.columns() | times | {"salvage": list(self.salvage) if self.salvage else None}

    @classmethod
    def from_json(cls, found: Mapping[str, Any]) -> RecordingRecord:
        known = {f.name: found[f.name] for f in fields(cls) if f.name in found}
        times = {name: datetime.fromisoformat(known[name]) for name in TIMES if known.get(name)}
        return cls(**(known | times | {"salvage": Salvage(*found["salvage"]) if found["salvage"] else None}))


def reject_row(
    item: Item, status: Literal["rejected", "salvaged"], reason: str, detail: str, readable_s: float = 0.0
) -> dict[str, Any]:
    """A row of rejects.parquet."""
    return {
        "path": item.path, "recording_id": item.item_id, "status": status, "reason": reason, "detail": detail,
        "num_bytes": item.num_bytes, "readable_s": readable_s,
    }  # fmt: skip
