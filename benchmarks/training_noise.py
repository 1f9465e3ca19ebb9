"""How much a training of the next-site study differs from the same training done again, and gains that count it in.

The study's own intervals draw recordings anew; that a training ends elsewhere each time (order of its batches, last bits on a GPU, its
seed) is not in them. Here every stored training of a row counts, of all folders given.

    python benchmarks/training_noise.py --results DIR [DIR ...] --gains field_pretrained:field field_lessons:field_long
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from next_site_scores import Gain, Run, mean_figure, paired_gain, read_runs

SPLIT = "site_ood"
NORMAL_95 = 1.96


def figures_of(runs: Sequence[Run]) -> np.ndarray:
    """F1 at the unseen sites of every training."""
    return np.array([mean_figure([run], SPLIT) for run in runs])


def pooled_deviation(rows: Sequence[Sequence[Run]]) -> tuple[float, int]:
    """Standard deviation between trainings of one row, over all rows trained twice or more, and its degrees of freedom."""
    own = [figures_of(runs) for runs in rows if len(runs) > 1]
    freedom = sum(len(values) - 1 for values in own)
    squares = sum(float(((values - values.mean()) ** 2).sum()) for values in own)
    return (squares / freedom) ** 0.5 if freedom else float("nan"), freedom


def gain_with_training(first: Sequence[Run], second: Sequence[Run], deviation: float) -> Gain:
    """Mean of the second row's trainings minus the first's; the interval holds recordings and trainings."""
    recordings = paired_gain(first, second, SPLIT)
    assert recordings is not None, "no seed in common"
    by_recordings = (recordings.high - recordings.low) / 2 / NORMAL_95
    by_training = deviation * (1 / len(first) + 1 / len(second)) ** 0.5
    estimate = float(figures_of(second).mean() - figures_of(first).mean())
    half = NORMAL_95 * (by_recordings**2 + by_training**2) ** 0.5
    return Gain(estimate, estimate - half, estimate + half, min(len(first), len(second)))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--results", type=Path, nargs="+", required=True)
    parser.add_argument(
        "--gains",
        nargs="*",
        default=[],
        metavar="ROW:RIVAL",
        help="rows of like trainings: their noise is pooled",
    )
    args = parser.parse_args()
    by_row: dict[str, list[Run]] = {}
    for run in (run for folder in args.results for run in read_runs(folder)):
        by_row.setdefault(run.row, []).append(run)
    pairs = [one.split(":") for one in args.gains]
    named = sorted({name for pair in pairs for name in pair})
    print(
        "| row | trainings | F1 at the unseen sites, each | mean | standard deviation |\n|---|---|---|---|---|"
    )
    for name in named:
        values = figures_of(by_row[name])
        spread = f"{values.std(ddof=1):.4f}" if len(values) > 1 else ""
        each = " ".join(f"{value:.3f}" for value in values)
        print(f"| {name} | {len(values)} | {each} | {values.mean():.3f} | {spread} |")
    deviation, freedom = pooled_deviation([by_row[name] for name in named])
    print(f"\nbetween trainings of one row: {deviation:.4f} ({freedom} degrees of freedom)\n")
    for name, rival in pairs:
        print(f"{name} over {rival}: {gain_with_training(by_row[rival], by_row[name], deviation).text()}")


if __name__ == "__main__":
    main()
