"""`mast prepare` on very many tiny files: wall time, time to resume when finished,
and the number of Parquet files.

    python benchmarks/prepare_many.py --files 100000 --work DIR [--out benchmarks/results/prepare_many.json]

The files are hard links to fifty one-second recordings, so that the archive needs no space; every path is a
recording of its own. Interrupted, the benchmark goes on where it was (so does prepare).
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import soundfile

REPOSITORY = Path(__file__).resolve().parent.parent


def make_archive(root: Path, count: int) -> None:
    root.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(0)
    bases = []
    for number in range(50):
        base = root.parent / f"base{number:02d}.wav"
        if not base.exists():  # a rewritten base would be a new version of two thousand recordings
            soundfile.write(base, rng.normal(0, 0.1, 16_000).astype(np.float32), 16_000, "PCM_U8")
        bases.append(base)
    for number in range(count):
        folder = root / f"S{number // 1000:04d}"
        target = folder / f"{number:07d}.wav"
        if number % 1000 == 0:
            folder.mkdir(exist_ok=True)
        if not target.exists():
            os.link(bases[number % 50], target)


def timed(line: list[str]) -> tuple[int, float, str]:
    started_s = time.monotonic()
    done = subprocess.run(
        line, env=os.environ | {"PYTHONPATH": str(REPOSITORY)}, stdout=subprocess.PIPE, text=True, check=False
    )
    return done.returncode, time.monotonic() - started_s, done.stdout


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--files", type=int, default=100_000)
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--out", default="")
    args = parser.parse_args()
    archive, out = args.work / "archive", args.work / "prepared"
    started_s = time.monotonic()
    make_archive(archive, args.files)
    result: dict = {"files": args.files, "cores": os.cpu_count(), "making_s": time.monotonic() - started_s}
    line = [sys.executable, "-m", "mast_ray", "prepare", str(archive), "--out", str(out)]
    code, wall_s, text = timed(line)
    print(text)
    result["prepare"] = {"exit_code": code, "wall_s": wall_s, "files_per_s": args.files / wall_s}
    code, wall_s, text = timed(line)
    result["again"] = {"exit_code": code, "wall_s": wall_s, "said": text.strip().splitlines()[-1]}
    result["parquet_files"] = len(list((out / "frames").iterdir()))
    result["counts"] = json.loads((out / "manifest.json").read_text())["counts"]
    del result["counts"]["tables"]
    print(json.dumps(result, indent=1))
    if args.out:
        Path(args.out).write_text(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
