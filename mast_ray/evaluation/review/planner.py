"""Which chunks to annotate next: spread over the day, near the threshold, far from what
is known, or all three in turn.

Legend: N candidate chunks, C channels, D detections. Neighbouring chunks share half their sound: a chunk next
to a chosen (or annotated) one is passed over. Every choice comes with its reason in words.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from mast_ray.evaluation.similarity.neighbours import unit_vectors
from mast_ray.recordings.annotations.model import Annotation, AnnotationSet
from mast_ray.spectrogram.grid import CHUNK_S, seconds_of_hops

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Strategy = Literal["time_balanced", "uncertainty", "coverage", "mixed"]
COVERAGE_CHANNELS = 64


@dataclass(frozen=True, eq=False)
class Candidates:
    """N chunks that could be annotated, and what is known about them."""

    recording_id: Sequence[str]
    chunk: Ints
    hour: Floats  # local hour of day, NaN when unknown
    site: Sequence[str]
    uncertainty: Floats | None = None  # see chunk_uncertainty
    embeddings: NDArray[np.float32] | None = None  # (N, C) of the chunks


class Choice(NamedTuple):
    """One chunk to annotate, in the order of the plan."""

    chunk_id: str
    recording_id: str
    chunk: int
    begin_s: float
    end_s: float
    strategy: str
    reason: str


def doubt(score: ArrayLike, threshold: float) -> Floats:
    """(D,) how doubtful detections are: 1 at the threshold, nearly 0 for a clear yes or no."""
    score = np.clip(np.asarray(score, np.float64), 1e-6, 1 - 1e-6)
    threshold = float(np.clip(threshold, 1e-6, 1 - 1e-6))
    chance = (
        score * (1 - threshold) / (score * (1 - threshold) + threshold * (1 - score))
    )  # 0.5 at the threshold
    return 4 * chance * (1 - chance)


def chunk_uncertainty(
    det_chunk: ArrayLike, det_score: ArrayLike, num_chunks: int, threshold: float
) -> Floats:
    """(N,) doubtful detections per chunk: a detection counts by its `doubt`."""
    weight = doubt(det_score, threshold)
    return np.bincount(np.asarray(det_chunk, np.int64), weights=weight, minlength=num_chunks).astype(
        np.float64
    )


def plan_annotation(
    candidates: Candidates,
    budget: int,
    strategy: Strategy = "mixed",
    known_embeddings: ArrayLike | None = None,
    seed: int = 0,
) -> list[Choice]:
    """At most `budget` chunks, best first; "mixed" takes turns among the
    strategies whose columns are given.
    """
    rng = np.random.default_rng(seed)
    ways: dict[str, Iterator[tuple[int, str]]] = {}
    if strategy in ("time_balanced", "mixed"):
        ways["time_balanced"] = _time_balanced(candidates, rng)
    if strategy == "uncertainty" or (strategy == "mixed" and candidates.uncertainty is not None):
        ways["uncertainty"] = _uncertain_first(candidates, rng)
    if strategy == "coverage" or (strategy == "mixed" and candidates.embeddings is not None):
        ways["coverage"] = _far_first(candidates, known_embeddings, rng)
    taken: set[tuple[str, int]] = set()
    plan: list[Choice] = []
    while ways and len(plan) < budget:
        for name in list(ways):
            if len(plan) == budget:
                break
            for row, reason in ways[name]:
                recording, number = candidates.recording_id[row], int(candidates.chunk[row])
                if all((recording, number + step) not in taken for step in (-1, 0, 1)):
                    taken.add((recording, number))
                    begin_s = float(seconds_of_hops(number))
                    identity = f"{recording}:{number}"
                    plan.append(Choice(identity, recording, number, begin_s, begin_s + CHUNK_S, name, reason))
                    break
            else:
                del ways[name]
    return plan


def _time_balanced(candidates: Candidates, rng: np.random.Generator) -> Iterator[tuple[int, str]]:
    """In turn from the hours of the day, inside an hour in turn from the sites, at random inside those."""
    hour = np.floor(np.nan_to_num(candidates.hour, nan=-1.0)).astype(np.int64)
    _, site = np.unique(np.asarray(candidates.site, object).astype(str), return_inverse=True)
    luck = rng.random(len(hour))
    turn_in_cell = _rank_within(hour * (site.max(initial=0) + 1) + site, luck)
    turn_in_hour = _rank_within(hour, turn_in_cell + luck / 2)
    for row in np.lexsort((luck, turn_in_hour)).tolist():
        when = f"hour {hour[row]:02d}" if hour[row] >= 0 else "an unknown hour"
        where = f" at {candidates.site[row]}" if candidates.site[row] else ""
        yield row, f"{when}{where}, turn {turn_in_hour[row] + 1} of this hour"


def _uncertain_first(candidates: Candidates, rng: np.random.Generator) -> Iterator[tuple[int, str]]:
    if candidates.uncertainty is None:
        raise ValueError("strategy uncertainty needs candidates.uncertainty (see chunk_uncertainty)")
    value = candidates.uncertainty
    for row in np.lexsort((rng.random(len(value)), -value)).tolist():
        yield row, f"{value[row]:.2f} doubtful detections"


def _far_first(
    candidates: Candidates, known: ArrayLike | None, rng: np.random.Generator
) -> Iterator[tuple[int, str]]:
    """k-centre greedy: always the chunk farthest from all that is annotated or
    chosen (Sener and Savarese 2018).
    """
    if candidates.embeddings is None:
        raise ValueError("strategy coverage needs candidates.embeddings")
    vectors = unit_vectors(candidates.embeddings)
    centres = unit_vectors(known) if known is not None and len(np.asarray(known)) else vectors[:0]
    if vectors.shape[1] > COVERAGE_CHANNELS:  # distances survive a random projection, at a tenth of the work
        mixing = rng.normal(size=(vectors.shape[1], COVERAGE_CHANNELS)).astype(np.float32) / np.sqrt(
            COVERAGE_CHANNELS
        )
        vectors, centres = vectors @ mixing, centres @ mixing
    distance = np.full(len(vectors), np.inf, np.float32)
    for start in range(0, len(centres), 256):
        distance = np.minimum(distance, _distances(vectors, centres[start : start + 256]).min(axis=1))
    if not len(centres) and len(vectors):  # nothing is known yet: begin in the middle
        distance = 1e3 - _distances(vectors, vectors.mean(axis=0, keepdims=True))[:, 0]
    open_rows = np.ones(len(vectors), bool)
    for _ in range(len(vectors)):
        row = int(np.argmax(np.where(open_rows, distance, -np.inf)))
        first = distance[row] > 100
        yield (
            row,
            "the most typical chunk"
            if first
            else f"{distance[row]:.2f} away from everything annotated or chosen",
        )
        open_rows[row] = False
        to_row = _distances(vectors, vectors[row : row + 1])[:, 0]
        distance = to_row if first else np.minimum(distance, to_row)


def _distances(first: NDArray[np.float32], second: NDArray[np.float32]) -> NDArray[np.float32]:
    squares = (first**2).sum(axis=1)[:, None] + (second**2).sum(axis=1)[None, :] - 2 * first @ second.T
    return np.sqrt(np.maximum(squares, 0))


def _rank_within(group: Ints, value: Floats) -> Ints:
    """(N,) place of every value among those of its group, from 0."""
    order = np.lexsort((value, group))
    first = np.concatenate([[True], np.diff(group[order]) != 0]) if len(group) else np.zeros(0, bool)
    start = (
        np.maximum.accumulate(np.where(first, np.arange(len(group)), 0))
        if len(group)
        else np.zeros(0, np.int64)
    )
    rank = np.empty(len(group), np.int64)
    rank[order] = np.arange(len(group)) - start
    return rank


def plan_as_annotations(plan: Sequence[Choice], path_of: Mapping[str, str]) -> AnnotationSet:
    """The plan as time-only annotations of whole chunks, to be written as Raven,
    Audacity or AOEF task files.
    """
    tasks = tuple(
        Annotation(
            path_of[choice.recording_id],
            choice.begin_s,
            choice.end_s,
            label="annotate",
            extra={
                "Chunk": choice.chunk_id,
                "Order": str(number),
                "Strategy": choice.strategy,
                "Reason": choice.reason,
            },
        )
        for number, choice in enumerate(plan, start=1)
    )
    return AnnotationSet(tasks, frozenset(task.path for task in tasks))
