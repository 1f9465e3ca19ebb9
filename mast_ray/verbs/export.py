"""`mast export`: detections as files for Raven, Audacity, whombat, Kaleidoscope, spreadsheets and pamDP."""

from __future__ import annotations

import argparse
import sys

from mast_ray.config.errors import ConfigError, DataError
from mast_ray.reporting.detection_tables import (
    chosen_threshold,
    of_run,
    read_detections,
    read_recordings,
    recordings_beside,
    recordings_of_audio,
    stitched,
    with_headers,
    with_paths,
    zone_of,
)
from mast_ray.reporting.exports.writing import EXPORT_FORMATS, WITH_MARK, WITHOUT_SITES, export_detections
from mast_ray.reporting.restating import restated, with_times_of
from mast_ray.reporting.stretches import busiest_stretches
from mast_ray.storage.storage import open_storage
from mast_ray.verbs.idle_options import refuse_idle
from mast_ray.verbs.restating_arguments import add_restating_arguments

READS_BUCKETS = True
HELP = "write detections as files that other tools open"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("table", metavar="TABLE", help="detections: a Parquet file, or the folder that `mast detect` wrote")
    add("--to", required=True, choices=EXPORT_FORMATS, help="what to write")
    add("--out", required=True, metavar="DIR", help="folder for the files (local or s3://)")
    add("--per", choices=("recording", "site"), default="recording", help="one file each (default recording)")
    add(
        "--threshold",
        type=float,
        default=None,
        metavar="Q",
        help="leave out detections with a lower score (default: the model's own threshold where `mast detect` knew it; 0 keeps all)",
    )
    add(
        "--stretches",
        type=float,
        default=None,
        metavar="SHARE",
        help="instead of boxes the stretches of time with most calls in them, this share of all recorded time: where to listen first",
    )
    add(
        "--recordings",
        metavar="TABLE",
        help="recordings.parquet: lengths, rates, sites, recordings without a call",
    )
    add(
        "--audio",
        metavar="ROOT",
        help="folder of the audio, to read lengths and rates from file headers (sites and times stay those of the recordings)",
    )
    add_restating_arguments(parser)
    add(
        "--begin-path",
        default=None,
        metavar="ROOT",
        help="folder of the audio as Raven sees it, written before every Begin Path (default: --audio, else relative paths)",
    )
    add("--bom", action="store_true", help="begin CSV files with a byte-order mark, for Excel")


def run(args: argparse.Namespace) -> int:
    if args.threshold is not None and not 0.0 <= args.threshold <= 1.0:
        raise ConfigError(f"--threshold {args.threshold} is no score: give a number between 0 and 1")
    _refuse_idle(args)
    if args.stretches is not None and args.to == "pamdp":
        raise ConfigError(
            "--stretches are places to listen to, no observations for a portal:\ngive --to raven, audacity or csv"
        )
    args.table = of_run(args.table)
    # doubtful calls count where many stand together
    least = args.threshold if args.stretches is not None else chosen_threshold(args.threshold, args.table)
    detections = stitched(read_detections(args.table, least))
    known = args.recordings or recordings_beside(args.table)
    recordings = read_recordings(known, needs_lengths=args.stretches is not None) if known else None
    detections = with_paths(detections, recordings)
    if detections.column("path").null_count:
        raise DataError(
            f"{args.table} does not say which file a detection lies in: give --recordings as well"
        )
    if args.audio and not args.recordings:
        headers = recordings_of_audio(detections, open_storage(args.audio))
        recordings = headers if recordings is None else with_headers(recordings, headers)
        if unheard := sorted({*headers["path"].to_pylist()} - {*recordings["path"].to_pylist()}):
            print(
                f"note: {len(unheard)} recordings of {args.audio} were not searched and are left out (e.g. {unheard[0]})",
                file=sys.stderr,
            )
    if args.timezone or args.site_table:
        if recordings is None:
            raise DataError(
                f"{args.table} does not say when and where recordings were made, which --timezone and --table restate:\n"
                "give --recordings or --audio as well"
            )
        recordings = restated(recordings, args.timezone, args.site_table, zone_of(args.table))
        detections = with_times_of(detections, recordings)
    what = "detections"
    if args.stretches is not None:
        if recordings is None:
            raise DataError(
                f"{args.table} does not say how long recordings are: give --recordings or --audio as well"
            )
        detections, what = busiest_stretches(detections, recordings, args.stretches), "stretches"
    if len(detections) == 0 and recordings is None:
        raise DataError(f"{args.table} holds no detection at or above the threshold: lower --threshold")
    out, are_tasks = open_storage(args.out), args.stretches is not None
    done = export_detections(detections, recordings, out, args.to, args.per, args.bom, _root(args), are_tasks)
    for note in done.notes:
        print(f"note: {note}", file=sys.stderr)
    print(
        f"{done.num_boxes} {what} of {done.num_recordings} recordings -> {len(done.keys)} files in {args.out}"
    )
    return 0


def _refuse_idle(args: argparse.Namespace) -> None:
    """Options of other formats."""
    if args.to != "raven":
        refuse_idle(args, ("begin_path",), "only Raven's tables have a Begin Path (--to raven)")
        if args.recordings:
            refuse_idle(args, ("audio",), "--recordings says lengths and rates, give one of them")
    if args.to not in WITH_MARK:
        refuse_idle(args, ("bom",), f"it is for {', '.join(WITH_MARK)}")
    if args.to in WITHOUT_SITES and args.per == "site":
        refuse_idle(args, ("per",), f"{args.to} has no files of sites, leave it out")


def _root(args: argparse.Namespace) -> str:
    """Where Raven is to find the recordings."""
    if args.begin_path is not None:
        return args.begin_path
    local = open_storage(args.audio).local_path("") if args.audio else None
    return str(local.resolve()) if local is not None else ""
