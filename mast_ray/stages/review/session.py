"""One reviewer at work: every action goes to the log first and then into memory, undo takes back what one key press did.

What others have said is read from their logs and never written. Boxes travel to the page as plain values.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

from mast_ray.config.errors import DataError
from mast_ray.evaluation.intervals import wilson_limits
from mast_ray.evaluation.naming.names import UNKNOWN
from mast_ray.evaluation.review.corrections import (
    Action,
    ActionKind,
    append_actions,
    checked_reviewer,
    log_files,
    log_path,
    new_action_id,
    read_log,
    stamped,
    standing,
)
from mast_ray.evaluation.review.review_state import (
    ReviewedBox,
    ReviewState,
    Span,
    agreed_boxes,
    agreements,
    fold_log,
    merged_spans,
    random_verdicts,
    said_on_both,
)
from mast_ray.stages.review.box_values import SHORTEST_S, clean_name, is_same_place, placed_inside, said_json
from mast_ray.stages.review.found_boxes import FoundBoxes
from mast_ray.stages.review.judged_before import judged_before

CODES = {"": 0, "right": 1, "wrong": 2}


class ReviewSession:
    """The state of a review; all changes go through `act`, `undo` and `redo`."""

    def __init__(
        self,
        found: FoundBoxes,
        folder: Path,
        reviewer: str,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
        rounds: Sequence[str] = (),
    ) -> None:
        self.found, self.folder, self.reviewer = found, folder, checked_reviewer(reviewer)
        self._now = now
        self._path = log_path(folder, reviewer)
        self._lock = threading.Lock()
        log = read_log(self._path)
        self.problems = list(log.problems)
        self._of_box: dict[str, list[Action]] = {}
        self._looked: dict[str, list[Action]] = {}
        self._presses: list[list[Action]] = []  # what each key press did, as far as it stands
        self._undone: list[list[Action]] = []  # the undos of each press that was taken back
        self.boxes: dict[str, ReviewedBox] = {}
        self.verdict = np.zeros(len(found), np.int8)  # of CODES
        self.met_at_random = np.zeros(len(found), bool)
        self._before: dict[int, str] = {}  # detections where an earlier round has judged or drawn a box
        self._told_before: dict[str, int] = {}  # the same the other way round
        self._others: dict[Path, tuple[tuple[int, int], tuple[Action, ...]]] = {}
        self._enter(standing(log.actions))
        self._before = judged_before(found, self.boxes.values(), rounds)
        self._told_before = {name: row for row, name in self._before.items()}
        for row in self._before:
            self._show(row)

    # ---- what the page asks for

    def box_json(self, row: int) -> dict[str, Any]:
        """A detection with what the reviewer has said about it."""
        found, own = self.found, self._said_of(row)
        plain: dict[str, Any] = {
            "id": found.ids[row], "row": row, "recording": int(found.recording[row]),
            "begin_s": float(found.begin_s[row]), "end_s": float(found.end_s[row]),
            "low_hz": float(found.low_hz[row]), "high_hz": float(found.high_hz[row]),
            "score": round(float(found.score[row]), 4), "label": found.label[row], "verdict": "",
        }  # fmt: skip
        return plain | said_json(own)

    def boxes_within(self, recording: int, begin_s: float, end_s: float) -> list[dict[str, Any]]:
        """Detections and drawn boxes that touch a stretch of a recording."""
        rows = self.found.within(recording, begin_s, end_s)
        name = self.found.recordings[recording].path
        # at one moment: a key may be pressed in another thread while they are gone through
        drawn = [
            box
            for box in tuple(self.boxes.values())
            if box.path == name and box.begin_s < end_s and box.end_s > begin_s and self._is_apart(box)
        ]
        return [self.box_json(row) for row in rows.tolist()] + [
            self._drawn_json(box, recording) for box in drawn
        ]

    def spans_of(self, recording: int) -> tuple[Span, ...]:
        key = self.found.recordings[recording].recording_id
        return merged_spans(Span(a.begin_s, a.end_s) for a in tuple(self._looked.get(key, ())))

    def has_looked(self, recording: int, begin_s: float, end_s: float) -> bool:
        return any(s.begin_s <= begin_s and end_s <= s.end_s + SHORTEST_S for s in self.spans_of(recording))

    def names(self) -> list[str]:
        """Every name known, the most frequent first."""
        counts: dict[str, int] = {}
        for text in (*self.found.label, *(box.label for box in tuple(self.boxes.values()))):
            if text and text != UNKNOWN:
                counts[text] = counts.get(text, 0) + 1
        for _, actions in tuple(self._others.values()):
            for action in actions:
                if action.label:
                    counts.setdefault(action.label, 1)
        return sorted(counts, key=lambda name: (-counts[name], name))

    def figures(self) -> dict[str, Any]:
        """Progress, precision from the boxes drawn at random, and agreement with others."""
        with self._lock:
            states = self.states()
        here = self.found.row_of_id  # what was said about boxes of earlier rounds says nothing about this run
        drawn = [box for box in tuple(self.boxes.values()) if self._is_apart(box)]
        verdicts = random_verdicts(one for one in agreed_boxes(states) if one.box.detection_id in here)
        kept = [
            right for right, score in zip(verdicts.is_right, verdicts.score) if score >= self.found.threshold
        ]
        low, high = wilson_limits(np.array([sum(kept)]), np.array([len(kept)])) if kept else ([None], [None])
        return {
            "num_boxes": len(self.found), "num_judged": int((self.verdict > 0).sum()),
            "num_right": int((self.verdict == CODES["right"]).sum()),
            "num_drawn": len(drawn),
            "looked_s": sum(s.end_s - s.begin_s for own in tuple(self._looked.values())
                for s in merged_spans(Span(a.begin_s, a.end_s) for a in tuple(own))),
            "precision": {"num": len(kept), "right": sum(kept),
                          "low": None if low[0] is None else float(low[0]),
                          "high": None if high[0] is None else float(high[0])},
            "reviewers": sorted({*states, self.reviewer}),
            "agreement": [_finite(row._asdict()) for row in agreements(states)],
            "can_undo": bool(self._presses), "can_redo": bool(self._undone),
        }  # fmt: skip

    def states(self) -> dict[str, ReviewState]:
        """What every reviewer has said so far; logs of others are read again when they have grown."""
        said: list[Action] = []
        for path in log_files(self.folder):
            if path == self._path:
                continue
            status = path.stat()
            mark = (status.st_size, status.st_mtime_ns)
            if self._others.get(path, ((), ()))[0] != mark:
                self._others[path] = (mark, read_log(path).actions)
            said += self._others[path][1]
        others = fold_log(said)  # together: one person may have reviewed on two computers
        spans = {
            key: merged_spans(Span(a.begin_s, a.end_s) for a in actions)
            for key, actions in self._looked.items()
            if actions
        }
        here = ReviewState(self.reviewer, dict(self.boxes), spans)
        return others | {self.reviewer: said_on_both(others.get(self.reviewer), here)}

    # ---- what the page does

    def act(
        self,
        kind: ActionKind,
        queue: str,
        box_ids: Sequence[str] = (),
        recording: int = -1,
        corners: tuple[float, float, float, float] | None = None,
        label: str | None = None,
    ) -> list[dict[str, Any]]:
        """Write one action (or the same for several boxes) down; the boxes as they are now.

        `corners` are begin_s, low_hz, end_s, high_hz: of a drawn or changed box; of a span that was looked at
        only the times count.
        """
        with self._lock:
            if kind in ("draw", "looked"):
                plain = [self._placed(kind, recording, corners, label or "")]
            else:
                plain = [self._about(kind, box_id, corners, label) for box_id in box_ids]
            if not plain:
                raise DataError("the action names no box:\nchoose one first")
            now = self._now()
            self._put([stamped(replace(action, queue=queue), now, new_action_id()) for action in plain])
            self._undone.clear()
            last = self._presses[-1]
        return self._changed(last)

    def add(self, actions: Sequence[Action]) -> list[Action]:
        """Write down what was read elsewhere, as one press; what is known already is left out. Returns what is new."""
        with self._lock:
            new = [action for action in actions if not self._is_known(action)]
            now = self._now()
            self._put([stamped(action, now, new_action_id()) for action in new])
            self._undone.clear()
        return new

    def undo(self) -> list[dict[str, Any]]:
        """Take back what the last key press did; the boxes it was about."""
        with self._lock:
            if not self._presses:
                return []
            press = self._presses.pop()
            undos = self._undos_of(press)
            append_actions(self._path, undos)
            for action in press:
                self._forget(action)
            self._undone.append([replace(action, undoes=undo.id) for action, undo in zip(press, undos)])
        return self._changed(press)

    def redo(self) -> list[dict[str, Any]]:
        """Bring back what was undone last."""
        with self._lock:
            if not self._undone:
                return []
            press = self._undone.pop()
            now = self._now()
            append_actions(
                self._path,
                [stamped(self._undo_of(action, action.undoes), now, new_action_id()) for action in press],
            )
            self._enter([replace(action, undoes="") for action in press])
        return self._changed(press)

    # ---- inside

    def _placed(
        self, kind: ActionKind, recording: int, corners: tuple[float, float, float, float] | None, label: str
    ) -> Action:
        if corners is None or not 0 <= recording < len(self.found.recordings):
            raise DataError("the action names no place in a recording:\nchoose a recording first")
        where = self.found.recordings[recording]
        begin_s, low_hz, end_s, high_hz = placed_inside(corners, where.duration_s)
        band = (None, None) if kind == "looked" else (low_hz, high_hz)
        return Action(
            kind, self.reviewer, where.recording_id, where.path, begin_s=begin_s, end_s=end_s,
            low_hz=band[0], high_hz=band[1], label=clean_name(label),
        )  # fmt: skip

    def _about(
        self,
        kind: ActionKind,
        box_id: str,
        corners: tuple[float, float, float, float] | None,
        label: str | None,
    ) -> Action:
        """An action on a detection or on a box that this reviewer drew."""
        row, own = self.found.row_of_id.get(box_id), self.boxes.get(box_id)
        if own is None and row is None:
            raise DataError(f"there is no box {box_id!r}:\nload the page again")
        shown = self.box_json(row) if row is not None else self._drawn_json(own, -1)  # type: ignore[arg-type]
        # who accepts a box accepts the name that stands beside it; "unknown" is none
        name = "" if shown["label"] == UNKNOWN else shown["label"]
        recording_id, path, duration_s = self._home(row, own)
        before = (shown["begin_s"], shown["low_hz"], shown["end_s"], shown["high_hz"])
        if kind == "change":
            if corners is None:
                raise DataError("a change without corners:\ndraw the box again")
            before = placed_inside(corners, duration_s)
        if kind == "name":
            name = clean_name(label or "")
        return Action(
            kind, self.reviewer, recording_id, path, box_id,
            box_id if row is not None else own.detection_id if own is not None else "",
            before[0], before[2], before[1], before[3], name, None if row is None else float(self.found.score[row]),
        )  # fmt: skip

    def _home(self, row: int | None, own: ReviewedBox | None) -> tuple[str, str, float]:
        place = int(self.found.recording[row]) if row is not None else -1
        if row is None and own is not None:
            place = self.found.row_of_path.get(own.path, -1)
        if place < 0:
            raise DataError("the recording of this box is not in the archive any more")
        where = self.found.recordings[place]
        return where.recording_id, where.path, where.duration_s

    def _is_known(self, action: Action) -> bool:
        recording = self.found.row_of_path.get(action.path, -1)
        if action.action == "looked":
            return self.has_looked(recording, action.begin_s, action.end_s)
        if action.action == "draw":
            return any(
                not box.detection_id
                and (box.path, box.label) == (action.path, action.label)
                and is_same_place(box, action)
                for box in self.boxes.values()
            )
        own = self.boxes.get(action.box_id)
        if own is None:
            return False
        if action.action == "name":
            return own.label == action.label
        if action.action == "change":
            return own.is_changed and is_same_place(own, action)
        return own.verdict == ("wrong" if action.action == "reject" else "right")

    def _put(self, actions: Sequence[Action]) -> None:
        append_actions(self._path, actions)  # on disk before anything is shown as done
        self._enter(actions)

    def _enter(self, actions: Iterable[Action]) -> None:
        """Take actions that stand in the log into memory; those of one moment are one press."""
        touched = set()
        for action in actions:
            if self._presses and self._presses[-1][0].time == action.time:
                self._presses[-1].append(action)
            else:
                self._presses.append([action])
            if action.action == "looked":
                self._looked.setdefault(action.recording_id or action.path, []).append(action)
            else:
                self._of_box.setdefault(action.box_id, []).append(action)
                touched.add(action.box_id)
        for box_id in touched:
            self._fold(box_id)

    def _forget(self, action: Action) -> None:
        if action.action == "looked":
            own = self._looked[action.recording_id or action.path]
        else:
            own = self._of_box[action.box_id]
        own[:] = [other for other in own if other.id != action.id]
        if action.action != "looked":
            self._fold(action.box_id)

    def _fold(self, box_id: str) -> None:
        state = fold_log(self._of_box.get(box_id, ())).get(self.reviewer)
        box = state.boxes.get(box_id) if state is not None else None
        if box is None:
            self.boxes.pop(box_id, None)
        else:
            self.boxes[box_id] = box
        row = self.found.row_of_id.get(box_id)
        if row is not None:
            self.met_at_random[row] = box is not None and box.queue == "random"
            self._show(row)
        elif box_id in self._told_before:  # the last press of an earlier round was taken back
            self._show(self._told_before[box_id])

    def _show(self, row: int) -> None:
        said = self._said_of(row)
        self.verdict[row] = CODES["" if said is None else said.verdict]

    def _said_of(self, row: int) -> ReviewedBox | None:
        """The last word on a detection; where this run has none, that of an earlier round on its place."""
        return self.boxes.get(self.found.ids[row]) or self.boxes.get(self._before.get(row, ""))

    def _is_apart(self, box: ReviewedBox) -> bool:
        """Whether a box that is no detection of this run is shown by itself: drawn, or a call of an earlier round."""
        if box.box_id in self.found.row_of_id or box.box_id in self._told_before:
            return False
        return not box.detection_id or box.verdict == "right"

    def _undos_of(self, press: Sequence[Action]) -> list[Action]:
        now = self._now()
        return [stamped(self._undo_of(action, action.id), now, new_action_id()) for action in press]

    def _undo_of(self, action: Action, undone: str) -> Action:
        return Action("undo", self.reviewer, action.recording_id, action.path, action.box_id, undoes=undone)

    def _changed(self, press: Sequence[Action]) -> list[dict[str, Any]]:
        """What a press was about, as it is now; a drawn box that is gone is marked so."""
        out: list[dict[str, Any]] = []
        for action in press:
            recording = self.found.row_of_path.get(action.path, -1)
            row, own = self.found.row_of_id.get(action.box_id), self.boxes.get(action.box_id)
            row = self._told_before.get(action.box_id) if row is None else row
            if action.action == "looked":
                out.append({"looked": recording, "begin_s": action.begin_s, "end_s": action.end_s})
            elif row is not None:
                out.append(self.box_json(row))
            elif own is not None:
                out.append(self._drawn_json(own, recording))
            else:
                out.append({"id": action.box_id, "recording": recording, "gone": True})
        return out

    def _drawn_json(self, box: ReviewedBox, recording: int) -> dict[str, Any]:
        plain: dict[str, Any] = {"id": box.box_id, "row": -1, "recording": recording, "score": None}
        return plain | said_json(box)


def _finite(values: dict[str, Any]) -> dict[str, Any]:
    return {k: None if isinstance(v, float) and not np.isfinite(v) else v for k, v in values.items()}
