"""Search over post-processing: q policy and value, suppression, validity and how scores are made, over
stored detections and without new inference.

The boxes are a model's candidates before any suppression, so that each setting suppresses once, as the detector itself
would with it. A match made once holds at every threshold (evaluation/matching.py), so each suppression and validity
costs one matching, and a thousand thresholds on top of it cost milliseconds. Settings are compared by their highest F1 on
validation or `ood_dev`, never on a test split, and delivered with the threshold that is frozen everywhere
(`chosen_threshold`): compared by F1 at that one they are worse elsewhere (docs/measured/first_minutes.md).
"""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from mast_ray.config.errors import DataError
from mast_ray.config.tree import Config
from mast_ray.evaluation.figure_tables import csv_bytes, without_nan
from mast_ray.evaluation.metrics import f1_over_thresholds, summarise
from mast_ray.evaluation.score_sheet import chosen_threshold
from mast_ray.evaluation.scoring import score_chunks
from mast_ray.evaluation.split_truth import scored_splits
from mast_ray.self_training.operator import (
    EVEN_WEIGHT,
    PoolDetections,
    Validity,
    at_threshold,
    doubted,
    is_valid,
    survivors,
    weighed,
)
from mast_ray.self_training.policies import Policy, group_thresholds
from mast_ray.self_training.pool import ChunkGroups, chunk_groups, read_pool
from mast_ray.spectrogram.grid import fractional_frames
from mast_ray.stages.search.site_thresholds import SiteThresholds, thresholds_by_site
from mast_ray.storage.storage import Storage
from mast_ray.tables.prepared import Prepared, write_table
from mast_ray.tables.reading.chunk_sets import ChunkSet, box_table, chunks_of_split
from mast_ray.training.files.post_processing import PostProcessing

OVERLAPS = (0.3, 0.4, 0.5, 0.6, 0.7)
DURATIONS_S = (0.0, 0.05, 0.1)
BINS = (1, 2, 3)
SCORE_WEIGHTS = (0.0, 0.25, 0.4, 0.6, 0.75, 1.0)  # of classification; the detector's own is 0.5
GROUP_POLICIES: tuple[Policy, ...] = ("per_group_mixture", "per_group_quantile")
TRIALS, CURVE, BEST = "post_trials.parquet", "thresholds.csv", "post.json"


@dataclass(frozen=True)
class PostSetting:
    """Post-processing apart from the threshold."""

    nms_overlap: float
    min_duration_s: float
    min_bins: int
    score_weight: float = EVEN_WEIGHT
    doubts_nested: bool = False  # boxes/nesting.py

    @property
    def validity(self) -> Validity:
        """Of detections: what fills a chunk may be the middle of a long call."""
        return Validity(float(fractional_frames(self.min_duration_s)), self.min_bins, math.inf)


@dataclass(frozen=True, eq=False)
class PostSearch:
    """Everything that was tried, the best of it, and F1 over thresholds for the
    best suppression and validity.
    """

    rows: list[dict[str, Any]]
    best: dict[str, Any]
    curve: dict[str, NDArray[np.float64]]
    by_site: SiteThresholds  # at the best setting of one threshold

    def overrides(self) -> dict[str, Any]:
        """The best setting as config keys."""
        names = ("policy", "threshold", "nms_overlap", "min_duration_s", "min_bins", "score_weight")
        return {f"self_train.{name}": self.best[name] for name in names} | {
            "evaluate.nms_overlap": self.best["nms_overlap"]
        }

    def delivered(self, split: str) -> PostProcessing:
        """The best setting as a model's card carries it: with one threshold, or with one for each of the sites that were
        looked at. Policies that make thresholds of all scores of an archive stay out: nobody has these while it is being
        detected in.
        """
        best = best_fixed(self.rows)
        names = ("nms_overlap", "min_duration_s", "min_bins", "threshold", "score_weight", "doubts_nested")
        return PostProcessing(
            **{name: best[name] for name in names}, split=split, f1=self.by_site.f1,
            site_thresholds=self.by_site.thresholds,
        )  # fmt: skip


