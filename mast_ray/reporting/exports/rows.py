"""One detection as every export writes it: its name, its box inside the
recording, its absolute times as text.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pyarrow as pa

from mast_ray.recordings.annotations.model import AudioFacts


def detection_id(path: str, begin_s: float, end_s: float, low_hz: float, high_hz: float) -> str:
    """Sixteen hex digits that name a box: the same in the report, in the verdicts and in the exports."""
    text = f"{path}|{begin_s:.3f}|{end_s:.3f}|{low_hz:.1f}|{high_hz:.1f}"
    return hashlib.sha1(text.encode("utf-8", "surrogatepass"), usedforsecurity=False).hexdigest()[:16]


def audio_facts(recordings: pa.Table | None) -> dict[str, AudioFacts]:
    """path -> length and rate, for recordings that state both."""
    if recordings is None:
        return {}
    rows = recordings.select(["path", "duration_s", "sample_rate_hz", "num_channels"]).to_pylist()
    return {
        r["path"]: AudioFacts(r["duration_s"], r["sample_rate_hz"], r["num_channels"] or 1)
        for r in rows
        if r["duration_s"] is not None and r["sample_rate_hz"] is not None
    }


def utc_text(moment: datetime | None) -> str:
    """2024-05-05T22:30:12.340Z"""
    return "" if moment is None else moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%f")[:-3] + "Z"


def local_text(moment: datetime | None, utc_offset_s: int | None, clock: datetime | None = None) -> str:
    """2024-05-06T05:30:12.340+07:00; the bare clock, without an offset, where its zone is unknown: none is guessed."""
    if moment is None and clock is not None:
        return clock.isoformat(timespec="milliseconds")
    if moment is None or utc_offset_s is None:
        return ""
    return moment.astimezone(timezone(timedelta(seconds=int(utc_offset_s)))).isoformat(
        timespec="milliseconds"
    )


def clipped_box(
    row: Mapping[str, Any], facts: AudioFacts | None
) -> tuple[float, float, float | None, float | None]:
    """begin_s, end_s, low_hz, high_hz inside the recording and below its Nyquist frequency."""
    begin_s, end_s = max(row["begin_s"], 0.0), row["end_s"]
    low_hz, high_hz = row["low_hz"], row["high_hz"]
    if facts is not None:
        end_s = min(end_s, facts.duration_s)
        if low_hz is not None and high_hz is not None:
            nyquist_hz = facts.sample_rate_hz / 2
            low_hz, high_hz = min(low_hz, nyquist_hz), min(high_hz, nyquist_hz)
    return min(begin_s, end_s), end_s, low_hz, high_hz
