"""What was gone through: outside it, a recording is neither truth nor background.

Some tables say where a person listened: clips of an annotation project, a column or a table of intervals, or "only these
species". A call that lies outside is no truth, because nobody vouches for its neighbours. Where only some
species were listened for and a detector of more is wanted, their boxes are truth and all the rest is ignored.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from fnmatch import fnmatchcase

from mast_ray.config.tree import LabelsConfig
from mast_ray.recordings.annotations.model import Annotation, AnnotationSet, Span
from mast_ray.spectrogram.grid import FRAME_SHIFT_S

# the markers of our own task files (`mast label-budget plan`) and of where to listen first (`mast listen`)
TASKS = frozenset({"annotate", "listen"})
SHORTEST_GAP_S = FRAME_SHIFT_S
Interval = tuple[float, float]


def with_listened(found: AnnotationSet, listened: AnnotationSet) -> AnnotationSet:
    """Annotations with a table of what was gone through: it is the whole truth about that, recordings without a
    box included; a recording it does not name was not gone through at all. A task in one that it names is done.
    """
    spans = list(listened.spans)
    unnamed = found.annotated_paths - listened.annotated_paths
    spans += [Span(path, 0.0, 0.0) for path in sorted(unnamed)]
    return replace(
        found,
        annotations=tuple(
            a for a in found.annotations if a.label not in TASKS or a.path not in listened.annotated_paths
        ),
        annotated_paths=found.annotated_paths | listened.annotated_paths,
        unresolved=tuple(dict.fromkeys((*found.unresolved, *listened.unresolved))),
        problems=(*found.problems, *listened.problems),
        spans=tuple(spans),
    )


def outside_spans(annotations: Iterable[Annotation], spans: Sequence[Span]) -> list[Annotation]:
    """Those whose middle lies in a recording that was gone through in part, and not in that part."""
    of_path: dict[str, list[Interval]] = defaultdict(list)
    for span in spans:
        of_path[span.path].append((span.begin_s, span.end_s))
    return [
        a
        for a in annotations
        if a.path in of_path
        and not any(begin_s <= (a.begin_s + a.end_s) / 2 <= end_s for begin_s, end_s in of_path[a.path])
    ]


def unheard_parts(
    found: AnnotationSet, durations_s: Mapping[str, float], knobs: LabelsConfig
) -> dict[str, list[Interval]]:
    """Of every annotated recording the parts that are no background: never gone through, or for other species only."""
    of_path: dict[str, list[Span]] = defaultdict(list)
    for span in found.spans:
        of_path[span.path].append(span)
    parts = {}
    for path in sorted(found.annotated_paths & durations_s.keys()):
        own = of_path.get(path) or [Span(path, 0.0, durations_s[path])]
        heard = [
            (span.begin_s, span.end_s)
            for span in own
            if listens_for_all(span.labels or knobs.listened_for, knobs)
        ]
        if gaps := complement(heard, durations_s[path]):
            parts[path] = gaps
    return parts


def listens_for_all(listened_for: Sequence[str], knobs: LabelsConfig) -> bool:
    """Whether who listened for some labels (none: for all) would have marked every call that is asked for."""
    if not listened_for:
        return True
    return bool(knobs.include) and all(
        any(fnmatchcase(wanted.casefold(), pattern.casefold()) for pattern in listened_for)
        for wanted in knobs.include
    )


def complement(intervals: Iterable[Interval], duration_s: float) -> list[Interval]:
    """What of [0, duration] lies in none of the intervals; gaps under a frame do not count."""
    gaps, at_s = [], 0.0
    for begin_s, end_s in sorted(intervals):
        if begin_s - at_s >= SHORTEST_GAP_S:
            gaps.append((at_s, min(begin_s, duration_s)))
        at_s = max(at_s, end_s)
        if at_s >= duration_s:
            break
    if duration_s - at_s >= SHORTEST_GAP_S:
        gaps.append((at_s, duration_s))
    return [(begin_s, end_s) for begin_s, end_s in gaps if end_s - begin_s >= SHORTEST_GAP_S]
