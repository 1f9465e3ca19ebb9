"""Chunks per second delivered to one training process as stored tensors: ChunkReader beside
plain pyarrow threads and Ray Data.

    python benchmarks/ingest.py --recordings 200 --threads 2 --out benchmarks/results/ingest.json

Makes a prepared archive of noise (uint8 or float16), then passes over the same files in five ways, several times and in turn:
reader    ChunkReader.epoch: shuffled, boxes and ids joined, (B, 1024, 128) tensors
reader_sequential, the same in order of the files
pyarrow   (a) threads over files, column to numpy; nothing is assembled
pyarrow_chunks  the same with every chunk copied into a (B, 1024, 128) batch, which is what a step needs
ray       (b) ray.data.read_parquet(...).iter_torch_batches over the same files
A recording of 13 stored segments has 12 overlapping chunks. Ways that hand out single segments are credited with the chunks that could
be cut from them, though nothing is cut, joined or shuffled there. Every pass starts fresh; the wait for the first batch is shown apart.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow
import pyarrow.parquet as pq
import torch

from mast_ray.spectrogram.chunking import Segment
from mast_ray.storage.stage_folders import SCHEMA_VERSION
from mast_ray.storage.storage import open_storage
from mast_ray.tables.prepared import open_prepared
from mast_ray.tables.preparing.frames_writer import FramesWriter
from mast_ray.tables.reading.blocks import values_of
from mast_ray.tables.reading.chunk_sets import chunks_of_split
from mast_ray.tables.reading.reader import ChunkReader
from mast_ray.tables.schemas import LABELS, RECORDINGS, SPLITS


def noise_of(segments: int) -> np.ndarray:
    tilt = np.linspace(-3.0, -9.0, 128, dtype=np.float32)
    rng = np.random.default_rng(0)
    return rng.normal(0, 1.2, (segments + 64, 512, 128)).astype(np.float32) + tilt


def write_frames(folder: Path, names: list[str], segments: int, storage: str, start: int) -> pyarrow.Table:
    """One file of 64 recordings; its rows of the index."""
    file, noise = f"frames/{start:06d}.parquet", noise_of(segments)
    writer = FramesWriter(folder / file, storage)
    for number, name in enumerate(names[start : start + 64], start):
        writer.add(name, [Segment(n, noise[number % 64 + n], 512) for n in range(segments)])
    writer.close()
    return writer.index(file)


def make_prepared(folder: Path, num_recordings: int, segments: int, storage: str) -> str:
    """A prepared archive whose spectrograms are realistic noise, without decoding any audio: all of it is in the pool."""
    names = [f"{n:016x}" for n in range(num_recordings)]
    (folder / "frames").mkdir(parents=True)
    write = partial(write_frames, folder, names, segments, storage)
    with ProcessPoolExecutor(min(8, os.cpu_count() or 1)) as pool:
        index = list(pool.map(write, range(0, num_recordings, 64)))
    stage, noise = open_storage(folder), noise_of(segments)
    duration_s = segments * 5.12
    recordings = [
        {
            "recording_id": name, "path": f"{name}.wav", "site": "", "duration_s": duration_s, "sample_rate_hz": 16000,
            "num_channels": 1, "num_bytes": 0, "num_frames": segments * 512, "num_chunks": segments - 1,
            "is_annotated": False, "is_salvaged": False, "fingerprint": name, "time_source": "none", "time_flags": "",
        }
        for name in names
    ]  # fmt: skip
    dealt = {"begin_s": 0.0, "end_s": duration_s, "split": "train", "in_pool": True}
    tables = {
        "recordings": pyarrow.Table.from_pylist(recordings, schema=RECORDINGS),
        "index": pyarrow.concat_tables(index),
        "labels": LABELS.empty_table(),
        "splits": pyarrow.Table.from_pylist([{"recording_id": n} | dealt for n in names], schema=SPLITS),
    }
    for name, table in tables.items():
        pq.write_table(table, folder / f"{name}.parquet")
    count, variance = noise.size, float(noise.var())
    stage.write_atomic(
        "stats.json",
        json.dumps({"count": count, "mean": float(noise.mean()), "m2": variance * count}).encode(),
    )
    config = {"spectrogram": {"storage": storage}}
    manifest = {
        "stage": "prepare", "schema_version": SCHEMA_VERSION, "key": "noise", "inputs": {}, "config": config,
    }  # fmt: skip
    stage.write_atomic("manifest.json", json.dumps(manifest).encode())
    return str(folder)


class Run(NamedTuple):
    """One pass over the archive."""

    after_first: float  # chunks per second once the first batch was there
    whole: float  # chunks per second of the whole pass, the wait for the first batch included
    first_s: float


def timed(batches, count) -> Run:
    started_s = time.perf_counter()
    total = late = 0
    first_s = 0.0
    for batch in batches:
        if not first_s:
            first_s = time.perf_counter() - started_s
        else:
            late += count(batch)
        total += count(batch)
    wall_s = time.perf_counter() - started_s
    return Run(late / (wall_s - first_s), total / wall_s, first_s)


def by_reader(folder: str, args, sequential: bool):
    reader = ChunkReader(
        (prepared := open_prepared(folder)), chunks_of_split(prepared, "pool"), batch_size=args.batch_size,
        lanes=32, seed=0, num_threads=args.threads, cache_bytes=0, pin_memory=torch.cuda.is_available(),
    )  # fmt: skip
    for batch in reader.sequential() if sequential else reader.epoch(0):
        if torch.cuda.is_available():
            batch.values.to("cuda", non_blocking=True)
        yield batch


def by_pyarrow(folder: str, args):
    files = sorted((Path(folder) / "frames").iterdir())

    def read(path):
        table = pq.read_table(path, columns=["logmel"], use_threads=False, memory_map=True)
        return values_of(table.column("logmel"))

    with ThreadPoolExecutor(args.threads) as pool:
        ahead = [pool.submit(read, path) for path in files[: 2 * args.threads]]
        for path in files[2 * args.threads :]:
            done = ahead.pop(0)
            ahead.append(pool.submit(read, path))
            yield done.result()
        for future in ahead:
            yield future.result()


def assembled(arrays, batch_size: int):
    """Neighbouring rows copied into chunks, as a training step needs them."""
    dtype = None
    for array in arrays:
        dtype = array.dtype
        for start in range(0, len(array) - 1, batch_size):
            size = min(batch_size, len(array) - 1 - start)
            batch = torch.empty(
                (size, 1024, 128), dtype={np.uint8: torch.uint8, np.float16: torch.float16}[dtype.type]
            )
            target = batch.numpy()
            for place in range(size):
                target[place] = array[start + place : start + place + 2].reshape(1024, 128)
            yield batch


def by_ray(folder: str, args):
    import ray

    data = ray.data.read_parquet(str(Path(folder) / "frames")).select_columns(["logmel"])
    yield from data.iter_torch_batches(batch_size=args.batch_size)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--recordings", type=int, default=400)
    parser.add_argument(
        "--segments", type=int, default=13, help="per recording; one minute has 12 and one is padded"
    )
    parser.add_argument("--storage", choices=("uint8", "float16"), default="uint8")
    parser.add_argument("--threads", type=int, default=min(16, os.cpu_count() or 1))
    parser.add_argument("--batch-size", type=int, default=256)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--skip-ray", action="store_true")
    parser.add_argument("--folder", default="", help="an archive made before")
    parser.add_argument("--out", default="")
    args = parser.parse_args()
    scratch = tempfile.TemporaryDirectory(prefix="mast-ingest-")
    folder = args.folder or make_prepared(
        Path(scratch.name) / "p", args.recordings, args.segments, args.storage
    )
    about = {
        "machine": platform.machine(), "cores": os.cpu_count(), "pyarrow": pyarrow.__version__,
        "torch": torch.__version__, "cuda": torch.cuda.get_device_name() if torch.cuda.is_available() else "",
        "settings": vars(args),
        "bytes": sum(f.stat().st_size for f in (Path(folder) / "frames").iterdir()),
    }  # fmt: skip
    print(json.dumps(about), flush=True)
    results: dict[str, list[Run]] = {}

    def measure(name: str, source, count) -> None:
        run = timed(source, count)
        results.setdefault(name, []).append(run)
        print(
            f"{name:18s} {run.after_first:8.0f} chunks/s ({run.whole:.0f} with the start), first after {run.first_s:.2f} s",
            flush=True,
        )

    for _ in range(args.repeats):
        measure("reader", by_reader(folder, args, False), len)
        measure("reader_sequential", by_reader(folder, args, True), len)
        measure("pyarrow", by_pyarrow(folder, args), lambda a: len(a) * (args.segments - 1) / args.segments)
        measure("pyarrow_chunks", assembled(by_pyarrow(folder, args), args.batch_size), len)
    if not args.skip_ray:
        from mast_ray.on_ray.session import quiet_ray_data, ray_session

        with ray_session():
            quiet_ray_data()
            for _ in range(2):
                measure(
                    "ray",
                    by_ray(folder, args),
                    lambda b: len(b["logmel"]) * (args.segments - 1) / args.segments,
                )
    summary = {
        name: {
            "chunks_per_s": statistics.median(run.after_first for run in runs),
            "chunks_per_s_with_start": statistics.median(run.whole for run in runs),
            "first_batch_s": max(run.first_s for run in runs),
        }
        for name, runs in results.items()
    }
    ratios = {
        f"reader / {name}": summary["reader"]["chunks_per_s"] / figures["chunks_per_s"]
        for name, figures in summary.items()
        if name != "reader"
    }
    if "ray" in summary:  # Ray reads a good part of a small archive before it hands out the first batch
        with_start = "chunks_per_s_with_start"
        ratios["reader / ray, with the start"] = summary["reader"][with_start] / summary["ray"][with_start]
    print(json.dumps({"summary": summary, "ratios": ratios}, indent=1))
    if args.out:
        Path(args.out).write_text(
            json.dumps({"about": about, "summary": summary, "ratios": ratios}, indent=1)
        )


if __name__ == "__main__":
    main()
