"""What a report can hold, as frozen values. Every part is optional: any run gives a valid report.

Times are seconds of a recording, frequencies hertz, shares and scores between 0 and 1.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from mast_ray.reporting.activity import DielMap
from mast_ray.reporting.report.charts import Series

Kind = Literal["miss", "false_alarm", "hit", "detection"]
Outcome = Literal["hit", "miss", "false_alarm", "unknown"]


@dataclass(frozen=True)
class Interval:
    """A figure with the interval that belongs to it; either end may be unknown."""

    value: float | None
    low: float | None = None
    high: float | None = None


Cell = str | int | float | Interval | None


@dataclass(frozen=True)
class ResultTable:
    """A table of figures; `columns` name rows of cells of the same length."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]
    note: str = ""


@dataclass(frozen=True)
class RejectReason:
    reason: str
    detail: str
    num_files: int
    hours: float | None = None


@dataclass(frozen=True)
class Effort:
    """What was offered, what was analysed, and why the rest was not."""

    num_offered: int
    num_analysed: int
    num_rejected: int
    num_salvaged: int
    hours_analysed: float
    hours_offered: float | None = None  # unknown when a rejected file does not even tell its length
    reasons: tuple[RejectReason, ...] = ()
    rejected_files: tuple[tuple[str, str, str], ...] = ()  # path, reason, detail
    num_rejected_shown: int = 0


@dataclass(frozen=True)
class ThresholdCurve:
    """Precision, recall and F1 at rising score thresholds of one split."""

    name: str
    thresholds: tuple[float, ...]
    precision: tuple[float, ...]
    recall: tuple[float, ...]
    f1: tuple[float, ...]
    average_precision: float | None = None


@dataclass(frozen=True)
class Histogram:
    edges: tuple[float, ...]
    counts: tuple[float, ...]


@dataclass(frozen=True)
class Reliability:
    """Share of true detections per bin of stated probability."""

    name: str
    stated: tuple[float, ...]
    observed: tuple[float, ...]
    counts: tuple[int, ...] = ()
    expected_error: float | None = None


@dataclass(frozen=True)
class Trials:
    """Rows of a search: parameters and an objective, one row per trial."""

    names: tuple[str, ...]
    rows: tuple[tuple[float | str | None, ...], ...]
    objective: str
    threshold_name: str | None = None  # the column that is the confidence threshold q


@dataclass(frozen=True)
class Box:
    """One box of an example; times count from the beginning of the recording."""

    kind: Literal["truth", "prediction"]
    begin_s: float
    end_s: float
    low_hz: float
    high_hz: float
    score: float | None = None
    label: str = ""
    box_id: str = ""
    outcome: Outcome = "unknown"


@dataclass(frozen=True)
class Neighbour:
    """A detection that sounds alike, by cosine similarity of embeddings."""

    path: str
    begin_s: float
    end_s: float
    similarity: float
    label: str = ""


@dataclass(frozen=True)
class Example:
    """A few seconds of a recording to look at and to listen to."""

    kind: Kind
    path: str
    site: str
    window_begin_s: float
    window_end_s: float
    boxes: tuple[Box, ...]
    focus: int  # the box that this example is about
    image_uri: str  # data: URI, mel bins upwards, grey values
    audio_uri: str  # data: URI, 16 kHz mono
    when: str = ""  # absolute time of the window, local and UTC
    neighbours: tuple[Neighbour, ...] = ()


@dataclass(frozen=True)
class ReportData:
    """A whole report."""

    title: str
    summary: str = ""
    made_at: str = ""
    facts: tuple[tuple[str, str], ...] = ()  # what was run on what: hashes, versions, thresholds, dates
    stages: ResultTable | None = None
    effort: Effort | None = None
    headline: tuple[tuple[str, Cell], ...] = ()
    units: tuple[tuple[str, str], ...] = ()  # what is counted chunk by chunk and what on whole recordings
    tables: tuple[ResultTable, ...] = ()
    curves: tuple[ThresholdCurve, ...] = ()
    threshold: float | None = None
    overlap: Histogram | None = None  # IoU of true positives
    reliability: tuple[Reliability, ...] = ()
    scores: Histogram | None = None
    analysed_hours_of_scores: float | None = None
    rounds: ResultTable | None = None
    round_curves: tuple[Series, ...] = ()
    label_budget: tuple[Series, ...] = ()
    label_budget_metric: str = "F1"
    trials: Trials | None = None
    sites: ResultTable | None = None
    diel: tuple[DielMap, ...] = ()  # the first is all sites together
    examples: tuple[Example, ...] = ()
    examples_note: str = ""
    warnings: tuple[str, ...] = ()
