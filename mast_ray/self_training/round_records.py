"""rounds.json: one row of figures per round of self-training, and the names of its columns.

A figure of a split is {estimate, low, high, method}; in rounds.parquet it is spread over x, x_low and x_high.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

ROUNDS = "rounds.json"
SPLITS = ("site_ood", "temporal_ood", "ood_dev", "test", "val")  # what is looked at first comes first
PSEUDO_LABELS = {
    "pseudo": "expert-labelled part",
    "pool": "what the teacher labelled",
}  # whose truth is known
QUALITY = ("precision", "coverage", "f1")


def score_column(split: str, figure: str) -> str:
    return f"{split}_{figure}"


def quality_column(part: str, figure: str) -> str:
    """Of pseudo-labels: `part` is a key of PSEUDO_LABELS."""
    return f"{part}_{figure}"


def splits_in(row: Mapping[str, Any]) -> list[str]:
    """The splits a row has figures of."""
    return [split for split in SPLITS if score_column(split, "f1") in row]


def rounds_of(document: bytes) -> list[dict[str, Any]]:
    """The rows of a rounds.json."""
    return json.loads(document)["rounds"]


def flat(row: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested objects as dotted columns; {estimate, low, high} becomes x, x_low, x_high; lists are left out."""
    out: dict[str, Any] = {}
    for name, value in row.items():
        full = f"{prefix}{name}"
        if isinstance(value, Mapping) and {"estimate", "low", "high"} <= value.keys():
            out |= {full: value["estimate"], f"{full}_low": value["low"], f"{full}_high": value["high"]}
        elif isinstance(value, Mapping):
            out |= flat(value, f"{full}.")
        elif not isinstance(value, list):
            out[full] = value
    return out
