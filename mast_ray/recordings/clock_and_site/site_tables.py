"""The user's own table of recordings or sites (CSV): the most trusted source of time and place.

Columns, all optional but one of the first two: `file` (or path, filename, recording), `site`, `start_time`
(ISO 8601, with or without offset), `start_utc`, `timezone`, `latitude`, `longitude`, `group` (recordings that no split
may part). Rows without a file describe a whole site; when a deployment began says nothing about when a recording did, so that
a start in such a row is not used. Commas, semicolons or tabs, and decimal commas, as in annotation tables.
"""

from __future__ import annotations

import difflib
import unicodedata
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import PurePosixPath

from mast_ray.config.errors import ConfigError, DataError
from mast_ray.recordings.annotations.tabular import column_lookup, number, numbered, parse_table, pick
from mast_ray.recordings.clock_and_site.clock import TableRow, is_ahead, zone_named
from mast_ray.recordings.clock_and_site.names import EARLIEST_PLAUSIBLE_YEAR

_ALIASES = {
    "file": ("file", "path", "filepath", "filename", "file_name", "recording", "recording_path"),
    "site": ("site", "location", "locationid", "deploymentid", "station", "recorder"),
    "start": ("start_time", "start", "datetime", "timestamp", "recording_start"),
    "start_utc": ("start_utc", "start_time_utc", "datetime_utc", "timestamp_utc"),
    "zone": ("timezone", "time_zone", "tz"),
    "latitude": ("latitude", "lat"),
    "longitude": ("longitude", "lon", "lng", "long"),
    "group": ("group",),
}
STARTS = ("start", "start_utc")
EARLIEST_YEAR = 1900  # of a recording; before it, a year was written with two digits or not at all


@dataclass(frozen=True)
class SiteTable:
    """Rows by relative path and by site; `by_name` leads from a file's name or
    stem to the paths written so.
    """

    by_path: Mapping[str, TableRow]
    by_name: Mapping[str, tuple[str, ...]]
    by_site: Mapping[str, TableRow]
    num_site_starts: int = 0  # rows of sites with a start, which is not used

    def row_of(self, path: str, site: str = "") -> TableRow | None:
        """The row of a recording; what it leaves open is filled from the row of its site."""
        own = self.by_path.get(path) or self._by_end_of(path)
        of_site = self.by_site.get((own.site if own else "") or unicodedata.normalize("NFC", site))
        if own is None or of_site is None:
            return own or of_site
        return replace(
            own,
            zone=own.zone or of_site.zone,
            latitude=own.latitude if own.latitude is not None else of_site.latitude,
            longitude=own.longitude if own.longitude is not None else of_site.longitude,
        )

    def unused(self, paths: Iterable[str]) -> list[str]:
        """Files of the table that are no recording of an archive; a row that fits several is an error."""
        known, fits = set(paths), dict[str, list[str]]()
        for path in sorted(known - self.by_path.keys()):
            for file in self._files_like(path):
                fits.setdefault(file, []).append(path)
        for file, found in fits.items():
            if len(found) > 1 or file in known:
                raise DataError(
                    f"the table's {file} can be {len({file, *found} & known)} recordings "
                    f"({', '.join(sorted({file, *found} & known)[:3])}):\nwrite its folder too, as in {found[0]}"
                )
        return [file for file in self.by_path if file not in known and file not in fits]

    def unused_sites(self, sites: Iterable[str]) -> list[str]:
        """Sites of the table at which no recording lies, neither by its name nor by a row of its own."""
        known = {unicodedata.normalize("NFC", site) for site in sites}
        known |= {row.site for row in self.by_path.values()}
        return [site for site in self.by_site if site not in known]

    def unclear(self, paths: Iterable[str]) -> list[str]:
        """Recordings that rows of several folders fit which say different things: none of them is taken."""
        return [
            path
            for path in paths
            if path not in self.by_path and len({self.by_path[file] for file in self._files_like(path)}) > 1
        ]

    def _by_end_of(self, path: str) -> TableRow | None:
        rows = {self.by_path[file] for file in self._files_like(path)}
        return rows.pop() if len(rows) == 1 else None  # two rows that say different things: neither

    def _files_like(self, path: str) -> list[str]:
        """Paths of the table that end as this one does or are its end, whatever their
        suffix: b/x.wav is not a/x.wav.
        """
        pure = PurePosixPath(path)
        named = self.by_name.get(pure.name) or self.by_name.get(pure.stem) or ()
        return [file for file in named if _is_end_of(file, path) or _is_end_of(path, file)]


