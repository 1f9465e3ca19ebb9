"""`mast review`: look at detections in the browser, listen, and set them right; everything is kept on disk."""

from __future__ import annotations

import argparse
import asyncio
import getpass
import logging
import webbrowser
from collections.abc import Iterable
from pathlib import Path
from shlex import quote

from mast_ray.config.errors import ConfigError, DataError
from mast_ray.config.shown import shown
from mast_ray.evaluation.review.corrections import checked_reviewer, corrections_folder, read_logs
from mast_ray.recordings.annotations.tabular import decoded
from mast_ray.stages.learn.places import ended_rounds
from mast_ray.stages.review.asked import AskedQueues
from mast_ray.stages.review.exchange import LISTENED, TABLES, export_corrections, import_corrections, told_new
from mast_ray.stages.review.found_boxes import FoundBoxes, audio_of, channel_of, detections_of, load_boxes
from mast_ray.stages.review.pictures import WindowPictures
from mast_ray.stages.review.queues import Task, plan_tasks
from mast_ray.stages.review.server import ReviewServer, serve
from mast_ray.stages.review.session import ReviewSession
from mast_ray.storage.storage import open_storage
from mast_ray.verbs.idle_options import refuse_idle

READS_BUCKETS = True
HELP = """Review detections in the browser: accept, reject, move, draw and name boxes by keyboard.

  mast review RUN --audio recordings/                      # prints an address: open it
  mast review RUN --audio recordings/ --reviewer Ana       # several people may review one run
  mast review RUN --export tables/ --as raven              # corrections into your own tools ...
  mast review RUN --import tables/ --reviewer Ana          # ... and back

The page is served to this computer only. Every action is on disk at once, in RUN/corrections/NAME.jsonl: end it with Ctrl-C
whenever you like. `?` in the page lists the keys."""


SHOWN_PROBLEMS = 5


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("run", metavar="RUN", help="run folder, folder of `mast detect`, or Parquet table of detections")
    add(
        "--audio",
        default="",
        metavar="ROOT",
        help="folder of the recordings (default: where `mast detect` found them)",
    )
    add("--reviewer", default="", metavar="NAME", help="who reviews (default: the name you are logged in by)")
    add("--corrections", default="", metavar="FOLDER",
        help="local folder of the logs (default: RUN/corrections)")  # fmt: skip
    add("--threshold", type=float, default=None, metavar="Q",
        help="score from which a detection counts (default: the model's own); boxes down to half of it are shown")  # fmt: skip
    add(
        "--plan",
        default="",
        metavar="CSV",
        help="plan.csv of `mast label-budget plan`: its tasks are a queue",
    )
    add("--export", default="", metavar="DIR",
        help="write the corrections of all reviewers (with --reviewer: of one) as tables, and do not serve")  # fmt: skip
    add(
        "--as",
        dest="format",
        choices=("raven", "aoef"),
        default="raven",
        help="format of --export (default raven)",
    )
    add("--import", dest="imported", default="", metavar="PLACE",
        help="take the boxes of tables (Raven, AOEF, CSV ...) as corrections of --reviewer, and do not serve")  # fmt: skip
    add("--port", type=int, default=0, help="port on 127.0.0.1 (default: one that is free)")
    add("--open", action="store_true", help="open the page in the browser")


