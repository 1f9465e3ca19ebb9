"""What a log of corrections comes to: the boxes of every reviewer, the boxes people agree on, and what was looked at.

Boxes are seconds and hertz. A reviewer's last word on a box counts. Two reviewers' drawn boxes (or a drawn box
and a detection) are one call when they overlap by at least half (intersection over union).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal, NamedTuple

import torch

from mast_ray.boxes.geometry import paired_iou
from mast_ray.evaluation.naming.names import UNKNOWN
from mast_ray.evaluation.review.corrections import Action, standing

Verdict = Literal["right", "wrong"]
SAME_CALL_IOU = 0.5


@dataclass(frozen=True)
class ReviewedBox:
    """A reviewer's last word on one box."""

    box_id: str
    detection_id: str  # "" for a drawn box
    recording_id: str
    path: str
    begin_s: float
    end_s: float
    low_hz: float | None
    high_hz: float | None
    label: str  # "" for none
    verdict: Verdict
    score: float | None
    queue: str  # in which it was met first; "random" when it was ever drawn at random
    reviewer: str
    time: str
    is_changed: bool = False  # corners are the reviewer's, not the detector's


class Span(NamedTuple):
    """A stretch of a recording that was gone through."""

    begin_s: float
    end_s: float


@dataclass(frozen=True)
class ReviewState:
    """What one reviewer has said; recordings by id (by path where a log names no id)."""

    reviewer: str
    boxes: Mapping[str, ReviewedBox]  # by box_id, in the order of the first word on each
    spans: Mapping[str, tuple[Span, ...]]  # by recording: in order of time, none touching another

    @cached_property
    def by_recording(self) -> dict[str, list[ReviewedBox]]:
        found: dict[str, list[ReviewedBox]] = {}
        for box in self.boxes.values():
            found.setdefault(recording_key(box), []).append(box)
        return found


@dataclass(frozen=True)
class AgreedBox:
    """One call (or false alarm) in the words of all who judged it."""

    box: ReviewedBox  # corners and name of the latest reviewer of the majority; its verdict is the majority's
    num_right: int
    num_wrong: int
    names: tuple[str, ...]  # different names given by those who say right, most frequent first

    @property
    def is_disputed(self) -> bool:
        """As many say right as wrong: not to be learned from, to be talked about."""
        return self.num_right == self.num_wrong

    @property
    def has_several_names(self) -> bool:
        """A call that its reviewers name differently; where no name has most voices it goes without (`box.label` is "")."""
        return self.box.verdict == "right" and not self.is_disputed and len(self.names) > 1


def recording_key(record: Action | ReviewedBox) -> str:
    return record.recording_id or record.path


def fold_log(actions: Sequence[Action]) -> dict[str, ReviewState]:
    """Each reviewer's state, by name."""
    own: dict[str, list[Action]] = {}
    for action in standing(actions):
        own.setdefault(action.reviewer, []).append(action)
    return {reviewer: _fold_one(reviewer, own[reviewer]) for reviewer in sorted(own)}


def _fold_one(reviewer: str, actions: Iterable[Action]) -> ReviewState:
    boxes: dict[str, ReviewedBox] = {}
    spans: dict[str, list[Span]] = {}
    for action in actions:
        if action.action == "looked":
            spans.setdefault(recording_key(action), []).append(Span(action.begin_s, action.end_s))
        else:
            before = boxes.get(action.box_id)
            box = _after(before, action)
            if box is not None:
                boxes[action.box_id] = box
    drawn_back = [i for i, box in boxes.items() if not box.detection_id and box.verdict == "wrong"]
    for box_id in drawn_back:  # a drawn box that is rejected was a slip of the hand
        del boxes[box_id]
    return ReviewState(reviewer, boxes, {key: merged_spans(found) for key, found in spans.items()})


def _after(before: ReviewedBox | None, action: Action) -> ReviewedBox | None:
    """The box after one more action; None where its drawing was taken back."""
    if before is None and not action.detection_id and action.action != "draw":
        return None
    verdict: Verdict = "wrong" if action.action == "reject" else "right"
    is_changed = action.action in ("change", "draw") or (before is not None and before.is_changed)
    said = ReviewedBox(
        action.box_id, action.detection_id, action.recording_id, action.path,
        action.begin_s, action.end_s, action.low_hz, action.high_hz, action.label,
        verdict, action.score, action.queue, action.reviewer, action.time, is_changed,
    )  # fmt: skip
    if before is None:
        return said
    if action.queue != "random":
        said = replace(said, queue=before.queue)
    if action.action in ("accept", "reject", "name"):  # these say nothing about corners
        said = replace(said, begin_s=before.begin_s, end_s=before.end_s, low_hz=before.low_hz,
                       high_hz=before.high_hz)  # fmt: skip
    if action.action in ("accept", "reject", "change"):  # nor these about the name
        said = replace(said, label=before.label)
    return said


