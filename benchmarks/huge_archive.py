"""An archive of ten million recordings and five billion chunks through planning, ledger and operator: rows are made up,
the code is the real one.

    python benchmarks/huge_archive.py --out huge_archive.json                      # 1 and 10 million recordings, all cores
    python benchmarks/huge_archive.py --parts pool --recordings 20000 200000 --cores 2

Parts:
    sweep  `mast detect`: listing, order, units, ledger, commits, tally and tables (benchmarks/control_plane.py)
    pool   `mast pseudo-label` and the operator after it: 500 chunks per recording are planned, committed, counted and
           planned again; then every unit's chunks are looked up, grouped by site and hour, labelled and joined.

Each part and size runs in a process of its own. Units: seconds, per million recordings; GB of the driver and of the
largest worker; CPU seconds of the driver and of all workers, which hardly depend on what else a machine does. `slope`
and `cpu_slope`: seconds (or CPU seconds) per recording, the largest size over the smallest; 1 is a straight line.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from control_plane import peak_mb, simulate
from pseudo_operator import TEACHER, session, watched, write_prepared

from mast_ray.config.loading import apply_overrides
from mast_ray.config.recipes import field
from mast_ray.spectrogram.grid import CHUNK_S, HOP_S, bin_to_hertz
from mast_ray.stages.detect.chunks import FOLDER, chunk_units, chunks_of_a_unit, count_chunks
from mast_ray.stages.runner import RUNNERS, work_off
from mast_ray.stages.self_train.pseudo_stage import make_pseudo_labels
from mast_ray.storage.ledger import Attempt
from mast_ray.storage.spread import Spread
from mast_ray.storage.stage_run import stage_run
from mast_ray.storage.storage import Storage, open_storage
from mast_ray.storage.unit_runner import Work, WorkDone, publish_file
from mast_ray.storage.units import Item, Outcome, iter_commits, pending_units
from mast_ray.tables.prepared import open_prepared
from mast_ray.tables.reading.chunk_sets import runs_of_split
from mast_ray.tables.schemas import DETECTIONS, RECORDINGS

CHUNKS_PER_RECORDING, NUM_SITES, PER_DAY = 500, 100, 30
STAGE = "pseudo-label"


def recordings_table(count: int) -> pa.Table:
    """43 minutes each, 30 a day at 100 sites; a site's follow one another."""
    number = np.arange(count)
    site, place = np.divmod(number, -(-count // NUM_SITES))
    start = np.datetime64("2023-01-01T00:00:00", "us") + (place * 86_400 // PER_DAY) * np.timedelta64(
        10**6, "us"
    )
    names = pa.array([f"S{one:03d}" for one in range(NUM_SITES)])
    mixed = number.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)  # ids without an order, each once
    columns: dict[str, Any] = {
        "recording_id": [f"{one:016x}" for one in mixed.tolist()],
        "path": [f"S{a:03d}/{b:07d}.wav" for a, b in zip(site.tolist(), place.tolist(), strict=True)],
        "site": pa.DictionaryArray.from_arrays(site, names).cast(pa.string()),
        "start_utc": pa.array(start).cast(pa.timestamp("us", "UTC")),
        "utc_offset_s": np.zeros(count, np.int64),
        "duration_s": np.full(count, (CHUNKS_PER_RECORDING - 1) * HOP_S + CHUNK_S),
        "num_chunks": np.full(count, CHUNKS_PER_RECORDING),
    }
    return pa.table({
        one.name: pa.array(columns[one.name]).cast(one.type, safe=False) if one.name in columns
        else pa.nulls(count, one.type)
        for one in RECORDINGS
    })  # fmt: skip


@dataclass(frozen=True)
class FakeChunkWork:
    """A detection in one chunk of every stretch; all of its chunks count as done."""

    stage: Storage

    def __call__(self, attempt: Attempt, items: Sequence[Item]) -> WorkDone:
        attempt.beat()
        ids, begins, _ = zip(*(item.item_id.rsplit("-", 2) for item in items), strict=True)
        chunk = np.array(begins, np.int64) + 7
        columns = {
            "recording_id": pa.array(ids), "chunk": chunk,
            "begin_s": chunk * HOP_S + 1.0, "end_s": chunk * HOP_S + 1.5,
            "low_hz": np.full(len(items), bin_to_hertz(40.0)), "high_hz": np.full(len(items), bin_to_hertz(60.0)),
            "score": np.full(len(items), 0.9),
        }  # fmt: skip
        schema = pa.schema([one for one in DETECTIONS if one.name in columns])
        table = pa.table({one.name: pa.array(columns[one.name]).cast(one.type) for one in schema}, schema)
        with self.stage.scratch_file() as path:
            pq.write_table(table, path, compression="zstd")
            file = publish_file(self.stage, path, FOLDER, attempt.unit, len(table))
        outcomes = [Outcome(item.item_id, "done", record={"chunks": item.num_bytes}) for item in items]
        return WorkDone(outcomes, [file], {"detections": float(len(table))})


@dataclass(frozen=True)
class MakeFakeWork:
    stage: Storage

    def __call__(self) -> Work:
        return FakeChunkWork(self.stage)


def simulate_pool(num_recordings: int, runner_name: str, folder: Path, cores: int) -> dict[str, float]:
    """Planning, ledger and count of a pool, and the operator over it; seconds of each step."""
    runner, config = RUNNERS[runner_name], apply_overrides(field(), {"self_train.policy": "tuned"})
    write_prepared(folder, 0, recordings_table(num_recordings))
    times: dict[str, float] = {}
    mark = time.perf_counter()

    def lap(name: str) -> None:
        nonlocal mark
        now = time.perf_counter()
        times[name], mark = round(now - mark, 2), now

    prepared = open_prepared(folder / "prepared")
    lap("opening_s")
    chunks = runs_of_split(prepared, "pool")
    num_chunks = len(chunks)
    units = chunk_units(prepared, chunks, chunks_of_a_unit(num_chunks))
    lap("planning_s")
    stage = open_storage(folder / "detections")
    with stage_run(stage, STAGE, config, "key", {}, {}) as run:
        pending = pending_units(units, iter_commits(stage))
        work_off(runner, run, pending, MakeFakeWork(stage), Spread(min(cores, len(pending))))
        lap("units_s")
        run.finish(count_chunks(stage, units))
    lap("counting_s")
    assert not pending_units(units, iter_commits(stage))
    num_units = len(units)
    del units, pending, chunks
    lap("planning_a_resume_s")
    made = make_pseudo_labels(config, prepared, stage, str(folder / "pseudo"), TEACHER, runner=runner)
    lap("operator_s")
    assert made.figures["figures"]["num_chunks"] == num_chunks == num_recordings * CHUNKS_PER_RECORDING
    return times | {
        "recordings": num_recordings,
        "chunks": num_chunks,
        "units": num_units,
        "total_s": round(sum(times.values()), 2),
        "driver_peak_gb": round(peak_mb() / 1e3, 3),
    }


def simulate_sweep(num_recordings: int, runner_name: str, folder: Path, cores: int) -> dict[str, float]:
    found = simulate(num_recordings, runner_name, folder)
    named = {name: round(value, 2) for name, value in found.items()}
    return named | {"driver_peak_gb": round(found["driver_peak_mb"] / 1e3, 3)}


PARTS: dict[str, Callable[[int, str, Path, int], dict[str, float]]] = {
    "sweep": simulate_sweep,
    "pool": simulate_pool,
}


def slopes(runs: Sequence[dict[str, float]]) -> dict[str, float]:
    """Of the largest size over the smallest."""
    small, large = runs[0], runs[-1]
    more = (large["recordings"] - small["recordings"]) / 1e6
    rates = [run["total_s"] / run["recordings"] * 1e6 for run in (small, large)]
    cpu = [(run["driver_cpu_s"] + run["workers_cpu_s"]) / run["recordings"] * 1e6 for run in (small, large)]
    return {
        "seconds_per_million_smallest": round(rates[0], 2),
        "seconds_per_million_largest": round(rates[1], 2),
        "slope": round(rates[1] / rates[0], 3),
        "cpu_seconds_per_million_smallest": round(cpu[0], 2),
        "cpu_seconds_per_million_largest": round(cpu[1], 2),
        "cpu_slope": round(cpu[1] / cpu[0], 3),
        "driver_gb_per_further_million": round((large["driver_peak_gb"] - small["driver_peak_gb"]) / more, 3),
        "worker_gb_per_further_million": round((large["worker_gb"] - small["worker_gb"]) / more, 3),
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--recordings", type=int, nargs="+", default=[1_000_000, 10_000_000])
    parser.add_argument("--parts", nargs="+", choices=sorted(PARTS), default=list(PARTS))
    parser.add_argument("--runner", choices=sorted(RUNNERS), default="ray")
    parser.add_argument(
        "--cores", type=int, default=os.cpu_count() or 1, help="that Ray may use (default: all)"
    )
    parser.add_argument("--folder", help="where the tables go (default: a temporary folder)")
    parser.add_argument("--out", help="JSON to write")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.one:
        folder = Path(tempfile.mkdtemp(prefix="mast-huge-", dir=args.folder))
        try:
            with session(args.runner, args.cores):
                found = PARTS[args.one](args.recordings[0], args.runner, folder, args.cores)
            print(json.dumps(found), flush=True)
        finally:
            shutil.rmtree(folder, ignore_errors=True)
        return
    result: dict[str, Any] = {
        "configuration": {"machine": platform.machine(), "cores": args.cores, "runner": args.runner},
        "made": f"{datetime.now(UTC):%Y-%m-%d}",
        "parts": {},
    }
    for part in args.parts:
        runs: list[dict[str, float]] = []
        for count in args.recordings:
            command = [
                sys.executable, __file__, "--one", part, "--recordings", str(count), "--runner", args.runner,
                "--cores", str(args.cores), *(["--folder", args.folder] if args.folder else []),
            ]  # fmt: skip
            runs.append(watched(command))
            print(part, json.dumps(runs[-1]), flush=True)
            result["parts"][part] = {"runs": runs} | (slopes(runs) if len(runs) > 1 else {})
            if args.out:  # what is measured is kept, whatever becomes of the rest
                Path(args.out).write_text(json.dumps(result, indent=1) + "\n")
        print(
            part, {name: value for name, value in result["parts"][part].items() if name != "runs"}, flush=True
        )


if __name__ == "__main__":
    main()
