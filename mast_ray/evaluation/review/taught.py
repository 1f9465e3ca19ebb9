"""What a review teaches: calls, background, and all that nobody vouches for.

A box that people call right is a call; one they call wrong is background, in its own seconds and band. A stretch that was
gone through is background wherever it holds no call. Everything else is neither: beside a judged box the rest of
its seconds is marked doubtful, and what was not looked at is not listed as listened to.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple

from mast_ray.evaluation.naming.names import UNKNOWN
from mast_ray.evaluation.review.review_state import AgreedBox, ReviewedBox, Span, recording_key
from mast_ray.spectrogram.grid import FRAME_SHIFT_S, HIGH_HZ

Band = tuple[float, float]


class Region(NamedTuple):
    """A box of a recording; both edges None: time only."""

    path: str
    begin_s: float
    end_s: float
    low_hz: float | None
    high_hz: float | None
    label: str = ""


class Taught(NamedTuple):
    """What can be learned from a review."""

    calls: tuple[Region, ...]
    doubtful: tuple[Region, ...]  # neither call nor background
    listened: tuple[tuple[str, float, float], ...]  # path, begin_s, end_s: outside nothing is known
    num_right: int
    num_wrong: int
    num_disputed: int
    rejected: tuple[
        Region, ...
    ] = ()  # boxes that are no call: a label of before that lies there is none either

    @property
    def paths(self) -> tuple[str, ...]:
        return tuple(sorted({path for path, _, _ in self.listened}))


def taught_by(
    agreed: Iterable[AgreedBox], looked: Mapping[str, Sequence[Span]], path_of: Mapping[str, str]
) -> Taught:
    """Calls, doubtful regions and listened stretches; `looked` is by recording id or path, `path_of` knows the paths of ids."""
    boxes: dict[str, list[AgreedBox]] = defaultdict(list)
    for one in agreed:
        boxes[one.box.path or path_of.get(recording_key(one.box), "")].append(one)
    spans = {path_of.get(key, key): tuple(own) for key, own in looked.items()}
    calls, doubtful, listened, rejected = [], [], [], []
    for path in sorted((boxes.keys() | spans.keys()) - {""}):
        own, gone_through = boxes.get(path, []), spans.get(path, ())
        calls += [
            region_of(one.box, path) for one in own if not one.is_disputed and one.box.verdict == "right"
        ]
        rejected += [
            region_of(one.box, path) for one in own if not one.is_disputed and one.box.verdict == "wrong"
        ]
        doubtful += [region_of(one.box, path) for one in own if one.is_disputed]
        listened += [(path, span.begin_s, span.end_s) for span in gone_through]
        judged = [one.box for one in own if not one.is_disputed and one.box.low_hz is not None]
        for begin_s, end_s, bands in judged_columns(judged, gone_through):
            listened.append((path, begin_s, end_s))
            doubtful += [Region(path, begin_s, end_s, low, high) for low, high in outside_bands(bands)]
    everything = [one for own in boxes.values() for one in own]
    disputed = sum(one.is_disputed for one in everything)
    right = sum(one.box.verdict == "right" and not one.is_disputed for one in everything)
    return Taught(
        tuple(calls),
        tuple(doubtful),
        tuple(sorted(listened)),
        right,
        len(everything) - right - disputed,
        disputed,
        tuple(rejected),
    )


def region_of(box: ReviewedBox, path: str) -> Region:
    """A box as a region; a call whose name nobody knows has none."""
    label = "" if box.label == UNKNOWN else box.label
    return Region(path, box.begin_s, box.end_s, box.low_hz, box.high_hz, label)


def judged_columns(
    boxes: Sequence[ReviewedBox], looked: Sequence[Span]
) -> list[tuple[float, float, tuple[Band, ...]]]:
    """(begin_s, end_s, bands) of the stretches that judged boxes cover outside what was gone through; neighbours with the
    same bands are one.
    """
    edges = sorted(
        {edge for box in boxes for edge in (box.begin_s, box.end_s)}
        | {edge for span in looked for edge in (span.begin_s, span.end_s)}
    )
    columns: list[tuple[float, float, tuple[Band, ...]]] = []
    for begin_s, end_s in pairwise(edges):
        middle_s = (begin_s + end_s) / 2
        if any(span.begin_s <= middle_s <= span.end_s for span in looked):
            continue
        bands = merged_bands(
            (float(box.low_hz or 0.0), float(box.high_hz or HIGH_HZ))
            for box in boxes
            if box.begin_s <= middle_s <= box.end_s
        )
        if not bands:
            continue
        if columns and columns[-1][1] == begin_s and columns[-1][2] == bands:
            columns[-1] = (columns[-1][0], end_s, bands)
        else:
            columns.append((begin_s, end_s, bands))
    return [column for column in columns if column[1] - column[0] >= FRAME_SHIFT_S]


def merged_bands(bands: Iterable[Band]) -> tuple[Band, ...]:
    """The same hertz in rising order, bands that touch made one."""
    out: list[Band] = []
    for low, high in sorted(bands):
        if out and low <= out[-1][1]:
            out[-1] = (out[-1][0], max(out[-1][1], high))
        else:
            out.append((low, high))
    return tuple(out)


def outside_bands(bands: Sequence[Band]) -> list[Band]:
    """What of 0 to 8000 Hz lies in none of the bands."""
    gaps, at_hz = [], 0.0
    for low, high in bands:
        if low > at_hz:
            gaps.append((at_hz, min(low, HIGH_HZ)))
        at_hz = max(at_hz, high)
    return [gap for gap in [*gaps, (at_hz, HIGH_HZ)] if gap[1] > gap[0]]
