"""When and where a recording was made: user table > GUANO > vendor header > file name with a declared zone;
never the file's mtime.

Nothing is guessed: a clock reading without a known zone gives no `start_utc` and the flag `zone_unknown`; its hour and
date are local all the same.
A recorder that writes UTC has no local time of its own: a declared zone gives it, by the hour and the season.
Flags: zone_unknown, clock_reset (before 2005: no start_utc either), before_2005 (so, but the user's table says it: used),
clock_ahead (later than tomorrow: not used at all), dst_gap, dst_ambiguous, dst_change, sources_disagree, invalid_time, invalid_offset, date_only, two_digit_year,
several_times, epoch_name, gps_synced, twelve_hour_clock.
A recording keeps the offset of its start to its end, as the recorder's own clock does: where its zone puts clocks on or back
meanwhile (dst_change), local times after the change are those of the clock before it; UTC is right throughout.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, timezone, tzinfo
from typing import Literal
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import guano

from mast_ray.config.errors import ConfigError
from mast_ray.recordings.clock_and_site.names import EARLIEST_PLAUSIBLE_YEAR, NameReading, read_name
from mast_ray.recordings.clock_and_site.sites import SiteFrom, site_of, stem_and_suffix
from mast_ray.recordings.decoding.headers import Header

TimeSource = Literal["table", "guano", "header", "filename", "none"]
DISAGREEMENT = timedelta(seconds=60)
FARTHEST = timedelta(hours=14)  # from UTC: Kiritimati
AHEAD = timedelta(days=2)  # of now: zones, and the clock of this machine, may differ by a day

_AUDIOMOTH = re.compile(
    r"Recorded at (\d{2}):(\d{2}):(\d{2})(?:\.(\d{3}))? (\d{2})/(\d{2})/(\d{4}) ?(?:\((UTC)([+-]\d{1,2})?(?::(\d{2}))?\))?"
)
_FIXED_OFFSET = re.compile(r"^(?:UTC|GMT)?([+-])(\d{1,2})(?::?(\d{2}))?$")


@dataclass(frozen=True)
class TableRow:
    """What a user's table says about one recording; it outranks everything embedded in the file."""

    start: datetime | None = None  # with or without offset
    zone: str = ""
    site: str = ""
    latitude: float | None = None
    longitude: float | None = None
    group: str = ""  # recordings that must not be parted: one bird on four microphones


@dataclass(frozen=True)
class RecordingMetadata:
    """Time and place. `clock` is the reading without zone, kept even where `start_utc` is unknown."""

    start_utc: datetime | None
    utc_offset_s: int | None
    time_source: TimeSource
    time_flags: tuple[str, ...]
    clock: datetime | None
    site: str
    latitude: float | None
    longitude: float | None
    convention: str = ""  # of the file name
    group: str = ""

    @property
    def local(self) -> datetime | None:
        """The clock on the recorder's wall: in its zone where that is known, as it reads where nobody named one."""
        if self.start_utc is not None and self.utc_offset_s is not None:
            return self.start_utc.replace(tzinfo=None) + timedelta(seconds=self.utc_offset_s)
        return self.clock if "zone_unknown" in self.time_flags else None

    @property
    def local_date(self) -> str:
        """YYYY-MM-DD on that wall; "" where unknown."""
        return self.local.date().isoformat() if self.local is not None else ""


def parse_name_metadata(path: str, zone: str = "", site_from: SiteFrom = "auto") -> RecordingMetadata:
    """Time and site from a path (relative to the archive, forward slashes) alone."""
    return recording_metadata(path, zone=zone, site_from=site_from)


def recording_metadata(
    path: str,
    *,
    header: Header | None = None,
    row: TableRow | None = None,
    zone: str = "",
    site_from: SiteFrom = "auto",
    duration_s: float = 0.0,
) -> RecordingMetadata:
    """Merge all sources in order of trust. `zone` is an IANA name or a fixed offset; empty: undeclared."""
    name = read_name(stem_and_suffix(path)[0])
    row = row or TableRow()
    texts = _guano_values(header.guano) if header is not None and header.guano else {}
    readings: list[tuple[TimeSource, datetime]] = []
    if row.start is not None:
        readings.append(("table", row.start))
    if isinstance(stamp := texts.get("Timestamp"), datetime) and _is_on_earth(stamp):
        readings.append(("guano", stamp))
    if header is not None and (stamp := audiomoth_time(header.comment)) is not None:
        readings.append(("header", stamp))
    if name.clock is not None:
        offset = name.utc_offset
        readings.append(
            ("filename", name.clock if offset is None else name.clock.replace(tzinfo=timezone(offset)))
        )

    source: TimeSource = readings[0][0] if readings else "none"
    start = readings[0][1] if readings else None
    start_utc, offset_s, flags = (
        to_utc(start, row.zone or zone, duration_s=duration_s, is_stated=source == "table")
        if start is not None
        else (None, None, ())
    )
    if source in ("filename", "none"):
        flags = (*name.flags, *flags)
    if _disagree(readings):
        flags = (*flags, "sources_disagree")
    latitude, longitude = _place(row, texts, name)
    return RecordingMetadata(
        start_utc=start_utc,
        utc_offset_s=offset_s,
        time_source=source,
        time_flags=tuple(dict.fromkeys(flags)),
        clock=start.replace(tzinfo=None) if start is not None and "clock_ahead" not in flags else None,
        # one name, however a computer writes its accents: macOS takes letters apart, others do not
        site=unicodedata.normalize("NFC", row.site or site_of(path, name.prefix, site_from)),
        latitude=latitude,
        longitude=longitude,
        convention=name.convention,
        group=row.group,
    )


