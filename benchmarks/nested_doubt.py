"""What doubt about boxes within better ones is worth to a detector (boxes/nesting.py): scored with and without it.

    python benchmarks/nested_doubt.py PREPARED MODEL [MODEL ...] [--splits ood_dev site_ood] [--out nested.json]

Each model detects once in every split; its boxes are then scored as they are and with the doubt, each at the threshold of best F1
on the split that selects. Differences are paired over recordings, with 95 % limits.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from pathlib import Path
from typing import Any

from mast_ray.config.tree import Config
from mast_ray.evaluation.intervals import paired_differences
from mast_ray.evaluation.metrics import best_threshold
from mast_ray.evaluation.scoring import Scored, score_chunks, sums_of
from mast_ray.evaluation.split_truth import selection_split
from mast_ray.inference.chunk_scores import as_detected
from mast_ray.self_training.operator import doubted
from mast_ray.self_training.pool import read_pool
from mast_ray.stages.detect.chunks import ChunkTask, detect_chunks
from mast_ray.stages.runner import HERE
from mast_ray.storage.storage import open_storage
from mast_ray.tables.prepared import open_prepared
from mast_ray.tables.reading.chunk_sets import chunks_of_split
from mast_ray.training.files.shipped import model_folder

WAYS = ("plain", "doubted")
FIGURES = ("f1", "ap_area", "precision", "recall")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("prepared")
    parser.add_argument("models", nargs="+", help="model folders, shipped:tiny or shipped:compact")
    parser.add_argument("--splits", nargs="+", default=["val", "test"])
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    archive = Path(args.prepared).name
    rows = [
        {"model": Path(model).name, "archive": archive, **row}
        for model in args.models
        for row in rows_of(model_folder(model, has_gpu=False), args)
    ]
    if args.out:
        args.out.write_text(json.dumps(rows, indent=1) + "\n")


def rows_of(model: str, args: argparse.Namespace) -> list[dict[str, Any]]:
    """Scores of one model in every split, as they are and with the doubt."""
    config, archive = Config(), open_prepared(args.prepared)
    chooses = selection_split(archive)
    splits = tuple(dict.fromkeys((chooses, *args.splits)))
    scored: dict[str, dict[str, Scored]] = {way: {} for way in WAYS}
    with tempfile.TemporaryDirectory() as out:
        task = ChunkTask(config, model, args.prepared, out, splits, as_detected(config), "repeatable")
        detect_chunks(task, HERE)
        for split in splits:
            chunks = chunks_of_split(archive, split)
            found = read_pool(open_storage(out), archive, chunks)
            for way, boxes in zip(WAYS, (found, doubted(found)), strict=True):
                scored[way][split] = score_chunks(archive, chunks, boxes, config)
    thresholds = {way: best_threshold(scored[way][chooses].matches) for way in WAYS}
    rows = []
    for split in splits:
        sums = [sums_of(scored[way][split], thresholds[way]) for way in WAYS]
        gains = paired_differences(*sums, config.evaluate.bootstrap, config.seed)
        row: dict[str, Any] = {"split": split, "num_truth": scored["plain"][split].matches.num_truth}
        row |= {name: [round(value, 4) for value in gains[name][:3]] for name in FIGURES}
        print(json.dumps({"model": Path(model).name, "thresholds": thresholds, **row}), flush=True)
        rows.append(row | {"thresholds": thresholds, "tuned_on": chooses})
    return rows


if __name__ == "__main__":
    main()
