"""`mast report`: a run folder becomes one HTML file to look at and to listen to,
opened from disk without a network.
"""

from __future__ import annotations

import argparse
from datetime import UTC, datetime
from pathlib import Path

from mast_ray.config.errors import ConfigError
from mast_ray.reporting.detection_tables import read_detections
from mast_ray.reporting.report.collect import collect_run
from mast_ray.reporting.report.page import report_file
from mast_ray.storage.storage import open_beside, open_storage
from mast_ray.tables.preparing.inventory import refuse_no_folder
from mast_ray.training.progress import ProgressLine
from mast_ray.verbs.restating_arguments import add_restating_arguments

READS_BUCKETS = True
HELP = "write one self-contained HTML report about whatever a run folder holds"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("run", metavar="RUN", help="folder of a run, or of one stage (local or s3://)")
    add("--out", metavar="FILE", help="the HTML file (default RUN/report.html)")
    add(
        "--audio",
        metavar="ROOT",
        help="folder of the recordings, for spectrograms and sound (without it: no gallery)",
    )
    add("--detections", metavar="TABLE", help="detections to report on, when they are not inside RUN")
    add(
        "--threshold",
        type=float,
        default=None,
        metavar="Q",
        help="score threshold (default: the model card's, else tuned)",
    )
    add(
        "--examples",
        type=int,
        default=200,
        metavar="N",
        help="most spectrograms to show (default 200, about 8 MB)",
    )
    add_restating_arguments(parser)
    add("--title", default="", help="heading of the report (default: name of the folder)")


def run(args: argparse.Namespace) -> int:
    if args.threshold is not None and not 0.0 <= args.threshold <= 1.0:
        raise ConfigError(f"--threshold {args.threshold} is no score: give a number between 0 and 1")
    if args.examples < 0:
        raise ConfigError(f"--examples {args.examples}: give a whole number from 0 on")
    if args.out and "://" not in args.out and Path(args.out).is_dir():
        raise ConfigError(
            f"--out {args.out} is a folder: give the file, e.g. --out {args.out.rstrip('/')}/report.html"
        )
    storage, audio = open_storage(args.run), open_storage(args.audio) if args.audio else None
    if audio is not None:
        refuse_no_folder(audio)  # not a page without pictures, after all the work
    line = ProgressLine()
    try:
        data = collect_run(
            storage,
            audio=audio,
            detections=read_detections(args.detections) if args.detections else None,
            threshold=args.threshold,
            title=args.title,
            now=datetime.now(UTC),
            num_examples=args.examples,
            zone=args.timezone,
            site_table=args.site_table,
            say=line.show,
        )
        text = report_file(data)
    finally:
        line.clear()
    if args.out:
        target, name = open_beside(args.out)
    else:
        target, name = storage, "report.html"
    target.write_atomic(name, text)
    hint = "" if args.audio else " (no spectrograms: give --audio ROOT)"
    if args.audio and not data.examples:
        hint = " (there are no boxes to show)"
        if "could not be read" in data.examples_note:
            hint = (
                f" (none of the recordings could be read in {args.audio}: give the folder that was searched)"
            )
    print(f"{target.url}/{name}: {len(text) / 1e6:.1f} MB, {len(data.examples)} examples{hint}")
    return 0
