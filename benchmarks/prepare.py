"""Hours of audio per core-hour, end to end, beside the plain single-process loop in
the same run; memory of a worker.

    python benchmarks/prepare.py --files 60 --rate 48000 --out benchmarks/results/prepare.json [--day]

ours   the work of prepare units in this process (decode, resample, log-mel, quantise, Parquet, ledger, fsync)
plain  soundfile.read + soxr.resample + torchaudio.compliance.kaldi.fbank per overlapping chunk, float16 rows to one Parquet file
Rounds alternate; CPU seconds of the process are counted, so that a busy machine slows both alike. --day also prepares one
24-hour recording in a process of its own and reports its peak memory and speed.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import soundfile
import soxr
import torch
import torchaudio.compliance.kaldi

from mast_ray.config.recipes import field
from mast_ray.storage.storage import open_storage
from mast_ray.storage.unit_runner import run_here
from mast_ray.storage.units import plan_units
from mast_ray.tables.preparing.inventory import list_archive
from mast_ray.tables.preparing.unit_work import PrepareWork


def write_files(folder: Path, count: int, seconds: float, rate_hz: int) -> None:
    rng = np.random.default_rng(0)
    noise = (rng.normal(0, 0.05, int(seconds * rate_hz)) * 32767).astype(np.int16)
    for number in range(count):
        soundfile.write(
            folder / f"S1_{20240501 + number // 24}_{number % 24:02d}0000.wav",
            np.roll(noise, number),
            rate_hz,
        )


def write_day(path: Path, rate_hz: int, hours: float) -> None:
    minute = (np.random.default_rng(1).normal(0, 0.05, 60 * rate_hz) * 32767).astype(np.int16)
    with soundfile.SoundFile(path, "w", rate_hz, 1, "PCM_16") as file:
        for number in range(round(hours * 60)):
            file.write(np.roll(minute, number * 997))


def ours(archive: Path, out: Path) -> None:
    config = field()
    source, stage = open_storage(archive), open_storage(out)
    work = PrepareWork.of(source, stage, config, None)
    units = plan_units(list_archive(source).items, 64, 10**10)
    for _ in run_here(stage, units, "bench", work):
        pass


def plain(archive: Path, out: Path) -> None:
    out.mkdir()
    schema = pa.schema([("file", pa.string()), ("logmel", pa.list_(pa.float16(), 1024 * 128))])
    with pq.ParquetWriter(out / "chunks.parquet", schema) as writer:
        for path in sorted(archive.iterdir()):
            samples, rate_hz = soundfile.read(path, dtype="float32")
            samples = soxr.resample(samples, rate_hz, 16_000)
            rows = []
            for start in range(0, len(samples) - 81_920 + 1, 81_920):
                chunk = samples[start : start + 163_840]
                chunk = np.pad(chunk - chunk.mean(), (0, 163_840 - len(chunk)))
                frames = torchaudio.compliance.kaldi.fbank(
                    torch.from_numpy(chunk)[None], htk_compat=True, sample_frequency=16_000, use_energy=False,
                    window_type="hanning", num_mel_bins=128, dither=0.0, frame_shift=10,
                )  # fmt: skip
                rows.append(np.pad(frames.numpy(), ((0, 2), (0, 0))).astype(np.float16))
            values = pa.FixedSizeListArray.from_arrays(pa.array(np.stack(rows).reshape(-1)), 1024 * 128)
            writer.write_table(
                pa.Table.from_arrays([pa.array([path.name] * len(rows)), values], schema=schema)
            )


def cpu_seconds(work, *args) -> float:
    before = time.process_time()
    work(*args)
    return time.process_time() - before


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--files", type=int, default=40, help="one-minute files per round")
    parser.add_argument("--rate", type=int, default=48_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--day", action="store_true", help="also one 24-hour recording")
    parser.add_argument("--day-hours", type=float, default=24.0)
    parser.add_argument("--day-rate", type=int, default=16_000)
    parser.add_argument("--only", default="", help=argparse.SUPPRESS)
    parser.add_argument("--out", default="")
    args = parser.parse_args()
    torch.set_num_threads(1)
    if args.only:  # a process of its own, for its peak memory
        archive, out = args.only.split("::")
        started_s, before = time.perf_counter(), time.process_time()
        ours(Path(archive), Path(out))
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        wall = time.perf_counter() - started_s
        print(json.dumps({"peak_mib": peak, "wall_s": wall, "cpu_s": time.process_time() - before}))
        return
    about = {
        "machine": platform.machine(),
        "cores": os.cpu_count(),
        "torch": torch.__version__,
        "settings": vars(args),
    }
    print(json.dumps(about), flush=True)
    with tempfile.TemporaryDirectory(prefix="mast-prepare-") as scratch:
        archive = Path(scratch) / "archive"
        archive.mkdir()
        write_files(archive, args.files, 60.0, args.rate)
        audio_h = args.files / 60.0
        seconds: dict[str, list[float]] = {"ours": [], "plain": []}
        for number in range(args.rounds + 1):
            for name, work in (("ours", ours), ("plain", plain)):
                used = cpu_seconds(work, archive, Path(scratch) / f"{name}{number}")
                if number:  # the first round warms up
                    seconds[name].append(used)
                    print(
                        f"{name:6s} {audio_h / (used / 3600):8.0f} hours of audio per core-hour", flush=True
                    )
        rates = {name: audio_h / (statistics.median(used) / 3600) for name, used in seconds.items()}
        ratio = statistics.median(p / o for o, p in zip(seconds["ours"], seconds["plain"], strict=True))
        result = {"about": about, "hours_per_core_hour": rates, "ratio": ratio}
        if args.day:
            day = Path(scratch) / "day"
            day.mkdir()
            write_day(day / "S1_20240501_000000.wav", args.day_rate, args.day_hours)
            command = [sys.executable, __file__, "--only", f"{day}::{scratch}/dayout"]
            answer = subprocess.run(command, check=True, capture_output=True, text=True).stdout
            result["day"] = json.loads(answer.splitlines()[-1]) | {"hours": args.day_hours}
    print(json.dumps({key: value for key, value in result.items() if key != "about"}, indent=1))
    if args.out:
        Path(args.out).write_text(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
