"""What is in an archive, before any work: files, hours, sites, dates, rates, faults
by reason, an estimate of time.

Headers are read, samples are not; a fault that only decoding shows is found by prepare.
"""

from __future__ import annotations

import os
import re
import unicodedata
from collections import Counter
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from fnmatch import translate
from typing import Literal

import numpy as np

from mast_ray.config.errors import DataError
from mast_ray.config.shown import shown
from mast_ray.config.tree import AudioConfig
from mast_ray.recordings.clock_and_site.site_tables import SiteTable
from mast_ray.recordings.clock_and_site.sites import (
    CLASS_FOLDER,
    is_junk,
    is_recording_name,
    telling_folders,
)
from mast_ray.recordings.decoding.faults import Reason, UnreadableRecording, reasons_text
from mast_ray.recordings.decoding.reading import probe
from mast_ray.spectrogram.grid import NUM_BINS, SEGMENT_FRAMES, fractional_hops
from mast_ray.storage.entries import LOCKED
from mast_ray.storage.storage import Storage
from mast_ray.storage.units import Item, item_id_of
from mast_ray.tables.assumed_rates import GPU_BASE
from mast_ray.tables.preparing.source_faults import meaning_of_fault
from mast_ray.tables.preparing.unit_work import limits_of, metadata_of, open_source

NUM_THREADS = 16  # reading headers
SYNTHETIC_COPIES = ("Data Augmentation/*", "*/Data Augmentation/*")  # BIRDeep's: never part of an archive


@dataclass(frozen=True)
class Listing:
    """The recordings of an archive, sorted by path, and what was passed over."""

    items: tuple[Item, ...]
    num_excluded: int
    num_other_files: int


@dataclass(frozen=True)
class Inventory:
    """Sums over an archive; hours and faults are extrapolated when only some headers were read."""

    num_files: int
    num_bytes: int
    num_probed: int
    hours: float
    sites: Counter[str] = field(default_factory=Counter)
    dates: Counter[str] = field(default_factory=Counter)
    rates_hz: Counter[int] = field(default_factory=Counter)
    channels: Counter[int] = field(default_factory=Counter)
    containers: Counter[str] = field(default_factory=Counter)
    faults: Counter[str] = field(default_factory=Counter)  # rejected, by reason
    salvageable: Counter[str] = field(default_factory=Counter)
    time_sources: Counter[str] = field(default_factory=Counter)
    time_flags: Counter[str] = field(default_factory=Counter)
    places: Mapping[str, Sequence[str]] = field(
        default_factory=dict
    )  # of sites whose name several folders have

    def core_hours(self) -> float:
        return self.hours / GPU_BASE.prepare_x_per_core


def list_archive(archive: Storage, exclude: Sequence[str] = SYNTHETIC_COPIES) -> Listing:
    """Every recording by name; folders that are called like recordings are faults and listed too."""
    items, num_excluded, num_other = [], 0, 0
    is_excluded = re.compile(
        "|".join(map(translate, exclude)) or r"(?!)"
    ).match  # translated once, not per name
    for entry in archive.list("", folders_named=is_recording_name):
        if entry.version == LOCKED:
            inside = f"{entry.key}/x"
            if not is_junk(inside) and not is_excluded(inside):
                raise DataError(
                    f"the folder {archive.url}/{entry.key} may not be read:\n"
                    f"ask for permission, or leave it out with --exclude '{entry.key}/*'"
                )
            num_other += 1
        elif not is_recording_name(entry.key) or _is_hidden(entry.key):
            num_other += 1
        elif is_excluded(entry.key):
            num_excluded += 1
        else:
            item_id = item_id_of(entry.key, entry.num_bytes)
            items.append(Item(item_id, entry.key, entry.num_bytes, entry.version))
    if not items:
        refuse_no_folder(archive)
        raise DataError(
            f"{archive.url} holds no recordings ({num_other} other files):\n"
            "check the path; wav, flac, ogg, mp3 and aiff are read"
        )
    return Listing(tuple(sorted(items, key=lambda item: item.path)), num_excluded, num_other)


