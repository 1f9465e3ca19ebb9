"""Which labels are calls, which are doubtful, and which are no animal at all.

A label is chosen by its name or a pattern (`Turdus*`), whatever its case. Names that mean no animal in the common
tools (noise, rain, a person's voice, our own task marker) are left out unless they are asked for; codes for "could
not be told" are uncertain: an ignore region, neither call nor background. What became of every label is counted.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from fnmatch import fnmatchcase
from typing import Literal

from mast_ray.config.errors import ConfigError, DataError
from mast_ray.config.tree import LabelsConfig
from mast_ray.recordings.annotations.model import Annotation, AnnotationSet
from mast_ray.tables.labels.cleaning import LabelNote, note_of, possible_boxes, single_boxes
from mast_ray.tables.labels.spans import TASKS, listens_for_all, outside_spans

Role = Literal["call", "uncertain", "no_animal", "left_out"]
SHOWN_LABELS = 12


def _names(text: str) -> frozenset[str]:
    return frozenset(" ".join(name.split()) for name in text.split(","))


# As tools write them: BirdNET's non-event classes, Kaleidoscope's Noise, AviaNZ's Don't Know, our own task
# marker; lower case, with single spaces for any of space, underscore, hyphen, dot and slash.
NO_ANIMAL = _names(
    """
    noise, noises, background, background noise, ambient, ambient noise, silence, silent, nothing, none, empty, no audio,
    no call, nocall, no calls, no animal, no animals, no bird, no birds, no bat, no bats, no sound, no event,
    no class of interest, not of interest, negative, false positive, false positives, false alarm, fp, annotate, listen,
    rain, rainfall, heavy rain, light rain, wind, thunder, storm, water, stream, river, waves, surf,
    airplane, aeroplane, plane, aircraft, helicopter, car, cars, truck, vehicle, vehicles, traffic, motorbike,
    motorcycle, motor, boat, ship, vessel, engine, engines, machine, machinery, chainsaw, siren, gun, gunshot,
    gunshots, fireworks, power tools, music, human, humans, human vocal, human non vocal, human whistle, human voice,
    human speech, voice, voices, speech, talking, people, footsteps, environmental, anthropogenic, anthropophony,
    geophony, mechanical, mechanical noise, electrical noise, electronic noise, static, artifact, artifacts,
    artefact, artefacts, handling noise, mic noise, microphone noise, self noise, glitch,
    ruido, lluvia, viento, ruído, chuva, vento, bruit, pluie, lärm, rauschen, regen
    """
)
UNKNOWN = _names(
    """
    unknown, unk, unkn, unid, unidentified, not identified, noid, no id, uncertain, unsure, undetermined, maybe,
    possible, don't know, dont know, ?, ??, ???, ????, xxxx, mystery mystery, identity unknown
    """
)


@dataclass(frozen=True)
class ChosenLabels:
    """Calls, regions that are neither call nor background, and what to say about the rest."""

    calls: AnnotationSet
    uncertain: tuple[Annotation, ...]
    counts: dict[Role, Counter[str]]
    notes: tuple[LabelNote, ...]
    listens_for_some: bool = False  # and more is asked for: what lies outside the boxes is no background

    def lines(self) -> list[str]:
        """What became of every label, before any work is done with them."""
        paths = {a.path for a in self.calls.annotations}
        named = {span.path for span in self.calls.spans}
        unheard = named - {span.path for span in self.calls.spans if span.end_s > span.begin_s}
        silent = len(self.calls.annotated_paths - paths - unheard)
        calls = len(self.calls.annotations)
        lines = [
            f"labels: {calls:,} calls in {len(paths):,} recordings"
            + (f", {silent:,} more gone through without a call" if silent else "")
            + (f": {_listed(self.counts['call'])}" if self.counts["call"] else "")
        ]
        if alike := _spelled_otherwise(self.counts["call"]):
            lines.append(
                f"  {len(alike):,} names are written in several ways, each of which is a label of its own: {', '.join(alike[:3])}"
            )
        if in_time := sum(a.is_time_only for a in self.calls.annotations):
            lines.append(
                f"  {in_time:,} of them have no frequencies: they teach nothing but time, and that with "
                "labels.time_only=teach only"
            )
        if partly := len(named - unheard):
            lines.append(
                f"  {partly:,} recordings were gone through in part: the rest is neither call nor background"
            )
        if unheard:
            lines.append(
                f"  {len(unheard):,} recordings have a table, and the one of what was gone through (--listened) does not name them: "
                f"neither call nor background (e.g. {min(unheard)})"
            )
        if self.listens_for_some:
            lines.append(
                "  the annotators listened for labels.listened_for only: nothing outside their boxes is background; "
                "labels.include with these names makes it background"
            )
        titles: dict[Role, str] = {
            "uncertain": "uncertain, neither call nor background",
            "no_animal": "no animal by their name, left out (labels.no_animal=keep or labels.include keeps them)",
            "left_out": "left out as chosen by labels.include and labels.exclude",
        }
        for role, title in titles.items():
            if count := sum(self.counts[role].values()):
                lines.append(f"  {count:,} {title}: {_listed(self.counts[role])}")
        return lines + [f"  {note}" for note in self.notes]


def chosen_labels(found: AnnotationSet, knobs: LabelsConfig) -> ChosenLabels:
    """What of an annotation set is a call: possible boxes, by name, each once."""
    possible, notes = possible_boxes(found.annotations)
    named = {a.path for a in found.annotations if role_of(a.label, knobs) != "no_animal"}
    pointed = named - {a.path for a in possible}  # there is a call, and no box of it
    notes += note_of(
        "are all that their recordings have, which therefore count as not gone through",
        [a for a in found.annotations if a.path in pointed],
    )
    notes += note_of(
        "are marked as no call by their table and are left out", [a for a in possible if a.said == "no_call"]
    )
    possible = [a for a in possible if a.said != "no_call"]
    outside = outside_spans(possible, found.spans)
    notes += note_of("lie outside what was gone through and are left out", outside)
    unheard = set(map(id, outside))
    possible = [a for a in possible if id(a) not in unheard]
    refuse_unmatched({a.label for a in possible}, knobs)
    by_role: dict[Role, list[Annotation]] = {"call": [], "uncertain": [], "no_animal": [], "left_out": []}
    for annotation in possible:
        role = role_of(annotation.label, knobs)
        by_role["uncertain" if role == "call" and annotation.said == "uncertain" else role].append(annotation)
    tasks = open_tasks(found, knobs)
    notes += note_of(
        "are tasks (annotate, listen) in tables without anything else: what nobody has begun is not gone through",
        tasks,
    )
    waiting = pointed | {a.path for a in tasks}
    partly = {span.path for span in found.spans} | waiting
    notes += note_of(
        "are tasks (annotate, listen) of a part of a recording that counts as wholly gone through: if only these parts were, "
        "say so with --listened",
        [a for a in found.annotations if is_task(a, knobs) and a.begin_s > 0 and a.path not in partly],
    )
    calls, merged = single_boxes(by_role["call"])
    by_role["call"] = calls
    return ChosenLabels(
        replace(
            found,
            annotations=tuple(calls),
            annotated_paths=found.annotated_paths - waiting,
            spans=tuple(span for span in found.spans if span.path not in waiting),
        ),
        tuple(by_role["uncertain"]),
        {role: Counter(a.label for a in own) for role, own in by_role.items()},
        (*notes, *merged),
        not listens_for_all(knobs.listened_for, knobs),
    )


def open_tasks(found: AnnotationSet, knobs: LabelsConfig) -> list[Annotation]:
    """Task markers of recordings that have nothing else: who finds nothing there takes the marker away."""
    begun = {a.path for a in found.annotations if not is_task(a, knobs)}
    return [a for a in found.annotations if a.path not in begun]


def is_task(annotation: Annotation, knobs: LabelsConfig) -> bool:
    """Whether a box is a marker of our own task files, and no call that is asked for."""
    return _plain(annotation.label) in TASKS and role_of(annotation.label, knobs) != "call"


def refuse_no_calls(found: AnnotationSet, chosen: ChosenLabels, source: str) -> None:
    """Boxes of which not one is a call are no success."""
    if not found.annotations or chosen.calls.annotations:
        return
    left = sum((chosen.counts[role] for role in chosen.counts if role != "call"), Counter[str]())
    why = f"they are {_listed(left)}" if left else str(chosen.notes[0])
    remedy = "choose with --set labels.include=[NAME], or keep every label with --set labels.no_animal=keep"
    raise DataError(
        f"{source}: not one of its {len(found.annotations):,} boxes is a call: {why}\n"
        + (remedy if left else "give tables whose boxes lie around calls, from their begin to their end")
    )


def role_of(label: str, knobs: LabelsConfig) -> Role:
    """What a label is taken for; the user's own lists come before the names known here."""
    if _matches(label, knobs.exclude):
        return "left_out"
    if _matches(label, knobs.uncertain):
        return "uncertain"
    if knobs.include:
        return "call" if _matches(label, knobs.include) else "left_out"
    if is_no_animal(label, knobs):
        return "no_animal"
    if knobs.no_animal == "leave_out" and _plain(label) in UNKNOWN:
        return "uncertain"
    return "call"


