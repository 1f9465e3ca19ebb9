"""Sites and times of recordings said afterwards: a zone or a table of sites changes no box, so nothing is detected again."""

from __future__ import annotations

import sys
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from mast_ray.config.tree import StorageConfig
from mast_ray.recordings.clock_and_site.clock import TableRow, to_utc, zone_named
from mast_ray.recordings.clock_and_site.names import read_name
from mast_ray.recordings.clock_and_site.site_tables import SiteTable
from mast_ray.recordings.clock_and_site.sites import stem_and_suffix
from mast_ray.reporting.detection_tables import STARTS, said_twice, with_column
from mast_ray.tables.preparing.site_table import site_table_of

TIMES = ("start_utc", "utc_offset_s", "start_local")
OF_ZONES = ("", "zone_unknown", "dst_gap", "dst_ambiguous", "dst_change")  # said of the clock in another zone


def restated(recordings: pa.Table, zone: str = "", table: str = "", before: str = "") -> pa.Table:
    """Recordings with the sites, places and times that a zone and a user's table give them; as they were without both.

    A table outranks what was read before, a zone only says where a clock without one stood (or a clock in UTC). `before` is
    the zone that such clocks were given when they were read: another takes its place.
    """
    if not zone and not table:
        return recordings
    if zone:
        zone_named(zone)  # a mistake is told before the work
    paths = recordings.column("path").to_pylist()
    rows = recordings.to_pylist()
    site_of = {row["path"]: row["site"] or "" for row in rows}
    sites, _ = site_table_of(table, paths, StorageConfig(), site_of.__getitem__)
    changed = kept = 0
    for number, row in enumerate(rows):
        new = _restated_row(row, zone, sites, before)
        changed += any(new[name] != row.get(name) for name in ("site", "latitude", "longitude", *TIMES))
        kept += bool(zone and not table) and _is_elsewhere(new, zone)
        rows[number] = new
    print(f"sites or times of {changed:,} of {len(rows):,} recordings are said anew", file=sys.stderr)
    if kept:
        print(
            f"note: {kept:,} recordings have an offset from UTC by their header, name or table, which --timezone {zone} leaves:\n"
            "if it is wrong, say the zone or time of their site or file in a table: --table",
            file=sys.stderr,
        )
    return pa.Table.from_pylist(rows, schema=recordings.schema)


def _restated_row(row: dict[str, Any], zone: str, sites: SiteTable | None, given: str) -> dict[str, Any]:
    said = (sites.row_of(row["path"], row["site"] or "") if sites is not None else None) or TableRow()
    new = row | {"site": said.site or row["site"]}
    if said.latitude is not None and said.longitude is not None:
        new |= {"latitude": said.latitude, "longitude": said.longitude}
    start = said.start or (_clock_of_name(row, given) if said.zone or zone else None) or _known_start(row)
    if start is None:
        return new
    is_stated = said.start is not None or row["time_source"] == "table"
    start_utc, offset_s, flags = to_utc(
        start, said.zone or zone, duration_s=row["duration_s"] or 0.0, is_stated=is_stated
    )
    if said.start is not None:
        new |= {"time_source": "table", "time_flags": ",".join(flags)}
    elif start.tzinfo is None or flags:
        before = [flag for flag in (row["time_flags"] or "").split(",") if flag not in OF_ZONES]
        new |= {"time_flags": ",".join(dict.fromkeys((*before, *flags)))}
    if start_utc is None:  # still without a zone, or no time at all: a clock that was reset
        local = start.replace(tzinfo=None) if "zone_unknown" in flags else None
        return new | {"start_utc": None, "utc_offset_s": None, "start_local": local}
    local = start_utc.replace(tzinfo=None) + timedelta(seconds=offset_s or 0)
    return new | {"start_utc": start_utc, "utc_offset_s": offset_s, "start_local": local}


def _clock_of_name(row: dict[str, Any], zone: str) -> datetime | None:
    """The clock in a file name without an offset that was taken for one in a zone; None where the time came otherwise. A
    clock in UTC is none of a place.
    """
    if not zone or row["start_utc"] is None or row["time_source"] != "filename" or zone_named(zone) == UTC:
        return None
    name = read_name(stem_and_suffix(row["path"])[0])
    if name.clock is None or name.utc_offset is not None:
        return None
    start_utc, offset_s, _ = to_utc(name.clock, zone)
    was_read_so = start_utc == row["start_utc"] and offset_s == row["utc_offset_s"]
    return name.clock if was_read_so else None


def _is_elsewhere(row: dict[str, Any], zone: str) -> bool:
    """Whether the local time of a recording is not that of a zone."""
    if row["start_utc"] is None or "dst_gap" in (row["time_flags"] or "").split(","):
        return False  # a clock that was not put forward shows an hour that the zone leaves out
    offset = row["start_utc"].astimezone(zone_named(zone)).utcoffset() or timedelta(0)
    return row["utc_offset_s"] != round(offset.total_seconds())


def _known_start(row: dict[str, Any]) -> datetime | None:
    """The start as it was read: with its offset where that was known."""
    if row["start_utc"] is not None:
        offset = timedelta(seconds=row["utc_offset_s"] or 0)
        return row["start_utc"].astimezone(UTC).astimezone(timezone(offset))
    return row.get("start_local")


def with_times_of(detections: pa.Table, recordings: pa.Table) -> pa.Table:
    """Detections with the sites and times of their recordings; those of other recordings stay as they are, and so do the
    times of those whose recording has none.
    """
    row = pc.index_in(detections.column("recording_id"), recordings.column("recording_id").combine_chunks())
    starts = (recordings.column(name).combine_chunks().take(row) for name in STARTS)
    is_known, is_timed = pc.is_valid(row), pc.or_(*map(pc.is_valid, starts))
    for name, own, said in said_twice(detections, recordings, ("site", *TIMES)):
        is_said = is_timed if name in TIMES else is_known
        detections = with_column(detections, name, pc.if_else(is_said, said, own))
    return detections
