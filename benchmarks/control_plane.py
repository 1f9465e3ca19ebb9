"""The control plane of `mast detect` with a million recordings that do not exist: listing, planning,
units, ledger, commits, tally, tables.

    python benchmarks/control_plane.py --recordings 100000 1000000 --runner ray --out control_plane.json

No audio: a unit's work makes up what it would have found. Everything around it is the verb's own. Unit:
seconds of the driver per step, peak memory of the driver (VmHWM), recordings per second. Goals: 1,000,000
recordings in under 10 minutes and 2 GB, time linear in their number.
"""

from __future__ import annotations

import argparse
import json
import platform
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from mast_ray.config.recipes import field
from mast_ray.inference.detection_rows import ROWS
from mast_ray.stages.detect.detect import Sweep
from mast_ray.stages.detect.work import (
    UNIT_RECORDINGS,
    arrow_bytes,
    parquet_bytes,
    partition_folder,
    put_file,
)
from mast_ray.stages.runner import RUNNERS
from mast_ray.storage.entries import Entry
from mast_ray.storage.ledger import Attempt
from mast_ray.storage.stage_folders import read_manifest
from mast_ray.storage.storage import Storage, open_storage
from mast_ray.storage.unit_runner import Work, WorkDone
from mast_ray.storage.units import DataFile, Item, Outcome
from mast_ray.tables.preparing.inventory import list_archive

RECORDING_S = 360.0
NUM_BYTES = 34_560_044  # six minutes at 48 kHz
PER_DAY = 240
NUM_SITES = 100
REJECTED_EVERY = 1000
DETECTIONS_PER_RECORDING = 4