def is_no_animal(label: str, knobs: LabelsConfig) -> bool:
    """Whether a name means no animal, and is not asked for all the same."""
    name = _plain(label).removesuffix(" noise")  # "boat noise", but not "frog noise"
    return knobs.no_animal == "leave_out" and name in NO_ANIMAL and not _matches(label, knobs.include)


def refuse_unmatched(labels: Iterable[str], knobs: LabelsConfig) -> None:
    """A pattern that fits no label is a mistake, and would be one that nobody notices."""
    known = sorted(label for label in labels if label)
    for key in ("include", "exclude", "uncertain"):
        for pattern in getattr(knobs, key):
            if known and not any(_matches(label, (pattern,)) for label in known):
                close = get_close_matches(pattern, known, n=1)
                hint = f"did you mean {close[0]!r}?" if close else f"there are {', '.join(known[:8])}"
                raise ConfigError(f"labels.{key} names {pattern!r}, which no label matches:\n{hint}")


def _matches(label: str, patterns: Sequence[str]) -> bool:
    return any(fnmatchcase(label.strip().casefold(), pattern.strip().casefold()) for pattern in patterns)


def _plain(label: str) -> str:
    return re.sub(r"[\s_\-./]+", " ", label.casefold()).strip()


def _spelled_otherwise(labels: Iterable[str]) -> list[str]:
    """Names that differ in nothing but case, spaces and signs, as `Wren and wren`."""
    spelled: dict[str, list[str]] = {}
    for label in sorted(labels):
        spelled.setdefault(_plain(label), []).append(label)
    return [" and ".join(own) for own in spelled.values() if len(own) > 1]


def _listed(counts: Counter[str]) -> str:
    top = [f"{label or '(no label)'} {count:,}" for label, count in counts.most_common(SHOWN_LABELS)]
    return ", ".join(top) + (f", and {len(counts) - SHOWN_LABELS} more" if len(counts) > SHOWN_LABELS else "")
