"""`mast demo`: the whole mission on a small synthetic archive, on a local Ray
with two CPU workers, in minutes.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from mast_ray.config.errors import ConfigError
from mast_ray.verbs.pipeline import Step, method_table, run_steps

HELP = """Make a small synthetic archive of four sites and several days (nothing is downloaded; its species and sites are not those
that the shipped detector was trained on), then show on it what the shipped detector finds at once, what one labelled day adds, what
self-training adds, and what a plain FCOS learns from the same day in that time: prepare, train, self-train, evaluate, detect, export,
report, all on Ray, and sixteen seconds of the unseen site to listen to.
--whole also pretrains on the pool and searches thresholds and loss weights. Interrupted and started again it goes on where it was."""
HOURS = 0.4

SPLITS = {"test": "in-domain", "temporal_ood": "unseen dates", "site_ood": "unseen site"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--out", default="demo", help="folder of the run (default: demo)")
    parser.add_argument("--hours", type=float, default=HOURS, help="hours of synthetic audio")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--workers",
        type=int,
        choices=(1, 2, 4),
        default=2,
        help="Ray workers (the demo's batches are split over them)",
    )
    parser.add_argument("--whole", action="store_true", help="also pretrain on the pool, and tune")


def demo_steps(out: Path, hours: float, seed: int, workers: int, whole: bool = False) -> list[Step]:
    """Every step as a user could type it, with about the seconds it takes on two idle cores."""
    archive, prepared = out / "archive", str(out / "prepared")
    knobs = ("--recipe", "tiny", "--set", f"seed={seed}", "--set", f"cluster.num_workers={workers}")
    held_out = ("--set", "split.ood_sites=[SITE04]", "--set", "split.ood_dates=[2024-05-27]")
    labelled = ("--annotations", str(archive / "annotations"), "--table", str(archive / "recordings.csv"))
    gently = _sets({"self_train.stage2.epochs": 1, "self_train.stage2.validate_every_epochs": 1,
                    "self_train.stage2.min_steps": 0})  # fmt: skip
    # as long as ours on the labelled day: a pass of FCOS takes a third of the time; it learns best at a higher rate
    brief = _sets({"detector.epochs": 3, "detector.validate_every_epochs": 3, "detector.warmup_epochs": 0.5,
                   "detector.learning_rate": 3e-3})  # fmt: skip
    # one training in place of two: every one starts six processes
    short = _sets({"self_train.rounds": 1, "self_train.max_chunks": 40, "self_train.curriculum": "mixed"})
    few = _sets({"tune.trials": 2, "tune.epochs_stage2": 1, "self_train.max_chunks": 64})
    own, trained, fcos = str(out / "detector"), str(out / "self_trained"), str(out / "fcos")
    final = str(out / "self_trained" / "model")
    # whatever was scored on the way is not detected again
    scores = {
        "shipped:energy": ("energy", own),
        "shipped:tiny": ("shipped", own),
        own: ("detector", own),
        final: ("self_trained", trained),
        fcos: ("fcos", fcos),
    }

    def step(seconds: float, title: str, verb: str, *argv: str) -> Step:
        return Step(title, verb, argv, seconds * hours / HOURS)

    steps = [
        step(5, "make a synthetic archive: four sites, four days", "synth",
             "--out", str(archive), "--hours", f"{hours:g}", "--sites", "4", "--labelled-share", "0.3", "--density", "24",
             "--snr-db", "18", "--seed", str(seed)),
        step(8, "prepare: recordings to log-mel tables, labels, splits", "prepare",
             str(archive / "audio"), *labelled, "--out", prepared, *knobs, *held_out),
        step(73, "train the shipped detector on one labelled day at one site", "train",
             prepared, "--start", "shipped:tiny", "--out", own, *knobs, *gently),
        step(76, "self-train on the unlabelled pool by pseudo-labels", "self-train",
             prepared, "--detector", own, "--out", trained, *knobs, *short),
        step(36, "train a plain FCOS on the same day for the same time", "train",
             prepared, "--start", "scratch", "--out", fcos, *knobs, *brief, "--set", "model.name=fcos"),
        *(step({"fcos": 8, "energy": 4}.get(name, 1), f"evaluate {name}", "evaluate",
               model, prepared, "--out", str(out / "scores" / name), "--known", known, *knobs)
          for model, (name, known) in scores.items()),
        step(31, "detect: boxes for every recording", "detect",
             final, str(archive / "audio"), "--table", str(archive / "recordings.csv"), "--out", str(out / "detections"), *knobs,
             "--runner", "ray"),
        step(1, "export to Raven", "export", str(out / "detections"), "--to", "raven", "--out", str(out / "raven")),
        step(15, "report", "report", str(out), "--audio", str(archive / "audio"), "--out", str(out / "report.html")),
    ]  # fmt: skip
    if whole:
        steps[2:2] = [step(90, "pretrain on the unlabelled pool", "pretrain",
                           prepared, "--out", str(out / "encoder"), *knobs, "--set", "pretrain.epochs=2")]  # fmt: skip
        steps.append(step(200, "tune thresholds and a few loss weights", "tune",
                          prepared, "--detector", own, "--out", str(out / "tune"), "--self-trained", trained, *knobs, *few))  # fmt: skip
    return steps


def listening_step(out: Path) -> Step:
    """Sixteen seconds of the unseen site: sound, and a picture with what is there (green) and what was found (blue)."""
    from mast_ray.storage.stage_folders import read_manifest
    from mast_ray.storage.storage import open_storage

    archive, found = out / "archive", out / "detections"
    recording = min((archive / "audio" / "SITE04").glob("*.wav"))
    manifest = read_manifest(open_storage(found))
    threshold = (manifest.counts.get("model_threshold") if manifest else None) or 0.0
    return Step("sixteen seconds to listen to", "show",
                (str(recording), "--annotations", str(archive / "truth.csv"), "--detections", str(found),
                 "--threshold", f"{threshold:.3f}", "--start", "4", "--seconds", "16",
                 "--sound", str(out / "sixteen_seconds.wav"), "-o", str(out / "sixteen_seconds.png")))  # fmt: skip


def _sets(knobs: dict[str, object]) -> tuple[str, ...]:
    return tuple(part for key, value in knobs.items() for part in ("--set", f"{key}={value}"))


def run(args: argparse.Namespace) -> int:
    from mast_ray.on_ray.session import ray_session
    from mast_ray.verbs.main import run_verb

    if "://" in args.out:
        raise ConfigError(f"--out {args.out}: the demo writes to a folder of this machine, e.g. --out demo")
    out = Path(args.out)
    steps = demo_steps(out, args.hours, args.seed, args.workers, args.whole)
    minutes = sum(step.expected_s for step in steps) / 60
    print(f"expected: about {minutes:.0f} minutes on two idle cores, longer on busy ones", flush=True)
    with ray_session(num_cpus=max(2, args.workers)):
        code = run_steps(steps, run_verb, out)
    if code not in (0, 4):
        return code
    listening = listening_step(out)
    print(f"\n$ {listening.command}", flush=True)
    part = run_verb(listening.verb, list(listening.argv))
    if part not in (0, 4):
        return part
    code = max(code, part)
    print(f"\nlisten:          {(out / 'sixteen_seconds.wav').resolve()} (with sixteen_seconds.png)")
    print(f"look and listen: {(out / 'report.html').resolve()}")
    print(f"in Raven:        {(out / 'raven').resolve()}")
    print("your own sound:  mast run --audio FOLDER --annotations TABLES --out run")
    scores = {
        "energy, at once": "energy",
        "shipped, at once": "shipped",
        "one labelled day": "detector",
        "self-trained": "self_trained",
        "FCOS, same time": "fcos",
    }
    print(
        "\n95 % intervals over recordings. Where they overlap, a difference may be noise: this archive is small.\n"
    )
    print(method_table({name: out / "scores" / folder for name, folder in scores.items()}, SPLITS))
    return code
