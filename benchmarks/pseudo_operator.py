"""Pseudo-labels of a pool from a hundred million stored detections: time and memory of the operator by policy, in the
driver and in its workers; no model involved.

    python benchmarks/pseudo_operator.py --out pseudo_operator.json       # 588,236 chunks, 170 detections each: 10 GB of disk
    python benchmarks/pseudo_operator.py --chunks 58824 --runner here
    python benchmarks/pseudo_operator.py --cores 8 --out pseudo_operator.json               # of a larger machine
    python benchmarks/pseudo_operator.py --limit 420 --out pseudo_operator.json   # no policy begins after seven minutes

Detections are drawn at random, with scores like a detector's (most are low) and as many files as `mast pseudo-label`
writes. Memory: the most that a process held at any time beside what it shares with others, read five times a second.
Every policy runs in a process and a Ray of its own, and is written to --out as soon as it is done.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from contextlib import AbstractContextManager, suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pyarrow as pa
import pyarrow.parquet as pq

from mast_ray.config.loading import apply_overrides
from mast_ray.config.recipes import field
from mast_ray.spectrogram.grid import CHUNK_S, HOP_S, bin_to_hertz
from mast_ray.stages.detect.chunks import chunks_of_a_unit
from mast_ray.stages.runner import RUNNERS
from mast_ray.stages.self_train.operator_task import Teacher
from mast_ray.stages.self_train.pseudo_stage import make_pseudo_labels
from mast_ray.storage.stage_folders import write_manifest
from mast_ray.storage.storage import open_storage
from mast_ray.storage.units import Commit, DataFile, Outcome, put_commit
from mast_ray.tables.prepared import open_prepared, write_table
from mast_ray.tables.schemas import DETECTIONS, INDEX, LABELS, RECORDINGS, SPLITS

CHUNKS_PER_RECORDING, NUM_SITES = 11, 30
# those that need all scores first: should time run out, they are measured
POLICIES = ["per_group_quantile", "per_group_mixture", "precision", "tuned", "fixed", "precision_pool"]
TEACHER = Teacher("model", threshold=0.4, kept_share=0.02, round=1, saturated=0.15)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--chunks", type=int, default=588_236)
    parser.add_argument("--per-chunk", type=int, default=170)
    parser.add_argument("--policies", nargs="+", default=POLICIES)
    parser.add_argument("--runner", choices=sorted(RUNNERS), default="ray")
    parser.add_argument(
        "--cores", type=int, default=os.cpu_count() or 1, help="that Ray may use (default: all)"
    )
    parser.add_argument("--folder", help="where the tables go (default: a temporary folder)")
    parser.add_argument(
        "--limit", type=float, default=float("inf"), help="seconds after which no policy begins"
    )
    parser.add_argument("--out", help="JSON to write")
    parser.add_argument("--one", nargs=2, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.one:
        run_policy(Path(args.one[0]), args.one[1], args.runner, args.cores)
        return
    began = time.perf_counter()
    with tempfile.TemporaryDirectory(prefix="mast-operator-", dir=args.folder) as name:
        folder = Path(name)
        write_prepared(folder, args.chunks)
        write_detections(folder, args.chunks, args.per_chunk, num_processes=args.cores)
        drawing_s = time.perf_counter() - began
        count = -(-args.chunks // CHUNKS_PER_RECORDING) * CHUNKS_PER_RECORDING * args.per_chunk
        print(f"{args.chunks:,} chunks, {count:,} detections written in {drawing_s:.0f} s", flush=True)
        result: dict[str, Any] = {
            "configuration": {
                "machine": platform.machine(),
                "cores": args.cores,
                "runner": args.runner,
                "chunks": args.chunks,
                "detections": count,
            },
            "made": f"{datetime.now(UTC):%Y-%m-%d}",
            "bytes_on_disk": sum(p.stat().st_size for p in folder.rglob("*.parquet")),
            "drawing_s": round(drawing_s, 1),
            "policies": {},
        }
        for policy in args.policies:
            if time.perf_counter() - began > args.limit:
                result.setdefault("not_begun", []).append(policy)
            else:
                result["policies"][policy] = measured(folder, policy, args.runner, args.cores)
                shutil.rmtree(folder / policy, ignore_errors=True)  # gigabytes
            if args.out:  # what is measured is kept, whatever becomes of the rest
                Path(args.out).write_text(json.dumps(result, indent=1) + "\n")
    if any("failed" in figures for figures in result["policies"].values()):
        sys.exit(1)


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


def write_prepared(folder: Path, num_chunks: int, recordings: pa.Table | None = None) -> str:
    """A prepared archive without frames, all of it pool."""
    stage = open_storage(folder / "prepared")
    recordings = recordings_table(num_chunks) if recordings is None else recordings
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
    tables = {"recordings": recordings, "index": INDEX.empty_table(), "labels": LABELS.empty_table()}
    for name, table in (tables | {"splits": splits}).items():
        write_table(stage, f"{name}.parquet", table)
    stage.write_atomic("stats.json", json.dumps({"count": 1, "mean": 0.0, "m2": 1.0}).encode())
    write_manifest(stage, "prepare", field(), "key", {}, {}, datetime.now(UTC))
    return stage.url


def write_detections(
    folder: Path,
    num_chunks: int,
    per_chunk: int,
    recordings_per_file: int = 0,
    num_processes: int = 1,
) -> None:
    """A finished stage of detections, as `mast pseudo-label` leaves it."""
    stage = open_storage(folder / "detections")
    recordings_per_file = recordings_per_file or chunks_of_a_unit(num_chunks) // CHUNKS_PER_RECORDING
    ids = recordings_table(num_chunks).column("recording_id").to_pylist()
    firsts = range(0, len(ids), recordings_per_file)
    parts = [(folder, first, ids[first : first + recordings_per_file], per_chunk) for first in firsts]
    if num_processes == 1:
        for part in parts:
            write_unit(part)
    else:
        with ProcessPoolExecutor(num_processes, multiprocessing.get_context("spawn")) as processes:
            list(processes.map(write_unit, parts))
    write_manifest(stage, "pseudo-label", field(), "key", {}, {}, datetime.now(UTC))


def write_unit(part: tuple[Path, int, list[str], int]) -> None:
    """A file of detections and its commit; the same rows whoever writes it."""
    folder, first, some, per_chunk = part
    rng = np.random.default_rng([0, first])
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
    spans = [f"{name}-0-{CHUNKS_PER_RECORDING}" for name in some]
    outcomes = tuple(Outcome(span, "done") for span in spans)
    commit = Commit(f"{first:016x}", "t", (DataFile(key, count, key),), outcomes, dict.fromkeys(spans, ""))
    put_commit(open_storage(folder / "detections"), commit)


def measured(folder: Path, policy: str, runner: str, cores: int) -> dict[str, float]:
    """Of one policy; one that fails does not keep the others from being measured."""
    command = [
        sys.executable, __file__, "--one", str(folder), policy, "--runner", runner, "--cores", str(cores)
    ]  # fmt: skip
    try:
        figures = watched(command)
    except subprocess.CalledProcessError as error:
        figures = {"failed": error.returncode}
    print(policy, figures, flush=True)
    return figures


def watched(command: list[str]) -> dict[str, float]:
    """The JSON that a command prints last, with memory and CPU seconds of it and of its Ray workers: a process of its
    own, so that its largest memory is that of its work. CPU seconds tell what others on the machine cannot change.
    """
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    most = {"driver": 0, "worker": 0, "all_workers": 0}
    cpu_s: dict[int, float] = {}
    while process.poll() is None:
        seen = processes_of(process.pid)
        workers = [private for pid, (private, _) in seen.items() if pid != process.pid]
        most["driver"] = max(most["driver"], seen.get(process.pid, (0, 0.0))[0])
        most["worker"] = max(most["worker"], *workers, 0)
        most["all_workers"] = max(most["all_workers"], sum(workers))
        cpu_s |= {pid: seconds for pid, (_, seconds) in seen.items()}
        time.sleep(0.2)
    answer, _ = process.communicate()
    if process.returncode:
        raise subprocess.CalledProcessError(process.returncode, command)
    figures = json.loads(answer.splitlines()[-1])
    driver_s = cpu_s.pop(process.pid, 0.0)
    return (
        figures
        | {f"{name}_gb": round(value / 1e9, 3) for name, value in most.items()}
        | {"driver_cpu_s": round(driver_s, 1), "workers_cpu_s": round(sum(cpu_s.values()), 1)}
    )


def processes_of(pid: int) -> dict[int, tuple[int, float]]:
    """Private bytes and CPU seconds so far of a driver and of the Ray workers below it."""
    try:
        driver = psutil.Process(pid)
        found = [driver, *(one for one in driver.children(recursive=True) if "ray::" in one.name())]
    except psutil.Error:
        return {}
    seen = {}
    for one in found:
        with suppress(psutil.Error):
            info, times = one.memory_info(), one.cpu_times()
            seen[one.pid] = (info.rss - info.shared, times.user + times.system)
    return seen


def run_policy(folder: Path, policy: str, runner: str, cores: int | None = None) -> None:
    config = apply_overrides(field(), {"self_train.policy": policy})
    places = (open_prepared(folder / "prepared"), open_storage(folder / "detections"), str(folder / policy))
    with session(runner, cores):
        began = time.perf_counter()
        made = make_pseudo_labels(config, *places, TEACHER, runner=RUNNERS[runner])
        seconds = time.perf_counter() - began
    boxes = round(made.figures["figures"]["boxes_per_chunk"] * made.figures["figures"]["num_chunks"])
    disk = sum(path.stat().st_size for path in (folder / policy).rglob("*.parquet"))
    print(json.dumps({"seconds": round(seconds, 1), "boxes": boxes, "bytes_written": disk}))


def session(runner: str, cores: int | None) -> AbstractContextManager[None]:
    """Ray on some of the cores of this machine."""
    from mast_ray.on_ray.session import ray_session

    return ray_session(cores) if runner == "ray" else RUNNERS[runner].session()


if __name__ == "__main__":
    main()
