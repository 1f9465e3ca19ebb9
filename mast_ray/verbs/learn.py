"""`mast learn RUN`: a better detector and better names from what people corrected."""

from __future__ import annotations

import argparse

USES_CONFIG = USES_RUNNER = True
HELP = """Learn from the corrections of a run: adapt its detector and its names, keep them if they are better, and detect again.

  mast review run --audio recordings/        # correct some boxes
  mast learn run                             # writes run-2; run itself is not touched
  mast review run-2 --audio recordings/      # and so on: mast learn run-2, mast learn run-3

Boxes that people accepted, moved, drew or named are calls; rejected ones are background; stretches that were gone through are background where they
hold no call; what was not looked at teaches nothing. Some corrected recordings are kept apart to judge both detectors: the adapted one is kept
only where it is better there. Labels the run was trained on are learned from too; recordings of its test splits are not.

The same command on the same corrections has nothing to do once it is finished; after more corrections give another --out, or learn from the new run."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add(
        "run",
        metavar="RUN",
        help="run folder (mast run, mast listen, an earlier mast learn), or folder of `mast detect`",
    )
    add(
        "--audio",
        default="",
        metavar="FOLDER",
        help="the recordings (default: where `mast detect` found them)",
    )
    add("--model", default="", help="the model that made the detections (default: found in RUN)")
    add(
        "--corrections",
        default="",
        metavar="FOLDER",
        help="logs of `mast review` (default: where it keeps them)",
    )
    add(
        "--out", default="", metavar="DIR", help="folder of the new run (default: RUN-2, after it RUN-3, ...)"
    )
    add("--minutes", type=float, default=5.0, help="of training at most, as two cores have them (default 5)")


def runner_for(args: argparse.Namespace) -> str:
    """A round is minutes of work: starting Ray would not pay."""
    return "here"


def run(args: argparse.Namespace) -> int:
    from shlex import quote

    from mast_ray.config.errors import ConfigError
    from mast_ray.config.loading import parse_set
    from mast_ray.stages.learn.learn import learn, round_before
    from mast_ray.stages.learn.places import DETECTIONS, as_detected, find_run, next_name
    from mast_ray.verbs.gpu import has_gpu
    from mast_ray.verbs.main import config_of

    if args.minutes <= 0:
        raise ConfigError(f"--minutes {args.minutes:g} is no time to learn: give e.g. --minutes 5")
    recipe = args.recipe or (None if args.config_file else ("field" if has_gpu(args) else "tiny"))
    place = find_run(args.run, args.audio, args.model, args.corrections)
    config = as_detected(config_of(recipe, args.config_file, args.sets), place, parse_set(args.sets))
    out = args.out or next_name(args.run)
    if (earlier := round_before(config, place, out, args.minutes)) is not None:
        print(f"already done, skipping: {out}")
        is_better = earlier["changes"] is not None
    else:
        is_better = learn(config, place, out, minutes=args.minutes, runner=args.runner).changes is not None
    review = f"mast review {quote(out)} --audio {quote(place.audio)}"
    if not is_better:
        print(f"nothing is better than what {args.run} has: {out} has its model and detections; correct more boxes there\n"
              f"  {review}\n  mast learn {quote(out)}")  # fmt: skip
    else:
        print(f"detections: {out}/{DETECTIONS}; what changed: {out}/changes.csv\nnext: {review}")
    return 0
