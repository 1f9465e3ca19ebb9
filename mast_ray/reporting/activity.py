"""Calls and recording effort per local hour and date: 0 calls with effort is a finding, no effort is a gap.

Times are the local time of the recorder. Where its zone is unknown the clock on its wall still tells the hour, and
that is said; where only UTC is known, UTC is used and said. An hour slot is a whole number of hours since 1970-01-01 00:00 local time.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from astral import Observer
from astral.sun import sunrise, sunset
from numpy.typing import ArrayLike, NDArray

from mast_ray.tables.local_time import is_zone_unknown, local_seconds

HOUR_S = 3600.0
ZONE_UNKNOWN = "local, zone unknown"


@dataclass(frozen=True)
class Slots:
    """Pieces of recordings cut at every full local hour: one row per (recording, hour slot)."""

    recording: NDArray[np.int64]  # row of the recordings table
    slot: NDArray[np.int64]  # hours since the local epoch
    begin_s: NDArray[np.float64]  # of the piece, within its recording
    end_s: NDArray[np.float64]

    @property
    def effort_s(self) -> NDArray[np.float64]:
        return self.end_s - self.begin_s


@dataclass(frozen=True)
class DielMap:
    """Calls and effort of one site, (dates, 24); effort 0 means that nothing was recorded."""

    site: str
    first_date: date
    calls: NDArray[np.int64]
    effort_s: NDArray[np.float64]
    sunrise_h: tuple[float | None, ...] = ()  # local hour per date; empty when no position is known
    sunset_h: tuple[float | None, ...] = ()
    clock: str = "local time"


def local_start_s(table: pa.Table) -> NDArray[np.float64]:
    """(N,) local seconds since 1970 of each row's start; NaN when unknown."""
    return local_seconds(table, unknown_offset="utc")


def clock_name(recordings: pa.Table) -> str:
    """'local time', 'UTC' (also where every recorder's clock is UTC), or a mixture,
    depending on which offsets are known. Recordings without a clock are in no hour: they do not count.
    """
    recordings = recordings.filter(pa.array(np.isfinite(local_start_s(recordings))))
    offsets = recordings.column("utc_offset_s")
    without_zone = int(is_zone_unknown(recordings).sum())
    if without_zone and without_zone == len(recordings):
        return ZONE_UNKNOWN
    if without_zone:
        return f"local time, {without_zone} recordings of unknown zone"
    if not pc.any(pc.fill_null(pc.not_equal(offsets, 0), False)).as_py():
        return "UTC"
    return "local time" if offsets.null_count == 0 else "local time where the zone is known, else UTC"


def cut_at_hours(start_s: NDArray[np.float64], duration_s: NDArray[np.float64]) -> Slots:
    """Cut every recording at full hours; recordings without a start time or a length give no piece."""
    rows = np.flatnonzero(np.isfinite(start_s) & (duration_s > 0))
    start, end = start_s[rows], start_s[rows] + duration_s[rows]
    first = np.floor(start / HOUR_S).astype(np.int64)
    last = np.maximum(np.ceil(end / HOUR_S).astype(np.int64), first + 1)
    pieces = last - first
    owner = np.repeat(np.arange(len(rows)), pieces)
    slot = first[owner] + np.arange(len(owner)) - np.repeat(np.cumsum(pieces) - pieces, pieces)
    begin = np.maximum(slot * HOUR_S, start[owner]) - start[owner]
    stop = np.minimum((slot + 1) * HOUR_S, end[owner]) - start[owner]
    return Slots(rows[owner], slot, begin, stop)


def call_slots(detections: pa.Table) -> NDArray[np.float64]:
    """(N,) hour slot in which each detection begins; NaN when its time is unknown."""
    return np.floor(local_start_s(detections) / HOUR_S)


def slot_date(slot: int) -> date:
    return date(1970, 1, 1) + timedelta(days=int(slot) // 24)


def sun_hours(
    dates: list[date], latitude: float, longitude: float, utc_offset_s: ArrayLike
) -> tuple[tuple[float | None, ...], tuple[float | None, ...]]:
    """Sunrise and sunset of each date as local hours in [0, 24); None where the sun does not rise or set.

    `utc_offset_s` is that of all dates, or one for each: clocks change in spring and autumn.
    """
    observer = Observer(latitude=latitude, longitude=longitude)
    offsets = np.broadcast_to(np.asarray(utc_offset_s, np.float64), len(dates)).tolist()

    def hour(event: object, day: date, offset_s: float) -> float | None:
        try:
            moment: datetime = event(observer, date=day, tzinfo=UTC)  # type: ignore[operator]
        except ValueError:
            return None
        local = moment.timestamp() + offset_s
        return (local % 86400.0) / HOUR_S

    rise, down = (
        tuple(hour(event, *one) for one in zip(dates, offsets, strict=True)) for event in (sunrise, sunset)
    )
    return rise, down


def diel_map(recordings: pa.Table, detections: pa.Table, site: str | None = None) -> DielMap | None:
    """Calls and effort per date and hour of one site, or of all together; None
    when no recording has a time.
    """
    if site is not None:
        recordings = recordings.filter(pc.equal(recordings.column("site"), site))
        detections = detections.filter(pc.equal(detections.column("site"), site))
    start_s = local_start_s(recordings)
    duration_s = recordings.column("duration_s").to_numpy(zero_copy_only=False)
    pieces = cut_at_hours(start_s, duration_s)
    if len(pieces.slot) == 0:
        return None
    origin = int(pieces.slot.min()) // 24 * 24
    num_dates = (int(pieces.slot.max()) - origin) // 24 + 1
    effort = np.bincount(pieces.slot - origin, weights=pieces.effort_s, minlength=num_dates * 24)
    slots = call_slots(detections)
    inside = np.isfinite(slots) & (slots >= origin) & (slots < origin + num_dates * 24)
    calls = np.bincount(slots[inside].astype(np.int64) - origin, minlength=num_dates * 24)
    first = slot_date(origin)
    dates = [first + timedelta(days=i) for i in range(num_dates)]
    rise, down = _sun_of(recordings, dates)
    return DielMap(
        site if site is not None else "all sites",
        first,
        calls.reshape(num_dates, 24),
        effort.reshape(num_dates, 24).astype(np.float64),
        rise,
        down,
        clock_name(recordings),
    )


def _sun_of(
    recordings: pa.Table, dates: list[date]
) -> tuple[tuple[float | None, ...], tuple[float | None, ...]]:
    """Sun lines at the mean position, when all positions lie within one degree and an offset is known; every date has
    the offset of the recording nearest to its noon.
    """
    places = recordings.select(["latitude", "longitude", "utc_offset_s"]).append_column(
        "local_s", pa.array(local_start_s(recordings))
    )
    places = places.filter(pc.is_finite(places.column("local_s"))).drop_null().sort_by("local_s")
    if len(places) == 0:
        return (), ()
    latitude, longitude, offset, local_s = (c.to_numpy(zero_copy_only=False) for c in places.columns)
    east = (longitude - longitude[0] + 180.0) % 360.0 - 180.0  # of the first: a site may lie on the date line
    if np.ptp(latitude) > 1.0 or np.ptp(east) > 1.0:
        return (), ()
    noon_s = np.array([(day - date(1970, 1, 1)).days * 86400.0 + 43200.0 for day in dates])
    nearest = np.searchsorted((local_s[1:] + local_s[:-1]) / 2, noon_s)
    middle = (longitude[0] + east.mean() + 180.0) % 360.0 - 180.0
    return sun_hours(dates, float(latitude.mean()), float(middle), offset[nearest])
