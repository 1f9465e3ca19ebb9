"""Held-out sites and dates that the archive does not have, told before anything is decoded.

A site is known by path and table alone. A date may be in the header, which outranks the name: headers are read only where
tables and names do not have what is asked for, and no more of them than it takes to find it.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from mast_ray.config.errors import ConfigError
from mast_ray.config.tree import Config
from mast_ray.recordings.clock_and_site.site_tables import SiteTable
from mast_ray.storage.storage import Storage
from mast_ray.storage.units import Item
from mast_ray.tables.dealing.bonds import Recording
from mast_ray.tables.dealing.splits import check_dates, check_settings, check_sites
from mast_ray.tables.preparing.inventory import probe_all
from mast_ray.tables.preparing.unit_work import metadata_of

AT_ONCE = 1000  # headers


def refuse_absent(
    archive: Storage,
    items: Sequence[Item],
    annotated_paths: Collection[str],
    config: Config,
    sites: SiteTable | None,
) -> None:
    """What dealing would refuse at the end, as far as it can be known at the beginning."""
    knobs, audio = config.split, config.audio
    check_settings(knobs)
    if not (knobs.ood_sites or knobs.ood_dev_sites or knobs.ood_dates):
        return
    places = [metadata_of(item.path, None, audio, sites) for item in items]
    check_sites({place.site for place in places}, knobs)

    def met(item: Item, site: str, date: str) -> Recording:
        return Recording(item.item_id, site, date, 0.0, 0, item.path in annotated_paths, "")

    known = [met(item, place.site, place.local_date) for item, place in zip(items, places, strict=True)]
    try:
        return check_dates(known, knobs)
    except ConfigError as error:
        refusal = error
    is_open = [place.time_source != "table" for place in places]
    known = [one for one, header_counts in zip(known, is_open, strict=True) if not header_counts]
    rest = [item for item, header_counts in zip(items, is_open, strict=True) if header_counts]
    parts = -(-len(rest) // AT_ONCE)
    for part in range(parts):  # each from the whole archive
        some = rest[part::parts]
        for item, one in zip(some, probe_all(archive, some, audio, sites), strict=True):
            known += [] if one.reason else [met(item, one.site, one.date)]
        try:
            return check_dates(known, knobs)
        except ConfigError as error:
            refusal = error
    raise refusal
