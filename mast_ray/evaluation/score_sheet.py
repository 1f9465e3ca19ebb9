"""metrics.json: one shape for whatever scores anything (`evaluate`, rounds of self-training, studies).

A sheet is a list of rows; a row is a split as a whole or one cell of a breakdown, with its counts and every figure
as estimate, 95 % limits and where those come from. The threshold is chosen by one rule, `chosen_threshold`.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal, NamedTuple

from mast_ray.config.errors import DataError
from mast_ray.evaluation.event_boxes import Space
from mast_ray.evaluation.intervals import FIGURES, Interval
from mast_ray.evaluation.metrics import APName, Metrics, best_threshold
from mast_ray.evaluation.scoring import By, Scored, breakdown_by, figures_of

METRICS, VERSION = "metrics.json", 2
WHOLE = "all"  # by and cell of a row that is no part of a breakdown
FALLBACK_THRESHOLD = 0.5  # of a detector that has none and found nothing right to tune one on
Unit = Literal["chunk", "recording"]
ThresholdSource = Literal["given", "model", "tuned", "fallback", "none"]


class Threshold(NamedTuple):
    """The score from which a detection counts, and where it comes from."""

    value: float
    source: ThresholdSource
    tuned_on: str = ""  # split or table, where it was tuned for these scores

    @property
    def said(self) -> str:
        return {
            "given": "given",
            "model": "the model's own, frozen",
            "tuned": f"tuned for F1 on {self.tuned_on}, frozen",
            "fallback": "fallback: nothing right was found to tune on",
            "none": "all detections of the table; tune with --tune-on",
        }[self.source]


def chosen_threshold(
    given: float | None, own: float | None, selection: Scored | None, tuned_on: str = ""
) -> Threshold:
    """What the user gives, else the model's own, else that tuned for F1 where models may be chosen on, else 0.5."""
    if given is not None:
        return Threshold(given, "given")
    if own is not None:
        return Threshold(own, "model")
    tuned = best_threshold(selection.matches) if selection is not None else math.nan
    return (
        Threshold(tuned, "tuned", tuned_on)
        if math.isfinite(tuned)
        else Threshold(FALLBACK_THRESHOLD, "fallback")
    )


@dataclass(frozen=True)
class ScoreRow:
    """One line of a table of scores."""

    split: str  # "" where a table has no splits
    unit: Unit  # what truths and detections were matched in
    by: By | Literal["all"]
    cell: str
    num_recordings: int
    num_truth: int
    num_detections: int  # kept at the threshold
    num_true_positives: int
    num_time_only_truth: int  # labels without frequencies, matched by time
    figures: dict[str, Interval]

    @property
    def is_whole(self) -> bool:
        return self.by == WHOLE


def score_rows(
    scored: Scored, split: str, threshold: float, num_resamples: int, seed: int, by: Sequence[By] = ()
) -> list[ScoreRow]:
    """The whole of what was scored, then the cells of every breakdown asked for."""
    whole = figures_of(scored, threshold, num_resamples, seed)
    rows = [_row(split, scored.unit, WHOLE, WHOLE, scored.num_recordings, *whole)]
    for kind in by:
        rows += [
            _row(split, scored.unit, kind, cell.name, cell.num_recordings, cell.metrics, cell.intervals)
            for cell in breakdown_by(scored, kind, threshold, num_resamples, seed)
        ]
    return rows


def _row(
    split: str,
    unit: Unit,
    by: Any,
    cell: str,
    num_recordings: int,
    metrics: Metrics,
    intervals: dict[str, Interval],
) -> ScoreRow:
    counts = (
        metrics.num_truth,
        metrics.num_detections,
        metrics.num_true_positives,
        metrics.num_time_only_truth,
    )
    # The ranking behind average precision is cut into cells for resampling: the estimate is the exact one.
    figures = {name: intervals[name]._replace(estimate=float(getattr(metrics, name))) for name in FIGURES}
    return ScoreRow(split, unit, by, cell, num_recordings, *counts, figures)


@dataclass(frozen=True)
class ScoreSheet:
    """Everything in a metrics.json."""

    subject: str  # the model folder or the table of detections that was scored
    truth: str  # the prepared archive or the table of annotations
    model_sha: str  # "" for a table of detections
    threshold: Threshold
    iou: float
    space: Space
    average_precision: APName  # the headline's
    rows: tuple[ScoreRow, ...]
    left_out: dict[str, int]  # why -> how many events were not scored
    warnings: tuple[str, ...] = ()  # what the findings say about the model (findings.py)

    @property
    def splits(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(row.split for row in self.rows))

    def whole(self, split: str, unit: Unit = "chunk") -> ScoreRow | None:
        """The row of a split as a whole."""
        return next((r for r in self.rows if r.is_whole and (r.split, r.unit) == (split, unit)), None)

    def to_json(self) -> bytes:
        document = {"version": VERSION} | asdict(self) | {"threshold": self.threshold._asdict()}
        document["rows"] = [
            asdict(row) | {"figures": {name: _interval_to_dict(one) for name, one in row.figures.items()}}
            for row in self.rows
        ]
        return json.dumps(document, indent=1, allow_nan=False).encode()

    @staticmethod
    def from_json(data: bytes, place: str = METRICS) -> ScoreSheet:
        """Read a sheet; `place` is named when it is something else."""
        try:
            document: dict[str, Any] = json.loads(data)
            if document.pop("version") != VERSION:
                raise ValueError("another version")
            rows = tuple(_row_from_dict(row) for row in document.pop("rows"))
            threshold = Threshold(**document.pop("threshold"))
            warnings = tuple(document.pop("warnings", ()))  # sheets of before have none
            return ScoreSheet(threshold=threshold, rows=rows, warnings=warnings, **document)
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise DataError(
                f"{place} is no table of scores of this version ({error}):\n"
                "run `mast evaluate` again with the same --out, or into a new folder"
            ) from error


def _row_from_dict(row: Mapping[str, Any]) -> ScoreRow:
    figures = {name: _interval_from_dict(one) for name, one in row["figures"].items()}
    return ScoreRow(**{**row, "figures": figures})


def _interval_to_dict(one: Interval) -> dict[str, Any]:
    """JSON has no NaN: what is unknown is null."""
    return {name: None if value != value else value for name, value in one._asdict().items()}


def _interval_from_dict(one: Mapping[str, Any]) -> Interval:
    estimate, low, high = (math.nan if one[n] is None else float(one[n]) for n in ("estimate", "low", "high"))
    return Interval(estimate, low, high, one["method"])
