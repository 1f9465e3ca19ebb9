"""A pipeline is a list of verbs with their arguments: every verb resumes and skips
what is done, so the list does too.

Each step is what a user could type; the line is printed before it runs. Where steps say how long they take on two idle
cores, the time left of all is printed with each of them and while they run, corrected by the pace so far.
"""

from __future__ import annotations

import json
import math
import shlex
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from mast_ray.config.errors import CONFIG, DATA, INTERRUPTED, OK, PARTIAL
from mast_ray.config.shown import shown
from mast_ray.evaluation.intervals import Interval
from mast_ray.evaluation.score_sheet import METRICS, ScoreSheet
from mast_ray.storage.storage import Storage, open_storage

BAR = "─" * 78
RECORD = "steps.json"
LINE_EVERY_S = 20.0
SLOWER, SLOWER_BY_S = 1.25, 60.0  # times the plan, and seconds more than it, that are worth a word
TAKEN = 0.2  # of the expected time: a step that took less was done before, and says nothing about the pace


@dataclass(frozen=True)
class Step:
    """One verb with its arguments, and what it is for."""

    title: str
    verb: str
    argv: tuple[str, ...]
    expected_s: float = 0.0  # on two idle cores; 0: not known
    left_s: Callable[[], float | None] | None = None  # while it runs, by its own pace; None: not known yet

    @property
    def command(self) -> str:
        return shlex.join(["mast", self.verb, *self.argv])


@dataclass(frozen=True)
class Costs:
    """What the steps of a run are paid by."""

    num_gpus: int = 0
    price_per_gpu_hour: float = 0.0  # 0: not given


def run_steps(
    steps: Sequence[Step],
    run_verb: Callable[[str, list[str]], int],
    out: str | Path | Storage,
    now: Callable[[], float] = time.monotonic,
    costs: Costs | None = None,
    part: slice = slice(None),
) -> int:
    """Run steps in order; the first that fails ends the pipeline with its exit code. A `part` of them where what comes behind
    depends on what these find.

    Times are added up over interruptions in <out>/steps.json, so that a resumed
    run still says how long it took.
    """
    stage = open_storage(out) if isinstance(out, str | Path) else out
    spent: dict[str, float] = {}
    if stage.stat(RECORD) is not None:
        with suppress(ValueError, TypeError):  # a damaged one costs the times of before, no more
            spent = {title: float(s) for title, s in dict(json.loads(stage.read_bytes(RECORD))).items()}
    taken: list[tuple[Step, float]] = []  # in this run
    told_slow: set[str] = set()  # once is enough
    worst, number = OK, 0
    for number, step in list(enumerate(steps, 1))[part]:
        place, started = f"[{number}/{len(steps)}]", now()
        before_s = sum(spent.get(one.title, 0.0) for one in steps[:number])  # as the table of steps has it

        def so_far(
            started: float = started, before_s: float = before_s, rest: Sequence[Step] = steps[number - 1 :]
        ) -> str:
            left_s = seconds_left(taken, rest, now() - started)
            left = "" if left_s is None else f", about {_minutes(left_s)} left"
            return f"{_minutes(before_s + now() - started)} so far{left}"

        def place_and_time(
            step: Step = step,
            place: str = place,
            so_far: Callable[[], str] = so_far,
            started_s: float = started - spent.get(step.title, 0.0),
        ) -> str:
            if step.left_s is None:
                return f"{place} {so_far()}"
            left_s = step.left_s()
            more = "" if left_s is None else f", this step about {_minutes(left_s)} more"
            slow = slow_text(step, now() - started_s + (left_s or 0.0)) if step.title not in told_slow else ""
            if slow:
                told_slow.add(step.title)
            return f"{place} {so_far()}{more}{slow}"

        print(f"\n{BAR}\n{place} {step.title}   ({so_far()})\n$ {shown(step.command)}", flush=True)
        code = INTERRUPTED
        try:
            with _said_now_and_then(place_and_time, step.expected_s):
                code = run_verb(step.verb, list(step.argv))
        finally:  # an interrupted step took its time too
            sys.stdout.flush()
            taken.append((step, now() - started))
            spent[step.title] = spent.get(step.title, 0.0) + taken[-1][1]
            if spent.keys() - {step.title} or code not in (CONFIG, DATA):  # a mistake leaves nothing behind
                stage.write_atomic(RECORD, json.dumps(spent, indent=1).encode())
        if code not in (OK, PARTIAL):
            print(
                f"\nstopped at step {number} of {len(steps)} ({step.title}), exit code {code}",
                file=sys.stderr,
            )
            return code
        worst = max(worst, code)
        if costs is not None and number < len(steps):
            print(stage_table(steps, number, spent, costs), flush=True)
    if number == len(steps):
        print(f"\n{BAR}\n{stage_table(steps, number, spent, costs or Costs())}")
    return worst


