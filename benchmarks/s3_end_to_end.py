"""`mast prepare` and `mast detect` from a bucket to a bucket, several versions of the code in turn in one run.

    git worktree add /tmp/old COMMIT
    python benchmarks/s3_end_to_end.py --code old=/tmp/old --code new=. --out JSON

A real S3 server on loopback holds short recordings (read whole) and long ones (over 64 MiB, read by ranges). Every round
runs both verbs with every version, each in a process of its own (`--runner here`). Units: wall seconds, and seconds of
processor time of that process, which other work on the machine hardly moves. The least of the rounds is given, and the
median over rounds of the ratio to the first version. Tables are compared by their hashes. The first version is the oldest:
it writes the model that all use.
"""

from __future__ import annotations

import argparse
import hashlib
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
import soundfile

REPOSITORY = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(REPOSITORY / "tests" / "support"))
RATE_HZ = 48_000


def make_archive(folder: Path, num_short: int, num_long: int, long_minutes: float) -> float:
    """Noise with tones, one minute each or long; returns hours."""
    rng = np.random.default_rng(0)
    lengths_s = [60.0] * num_short + [60.0 * long_minutes] * num_long
    for number, seconds in enumerate(lengths_s):
        time_s = np.arange(int(seconds * RATE_HZ)) / RATE_HZ
        tone = 0.2 * np.sin(2 * np.pi * (1000 + 100 * (number % 50)) * time_s) * (time_s % 3 < 0.3)
        samples = tone + 0.02 * rng.standard_normal(len(time_s))
        soundfile.write(
            folder / f"SITE{number % 3}_20240501_{number:02d}0000.wav", samples, RATE_HZ, "PCM_16"
        )
    return sum(lengths_s) / 3600


def run_verb(code: Path, *argv: str, environment: dict[str, str]) -> dict[str, float]:
    before, started_s = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    done = subprocess.run(
        [sys.executable, "-m", "mast_ray", *argv],
        env=os.environ | environment | {"PYTHONPATH": str(code)},
        cwd=code,  # python -m looks here first
        capture_output=True,
        text=True,
    )
    wall_s, after = time.perf_counter() - started_s, resource.getrusage(resource.RUSAGE_CHILDREN)
    if done.returncode != 0:
        raise SystemExit(f"{argv[0]} with {code}: {done.stderr[-2000:]}")
    return {
        "wall_s": round(wall_s, 2),
        "cpu_s": round(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, 2),
    }


def write_model(code: Path, folder: Path) -> Path:
    """A tiny detector with fresh weights, by the helper that the tests of this version have: later versions read it too."""
    helper = next((code / "tests").rglob("synthetic_model.py")).parent
    line = (
        "import sys, pathlib, synthetic_model; synthetic_model.write_tiny_detector(pathlib.Path(sys.argv[1]))"
    )
    paths = os.pathsep.join([str(code), str(helper)])
    subprocess.run(
        [sys.executable, "-c", line, str(folder)],
        env=os.environ | {"PYTHONPATH": paths},
        cwd=code,
        check=True,
    )
    return folder


def tables_hash(client, prefix: str, kept: str) -> str:
    """Content of every table below a prefix; names of detections' files may differ."""
    bodies = []
    for page in client.get_paginator("list_objects_v2").paginate(Bucket="bench", Prefix=f"{prefix}/{kept}"):
        for found in page.get("Contents", ()):
            bodies.append(client.get_object(Bucket="bench", Key=found["Key"])["Body"].read())
    return hashlib.sha256(b"".join(sorted(hashlib.sha256(body).digest() for body in bodies))).hexdigest()[:16]


def rotated(names: list[str], by: int) -> list[str]:
    by %= len(names)
    return names[by:] + names[:by]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--code", action="append", required=True, metavar="NAME=FOLDER")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--short", type=int, default=20, help="recordings of one minute")
    parser.add_argument("--long", type=int, default=2, help="long recordings")
    parser.add_argument("--long-minutes", type=float, default=13.0)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    from s3_server import client_of, environment, s3_server

    codes = {name: Path(folder).resolve() for name, _, folder in (item.partition("=") for item in args.code)}
    with tempfile.TemporaryDirectory() as scratch, s3_server(Path(scratch)) as endpoint:
        client = client_of(endpoint)
        client.create_bucket(Bucket="bench")
        archive = Path(scratch) / "archive"
        archive.mkdir()
        hours = make_archive(archive, args.short, args.long, args.long_minutes)
        model = write_model(next(iter(codes.values())), Path(scratch) / "model")
        for name, folder in (("archive", archive), ("model", model)):
            for file in sorted(folder.iterdir()):
                client.put_object(Bucket="bench", Key=f"{name}/{file.name}", Body=file.read_bytes())
        sets = [f"storage.endpoint_url={endpoint}", "storage.region=us-east-1", "audio.timezone=UTC"]
        common = ["--runner", "here", *(part for item in sets for part in ("--set", item))]
        runs: dict[str, dict[str, list[dict[str, float]]]] = {n: {"prepare": [], "detect": []} for n in codes}
        hashes: dict[str, dict[str, str]] = {name: {} for name in codes}
        for number in range(args.rounds):
            for name in rotated(list(codes), number):  # nobody always goes first
                code = codes[name]
                for verb, inputs in (("prepare", ["s3://bench/archive"]),
                                     ("detect", ["s3://bench/model", "s3://bench/archive"])):  # fmt: skip
                    out = f"{verb}-{name}-{number}"
                    runs[name][verb].append(
                        run_verb(code, verb, *inputs, "--out", f"s3://bench/{out}", *common,
                                 environment=environment())
                    )  # fmt: skip
                    print(number, name, verb, runs[name][verb][-1], flush=True)
                    hashes[name][verb] = tables_hash(
                        client, out, "frames/" if verb == "prepare" else "detections/"
                    )
    least = {
        name: {
            verb: {key: min(run[key] for run in runs[name][verb]) for key in ("wall_s", "cpu_s")}
            for verb in runs[name]
        }
        for name in codes
    }
    first = next(iter(codes))
    ratios = {
        name: {
            verb: {
                key: round(statistics.median(
                    run[key] / base[key] for run, base in zip(runs[name][verb], runs[first][verb], strict=True)
                ), 3)
                for key in ("wall_s", "cpu_s")
            }
            for verb in runs[name]
        }
        for name in codes
    }  # fmt: skip
    result = {
        "settings": {
            "rounds": args.rounds, "hours_of_audio": round(hours, 3), "short": args.short, "long": args.long,
            "long_minutes": args.long_minutes, "code": list(codes), "processors": os.cpu_count(),
            "machine": platform.machine(),
        },
        "least": least, f"median_ratio_to_{first}": ratios, "tables": hashes, "runs": runs,
    }  # fmt: skip
    print(json.dumps(result, indent=1))
    if args.out:
        args.out.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
