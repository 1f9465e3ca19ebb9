"""What few boxes are worth: F1 of a detector that starts from the shipped one against one that starts from nothing, both of
one architecture, after the same number of equal steps on the same chunks.

    python benchmarks/fine_tuning.py --out fine_tuning.json [--work DIR] [--boxes 50 200 0] [--steps 60 90 120]

The archive is `mast synth` with a seed of its own: species formulas and sites that the shipped detectors were not trained on
(their worlds have seeds 100 and 101). One labelled day at one site trains; of its chunks as many are drawn as hold the
wanted number of boxes (0: all). Both starts use the knobs of recipe `tiny`: from the shipped detector those of
self_train.stage2, from nothing those of detector, which learn faster. Differences are paired over recordings, 95 %.
Everything runs in this process and goes on where it was when it is started again.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

import torch

from mast_ray.config.loading import apply_overrides
from mast_ray.config.tree import Config
from mast_ray.stages.runner import HERE
from mast_ray.stages.score.evaluate import ModelScores, evaluate_model
from mast_ray.stages.train.train import run_train_detector
from mast_ray.tables.prepared import Prepared, open_prepared
from mast_ray.tables.reading.chunk_sets import chunks_of_split
from mast_ray.tables.reading.reader import ChunkReader
from mast_ray.training.data.labels import LabelSource, attach_boxes, labelled_chunks
from mast_ray.training.files.model_files import read_card
from mast_ray.training.files.shipped import shipped_model
from mast_ray.verbs.main import config_of, run_verb

ARCHIVE_SEED = 4711
SPLITS = {"test": "in-domain", "temporal_ood": "unseen dates", "site_ood": "unseen site"}
SECTION = {"shipped": "self_train.stage2", "scratch": "detector"}


def main() -> None:
    args = arguments()
    prepared = prepared_archive(args.work, args.hours)
    rows = []
    for boxes, steps in zip(args.boxes, args.steps, strict=True):
        config, num_chunks, num_boxes = drawn(prepared, boxes)
        row: dict[str, Any] = {"boxes": num_boxes, "chunks": num_chunks, "steps": steps}
        scores: dict[str, ModelScores] = {}
        for start in SECTION:
            folder = args.work / f"{start}-{boxes}"
            seconds = trained(config, start, steps, prepared, folder / "model")
            scores[start] = evaluate_model(
                config, str(folder / "model"), prepared.storage.url, str(folder / "scores"), runner=HERE
            )
            row[start] = {"seconds": seconds, **figures(scores[start])}
        gains = scores["shipped"].gains_over(scores["scratch"], config)
        row["f1_gain"] = {split: limited(gains[split]["f1"]._asdict()) for split in SPLITS if split in gains}
        rows.append(row)
        print(line(row), flush=True)
    start = evaluate_model(
        config, str(shipped_model("tiny")), prepared.storage.url, str(args.work / "at_once"), runner=HERE
    )
    result = {"archive_hours": args.hours, "archive_seed": ARCHIVE_SEED, "model": "shipped:tiny",
              "threads": torch.get_num_threads(), "at_once": figures(start), "rows": rows}  # fmt: skip
    args.out.write_text(json.dumps(result, indent=1))


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--work", type=Path, default=Path("fine_tuning"))
    parser.add_argument("--out", type=Path, default=Path("fine_tuning.json"))
    parser.add_argument("--hours", type=float, default=0.6)
    parser.add_argument("--boxes", type=int, nargs="+", default=[50, 200, 0], help="0: all there are")
    parser.add_argument(
        "--steps", type=int, nargs="+", default=[60, 90, 120], help="of both starts, per budget"
    )
    return parser.parse_args()


def prepared_archive(work: Path, hours: float) -> Prepared:
    """The archive of the demo, from another seed."""
    archive, out = work / "archive", work / "prepared"
    synth = ["--out", str(archive), "--hours", f"{hours:g}", "--sites", "4", "--labelled-share", "0.3"]
    assert run_verb("synth", [*synth, "--density", "24", "--snr-db", "18", "--seed", str(ARCHIVE_SEED)]) == 0
    labels = ["--annotations", str(archive / "annotations"), "--table", str(archive / "recordings.csv")]
    held_out = ["--set", "split.ood_sites=[SITE04]", "--set", "split.ood_dates=[2024-05-27]"]
    knobs = ["--recipe", "tiny", "--runner", "here"]
    assert run_verb("prepare", [str(archive / "audio"), *labels, "--out", str(out), *knobs, *held_out]) == 0
    return open_prepared(str(out))


def drawn(prepared: Prepared, boxes: int) -> tuple[Config, int, int]:
    """The config that trains on as few chunks as hold so many boxes, and how many chunks and boxes those are."""
    config = config_of("tiny", None, [])
    most = len(chunks_of_split(prepared, "train"))
    for num_chunks in range(1, most + 1) if boxes else (0,):
        chosen = apply_overrides(config, {"split.budget_chunks": num_chunks})
        labelled = labelled_chunks(prepared, LabelSource(), chosen)
        reader = ChunkReader(prepared, labelled.chunks, batch_size=4, num_threads=1)
        attach_boxes(reader, prepared, labelled, chosen.spectrogram.min_remnant_s)
        if int(reader.boxes.counts().sum()) >= boxes:
            break
    return chosen, len(labelled.chunks), int(reader.boxes.counts().sum())


def trained(config: Config, start: str, steps: int, prepared: Prepared, out: Path) -> float:
    """Seconds of training, its start and validation included."""
    section = SECTION[start]
    steps_only = {f"{section}.min_steps": steps, f"{section}.max_steps": steps}
    shipped = shipped_model("tiny")
    architecture = {f"model.{key}": value for key, value in read_card(shipped, config.storage).model.items()}
    knobs = apply_overrides(config, steps_only | architecture)
    begun = time.perf_counter()
    run_train_detector(knobs, prepared.storage.url, str(out), section=section,  # type: ignore[arg-type]
                       init_detector=str(shipped) if start == "shipped" else "", runner=HERE)  # fmt: skip
    return round(time.perf_counter() - begun, 1)


def figures(scores: ModelScores) -> dict[str, Any]:
    """Split -> F1 with its interval, AP, and how many calls."""
    found = {}
    for split in SPLITS:
        if (row := scores.sheet.whole(split)) is not None:
            found[split] = {"f1": limited(row.figures["f1"]._asdict()), "ap_area": row.figures["ap_area"].estimate,
                            "calls": row.num_truth, "recordings": row.num_recordings}  # fmt: skip
    return found


def limited(figure: dict[str, Any]) -> dict[str, Any]:
    """A figure as JSON holds it: one recording has no interval."""
    return {name: None if value != value else value for name, value in figure.items()}


def line(row: dict[str, Any]) -> str:
    parts = []
    for split, title in SPLITS.items():
        if split in row["f1_gain"]:
            f1 = [row[start][split]["f1"]["estimate"] for start in SECTION]
            gain = row["f1_gain"][split]
            limits = "" if gain["low"] is None else f" [{gain['low']:+.3f}, {gain['high']:+.3f}]"
            parts.append(f"{title} {f1[0]:.3f} against {f1[1]:.3f}: {gain['estimate']:+.3f}{limits}")
    seconds = ", ".join(f"{start} {row[start]['seconds']:.0f} s" for start in SECTION)
    return f"{row['boxes']} boxes, {row['steps']} steps ({seconds}): " + "; ".join(parts)


if __name__ == "__main__":
    main()
