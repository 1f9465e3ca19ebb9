"""One row of figures per round of self-training: as JSON and Parquet for reports,
and as text for the terminal.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa

from mast_ray.config.tree import Config
from mast_ray.evaluation.figure_tables import interval_text, without_nan
from mast_ray.evaluation.intervals import Interval
from mast_ray.evaluation.metrics import APName
from mast_ray.self_training.round_records import (
    PSEUDO_LABELS,
    QUALITY,
    ROUNDS,
    SPLITS,
    flat,
    quality_column,
    score_column,
    splits_in,
)
from mast_ray.stages.score.evaluate import ModelScores
from mast_ray.storage.storage import Storage
from mast_ray.tables.prepared import write_table

FIGURES = (
    "f1",
    "ap_area",
    "precision",
    "recall",
    "ap_11_point",
    "ap_101_point",
    "mean_iou",
    "f1_macro",
    "time_f1",
)
GAINS = ("f1", "ap_area")  # and the headline's AP
AP_TITLES: dict[APName, str] = {"area": "AP", "11_point": "AP 11 pt", "101_point": "AP 101 pt"}


def round_row(config: Config, number: int, scores: ModelScores, seed: ModelScores) -> dict[str, Any]:
    """Every split at the threshold frozen from validation, and the gain over
    round 0 on the same recordings.
    """
    row: dict[str, Any] = {
        "round": number,
        "threshold": scores.threshold.value,
        "threshold_from": scores.threshold.source,
    }
    table = {name: found for name in SPLITS if (found := scores.sheet.whole(name)) is not None}
    row |= {score_column(n, f): own.figures[f]._asdict() for f in FIGURES for n, own in table.items()}
    if number:
        gains, named = scores.gains_over(seed, config), (*GAINS, f"ap_{config.evaluate.average_precision}")
        row |= {f"{n}_{f}_gain": gains[n][f]._asdict() for n in table for f in dict.fromkeys(named)}
    return row | {f"{name}_num_truth": own.num_truth for name, own in table.items()}


def write_rounds(
    stage: Storage,
    rows: Sequence[Mapping[str, Any]],
    final: Mapping[str, Any] | None = None,
    stopped: str = "",
) -> dict[str, Any]:
    """rounds.json with nested intervals, which is returned, and rounds.parquet
    with x, x_low, x_high columns.
    """
    document = without_nan({"rounds": list(rows), "final": final, "stopped": stopped})
    stage.write_atomic(ROUNDS, json.dumps(document, indent=1).encode())
    wide = [flat(row) for row in rows]
    names = dict.fromkeys(name for row in wide for name in row)
    columns = {name: pa.array([row.get(name) for row in wide]) for name in names}
    write_table(stage, "rounds.parquet", pa.table(columns))
    return document


def rounds_text(rows: Sequence[Mapping[str, Any]], average_precision: APName = "area") -> str:
    """F1 and AP (of the named kind) of every split per round, with intervals;
    pseudo-label figures beside them.
    """
    splits, lines = splits_in(rows[0]), []
    for figure, title in (("f1", "F1"), (f"ap_{average_precision}", AP_TITLES[average_precision])):
        lines.append(f"{title:<10}" + "".join(f"{name:<24}" for name in splits))
        for row in rows:
            cells = (interval_text(_interval(row[score_column(name, figure)])) for name in splits)
            lines.append(f"round {row['round']:<4}" + "".join(f"{cell:<24}" for cell in cells))
    for row in rows[1:]:
        parts = []
        if "boxes_per_chunk" in row:
            parts.append(f"{row['boxes_per_chunk']:.2f} boxes per chunk at q {row['pseudo_threshold']:.3f}")
        for part, title in PSEUDO_LABELS.items():
            if quality_column(part, "f1") in row:
                cells = (f"{f} {interval_text(_interval(row[quality_column(part, f)]))}" for f in QUALITY)
                parts.append(f"{title}: {', '.join(cells)}")
        lines.append(f"pseudo-labels of round {row['round']}: " + "; ".join(parts or ["none"]))
    return "\n".join(lines)


def _interval(figure: Mapping[str, Any]) -> Interval:
    low, high, estimate = (math.nan if figure[n] is None else figure[n] for n in ("low", "high", "estimate"))
    return Interval(estimate, low, high, figure["method"])
