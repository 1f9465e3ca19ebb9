"""The leak audit that runs with every split: overlap in time, the same audio under
two names, pool against held-out.

Also the leakage rate of the paper's random chunks: the share of held-out chunks that
share audio with a training chunk.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from itertools import pairwise

from mast_ray.tables.dealing.splits import HELD_OUT, BlockRow, Recording, keys_of

_KIND = {"copy": "duplicate"}


@dataclass(frozen=True)
class Leak:
    """One way in which held-out material reaches training."""

    kind: str  # overlap, duplicate, group, day, site; the same with pool_ before it
    split: str
    count: int  # recordings (duplicates) or blocks (overlaps) concerned
    example: str

    def __str__(self) -> str:
        what = {
            "overlap": "blocks share audio with training blocks",
            "duplicate": "recordings have the same audio as a training recording under another name",
            "group": "recordings are of a group that is trained on",
            "day": "recordings are of a day that is trained on",
            "site": "recordings are of a site that is trained on",
            "pool_overlap": "blocks share audio with the pool",
            "pool_duplicate": "recordings have the same audio as one in the pool under another name",
            "pool_group": "recordings are of a group that is in the pool",
        }[self.kind]
        return f"{self.split}: {self.count} {what} (e.g. {self.example})"


def audit_leaks(rows: Iterable[BlockRow], recordings: Iterable[Recording], unit: str = "") -> list[Leak]:
    """Every leak there is; an empty list is what a split should give. Days and sites are looked at where they are dealt,
    in validation and test.
    """
    rows = list(rows)
    of = {recording.recording_id: recording for recording in recordings}
    found: dict[tuple[str, str], list[str]] = defaultdict(list)
    for kind, is_source in (("", _is_train), ("pool_", _is_pool)):
        for row in _overlapping(rows, is_source):
            found[f"{kind}overlap", row.split].append(row.recording_id)
        spans = _spans(rows, is_source)
        sharers: dict[tuple[str, str], list[str]] = defaultdict(list)
        for rid in spans:
            for key in keys_of(of[rid], unit if not kind else ""):
                sharers[key].append(rid)
        for row in rows:
            if row.split not in HELD_OUT:
                continue
            for bond, value in keys_of(of[row.recording_id], unit if row.split in ("val", "test") else ""):
                if any(
                    rid != row.recording_id and (bond != "copy" or _meets(row, spans[rid]))
                    for rid in sharers.get((bond, value), ())
                ):
                    found[f"{kind}{_KIND.get(bond, bond)}", row.split].append(row.recording_id)
    return [Leak(kind, split, len(set(ids)), ids[0]) for (kind, split), ids in sorted(found.items())]


def with_paths(leaks: Iterable[Leak], path_of: Mapping[str, str]) -> list[Leak]:
    """The same for people, who know recordings by their path and not by their id."""
    return [replace(leak, example=path_of[leak.example]) for leak in leaks]


def heard_before(before: Iterable[BlockRow], rows: Iterable[BlockRow]) -> list[str]:
    """Recordings that are held out now and were in the pool when they were dealt before, unlabelled."""
    pool = {row.recording_id for row in before if row.in_pool and not row.split}
    return sorted({row.recording_id for row in rows if row.split in HELD_OUT} & pool)


def leakage_rate(rows: Iterable[BlockRow]) -> float:
    """Share of the test split's blocks that share audio with a training block."""
    rows = list(rows)
    total = sum(row.split == "test" for row in rows)
    return sum(row.split == "test" for row in _overlapping(rows, _is_train)) / total if total else 0.0


def _is_train(row: BlockRow) -> bool:
    return row.split == "train"


def _is_pool(row: BlockRow) -> bool:
    return row.in_pool


def _overlapping(rows: list[BlockRow], is_source) -> list[BlockRow]:
    """Held-out blocks that overlap in time with a source block of the same recording."""
    merged = _spans(rows, is_source)
    return [row for row in rows if row.split in HELD_OUT and _meets(row, merged.get(row.recording_id, ()))]


def _spans(rows: list[BlockRow], is_source) -> dict[str, list[tuple[float, float]]]:
    """Recording -> stretches of its source blocks."""
    sources: dict[str, list[tuple[float, float]]] = defaultdict(list)
    for row in rows:
        if is_source(row):
            sources[row.recording_id].append((row.begin_s, row.end_s))
    return {rid: _merged(sorted(spans)) for rid, spans in sources.items()}


def _meets(row: BlockRow, spans: Iterable[tuple[float, float]]) -> bool:
    return any(begin < row.end_s - 1e-6 and end > row.begin_s + 1e-6 for begin, end in spans)


def _merged(spans: list[tuple[float, float]]) -> list[tuple[float, float]]:
    out: list[tuple[float, float]] = []
    for begin, end in spans:
        if out and begin <= out[-1][1]:
            out[-1] = (out[-1][0], max(out[-1][1], end))
        else:
            out.append((begin, end))
    assert all(a[1] < b[0] for a, b in pairwise(out))
    return out
