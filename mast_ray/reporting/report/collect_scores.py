"""Detections against labels, as the report shows them: tables with intervals, curves, calibration, overlaps.

Matching, figures and intervals are the evaluator's own (evaluation/scoring.py);
nothing is computed a second way here.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from mast_ray.config.errors import MastError
from mast_ray.evaluation.event_boxes import Blocks
from mast_ray.evaluation.events import RecordingList, events_from_arrow, recordings_from_arrow
from mast_ray.evaluation.intervals import Interval as Estimate
from mast_ray.evaluation.metrics import f1_over_thresholds, summarise
from mast_ray.evaluation.review.calibration import expected_calibration_error, reliability_curve
from mast_ray.evaluation.scoring import By, Scored, breakdown_by, figures_of, score_tables
from mast_ray.reporting.report.contents import (
    Cell,
    Histogram,
    Interval,
    Reliability,
    ResultTable,
    ThresholdCurve,
)

SPLIT_NAMES = {
    "val": "validation", "test": "in-domain test", "temporal_ood": "unseen dates", "site_ood": "unseen sites", "ood_dev": "OOD development",
    "train": "training", "": "unassigned",
}  # fmt: skip
SHOWN = ("val", "test", "temporal_ood", "site_ood", "ood_dev")
FIGURES = (
    ("precision", "precision"),
    ("recall", "recall"),
    ("f1", "F1"),
    ("ap_area", "AP"),
    ("mean_iou", "mIoU"),
)
GRID = np.round(np.arange(0.0, 1.0, 0.01), 2)


@dataclass(frozen=True)
class Scores:
    """What the evaluation adds to a report."""

    tables: tuple[ResultTable, ...] = ()
    curves: tuple[ThresholdCurve, ...] = ()
    overlap: Histogram | None = None
    reliability: tuple[Reliability, ...] = ()
    headline: tuple[tuple[str, Interval], ...] = ()
    threshold: float | None = None
    warnings: tuple[str, ...] = ()


def collect_scores(
    detections: pa.Table,
    labels: pa.Table,
    recordings: pa.Table,
    splits: pa.Table | None,
    threshold: float | None,
) -> Scores:
    """Scores of every split that was annotated; all annotated recordings
    together when there are no splits.
    """
    known = recordings_from_arrow(recordings, only_annotated=True)
    truth = events_from_arrow(labels, known)
    found = events_from_arrow(detections, recordings_from_arrow(recordings))
    scored: dict[str, Scored] = {}
    warnings: list[str] = []
    for name, blocks in _blocks_of(splits, known).items():
        try:
            one = score_tables(found, truth, blocks=blocks)
        except MastError as error:
            warnings.append(f"{SPLIT_NAMES.get(name, name)} was not scored: {str(error).splitlines()[0]}")
            continue
        if one.matches.num_truth:
            scored[name] = one
    if not scored:
        return Scores(threshold=threshold, warnings=tuple(warnings))
    if threshold is None:
        tuned_on = "val" if "val" in scored else next(iter(scored))
        curve = f1_over_thresholds(scored[tuned_on].matches, GRID)
        threshold = float(GRID[int(np.nanargmax(curve.f1))])
        if tuned_on != "val":
            warnings.append(
                f"The threshold {threshold:.2f} was tuned on the very data it is judged on ({SPLIT_NAMES.get(tuned_on, tuned_on)}): "
                "precision, recall and F1 are optimistic."
            )
    return _shown(scored, threshold, tuple(warnings))


def _blocks_of(splits: pa.Table | None, known: RecordingList) -> dict[str, Blocks | None]:
    """Split -> blocks of the annotated recordings, in the order they are reported."""
    if splits is None or len(splits) == 0:
        return {"all annotated recordings": None}
    place = {name: row for row, name in enumerate(known.ids)}
    rows: dict[str, list[tuple[int, float, float]]] = {}
    for row in splits.to_pylist():
        if row["split"] in SHOWN and row["recording_id"] in place:
            rows.setdefault(row["split"], []).append(
                (place[row["recording_id"]], row["begin_s"], row["end_s"])
            )
    out: dict[str, Blocks | None] = {}
    for name in SHOWN:
        if name in rows:
            recording, begin, end = zip(*rows[name], strict=True)
            out[name] = Blocks(np.array(recording, np.int64), np.array(begin, float), np.array(end, float))
    return out or {"all annotated recordings": None}


def _interval(estimate: Estimate) -> Interval:
    return Interval(*(float(v) if np.isfinite(v) else None for v in estimate[:3]))


def _shown(scored: dict[str, Scored], threshold: float, warnings: tuple[str, ...]) -> Scores:
    rows: list[tuple[Cell, ...]] = []
    curves, headline = [], []
    for name, one in scored.items():
        metrics, intervals = figures_of(one, threshold)
        cells = [_interval(intervals[key]) for key, _ in FIGURES]
        busy = np.unique(one.recording_of_group[np.concatenate([one.matches.group, one.matches.truth_group])])
        rows.append(
            (SPLIT_NAMES.get(name, name), len(busy), metrics.num_truth, metrics.num_detections, *cells)
        )
        curves.append(_curve(SPLIT_NAMES.get(name, name), one))
    main = "test" if "test" in scored else next(iter(scored))
    _, intervals = figures_of(scored[main], threshold)
    label = SPLIT_NAMES.get(main, main)
    headline = [
        (f"F1, {label}", _interval(intervals["f1"])),
        (f"AP, {label}", _interval(intervals["ap_area"])),
    ]
    unit = next(iter(scored.values())).unit
    note = (
        f"Matched per {unit} at IoU 0.5, micro averages at threshold {threshold:.2f}; AP is the area under the curve. "
        "Below each figure its 95 % interval, by resampling recordings."
    )
    tables = [
        ResultTable(
            "By split",
            ("split", "recordings", "calls", "kept detections", *(t for _, t in FIGURES)),
            tuple(rows),
            note,
        )
    ]
    for by, title in (
        ("site", "By site"),
        ("hour", "By hour of day"),
        ("duration", "By duration"),
        ("bandwidth", "By bandwidth"),
    ):
        tables += _breakdown(scored[main], by, f"{title}: {label}", threshold)  # type: ignore[arg-type]
    hits = scored[main].matches.iou[scored[main].matches.is_true_positive]
    counts, edges = np.histogram(hits, np.linspace(0.5, 1.0, 21))
    overlap = Histogram(tuple(edges.tolist()), tuple(counts.tolist())) if len(hits) else None
    reliability = tuple(
        _reliability(SPLIT_NAMES.get(n, n), one) for n, one in scored.items() if len(one.matches.score)
    )
    return Scores(tuple(tables), tuple(curves), overlap, reliability, tuple(headline), threshold, warnings)


def _curve(name: str, one: Scored) -> ThresholdCurve:
    curve = f1_over_thresholds(one.matches, GRID)
    known = np.isfinite(curve.precision)
    threshold, precision, recall, f1 = (
        tuple(v[known].tolist()) for v in (curve.threshold, curve.precision, curve.recall, curve.f1)
    )
    return ThresholdCurve(name, threshold, precision, recall, f1, summarise(one.matches, 0.0).ap_area)


def _reliability(name: str, one: Scored) -> Reliability:
    curve = reliability_curve(one.matches.score, one.matches.is_true_positive)
    error = expected_calibration_error(curve)
    counts = tuple(int(c) for c in curve.num_examples)
    return Reliability(name, tuple(curve.predicted.tolist()), tuple(curve.observed.tolist()), counts, error)


def _breakdown(one: Scored, by: By, title: str, threshold: float) -> list[ResultTable]:
    cells = breakdown_by(one, by, threshold, num_resamples=400)
    if len(cells) < 2:
        return []
    rows: tuple[tuple[Cell, ...], ...] = tuple(
        (
            cell.name,
            cell.num_recordings,
            cell.metrics.num_truth,
            *(_interval(cell.intervals[key]) for key, _ in FIGURES[:4]),
        )
        for cell in cells
    )
    return [ResultTable(title, (by, "recordings", "calls", *(t for _, t in FIGURES[:4])), rows)]
