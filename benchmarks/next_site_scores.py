"""Counts per recording of every run of the next-site study, and what follows from them: F1 and AP by split and site,
paired gains between rows with intervals over recordings and over sites, recall by duration and bandwidth.

A run is stored as RUN.npz (arrays, see `counts_of`) and RUN.json (what it was). Nothing here needs the model or the sound again,
so any two rows can be compared later, on any machine.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from mast_ray.evaluation.intervals import limits

Floats = NDArray[np.float64]
SPLITS = {"test": "in-domain", "temporal_ood": "unseen dates", "site_ood": "unseen sites"}
DURATION_EDGES_S = (0.0, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, np.inf)
BANDWIDTH_EDGES_HZ = (0.0, 250.0, 500.0, 1000.0, 2000.0, 4000.0, np.inf)
CELLS_JOINED = 4  # neighbouring cells of the ranking that are stored as one: 512 at most
SCORE_CELLS = 200  # of 0.005: other thresholds than the frozen one can be tried on what is stored
NUM_DRAWS = 2000


def counts_of(scored: Any, threshold: float) -> dict[str, NDArray[Any]]:
    """Everything the tables need of one split: `scored` are its matches (evaluation.scoring.Scored)."""
    from mast_ray.evaluation.scoring import sums_of

    sums = sums_of(scored, threshold)
    truth, taken = scored.truth, scored.matches.detection_index
    is_found = taken >= 0
    is_found[is_found] = scored.matches.score[taken[is_found]] >= threshold
    recording_of_truth = scored.recording_of_group[scored.matches.truth_group]
    site_of_recording = np.array(scored.truth.recordings.site, dtype=str)
    cells = {
        "duration": np.digitize(truth.end_s - truth.begin_s, DURATION_EDGES_S[1:-1]),
        "bandwidth": np.digitize(truth.high_hz - truth.low_hz, BANDWIDTH_EDGES_HZ[1:-1]),
    }
    arrays: dict[str, NDArray[Any]] = {
        "recordings": np.array(scored.truth.recordings.ids, dtype=str),
        "sites": site_of_recording,
        "sums": sums.sums[:, :3].astype(np.float32),  # kept, hits, truths
        "hits": _joined(sums.ranked_hits),
        "alarms": _joined(sums.ranked_alarms),
    }
    score_cell = np.minimum((scored.matches.score * SCORE_CELLS).astype(np.int64), SCORE_CELLS - 1)
    place = scored.recording_of_group[scored.matches.group] * SCORE_CELLS + score_cell
    for name, kept in (("found_at", place), ("hits_at", place[scored.matches.is_true_positive])):
        counted = np.bincount(kept, minlength=sums.num_recordings * SCORE_CELLS)
        arrays[name] = counted.reshape(sums.num_recordings, SCORE_CELLS).astype(np.uint16)
    for name, edges in (("duration", DURATION_EDGES_S), ("bandwidth", BANDWIDTH_EDGES_HZ)):
        size = (sums.num_recordings, len(edges) - 1)
        place = recording_of_truth * size[1] + cells[name]
        arrays[f"{name}_truth"] = (
            np.bincount(place, minlength=size[0] * size[1]).reshape(size).astype(np.uint16)
        )
        found = np.bincount(place[is_found], minlength=size[0] * size[1])
        arrays[f"{name}_found"] = found.reshape(size).astype(np.uint16)
    return arrays


def _joined(cells: sparse.csr_array) -> NDArray[np.uint16]:
    """(R, K / 4) counts."""
    dense = cells.toarray()
    return np.add.reduceat(dense, np.arange(0, dense.shape[1], CELLS_JOINED), axis=1).astype(np.uint16)


def write_run(stem: Path, splits: dict[str, dict[str, NDArray[Any]]], facts: dict[str, Any]) -> None:
    """The arrays first: a run whose JSON is there is whole."""
    arrays = {f"{split}.{name}": array for split, own in splits.items() for name, array in own.items()}
    stem.parent.mkdir(parents=True, exist_ok=True)
    np.savez_compressed(stem.with_suffix(".npz"), **arrays)  # type: ignore[arg-type]
    stem.with_suffix(".json").write_text(json.dumps(facts, indent=1) + "\n")


class Sums(NamedTuple):
    """Counts of R recordings."""

    sums: Floats  # (R, 3) detections kept, hits, truths
    hits: Floats  # (R, K) by score, best first, at all thresholds
    alarms: Floats  # (R, K)


@dataclass(frozen=True, eq=False)
class Run:
    """One row with one seed."""

    row: str
    seed: int
    facts: dict[str, Any]
    arrays: dict[str, NDArray[Any]]

    def sums(self, split: str, sites: Sequence[str] = ()) -> Sums:
        """Sums of the recordings of a split, of some sites only if named."""
        chosen = self.is_at(split, sites)
        columns = ("sums", "hits", "alarms")
        return Sums(*(self.arrays[f"{split}.{name}"][chosen].astype(np.float64) for name in columns))

    def is_at(self, split: str, sites: Sequence[str] = ()) -> NDArray[np.bool_]:
        own = self.arrays[f"{split}.sites"]
        return np.isin(own, list(sites)) if sites else np.ones(len(own), bool)


def read_runs(folder: Path) -> list[Run]:
    """All finished runs below a folder."""
    runs = []
    for path in sorted(folder.rglob("*.json")):
        arrays = path.with_suffix(".npz")
        if not arrays.exists():
            continue
        facts = json.loads(path.read_text())
        with np.load(arrays) as stored:
            runs.append(
                Run(facts["row"], facts["seed"], facts, {name: stored[name] for name in stored.files})
            )
    return runs


class Gain(NamedTuple):
    """Second row minus first, mean over the seeds that both have."""

    estimate: float
    low: float
    high: float
    seeds: int

    def text(self) -> str:
        sure = "**" if self.low > 0 or self.high < 0 else ""
        return f"{sure}{self.estimate:+.3f}{sure} [{self.low:+.3f}, {self.high:+.3f}]"


def paired_gain(
    first: Sequence[Run],
    second: Sequence[Run],
    split: str,
    sites: Sequence[str] = (),
    figure: str = "f1",
    over: str = "recordings",
    seed: int = 0,
) -> Gain | None:
    """Gain of the second row over the first on the same recordings, seed by seed.

    Every draw takes recordings with replacement (`over="sites"`: sites first, then recordings within them), the same for both rows
    and all seeds; what is averaged over seeds is the difference, so the interval speaks of recordings, not of seeds.
    """
    of_first = {run.seed: run for run in first}
    pairs = [(of_first[run.seed], run) for run in second if run.seed in of_first]
    if not pairs:
        return None
    for a, b in pairs:
        is_same = np.array_equal(a.arrays[f"{split}.recordings"], b.arrays[f"{split}.recordings"])
        if not is_same or not np.array_equal(
            a.arrays[f"{split}.sums"][:, 2], b.arrays[f"{split}.sums"][:, 2]
        ):
            raise ValueError(f"{a.row} and {b.row} were not scored on the same calls of {split}")
    place = pairs[0][0].arrays[f"{split}.sites"][pairs[0][0].is_at(split, sites)]
    if len(place) < 2 or (over == "sites" and len(set(place)) < 2):
        return None
    weights = _weights(place, over, np.random.default_rng(seed))
    ones = np.ones((1, len(place)))
    estimate, draws = 0.0, np.zeros(NUM_DRAWS)
    for a, b in pairs:
        sums_a, sums_b = a.sums(split, sites), b.sums(split, sites)
        estimate += float(_figure(sums_b, ones, figure)[0] - _figure(sums_a, ones, figure)[0]) / len(pairs)
        draws += (_figure(sums_b, weights, figure) - _figure(sums_a, weights, figure)) / len(pairs)
    size = len(set(place)) if over == "sites" else len(place)
    return Gain(estimate, *limits(draws, size), len(pairs))


def _weights(place: NDArray[Any], over: str, rng: np.random.Generator) -> Floats:
    """(B, R) how often each recording is drawn."""
    num = len(place)
    weights = np.zeros((NUM_DRAWS, num))
    names = sorted(set(place))
    members = [np.flatnonzero(place == name) for name in names]
    for draw in weights:
        if over == "recordings":
            np.add.at(draw, rng.integers(0, num, num), 1.0)
        else:
            for site in rng.integers(0, len(names), len(names)):
                own = members[int(site)]
                np.add.at(draw, own[rng.integers(0, len(own), len(own))], 1.0)
    return weights


def _figure(sums: Sums, weights: Floats, name: str) -> Floats:
    """(B,) F1 at the frozen threshold (f1), at the best one for these very recordings (best_f1), or the area under the curve of
    precision over recall (ap_area), for (B, R) weights of recordings.
    """
    kept, hits, truths = (weights @ sums.sums[:, :3]).T
    if name == "f1":
        return 2 * hits / np.maximum(kept + truths, 1e-9)
    ranked_hits, ranked_alarms = weights @ sums.hits, weights @ sums.alarms
    found = np.cumsum(ranked_hits, axis=1)
    offered = found + np.cumsum(ranked_alarms, axis=1)
    if name == "best_f1":
        return (2 * found / np.maximum(offered + truths[:, None], 1e-9)).max(axis=1)
    precision = found / np.maximum(offered, 1e-9)
    envelope = np.maximum.accumulate(precision[:, ::-1], axis=1)[:, ::-1]
    return (ranked_hits * envelope).sum(axis=1) / np.maximum(truths, 1e-9)


def mean_figure(runs: Iterable[Run], split: str, sites: Sequence[str] = (), figure: str = "f1") -> float:
    """Mean over seeds."""
    values = []
    for run in runs:
        sums = run.sums(split, sites)
        values.append(float(_figure(sums, np.ones((1, len(sums.sums))), figure)[0]))
    return float(np.mean(values)) if values else float("nan")


def tables(runs: list[Run], order: Sequence[str], rivals: Sequence[str]) -> str:
    """All tables as Markdown, rows in the given order."""
    by_row: dict[str, list[Run]] = {}
    for run in runs:
        by_row.setdefault(run.row, []).append(run)
    rows = [name for name in order if name in by_row] + sorted(set(by_row) - set(order))
    if not rows:
        return "no run is finished yet\n"
    sites = sorted(set(runs[0].arrays["site_ood.sites"].tolist()))
    parts = [_scores_table(by_row, rows, sites), _gains_table(by_row, rows, rivals, sites)]
    parts += [_recall_table(by_row, rows, name) for name in ("duration", "bandwidth")]
    return "\n".join(parts)


def _scores_table(by_row: dict[str, list[Run]], rows: Sequence[str], sites: Sequence[str]) -> str:
    any_run = by_row[rows[0]][0]
    boxes = {split: int(any_run.arrays[f"{split}.sums"][:, 2].sum()) for split in SPLITS}
    columns: list[tuple[str, str, Sequence[str]]] = [
        (f"{title}, {boxes[split]:,} boxes", split, ()) for split, title in SPLITS.items()
    ]
    columns += [(site, "site_ood", (site,)) for site in sites] if len(sites) > 1 else []
    lines = ["F1 (AP area) at the frozen threshold, mean over seeds", ""]
    titles = [title for title, _, _ in columns] + [
        "unseen sites at their best threshold",
        "samples",
        "chunks/s",
    ]
    lines += ["| row | seeds | " + " | ".join(titles) + " |", "|---" * (len(titles) + 2) + "|"]
    for row in rows:
        own = by_row[row]
        cells = [
            f"{mean_figure(own, split, at):.3f} ({mean_figure(own, split, at, 'ap_area'):.3f})"
            for _, split, at in columns
        ]
        cells.append(f"{mean_figure(own, 'site_ood', figure='best_f1'):.3f}")
        facts = [run.facts for run in own]
        samples = int(np.mean([fact.get("samples") or 0 for fact in facts]))
        pace = np.mean([fact.get("chunks_per_s") or np.nan for fact in facts])
        seeds = ",".join(str(run.seed) for run in own)
        lines.append(f"| {row} | {seeds} | " + " | ".join(cells) + f" | {samples:,} | {pace:.0f} |")
    return "\n".join(lines) + "\n"


def _gains_table(
    by_row: dict[str, list[Run]], rows: Sequence[str], rivals: Sequence[str], sites: Sequence[str]
) -> str:
    over_sites = len(sites) > 2
    columns: list[tuple[str, dict[str, Any]]] = [
        ("in-domain", {"split": "test"}),
        ("unseen dates", {"split": "temporal_ood"}),
        ("unseen sites", {"split": "site_ood"}),
        ("unseen sites, AP", {"split": "site_ood", "figure": "ap_area"}),
        ("unseen sites, each at its best threshold", {"split": "site_ood", "figure": "best_f1"}),
    ]
    columns += [("over sites", {"split": "site_ood", "over": "sites"})] if over_sites else []
    columns += [(site, {"split": "site_ood", "sites": (site,)}) for site in sites] if len(sites) > 1 else []
    lines = []
    for rival in rivals:
        if rival not in by_row or len(rows) < 2:
            continue
        lines += [f"Paired gain in F1 over `{rival}`, 95 % interval over recordings (bold: beyond noise)", ""]
        lines += ["| row | seeds | " + " | ".join(title for title, _ in columns) + " |"]
        lines += ["|---" * (len(columns) + 2) + "|"]
        for row in rows:
            if row == rival:
                continue
            gains = [paired_gain(by_row[rival], by_row[row], **how) for _, how in columns]
            seeds = next((gain.seeds for gain in gains if gain), 0)
            if seeds:
                cells = [gain.text() if gain else "" for gain in gains]
                lines.append(f"| {row} | {seeds} | " + " | ".join(cells) + " |")
        lines.append("")
    return "\n".join(lines)


def _recall_table(by_row: dict[str, list[Run]], rows: Sequence[str], name: str) -> str:
    """Recall at the unseen sites by duration or bandwidth of the calls."""
    edges = DURATION_EDGES_S if name == "duration" else BANDWIDTH_EDGES_HZ
    unit = "s" if name == "duration" else "Hz"
    titles = [
        f"< {high:g} {unit}" if np.isfinite(high) else f">= {low:g} {unit}" for low, high in pairwise(edges)
    ]
    truth = by_row[rows[0]][0].arrays[f"site_ood.{name}_truth"].sum(axis=0)
    lines = [f"Recall at the unseen sites by {name} of the calls", ""]
    lines += ["| row | " + " | ".join(f"{t} ({n:,})" for t, n in zip(titles, truth, strict=True)) + " |"]
    lines += ["|---" * (len(titles) + 1) + "|"]
    for row in rows:
        shares = [
            run.arrays[f"site_ood.{name}_found"].sum(axis=0)
            / np.maximum(run.arrays[f"site_ood.{name}_truth"].sum(axis=0), 1)
            for run in by_row[row]
        ]
        lines.append(f"| {row} | " + " | ".join(f"{value:.3f}" for value in np.mean(shares, axis=0)) + " |")
    return "\n".join(lines) + "\n"


def share_of_gap(runs: list[Run], supervised: str, control: str, self_trained: str, ceiling: str) -> str:
    """How much of what the pool's truth would bring self-training brings without it, by the seeds that all four have."""
    names = (supervised, control, self_trained, ceiling)
    seeds = set.intersection(*({run.seed for run in runs if run.row == name} for name in names))
    own: Callable[[str], list[Run]] = lambda name: [  # noqa: E731
        run for run in runs if run.row == name and run.seed in seeds
    ]
    values = {name: mean_figure(own(name), "site_ood") for name in names}
    if any(np.isnan(value) for value in values.values()):
        return ""
    gap = values[ceiling] - values[supervised]
    share = (values[self_trained] - values[supervised]) / gap if abs(gap) > 1e-6 else float("nan")
    return (
        f"Unseen sites: supervised {values[supervised]:.3f}, control {values[control]:.3f}, self-trained "
        f"{values[self_trained]:.3f}, ceiling {values[ceiling]:.3f}: {100 * share:.0f} % of the gap closed.\n"
    )
