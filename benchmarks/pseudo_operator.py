"""Pseudo-labels of a pool of the paper's size from stored detections: time and memory of the
operator by policy, no model involved.

    python benchmarks/pseudo_operator.py --out pseudo_operator.json       # 481,245 chunks, 170 detections
each: 3 GB of disk, up to 14 GB of memory

Detections are drawn at random, with scores like a detector's (most are low) and as many
files as `mast pseudo-label` writes.
"""

from __future__ import annotations

import argparse
import json
import platform
import subprocess
import sys
import tempfile
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np
import psutil
import pyarrow as pa
import pyarrow.parquet as pq

from mast_ray.config.loading import apply_overrides
from mast_ray.config.recipes import field
from mast_ray.spectrogram.grid import CHUNK_S, HOP_S, bin_to_hertz
from mast_ray.spectrogram.normalisation import Moments
from mast_ray.stages.self_train.pseudo_stage import Teacher, make_pseudo_labels
from mast_ray.storage.stage_folders import write_manifest
from mast_ray.storage.storage import open_storage
from mast_ray.storage.units import Commit, DataFile, put_commit
from mast_ray.tables.prepared import Prepared
from mast_ray.tables.schemas import DETECTIONS, LABELS, RECORDINGS, SPLITS

CHUNKS_PER_RECORDING, NUM_SITES, RECORDINGS_PER_FILE = 11, 30, 372


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--chunks", type=int, default=481_245)
    parser.add_argument("--per-chunk", type=int, default=170)
    parser.add_argument("--policies", nargs="+", default=["tuned", "per_group_quantile"])
    parser.add_argument("--folder", help="where the tables go (default: a temporary folder)")
    parser.add_argument("--out", help="JSON to write")
    parser.add_argument("--one", nargs=2, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.one:
        run_policy(Path(args.one[0]), args)
        return
    with tempfile.TemporaryDirectory(dir=args.folder) as name:
        folder = Path(name)
        began = time.perf_counter()
        write_detections(folder, args.chunks, args.per_chunk)
        print(
            f"{args.chunks:,} chunks, {args.chunks * args.per_chunk:,} detections written in {time.perf_counter() - began:.0f} s"
        )
        result = {
            "configuration": {
                "machine": platform.machine(),
                "chunks": args.chunks,
                "detections": args.chunks * args.per_chunk,
            },
            "bytes_on_disk": sum(p.stat().st_size for p in folder.rglob("*.parquet")),
            "policies": {policy: measured(folder, policy, args) for policy in args.policies},
        }
    if args.out:
        Path(args.out).write_text(json.dumps(result, indent=1) + "\n")


def recordings_table(num_chunks: int) -> pa.Table:
    """A minute each, around the clock at every site."""
    count = -(-num_chunks // CHUNKS_PER_RECORDING)
    start = datetime(2024, 5, 1, tzinfo=UTC)
    rows = {
        "recording_id": [f"{number:016x}" for number in range(count)],
        "path": [f"S{number % NUM_SITES:02d}/{number}.wav" for number in range(count)],
        "site": [f"S{number % NUM_SITES:02d}" for number in range(count)],
        "start_utc": [start + timedelta(minutes=10 * (number // NUM_SITES)) for number in range(count)],
        "utc_offset_s": [0] * count,
        "duration_s": [(CHUNKS_PER_RECORDING - 1) * HOP_S + CHUNK_S] * count,
        "num_chunks": [CHUNKS_PER_RECORDING] * count,
    }
    return pa.table(
        {
            name.name: pa.array(rows.get(name.name, [None] * count)).cast(name.type, safe=False)
            for name in RECORDINGS
        }
    )


def fake_prepared(folder: Path, num_chunks: int) -> Prepared:
    recordings = recordings_table(num_chunks)
    count = len(recordings)
    splits = pa.table(
        {
            "recording_id": recordings.column("recording_id"),
            "begin_s": np.zeros(count),
            "end_s": recordings.column("duration_s"),
            "split": [""] * count,
            "in_pool": [True] * count,
        },
        schema=SPLITS,
    )
    empty = pa.table({}, schema=pa.schema([]))
    return Prepared(
        open_storage(folder / "prepared"),
        {},
        recordings,
        empty,
        LABELS.empty_table(),
        splits,
        Moments(1.0, 0.0, 1.0),
    )


def write_detections(folder: Path, num_chunks: int, per_chunk: int) -> None:
    stage, rng = open_storage(folder / "detections"), np.random.default_rng(0)
    ids = recordings_table(num_chunks).column("recording_id").to_pylist()
    for first in range(0, len(ids), RECORDINGS_PER_FILE):
        some = ids[first : first + RECORDINGS_PER_FILE]
        count = len(some) * CHUNKS_PER_RECORDING * per_chunk
        recording = np.repeat(np.arange(len(some)), CHUNKS_PER_RECORDING * per_chunk)
        chunk = np.tile(np.repeat(np.arange(CHUNKS_PER_RECORDING), per_chunk), len(some))
        begin_s = chunk * HOP_S + rng.uniform(0, CHUNK_S - 1.0, count)
        low = rng.uniform(0, 110, count)
        columns = {
            "recording_id": pa.DictionaryArray.from_arrays(recording, pa.array(some)).cast(pa.string()),
            "chunk": chunk, "begin_s": begin_s, "end_s": begin_s + rng.uniform(0.05, 1.0, count),
            "low_hz": bin_to_hertz(low), "high_hz": bin_to_hertz(low + rng.uniform(2, 17, count)),
            "score": 0.05 + 0.95 * rng.beta(0.4, 4.0, count),
        }  # fmt: skip
        names = [name for name in DETECTIONS if name.name in columns]
        table = pa.table({name.name: pa.array(columns[name.name]).cast(name.type) for name in names})
        key = f"detections/{first:08d}.parquet"
        path = folder / "detections" / key
        path.parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(table, path, compression="zstd")
        put_commit(stage, Commit(f"{first:016x}", "t", (DataFile(key, count, ""),), (), {}))
    write_manifest(stage, "pseudo-label", field(), "key", {}, {}, datetime.now(UTC))


def measured(folder: Path, policy: str, args: argparse.Namespace) -> dict[str, float]:
    """A process of its own, so that its largest memory is that of the policy."""
    command = [sys.executable, __file__, "--one", str(folder), policy, "--chunks", str(args.chunks)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    watched, most = psutil.Process(process.pid), 0
    while process.poll() is None:
        try:
            most = max(most, watched.memory_info().rss)
        except psutil.Error:
            break
        time.sleep(0.1)
    answer, _ = process.communicate()
    if process.returncode:
        sys.exit(process.returncode)
    figures = json.loads(answer.splitlines()[-1]) | {"most_mb": round(most / 1e6)}
    print(policy, figures, flush=True)
    return figures


def run_policy(folder: Path, args: argparse.Namespace) -> None:
    policy = args.one[1]
    prepared = fake_prepared(folder, args.chunks)
    config = apply_overrides(field(), {"self_train.policy": policy})
    began = time.perf_counter()
    made = make_pseudo_labels(
        config,
        prepared,
        open_storage(folder / "detections"),
        str(folder / policy),
        Teacher("model", 0.4, 0.02, 1),
    )
    seconds = time.perf_counter() - began
    print(json.dumps({"seconds": round(seconds, 1), "boxes": len(made.boxes.score)}))


if __name__ == "__main__":
    main()
