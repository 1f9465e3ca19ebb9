"""The log of a review: what people did with boxes, one JSON object per line, only ever added to.

Every reviewer has a file of their own (`FOLDER/NAME.jsonl`), so that several people may work at once. An
action is on disk before it is answered. A line that a crash cut short is passed over and named in `problems`;
nothing before or after it is lost. review_state.py folds a log into boxes and spans.

Fields of a line; empty or null ones may be missing:

version       1
id            16 hex digits that name this action
time          UTC, ISO 8601
reviewer      who did it
recording_id  as in recordings.parquet and in detections
path          of the recording, relative to the archive
action        accept   the box is a call (detection or drawn box `box_id`)
              reject   the box is no call; a drawn box is taken back
              change   the box is a call, and these are its corners (moved, resized)
              draw     a call that the detector missed: a new box, called `box_id`
              name     the box is a call of `label` ("" takes the name away)
              looked   begin_s to end_s was gone through over the whole band: a call in there that has
                       no box after the review is not there. Nothing else says so; accepting a box says
                       nothing about its neighbourhood.
              undo     the action `undoes` of the same reviewer never happened; undoing an undo is a redo
box_id        the detection's id (reporting/exports/rows.py) or, of a drawn box, "drawn-" and the id of its action
detection_id  the detection's id; "" for a drawn box
begin_s, end_s, low_hz, high_hz
              the box after the action (for `looked` the span, without a band); low_hz and high_hz are
              both null where only the time is known
label         the name after the action; "" for none. Who accepts a box accepts the name beside it
score         the detector's score of the detection; null for a drawn box
queue         where the reviewer met it: random (drawn at random from all detections in question: the only
              queue whose verdicts say something about the others), uncertain, site_hour, cluster, plan,
              recording (gone through from its beginning), or import
undoes        id of the action that `undo` takes back
"""

from __future__ import annotations

import json
import math
import os
import secrets
import sys
import unicodedata
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_args

from mast_ray.config.errors import ConfigError, DataError
from mast_ray.storage.storage import sync_to_disk

ActionKind = Literal["accept", "reject", "change", "draw", "name", "looked", "undo"]
Queue = Literal["random", "uncertain", "site_hour", "cluster", "plan", "recording", "import"]
VERSION = 1
KINDS: tuple[str, ...] = get_args(ActionKind)
QUEUES: tuple[str, ...] = get_args(Queue)
ENDING = ".jsonl"
MOST_LETTERS = 60  # of a reviewer's name: with four bytes each it still fits into a file name
CORRECTIONS = "corrections"
_RUN_FILES = ("steps.json", "learn.json")  # of `mast run`, `listen` and `demo`; of `mast learn`
_NUMBERS = ("begin_s", "end_s", "low_hz", "high_hz", "score")


@dataclass(frozen=True)
class Action:
    """One line of the log; the module's text says what the fields mean."""

    action: ActionKind
    reviewer: str
    recording_id: str
    path: str
    box_id: str = ""
    detection_id: str = ""
    begin_s: float = 0.0
    end_s: float = 0.0
    low_hz: float | None = None
    high_hz: float | None = None
    label: str = ""
    score: float | None = None
    queue: str = "recording"
    undoes: str = ""
    id: str = ""
    time: str = ""


class Log(NamedTuple):
    """What a file or a folder of logs holds, in order of time per reviewer."""

    actions: tuple[Action, ...]
    problems: tuple[str, ...]  # lines that could not be read, for people


def new_action_id() -> str:
    return secrets.token_hex(8)


def stamped(action: Action, now: datetime, action_id: str) -> Action:
    """The action with its time and name; a drawn box is called after the action that drew it."""
    box_id = action.box_id
    if action.action == "draw" and not box_id:
        box_id = f"drawn-{action_id}"
    return replace(action, id=action_id, box_id=box_id, time=now.astimezone(UTC).isoformat())


def checked_reviewer(name: str) -> str:
    """A name that may stand in a file name, in one way of writing; anything else is an error."""
    name = unicodedata.normalize("NFC", name).strip()
    odd = not name or len(name) > MOST_LETTERS or name.startswith(".") or not name.isprintable()
    if odd or any(letter in name for letter in '/\\:*?"<>|'):
        raise ConfigError(
            f"reviewer {name!r} cannot be the name of a file:\n"
            f"give 1 to {MOST_LETTERS} letters, digits or spaces, e.g. --reviewer Ana"
        )
    return name


def line_of(action: Action) -> str:
    """One line of JSON with its end; what is empty is left out."""
    values = {"version": VERSION} | {
        field.name: value
        for field in fields(action)
        if (value := getattr(action, field.name)) not in ("", None)
    }
    return json.dumps(values, ensure_ascii=False, allow_nan=False, separators=(",", ":")) + "\n"


def action_of_line(line: str) -> Action:
    """The action of one line; ValueError says what is wrong with it."""
    values = json.loads(line)
    if not isinstance(values, dict):
        raise ValueError("no JSON object")
    version = values.pop("version", None)
    if version != VERSION:
        raise ValueError(f"version {version!r} is not {VERSION}: written by another release")
    known = {field.name for field in fields(Action)}
    return checked_action(Action(**{name: value for name, value in values.items() if name in known}))


