"""The labels of a run's detections as a table of the report: how often each calls, when most, how sure its name is."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from mast_ray.reporting.report.contents import Interval, ResultTable
from mast_ray.reporting.summaries import summarise_labels

NOTE = (
    "Names by the model (`mast classify`), unknown where it is not sure; the label score is the chance that a name is "
    "right. Below each rate its 95 % interval, by resampling recordings."
)


def labels_table(recordings: pa.Table, detections: pa.Table) -> ResultTable | None:
    """Calls of every label over all sites, their rate and the hour they are most frequent in; None without names."""
    summary = summarise_labels(recordings, detections)
    if summary is None:
        return None
    by_label, busiest = summary
    scores: dict[str, list[float]] = {}
    for label, score in zip(
        *(detections.column(n).to_pylist() for n in ("label", "label_score")), strict=True
    ):
        if label and score is not None:
            scores.setdefault(label, []).append(score)
    rows = []
    for row in sorted(by_label.to_pylist(), key=lambda row: (-row["calls"], row["label"])):
        rate = Interval(row["calls_per_hour"], row["low_95"], row["high_95"])
        hour = busiest.get(row["label"], -1)
        chance = float(np.median(scores[row["label"]])) if scores.get(row["label"]) else None
        rows.append((row["label"], row["calls"], rate, f"{hour:02d} h" if hour >= 0 else "–", chance))
    columns = ("label", "detections", "per hour", "busiest hour", "median label score")
    return ResultTable("Labels", columns, tuple(rows), NOTE)
