"""`mast listen RECORDINGS`: what the shipped detector finds at once, as a report to look at and listen to."""

from __future__ import annotations

import argparse
import shlex

from mast_ray.config.errors import ConfigError
from mast_ray.storage.storage import open_storage
from mast_ray.training.files.shipped import FIRST_LOOK
from mast_ray.verbs.pipeline import Step, run_steps

USES_CONFIG = True
HELP = """Find animal sounds in a folder of recordings with the detector that comes with the package, and write a report.

  mast listen recordings/                     # listened/report.html
  mast listen recordings/ --out found --table sites.csv

No labels and no training: a first look, in about a minute for an hour of sound. `mast run` trains a detector of your own from it."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("audio", metavar="RECORDINGS", help="folder or s3:// prefix of recordings")
    add(
        "--model",
        default=FIRST_LOOK,
        help="model folder, shipped:tiny or shipped:compact (default: shipped:tiny)",
    )
    add("--out", default="listened", help="folder or s3:// prefix to write (default: listened)")
    add("--table", default="", help="CSV of recordings or sites: file, site, start_time, timezone, ...")
    add("--runner", choices=("auto", "ray", "here"), default="auto",
        help="spread over Ray, or stay in this process (auto: by the size of the archive)")  # fmt: skip


def run(args: argparse.Namespace) -> int:
    from mast_ray.verbs.main import run_verb
    from mast_ray.verbs.run import bucket_knobs, knobs_of

    stage = open_storage(args.out, args.config.storage)
    if next(iter(stage.list("prepared")), None) is not None:
        raise ConfigError(
            f"--out {args.out} holds a run of `mast run`, which would find these boxes in place of its own:\nchoose another folder"
        )
    out = args.out.rstrip("/") or "/"
    detections, first, page = (f"{out}/{name}" for name in ("detections", "listen_first", "report.html"))
    bucket = bucket_knobs(args.config.storage)
    table = ("--table", args.table) if args.table else ()
    knobs = knobs_of(args.recipe, args.config_file, args.sets)
    where = ("--out", detections, "--runner", args.runner)
    steps = [
        Step("find animal sounds", "detect", (args.model, args.audio, *table, *where, *knobs)),
        Step(
            "where to listen first: a tenth of the time, as Raven tables",
            "export",
            (detections, "--to", "raven", "--stretches", "0.1", "--out", first, *bucket),
        ),
        Step("report", "report",
             (out, "--audio", args.audio, "--out", page, *bucket)),
    ]  # fmt: skip
    code = run_steps(steps, run_verb, stage)
    if code in (0, 4):
        print(f"\nlook and listen:       {stage.local_path('report.html') or page}")
        print(f"where to listen first: {first} (Raven tables of a tenth of the time)")
        boxes, audio = shlex.quote(detections), shlex.quote(args.audio)
        print(f"into your own tools:   mast export {boxes} --to raven --out tables")
        print(f"a detector of your own: mast run --audio {audio} --annotations TABLES --out run")
    return code
