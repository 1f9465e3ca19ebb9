"""The paper's question on synthetic landscapes of real sound: what do pretraining and
self-training add at unseen dates and sites?

An archive is made of real clips and scenes (one labelled day at one site, several sites and days unlabelled),
then every stage is run with the verbs a user would type. The table has F1 and AP with 95 % intervals over
recordings, for the supervised detector and every round.

    python benchmarks/self_training_study.py --work DIR --clips-dir CLIPS --scenes-dir SCENES                  # one GPU
    python benchmarks/self_training_study.py --work DIR --hours 1 --size tiny --recipe tiny --scale 0.2        # two CPU cores

Finished steps are skipped, so `--steps` can spread a study over several sittings. `control` trains as many
further steps as self-training did, on expert labels alone: what it gains is training time. `--seed 1` trains
and self-trains again, on the same archive and encoder.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import torch

STEPS = ("synth", "prepare", "pretrain", "picture", "train", "self-train", "control", "table")


def main() -> None:
    args = arguments()
    args.work.mkdir(parents=True, exist_ok=True)
    log = args.work / "study_seconds.json"
    seconds = json.loads(log.read_text()) if log.exists() else {}
    for step in args.steps:
        started = time.perf_counter()
        match step:
            case "picture":
                draw_reconstruction(args)
            case "table":
                print_table(args, seconds)
            case "control":
                mast("self-train", *argv_of(step, args))
            case _:
                mast(step, *argv_of(step, args))
        name = f"{step}, seed {args.seed}" if args.seed else step
        seconds[name] = round(seconds.get(name, 0.0) + time.perf_counter() - started, 1)
        log.write_text(json.dumps(seconds, indent=1))
        print(f"== {name}: {seconds[name]} s", flush=True)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--work", type=Path, required=True)
    add("--clips-dir", default="", help="real clips; without them calls are made by formulas")
    add("--scenes-dir", default="")
    add("--hours", type=float, default=30.0)
    add("--sites", type=int, default=6)
    add("--days", type=int, default=6)
    add("--labelled-share", type=float, default=0.12)
    add("--size", choices=("tiny", "small", "base"), default="base")
    add("--recipe", default="field")
    add("--scale", type=float, default=1.0, help="factor on every number of epochs")
    add("--runner", choices=("ray", "here"), default="ray")
    add("--steps", nargs="+", choices=STEPS, default=list(STEPS))
    add(
        "--stages", choices=("slow", "fast"), default="slow",
        help="self-training with the paper's rates and unfreezing, or with those of supervised training: few epochs move little with the first",
    )  # fmt: skip
    add("--seed", type=int, default=0)
    add("--set", dest="sets", action="append", default=[], metavar="KEY=VALUE")
    add("--out", type=Path)
    return parser.parse_args()


def mast(verb: str, *argv: str) -> None:
    command = [sys.executable, "-m", "mast_ray", verb, *argv]
    print("$ mast", verb, *argv, flush=True)
    code = subprocess.run(command).returncode
    if code not in (0, 4):
        sys.exit(code)


def argv_of(step: str, args: argparse.Namespace) -> list[str]:
    work = args.work
    archive, prepared = str(work / "archive"), str(work / "prepared")
    real = ["--clips-dir", args.clips_dir] if args.clips_dir else []
    real += ["--scenes-dir", args.scenes_dir] if args.scenes_dir else []
    match step:
        case "synth":
            share = str(args.labelled_share)
            return ["--out", archive, "--hours", str(args.hours), "--sites", str(args.sites), "--days", str(args.days),
                    "--minutes", "2", "--labelled-share", share, *real]  # fmt: skip
        case "prepare":
            labels = ["--annotations", f"{archive}/annotations", "--table", f"{archive}/recordings.csv"]
            return [f"{archive}/audio", *labels, "--out", prepared, "--runner", args.runner, *knobs(args)]
        case "pretrain":
            return [prepared, "--out", str(work / "encoder"), "--runner", args.runner, *knobs(args)]
        case "train":
            init = ["--encoder", str(work / "encoder")]
            return [prepared, *init, "--out", own(args, "detector"), "--runner", args.runner, *knobs(args)]
        case _:
            init = ["--detector", own(args, "detector"), "--truth", f"{archive}/truth.csv"]
            extra = control_knobs(args) if step == "control" else []
            out = own(args, "control" if step == "control" else "self_trained")
            return [prepared, *init, "--out", out, "--runner", args.runner, *knobs(args), *extra]


def own(args: argparse.Namespace, folder: str) -> str:
    """A folder of this seed."""
    return str(args.work / (f"{folder}_seed{args.seed}" if args.seed else folder))


def control_knobs(args: argparse.Namespace) -> list[str]:
    """Expert labels only, with stage 1's rate and as many steps per round as both
    stages of self-training had.
    """
    first = Path(own(args, "self_trained")) / "round1"
    stages = [json.loads((first / name / "summary.json").read_text()) for name in ("stage1", "stage2")]
    steps = sum(stage["steps"] for stage in stages)
    record = json.loads((first.parent / "manifest.json").read_text())["config"]["self_train"]
    epochs = max(1, round(steps * record["stage2"]["batch_size"] / stages[1]["train_chunks"]))
    chosen = {
        "self_train.curriculum": "stage2_only",
        "self_train.stage2.epochs": epochs,
        "self_train.stage2.validate_every_epochs": max(1, epochs // 3),
        "self_train.stage2.learning_rate": record["stage1"]["learning_rate"],
    }
    return [part for key, value in chosen.items() for part in ("--set", f"{key}={value}")]


def knobs(args: argparse.Namespace) -> list[str]:
    """Schedules for minutes on one GPU; the held-out site is the last one, the held-out date the last day."""
    spec = json.loads((args.work / "archive" / "spec.json").read_text())
    dates = sorted({line.split(",")[2][:10] for line in recordings_of(args) if ",temporal_ood," in line})
    chosen: dict[str, object] = {
        "seed": args.seed,
        "split.ood_sites": f"[SITE{spec['num_sites']:02d}]",
        "split.ood_dates": f"[{','.join(dates)}]",
        "model.size": args.size,
    }
    if args.recipe != "tiny":
        epochs = {"pretrain": 12, "detector": 30, "self_train.stage1": 3, "self_train.stage2": 10}
        for section, number in epochs.items():
            chosen[f"{section}.epochs"] = max(1, round(number * args.scale))
            chosen[f"{section}.warmup_epochs"] = round(0.1 * number * args.scale, 2)
        chosen |= {
            "pretrain.batch_size": 256, "pretrain.learning_rate": 4e-4, "pretrain.validate_every_epochs": 3,
            "detector.batch_size": 32, "detector.backbone_multiplier": 0.3, "detector.ema_decay": 0.998,
            "detector.unfrozen_blocks": 12, "detector.validate_every_epochs": 3,
            "self_train.stage1.batch_size": 64, "self_train.stage1.ema_decay": 0.998, "self_train.stage1.validate_every_epochs": 1,
            "self_train.stage1.backbone_multiplier": 0.05, "self_train.stage1.unfreeze_start_epoch": 0.5,
            "self_train.stage1.unfreeze_every_epochs": 0.5, "self_train.stage1.unfreeze_blocks": 3,
            "self_train.stage2.batch_size": 32, "self_train.stage2.ema_decay": 0.998, "self_train.stage2.validate_every_epochs": 2,
            "self_train.stage2.unfreeze_start_epoch": 1, "self_train.stage2.unfreeze_every_epochs": 2,
            "self_train.stage2.unfreeze_blocks": 6,
        }  # fmt: skip
    if args.stages == "fast":
        for stage, rate in (("stage1", 3e-4), ("stage2", 1e-4)):
            fast = {"batch_size": 32, "learning_rate": rate, "backbone_multiplier": 0.3, "unfrozen_blocks": 12,
                    "unfreeze_blocks": 0, "unfreeze_every_epochs": 0, "unfreeze_start_epoch": 0}  # fmt: skip
            chosen |= {f"self_train.{stage}.{name}": value for name, value in fast.items()}
    pairs = [f"{key}={value}" for key, value in chosen.items()] + args.sets
    return ["--recipe", args.recipe, *(part for pair in pairs for part in ("--set", pair))]


def recordings_of(args: argparse.Namespace) -> list[str]:
    return (args.work / "archive" / "recordings.csv").read_text().splitlines()


def draw_reconstruction(args: argparse.Namespace) -> None:
    """Input, what was left of it, and what the autoencoder made of that, for three held-out chunks."""
    import matplotlib.pyplot as plt

    from mast_ray.models.encoder import NUM_TOKENS, TOKEN_GRID, patches_of, spectrogram_of
    from mast_ray.models.masking import Masking
    from mast_ray.tables.prepared import open_prepared
    from mast_ray.tables.reading.chunk_sets import chunks_of_split
    from mast_ray.tables.reading.reader import ChunkReader
    from mast_ray.training.assembly import load_autoencoder

    device = "cuda" if torch.cuda.is_available() else "cpu"
    model, card = load_autoencoder(str(args.work / "encoder"))
    model = model.to(device).eval()
    prepared = open_prepared(args.work / "prepared")
    reader = ChunkReader(prepared, chunks_of_split(prepared, "val"), batch_size=16)
    raw = next(reader.sequential()).to(device)
    logmel = card.normaliser()(raw.values, raw.scale, raw.offset)[::5][:3]
    mask = Masking().draw(len(logmel), torch.Generator(device).manual_seed(0))
    with torch.no_grad():
        result = model(logmel, mask)
    hidden = mask.is_masked.reshape(-1, NUM_TOKENS, 1)
    patches = patches_of(logmel)
    shown = [logmel, spectrogram_of(torch.where(hidden, patches.min(), patches)),
             spectrogram_of(torch.where(hidden, result.prediction.float(), patches), TOKEN_GRID)]  # fmt: skip
    figure, axes = plt.subplots(3, len(logmel), figsize=(5 * len(logmel), 6.5), sharex=True, sharey=True)
    for row, (title, pictures) in enumerate(
        zip(("input", "what is left", "reconstruction"), shown, strict=True)
    ):
        for column in range(len(logmel)):
            picture = pictures[column, 0].float().cpu().numpy().T
            low, high = np.quantile(logmel[column].cpu().numpy(), [0.02, 0.998])
            axes[row, column].imshow(
                picture, origin="lower", aspect="auto", vmin=low, vmax=high, extent=(0, 10.24, 0, 128)
            )
            axes[row, column].set_title(title)
    axes[2, 0].set_xlabel("seconds")
    axes[2, 0].set_ylabel("mel bin")
    figure.tight_layout()
    figure.savefig(args.work / "reconstruction.png", dpi=70)


def print_table(args: argparse.Namespace, seconds: dict[str, float]) -> None:
    result: dict[str, object] = {
        "configuration": {k: str(v) for k, v in vars(args).items()},
        "seconds": seconds,
    }
    for title, folder in (("rounds", "self_trained"), ("control", "control")):
        table = Path(own(args, folder)) / "rounds.json"
        if table.exists():
            result[title] = json.loads(table.read_text())
            print(title, json.dumps(result[title], indent=1)[:6000])
    if args.out:
        args.out.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