def to_utc(
    start: datetime, zone: str, duration_s: float = 0.0, is_stated: bool = False
) -> tuple[datetime | None, int | None, tuple[str, ...]]:
    """(UTC time, offset of local time in seconds, flags) of a clock reading; its
    own offset outranks the zone.

    A reading in UTC says when, not where: its local time is that of the declared zone. What a person has stated (in a table)
    stands also where a recorder's clock would be taken for reset.
    """
    flags: tuple[str, ...] = ()
    if start.year < EARLIEST_PLAUSIBLE_YEAR:
        if not is_stated:
            return None, None, ("clock_reset",)
        flags = ("before_2005",)
    if is_ahead(start):
        return None, None, ("clock_ahead",)
    if start.tzinfo is None:
        if not zone:
            return None, None, (*flags, "zone_unknown")
        start = start.replace(tzinfo=zone_named(zone))
        if start.astimezone(UTC).astimezone(start.tzinfo).replace(tzinfo=None) != start.replace(tzinfo=None):
            flags = (*flags, "dst_gap")
        elif start.utcoffset() != start.replace(fold=1).utcoffset():
            flags = (*flags, "dst_ambiguous")
    elif zone and not start.utcoffset():
        start = start.astimezone(zone_named(zone))
    offset = start.utcoffset() or timedelta(0)
    end = (start.astimezone(UTC) + timedelta(seconds=duration_s)).astimezone(start.tzinfo)
    if end.utcoffset() != start.astimezone(UTC).astimezone(start.tzinfo).utcoffset():
        flags = (*flags, "dst_change")
    return start.astimezone(UTC), round(offset.total_seconds()), flags


def is_ahead(start: datetime) -> bool:
    """Whether nothing can have been recorded then, wherever on earth."""
    return start.replace(tzinfo=UTC) > datetime.now(UTC) + AHEAD


def zone_named(zone: str) -> tzinfo:
    """An IANA zone, `UTC`, or a fixed offset such as +08:00 or UTC-5."""
    try:
        if match := _FIXED_OFFSET.match(zone.strip()):
            sign, hours, minutes = match.groups()
            size = timedelta(hours=int(hours), minutes=int(minutes or 0))
            if int(minutes or 0) > 59 or size > FARTHEST:
                raise ValueError("no place on earth is that far from UTC")
            return timezone(-size if sign == "-" else size)
        return UTC if zone.strip().upper() in ("UTC", "GMT", "Z") else ZoneInfo(zone.strip())
    except (ZoneInfoNotFoundError, ValueError, OSError) as error:
        raise ConfigError(
            f"{zone!r} (audio.timezone, --timezone) is not a time zone:\n"
            "name one from the IANA list, e.g. Asia/Makassar, or a fixed offset such as +08:00"
        ) from error


def audiomoth_time(comment: str) -> datetime | None:
    """`Recorded at 19:17:30 30/01/2018 (UTC+2) by AudioMoth ...` -> that time, with its offset where
    stated.
    """
    match = _AUDIOMOTH.search(comment)
    if match is None:
        return None
    hour, minute, second, millis, day, month, year, utc, hours, minutes = match.groups()
    try:
        clock = datetime(
            int(year), int(month), int(day), int(hour), int(minute), int(second), int(millis or 0) * 1000
        )
    except ValueError:
        return None
    if utc is None:
        return clock
    size = timedelta(hours=abs(int(hours or 0)), minutes=int(minutes or 0))
    if size > FARTHEST:
        return None  # no place on earth: neither is the rest of it a time to trust
    return clock.replace(tzinfo=timezone(-size if (hours or "").startswith("-") else size))


def _guano_values(text: str) -> Mapping[str, object]:
    """The well-known GUANO fields; a line that breaks the standard costs itself, not time and place."""
    values: dict[str, object] = {}
    used = [
        line for line in text.splitlines() if line.partition(":")[0].strip() in ("Timestamp", "Loc Position")
    ]
    for part in (text, *(f"GUANO|Version: 1.0\n{line}" for line in used)):
        try:
            values |= dict(guano.GuanoFile.from_string(part).items())
        except (ValueError, KeyError, TypeError):
            continue
        if part is text:
            break
    return values


def _is_on_earth(stamp: datetime) -> bool:
    """Whether its offset is one that a place has: what a damaged chunk says can be any number."""
    try:
        return abs(stamp.utcoffset() or timedelta(0)) <= FARTHEST
    except ValueError:  # a day or more
        return False


def _place(
    row: TableRow, texts: Mapping[str, object], name: NameReading
) -> tuple[float | None, float | None]:
    if row.latitude is not None and row.longitude is not None:
        return row.latitude, row.longitude
    position = texts.get("Loc Position")
    if (
        isinstance(position, tuple)
        and len(position) == 2
        and abs(position[0]) <= 90
        and abs(position[1]) <= 180
    ):
        return position[0], position[1]
    return name.latitude, name.longitude


def _disagree(readings: list[tuple[TimeSource, datetime]]) -> bool:
    """Two sources name different moments: neither their clock readings nor their
    UTC times meet within a minute.
    """
    if len(readings) < 2:
        return False
    trusted = readings[0][1]
    for _, other in readings[1:]:
        gaps = [abs(trusted.replace(tzinfo=None) - other.replace(tzinfo=None))]
        if trusted.tzinfo is not None:
            utc = trusted.astimezone(UTC).replace(tzinfo=None)
            gaps.append(abs(utc - (other.astimezone(UTC) if other.tzinfo else other).replace(tzinfo=None)))
        if min(gaps) > DISAGREEMENT:
            return True
    return False