def run(args: argparse.Namespace) -> int:
    reviewer = checked_reviewer(args.reviewer or getpass.getuser())
    if not 0 <= args.port < 65536:
        raise ConfigError(f"--port {args.port} is no port: give one from 1024 to 65535, or none")
    if args.threshold is not None and not 0.0 <= args.threshold <= 1.0:
        raise ConfigError(f"--threshold {args.threshold:g} is not between 0 and 1")
    if args.imported or args.export:
        refuse_idle(
            args, ("plan", "port", "open"), "it is for the page, which --export and --import do not serve"
        )
    if args.imported and args.export:
        raise ConfigError("--export would do nothing beside --import: give one after the other")
    if not args.export and "format" in args.typed:
        raise ConfigError("--as would do nothing here: it is the format of --export DIR")
    detections = detections_of(args.run)
    folder = Path(args.corrections) if args.corrections else corrections_folder(detections)
    audio = audio_of(args.run, detections, args.audio)
    found = load_boxes(detections, audio, args.threshold)
    if not found.recordings:
        raise DataError(
            f"{args.run} holds no detection to review, and names no recording:\n"
            "give the folder that `mast detect` wrote, or --threshold 0 for all detections"
        )
    session = ReviewSession(found, folder, reviewer, rounds=ended_rounds(args.run))
    _warn(session.problems)
    if args.imported:
        return _import(args, session)
    if args.export:
        return _export(args, session)
    server = ReviewServer(
        AskedQueues(session, _tasks(args.plan, found)),
        WindowPictures(audio, channel_of(detections)),
        Path(args.run.rstrip("/")).name,
    )
    print(
        f"{len(found)} boxes in {len(found.recordings)} recordings, {len(session.boxes)} judged by {reviewer}"
    )
    print(f"corrections go to {folder}/{reviewer}.jsonl")

    def told(address: str) -> None:
        print(f"open {address}\n(only from this computer; Ctrl-C ends it, nothing is lost)", flush=True)
        if args.open:
            webbrowser.open(address)

    try:
        asyncio.run(serve(server, args.port, told))
    except KeyboardInterrupt:
        print(f"ended: {len(session.boxes)} boxes judged or drawn by {reviewer} in {folder}")
    except OSError as error:
        raise ConfigError(
            f"port {args.port} on 127.0.0.1 cannot be used: {error.strerror}:\ngive another --port"
        ) from error
    return 0


def _warn(problems: Iterable[str]) -> None:
    for problem in problems:
        logging.getLogger("mast.review").warning("%s", problem)


def _import(args: argparse.Namespace, session: ReviewSession) -> int:
    if not args.reviewer:
        raise ConfigError("whose corrections are these? give --reviewer NAME")
    read = import_corrections(Path(args.imported), session.found, session.reviewer)
    for problem in read.problems[:SHOWN_PROBLEMS]:
        print(f"left out: {problem}")
    if len(read.problems) > SHOWN_PROBLEMS:
        print(f"left out: {len(read.problems) - SHOWN_PROBLEMS} more")
    if read.num_without_row:
        print(
            f"note: {read.num_without_row} boxes from score {session.found.threshold:.4g} on have no row in these tables, which says "
            "nothing about them:\nin place of deleting a row, name it `no call`"
        )
    new = session.add(read.actions)
    print(f"{args.imported}: {told_new(new, read.actions)} are {session.reviewer}'s now")
    return 0


def _export(args: argparse.Namespace, session: ReviewSession) -> int:
    states = session.states()
    _warn(problem for problem in read_logs(session.folder).problems if problem not in session.problems)
    if args.reviewer:
        states = {session.reviewer: states[session.reviewer]}
    out = export_corrections(states, session.found, Path(args.export), args.format, ended_rounds(args.run))
    if not out.files:
        raise DataError(
            f"nothing was judged yet in {session.folder}:\nreview some boxes first: mast review {quote(args.run)}"
        )
    print(
        f"{args.export}: {out.num_calls} calls, {out.num_rejected} rejected, {out.num_disputed} disputed and left out; "
        f"{out.num_looked_at} recordings with stretches that were gone through"
    )
    for note in out.name_notes:
        print(shown(note))
    print(
        f"train on them: mast prepare AUDIO --annotations {quote(f'{args.export}/{TABLES}')} "
        f"--listened {quote(f'{args.export}/{LISTENED}')}"
    )
    return 0


def _tasks(plan: str, found: FoundBoxes) -> list[Task]:
    if not plan:
        return []
    storage = open_storage(Path(plan).parent)
    tasks, num_left_out = plan_tasks(
        decoded(storage.read_bytes(Path(plan).name), plan),
        {r.path: r.duration_s for r in found.recordings},
        plan,
    )
    if not tasks:
        raise DataError(
            f"{plan} holds no task for these recordings:\ngive plan.csv of `mast label-budget plan`"
        )
    if num_left_out:
        print(f"{num_left_out} rows of {plan} name no stretch of these recordings: left out")
    return tasks
