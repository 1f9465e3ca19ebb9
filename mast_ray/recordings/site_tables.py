"""The user's own table of recordings or sites (CSV): the most trusted source of time and place.

Columns, all optional but one of the first two: `file` (or path, filename, recording), `site`, `start_time`
(ISO 8601, with or without offset), `timezone`, `latitude`, `longitude`. Rows without a file describe a
whole site.
"""

from __future__ import annotations

import csv
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import PurePosixPath

from mast_ray.config.errors import DataError
from mast_ray.recordings.clock import TableRow

_ALIASES = {
    "file": ("file", "path", "filepath", "filename", "file_name", "recording", "recording_path"),
    "site": ("site", "location", "locationid", "deploymentid", "station", "recorder"),
    "start": ("start_time", "start", "start_utc", "datetime", "timestamp", "recording_start"),
    "zone": ("timezone", "time_zone", "tz"),
    "latitude": ("latitude", "lat"),
    "longitude": ("longitude", "lon", "lng", "long"),
}


@dataclass(frozen=True)
class SiteTable:
    """Rows by relative path, by unambiguous file name and stem, and by site."""

    by_path: Mapping[str, TableRow]
    by_name: Mapping[str, TableRow]
    by_site: Mapping[str, TableRow]

    def row_of(self, path: str, site: str = "") -> TableRow | None:
        """The row of a recording; what it leaves open is filled from the row of its site."""
        pure = PurePosixPath(path)
        own = self.by_path.get(path) or self.by_name.get(pure.name) or self.by_name.get(pure.stem)
        of_site = self.by_site.get((own.site if own else "") or site)
        if own is None or of_site is None:
            return own or of_site
        return replace(
            own,
            zone=own.zone or of_site.zone,
            latitude=own.latitude if own.latitude is not None else of_site.latitude,
            longitude=own.longitude if own.longitude is not None else of_site.longitude,
        )


def parse_site_table(text: str, source: str = "table") -> SiteTable:
    """Read the table from its text; `source` names it in error messages."""
    reader = csv.DictReader(text.removeprefix("\ufeff").splitlines())
    columns = _columns(reader.fieldnames or ())
    if "file" not in columns and "site" not in columns:
        raise DataError(
            f"{source}: no column names a file or a site (found: {', '.join(reader.fieldnames or ()) or 'nothing'}):\n"
            "give it a column 'file' with paths relative to the archive, or a column 'site'"
        )
    by_path: dict[str, TableRow] = {}
    by_name: dict[str, TableRow | None] = {}
    by_site: dict[str, TableRow] = {}
    for line, values in enumerate(reader, start=2):
        row = _row(values, columns, f"{source}, line {line}")
        file = (values.get(columns.get("file", "")) or "").strip().replace("\\", "/")
        if not file:
            by_site[row.site] = row
            continue
        by_path[file] = row
        for key in {PurePosixPath(file).name, PurePosixPath(file).stem}:
            by_name[key] = (
                row if key not in by_name or by_name[key] == row else None
            )  # ambiguous: by path only
    return SiteTable(by_path, {key: row for key, row in by_name.items() if row is not None}, by_site)


def _columns(names: object) -> dict[str, str]:
    lowered = {str(name).strip().lower(): str(name) for name in names}  # type: ignore[attr-defined]
    return {
        field: lowered[alias]
        for field, aliases in _ALIASES.items()
        for alias in reversed(aliases)
        if alias in lowered
    }


def _row(values: Mapping[str, str | None], columns: Mapping[str, str], where: str) -> TableRow:
    def text(field: str) -> str:
        return (values.get(columns.get(field, "")) or "").strip()

    start: datetime | None = None
    if written := text("start"):
        try:
            start = datetime.fromisoformat(written)
        except ValueError as error:
            raise DataError(
                f"{where}: {written!r} is not a time:\nwrite ISO 8601, e.g. 2023-05-31T09:20:00+02:00"
            ) from error
    try:
        latitude = float(text("latitude")) if text("latitude") else None
        longitude = float(text("longitude")) if text("longitude") else None
    except ValueError as error:
        raise DataError(f"{where}: {error}:\nwrite latitude and longitude in decimal degrees") from error
    return TableRow(start, text("zone"), text("site"), latitude, longitude)
