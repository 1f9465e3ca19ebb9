"""Which threshold is best read off a few labelled calls? The score of the highest F1, or the middle of all scores whose F1 is
nearly as high: by a fixed amount, or by its standard error (`best_threshold` takes two of them, and a tenth of the highest F1 at the most).

    python benchmarks/threshold_rules.py --work DIR --archives 10 --out threshold_rules_two_cores.json

Every archive is made, prepared and trained on as in `mast demo` (shipped `tiny`, one labelled day, one pass), with another seed.
Both the shipped and the trained detector get their threshold by each rule from the validation split, and F1 in-domain and at the
unseen site is that at this threshold. Gains are over the highest F1, paired over archives, with their standard error.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

from mast_ray.evaluation.matching import Matches
from mast_ray.evaluation.metrics import best_threshold, f1_over_thresholds
from mast_ray.stages.runner import HERE
from mast_ray.stages.score.evaluate import evaluate_model
from mast_ray.verbs.main import config_of

HIGHEST, BUILT_IN = "highest F1", "as it is built in"
TOLERANCES = (0.01, 0.02, 0.05, 0.1, 0.15)
STANDARD_ERRORS = (1, 2, 3)
SPLITS = {"test": "in-domain", "site_ood": "unseen site"}
SYNTH = ("--hours", "0.4", "--sites", "4", "--labelled-share", "0.3", "--density", "24", "--snr-db", "18")
ONE_PASS = (
    "self_train.stage2.epochs=1",
    "self_train.stage2.validate_every_epochs=1",
    "self_train.stage2.min_steps=0",
)


def middle_threshold(matches: Matches, tolerance: float) -> float:
    """The middle of the scores around the best one whose F1 is at most so much lower."""
    curve = f1_over_thresholds(matches)
    best = int(np.flatnonzero(curve.f1 >= np.nanmax(curve.f1))[-1])
    low_enough = np.flatnonzero(curve.f1 < curve.f1[best] - tolerance)
    first = int(low_enough[low_enough < best].max(initial=-1)) + 1
    last = int(low_enough[low_enough > best].min(initial=len(curve.f1))) - 1
    return float((curve.threshold[max(first - 1, 0)] + curve.threshold[last]) / 2)


def highest_threshold(matches: Matches) -> float:
    """Half-way between the lowest score that is kept and the highest that is not, where F1 is highest."""
    return middle_threshold(matches, 0.0)


def standard_error_of(matches: Matches) -> float:
    """Of the highest F1, as if it were a share of the labelled calls; not nothing where all of them are right."""
    highest, count = float(np.nanmax(f1_over_thresholds(matches).f1)), matches.num_truth
    share = (highest * count + 1) / (count + 2)
    return (share * (1 - share) / count) ** 0.5


def f1_at(matches: Matches, threshold: float) -> float:
    return float(f1_over_thresholds(matches, [threshold]).f1[0])


def one_archive(work: Path, seed: int) -> dict[str, Any]:
    """Detector -> split -> rule -> F1, with the number of calls that chose the threshold."""
    place = work / f"archive{seed}"
    knobs = ["--recipe", "tiny", "--set", f"seed={seed}"]
    archive, prepared, detector = (str(place / name) for name in ("archive", "prepared", "detector"))
    _mast("synth", "--out", archive, *SYNTH, "--seed", str(seed))
    _mast("prepare", f"{archive}/audio", "--annotations", f"{archive}/annotations", "--table", f"{archive}/recordings.csv",
          "--out", prepared, *knobs, "--set", "split.ood_sites=[SITE04]", "--runner", "here")  # fmt: skip
    _mast("train", prepared, "--start", "shipped:tiny", "--out", detector, *knobs,
          *(part for one in ONE_PASS for part in ("--set", one)), "--runner", "here")  # fmt: skip
    config = config_of("tiny", [], [f"seed={seed}"])
    shipped = str(Path(__file__).parents[1] / "mast_ray" / "weights" / "tiny")
    found: dict[str, Any] = {"seed": seed}
    for name, model in (("shipped", shipped), ("trained", detector)):
        with contextlib.redirect_stdout(sys.stderr):
            scores = evaluate_model(config, model, prepared, str(place / f"scores_{name}"), runner=HERE)
        own = {split: scored.matches for split, scored in scores.splits.items()}
        found["num_calls"] = own["val"].num_truth
        rules = {HIGHEST: highest_threshold(own["val"]), BUILT_IN: best_threshold(own["val"])} | {
            f"middle of F1 within {tolerance}": middle_threshold(own["val"], tolerance)
            for tolerance in TOLERANCES
        }
        error = standard_error_of(own["val"])
        rules |= {
            f"middle of F1 within {count} standard errors": middle_threshold(own["val"], count * error)
            for count in STANDARD_ERRORS
        }
        found[name] = {
            shown: {rule: f1_at(own[split], at) for rule, at in rules.items()}
            | {"best possible": float(np.nanmax(f1_over_thresholds(own[split]).f1))}
            for split, shown in SPLITS.items()
        }
    return found


def _mast(*words: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "mast_ray", *words], check=False, capture_output=True, text=True
    )
    if done.returncode not in (0, 4):
        raise RuntimeError(f"mast {words[0]} ended with {done.returncode}: {done.stderr[-2000:]}")


def summary(archives: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """A line per detector, split and rule: mean F1 over archives, and its gain over the highest F1."""
    lines = []
    for name in ("shipped", "trained"):
        for shown in SPLITS.values():
            base = np.array([one[name][shown][HIGHEST] for one in archives])
            for rule in archives[0][name][shown]:
                gain = np.array([one[name][shown][rule] for one in archives]) - base
                error = float(gain.std(ddof=1) / len(gain) ** 0.5) if len(gain) > 1 else None
                lines.append({"detector": name, "split": shown, "rule": rule, "f1": float((base + gain).mean()),
                              "gain": float(gain.mean()), "standard_error": error})  # fmt: skip
    return lines


def tell(lines: list[dict[str, Any]], archives: list[dict[str, Any]], out: Path | None) -> None:
    """Print the lines, and write them with the archives behind them."""
    for line in lines:
        error = "" if line["standard_error"] is None else f" +- {line['standard_error']:.3f}"
        print(
            f"{line['detector']}, {line['split']}: {line['rule']}: {line['f1']:.3f} ({line['gain']:+.3f}{error})"
        )
    if out:
        out.write_text(json.dumps({"lines": lines, "archives": archives}, indent=1))


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--work", type=Path, required=True, help="folder of the archives and detectors")
    parser.add_argument("--archives", type=int, default=10)
    parser.add_argument("--first-seed", type=int, default=1)
    parser.add_argument("--parallel", type=int, default=2)
    parser.add_argument("--out", type=Path, help="write the figures as JSON")
    args = parser.parse_args()
    with ThreadPoolExecutor(args.parallel) as pool:
        archives = list(
            pool.map(
                lambda seed: one_archive(args.work, seed),
                range(args.first_seed, args.first_seed + args.archives),
            )
        )
    tell(summary(archives), archives, args.out)
    return 0


if __name__ == "__main__":
    sys.exit(main())
