"""Nothing lost, nothing doubled: `mast prepare` killed with -9 at random moments, and on S3 through a
proxy of faults, beside a clean run.

    python benchmarks/prepare_faults.py --work DIR --files 2000 --seconds 60 --kills 3 [--s3]
[--step synth|clean|killed|s3|compare]

Makes a synthetic archive (3 % damaged in 15 ways), prepares it undisturbed, prepares it again with kills,
compares every table and every frames file by content hash, and checks that every damaged file is in rejects
with its reason. Steps can be run one by one in the same --work folder.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import random
import signal
import subprocess
import sys
import time
from datetime import datetime, timedelta
from pathlib import Path

import pyarrow.parquet as pq

REPOSITORY = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(REPOSITORY / "tests" / "support"))


def synth(work: Path, args) -> None:
    """Render the archive; with --render N only N recordings are rendered and the
    others are those, rolled in time.
    """
    import numpy as np
    import soundfile

    from mast_ray.soundscapes.archive import write_archive
    from mast_ray.soundscapes.damage import damage_archive
    from mast_ray.soundscapes.plan import SoundscapeSpec

    spec = SoundscapeSpec(
        num_sites=4, num_days=5, recordings_per_day=max(1, (args.render or args.files) // 20),
        recording_s=args.seconds, num_labelled_sites=2, num_labelled_days=2,
    )  # fmt: skip
    root = work / "archive"
    write_archive(spec, root, num_processes=args.processes)
    rendered = sorted((root / "audio").rglob("*_2024*.wav"))
    for number in range(args.files - len(rendered)):
        base = rendered[number % len(rendered)]
        start = datetime(2023, 1, 1) + timedelta(minutes=20 * number)
        copy = base.with_name(f"{base.parent.name}_{start:%Y%m%d_%H%M%S}.wav")
        if not copy.exists():
            samples, rate_hz = soundfile.read(base, dtype="int16")
            soundfile.write(copy, np.roll(samples, 7919 * (number + 1)), rate_hz, "PCM_16")
    print(f"{len(damage_archive(root, 0.03, seed=1))} files damaged")


def command(archive: str, out: str, annotations: str, table: str, sets: list[str]) -> list[str]:
    base = [sys.executable, "-m", "mast_ray", "prepare", archive, "--out", out]
    base += ["--annotations", annotations, "--table", table]
    return base + [part for item in sets for part in ("--set", item)]


def run(line: list[str], kill_after_s: float | None = None, env: dict[str, str] | None = None) -> int:
    """Run to the end, or kill -9 the driver after some seconds."""
    environment = os.environ | {"PYTHONPATH": str(REPOSITORY)} | (env or {})
    process = subprocess.Popen(line, env=environment, cwd=REPOSITORY)
    try:
        return process.wait(kill_after_s)
    except subprocess.TimeoutExpired:
        print(f"killed -9 after {kill_after_s:.1f} s", flush=True)
        return -9
    finally:
        if process.poll() is None:
            os.kill(process.pid, signal.SIGKILL)
            process.wait()


def hashes(folder: Path) -> dict[str, str]:
    names = [f"{name}.parquet" for name in ("recordings", "rejects", "labels", "splits", "index")]
    files = [
        *(folder / name for name in names),
        folder / "stats.json",
        *sorted((folder / "frames").iterdir()),
    ]
    return {f.relative_to(folder).as_posix(): hashlib.sha256(f.read_bytes()).hexdigest() for f in files}


def check_rejects(work: Path, out: Path) -> dict:
    import csv

    from mast_ray.soundscapes.damage import REASON_OF_KIND

    with (work / "archive/damaged.csv").open() as file:
        rows = [(row["path"].removeprefix("audio/"), row["kind"]) for row in csv.DictReader(file)]
    damaged = {path: REASON_OF_KIND[kind] for path, kind in rows}
    rejects = {row["path"]: row["reason"] for row in pq.read_table(out / "rejects.parquet").to_pylist()}
    right = sum(rejects.get(path) == str(reason) for path, reason in damaged.items())
    manifest = json.loads((out / "manifest.json").read_text())["counts"]
    return {
        "damaged": len(damaged), "listed": len(set(damaged) & set(rejects)), "right_reason": right,
        "good_files_rejected": len(set(rejects) - set(damaged)),
        "offered": manifest["offered"], "done": manifest["recordings"], "rejected": manifest["rejected"],
    }  # fmt: skip


def disturbed(args, out: str, env: dict[str, str] | None, sets: list[str], where: dict[str, str]) -> dict:
    rng, started_s, kills = random.Random(args.seed), time.monotonic(), 0
    while True:
        kill = rng.uniform(args.kill_from, args.kill_to) if kills < args.kills else None
        code = run(command(out=out, sets=sets, **where), kill, env)
        if code == -9:
            kills += 1
            continue
        return {"exit_code": code, "kills": kills, "wall_s": time.monotonic() - started_s}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--files", type=int, default=2000)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument(
        "--render", type=int, default=0, help="render only so many; the others are rolled copies"
    )
    parser.add_argument("--kills", type=int, default=3)
    parser.add_argument(
        "--kill-from", type=float, default=12.0, help="earliest moment of a kill, seconds after the start"
    )
    parser.add_argument("--kill-to", type=float, default=40.0)
    parser.add_argument("--faults", type=float, default=0.3, help="share of S3 requests that fail")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--s3", action="store_true")
    parser.add_argument("--step", choices=("all", "synth", "clean", "killed", "s3", "compare"), default="all")
    parser.add_argument("--out", default="")
    args = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # servers and drivers are ended on the way out
    work: Path = args.work
    work.mkdir(parents=True, exist_ok=True)
    local = {
        "archive": str(work / "archive/audio"), "annotations": str(work / "archive/annotations"),
        "table": str(work / "archive/recordings.csv"),
    }  # fmt: skip
    notes = work / "notes.json"
    result = (
        json.loads(notes.read_text())
        if notes.exists()
        else {"settings": {k: str(v) for k, v in vars(args).items()}}
    )
    if args.step in ("all", "synth"):
        synth(work, args)
    if args.step in ("all", "clean"):
        started_s = time.monotonic()
        code = run(command(out=str(work / "clean"), sets=[], **local))
        result["clean"] = {"exit_code": code, "wall_s": time.monotonic() - started_s}
    if args.step in ("all", "killed"):
        result["killed"] = disturbed(args, str(work / "killed"), None, [], local)
    if args.step == "s3" or (args.step == "all" and args.s3):
        result["s3"] = on_s3(work, args)
    if args.step in ("all", "compare"):
        clean = hashes(work / "clean")
        result["rejects"] = check_rejects(work, work / "clean")
        for name in ("killed", "s3out"):
            if (work / name / "manifest.json").exists():
                expected = clean if name == "killed" else hashes(clean_without_folders(work, local))
                other = hashes(work / name)
                different = [key for key in expected if expected[key] != other.get(key)] + [
                    k for k in other if k not in expected
                ]
                result[f"{name}_differs_in"] = different[:5]
                result[f"{name}_identical"] = not different
    notes.write_text(json.dumps(result, indent=1))
    print(json.dumps(result, indent=1))
    if args.out:
        Path(args.out).write_text(json.dumps(result, indent=1))


def clean_without_folders(work: Path, local: dict[str, str]) -> Path:
    """An undisturbed local run over what a bucket can hold: one kind of damage is a
    folder with a recording's name.
    """
    plain, out = work / "plain", work / "clean_plain"
    source = Path(local["archive"])
    for file in source.rglob("*"):
        target = plain / file.relative_to(source)
        if file.is_file() and not target.exists():
            target.parent.mkdir(parents=True, exist_ok=True)
            os.link(file, target)
    run(command(out=str(out), sets=[], **(local | {"archive": str(plain)})))
    return out


def on_s3(work: Path, args) -> dict:
    """Upload the archive to a real server, prepare it through the proxy, download the result."""
    import tempfile

    from s3_server import FaultProxy, client_of, environment, s3_server

    from mast_ray.storage.storage import map_keys

    with tempfile.TemporaryDirectory(dir=work) as scratch, s3_server(Path(scratch)) as endpoint:
        client = client_of(endpoint)
        client.create_bucket(Bucket="archive")
        root = work / "archive"
        files = [f.relative_to(root).as_posix() for f in sorted(root.rglob("*")) if f.is_file()]
        map_keys(
            lambda key: client.put_object(Bucket="archive", Key=key, Body=(root / key).read_bytes()), files, 8
        )
        with FaultProxy(endpoint, share=args.faults, seed=args.seed) as proxy:
            sets = [f"storage.endpoint_url={proxy.endpoint}", "storage.region=us-east-1"]
            where = {
                "archive": "s3://archive/audio", "annotations": "s3://archive/annotations",
                "table": "s3://archive/recordings.csv",
            }  # fmt: skip
            result = disturbed(args, "s3://archive/out", environment(), sets, where)
            result["requests"] = proxy.counts
        keys = []
        for page in client.get_paginator("list_objects_v2").paginate(Bucket="archive", Prefix="out/"):
            keys += [found["Key"] for found in page.get("Contents", ())]
        for key in keys:
            target = work / "s3out" / key.removeprefix("out/")
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(client.get_object(Bucket="archive", Key=key)["Body"].read())
    return result


if __name__ == "__main__":
    main()
