"""`mast evaluate`: any table of detections against any table of annotations, or a person's verdicts alone."""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np

from mast_ray.config.errors import ConfigError, DataError
from mast_ray.evaluation.event_boxes import Blocks
from mast_ray.evaluation.events import (
    EventTable,
    RecordingList,
    events_from_annotations,
    events_from_arrow,
    recordings_from_arrow,
    renumbered,
    with_facts_of,
)
from mast_ray.evaluation.figure_tables import figure_rows, figures_as_text, write_results
from mast_ray.evaluation.intervals import wilson_limits
from mast_ray.evaluation.metrics import best_threshold
from mast_ray.evaluation.review.verdicts import has_verdicts, read_verdicts
from mast_ray.evaluation.scoring import BREAKDOWNS, Scored, breakdown_by, figures_of, score_tables
from mast_ray.evaluation.split_truth import truth_of_split
from mast_ray.recordings.annotations.reading import READ_FORMATS, read_annotations
from mast_ray.reporting.detection_tables import read_detections, read_parquet, read_recordings, split_uri
from mast_ray.storage.storage import open_storage
from mast_ray.tables.prepared import open_prepared

HELP = """Score detections against annotations, with 95 % intervals over recordings.

DETECTIONS is a Parquet table or folder (`mast detect`), or any annotation file with scores (Raven, BirdNET CSV, AOEF ...).
ANNOTATIONS is a prepared archive, labels.parquet, or annotation files of any format. A CSV of verdicts saved from the
report is scored alone: mast evaluate verdicts.csv

With a model folder and a prepared archive (mast evaluate MODEL PREPARED) the model is run on every annotated split and
scored at its own threshold, tuned on validation and frozen; --split names some of them."""
USES_CONFIG = True


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add(
        "detections",
        metavar="DETECTIONS",
        help="what was found: Parquet table or folder, Raven, BirdNET CSV, AOEF, ...",
    )
    add(
        "annotations",
        metavar="ANNOTATIONS",
        nargs="?",
        help="what is true: prepared archive, labels, annotation files",
    )
    add(
        "--threshold",
        type=float,
        metavar="Q",
        help="score from which a detection counts (default: all count)",
    )
    add(
        "--tune-on",
        metavar="TABLE",
        help="detections of validation material: its best F1 threshold is used, frozen",
    )
    add("--tune-annotations", metavar="TABLE", help="annotations for --tune-on (default ANNOTATIONS)")
    add("--split", metavar="NAME", help="score only this split of a prepared archive, e.g. test or site_ood")
    add(
        "--tune-split",
        metavar="NAME",
        help="tune the threshold on this split, e.g. val (of --tune-on or DETECTIONS)",
    )
    add(
        "--iou",
        type=float,
        metavar="X",
        help="overlap from which a detection is right (default evaluate.iou)",
    )
    add(
        "--space",
        choices=("mel", "hertz"),
        default="mel",
        help="where boxes overlap (default mel, as the model sees)",
    )
    add("--by", default="", metavar="LIST", help=f"also break down by some of {','.join(BREAKDOWNS)}")
    add("--unlisted", choices=("skip", "silent"), default="skip",
        help="recordings without annotation: leave out (default), or count as listened to and silent")  # fmt: skip
    add(
        "--recordings",
        metavar="TABLE",
        help="recordings.parquet: paths, sites and times, where the tables lack them",
    )
    add(
        "--format",
        choices=("auto", *READ_FORMATS),
        default="auto",
        help="of annotation files (default: by content)",
    )
    add(
        "--out",
        metavar="DIR",
        help="write metrics.json, figures.csv, outcomes.parquet and the curve over thresholds",
    )


