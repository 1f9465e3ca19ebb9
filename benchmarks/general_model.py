"""Trains the detectors that come with the package: animal sound in general, for every archive to start from.

    python benchmarks/general_model.py --data DATA --work WORK                      # one GPU, both sizes
    python benchmarks/general_model.py --data DATA --work WORK --export mast_ray/weights

DATA holds clips/, scenes/ and soundscapes/, each set a folder with recordings.csv. Two synthetic worlds are made of
it, one of real clips, one of formulas: many sites, backgrounds, levels and recorders, every call boxed. Real
soundscapes join them without labels. Then masked pretraining on everything, detection on the two worlds,
self-training on the real soundscapes. Every step is a verb, skipped when finished: run again, it goes on.
Left out: clips whose licence forbids derivatives or is not stated, and everything listed in TEST_ONLY and CHOICE_SITES.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

TEST_ONLY = (
    "nips4bplus",
    "SBT-3-33",
    "SBT-3-39",
)  # never trained on: the figures of the card are measured there
CHOICE_SITES = ("SBT-3-18", "SBT-3-32")  # nor these: models are chosen there (zero_shot.py --sites)
REAL = {"maad_24h": "BSD-3-Clause", "ovenbird_5sites": "CC BY 4.0"}
SETS = {
    "insects": ("InsectSet32", "CC BY 4.0"),
    "esc50_animals": ("ESC-50, animal classes", "CC BY-NC 3.0"),
    "fsc22_animals": ("FSC22, animal classes", "CC0 1.0"),
    "birds": ("Xeno-canto and NZ Department of Conservation", "per clip"),
}
# What each size is trained with, besides the recipe.
KNOBS = {
    "compact": {"pretrain.batch_size": 256, "pretrain.learning_rate": 4e-4, "detector.batch_size": 64,
                "detector.learning_rate": 5e-4},
    "tiny": {"pretrain.batch_size": 256, "pretrain.learning_rate": 8e-4, "detector.batch_size": 64,
             "detector.learning_rate": 1e-3},
}  # fmt: skip
WORLDS = ("clips_world", "formula_world")
STEPS = ("sources", "synth", "gather", "prepare", "pretrain", "train", "self-train")


def main() -> None:
    args = arguments()
    args.work.mkdir(parents=True, exist_ok=True)
    if args.export:
        for size in args.sizes:
            export(args, size)
        return
    seconds: dict[str, float] = {}
    for step in STEPS:
        if step not in args.steps:
            continue
        started = time.perf_counter()
        match step:
            case "sources":
                choose_sources(args)
            case "synth":
                in_parallel([synth_argv(args, world) for world in worlds(args)], 1)
            case "gather":
                gather(args)
            case _:
                sizes = args.sizes[:1] if step == "prepare" else args.sizes
                in_parallel([argv_of(step, args, size) for size in sizes], len(sizes))
        seconds[step] = round(time.perf_counter() - started, 1)
        print(f"== {step}: {seconds[step]} s", flush=True)
    (args.work / "seconds.json").write_text(json.dumps(seconds, indent=1))


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--data", type=Path, required=True, help="folder with clips/, scenes/, soundscapes/")
    add("--work", type=Path, required=True)
    add(
        "--hours",
        type=float,
        nargs=2,
        default=(16.0, 6.0),
        help="hours of the worlds of clips and of formulas; 0 leaves one out",
    )
    add("--sites", type=int, nargs=2, default=(32, 12))
    add("--sizes", nargs="+", choices=tuple(KNOBS), default=list(KNOBS))
    add("--recipe", default="field")
    add("--runner", choices=("ray", "here"), default="here")
    add("--steps", nargs="+", choices=STEPS, default=list(STEPS))
    add("--epochs", type=int, nargs=3, default=(40, 24, 8), help="of pretraining, detection, self-training")
    add("--start", choices=("scratch", "shipped"), default="scratch",
        help="train and self-train what has no encoder or detector in WORK from fresh weights, or from those that ship now")  # fmt: skip
    add("--set", dest="sets", action="append", default=[], metavar="KEY=VALUE")
    add("--export", type=Path, help="write the finished models into this folder, in half precision, and stop")
    return parser.parse_args()


def choose_sources(args: argparse.Namespace) -> None:
    """Clips whose licence allows it, linked into WORK/clips with their tables; sources.json names them all."""
    named: list[dict[str, object]] = []
    for name, (title, licence) in SETS.items():
        source, target = args.data / "clips" / name, args.work / "clips" / name
        rows = read_rows(source / "recordings.csv")
        kept = [row for row in rows if may_derive(row.get("license") or licence)]
        for row in kept:
            link(source / row["file"], target / row["file"])
        write_rows(target / "recordings.csv", kept)
        by_licence: dict[str, int] = {}
        for row in kept:
            text = plain_licence(row.get("license") or licence)
            by_licence[text] = by_licence.get(text, 0) + 1
        people = sorted({row["recordist"] for row in kept if row.get("recordist")})
        named.append({"source": title, "clips": len(kept), "left_out": len(rows) - len(kept),
                      "licences": by_licence, "recordists": people})  # fmt: skip
    for name, licence in real_sets(args).items():
        named.append(
            {"source": name, "licences": {licence: len(real_rows(args, name))}, "use": "without labels"}
        )
    scenes = {"esc50": "CC BY-NC 3.0", "fsc22": "CC0 1.0"}
    for name, licence in scenes.items():
        table = args.data / "scenes" / name / "recordings.csv"
        named.append({"source": f"{name} scenes", "licences": {licence: len(read_rows(table))}})
    (args.work / "sources.json").write_text(json.dumps(named, indent=1, ensure_ascii=False))


def may_derive(licence: str) -> bool:
    """Whether a clip under this licence may be trained on and the result passed on."""
    text = licence.lower()
    is_stated = any(word in text for word in ("by", "cc0", "zero", "free with attribution"))
    return is_stated and "nd/" not in text and "-nd" not in text and "repetti" not in text


def plain_licence(text: str) -> str:
    """`//creativecommons.org/licenses/by-nc-sa/4.0/` -> `CC BY-NC-SA 4.0`."""
    parts = text.replace("✓", "").strip().strip("/").split("/")
    if "licenses" in parts:
        kind, version = parts[-2:]
        return f"CC {kind.upper()} {version}"
    return "CC0 1.0" if "publicdomain" in parts else parts[-1].strip()


def worlds(args: argparse.Namespace) -> list[str]:
    """Synthetic worlds that have hours."""
    return [name for name, hours in zip(WORLDS, args.hours, strict=True) if hours > 0]


def synth_argv(args: argparse.Namespace, world: str) -> list[str]:
    index = WORLDS.index(world)
    argv = ["synth", "--out", str(args.work / world), "--hours", f"{args.hours[index]:g}", "--minutes", "0.5",
            "--sites", str(args.sites[index]), "--days", "3", "--seed", str(100 + index), "--site-shift", "1.3",
            "--snr-db", "10", "--density", "18"]  # fmt: skip
    if world == "clips_world":
        argv += ["--clips-dir", str(args.work / "clips"), "--scenes-dir", str(args.data / "scenes")]
    return argv


def real_sets(args: argparse.Namespace) -> dict[str, str]:
    """Real soundscapes and their licences; only learning without labels uses them."""
    return REAL if {"pretrain", "self-train"} & set(args.steps) else {}


def real_rows(args: argparse.Namespace, name: str) -> list[dict[str, str]]:
    """Recordings of a real set that may be trained on."""
    rows = read_rows(args.data / "soundscapes" / name / "recordings.csv")
    return [row for row in rows if row.get("site") not in (*TEST_ONLY, *CHOICE_SITES)]


def gather(args: argparse.Namespace) -> None:
    """One archive of both worlds and the real soundscapes: audio/, recordings.csv, annotations.csv."""
    root = args.work / "archive"
    recordings, events = [], []
    for world in worlds(args):
        folder = args.work / world
        for row in read_rows(folder / "recordings.csv"):
            file = f"{world}/{row['path'].removeprefix('audio/')}"
            link(folder / row["path"], root / "audio" / file)
            recordings.append((file, f"{world}_{row['site']}", row.get("start_time", "")))
        truth = read_rows(folder / "truth.csv")
        silent = {row["path"] for row in read_rows(folder / "recordings.csv")} - {
            row["path"] for row in truth
        }
        events += [(f"{world}/{path.removeprefix('audio/')}", "", "", "", "", "") for path in sorted(silent)]
        for row in truth:
            file = f"{world}/{row['path'].removeprefix('audio/')}"
            events.append((file, *(row[name] for name in ("begin_s", "end_s", "low_hz", "high_hz", "label"))))
    for name in real_sets(args):
        for row in real_rows(args, name):
            file = f"{name}/{row['file'].removeprefix('audio/')}"
            link(args.data / "soundscapes" / name / row["file"], root / "audio" / file)
            recordings.append((file, row.get("site") or name, row.get("start_time", "")))
    write_table(root / "recordings.csv", ("file", "site", "start_time"), recordings)
    write_table(root / "annotations.csv", ("file", "begin_s", "end_s", "low_hz", "high_hz", "label"), events)


def argv_of(step: str, args: argparse.Namespace, size: str) -> list[str]:
    root, work = args.work / "archive", args.work / size
    prepared, knobs = str(args.work / "prepared"), knobs_of(args, size)
    match step:
        case "prepare":
            own = [str(root / "audio"), "--annotations", str(root / "annotations.csv")]
            return ["prepare", *own, "--table", str(root / "recordings.csv"), "--out", prepared, *knobs]
        case "pretrain":
            return ["pretrain", prepared, "--out", str(work / "encoder"), *knobs]
        case "train":
            begin = ["--start", "scratch"]
            if (work / "encoder" / "card.json").exists():
                begin = ["--encoder", str(work / "encoder")]
            elif args.start == "shipped":
                begin = ["--start", f"shipped:{size}", "--section", "detector"]
            return ["train", prepared, *begin, "--out", str(work / "detector"), *knobs]
        case _:
            detector = str(work / "detector")
            if args.start == "shipped" and not (work / "detector" / "card.json").exists():
                detector = f"shipped:{size}"
            return [
                "self-train",
                prepared,
                "--detector",
                detector,
                "--out",
                str(work / "self_trained"),
                *knobs,
            ]


def knobs_of(args: argparse.Namespace, size: str) -> list[str]:
    pretraining, detection, self_training = args.epochs
    dev = [
        f"{world}_SITE{number}"
        for world in worlds(args)
        for number in ("03", "09")[: 2 - WORLDS.index(world)]
    ]
    chosen = {
        "model.size": size,
        "pretrain.epochs": pretraining,
        "pretrain.warmup_epochs": max(pretraining / 20, 0.2),
        "pretrain.validate_every_epochs": max(pretraining / 2, 1),
        "detector.epochs": detection,
        "detector.warmup_epochs": 1,
        "detector.validate_every_epochs": max(detection / 3, 1),
        "detector.unfrozen_blocks": 12,
        "detector.backbone_multiplier": 0.5 if "pretrain" in args.steps else 1.0,
        "self_train.rounds": 1,
        "self_train.stage1.epochs": self_training,
        "split.ood_dev_sites": f"[{','.join(dev)}]",
        "split.train": 0.92,
        "split.val": 0.04,
        **KNOBS[size],
    }
    sets = [f"{key}={value}" for key, value in chosen.items()] + args.sets
    return [
        "--recipe",
        args.recipe,
        "--runner",
        args.runner,
        *(part for text in sets for part in ("--set", text)),
    ]


def licence_text(sources: list[dict]) -> str:
    """The licence of the weights, and those of what they were trained on, for their card."""
    parts = ", ".join(f"{one['source']} ({', '.join(one['licences'])})" for one in sources)
    return f"CC BY-NC-SA 4.0; trained on clips of {parts}; recordists: weights/sources.json of the package mast_ray"


def export(args: argparse.Namespace, size: str) -> None:
    """The best finished model of a size into the package: half precision, its card with sha256 and licences."""
    from dataclasses import replace

    import torch

    from mast_ray.storage.storage import open_storage
    from mast_ray.training.files.model_files import read_model, write_model

    finished = [args.work / size / name for name in ("self_trained/model", "detector")]
    folder = next(path for path in finished if (path / "card.json").exists())
    weights, card = read_model(folder, "detector")
    halves = {
        name: value.half() if value.dtype == torch.float32 else value for name, value in weights.items()
    }
    target = args.export / size
    sources = (args.work / "sources.json").read_text()
    licence = licence_text(json.loads(sources))
    write_model(open_storage(target), halves, replace(card, config={}, licence=licence))
    (args.export / "sources.json").write_text(sources)
    print(f"{target}: from {folder}, {sum(v.numel() for v in halves.values()) / 1e6:.1f} M parameters")


def in_parallel(commands: list[list[str]], at_once: int) -> None:
    def call(argv: list[str]) -> int:
        print("$ mast", *argv, flush=True)
        return subprocess.run([sys.executable, "-m", "mast_ray", *argv]).returncode

    with ThreadPoolExecutor(max(at_once, 1)) as pool:
        codes = list(pool.map(call, commands))
    if any(code not in (0, 4) for code in codes):
        sys.exit(max(codes))


def link(source: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    if not target.exists():
        try:
            os.link(source, target)
        except OSError:  # another disk
            target.write_bytes(source.read_bytes())


def read_rows(path: Path) -> list[dict[str, str]]:
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def write_rows(path: Path, rows: list[dict[str, str]]) -> None:
    write_table(path, tuple(rows[0]), [tuple(row.values()) for row in rows])


def write_table(path: Path, columns: tuple[str, ...], rows: list[tuple[str, ...]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(columns)
        writer.writerows(rows)


if __name__ == "__main__":
    main()