def _is_end_of(short: str, long: str) -> bool:
    tail = PurePosixPath(short).parts[:-1]
    folders = PurePosixPath(long).parts[:-1]
    return len(tail) <= len(folders) and folders[len(folders) - len(tail) :] == tail


def parse_site_table(text: str, source: str = "table", group_column: str = "") -> SiteTable:
    """Read the table from its text; `source` names it in error messages, `group_column` the column of groups."""
    table = parse_table(text.removeprefix("\ufeff"), source)
    columns = _columns(table.columns)
    if group_column:
        if group_column not in table.columns:
            raise DataError(
                f"{source}: no column {group_column!r} to group recordings by:\nit has {', '.join(table.columns)}"
            )
        columns["group"] = group_column
    if "file" not in columns and "site" not in columns:
        raise DataError(
            f"{source}: no column names a file or a site (found: {', '.join(table.columns) or 'nothing'}):\n"
            "give it a column 'file' with paths relative to the archive, or a column 'site'"
        )
    if not columns.keys() - {"file"} or not columns.keys() - {"site"}:
        raise DataError(
            f"{source} says nothing about its {'files' if 'file' in columns else 'sites'} (found: {', '.join(table.columns)}):\n"
            f"give it some of the columns {', '.join(names[0] for names in _ALIASES.values())}"
        )
    by_path: dict[str, TableRow] = {}
    by_name: dict[str, tuple[str, ...]] = {}
    by_site: dict[str, TableRow] = {}
    num_site_starts = 0
    for where, values in numbered(table.rows, source):
        file = values.get(columns.get("file", ""), "").strip().replace("\\", "/")
        if not file:
            num_site_starts += any(values.get(columns.get(name, ""), "").strip() for name in STARTS)
            of_site = {name: column for name, column in columns.items() if name not in STARTS}
            row = _row(values, of_site, where)
            _refuse_second(by_site.setdefault(row.site, row), row, f"{where}: site {row.site!r}")
            continue
        row = _row(values, columns, where)
        if file in by_path:
            _refuse_second(by_path[file], row, f"{where}: {file}")
            continue
        by_path[file] = row
        for key in {PurePosixPath(file).name, PurePosixPath(file).stem}:
            by_name[key] = (*by_name.get(key, ()), file)
    return SiteTable(by_path, by_name, by_site, num_site_starts)


def _refuse_second(first: TableRow, row: TableRow, what: str) -> None:
    """Of two rows that differ the last would win, and with it another time, zone or place."""
    if row != first:
        raise DataError(
            f"{what} was described before, and differently:\n"
            "keep one row of each; where a recorder was moved or set anew, write a row per file"
        )


