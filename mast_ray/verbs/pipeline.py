"""A pipeline is a list of verbs with their arguments: every verb resumes and skips
what is done, so the list does too.

Each step is what a user could type; the line is printed before it runs. Output goes to the
screen and to a log in the run folder.
"""

from __future__ import annotations

import json
import math
import shlex
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from mast_ray.config.errors import OK, PARTIAL
from mast_ray.evaluation.intervals import Interval
from mast_ray.evaluation.score_sheet import METRICS, ScoreSheet

BAR = "─" * 78


@dataclass(frozen=True)
class Step:
    """One verb with its arguments, and what it is for."""

    title: str
    verb: str
    argv: tuple[str, ...]

    @property
    def command(self) -> str:
        return shlex.join(["mast", self.verb, *self.argv])


def run_steps(steps: Sequence[Step], run_verb: Callable[[str, list[str]], int], out: Path) -> int:
    """Run steps in order; the first that fails ends the pipeline with its exit code.

    Times are added up over interruptions in <out>/steps.json, so that a resumed
    run still says how long it took.
    """
    out.mkdir(parents=True, exist_ok=True)
    record = out / "steps.json"
    spent: dict[str, float] = json.loads(record.read_text()) if record.exists() else {}
    begun = time.monotonic()
    worst = OK
    for number, step in enumerate(steps, 1):
        elapsed = time.monotonic() - begun
        print(
            f"\n{BAR}\n[{number}/{len(steps)}] {step.title}   ({_minutes(elapsed)} so far)\n$ {step.command}",
            flush=True,
        )
        started = time.monotonic()
        code = run_verb(step.verb, list(step.argv))
        sys.stdout.flush()
        spent[step.title] = spent.get(step.title, 0.0) + time.monotonic() - started
        record.write_text(json.dumps(spent, indent=1))
        if code not in (OK, PARTIAL):
            print(
                f"\nstopped at step {number} of {len(steps)} ({step.title}), exit code {code}",
                file=sys.stderr,
            )
            return code
        worst = max(worst, code)
    print(f"\n{BAR}")
    for step in steps:
        print(f"  {step.title:<58}{_minutes(spent.get(step.title, 0.0)):>10}")
    print(f"  {'all steps':<58}{_minutes(sum(spent.get(s.title, 0.0) for s in steps)):>10}")
    return worst


def _minutes(seconds: float) -> str:
    return f"{int(seconds // 60)}:{int(seconds % 60):02d}"


def method_table(folders: dict[str, Path], splits: dict[str, str]) -> str:
    """F1 and AP of several scored models on several splits, each with its 95 % interval and n."""
    lines = [f"{'':<22}" + "".join(f"{title:^34}" for title in splits.values())]
    lines.append(f"{'':<22}" + "".join(f"{'F1':^17}{'AP':^17}" for _ in splits))
    sizes: dict[str, str] = {}
    for method, folder in folders.items():
        path = folder / METRICS
        if not path.exists():
            continue
        sheet = ScoreSheet.from_json(path.read_bytes(), str(path))
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
