"""`mast calibrate`: draw a small review sheet, then say what precision each threshold has, with limits."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from dataclasses import replace
from shlex import quote

import numpy as np

from mast_ray.config.errors import ConfigError, DataError
from mast_ray.evaluation.figure_tables import csv_bytes, without_nan
from mast_ray.evaluation.review.calibration import (
    Calibration,
    doubts_of,
    expected_calibration_error,
    fit_calibration,
    reliability_curve,
)
from mast_ray.evaluation.review.sheet import (
    PrecisionCurve,
    band_edges_of,
    precision_of_counts,
    threshold_for_precision,
    weights_of_bands,
)
from mast_ray.evaluation.review.verdicts import Verdicts, read_verdicts
from mast_ray.reporting.detection_tables import model_sha_of, of_run
from mast_ray.reporting.report.gallery import detection_id
from mast_ray.stages.score.review_parts import Detections, Drawn
from mast_ray.storage.storage import Storage, open_storage
from mast_ray.training.files.model_files import read_card, write_card
from mast_ray.training.files.shipped import is_shipped
from mast_ray.verbs.gpu import folder_of_model
from mast_ray.verbs.idle_options import refuse_idle

HELP = """Which threshold is right for you: judge a small sheet, get precision at every threshold with a 95 % interval.

  mast calibrate DETECTIONS --out DIR              draws DIR/review.csv, spread over sites, hours and scores
  (listen, and write y or n into its column `verdict`; `mast show FILE --start S -o PNG --sound WAV` draws and plays a place)
  mast calibrate DETECTIONS --verdicts DIR/review.csv --precision 0.9 --model MODEL

With --model the curve from score to probability is written into the model's card: `mast detect` fills the column `probability`
from then on, and `mast summarise` gives the calls per hour that are right, with the verdicts' uncertainty in their interval."""
USES_CONFIG = USES_RUNNER = True
OF_VERDICTS = ("precision", "method", "model")
SHEET_COLUMNS = ("detection_id", "path", "site", "hour", "begin_s", "end_s", "low_hz", "high_hz", "score", "sheet",
                 "verdict")  # fmt: skip


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add(
        "detections",
        metavar="DETECTIONS",
        help="Parquet table or folder of `mast detect`, or a table with scores",
    )
    add("--size", type=int, default=200, metavar="N", help="rows of the review sheet (default 200)")
    add("--verdicts", metavar="CSV", help="the sheet, filled in")
    add(
        "--precision",
        type=float,
        metavar="P",
        help="recommend the threshold that holds at least this precision",
    )
    add(
        "--method",
        choices=("platt", "isotonic"),
        default="platt",
        help="score to probability (default platt)",
    )
    add(
        "--model",
        metavar="DIR",
        help="folder of the model that made the detections: the curve goes into its card",
    )
    add("--out", metavar="DIR", help="folder for review.csv, or for precision.csv and calibration.json")


def run(args: argparse.Namespace) -> int:
    if args.precision is not None and not 0 < args.precision <= 1:
        raise ConfigError(f"--precision {args.precision:g} is no share: give a number from 0 to 1, e.g. 0.9")
    if args.verdicts:
        refuse_idle(args, ("size",), "--verdicts gives a sheet that is drawn already, leave it out")
    else:
        refuse_idle(args, OF_VERDICTS, "it is for a sheet that is judged, so add --verdicts CSV")
    args.detections = of_run(args.detections)
    if args.model and is_shipped(folder := folder_of_model(args.model, args)):
        raise ConfigError(
            f"{args.model} is part of mast_ray, which nothing is written to: make a copy and give that, here and to `mast detect`\n"
            f"cp -r {quote(folder)} my_model"
        )
    found = Detections.at(args.detections, args.runner, args.config.cluster)
    with found.runner.session():
        return _report(args, found) if args.verdicts else _draw(args, found)


def _draw(args: argparse.Namespace, found: Detections) -> int:
    if args.size < 1:
        raise ConfigError(f"--size {args.size} draws nothing: give e.g. --size 200")
    if not args.out:
        raise ConfigError("where shall the review sheet go? give --out DIR")
    out = open_storage(args.out, args.config.storage)
    if out.stat("review.csv") is not None:
        raise ConfigError(f"{out.url}/review.csv is there already and may hold verdicts:\ngive another --out")
    num_detections, _, _ = found.limits()
    rows = found.drawn(args.size, args.config.seed)
    out.write_atomic("review.csv", _sheet(rows, args.config.seed))
    print(f"wrote {len(rows)} of {num_detections} detections to {out.url}/review.csv")
    print(
        "write y or n into its column `verdict`, then: "
        f"mast calibrate {quote(args.detections)} --verdicts {quote(f'{out.url}/review.csv')}"
    )
    return 0