def stage_table(steps: Sequence[Step], num_done: int, spent: Mapping[str, float], costs: Costs) -> str:
    """One line per step: done, next or to do, time taken, time it should still take, GPU-hours and money so far.
    Time left of a step without an estimate is a dash, and the sum is then a lower bound.
    """
    money = costs.price_per_gpu_hour > 0 and costs.num_gpus > 0
    head = f"  {'step':<60}{'':<7}{'taken':>8}{'left':>9}"
    head += f"{'GPU-h':>8}" if costs.num_gpus else ""
    lines = [head + (f"{'cost':>9}" if money else "")]
    total_s = left_s = 0.0
    is_bound = False

    def line(title: str, state: str, taken_s: float, left: str) -> str:
        gpu_hours = taken_s / 3600 * costs.num_gpus
        text = f"  {title:<60}{state:<7}{_minutes(taken_s):>8}{left:>9}"
        text += f"{gpu_hours:>8.2f}" if costs.num_gpus else ""
        return text + (f"{gpu_hours * costs.price_per_gpu_hour:>9.2f}" if money else "")

    for number, step in enumerate(steps):
        taken_s, left = spent.get(step.title, 0.0), ""
        if number >= num_done:
            is_bound |= not step.expected_s
            step_s = max(0.0, step.expected_s - taken_s)
            left, left_s = (_minutes(step_s) if step.expected_s else "-"), left_s + step_s
        state = "done" if number < num_done else "next" if number == num_done else "to do"
        lines.append(line(step.title, state, taken_s, left))
        total_s += taken_s
    left = f"{'> ' if is_bound else ''}{_minutes(left_s)}" if num_done < len(steps) else ""
    return "\n".join([*lines, line("all steps", "", total_s, left)])


def seconds_left(taken: Sequence[tuple[Step, float]], rest: Sequence[Step], passed_s: float) -> float | None:
    """Of the steps of `rest`, the first of which has run for `passed_s`, at the pace of those that were `taken`; None
    where a step does not say what it takes.
    """
    if not rest or not all(step.expected_s for step in rest):
        return None
    known = [(step.expected_s, s) for step, s in taken if step.expected_s and s >= TAKEN * step.expected_s]
    expected_s = sum(expected for expected, _ in known)
    pace = sum(s for _, s in known) / expected_s if expected_s else 1.0
    first, *others = (step.expected_s * pace for step in rest)
    return max(first - passed_s, 0.0) + sum(others)


def slow_text(step: Step, total_s: float) -> str:
    """What to say of a step that takes longer in all than was planned; "" where it keeps to it well enough."""
    times = total_s / max(step.expected_s, 1e-9)
    if times < SLOWER or total_s - step.expected_s < SLOWER_BY_S:
        return ""
    return (
        f"\nthis step takes {_minutes(total_s)} or more and was planned with {_minutes(step.expected_s)}: "
        "the machine is busier or slower than the plan took it to be, and so it is for the steps that follow\n"
        "it goes on to its end; to keep to the time: Ctrl-C, then the same command with another --out "
        f"and --minutes divided by {times:.1f}"
    )


@contextmanager
def _said_now_and_then(text: Callable[[], str], expected_s: float) -> Iterator[None]:
    """Print a line every so often while a step runs that says how long it takes."""
    ended = threading.Event()

    def say() -> None:
        while not ended.wait(LINE_EVERY_S):
            start = "\r\x1b[2K" if sys.stderr.isatty() else ""  # over a progress line that is under way
            print(f"{start}{text()}", file=sys.stderr, flush=True)

    thread = threading.Thread(target=say, name="time left", daemon=True)
    if expected_s:
        thread.start()
    try:
        yield
    finally:
        ended.set()


def _minutes(seconds: float) -> str:
    return f"{int(seconds // 60)}:{int(seconds % 60):02d}"


def method_table(folders: Mapping[str, Path | Storage], splits: dict[str, str]) -> str:
    """F1 and AP of several scored models on several splits, each with its 95 % interval and n."""
    lines = [f"{'':<22}" + "".join(f"{title:^34}" for title in splits.values())]
    lines.append(f"{'':<22}" + "".join(f"{'F1':^17}{'AP':^17}" for _ in splits))
    sizes: dict[str, str] = {}
    for method, folder in folders.items():
        scored = open_storage(folder) if isinstance(folder, Path) else folder
        if scored.stat(METRICS) is None:
            continue
        sheet = ScoreSheet.from_json(scored.read_bytes(METRICS), f"{scored.url}/{METRICS}")
        cells = []
        for split in splits:
            row = sheet.whole(split)
            if row is None:
                cells.append(f"{'-':^34}")
                continue
            cells += [f"{_interval(row.figures[name]):^17}" for name in ("f1", "ap_area")]
            sizes[split] = f"n = {row.num_truth} calls, {row.num_recordings} recordings"
        lines.append(f"{method:<22}" + "".join(cells))
    lines.append(f"{'':<22}" + "".join(f"{sizes.get(split, ''):^34}" for split in splits))
    return "\n".join(lines)


def _interval(figure: Interval) -> str:
    if not math.isfinite(figure.estimate):
        return "-"
    limits = f" [{figure.low:.2f},{figure.high:.2f}]".replace("0.", ".") if math.isfinite(figure.low) else ""
    return f"{figure.estimate:.2f}{limits}"