@dataclass(frozen=True)
class FakeArchive:
    """A listing of recordings that do not exist: 100 sites, 240 recordings a day each."""

    num_recordings: int
    url: str = "fake://archive"

    def list(self, prefix: str = "", folders_named: Callable[[str], bool] | None = None) -> Iterator[Entry]:
        per_site = -(-self.num_recordings // NUM_SITES)
        steps = (timedelta(seconds=place * 86_400 // PER_DAY) for place in range(per_site))
        starts = [f"{datetime(2023, 1, 1) + step:%Y%m%d_%H%M%S}" for step in steps]
        for number in range(self.num_recordings):
            site, place = divmod(number, per_site)
            version = f"{number * 2654435761 % (1 << 128):032x}"  # as long as an etag
            yield Entry(f"S{site:03d}/S{site:03d}_{starts[place]}.wav", NUM_BYTES, version)

    def local_path(self, key: str) -> Path | None:
        return None


@dataclass(frozen=True)
class FakeWork:
    """Outcomes and tables of a unit, made up; one recording in a thousand is rejected."""

    stage: Storage

    def __call__(self, attempt: Attempt, items: Sequence[Item]) -> WorkDone:
        attempt.beat()
        outcomes, records = [], []
        days: dict[tuple[str, str], list[Item]] = {}
        for item in items:
            if int(item.item_id, 16) % REJECTED_EVERY == 0:
                outcomes.append(Outcome(item.item_id, "rejected", "EMPTY_FILE", "the file has no bytes"))
                continue
            outcomes.append(Outcome(item.item_id, "done"))
            site, day = item.path.split("/")[0], item.path.split("_")[1]
            days.setdefault((site, f"{day[:4]}-{day[4:6]}-{day[6:]}"), []).append(item)
            records.append(_record(item, site))
        files: list[DataFile] = []
        for place, own in sorted(days.items()):
            files.append(
                put_file(
                    self.stage, attempt.unit, partition_folder(*place), parquet_bytes(_rows(own)), "parquet"
                )
            )
        if records:
            known = pa.Table.from_pylist(records, schema=UNIT_RECORDINGS)
            files.append(put_file(self.stage, attempt.unit, "recordings", arrow_bytes(known), "arrow"))
        found = float(DETECTIONS_PER_RECORDING * len(records))
        return WorkDone(outcomes, files, {"audio_s": RECORDING_S * len(records), "detections": found})


def _record(item: Item, site: str) -> dict[str, Any]:
    return {
        "recording_id": item.item_id, "path": item.path, "site": site, "start_utc": datetime(2023, 1, 1), "utc_offset_s": 0,
        "time_source": "filename", "time_flags": "", "duration_s": RECORDING_S, "sample_rate_hz": 48_000, "num_channels": 1,
        "num_bytes": item.num_bytes, "num_frames": 35_998, "num_chunks": 70, "is_annotated": False, "is_salvaged": False,
        "fingerprint": item.item_id,
    }  # fmt: skip


def _rows(items: Sequence[Item]) -> pa.Table:
    count = DETECTIONS_PER_RECORDING * len(items)
    columns: dict[str, Any] = {field.name: pa.nulls(count, field.type) for field in ROWS}
    columns["recording_id"] = pa.array(np.repeat([item.item_id for item in items], DETECTIONS_PER_RECORDING))
    columns["begin_s"] = pa.array(np.arange(count) * 0.25)
    columns["score"] = pa.array(np.full(count, 0.5, np.float32))
    return pa.table(columns, schema=ROWS)


def make_fake_work(stage: Storage) -> Callable[[Any], Callable[[], Work]]:
    return lambda workers: _Maker(stage)


@dataclass(frozen=True)
class _Maker:
    stage: Storage

    def __call__(self) -> Work:
        return FakeWork(self.stage)


def peak_mb() -> float:
    """Highest resident memory of this process so far."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM")) / 1024


def simulate(num_recordings: int, runner: str, folder: Path) -> dict[str, float]:
    """A whole run and a run again with nothing to do; seconds of each step."""
    config = field()
    archive: Any = FakeArchive(num_recordings)
    stage = open_storage(folder)
    marks = [time.perf_counter()]

    def lap() -> float:
        marks.append(time.perf_counter())
        return marks[-1] - marks[-2]

    items = list_archive(archive).items
    times = {"listing_s": lap()}
    sweep = Sweep(archive, stage, items, config, None, {"model": "fake"})
    times["ordering_s"] = lap()
    code = sweep.run(RUNNERS[runner], make_fake_work(stage))
    times["run_s"] = lap()
    assert code == 4 and sweep.code_if_done() == 4
    _, pending = sweep.plan(_any_workers())
    times["planning_a_resume_s"] = lap()
    assert not pending
    manifest = read_manifest(stage)
    assert manifest is not None
    counts = manifest.counts
    assert counts["recordings"] + counts["rejected"] == counts["offered"] == num_recordings
    return times | {
        "recordings": num_recordings,
        "total_s": marks[-1] - marks[0],
        "recordings_per_s": num_recordings / (marks[-1] - marks[0]),
        "driver_cpu_s": time.process_time(),
        "driver_peak_mb": peak_mb(),
        "files": counts["files"],
        "rejected": counts["rejected"],
    }


def _any_workers() -> Any:
    from mast_ray.stages.detect.plan import Workers

    return Workers("cpu", 1, 1.0)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--recordings", type=int, nargs="+", default=[100_000, 1_000_000])
    parser.add_argument("--runner", choices=("ray", "here"), default="here")
    parser.add_argument("--work", help="folder for the tables (default: a temporary one)")
    parser.add_argument("--out", help="JSON to write")
    parser.add_argument(
        "--one",
        action="store_true",
        help="print the result of one size as JSON (used for a process of its own)",
    )
    args = parser.parse_args()
    if args.one:
        folder = Path(tempfile.mkdtemp(prefix="mast-control-", dir=args.work))
        try:
            print("RESULT " + json.dumps(simulate(args.recordings[0], args.runner, folder)), flush=True)
        finally:
            shutil.rmtree(folder, ignore_errors=True)
        return
    runs = []
    for count in args.recordings:  # a process each: peak memory is of that size alone
        command = [sys.executable, __file__, "--one", "--recordings", str(count), "--runner", args.runner]
        done = subprocess.run(
            [*command, *(["--work", args.work] if args.work else [])], capture_output=True, text=True
        )
        answer = [line for line in done.stdout.splitlines() if line.startswith("RESULT ")]
        if not answer:
            raise SystemExit(done.stdout[-2000:] + done.stderr[-4000:])
        runs.append(json.loads(answer[0].removeprefix("RESULT ")))
        print(json.dumps({name: round(value, 2) for name, value in runs[-1].items()}))
    result = {"machine": platform.machine(), "runner": args.runner, "runs": runs}
    if len(runs) > 1:
        per_item = [run["total_s"] / run["recordings"] for run in runs]
        result["time_per_recording_last_over_first"] = per_item[-1] / per_item[0]
        print(
            f"time per recording, {runs[-1]['recordings']:,} over {runs[0]['recordings']:,}: {per_item[-1] / per_item[0]:.2f}"
        )
    if args.out:
        Path(args.out).write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
