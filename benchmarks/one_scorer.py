"""The same model on the same split has the same F1 everywhere: read it off a finished run where it is said.

    python benchmarks/one_scorer.py demo [--out one_scorer.json]

RUN is a folder of `mast demo` or `mast run`. For every split the final model's F1 is printed as `mast evaluate` wrote it
(scores/self_trained/metrics.json), as the report shows it, as the table of rounds has it, and, on the split that chose the
weights, as training's own validation saw it. The exit code is 1 when any two differ in any digit.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from mast_ray.evaluation.score_sheet import METRICS, ScoreSheet
from mast_ray.evaluation.split_truth import selection_split
from mast_ray.reporting.report.collect import collect_run
from mast_ray.reporting.report.collect_scores import split_name
from mast_ray.self_training.curriculum import steps_of
from mast_ray.self_training.round_records import ROUNDS, score_column
from mast_ray.storage.storage import open_storage
from mast_ray.tables.prepared import open_prepared

COLUMNS = ("evaluate", "report", "rounds", "training")


def f1_by_place(run: Path) -> dict[str, dict[str, float]]:
    """Split -> place -> F1 of the final model."""
    sheet = ScoreSheet.from_json((run / "scores" / "self_trained" / METRICS).read_bytes())
    found = {split: {"evaluate": sheet.whole(split).figures["f1"].estimate} for split in sheet.splits}  # type: ignore[union-attr]
    table = collect_run(open_storage(run), num_examples=0).tables[0]
    shown = {row[0]: row[table.columns.index("F1")] for row in table.rows}
    document = json.loads((run / "self_trained" / ROUNDS).read_text())
    final = document["final"]["round"]
    row = next(row for row in document["rounds"] if row["round"] == final)
    for split, places in found.items():
        places["report"] = shown[split_name(split)].value  # type: ignore[union-attr]
        places["rounds"] = row[score_column(split, "f1")]["estimate"]
    chooses = selection_split(open_prepared(run / "prepared"))
    found[chooses]["training"] = _validated(run, final)
    return found


def _validated(run: Path, final: int) -> float:
    """F1 of the best weights of the final model's last stage, as training wrote it down."""
    manifest = json.loads((run / "self_trained" / "manifest.json").read_text())
    stage = steps_of(manifest["config"]["self_train"]["curriculum"])[-1].name
    folder = run / "self_trained" / f"round{final}" / stage if final else run / "detector"
    return json.loads((folder / "summary.json").read_text())["best"]["f1"]


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("run", type=Path, help="folder of `mast demo` or `mast run`")
    parser.add_argument("--out", type=Path, help="write the figures as JSON")
    args = parser.parse_args()
    found = f1_by_place(args.run)
    print(f"F1 of {args.run}/self_trained/model\n{'':<14}" + "".join(f"{name:>22}" for name in COLUMNS))
    for split, places in found.items():
        print(f"{split:<14}" + "".join(f"{places.get(name, '-')!r:>22}" for name in COLUMNS))
    differing = [split for split, places in found.items() if len(set(places.values())) > 1]
    print("all equal" if not differing else f"different on {', '.join(differing)}")
    if args.out:
        args.out.write_text(json.dumps(found, indent=1))
    return 1 if differing else 0


if __name__ == "__main__":
    sys.exit(main())
