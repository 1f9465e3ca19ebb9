"""`mast detect [MODEL] ARCHIVE --out TABLE`: boxes for every recording of an archive."""

from __future__ import annotations

import argparse

from mast_ray.config.errors import OK, ConfigError
from mast_ray.tables.preparing.inventory import SYNTHETIC_COPIES
from mast_ray.training.files.shipped import FIRST_LOOK

USES_CONFIG = USES_RUNNER = True
OF_SWEEP = ("table", "exclude", "threshold", "verify", "dry_run")
SMALL_ARCHIVE_BYTES = 1_500_000_000  # four hours at 48 kHz and 16 bit
HELP = """Run a detector over every recording of an archive and write one table of detections, partitioned by site and date.

MODEL, ARCHIVE and --out are folders or s3:// prefixes; without MODEL the detector that comes with the package is used
(shipped:tiny). Detections are stored down to evaluate.score_floor: a threshold is applied when
the table is read. Interrupted, the same command goes on where it was; finished, it has nothing to do. Every recording ends as done
(recordings.parquet) or rejected with its reason (rejects.parquet). Exit code 0: all done; 4: some were rejected.

Detections of recordings that are not in ARCHIVE any more (a disk that is not mounted, another archive) move to OUT/earlier, which
every verb reads like OUT itself, and count again when their recordings are back."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("model", nargs="?", default=FIRST_LOOK,
        help="folder written by `mast train` or `mast self-train`, shipped:tiny, shipped:compact or shipped:energy")  # fmt: skip
    add("archive", help="folder or s3:// prefix of recordings")
    add("--out", required=True, help="folder or s3:// prefix to write")
    add(
        "--table",
        default="",
        help="CSV of recordings or sites: file, site, start_time, timezone, latitude, longitude, group",
    )
    add("--exclude", action="append", default=[], metavar="GLOB", help="paths to leave out; repeatable")
    add(
        "--threshold",
        type=float,
        default=None,
        metavar="Q",
        help="store only detections from this score on (default: all)",
    )
    add(
        "--verify",
        action="store_true",
        help="read all that an earlier run wrote, and do again what was changed",
    )
    add("--dry-run", action="store_true", help="inventory and plan only")
    add(
        "--forget-missing",
        action="store_true",
        help="only delete the detections of recordings that the last run was not offered (OUT/earlier)",
    )
    add("--yes", action="store_true", help="be sure about --forget-missing")


def runner_for(args: argparse.Namespace) -> str:
    """Where a sweep runs when nobody says: Ray's start pays from about an hour of work on."""
    import os

    from mast_ray.storage.storage import open_storage

    if "RAY_ADDRESS" in os.environ:
        return "ray"
    num_bytes = 0
    for entry in open_storage(args.archive, args.config.storage).list():
        num_bytes += entry.num_bytes
        if num_bytes > SMALL_ARCHIVE_BYTES:
            return "ray"
    return "here"


def run(args: argparse.Namespace) -> int:
    from mast_ray.stages.detect.detect import DetectInputs, detect
    from mast_ray.stages.detect.earlier import forget_earlier
    from mast_ray.storage.storage import open_storage
    from mast_ray.verbs.gpu import folder_of_model
    from mast_ray.verbs.idle_options import refuse_idle

    if not args.forget_missing:
        refuse_idle(args, ("yes",), "it is for --forget-missing")
    if args.dry_run:
        refuse_idle(args, ("verify",), "--dry-run reads no results, leave it out")
    if args.forget_missing:
        refuse_idle(args, OF_SWEEP, "--forget-missing only deletes, leave it out")
        num_forgotten = forget_earlier(open_storage(args.out, args.config.storage), is_sure=args.yes)
        print(f"the detections of {num_forgotten:,} missing recordings are deleted")
        return OK
    if args.threshold is not None and not 0.0 <= args.threshold <= 1.0:
        raise ConfigError(f"--threshold {args.threshold:g} is no score: give a number between 0 and 1")
    model = folder_of_model(args.model, args)
    if model != args.model:
        print(f"model: {model}")
    inputs = DetectInputs(
        model,
        args.archive,
        args.out,
        args.table,
        (*SYNTHETIC_COPIES, *args.exclude),
        args.threshold,
        args.verify,
    )
    return detect(inputs, args.config, runner=args.runner, dry_run=args.dry_run)
