"""A detector of four sites taken to a fifth, on real songs that may lie anywhere in their recording.

    python benchmarks/turned_sites.py --data DATA --work DIR --out turned_sites.json [--new-site SBT-3-39] [--minutes 12]

Every recording of DATA/soundscapes/ovenbird_5sites was cut around its song, so that one fixed box finds most of them.
Here each is turned by a time of its own (its end follows on its beginning) until the song is at a place drawn at random, and
no place is better than another. Then, as a user would type it: `mast run` on four sites; `mast train --start` of its model on
30 boxes of the fifth, with the four to be remembered; both models, the shipped one and the pieces that `mast run` tries beside
its network scored on recordings that none was trained on, at both places, each at its own threshold; beside them the fixed box
that is the median of the four sites' boxes, which never listens. Every step goes on where it was.
"""

from __future__ import annotations

import argparse
import csv
import json
import platform
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import soundfile
import torch

from mast_ray.boxes.geometry import pairwise_iou

SET = Path("soundscapes") / "ovenbird_5sites"
OLD, NEW = "four sites", "the new site"
FIGURES = ("f1", "time_f1", "recall", "precision", "ap_area")
Row = dict[str, Any]


def main() -> None:
    args = arguments()
    recordings = rows_of(args.data / SET / "recordings.csv")
    boxes = {row["file"]: row for row in rows_of(args.data / SET / "annotations.csv")}
    rng = np.random.default_rng(args.seed)
    turned = {OLD: args.work / "four", NEW: args.work / "fifth"}
    placed = {
        place: turn(args.data / SET, folder, [r for r in recordings if is_of(r, place, args)], boxes, rng)
        for place, folder in turned.items()
    }
    run, fifth, adapted = args.work / "run", args.work / "fifth_prepared", args.work / "adapted"
    mast("run", "--audio", turned[OLD] / "audio", *tables(turned[OLD]), "--out", run,
         "--minutes", args.minutes, "--runner", "here", *(part for one in args.knobs for part in ("--set", one)))  # fmt: skip
    mast("prepare", turned[NEW] / "audio", *tables(turned[NEW]), "--out", fifth, "--recipe", "tiny",
         "--set", "split.train=0.35", "--set", "split.val=0.15")  # fmt: skip
    model = run / "self_trained" / "model"
    model = model if (model / "card.json").exists() else run / "detector"
    mast("train", fifth, "--start", model, "--remember", run / "prepared", "--out", adapted, "--recipe", "tiny",
         "--runner", "here", "--set", f"split.budget_chunks={args.boxes}", *args.adapting)  # fmt: skip
    rows: list[Row] = []
    for place, prepared, name in ((OLD, run / "prepared", "there"), (NEW, fifth, "here")):
        shipped = args.work / f"shipped_{name}"
        mast("evaluate", "shipped:tiny", prepared, "--out", shipped, "--runner", "here")
        folders = {"shipped, at once": shipped, "trained on four sites": adapted / "adaptation" / f"{name}-before",
                   f"after {args.boxes} boxes of the new site": adapted / "adaptation" / f"{name}-after"}  # fmt: skip
        if (run / "pieces" / "card.json").exists():  # `mast run` has tried them beside its network
            pieces = args.work / f"pieces_{name}"
            mast("evaluate", run / "pieces", prepared, "--out", pieces, "--runner", "here")
            folders["pieces as four sites say, no network"] = pieces
        rows += [{"place": place, "model": title} | whole(folder) for title, folder in folders.items()]
        fixed = fixed_box(placed[OLD], placed[place])
        rows.append({"place": place, "model": "one fixed box, all recordings", "recall": fixed})
    for row in rows:
        print(json.dumps(row))
    if args.out:
        header = {"machine": platform.machine(), "new_site": args.new_site, "seed": args.seed}
        args.out.write_text(json.dumps(header | {"rows": rows}, indent=1) + "\n")


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--data", type=Path, required=True, help="folder with soundscapes/")
    add("--work", type=Path, required=True)
    add("--new-site", default="SBT-3-39")
    add("--boxes", type=int, default=30, help="of the new site")
    add("--minutes", type=float, default=12, help="of training on the four sites")
    add("--seed", type=int, default=0, help="of the turning")
    add(
        "--set", dest="knobs", action="append", default=[], metavar="KEY=VALUE", help="any knob of `mast run`"
    )
    add("--adapting", nargs="*", default=[], help="more arguments of `mast train`")
    add("--out", type=Path)
    return parser.parse_args()