def run(args: argparse.Namespace) -> int:
    if args.annotations is None:
        return _score_verdicts(args)
    if _is_model(args.detections):
        return _score_model(args)
    by, _ = _breakdowns(args.by), _iou(args)
    if args.threshold is not None and (args.tune_on or args.tune_split):
        raise ConfigError("--threshold and --tune-on exclude each other: give one of them")
    scored = _scored(args, args.detections, args.annotations, args.split)
    threshold, origin = _threshold(args)
    metrics, intervals = figures_of(scored, threshold, args.config.evaluate.bootstrap, args.config.seed)
    rows = figure_rows("all", "all", metrics, intervals, scored.num_recordings)
    for kind in by:
        cells = breakdown_by(scored, kind, threshold, args.config.evaluate.bootstrap, args.config.seed)
        if not cells:
            print(f"note: the {kind} of no event is known: give --recordings", file=sys.stderr)
        for cell in cells:
            rows += figure_rows(kind, cell.name, cell.metrics, cell.intervals, cell.num_recordings)
    for why, count in scored.left_out.items():
        if count:
            print(f"note: left out {count} {why}", file=sys.stderr)
    if metrics.num_time_only_truth:
        print(
            f"note: {metrics.num_time_only_truth} labels without frequencies were matched by time",
            file=sys.stderr,
        )
    settings = {
        "detections": args.detections, "annotations": args.annotations, "split": args.split or "",
        "threshold": threshold, "threshold_from": origin, "iou": _iou(args), "space": args.space,
        "unit": scored.unit, "num_recordings": scored.num_recordings, "left_out": scored.left_out,
    }  # fmt: skip
    print(
        f"{scored.num_recordings} recordings, matched per {scored.unit}, IoU >= {_iou(args):g} in {args.space} space, "
        f"score >= {threshold:g} ({origin})"
    )
    print(figures_as_text(rows, args.config.evaluate.average_precision))
    if args.out:
        out = open_storage(args.out, args.config.storage)
        names = write_results(out, settings, metrics, rows, scored, threshold)
        print(f"wrote {', '.join(names)} in {out.url}")
    return 0


def _is_model(uri: str) -> bool:
    return (
        not uri.endswith((".parquet", ".csv", ".txt", ".json"))
        and open_storage(uri).stat("card.json") is not None
    )


def _score_model(args: argparse.Namespace) -> int:
    from mast_ray.stages.score.scoring import evaluate_model

    splits = [name.strip() for name in args.split.split(",")] if args.split else None
    config = args.config
    if args.iou is not None:
        config = config.model_copy(
            update={"evaluate": config.evaluate.model_copy(update={"iou": _iou(args)})}
        )
    scores = evaluate_model(args.detections, args.annotations, splits, config, args.out or "", args.threshold)
    print(f"score >= {scores.threshold:g} ({scores.threshold_from})")
    rows = [
        row
        for by, part in (("split, per chunk", scores.splits), ("split, stitched", scores.stitched))
        for name, one in part.items()
        for row in figure_rows(by, name, one.metrics, one.intervals, one.num_recordings)
    ]
    print(figures_as_text(rows, args.config.evaluate.average_precision))
    if args.out:
        print(f"wrote metrics.json and detections.parquet in {args.out}")
    return 0


def _iou(args: argparse.Namespace) -> float:
    iou = args.config.evaluate.iou if args.iou is None else args.iou
    if not 0 < iou <= 1:
        raise ConfigError(f"--iou {iou} must lie between 0 and 1, e.g. --iou 0.5")
    return iou


def _breakdowns(text: str) -> tuple:
    chosen = tuple(dict.fromkeys(name.strip() for name in text.split(",") if name.strip()))
    unknown = [name for name in chosen if name not in BREAKDOWNS]
    if unknown:
        raise ConfigError(f"--by {unknown[0]} is not known: choose from {', '.join(BREAKDOWNS)}")
    return chosen


