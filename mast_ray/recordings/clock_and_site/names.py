"""Clock times that recorders write into file names, one pattern per convention, the most specific first.

A name gives a clock reading; whether it is UTC, local time or has an offset is a separate question
(clock.py). Digits may be padded with spaces (`_ 9_ 5_ 0`), as older recorders do.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

EARLIEST_PLAUSIBLE_YEAR = 2005  # before it, a digital field recorder's clock was reset (1970, 2000)
_TWO = r"([ \d]\d)"
_OFFSET = r"(Z|[+-]\d{2}:?\d{2})?(?!\d)"
_DAY, _TIME = rf"(?<!\d)((?:19|20)\d{{2}}){_TWO}{_TWO}", rf"{_TWO}{_TWO}{_TWO}"

# convention -> pattern whose groups are year, month, day, hour, minute, second and, where
# written, milliseconds and offset
_YEAR_FIRST = {
    "frontier_labs": rf"^{_DAY}T{_TIME}(?:\.(\d{{1,9}}))?{_OFFSET}",
    "iso_basic": rf"{_DAY}T{_TIME}(?:\.(\d{{1,9}}))?{_OFFSET}",
    "birdnet_pi": r"(?<!\d)((?:19|20)\d{2})-(\d{2})-(\d{2})-birdnet-(?:.*-)?(\d{2})[:_.](\d{2})[:_.](\d{2})()()",
    "song_meter_gps": rf"{_DAY}\${_TIME}(?:_(\d{{3}}))?(?!\d)()",
    "date_time": rf"{_DAY}[_-]{_TIME}(?:_(\d{{3}})(?=$|_))?T?{_OFFSET}",
    "dashed": (
        r"(?<!\d)((?:19|20)\d{2})[-_](\d{2})[-_](\d{2})[-_T ](\d{2})[-_:h](\d{2})(?:[-_:m](\d{2}))?(?:\.(\d{1,9}))?"
        r"(Z|[+-]\d{2}:?\d{2}|\+\d{2}[-_]\d{2}|(?<=T\d\d[-_]\d\d[-_]\d\d)-\d{2}[-_]\d{2})?(?!\d)"  # a disk may take no colon
    ),
    "compact": r"(?<!\d)((?:19|20)\d{2})(\d{2})(\d{2})(\d{2})(\d{2})(\d{2})()(?!\d)()",
}
# what may stand after a time and change its meaning
_TWELVE_HOURS = re.compile(r"[ _-]?([AaPp])[Mm](?![A-Za-z0-9])")
_NAMED_UTC = re.compile(r"[ _-]?\(?(?:UTC|GMT)(?:([+-])(\d{1,2})(?::?(\d{2}))?)?\)?(?![A-Za-z0-9])")
_DSG = re.compile(rf"HMS_{_TWO}_{_TWO}_{_TWO}__DMY_{_TWO}_{_TWO}_{_TWO}(?!\d)")
_DSG_YEAR_FIRST = re.compile(r"YMD_(\d{4})_(\d{2})_(\d{2})_HMS_(\d{2})_(\d{2})_(\d{2})")
_SOUNDTRAP = re.compile(r"^\d{3,10}\.(\d{2})(\d{2})(\d{2})(\d{2})(\d{2})(\d{2})$")
_SHORT_YEAR = re.compile(r"(?<![\dA-Za-z])(\d{2})(\d{2})(\d{2})_(\d{2})(\d{2})(\d{2})(?!\d)")
_HEXADECIMAL = re.compile(r"^[0-9A-Fa-f]{8}T?$")
_EPOCH_MS = re.compile(r"(?<![\dA-Za-z.])(\d{13})(?!\d)")
_DATE_ONLY = re.compile(rf"{_DAY}(?!\d)")
_POSITION = re.compile(r"\[?([+-]?\d{1,2}\.\d{2,})\]?[ _,]?\[?([+-]?\d{1,3}\.\d{2,})\]")
_FRONTIER_SITE = re.compile(r"^\d{8}T\d{6}(?:Z|[+-]\d{4})?_([^\[]+)")
_PATTERNS = {convention: re.compile(pattern) for convention, pattern in _YEAR_FIRST.items()}


@dataclass(frozen=True)
class NameReading:
    """What a file name says. `clock` has no zone; `utc_offset` only where the name states it."""

    convention: str  # "" when no time was found
    clock: datetime | None = None
    utc_offset: timedelta | None = None
    prefix: str = ""  # what stands before the time: recorder or site
    latitude: float | None = None
    longitude: float | None = None
    flags: tuple[str, ...] = ()


def read_name(stem: str) -> NameReading:
    """Recognise the convention of a file name without its suffix."""
    latitude, longitude = _position(stem)
    found = _hexadecimal(stem) or _dsg(stem) or _year_first(stem) or _other(stem)
    if found is None:
        date_only = _DATE_ONLY.search(stem)
        flags: tuple[str, ...] = ("date_only",) if date_only else ()
        prefix = _tidy_prefix(stem[: date_only.start()]) if date_only else ""
        return NameReading("", prefix=prefix, latitude=latitude, longitude=longitude, flags=flags)
    convention, clock, offset, start, flags = found
    prefix = _tidy_prefix(stem[:start])
    if convention == "birdnet_pi":
        prefix = ""  # the species that was heard
    if convention == "frontier_labs" and (match := _FRONTIER_SITE.search(stem)):
        prefix = _tidy_prefix(match.group(1)).removesuffix("REC").strip(" _")
    return NameReading(convention, clock, offset, prefix, latitude, longitude, flags)


_Found = tuple[str, datetime | None, timedelta | None, int, tuple[str, ...]]


def _hexadecimal(stem: str) -> _Found | None:
    """Old AudioMoth firmware: seconds since 1970 in hexadecimal, always UTC. 20180710 is a date, not 1987."""
    if not _HEXADECIMAL.match(stem):
        return None
    clock = datetime.fromtimestamp(int(stem[:8], 16), UTC).replace(tzinfo=None)
    is_date = stem[:8].isdigit() and _valid(stem[:4], stem[4:6], stem[6:8], "0", "0", "0") is not None
    if is_date and clock.year < EARLIEST_PLAUSIBLE_YEAR:
        return None
    return "audiomoth_hexadecimal", clock, timedelta(0), 0, ()


def _dsg(stem: str) -> _Found | None:
    if match := _DSG_YEAR_FIRST.search(stem):
        return "dsg", _valid(*match.groups()), None, match.start(), ()
    if match := _DSG.search(stem):
        hour, minute, second, day, month, year = match.groups()
        return (
            "dsg",
            _valid(f"20{year.replace(' ', '0')}", month, day, hour, minute, second),
            None,
            match.start(),
            (),
        )
    return None


def _year_first(stem: str) -> _Found | None:
    invalid: _Found | None = None
    for convention, pattern in _PATTERNS.items():
        matches = list(pattern.finditer(stem))
        for match in matches:
            *parts, fraction, offset_text = match.groups()
            clock = _valid(*(part or "0" for part in parts))
            if clock is None:
                invalid = invalid or (convention, None, None, match.start(), ("invalid_time",))
                continue
            clock += timedelta(seconds=float(f"0.{fraction}")) if fraction else timedelta(0)
            flags: tuple[str, ...] = ("gps_synced",) if convention == "song_meter_gps" else ()
            if len({other.group(0) for other in matches}) > 1:
                flags += ("several_times",)
            if _is_impossible_offset(offset_text):
                flags += ("invalid_offset",)
            offset = _offset(offset_text)
            if said := _TWELVE_HOURS.match(stem, match.end()):
                hour = clock.hour % 12 + 12 * (said[1] in "Pp")
                if 1 <= clock.hour <= 12 and hour != clock.hour:
                    clock = clock.replace(hour=hour)
                    flags += ("twelve_hour_clock",)
            elif offset is None and (said := _NAMED_UTC.match(stem, match.end())):
                sign, hours, minutes = said.groups()
                offset = _offset(f"{sign}{int(hours):02d}{minutes or '00'}" if sign else "Z")
            return convention, clock, offset, match.start(), flags
    return invalid


def _other(stem: str) -> _Found | None:
    if (match := _SOUNDTRAP.match(stem)) or (match := _SHORT_YEAR.search(stem)):
        year, *rest = match.groups()
        if clock := _valid(f"20{year}", *rest):
            return "short_year", clock, None, match.start(), ("two_digit_year",)
    if match := _EPOCH_MS.search(stem):
        clock = datetime.fromtimestamp(int(match.group(1)) / 1000, UTC).replace(tzinfo=None)
        if EARLIEST_PLAUSIBLE_YEAR <= clock.year < 2100:
            return "epoch_ms", clock, timedelta(0), match.start(), ("epoch_name",)
    return None


def _valid(year: str, month: str, day: str, hour: str, minute: str, second: str) -> datetime | None:
    try:
        return datetime(int(year), int(month), int(day), int(hour), int(minute), int(second))
    except ValueError:
        return None


def _offset(text: str | None) -> timedelta | None:
    """`Z`, `+0800` or `+08:00`; `-0001` is the number of a part, not an offset: no zone has odd minutes."""
    if not text:
        return None
    if text == "Z":
        return timedelta(0)
    hours, minutes = int(text[1:3]), int(text[-2:])
    if hours > 14 or minutes not in (0, 30, 45):
        return None
    size = timedelta(hours=hours, minutes=minutes)
    return -size if text[0] == "-" else size


def _is_impossible_offset(text: str | None) -> bool:
    """`+9900` is written like an offset and no zone has it; `-0001` is the number of a part."""
    return (
        text is not None and text not in ("", "Z") and int(text[1:3]) > 14 and int(text[-2:]) in (0, 30, 45)
    )


def _position(stem: str) -> tuple[float | None, float | None]:
    """Frontier Labs writes [latitude][longitude] or [+latitude-longitude]."""
    if "[" in stem and (match := _POSITION.search(stem)):
        latitude, longitude = float(match.group(1)), float(match.group(2))
        if abs(latitude) <= 90 and abs(longitude) <= 180:
            return latitude, longitude
    return None, None


def _tidy_prefix(prefix: str) -> str:
    """`PREFIX_0+1_` -> `PREFIX`: the channels of a Song Meter are not part of a site's name."""
    return re.sub(r"_\d\+\d_?$", "", prefix.strip()).strip(" _-.$")
