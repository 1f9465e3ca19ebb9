"""`mast inventory ARCHIVE`: what is there, before any work."""

from __future__ import annotations

import argparse
import json
import os
from pathlib import Path

USES_CONFIG = True
HELP = "List an archive: files, hours, sites, dates, rates, faults by reason, an estimate of time. Reads headers only."


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("archive", help="folder or s3:// prefix of recordings")
    parser.add_argument(
        "--table", default="", help="CSV of recordings or sites: file, site, start_time, timezone"
    )
    parser.add_argument(
        "--sample", type=int, default=0, metavar="N", help="read only N headers and extrapolate"
    )
    parser.add_argument("--json", default="", metavar="FILE", help="also write the numbers")


def run(args: argparse.Namespace) -> int:
    from mast_ray.storage.storage import open_storage
    from mast_ray.tables.preparing.inventory import inventory_lines, list_archive, take_inventory
    from mast_ray.tables.preparing.site_table import site_table_of

    archive = open_storage(args.archive, args.config.storage)
    listing = list_archive(archive)
    sites, _ = site_table_of(args.table, [item.path for item in listing.items], args.config.storage)
    inventory = take_inventory(archive, listing.items, args.config.audio, sites, sample=args.sample)
    print("\n".join(inventory_lines(listing, inventory, os.cpu_count() or 1)))
    if args.json:
        Path(args.json).write_text(json.dumps(vars(inventory), indent=1))
    return 0