def _threshold(args: argparse.Namespace) -> tuple[float, str]:
    """The threshold and where it comes from; tuned ones never see what is scored,
    unless the user names it twice.
    """
    if args.threshold is not None:
        return args.threshold, "given"
    if not args.tune_on and not args.tune_split:
        return 0.0, "all detections of the table; tune with --tune-on"
    table = args.tune_on or args.detections
    annotations = args.tune_annotations or args.annotations
    if (table, annotations, args.tune_split) == (args.detections, args.annotations, args.split):
        print("note: the threshold is tuned on what is scored: figures are too good", file=sys.stderr)
    tuned = best_threshold(_scored(args, table, annotations, args.tune_split).matches)
    if np.isnan(tuned):
        raise DataError(
            f"no detection of {table} is right, so no threshold can be tuned on it:\ngive --threshold"
        )
    return tuned, f"best F1 on {args.tune_split or table}, frozen"


def _scored(args: argparse.Namespace, detections: str, annotations: str, split: str | None) -> Scored:
    recordings = recordings_from_arrow(read_recordings(args.recordings)) if args.recordings else None
    truth, blocks = read_truth(annotations, split, recordings, args.format)
    found = read_events(detections, recordings, args.format)
    if recordings is not None:
        truth = replace(truth, recordings=with_facts_of(truth.recordings, recordings))
    remnant_s = args.config.spectrogram.min_remnant_s
    return score_tables(found, truth, _iou(args), args.space, args.unlisted, blocks, remnant_s)


def read_events(uri: str, recordings: RecordingList | None = None, format: str = "auto") -> EventTable:
    """Detections from Parquet (file or folder) or from an annotation file of any format; `recordings` helps
    to find the paths of tables that only know ids.
    """
    if _is_annotation_file(uri):
        return events_from_annotations(read_annotations(uri, format))  # type: ignore[arg-type]
    storage, keys = split_uri(uri)
    events = (
        events_from_arrow(read_parquet(storage, keys[0]))
        if len(keys) == 1 and uri.endswith(".parquet")
        else events_from_arrow(read_detections(uri))
    )
    if recordings is not None and not all(events.recordings.paths) and all(recordings.ids):
        events = renumbered(events, recordings)
    return events


def read_truth(
    uri: str, split: str | None = None, recordings: RecordingList | None = None, format: str = "auto"
) -> tuple[EventTable, Blocks | None]:
    """Annotations, with the annotated recordings as their list of recordings, and
    the blocks of a split if named.
    """
    if uri.endswith(".parquet"):
        storage, keys = split_uri(uri)
        if recordings is None and storage.stat("recordings.parquet") is not None:
            listed = read_recordings(f"{storage.url}/recordings.parquet")
            recordings = recordings_from_arrow(listed, only_annotated=True)
        _refuse_split(uri, split)
        return events_from_arrow(read_parquet(storage, keys[0]), recordings), None
    if _is_annotation_file(uri):
        _refuse_split(uri, split)
        found = read_annotations(uri, format)  # type: ignore[arg-type]
        for problem in found.problems[:5]:
            print(f"note: {problem}", file=sys.stderr)
        return events_from_annotations(found), None
    return truth_of_split(open_prepared(uri), split)


def _refuse_split(uri: str, split: str | None) -> None:
    if split is not None:
        raise ConfigError(f"--split {split} needs a prepared archive as ANNOTATIONS, not {uri}")


def _is_annotation_file(uri: str) -> bool:
    """Local annotation file, or a folder of them (and not of Parquet tables or a stage)."""
    if "://" in uri or uri.endswith(".parquet"):
        return False
    path = Path(uri)
    if not path.exists():
        raise DataError(f"{uri} does not exist: give a table of detections or annotations")
    if path.is_file():
        return True
    return not (path / "manifest.json").exists() and next(path.rglob("*.parquet"), None) is None


def _score_verdicts(args: argparse.Namespace) -> int:
    path = Path(args.detections)
    if not has_verdicts(path):
        raise ConfigError(
            f"{path} alone cannot be scored: it has no column `verdict`\n"
            "give annotations as well: mast evaluate DETECTIONS ANNOTATIONS"
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
            f"note: drawn by score band; weigh them: mast calibrate DETECTIONS --verdicts {path}",
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