def refuse_no_folder(archive: Storage) -> None:
    """An archive on this machine that is not there, or is a file."""
    local = archive.local_path("")
    if local is not None and not os.path.isdir(local):
        raise DataError(
            f"{archive.url} is a file, not a folder:\ngive the folder it lies in"
            if os.path.exists(local)
            else f"{archive.url} does not exist:\ncheck the path, and whether the disk or card is there"
        )


def _is_hidden(path: str) -> bool:
    """Junk, except AppleDouble files, which look like recordings and are rejected with their reason."""
    return is_junk(path) and not path.rsplit("/", 1)[-1].startswith("._")


@dataclass(frozen=True)
class Probed:
    """What the header of a recording says; `reason` where it would be rejected."""

    hours: float = 0.0
    site: str = ""
    date: str = ""
    rate_hz: int = 0
    num_channels: int = 0
    container: str = ""
    reason: str = ""
    salvage: str = ""
    time_source: str = ""
    time_flags: tuple[str, ...] = ()


def take_inventory(
    archive: Storage,
    items: Sequence[Item],
    audio: AudioConfig,
    sites: SiteTable | None = None,
    sample: int = 0,
) -> Inventory:
    """Read headers of all items, or of `sample` evenly spread ones, and add up."""
    chosen = list(items)
    if sample and sample < len(items):
        chosen = [items[i] for i in np.linspace(0, len(items) - 1, sample).round().astype(int)]
    probed = probe_all(archive, chosen, audio, sites)
    good = [one for one in probed if not one.reason]
    probed_bytes = sum(item.num_bytes for item in chosen)
    num_bytes = sum(item.num_bytes for item in items)
    hours = sum(one.hours for one in good)
    return Inventory(
        num_files=len(items),
        num_bytes=num_bytes,
        num_probed=len(chosen),
        hours=hours * (num_bytes / probed_bytes if probed_bytes else 1.0),
        sites=Counter(one.site for one in good),
        dates=Counter(one.date for one in good),
        rates_hz=Counter(one.rate_hz for one in good),
        channels=Counter(one.num_channels for one in good),
        containers=Counter(one.container for one in good),
        faults=Counter(one.reason for one in probed if one.reason),
        salvageable=Counter(one.salvage for one in good if one.salvage),
        time_sources=Counter(one.time_source for one in good),
        time_flags=Counter(flag for one in good for flag in one.time_flags),
        places=_several_places(chosen, probed, audio, sites),
    )


def probe_all(
    archive: Storage, items: Sequence[Item], audio: AudioConfig, sites: SiteTable | None
) -> list[Probed]:
    """The headers of recordings, several at a time, in their order."""
    is_local = archive.local_path("") is not None
    with ThreadPoolExecutor(min(NUM_THREADS, 4 * (os.cpu_count() or 1)) if is_local else NUM_THREADS) as pool:
        return list(pool.map(lambda item: _probed(archive, item, audio, sites), items))


def _several_places(
    items: Sequence[Item], probed: Sequence[Probed], audio: AudioConfig, sites: SiteTable | None
) -> dict[str, list[str]]:
    """Sites that are called like folders in several places, with those places: Wald/Süd and Moor/Süd. A site that the
    table names is meant.
    """
    places: dict[str, set[str]] = {}
    for item, one in zip(items, probed, strict=True):
        folders = telling_folders(item.path, audio.site_from)
        if one.reason or not folders or unicodedata.normalize("NFC", folders[-1]) != one.site:
            continue
        row = sites.row_of(item.path) if sites is not None else None
        if row is None or not row.site:
            places.setdefault(one.site, set()).add("/".join(folders))
    return {site: sorted(of_site) for site, of_site in sorted(places.items()) if len(of_site) > 1}


