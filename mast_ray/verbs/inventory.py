"""`mast inventory ARCHIVE`: what is there, before any work."""

from __future__ import annotations

import argparse
import json
import os

from mast_ray.config.errors import ConfigError
from mast_ray.verbs.annotation_arguments import (
    add_annotation_arguments,
    columns_of,
    refuse_idle_of_annotations,
)

USES_CONFIG = True
HELP = """List an archive: files, hours, sites, dates, rates, faults by reason, an estimate of time. Reads headers only.

With --annotations also how many boxes each label has, and what would be left out and why."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("archive", help="folder or s3:// prefix of recordings")
    parser.add_argument(
        "--table", default="", help="CSV of recordings or sites: file, site, start_time, timezone"
    )
    parser.add_argument(
        "--sample", type=int, default=0, metavar="N", help="read only N headers and extrapolate"
    )
    add_annotation_arguments(parser)
    parser.add_argument("--json", default="", metavar="FILE", help="also write the numbers")


def run(args: argparse.Namespace) -> int:
    from mast_ray.recordings.annotations.formats.yolo import ImageScale
    from mast_ray.storage.storage import open_beside, open_storage
    from mast_ray.tables.labels.choice import chosen_labels
    from mast_ray.tables.labels.matching import AnnotationSource, annotations_of
    from mast_ray.tables.preparing.inventory import inventory_lines, list_archive, take_inventory
    from mast_ray.tables.preparing.site_table import site_by_name, site_table_of

    refuse_idle_of_annotations(args)
    if args.sample < 0:
        raise ConfigError(f"--sample {args.sample}: give how many headers to read, 0 for all")
    archive = open_storage(args.archive, args.config.storage)
    listing = list_archive(archive)
    paths = [item.path for item in listing.items]
    sites, _ = site_table_of(args.table, paths, args.config.storage, site_by_name(args.config.audio))
    labels = None
    if args.annotations or args.listened:  # before the headers: a mistake in a table shows at once
        source = AnnotationSource(
            args.annotations,
            columns_of(args.columns),
            args.listened,
            args.skip_missing,
            ImageScale.of_items(args.image_scale),
        )
        labels = chosen_labels(
            annotations_of(source, paths, args.config.storage, archive), args.config.labels
        )
    inventory = take_inventory(archive, listing.items, args.config.audio, sites, sample=args.sample)
    stored = args.config.spectrogram.storage
    print("\n".join(inventory_lines(listing, inventory, os.cpu_count() or 1, stored)))
    if labels is not None:
        print("\n".join(labels.lines()))
    if args.json:
        folder, name = open_beside(args.json, args.config.storage)
        folder.write_atomic(name, json.dumps(vars(inventory), indent=1).encode())
    return 0