def merged_spans(spans: Iterable[Span]) -> tuple[Span, ...]:
    """The same stretches in order of time, those that touch made one."""
    out: list[Span] = []
    for span in sorted(spans):
        if out and span.begin_s <= out[-1].end_s:
            out[-1] = Span(out[-1].begin_s, max(out[-1].end_s, span.end_s))
        else:
            out.append(span)
    return tuple(out)


def said_on_both(first: ReviewState | None, second: ReviewState) -> ReviewState:
    """What one person said in two logs; of a box that both judge, the second's word."""
    if first is None:
        return second
    spans = {
        key: merged_spans((*first.spans.get(key, ()), *second.spans.get(key, ())))
        for key in {**first.spans, **second.spans}
    }
    return ReviewState(second.reviewer, {**first.boxes, **second.boxes}, spans)


def looked_at(states: Mapping[str, ReviewState]) -> dict[str, tuple[Span, ...]]:
    """Per recording, what at least one reviewer has gone through."""
    found: dict[str, list[Span]] = {}
    for state in states.values():
        for key, spans in state.spans.items():
            found.setdefault(key, []).extend(spans)
    return {key: merged_spans(spans) for key, spans in found.items()}


def agreed_boxes(states: Mapping[str, ReviewState]) -> list[AgreedBox]:
    """Every box that somebody judged or drew, once, in order of recording and time.

    A detection is judged by those who gave a verdict on it. A drawn box has the voice of everybody who drew
    one there, and against it those who went through that stretch and marked no call there.
    """
    judged: dict[str, list[ReviewedBox]] = {}
    drawn: list[ReviewedBox] = []
    for state in states.values():
        for box in state.boxes.values():
            if box.detection_id:
                judged.setdefault(box.detection_id, []).append(box)
            else:
                drawn.append(box)
    out = [_agreed(voices, 0) for voices in judged.values()]
    for group in _same_calls(drawn):
        voices = {box.reviewer for box in group}
        against = sum(
            reviewer not in voices and _went_past(state, group[0]) for reviewer, state in states.items()
        )
        out.append(_agreed(group, against))
    return sorted(out, key=lambda a: (a.box.path, a.box.begin_s, a.box.end_s, a.box.box_id))


def _agreed(voices: Sequence[ReviewedBox], num_silent_against: int) -> AgreedBox:
    right = [box for box in voices if box.verdict == "right"]
    wrong = [box for box in voices if box.verdict == "wrong"]
    num_wrong = len(wrong) + num_silent_against
    voices_for = Counter(box.label for box in right if box.label not in ("", UNKNOWN))
    names = [name for name, _ in voices_for.most_common()]
    majority = right if right and (len(right) >= num_wrong or not wrong) else wrong
    box = max(majority, key=lambda box: box.time)
    queue = "random" if any(voice.queue == "random" for voice in voices) else box.queue
    verdict: Verdict = "right" if len(right) >= num_wrong else "wrong"
    label = names[0] if names and verdict == "right" else box.label
    if verdict == "right" and len(names) > 1 and voices_for[names[0]] == voices_for[names[1]]:
        label = ""  # as many for one as for another: nobody's word, as with verdicts
    return AgreedBox(
        replace(box, verdict=verdict, label=label, queue=queue), len(right), num_wrong, tuple(names)
    )


def name_notes(agreed: Iterable[AgreedBox]) -> list[str]:
    """What to say about calls that their reviewers name differently."""
    several = [one for one in agreed if one.has_several_names]
    kinds = (
        ([one for one in several if not one.box.label], " or ",
         "as many reviewers give one name as another: they go without a name until one more names them, or they agree"),
        ([one for one in several if one.box.label], ", not ", "reviewers give different names: the one that most give is kept"),
    )  # fmt: skip
    return [
        f"of {len(own):,} calls {what} (e.g. {own[0].box.path} at {own[0].box.begin_s:.2f} s: {word.join(own[0].names[:2])})"
        for own, word, what in kinds
        if own
    ]


