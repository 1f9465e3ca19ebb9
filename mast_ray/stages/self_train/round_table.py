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
from mast_ray.evaluation.metrics import APName
from mast_ray.reporting.report.collect_studies import flat
from mast_ray.stages.score.split_scores import ModelScores
from mast_ray.storage.storage import Storage
from mast_ray.tables.prepared import write_table

ROUNDS = "rounds.json"
SHOWN = ("site_ood", "temporal_ood", "ood_dev", "test", "val")  # what is looked at first comes first
FIGURES = ("f1", "ap_area", "precision", "recall", "ap_11_point", "ap_101_point", "mean_iou", "f1_macro")

AP_TITLES: dict[APName, str] = {"area": "AP", "11_point": "AP 11 pt", "101_point": "AP 101 pt"}


def round_row(config: Config, number: int, scores: ModelScores, seed: ModelScores) -> dict[str, Any]:
    """Every split at the threshold frozen from validation, and the gain over
    round 0 on the same recordings.
    """
    table = scores.table
    row: dict[str, Any] = {
        "round": number,
        "threshold": scores.threshold,
        "threshold_from": scores.threshold_from,
    }
    splits = [name for name in SHOWN if name in table]
    row |= {f"{name}_{figure}": table[name][figure] for figure in FIGURES for name in splits}
    if number:
        gains = scores.gains_over(seed, config)
        row |= {f"{name}_{figure}_gain": value for name in splits for figure, value in gains[name].items()}
    return row | {f"{name}_num_truth": table[name]["num_truth"] for name in splits}


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
    splits = [name for name in SHOWN if f"{name}_f1" in rows[0]]
    lines = []
    for figure, title in (("f1", "F1"), (f"ap_{average_precision}", AP_TITLES[average_precision])):
        lines.append(f"{title:<10}" + "".join(f"{name:<24}" for name in splits))
        for row in rows:
            cells = (interval_text(_numbers(row[f"{name}_{figure}"])) for name in splits)
            lines.append(f"round {row['round']:<4}" + "".join(f"{cell:<24}" for cell in cells))
    for row in rows[1:]:
        kinds = [name for name in ("pseudo", "pool") if f"{name}_precision" in row]
        parts = [
            f"{'expert-labelled part' if name == 'pseudo' else 'whole pool'}: "
            + ", ".join(
                f"{f} {interval_text(_numbers(row[f'{name}_{f}']))}" for f in ("precision", "coverage", "f1")
            )
            for name in kinds
        ]
        if "boxes_per_chunk" in row:
            parts.insert(
                0, f"{row['boxes_per_chunk']:.2f} boxes per chunk at q {row['pseudo_threshold']:.3f}"
            )
        lines.append(f"pseudo-labels of round {row['round']}: " + "; ".join(parts or ["none"]))
    return "\n".join(lines)


def _numbers(figure: Mapping[str, float | None]) -> dict[str, float]:
    return {n: math.nan if figure[n] is None else float(figure[n]) for n in ("estimate", "low", "high")}
