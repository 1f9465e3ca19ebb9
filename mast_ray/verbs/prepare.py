"""`mast prepare ARCHIVE --out PREPARED`: tables of log-mel frames and labels from recordings."""

from __future__ import annotations

import argparse

from mast_ray.tables.preparing.inventory import SYNTHETIC_COPIES
from mast_ray.verbs.annotation_arguments import (
    add_annotation_arguments,
    columns_of,
    refuse_idle_of_annotations,
)
from mast_ray.verbs.idle_options import refuse_idle

USES_CONFIG = USES_RUNNER = True
HELP = """Turn an archive of recordings into tables: log-mel frames, recordings, labels, rejects, splits, statistics.

ARCHIVE and --out are folders or s3:// prefixes. Interrupted, the same command goes on where it was; finished, it has
nothing to do. Every recording ends as done or in rejects.parquet with its reason. Your audio is only read."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("archive", help="folder or s3:// prefix of recordings")
    parser.add_argument("--out", required=True, help="folder or s3:// prefix to write")
    add_annotation_arguments(parser)
    parser.add_argument(
        "--table",
        default="",
        help="CSV of recordings or sites: file, site, start_time, timezone, latitude, longitude",
    )
    parser.add_argument(
        "--group",
        default="",
        metavar="COLUMN",
        help="column of --table whose equal values no split may part (default: `group`), e.g. one bird on four microphones",
    )
    parser.add_argument(
        "--exclude", action="append", default=[], metavar="GLOB", help="paths to leave out; repeatable"
    )
    parser.add_argument(
        "--dataset",
        choices=("plain", "birdeep", "birdset"),
        default="plain",
        help="layout of a public data set that brings its own labels",
    )
    parser.add_argument(
        "--verify",
        action="store_true",
        help="read all that an earlier run wrote, and do again what was changed",
    )
    parser.add_argument("--dry-run", action="store_true", help="inventory and plan only")


def run(args: argparse.Namespace) -> int:
    from mast_ray.recordings.annotations.formats.yolo import ImageScale
    from mast_ray.stages.prepare import PrepareInputs, prepare

    refuse_idle_of_annotations(args)
    if args.dry_run:
        refuse_idle(args, ("verify",), "--dry-run reads no results, leave it out")
    inputs = PrepareInputs(
        args.archive, args.out, args.annotations, args.table, (*SYNTHETIC_COPIES, *args.exclude), args.dataset,
        columns_of(args.columns), args.listened, args.skip_missing, ImageScale.of_items(args.image_scale), args.group,
        args.verify,
    )  # fmt: skip
    return prepare(inputs, args.config, runner=args.runner, dry_run=args.dry_run)