def best_fixed(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Of all that was tried the best with one threshold for all."""
    fixed = [row for row in rows if row["policy"] == "fixed"]
    return max(fixed, key=_highest_f1)


def _highest_f1(row: dict[str, Any]) -> float:
    return float(np.nan_to_num(row["highest_f1"], nan=-1.0))


def settings_grid() -> list[PostSetting]:
    return [PostSetting(*values) for values in itertools.product(OVERLAPS, DURATIONS_S, BINS)]


def search_post(
    config: Config,
    prepared: Prepared,
    chunks: ChunkSet,
    found: PoolDetections,
    settings: Sequence[PostSetting] | None = None,
) -> PostSearch:
    """Try every setting at `tune.thresholds` thresholds, and the policies by group, on chunks whose labels are known.
    `objective` is F1 with the threshold of the row, by `highest_f1` rows are compared: one policy by group has one F1.

    How classification and centerness make a score, and doubt about boxes within better ones, are tried last, at the best suppression
    and validity: all of them together would take ten times as long.
    """
    thresholds = np.linspace(config.evaluate.score_floor, 1.0, config.tune.thresholds)
    groups = chunk_groups(prepared, chunks)
    rows: list[dict[str, Any]] = []
    curves = []
    suppressed: dict[tuple[float, float, bool], PoolDetections] = {}

    def best_row() -> int:  # the first among equals: the simplest
        return max(range(len(rows)), key=lambda n: _highest_f1(rows[n]))

    def kept_by(setting: PostSetting) -> PoolDetections:
        place = (setting.nms_overlap, setting.score_weight, setting.doubts_nested)
        if place not in suppressed:
            scores = weighed(found, setting.score_weight)
            survive = survivors(scores, setting.nms_overlap, config.evaluate.max_detections)
            kept = scores.where(survive)
            suppressed[place] = doubted(kept) if setting.doubts_nested else kept
        possible = suppressed[place]
        return possible.where(is_valid(possible, setting.validity))

    def attempt(setting: PostSetting) -> None:
        possible = kept_by(setting)
        scored = score_chunks(prepared, chunks, possible, config)
        threshold = chosen_threshold(None, None, scored).value
        curve = f1_over_thresholds(scored.matches, np.union1d(thresholds, threshold))
        at = int(np.searchsorted(curve.threshold, threshold))
        highest = float(np.nan_to_num(curve.f1, nan=-1.0).max())
        base = asdict(setting)
        rows.append(base | {"policy": "fixed", "threshold": threshold, "objective": float(curve.f1[at]), "highest_f1": highest,
                            "precision": float(curve.precision[at]), "recall": float(curve.recall[at])})  # fmt: skip
        curves.append(curve)
        for policy in GROUP_POLICIES:
            kept = at_policy(policy, possible, groups, threshold, config.self_train.min_group_detections)
            metrics = summarise(score_chunks(prepared, chunks, kept, config).matches, 0.0)
            rows.append(base | {"policy": policy, "threshold": threshold, "objective": metrics.f1, "highest_f1": metrics.f1,
                                "precision": metrics.precision, "recall": metrics.recall})  # fmt: skip

    for setting in settings or settings_grid():
        attempt(setting)
    if found.parts is not None:
        best = rows[best_row()]
        for weight in SCORE_WEIGHTS:
            attempt(PostSetting(best["nms_overlap"], best["min_duration_s"], best["min_bins"], weight))
    best = best_fixed(rows)
    plain = (best["nms_overlap"], best["min_duration_s"], best["min_bins"], best["score_weight"])
    attempt(PostSetting(*plain, True))
    number = best_row()
    fixed = best_fixed(rows)
    possible = kept_by(PostSetting(**{name: fixed[name] for name in PostSetting.__dataclass_fields__}))
    matches = score_chunks(prepared, chunks, possible, config).matches
    sites = [site or "" for site in prepared.recordings.column("site").to_pylist()]
    recordings = chunks.recording.astype(np.int64)
    by_site = thresholds_by_site(matches, recordings, sites, fixed["threshold"])
    return PostSearch(rows, rows[number], curves[number // (1 + len(GROUP_POLICIES))]._asdict(), by_site)


def at_policy(
    policy: Policy, possible: PoolDetections, groups: ChunkGroups, threshold: float, min_detections: int
) -> PoolDetections:
    """Candidates above the threshold that a policy gives to their group."""
    kept_share = float((possible.score >= threshold).mean()) if len(possible.score) else 0.0
    chosen = group_thresholds(
        policy,
        possible.score,
        groups.group[possible.chunk],
        groups.site_of_group,
        threshold,
        kept_share,
        min_detections,
    )
    return at_threshold(possible, chosen.threshold[groups.group])


def objective_chunks(prepared: Prepared, split: str) -> ChunkSet:
    """Chunks of the split that is searched on, which must hold a call: without one every setting is as good as any other."""
    if split not in scored_splits(prepared):
        raise DataError(
            f"{prepared.storage.url} has no split {split} to search on: "
            f"it has {', '.join(scored_splits(prepared)) or 'none'}\nuse --set tune.objective_split=val, or deal one with `mast split`"
        )
    chunks = chunks_of_split(prepared, split)
    if not box_table(prepared, chunks, prepared.labels).counts().any():
        raise DataError(
            f"none of the labels of {prepared.storage.url} lies in {split}: there is nothing to search by\n"
            "label more recordings, or deal them again with `mast split`, e.g. --set seed=1"
        )
    return chunks


def run_post_search(config: Config, prepared: Prepared, detections: Storage, out: Storage) -> PostSearch:
    """Search over the detections of a finished stage and leave tables of everything tried."""
    chunks = objective_chunks(prepared, config.tune.objective_split)
    found = read_pool(detections, prepared, chunks, with_parts=True)
    search = search_post(config, prepared, chunks, found)
    write_table(out, TRIALS, pa.Table.from_pylist(search.rows))
    out.write_atomic(CURVE, csv_bytes(tuple(search.curve), zip(*search.curve.values(), strict=True)))
    document = {"split": config.tune.objective_split, "best": search.best, "settings": search.overrides()}
    out.write_atomic(BEST, json.dumps(without_nan(document), indent=1).encode())
    return search