def _same_calls(boxes: Sequence[ReviewedBox]) -> list[list[ReviewedBox]]:
    """Drawn boxes in groups, at most one of each reviewer: each joins the first group whose first box it overlaps."""
    groups: list[list[ReviewedBox]] = []
    by_recording: dict[str, list[list[ReviewedBox]]] = {}
    for box in sorted(boxes, key=lambda box: (box.time, box.box_id)):
        own = by_recording.setdefault(recording_key(box), [])
        group = next(
            (
                g
                for g in own
                if box.reviewer not in {b.reviewer for b in g} and overlap(g[0], box) >= SAME_CALL_IOU
            ),
            None,
        )
        if group is None:
            group = []
            own.append(group)
            groups.append(group)
        group.append(box)
    return groups


def _went_past(state: ReviewState, box: ReviewedBox) -> bool:
    """Whether a reviewer went through the stretch of a box and marked no call there."""
    key = recording_key(box)
    looked = any(s.begin_s <= box.begin_s and box.end_s <= s.end_s for s in state.spans.get(key, ()))
    if not looked:
        return False
    return not any(
        own.verdict == "right" and overlap(own, box) >= SAME_CALL_IOU
        for own in state.by_recording.get(key, ())
    )


def overlap(first: ReviewedBox, second: ReviewedBox) -> float:
    """Intersection over union in seconds and hertz; a box without a band is compared by time alone."""
    is_time_only = first.low_hz is None or second.low_hz is None
    corners = torch.tensor(
        [
            [box.begin_s, 0.0, box.end_s, 1.0]
            if is_time_only
            else [box.begin_s, box.low_hz, box.end_s, box.high_hz]
            for box in (first, second)
        ],
        dtype=torch.float64,
    )
    return float(paired_iou(corners[0], corners[1]))


class Agreement(NamedTuple):
    """How two reviewers judged the detections that both have judged."""

    first: str
    second: str
    num_both: int
    num_same: int
    kappa: float  # Cohen's: 0 is chance, 1 is always the same; NaN where both always gave one same verdict
    num_named: int  # said right and named by both
    num_same_name: int


def agreements(states: Mapping[str, ReviewState]) -> list[Agreement]:
    """One row for every two reviewers who judged some of the same detections."""
    names = sorted(states)
    found = []
    for place, first in enumerate(names):
        for second in names[place + 1 :]:
            row = _agreement(states[first], states[second])
            if row.num_both:
                found.append(row)
    return found


def _agreement(first: ReviewState, second: ReviewState) -> Agreement:
    pairs = [
        (box, second.boxes[box_id])
        for box_id, box in first.boxes.items()
        if box.detection_id and box_id in second.boxes
    ]
    num = len(pairs)
    same = sum(a.verdict == b.verdict for a, b in pairs)
    named = [(a, b) for a, b in pairs if a.verdict == b.verdict == "right" and a.label and b.label]
    kappa = float("nan")
    if num:
        right_1 = sum(a.verdict == "right" for a, _ in pairs) / num
        right_2 = sum(b.verdict == "right" for _, b in pairs) / num
        by_chance = right_1 * right_2 + (1 - right_1) * (1 - right_2)
        if by_chance < 1:
            kappa = (same / num - by_chance) / (1 - by_chance)
    return Agreement(first.reviewer, second.reviewer, num, same, kappa, len(named),
                     sum(a.label == b.label for a, b in named))  # fmt: skip


class RandomVerdicts(NamedTuple):
    """Verdicts on detections that were drawn at random: what they say holds for all that could have been drawn."""

    detection_id: tuple[str, ...]
    score: tuple[float, ...]
    is_right: tuple[bool, ...]


def random_verdicts(agreed: Iterable[AgreedBox]) -> RandomVerdicts:
    """Undisputed verdicts on detections that somebody met in the queue `random`."""
    rows = [
        (a.box.detection_id, a.box.score, a.box.verdict == "right")
        for a in agreed
        if a.box.detection_id and a.box.queue == "random" and not a.is_disputed and a.box.score is not None
    ]
    return RandomVerdicts(*(tuple(column) for column in zip(*rows))) if rows else RandomVerdicts((), (), ())
