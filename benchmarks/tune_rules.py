"""By which F1 are the settings of post-processing best chosen, and with which threshold delivered, for a site never heard?

    python benchmarks/threshold_rules.py --work DIR --archives 10      # makes the archives and detectors
    python benchmarks/tune_rules.py --work DIR --out tune_rules_two_cores.json

Every detector of those archives, shipped and trained, detects once without suppression; the search of `mast tune` then runs on
validation by the highest F1 of a grid of thresholds and by F1 at the middle threshold (`best_threshold`). F1 in-domain and at the
unseen site is that at the threshold found. Built in: settings by the highest F1, delivered with the middle threshold. Gains are over
what tune did before, paired over archives, with their standard error.
"""

from __future__ import annotations

import argparse
import itertools
import sys
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from threshold_rules import SPLITS, f1_at, tell

from mast_ray.config.tree import Config
from mast_ray.evaluation.matching import Matches
from mast_ray.evaluation.metrics import best_threshold, f1_over_thresholds
from mast_ray.evaluation.scoring import score_chunks
from mast_ray.inference.chunk_scores import unsuppressed
from mast_ray.self_training.operator import PoolDetections, doubted, is_valid, survivors, weighed
from mast_ray.self_training.pool import read_pool
from mast_ray.stages.detect.chunks import ChunkTask, detect_chunks
from mast_ray.stages.runner import HERE
from mast_ray.stages.search.post_processing import SCORE_WEIGHTS, PostSetting, settings_grid
from mast_ray.storage.storage import open_storage
from mast_ray.tables.prepared import Prepared, open_prepared
from mast_ray.tables.reading.chunk_sets import ChunkSet, chunks_of_split
from mast_ray.training.files.model_files import read_card
from mast_ray.verbs.main import config_of

Rule = Callable[[Matches], tuple[float, float]]  # (threshold, F1 there)
BEFORE, UNTUNED = "highest F1 of the grid, and its threshold", "not tuned"


def of_grid(matches: Matches) -> tuple[float, float]:
    """What `mast tune` did: the first of 200 thresholds with the highest F1."""
    grid = np.linspace(0.01, 1.0, 200)
    f1 = np.nan_to_num(f1_over_thresholds(matches, grid).f1)
    return float(grid[f1.argmax()]), float(f1.max())


def of_middle(matches: Matches) -> tuple[float, float]:
    """The threshold that training freezes."""
    threshold = best_threshold(matches)
    return threshold, f1_at(matches, threshold) if np.isfinite(threshold) else 0.0


def searched(matches_of: Callable[[PostSetting], Matches], rule: Rule) -> PostSetting:
    """The setting that the search of `mast tune` finds by a rule: weights of the score and doubt are tried last."""

    def best(settings: list[PostSetting]) -> PostSetting:  # the first among equals
        return max(settings, key=lambda one: rule(matches_of(one))[1])

    found = best(settings_grid())
    found = best([found, *(replace(found, score_weight=weight) for weight in SCORE_WEIGHTS)])
    return best([found, replace(found, doubts_nested=True)])


def rules_of(
    matches_of: Callable[[str, PostSetting], Matches], plain: PostSetting
) -> dict[str, dict[str, Any]]:
    """Rule -> the setting and threshold it finds on validation, and F1 on the tested splits."""
    val = partial(matches_of, "val")
    before, now = searched(val, of_grid), searched(val, of_middle)
    found = {
        UNTUNED: (plain, of_middle),
        BEFORE: (before, of_grid),
        "highest F1 of the grid, and the middle threshold": (before, of_middle),
        "F1 at the middle threshold, and that": (now, of_middle),
        "F1 at the middle threshold, and that of the grid": (now, of_grid),
    }
    rows: dict[str, dict[str, Any]] = {}
    for name, (setting, rule) in found.items():
        threshold = rule(val(setting))[0]
        rows[name] = {"setting": list(vars(setting).values()), "threshold": threshold} | {
            shown: f1_at(matches_of(split, setting), threshold) for split, shown in SPLITS.items()
        }
    return rows


def one_archive(place: Path) -> dict[str, Any]:
    """Detector -> rule -> what it finds."""
    torch.set_num_threads(1)
    config = config_of("tiny", [], [])
    found: dict[str, Any] = {"archive": place.name}
    for name in ("shipped", "trained"):
        model, prepared, out = (
            model_of(place, name),
            str(place / "prepared"),
            str(place / f"candidates_{name}"),
        )
        task = ChunkTask(config, model, prepared, out, ("val", *SPLITS), unsuppressed(config), "repeatable")
        detect_chunks(task, HERE)
        stored = {split: stored_candidates(place, name, (split,)) for split in ("val", *SPLITS)}

        @cache
        def matches_of(split: str, setting: PostSetting, stored: Any = stored) -> Matches:
            archive, chunks, pool = stored[split]
            return score_chunks(archive, chunks, processed(config, pool, setting), config).matches

        plain = plain_setting(place, name)
        found[name] = rules_of(matches_of, plain)
        found["num_calls"] = matches_of("val", plain).num_truth
    return found


def model_of(place: Path, name: str) -> str:
    shipped = Path(__file__).parents[1] / "mast_ray" / "weights" / "tiny"
    return str(shipped if name == "shipped" else place / "detector")


def plain_setting(place: Path, name: str) -> PostSetting:
    """What the detector does before it is tuned."""
    return PostSetting(0.5, 0.0, 1, doubts_nested=read_card(model_of(place, name)).doubts_nested)


def stored_candidates(
    place: Path, name: str, splits: tuple[str, ...]
) -> tuple[Prepared, ChunkSet, PoolDetections]:
    """What a detector has found in some splits, without suppression."""
    archive = open_prepared(str(place / "prepared"))
    chunks = chunks_of_split(archive, *splits)
    pool = read_pool(open_storage(str(place / f"candidates_{name}")), archive, chunks, with_parts=True)
    return archive, chunks, pool


def processed(config: Config, found: PoolDetections, setting: PostSetting) -> PoolDetections:
    """Candidates as a tuned detector gives them."""
    scores = weighed(found, setting.score_weight)
    kept = scores.where(survivors(scores, setting.nms_overlap, config.evaluate.max_detections))
    kept = doubted(kept) if setting.doubts_nested else kept
    return kept.where(is_valid(kept, setting.validity))


def summary(archives: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """A line per detector, split and rule: mean F1 over archives, and its gain over what tune did before."""
    lines = []
    for name, shown in itertools.product(("shipped", "trained"), SPLITS.values()):
        base = np.array([one[name][BEFORE][shown] for one in archives])
        for rule in archives[0][name]:
            gain = np.array([one[name][rule][shown] for one in archives]) - base
            error = float(gain.std(ddof=1) / len(gain) ** 0.5) if len(gain) > 1 else None
            lines.append({"detector": name, "split": shown, "rule": rule, "f1": float((base + gain).mean()),
                          "gain": float(gain.mean()), "standard_error": error})  # fmt: skip
    return lines


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--work", type=Path, required=True, help="folder of threshold_rules.py")
    parser.add_argument("--archives", type=int, help="the first so many of them")
    parser.add_argument("--parallel", type=int, default=2)
    parser.add_argument("--out", type=Path, help="write the figures as JSON")
    args = parser.parse_args()
    places = sorted(args.work.glob("archive*"))[: args.archives]
    with ProcessPoolExecutor(args.parallel) as pool:
        archives = list(pool.map(one_archive, places))
    tell(summary(archives), archives, args.out)
    return 0


if __name__ == "__main__":
    sys.exit(main())
