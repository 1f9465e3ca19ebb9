"""`mast demo`: the whole mission on a small synthetic archive, on a local Ray
with two CPU workers, in minutes.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from mast_ray.verbs.pipeline import Step, method_table, run_steps

HELP = """Make a small synthetic archive of four sites and several days (nothing is downloaded), then run the whole mission on it:
prepare, pretrain, train, self-train (pseudo-labels, stage 1, stage 2, two rounds), tune, evaluate, detect, export, report.
Interrupted and started again it goes on where it was."""

SPLITS = {"test": "in-domain", "temporal_ood": "unseen dates", "site_ood": "unseen site"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--out", default="demo", help="folder of the run (default: demo)")
    parser.add_argument("--hours", type=float, default=0.9, help="hours of synthetic audio")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--workers", type=int, default=2, help="Ray workers")


def demo_steps(out: Path, hours: float, seed: int, workers: int) -> list[Step]:
    """Every step as a user could type it."""
    archive, prepared = out / "archive", out / "prepared"
    knobs = ("--recipe", "tiny", "--set", f"seed={seed}", "--set", f"cluster.num_workers={workers}")
    held_out = ("--set", "split.ood_sites=[SITE04]", "--set", "split.ood_dates=[2024-05-27]")
    labelled = ("--annotations", str(archive / "annotations"), "--table", str(archive / "recordings.csv"))
    brief = (
        "--set",
        "detector.epochs=6",
        "--set",
        "detector.validate_every_epochs=6",
        "--set",
        "detector.warmup_epochs=0.5",
    )
    short = ("--set", "self_train.max_chunks=96", "--set", "self_train.stage2.epochs=1")
    few_trials = (
        "--set",
        "tune.trials=2",
        "--set",
        "tune.epochs_stage2=1",
        "--set",
        "self_train.max_chunks=64",
    )
    final = out / "self_trained" / "model"
    return [
        Step("make a synthetic archive: four sites, four days", "synth",
             ("--out", str(archive), "--hours", f"{hours:g}", "--sites", "4", "--labelled-share", "0.3", "--density", "24",
              "--snr-db", "18", "--seed", str(seed))),
        Step("prepare: recordings to log-mel tables, labels, splits", "prepare",
             (str(archive / "audio"), *labelled, "--out", str(prepared), *knobs, *held_out)),
        Step("pretrain on the unlabelled pool", "pretrain", (str(prepared), "--out", str(out / "encoder"), *knobs, "--set", "pretrain.epochs=2")),
        Step("train a detector on one labelled day at one site", "train",
             (str(prepared), "--encoder", str(out / "encoder"), "--out", str(out / "detector"), *knobs, *brief)),
        Step("train the FCOS baseline with the same budget", "train",
             (str(prepared), "--out", str(out / "fcos"), *knobs, *brief, "--set", "model.name=fcos")),
        Step("self-train: two rounds of pseudo-labels, stage 1, stage 2", "self-train",
             (str(prepared), "--detector", str(out / "detector"), "--out", str(out / "self_trained"), *knobs, *short)),
        Step("tune thresholds and a few loss weights", "tune",
             (str(prepared), "--detector", str(out / "detector"), "--out", str(out / "tune"), "--self-trained", str(out / "self_trained"),
              *knobs, *few_trials)),
        Step("evaluate FCOS", "evaluate", (str(out / "fcos"), str(prepared), "--out", str(out / "scores" / "fcos"), *knobs)),
        Step("evaluate the supervised detector", "evaluate",
             (str(out / "detector"), str(prepared), "--out", str(out / "scores" / "detector"), *knobs)),
        Step("evaluate the self-trained detector", "evaluate",
             (str(final), str(prepared), "--out", str(out / "scores" / "self_trained"), *knobs)),
        Step("detect: boxes for every recording", "detect",
             (str(final), str(archive / "audio"), "--table", str(archive / "recordings.csv"), "--out", str(out / "detections"), *knobs)),
        Step("export to Raven", "export", (str(out / "detections"), "--to", "raven", "--out", str(out / "raven"))),
        Step("report", "report", (str(out), "--audio", str(archive / "audio"), "--out", str(out / "report.html"))),
    ]  # fmt: skip


def run(args: argparse.Namespace) -> int:
    from mast_ray.on_ray.session import ray_session
    from mast_ray.verbs.main import run_verb

    out = Path(args.out)
    steps = demo_steps(out, args.hours, args.seed, args.workers)
    with ray_session(num_cpus=max(2, args.workers)):
        code = run_steps(steps, run_verb, out)
    if code in (0, 4):
        scores = {"FCOS": "fcos", "MAST supervised": "detector", "MAST self-trained": "self_trained"}
        print("\n" + method_table({name: out / "scores" / folder for name, folder in scores.items()}, SPLITS))
        print(
            "\n95 % intervals over recordings. Where they overlap, a difference may be noise: this archive is small."
        )
        print(f"\nlook and listen: {(out / 'report.html').resolve()}")
        print(f"in Raven:        {(out / 'raven').resolve()}")
        print("your own sound:  mast run --audio FOLDER --annotations TABLES --out run")
    return code
