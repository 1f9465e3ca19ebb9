"""`mast evaluate`: a model against a prepared archive, a table of detections against annotations, or a person's
verdicts alone. Which of them is said by the arguments, never guessed from what lies in a folder.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import sys
from dataclasses import replace
from pathlib import Path
from shlex import quote

from mast_ray.config.errors import PARTIAL, ConfigError, DataError
from mast_ray.config.loading import apply_overrides
from mast_ray.config.scratch import scratch_folder
from mast_ray.config.tree import Config
from mast_ray.evaluation.figure_tables import sheet_text, unknown_text, write_sheet
from mast_ray.evaluation.intervals import wilson_limits
from mast_ray.evaluation.naming.confusion import confusion_of, confusion_text, write_confusion
from mast_ray.evaluation.review.verdicts import has_verdicts, read_verdicts
from mast_ray.evaluation.score_sheet import ScoreSheet
from mast_ray.evaluation.scoring import BREAKDOWNS, By
from mast_ray.recordings.annotations.reading import READ_FORMATS
from mast_ray.storage.storage import open_storage
from mast_ray.verbs.annotation_arguments import columns_of
from mast_ray.verbs.idle_options import refuse_idle

HELP = """Score detections, with 95 % intervals over recordings.

  mast evaluate MODEL PREPARED [--out DIR]                        a model on every held-out split of a prepared archive
  mast evaluate --detections TABLE --annotations TABLE            any detections against any annotations
  mast evaluate --verdicts verdicts.csv                           a person's verdicts saved from the report, alone

