"""Chunks per second of `mast pseudo-label` from prepared tables, beside the bare inference of
the same detector in the same run.

    python benchmarks/pseudo_label.py --random-weights --size base --batch 256 --out pseudo_label.json          # one GPU, ViT-B
    python benchmarks/pseudo_label.py --random-weights --size tiny --batch 4 --chunks 64 --chunks-per-unit 16   # smoke check on CPU
    python benchmarks/pseudo_label.py --model DIR --prepared DIR                                               # your own

bare    the compiled `detect` on one batch that lies on the device: normalisation, network, decoding, suppression, nothing read or written
stage   the whole stage: tables decoded by threads, copied, detected, brought to seconds and hertz, written to Parquet, committed
The stage is timed between the commits of its first and its last unit, so that start and compilation are left out and every gap between
units is counted. A detector with random weights fires everywhere: its score floor is set so that --per-chunk detections are stored.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import tempfile
import time
from pathlib import Path

import torch
from ingest import make_prepared

from mast_ray.config.loading import apply_overrides
from mast_ray.config.recipes import field
from mast_ray.config.tree import Config
from mast_ray.inference.chunk_detector import ChunkDetector
from mast_ray.models.build import build_detector
from mast_ray.spectrogram.grid import HOP_S
from mast_ray.stages.detect.chunks import ChunkWork, MakeChunkWork
from mast_ray.stages.runner import RUNNERS
from mast_ray.stages.self_train.pseudo_label import pool_task, run_pseudo_label
from mast_ray.storage.storage import open_storage
from mast_ray.storage.units import read_commits
from mast_ray.tables.prepared import open_prepared
from mast_ray.tables.reading.chunk_sets import chunks_of_split
from mast_ray.tables.reading.reader import ChunkReader
from mast_ray.training.assembly import architecture_of
from mast_ray.training.files.model_files import Card, write_model

PAPER_POOL = 481_245
SEGMENTS = 128  # of a recording in the archive of noise: 11 minutes


def main() -> None:
    args = arguments()
    with tempfile.TemporaryDirectory(prefix="mast-pseudo-label-", dir=args.scratch) as scratch:
        prepared = args.prepared or make_prepared(
            Path(scratch) / "prepared", -(-args.chunks // (SEGMENTS - 1)), SEGMENTS, args.storage
        )
        model, config = with_floor(args, scratch, prepared)
        about = {
            "machine": platform.machine(), "cores": os.cpu_count(), "torch": torch.__version__,
            "device": torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu",
            "size": config.model.size, "batch": args.batch, "runner": args.runner, "compiled": args.compile,
            "chunks_per_unit": args.chunks_per_unit, "score_floor": config.evaluate.score_floor,
        }  # fmt: skip
        print(json.dumps(about), flush=True)
        work = MakeChunkWork(pool_task(config, model, prepared, f"{scratch}/bare"), 0)()
        assert isinstance(work, ChunkWork)
        bare = [bare_rate(work.detector, work, args.seconds)]
        print(f"bare   {bare[0]:10.1f} chunks/s", flush=True)
        out = Path(scratch) / "out"
        begun_s = time.perf_counter()
        counts = run_pseudo_label(
            config,
            model,
            prepared,
            str(out),
            runner=RUNNERS[args.runner],
            chunks_per_unit=args.chunks_per_unit,
        )["counts"]
        wall_s = time.perf_counter() - begun_s
        rate, num_units = stage_rate(out)
        bare.append(bare_rate(work.detector, work, args.seconds))
        bare_chunks_per_s = statistics.median(bare)
        result = {
            "configuration": about,
            "bare_chunks_per_s": bare_chunks_per_s,
            "bare_before_and_after": bare,
            "stage_chunks_per_s": rate,
            "share_of_bare": rate / bare_chunks_per_s,
            "times_real_time": rate * HOP_S,
            "units_timed": num_units - 1,
            "chunks": counts["chunks"],
            "detections_per_chunk": counts["detections"] / counts["chunks"],
            "wall_s_with_start_and_compilation": wall_s,
            "extrapolation_not_measured": {"chunks": PAPER_POOL, "minutes": PAPER_POOL / rate / 60},
        }
    print(json.dumps({name: value for name, value in result.items() if name != "configuration"}, indent=1))
    if args.out:
        Path(args.out).write_text(json.dumps(result, indent=1) + "\n")


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--model", default="", help="detector folder")
    add(
        "--random-weights",
        action="store_true",
        help="a detector of --size with fresh weights instead of --model",
    )
    add("--size", choices=("tiny", "small", "base"), default="base")
    add("--prepared", default="", help="prepared archive (default: noise)")
    add("--storage", choices=("uint8", "float16"), default="uint8")
    add("--chunks", type=int, default=40_960, help="chunks in the archive of noise")
    add("--chunks-per-unit", type=int, default=8_192)
    add("--batch", type=int, default=256)
    add("--per-chunk", type=float, default=30.0, help="detections stored per chunk with random weights")
    add("--compile", choices=("auto", "yes", "no"), default="auto", help="auto: on a GPU")
    add("--runner", choices=("here", "ray"), default="here")
    add("--seconds", type=float, default=10.0, help="of bare inference, before and after")
    add("--threads", type=int, default=0, help="reader threads; 0: cores, at most 8")
    add("--scratch", default=None, help="folder for scratch files")
    add("--out", default="", help="JSON to write")
    args = parser.parse_args()
    if args.random_weights == bool(args.model):
        parser.error("give --model DIR or --random-weights")
    if args.compile == "auto":
        args.compile = "yes" if torch.cuda.is_available() else "no"
    return args


def with_floor(args: argparse.Namespace, scratch: str, prepared: str) -> tuple[str, Config]:
    """The model folder and the config; for random weights a floor that about --per-chunk detections pass."""
    knobs = {
        "model.size": args.size, "evaluate.batch_size": args.batch, "model.compile": args.compile == "yes",
        "cluster.reader_threads": args.threads,
    }  # fmt: skip
    config = apply_overrides(field(), knobs)
    if args.model:
        return args.model, config
    torch.manual_seed(0)
    detector = build_detector(architecture_of(config.model)).eval()
    normalisation = open_prepared(prepared).normalisation()
    folder = str(Path(scratch) / "model")
    card = Card("detector", config.model.model_dump(mode="json"), normalisation.to_dict())
    write_model(open_storage(folder), detector.state_dict(), card)
    probe = apply_overrides(config, {"model.compile": False, "evaluate.batch_size": 4})
    work = MakeChunkWork(pool_task(probe, folder, prepared, f"{scratch}/probe"), 0)()
    assert isinstance(work, ChunkWork)
    batch = next(iter(reader_of(work).sequential(batch_size=4))).to(work.detector.inputs.device)
    with torch.no_grad():
        _, score, is_valid = work.detector.inferred(
            batch.values, batch.scale, batch.offset, batch.valid_frames
        )
    ranked = score[is_valid].sort(descending=True).values
    floor = float(ranked[min(len(ranked) - 1, round(args.per_chunk * 4))])
    return folder, apply_overrides(config, {"evaluate.score_floor": floor})


def reader_of(work: ChunkWork) -> ChunkReader:
    return ChunkReader(
        work.prepared, chunks_of_split(work.prepared, "pool"), batch_size=work.detector.batch_size
    )


@torch.no_grad()
def bare_rate(detector: ChunkDetector, work: ChunkWork, seconds: float) -> float:
    """Chunks per second of inference on a batch that lies on the device."""
    device = detector.inputs.device
    reader = reader_of(work)
    batch = next(iter(reader.sequential())).to(device)
    assert len(batch) == detector.batch_size, "the archive is smaller than a batch"
    wait = torch.cuda.synchronize if device.type == "cuda" else (lambda: None)

    def run(count: int) -> float:
        wait()
        begun_s = time.perf_counter()
        for _ in range(count):
            detector._infer(batch.values, batch.scale, batch.offset, batch.valid_frames)
        wait()
        return time.perf_counter() - begun_s

    run(3)
    once_s = run(3) / 3
    count = max(3, int(seconds / once_s))
    return count * detector.batch_size / run(count)


def stage_rate(out: Path) -> tuple[float, int]:
    """(chunks per second between the commits of the first and of the last unit, units)."""
    commits = {commit.unit_id: commit for commit in read_commits(open_storage(out))}
    moments = sorted((path.stat().st_mtime_ns, path.stem) for path in (out / "commit").glob("*.json"))
    assert len(moments) > 1, "one unit only: more --chunks, or fewer --chunks-per-unit"
    chunks = sum(outcome.record["chunks"] for _, name in moments[1:] for outcome in commits[name].outcomes)  # type: ignore[index]
    return chunks / ((moments[-1][0] - moments[0][0]) / 1e9), len(moments)


if __name__ == "__main__":
    main()
