"""Annotations in memory: seconds from the start of the recording and hertz, whatever format they came from.

`low_hz` and `high_hz` are None for labels that only say when; no band is invented. `annotated_paths` are
the recordings an expert has gone through, also those in which nothing was found: an empty table is an
annotation. Where only some of a recording was gone through, `spans` say which.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

Said = Literal["call", "uncertain", "no_call"]


@dataclass(frozen=True)
class Annotation:
    path: str  # of the recording, relative to the root, forward slashes
    begin_s: float
    end_s: float
    low_hz: float | None = None
    high_hz: float | None = None
    label: str = ""
    score: float | None = None  # of a detector; None for an expert
    extra: Mapping[str, str] = field(default_factory=dict)  # other columns, as written
    said: Said = "call"  # by its table: a verdict "n" and a table of false positives say no_call

    @property
    def is_time_only(self) -> bool:
        return self.low_hz is None or self.high_hz is None


@dataclass(frozen=True)
class Span:
    """A stretch of a recording that was gone through."""

    path: str
    begin_s: float
    end_s: float
    labels: tuple[str, ...] = ()  # only for these; empty: for everything


@dataclass(frozen=True)
class AnnotationSet:
    annotations: tuple[Annotation, ...] = ()
    annotated_paths: frozenset[str] = frozenset()
    unresolved: tuple[str, ...] = ()  # recordings named in the tables that are nowhere under the root
    num_unresolved: int = 0  # their annotations
    problems: tuple[str, ...] = ()  # rows or files that were left out, and why
    spans: tuple[Span, ...] = ()  # of annotated recordings that were gone through in part; others are wholly
    notes: tuple[str, ...] = ()  # what was taken for granted, to be said

    def by_path(self) -> dict[str, tuple[Annotation, ...]]:
        """Annotations in order of time for every annotated recording, also for those without any."""
        found: dict[str, list[Annotation]] = {path: [] for path in sorted(self.annotated_paths)}
        for annotation in self.annotations:
            found.setdefault(annotation.path, []).append(annotation)
        return {path: tuple(sorted(own, key=lambda a: (a.begin_s, a.end_s))) for path, own in found.items()}


@dataclass(frozen=True)
class AudioFacts:
    """What some formats want to know about a recording when annotations are written."""

    duration_s: float
    sample_rate_hz: int
    num_channels: int = 1


def least_facts(annotations: Sequence[Annotation], paths: Sequence[str]) -> dict[str, AudioFacts]:
    """The shortest duration and lowest rate that hold the annotations, for formats
    that insist where nobody knows.
    """
    ends_s, highest_hz = dict.fromkeys(paths, 0.0), dict.fromkeys(paths, 0.5)
    for annotation in annotations:
        ends_s[annotation.path] = max(ends_s[annotation.path], annotation.end_s)
        highest_hz[annotation.path] = max(highest_hz[annotation.path], annotation.high_hz or 0.0)
    return {path: AudioFacts(ends_s[path], math.ceil(2 * highest_hz[path])) for path in paths}


@dataclass(frozen=True)
class Parsed:
    """What a reader found: `path` of each annotation is the reference as written; ""
    means the table's own recording.
    """

    annotations: tuple[Annotation, ...]
    # references of recordings that were gone through, with or without events; one of which no row can be read is none
    mentioned: tuple[str, ...] = ()
    problems: tuple[str, ...] = ()
    spans: tuple[Span, ...] = ()


def merge_annotations(sets: Sequence[AnnotationSet]) -> AnnotationSet:
    """Several files read together; what one of them went through wholly was gone through wholly."""
    whole = frozenset(
        path for one in sets for path in one.annotated_paths - {span.path for span in one.spans}
    )
    return AnnotationSet(
        annotations=tuple(a for one in sets for a in one.annotations),
        annotated_paths=frozenset().union(*(one.annotated_paths for one in sets)),
        unresolved=tuple(dict.fromkeys(name for one in sets for name in one.unresolved)),
        num_unresolved=sum(one.num_unresolved for one in sets),
        problems=tuple(problem for one in sets for problem in one.problems),
        spans=tuple(dict.fromkeys(span for one in sets for span in one.spans if span.path not in whole)),
        notes=tuple(dict.fromkeys(note for one in sets for note in one.notes)),
    )