MODEL is a folder written by `mast train` or `mast self-train`. It is run on every chunk of the splits, on Ray and in units: interrupted, the
same command goes on. Its threshold is its own, tuned on validation and frozen for every split. TABLE of detections: Parquet file or folder
(`mast detect`), or any annotation file with scores (Raven, BirdNET CSV, AOEF ...); of annotations: a prepared archive, labels.parquet, or
annotation files of any format. `--by label` gives precision, recall and F1 of every species and a table of who was called what, where detections have
names (`mast classify`); recall alone where they have none."""
USES_CONFIG = USES_RUNNER = True
AGAINST = "against"  # folder in OUT of the model that is compared with
FORMS = (
    "mast evaluate MODEL PREPARED   or   mast evaluate --detections TABLE --annotations TABLE   or   "
    "mast evaluate --verdicts CSV"
)
OF_TABLES = (
    "tune_on",
    "tune_annotations",
    "tune_split",
    "space",
    "unlisted",
    "recordings",
    "format",
    "columns",
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add(
        "model",
        metavar="MODEL",
        nargs="?",
        help="folder of a model, shipped:tiny, shipped:compact or shipped:energy",
    )
    add("prepared", metavar="PREPARED", nargs="?", help="folder or s3:// prefix written by `mast prepare`")
    add(
        "--detections",
        metavar="TABLE",
        help="what was found: Parquet table or folder, Raven, BirdNET CSV, AOEF, ...",
    )
    add("--annotations", metavar="TABLE", help="what is true: prepared archive, labels, annotation files")
    add("--verdicts", metavar="CSV", help="verdicts saved from the report: precision of what was judged")
    add("--threshold", type=float, metavar="Q",
        help="score from which a detection counts (default: the model's own; all of a table that names none)")  # fmt: skip
    add("--split", metavar="LIST", help="score only these splits of a prepared archive, e.g. test,site_ood")
    add(
        "--iou",
        type=float,
        metavar="X",
        help="overlap from which a detection is right (default evaluate.iou)",
    )
    add("--by", default="", metavar="LIST", help=f"also break down by some of {','.join(BREAKDOWNS)}")
    add(
        "--out",
        metavar="DIR",
        help="write metrics.json, figures.csv, outcomes.parquet and the curve over thresholds",
    )
    add("--known", action="append", default=[], metavar="DIR",
        help="with MODEL: folder of an earlier evaluation, training or self-training; what the same model found in the same "
        "chunks there is used again instead of detecting it; repeatable")  # fmt: skip
    add("--against", metavar="OTHER",
        help="with MODEL: a second model, scored on the same splits; the difference of both with its paired interval")  # fmt: skip
    tables = parser.add_argument_group("only with --detections")
    add = tables.add_argument
    add(
        "--tune-on",
        metavar="TABLE",
        help="detections of validation material: the threshold is tuned for F1 on them, and frozen",
    )
    add("--tune-annotations", metavar="TABLE", help="annotations for --tune-on (default --annotations)")
    add(
        "--tune-split",
        metavar="NAME",
        help="tune the threshold on this split, e.g. val (of --tune-on or --detections)",
    )
    add("--space", choices=("mel", "hertz"), help="where boxes overlap (default mel, as the model sees)")
    add("--unlisted", choices=("skip", "silent"),
        help="recordings without annotation: leave out (default), or count as listened to and silent")  # fmt: skip
    add(
        "--recordings",
        metavar="TABLE",
        help="recordings.parquet: paths, sites and times, where the tables lack them",
    )
    add("--format", choices=("auto", *READ_FORMATS), help="of annotation files (default: by content)")
    add(
        "--columns",
        nargs="+",
        metavar="FIELD=COLUMN",
        help="columns of your own tables, as for `mast prepare`",
    )


def run(args: argparse.Namespace) -> int:
    if args.threshold is not None and not math.isfinite(args.threshold):
        raise ConfigError(f"--threshold {args.threshold} is no score: give a number, e.g. --threshold 0.5")
    if args.model:
        from mast_ray.verbs.gpu import folder_of_model

        args.model = folder_of_model(args.model, args)
        args.against = folder_of_model(args.against, args) if args.against else None
    match chosen_form(args):
        case "model":
            return _score_model(args)
        case "tables":
            return _score_tables(args)
        case _:
            return _score_verdicts(args)


def chosen_form(args: argparse.Namespace) -> str:
    """model, tables or verdicts; a mix of them is told with the right form."""
    given = {
        "model": bool(args.model or args.prepared),
        "tables": bool(args.detections or args.annotations),
        "verdicts": bool(args.verdicts),
    }
    named = [name for name, is_given in given.items() if is_given]
    if len(named) != 1:
        what = f"{' and '.join(named)} cannot be scored in one command" if named else "nothing to score"
        raise ConfigError(f"{what}: give one of these forms\n{FORMS}")
    (form,) = named
    if form == "model" and not args.prepared:
        raise ConfigError(
            f"MODEL {args.model} needs a prepared archive: mast evaluate {quote(args.model)} PREPARED\n"
            f"for detections: mast evaluate --detections {quote(args.model)} --annotations TABLE"
        )
    if form == "model" and open_storage(args.model, args.config.storage).stat("card.json") is None:
        raise DataError(
            f"{args.model} is no model folder (it has no card.json)\n"
            f"for detections: mast evaluate --detections {quote(args.model)} --annotations {quote(args.prepared)}"
        )
    if form == "tables" and not (args.detections and args.annotations):
        missing = "--annotations" if args.detections else "--detections"
        raise ConfigError(
            f"{missing} is missing: mast evaluate --detections TABLE --annotations TABLE\n"
            "for a model: mast evaluate MODEL PREPARED"
        )
    for name in ("known", "against"):
        if form != "model" and getattr(args, name):
            raise ConfigError(
                f"--{name} belongs to a model against a prepared archive: mast evaluate MODEL PREPARED"
            )
    if args.against and open_storage(args.against, args.config.storage).stat("card.json") is None:
        raise DataError(
            f"{args.against} is no model folder (it has no card.json):\n"
            "--against takes a second model, scored on the same splits"
        )
    alien = [name for name in OF_TABLES if getattr(args, name) is not None]
    if form != "tables" and alien:
        raise ConfigError(
            f"--{alien[0].replace('_', '-')} belongs to detections against annotations:\n"
            "mast evaluate --detections TABLE --annotations TABLE"
        )
    if form == "verdicts":
        refuse_idle(args, ("split", "iou", "by"), "verdicts alone have one precision, leave it out")
    if form == "tables" and not (args.tune_on or args.tune_split):
        refuse_idle(args, ("tune_annotations",), "it is for --tune-on TABLE or --tune-split NAME")
    return form


def _score_model(args: argparse.Namespace) -> int:
    from mast_ray.stages.runner import HERE
    from mast_ray.stages.score.evaluate import UNREAD, Wanted, evaluate_model
    from mast_ray.stages.train.adapting import adaptation_text, compared

    wanted = Wanted(_names(args.split), args.threshold, _breakdowns(args.by), tuple(args.known))
    config = _config(args)
    gained = ""
    with contextlib.ExitStack() as stack:
        # no node but this one could see a temporary folder
        out = args.out or str(stack.enter_context(scratch_folder()))
        runner = args.runner if args.out else HERE
        scores = evaluate_model(config, args.model, args.prepared, out, wanted, runner=runner)
        if args.against and scores.sheet.rows:
            other = evaluate_model(
                config, args.against, args.prepared, f"{out}/{AGAINST}", replace(wanted, by=()), runner=runner
            )
            place = f"{args.against} -> {args.model}"
            gained = adaptation_text(
                [compared(place, split, other, scores, config) for split in scores.splits]
            )
    if not scores.sheet.rows:
        raise DataError(
            f"{args.prepared} holds out nothing to score on:\ndeal the recordings again with `mast split`"
        )
    _tell(
        scores.sheet,
        _breakdowns(args.by),
        "prepare the archive with --table, which names sites and start times",
    )
    for table in scores.confusion:
        print(confusion_text(table))
    if gained:
        print(gained)
    if args.out:
        names = ", confusion.csv" if scores.confusion else ""
        print(f"wrote metrics.json, figures.csv, outcomes.parquet{names} and the detections in {args.out}")
    return PARTIAL if scores.sheet.left_out[UNREAD] else 0


def _score_tables(args: argparse.Namespace) -> int:
    from mast_ray.reporting.detection_tables import of_run
    from mast_ray.stages.score.tables import TableWanted, evaluate_tables

    if args.threshold is not None and (args.tune_on or args.tune_split):
        raise ConfigError("--threshold and --tune-on exclude each other: give one of them")
    given = {name: value for name in OF_TABLES if (value := getattr(args, name)) is not None}
    if args.columns:
        given["columns"] = columns_of(args.columns)
    by = _breakdowns(args.by)
    wanted = TableWanted(
        of_run(args.detections), args.annotations, _names(args.split), args.threshold, by=by, **given
    )
    sheet, scored = evaluate_tables(wanted, _config(args))
    _tell(sheet, by, "give --recordings")
    tables = [confusion_of(one, name, sheet.threshold.value) for name, one in scored.items() if "label" in by]
    confusion = [table for table in tables if table is not None]
    for table in confusion:
        print(confusion_text(table))
    if args.out:
        out = open_storage(args.out, args.config.storage)
        written = [*write_sheet(out, sheet, scored), *write_confusion(out, confusion)]
        print(f"wrote {', '.join(written)} in {out.url}")
    return 0


def _tell(sheet: ScoreSheet, by: tuple[By, ...], remedy: str) -> None:
    """Figures on the screen, what to know about them beside it; `remedy`: where sites and clocks can be given."""
    for kind in by:
        if unknown := unknown_text(sheet, kind):
            hint = f": {remedy}" if kind in ("site", "hour") else ""
            print(f"note: {unknown}{hint}", file=sys.stderr)
    for why, count in sheet.left_out.items():
        if count:
            print(f"note: left out {count} {why}", file=sys.stderr)
    for warning in sheet.warnings:
        print(f"warning: {warning}", file=sys.stderr)
    num_time_only = sum(row.num_time_only_truth for row in sheet.rows if row.is_whole)
    if num_time_only:
        print(f"note: {num_time_only} labels without frequencies were matched by time", file=sys.stderr)
    print(sheet_text(sheet))


def _config(args: argparse.Namespace) -> Config:
    if args.iou is None:
        return args.config
    if not 0 < args.iou < 1:
        raise ConfigError(f"--iou {args.iou} must lie between 0 and 1, e.g. --iou 0.5")
    return apply_overrides(args.config, {"evaluate.iou": args.iou})


def _names(text: str | None) -> tuple[str, ...]:
    return tuple(dict.fromkeys(name.strip() for name in (text or "").split(",") if name.strip()))


def _breakdowns(text: str) -> tuple[By, ...]:
    chosen = _names(text)
    unknown = [name for name in chosen if name not in BREAKDOWNS]
    if unknown:
        raise ConfigError(f"--by {unknown[0]} is not known: choose from {', '.join(BREAKDOWNS)}")
    return chosen  # type: ignore[return-value]


def _score_verdicts(args: argparse.Namespace) -> int:
    path = Path(args.verdicts)
    if not has_verdicts(path):
        raise ConfigError(
            f"{path} has no column `verdict`: give the CSV that the report's page saves\n"
            f"for detections: mast evaluate --detections {quote(str(path))} --annotations TABLE"
        )
    verdicts = read_verdicts(path)
    kept = verdicts.score >= (args.threshold or 0.0)
    num_right, num_judged = int(verdicts.is_right[kept].sum()), int(kept.sum())
    if num_judged == 0:
        raise DataError(f"{path} holds no verdict at or above the threshold:\njudge some rows with y or n")
    low, high = (float(limit) for limit in wilson_limits(num_right, num_judged))
    print(
        f"precision {num_right / num_judged:.3f} [{low:.3f}, {high:.3f}]  "
        f"({num_right} right of {num_judged} judged, {verdicts.num_undecided} undecided)"
    )
    if verdicts.is_drawn:
        print(
            f"note: drawn by score band; weigh them: mast calibrate DETECTIONS --verdicts {quote(str(path))}",
            file=sys.stderr,
        )
    else:
        print("note: these examples were chosen, not drawn at random: they say little about the whole table.\n"
              "      For precision at a threshold: mast calibrate DETECTIONS", file=sys.stderr)  # fmt: skip
    if args.out:
        out = open_storage(args.out, args.config.storage)
        result = {"precision": num_right / num_judged, "low": low, "high": high, "num_right": num_right,
                  "num_judged": num_judged, "num_undecided": verdicts.num_undecided,
                  "threshold": args.threshold or 0.0, "is_drawn": verdicts.is_drawn}  # fmt: skip
        out.write_atomic("verdicts.json", json.dumps(result, indent=1).encode())
        print(f"wrote {out.url}/verdicts.json")
    return 0