def refuse_unclear(sites: SiteTable, paths: Sequence[str], at_sites: Collection[str], source: str) -> str:
    """What to say about rows that describe no recording ("" when all do); a table of
    which no row fits is an error. `at_sites` are the sites that the recordings have without the table.
    """
    unused, unused_sites = sites.unused(paths), sites.unused_sites(at_sites)
    fits_none = len(unused) == len(sites.by_path) and len(unused_sites) == len(sites.by_site)
    if paths and unused and fits_none:
        raise DataError(
            f"{source}: none of its {len(unused)} files is in the archive (e.g. {unused[0]}, not {paths[0]}):\n"
            "write paths relative to the archive"
        )
    if paths and unused_sites and fits_none:
        raise DataError(
            f"{source}: none of its {len(unused_sites)} sites is in the archive (e.g. {unused_sites[0]!r}; {_nearest(unused_sites[0], at_sites)}):\n"
            "write the sites as there, or add a column 'file' that says which recordings are meant"
        )
    said = [f"{len(unused)} of its files are not in the archive (e.g. {unused[0]})"] if unused else []
    if unused_sites:
        said.append(
            f"{len(unused_sites)} of its sites are not in the archive (e.g. {unused_sites[0]!r}; {_nearest(unused_sites[0], at_sites)})"
        )
    if unclear := sites.unclear(paths):
        said.append(
            f"{len(unclear)} recordings are described by rows of several folders that differ, and none is taken (e.g. {unclear[0]})"
        )
    if sites.num_site_starts:
        said.append(
            f"the start of {sites.num_site_starts} sites is not used: only a row with a file says when a recording began"
        )
    said += _odd_starts(sites)
    return f"{source}: {'; '.join(said)}" if said else ""


def _odd_starts(sites: SiteTable) -> list[str]:
    """What to say about starts that a recorder with a wrong clock would write too."""
    starts = {file: row.start for file, row in sites.by_path.items() if row.start is not None}
    early = [file for file, start in starts.items() if start.year < EARLIEST_PLAUSIBLE_YEAR]
    ahead = [file for file, start in starts.items() if is_ahead(start)]
    said = []
    if early:
        said.append(
            f"{len(early)} of its starts are before {EARLIEST_PLAUSIBLE_YEAR} and stand as written (e.g. {early[0]}, {starts[early[0]]}): "
            "leave those out that a recorder with a reset clock wrote"
        )
    if ahead:
        said.append(
            f"{len(ahead)} of its starts are not used, for they are still to come (e.g. {ahead[0]}, {starts[ahead[0]]})"
        )
    return said


def _nearest(site: str, at_sites: Collection[str]) -> str:
    named = sorted(filter(None, at_sites))
    if not named:
        return "no recording there has one"
    nearest = difflib.get_close_matches(site, named, n=3, cutoff=0.0)
    return f"there: {', '.join(map(repr, nearest))}{', ...' * (len(named) > 3)}"


def _columns(names: Sequence[str]) -> dict[str, str]:
    lookup = column_lookup(names)
    found = {field: pick(lookup, aliases) for field, aliases in _ALIASES.items()}
    return {field: column for field, column in found.items() if column is not None}


def _row(values: Mapping[str, str], columns: Mapping[str, str], where: str) -> TableRow:
    def text(field: str) -> str:
        return values.get(columns.get(field, ""), "").strip()

    start: datetime | None = None
    if written := text("start") or text("start_utc"):
        try:
            start = datetime.fromisoformat(written)
        except ValueError as error:
            raise DataError(
                f"{where}: {written!r} is not a time:\nwrite ISO 8601, e.g. 2023-05-31T09:20:00+02:00"
            ) from error
        if start.year < EARLIEST_YEAR:
            raise DataError(
                f"{where}: {written!r} is of the year {start.year}:\n"
                "write the year in four digits, or leave the start empty where it is not known"
            )
        if start.tzinfo is None and not text("start"):
            start = start.replace(tzinfo=UTC)  # the column's name is the zone
    if text("zone"):
        try:
            zone_named(text("zone"))
        except ConfigError as error:
            raise DataError(
                f"{where}: {text('zone')!r} is not a time zone:\n"
                "name one from the IANA list, e.g. Asia/Makassar, or a fixed offset such as +08:00"
            ) from error
    return TableRow(
        start,
        text("zone"),
        unicodedata.normalize("NFC", text("site")),
        _degrees(text("latitude"), 90.0, where),
        _degrees(text("longitude"), 180.0, where),
        text("group"),
    )


def _degrees(text: str, most: float, where: str) -> float | None:
    try:
        value = number(text)
    except ValueError:
        value = float("inf")
    if value is not None and abs(value) > most:
        raise DataError(f"{where}: {text!r}:\nwrite latitude and longitude in decimal degrees")
    return value