def checked_action(action: Action) -> Action:
    """The same action; ValueError where a field cannot be what it says."""
    for field in fields(action):
        value: Any = getattr(action, field.name)
        if field.name in _NUMBERS:
            is_number = (
                isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
            )
            if not is_number and not (value is None and field.name not in ("begin_s", "end_s")):
                raise ValueError(f"{field.name} is {value!r}, not a number")
        elif not isinstance(value, str):
            raise ValueError(f"{field.name} is {value!r}, not a text")
    if action.action not in KINDS:
        raise ValueError(f"action {action.action!r} is none of {', '.join(KINDS)}")
    if action.queue not in QUEUES:
        raise ValueError(f"queue {action.queue!r} is none of {', '.join(QUEUES)}")
    if not action.reviewer or not action.id or not action.time:
        raise ValueError("without reviewer, id or time")
    if action.action == "undo":
        if not action.undoes:
            raise ValueError("an undo that names no action")
        return action
    if not action.recording_id and not action.path:
        raise ValueError("names no recording")
    if not 0.0 <= action.begin_s < action.end_s:
        raise ValueError(f"begins at {action.begin_s:g} s and ends at {action.end_s:g} s")
    if (action.low_hz is None) != (action.high_hz is None):
        raise ValueError("has one edge of its band only")
    if action.low_hz is not None and action.high_hz is not None and not 0.0 <= action.low_hz < action.high_hz:
        raise ValueError(f"reaches from {action.low_hz:g} to {action.high_hz:g} Hz")
    if action.action != "looked" and not action.box_id:
        raise ValueError("names no box")
    return action


def read_log(path: Path) -> Log:
    """One reviewer's file; a missing one is an empty log."""
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        return Log((), ())
    actions, problems = [], []
    for number, raw in enumerate(content.split(b"\n"), start=1):
        if not raw.strip():
            continue
        try:
            actions.append(action_of_line(raw.decode("utf-8")))
        except (ValueError, TypeError, RecursionError) as error:
            problems.append(f"{path}, line {number} was left out: {error}")
    return Log(tuple(actions), tuple(problems))


def log_files(folder: Path) -> list[Path]:
    """The logs in a folder of corrections, by name."""
    return sorted(path for path in folder.glob(f"*{ENDING}") if path.is_file())


def read_logs(folder: Path) -> Log:
    """All reviewers of a folder; an empty or missing folder is an empty log."""
    logs = [read_log(path) for path in log_files(folder)]
    return Log(
        tuple(action for log in logs for action in log.actions),
        tuple(problem for log in logs for problem in log.problems),
    )


def log_path(folder: Path, reviewer: str) -> Path:
    return folder / f"{checked_reviewer(reviewer)}{ENDING}"


def append_actions(path: Path, actions: Iterable[Action]) -> None:
    """Add lines and return when they are on disk; a line that a crash cut short is closed first."""
    text = "".join(line_of(checked_action(action)) for action in actions)
    if not text:
        return
    is_new = not path.exists()
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("ab+") as file:  # every write goes to the end, whoever else writes
        end = file.seek(0, os.SEEK_END)
        if end:
            file.seek(end - 1)
            if file.read(1) != b"\n":
                text = "\n" + text
        file.write(text.encode("utf-8"))
        file.flush()
        os.fsync(file.fileno())
    if is_new:
        sync_to_disk(path.parent)  # a new file is safe when its name is on disk too


def corrections_folder(detections: str) -> Path:
    """Where the corrections of a folder (or Parquet file) of detections lie: RUN/corrections of RUN/detections, else
    `corrections` in the folder itself. They used to lie beside any folder, so that all in one place shared them: logs
    that are there and nowhere else go on there, and it is said.
    """
    if "://" in detections.removeprefix("file://"):
        raise DataError(
            f"{detections} is not a local folder, and every action must be on disk at once:\n"
            "give a local folder for the corrections: --corrections FOLDER"
        )
    path = Path(detections.removeprefix("file://")).expanduser().absolute()
    own, shared = _own_folder(path), path.parent / CORRECTIONS
    if own == shared or log_files(own) or not log_files(shared):
        return own
    print(
        f"note: the corrections in {shared} are used, which all detections beside {path.name} share:\n"
        f"to keep those of {path.name} apart, begin anew with --corrections {own} (found by itself from then on)",
        file=sys.stderr,
    )
    return shared


def _own_folder(path: Path) -> Path:
    """The corrections of no other detections."""
    stage = next((p.parent for p in (path, *path.parents) if _is_inside_stage(p)), path)
    if stage.suffix == ".parquet":
        return stage.parent / CORRECTIONS / stage.stem
    is_of_run = stage.name == "detections" and any((stage.parent / name).exists() for name in _RUN_FILES)
    return (stage.parent if is_of_run else stage) / CORRECTIONS


def _is_inside_stage(folder: Path) -> bool:
    """What `mast detect` keeps in its OUT and may empty: nobody's work belongs in there."""
    return folder.name in ("detections", "earlier") and (folder.parent / "commit").is_dir()


def standing(actions: Sequence[Action]) -> tuple[Action, ...]:
    """The actions that were not taken back, without the undos; order is kept."""
    taken_back: set[tuple[str, str]] = set()
    for action in reversed(actions):  # an undo comes after what it undoes, and may be undone itself
        if action.action == "undo" and (action.reviewer, action.id) not in taken_back:
            taken_back.add((action.reviewer, action.undoes))
    return tuple(a for a in actions if a.action != "undo" and (a.reviewer, a.id) not in taken_back)