def _sheet(rows: Sequence[Drawn], seed: int) -> bytes:
    lines = []
    for row in rows:
        box = (row.begin_s, row.end_s, row.low_hz, row.high_hz)
        local_hour = f"{row.hour:02d}" if row.hour >= 0 else ""
        lines.append([detection_id(row.path, *box), row.path, row.site, local_hour, *box, row.score,
                      f"seed {seed}", ""])  # fmt: skip
    return csv_bytes(SHEET_COLUMNS, lines)


def _report(args: argparse.Namespace, found: Detections) -> int:
    verdicts = read_verdicts(args.verdicts)
    if not verdicts.is_drawn:
        raise DataError(
            f"{args.verdicts} was not drawn by `mast calibrate`: chosen examples say little about the rest\n"
            "draw a sheet first: mast calibrate DETECTIONS --out DIR"
        )
    if len(verdicts.score) < 10:
        raise DataError(
            f"{args.verdicts} holds {len(verdicts.score)} verdicts:\njudge at least 10 rows with y or n"
        )
    _refuse_others(args, found, verdicts)
    if args.model:
        _refuse_model(args)
    num_detections, low, high = found.limits()
    edges = band_edges_of([low, high])
    thresholds = np.unique(np.round(np.linspace(low, high, 21), 3))
    counts = found.above(np.array([-np.inf, *thresholds]), edges)
    curve = precision_of_counts(thresholds, counts[1:], verdicts.score, verdicts.is_right, edges)
    weights = weights_of_bands(verdicts.score, counts[0], edges)
    calibration = fit_calibration(verdicts.score, verdicts.is_right, args.method, weights)
    print(
        f"{len(verdicts.score)} verdicts ({verdicts.num_undecided} undecided) on {num_detections} detections"
    )
    print(_as_text(curve, calibration))
    for doubt in doubts_of(calibration, verdicts.is_right):
        print(f"note: {doubt}")
    recommended = float("nan")
    if args.precision is not None:
        recommended = threshold_for_precision(curve, args.precision)
        print(
            f"use --threshold {recommended:g}: precision is at least {args.precision:g} (lower 95 % limit)"
            if np.isfinite(recommended)
            else f"no threshold is known to hold a precision of {args.precision:g}: judge more rows, or ask for less"
        )
    if args.out:
        _write(open_storage(args.out, args.config.storage), curve, calibration, verdicts, recommended)
        print(f"wrote precision.csv and calibration.json in {args.out}")
    if args.model:
        _deliver(args, calibration)
    return 0


def _refuse_others(args: argparse.Namespace, found: Detections, verdicts: Verdicts) -> None:
    """Verdicts on other detections say nothing about these."""
    path_of_id = verdicts.path_of_id()
    known = found.ids_of(set(path_of_id.values())) if path_of_id else set()
    if strange := path_of_id.keys() - known:
        raise DataError(
            f"{len(strange)} of {len(verdicts.rows)} rows of {args.verdicts} are no detections of {args.detections}:\n"
            f"draw a sheet from these (mast calibrate {quote(args.detections)} --out DIR)"
        )


def _refuse_model(args: argparse.Namespace) -> None:
    """A model that the curve would be wrong for: before anything is printed or written."""
    card = read_card(open_storage(args.model, args.config.storage))
    made_by = model_sha_of(args.detections)
    if made_by and made_by != card.weights_sha256:
        raise ConfigError(
            f"{args.detections} was made by another model than {args.model}: the curve would be wrong for it\n"
            "give the model that was used, or detect with this one and judge its detections"
        )


def _deliver(args: argparse.Namespace, calibration: Calibration) -> None:
    model = open_storage(args.model, args.config.storage)
    write_card(model, replace(read_card(model), calibration=calibration.to_dict()))
    print(
        f"wrote the curve into {model.url}/card.json: `mast detect` fills `probability` with it from now on"
    )


def _as_text(curve: PrecisionCurve, calibration: Calibration) -> str:
    lines = [
        f"{'score >=':>8} {'detections':>10} {'judged':>6}  precision              probability at this score"
    ]
    chance = calibration.probability(curve.threshold)
    for threshold, precision, low, high, kept, judged, p in zip(
        *(v.tolist() for v in (*curve, chance)), strict=True
    ):
        text = f"{precision:.3f} [{low:.3f}, {high:.3f}]" if np.isfinite(precision) else "-"
        lines.append(f"{threshold:>8.3f} {kept:>10} {judged:>6}  {text:<22} {p:.3f}")
    return "\n".join(lines)


def _write(
    out: Storage, curve: PrecisionCurve, calibration: Calibration, verdicts: Verdicts, recommended: float
) -> None:
    reliability = reliability_curve(calibration.probability(verdicts.score), verdicts.is_right)
    out.write_atomic(
        "precision.csv", csv_bytes(curve._fields, zip(*(v.tolist() for v in curve), strict=True))
    )
    document = {
        "calibration": calibration.to_dict(),
        "recommended_threshold": recommended,
        "reliability": {name: values.tolist() for name, values in reliability._asdict().items()},
        "expected_calibration_error": expected_calibration_error(reliability),
    }
    out.write_atomic("calibration.json", json.dumps(without_nan(document), indent=1).encode())