def _probed(archive: Storage, item: Item, audio: AudioConfig, sites: SiteTable | None) -> Probed:
    try:
        with open_source(archive, item, whole=False) as source:
            info = probe(source, limits=limits_of(audio))
        duration_s = info.duration_s
        if duration_s is not None and duration_s < limits_of(audio).min_duration_s:
            return Probed(reason=str(info.fault.reason if info.fault else Reason.TOO_SHORT))
    except Exception as error:  # what prepare would reject, or stop at
        fault = meaning_of_fault(error)
        if not isinstance(fault, UnreadableRecording):
            raise
        return Probed(reason=str(fault.reason))
    place = metadata_of(item.path, info.header, audio, sites, duration_s or 0.0)
    return Probed(
        hours=(duration_s or 0.0) / 3600.0,
        site=place.site,
        date=place.local_date,
        rate_hz=info.sample_rate_hz,
        num_channels=info.num_channels,
        container=info.container,
        salvage=str(info.fault.reason) if info.fault else "",
        time_source=place.time_source,
        time_flags=place.time_flags,
    )


def inventory_lines(
    listing: Listing, inventory: Inventory, cores: int, storage: Literal["uint8", "float16"] = "uint8"
) -> list[str]:
    """What a person wants to read before starting; `storage` is how tables are to be stored."""
    sampled = inventory.num_probed < inventory.num_files
    share = f" (estimated from {inventory.num_probed:,} headers)" if sampled else ""
    lines = [
        f"{inventory.num_files:,} recordings, {inventory.num_bytes / 1e9:.2f} GB, {inventory.hours:,.1f} h{share}"
        + (f"; {listing.num_excluded:,} excluded" if listing.num_excluded else "")
        + (f"; {listing.num_other_files:,} other files" if listing.num_other_files else ""),
        f"formats: {_listed(inventory.containers)}; rates: {_listed(inventory.rates_hz, ' Hz')}; "
        f"channels: {_listed(inventory.channels)}",
        f"sites ({len(inventory.sites)}): {_listed(inventory.sites, unknown='unknown')}",
    ]
    for site, places in list(inventory.places.items())[:3]:
        more = f" and {len(places) - 2} more" if len(places) > 2 else ""
        lines.append(
            f"  {' and '.join(places[:2])}{more} are taken for one site, {site}: where they are not, a --table with the columns "
            "file and site says so"
        )
    if (unsaid := len(inventory.places) - 3) > 0:
        lines.append(f"  so are the folders of {unsaid:,} more sites")
    if classes := _class_folders(listing):
        lines.append(
            f"  folders {', '.join(classes)} are taken for classes, not for sites: "
            "--set audio.site_from=folder takes them for sites"
        )
    dates = sorted(date for date in inventory.dates if date)
    if dates:
        unknown = inventory.dates[""]
        lines.append(
            f"dates: {len(dates)} days, {dates[0]} to {dates[-1]}"
            + (f"; {unknown:,} without" if unknown else "")
        )
    lines.append(f"time from: {_listed(inventory.time_sources)}")
    if inventory.time_flags:
        lines.append(f"time flags: {_listed(inventory.time_flags)}")
    if inventory.time_flags["zone_unknown"]:
        lines.append(
            "  names carry no time zone: hours and dates are local, zone unknown; --set audio.timezone=Region/City names it"
        )
    if inventory.faults:
        lines.append(f"unreadable: {reasons_text(inventory.faults)}")
    if inventory.salvageable:
        lines.append(f"damaged but readable: {_listed(inventory.salvageable)}")
    minutes = inventory.core_hours() / max(1, cores) * 60
    value_bytes = 1 if storage == "uint8" else 2
    table_bytes = float(fractional_hops(inventory.hours * 3600)) * SEGMENT_FRAMES * NUM_BINS * value_bytes
    lines.append(
        f"estimate: {max(minutes, 0.1):.1f} min to prepare on {cores} cores, "
        f"{table_bytes / 1e9:.2f} GB of {storage} tables"
    )
    return lines


def _class_folders(listing: Listing) -> list[str]:
    parts = {part for item in listing.items for part in item.path.split("/")[:-1]}
    return sorted(part for part in parts if CLASS_FOLDER.match(part))[:5]


def _listed(counts: Counter, unit: str = "", unknown: str = "") -> str:
    top = [f"{shown(key or unknown)}{unit} {count:,}" for key, count in counts.most_common(8)]
    return ", ".join(top) + (f", and {len(counts) - 8} more" if len(counts) > 8 else "")