def rows_of(path: Path) -> list[dict[str, str]]:
    with open(path, newline="") as file:
        return list(csv.DictReader(file))


def is_of(recording: dict[str, str], place: str, args: argparse.Namespace) -> bool:
    return (recording["site"] == args.new_site) == (place == NEW)


def turn(
    source: Path, target: Path, recordings: list[Row], boxes: dict[str, Row], rng: np.random.Generator
) -> list[tuple[float, ...]]:
    """Turned copies with their tables; returns the box of every recording: begin_s, low_hz, end_s, high_hz."""
    turned, placed = [], []
    for row in recordings:
        box = boxes[row["file"]]
        begin_s, end_s = float(box["begin_s"]), float(box["end_s"])
        new_begin_s = rng.uniform(0.0, float(row["duration_s"]) - (end_s - begin_s))
        file = str(Path(row["file"]).with_suffix(".wav"))
        path = target / file
        if not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            samples, rate_hz = soundfile.read(source / row["file"], dtype="int16")
            shift = round((new_begin_s - begin_s) * rate_hz)
            soundfile.write(path, np.roll(samples, shift), rate_hz, "PCM_16")
        moved = {"begin_s": f"{new_begin_s:.4f}", "end_s": f"{new_begin_s + end_s - begin_s:.4f}"}
        turned.append((row | {"file": file}, box | {"file": file} | moved))
        placed.append(
            (
                new_begin_s,
                float(box["low_hz"]),
                new_begin_s + end_s - begin_s,
                float(box["high_hz"]),
            )
        )
    for name, rows in (("recordings", [r for r, _ in turned]), ("annotations", [b for _, b in turned])):
        with open(target / f"{name}.csv", "w", newline="") as out:
            writer = csv.DictWriter(out, fieldnames=list(rows[0]))
            writer.writeheader()
            writer.writerows(rows)
    return placed


def tables(folder: Path) -> tuple[Any, ...]:
    """A song on several microphones is one event: no split may part it."""
    return (
        "--annotations",
        folder / "annotations.csv",
        "--table",
        folder / "recordings.csv",
        "--group",
        "event_id",
    )


def mast(*argv: object) -> None:
    print("$ mast", *argv, flush=True)
    done = subprocess.run([sys.executable, "-m", "mast_ray", *map(str, argv)])
    if done.returncode not in (0, 4):
        raise SystemExit(done.returncode)


def whole(folder: Path) -> Row:
    """Figures of the held-out split in a folder of `mast evaluate`."""
    rows = json.loads((folder / "metrics.json").read_text())["rows"]
    row = next(r for r in rows if r["split"] == "test" and r["by"] == "all")
    figures = {name: row["figures"][name] for name in FIGURES}
    shown = {name: [round(f["estimate"], 3), round(f["low"], 3), round(f["high"], 3)] for name, f in figures.items()}  # fmt: skip
    return {"n": row["num_truth"]} | shown


def fixed_box(known: list[tuple[float, ...]], asked: list[tuple[float, ...]]) -> float:
    """Share of recordings whose song the median box of the known ones overlaps by half."""
    boxes = torch.tensor(asked)
    median = torch.tensor(known).median(dim=0).values[None]
    return round((pairwise_iou(boxes, median)[:, 0] >= 0.5).float().mean().item(), 3)


if __name__ == "__main__":
    main()
