"""Scores as the report shows them: tables with intervals, curves, calibration, overlaps.

A model that `mast evaluate` has scored is shown by its own sheet of scores and the matches behind it; detections without one
are scored against the labels here. Matching, figures and intervals are the evaluator's own: nothing is computed a second way.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa

from mast_ray.config.errors import MastError
from mast_ray.evaluation.event_boxes import Blocks
from mast_ray.evaluation.events import RecordingList, events_from_arrow, recordings_from_arrow, renumbered
from mast_ray.evaluation.intervals import Interval as Estimate
from mast_ray.evaluation.metrics import f1_over_thresholds, summarise
from mast_ray.evaluation.review.calibration import expected_calibration_error, reliability_curve
from mast_ray.evaluation.score_sheet import ScoreRow, ScoreSheet, chosen_threshold, score_rows
from mast_ray.evaluation.scoring import By, Scored, score_tables
from mast_ray.evaluation.split_truth import SPLIT_ORDER
from mast_ray.reporting.detection_tables import stitched
from mast_ray.reporting.report.contents import (
    Cell,
    Histogram,
    Interval,
    Reliability,
    ReportData,
    ResultTable,
    ThresholdCurve,
)

SPLIT_NAMES = {
    "val": "validation", "test": "in-domain test", "temporal_ood": "unseen dates", "site_ood": "unseen sites", "ood_dev": "OOD development",
    "train": "training", "": "unassigned",
}  # fmt: skip
FIGURES = {
    "precision": "precision", "recall": "recall", "f1": "F1", "ap_area": "AP", "mean_iou": "mIoU", "time_f1": "F1 in time",
}  # fmt: skip
BREAKDOWNS: dict[By, str] = {
    "site": "By site", "hour": "By hour of day", "duration": "By duration", "bandwidth": "By bandwidth",
}  # fmt: skip
ALL = "all annotated recordings"
INTERVAL_NOTE = "Below each figure its 95 % interval, by resampling recordings (Wilson's limits where all recordings agree)."
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


def units_of(data: ReportData, has_scores: bool, is_by_chunk: bool) -> tuple[tuple[str, str], ...]:
    """(unit, the figures of this report that are counted so), for every unit that occurs; said in one place.

    `is_by_chunk`: the scores are those of `mast evaluate`, which matches chunk by chunk.
    """
    scored = [
        name
        for name, is_there in (
            ("precision, recall, F1, AP and mIoU", has_scores),
            ("the curves, the calibration and the overlaps", bool(data.curves)),
        )
        if is_there
    ]
    studied = [
        name
        for name, is_there in (
            ("the rounds of self-training", data.rounds is not None),
            ("the label budget", bool(data.label_budget)),
            ("the trials of a search", data.trials is not None),
        )
        if is_there
    ]
    counted = [
        name
        for name, is_there in (
            ("the column \u201cF1, whole recordings\u201d", is_by_chunk and bool(scored)),
            ("numbers of detections and the histogram of scores", data.scores is not None),
            ("calls per hour, sites, hours and dates", data.sites is not None),
            ("the boxes to look at and listen to", bool(data.examples)),
        )
        if is_there
    ]
    per_chunk = [*(scored if is_by_chunk else []), *studied]
    per_recording = [*([] if is_by_chunk else scored), *counted]
    units = (
        ("Per chunk of 10.24 s, half of it shared with the next: a call that lies in two chunks counts in both", per_chunk),
        ("Per recording, stitched: every call counts once", per_recording),
    )  # fmt: skip
    return tuple((unit, "; ".join(names)) for unit, names in units if names)


def split_name(split: str) -> str:
    return SPLIT_NAMES.get(split, split)


def scores_of_model(sheet: ScoreSheet, scored: Mapping[str, Scored]) -> Scores:
    """A model as `mast evaluate` scored it; without the matches there are no curves."""
    rows = {row.split: row for row in sheet.rows if row.is_whole and row.unit == "chunk"}
    note = (
        f"As `mast evaluate` scores it: matched chunk by chunk at IoU {sheet.iou:g} (a call that lies in two chunks counts in both), "
        f"micro averages at threshold {sheet.threshold.value:.2f} ({sheet.threshold.said}); AP is the area under the curve. The last "
        f"column counts every call once, on whole recordings. {INTERVAL_NOTE}"
    )
    whole = {"F1, whole recordings": {split: sheet.whole(split, "recording") for split in rows}}
    return _shown(rows, scored, sheet.threshold.value, note, whole)


def scores_of_table(
    detections: pa.Table,
    labels: pa.Table,
    recordings: pa.Table,
    splits: pa.Table | None,
    threshold: float | None,
    ignored: pa.Table | None = None,
) -> Scores:
    """Scores of a table of detections on every split that was annotated; on all annotated recordings
    together when there are no splits. What lies in `ignored` regions and hits nothing is no false alarm.
    """
    known = recordings_from_arrow(recordings, only_annotated=True)
    truth = events_from_arrow(labels, known)
    found = events_from_arrow(stitched(detections), recordings_from_arrow(recordings))
    found = replace(found, chunk=np.full(len(found), -1, np.int64))  # stitched: of whole recordings
    scored: dict[str, Scored] = {}
    warnings: list[str] = []
    for name, (own, blocks) in _blocks_of(splits, known).items():
        regions = None if ignored is None else events_from_arrow(ignored, own)
        try:
            one = score_tables(found, renumbered(truth, own), blocks=blocks, ignored=regions)
        except MastError as error:
            warnings.append(f"{split_name(name)} was not scored: {str(error).splitlines()[0]}")
            continue
        if one.matches.num_truth:
            scored[name] = one
    if not scored:
        return Scores(threshold=threshold, warnings=tuple(warnings))
    said = ""
    if threshold is None:
        may_choose = ("ood_dev", "val")  # as everywhere: split_truth.selection_split
        tuned_on = next(name for name in (*may_choose, *scored) if name in scored)
        chosen = chosen_threshold(None, None, scored[tuned_on], split_name(tuned_on))
        threshold, said = chosen.value, f" ({chosen.said})"
        if tuned_on not in may_choose:
            warnings.append(
                f"The threshold {threshold:.2f} was tuned on the very data it is judged on ({split_name(tuned_on)}): "
                "precision, recall and F1 are optimistic."
            )
    rows = {name: score_rows(one, name, threshold, 1000, 0)[0] for name, one in scored.items()}
    note = (
        f"Detections against labels, matched per recording at IoU 0.5, micro averages at threshold {threshold:.2f}{said}; "
        f"AP is the area under the curve. {INTERVAL_NOTE}"
    )
    return replace(_shown(rows, scored, threshold, note), warnings=tuple(warnings))


def _blocks_of(
    splits: pa.Table | None, known: RecordingList
) -> dict[str, tuple[RecordingList, Blocks | None]]:
    """Split -> its annotated recordings and their blocks, in the order they are reported."""
    if splits is None or len(splits) == 0:
        return {ALL: (known, None)}
    place = {name: row for row, name in enumerate(known.ids)}
    rows: dict[str, list[tuple[int, float, float]]] = {}
    for row in splits.to_pylist():
        if row["split"] in SPLIT_ORDER and row["recording_id"] in place:
            rows.setdefault(row["split"], []).append(
                (place[row["recording_id"]], row["begin_s"], row["end_s"])
            )
    out: dict[str, tuple[RecordingList, Blocks | None]] = {}
    for name in SPLIT_ORDER:
        if name in rows:
            recording, begin, end = zip(*rows[name], strict=True)
            own, number = np.unique(np.array(recording, np.int64), return_inverse=True)
            out[name] = known.take(own), Blocks(number, np.array(begin, float), np.array(end, float))
    return out or {ALL: (known, None)}


def cell_of(estimate: Estimate) -> Interval:
    return Interval(*(float(v) if np.isfinite(v) else None for v in estimate[:3]))


def _shown(
    rows: Mapping[str, ScoreRow],
    scored: Mapping[str, Scored],
    threshold: float,
    note: str,
    more: Mapping[str, Mapping[str, ScoreRow | None]] | None = None,
) -> Scores:
    """`more` are further columns of F1: title -> split -> row."""
    table: list[tuple[Cell, ...]] = []
    for name, row in rows.items():
        counts = (row.num_recordings, row.num_truth, row.num_detections)
        extra = [own[name] for own in (more or {}).values()]
        cells = [cell_of(row.figures[figure]) for figure in FIGURES]
        table.append(
            (
                split_name(name),
                *counts,
                *cells,
                *(cell_of(one.figures["f1"]) if one else None for one in extra),
            )
        )
    columns = ("split", "recordings", "calls", "kept detections", *FIGURES.values(), *(more or {}))
    tables = [ResultTable("By split", columns, tuple(table), note)] if rows else []
    main = "test" if "test" in rows else next(iter(rows), "")
    headline = tuple(
        (f"{title}, {split_name(main)}", cell_of(rows[main].figures[figure]))
        for figure, title in (("f1", "F1"), ("ap_area", "AP"))
        if main in rows
    )
    overlap = None
    if main in scored:
        parts = score_rows(scored[main], main, threshold, 1000, 0, tuple(BREAKDOWNS))
        for by, title in BREAKDOWNS.items():
            tables += _breakdown(parts, by, f"{title}: {split_name(main)}")
        matches = scored[main].matches
        hits = matches.iou[matches.is_true_positive & (matches.score >= threshold)]
        height, edges = np.histogram(hits, np.linspace(scored[main].iou, 1.0, 21))
        overlap = Histogram(tuple(edges.tolist()), tuple(height.tolist())) if len(hits) else None
    return Scores(
        tuple(tables),
        tuple(_curve(split_name(name), one) for name, one in scored.items()),
        overlap,
        tuple(_reliability(split_name(n), one) for n, one in scored.items() if len(one.matches.score)),
        headline,
        threshold,
    )


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


def _breakdown(cells: Sequence[ScoreRow], by: By, title: str) -> list[ResultTable]:
    """The lines that `mast evaluate --by` has too."""
    lines = [row for row in cells if row.by == by and row.num_truth + row.num_detections]
    if len(lines) < 2:
        return []
    names = list(FIGURES)[:4]
    rows: tuple[tuple[Cell, ...], ...] = tuple(
        (
            row.cell,
            row.num_recordings,
            row.num_truth,
            row.num_detections,
            *(cell_of(row.figures[name]) for name in names),
        )
        for row in lines
    )
    columns = (by, "recordings", "calls", "kept detections", *(FIGURES[name] for name in names))
    return [ResultTable(title, columns, rows)]
