"""How quickly a review of 100,000 boxes in 1,000 recordings answers, over HTTP and in a headless browser.

    python benchmarks/review_speed.py --out review_speed.json
    python benchmarks/review_speed.py --boxes 2000 --recordings 20        # smoke check

open         in a browser: from the address to the first spectrogram with its boxes on the screen (Chromium, if there is one)
first        the same questions over HTTP, from a server nobody has asked before
rows, act    a page of 200 rows at a random place of a queue; a verdict, on disk
picture      spectrogram of 10.24 s that nobody has seen; beside it the rival: the same window by matplotlib, as `mast show` draws it
scroll       frames while the list is scrolled from end to end; a frame over 50 ms is seen as a stutter
Recordings are ten files of a minute under many names (hard links). Times are wall clock.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
import sys
import tempfile
import time
from pathlib import Path

import aiohttp
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import soundfile

from mast_ray.reporting.clips import read_window
from mast_ray.reporting.figures import png_bytes, spectrogram_figure
from mast_ray.spectrogram.grid import CHUNK_S
from mast_ray.spectrogram.logmel import LogMel
from mast_ray.stages.review.asked import AskedQueues
from mast_ray.stages.review.found_boxes import load_boxes
from mast_ray.stages.review.pictures import WindowPictures
from mast_ray.stages.review.server import ReviewServer, serve
from mast_ray.stages.review.session import ReviewSession
from mast_ray.storage.storage import open_storage
from mast_ray.tables.schemas import DETECTIONS, RECORDINGS

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests" / "support"))
from devtools import browser, chromium_path

GOAL_S = 1.0
STUTTER_MS = 50.0
SCROLL = """new Promise((done) => { const list = document.getElementById("list"), times = []; let at = 0, last = performance.now();
  const step = (now) => { times.push(now - last); last = now; list.scrollTop = (at / 120) * list.scrollHeight; at += 1;
    if (at <= 120) requestAnimationFrame(step); else done(times.slice(2)); };
  requestAnimationFrame(step); })"""
READY = """new Promise((done) => { const look = () => document.body?.dataset.busy === "0" ? done(performance.now()) : setTimeout(look, 5); look(); })"""


def main() -> None:
    args = arguments()
    about = {"machine": platform.machine(), "cores": os.cpu_count(), "boxes": args.boxes, "recordings": args.recordings,
             "load_average": round(os.getloadavg()[0], 1)}  # fmt: skip
    print(json.dumps(about), flush=True)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_archive(folder, args.recordings, args.boxes)
        result = asyncio.run(measured(folder, args.repeats))
    result = {"about": about} | result
    result["goal"] = {"first_spectrogram_s": GOAL_S, "reached": result["first"]["whole_s"] <= GOAL_S}
    print(json.dumps(result, indent=1))
    if args.out:
        Path(args.out).write_text(json.dumps(result, indent=1) + "\n")


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--boxes", type=int, default=100_000)
    parser.add_argument("--recordings", type=int, default=1_000)
    parser.add_argument("--repeats", type=int, default=100)
    parser.add_argument("--out", default="")
    return parser.parse_args()


def write_archive(folder: Path, num_recordings: int, num_boxes: int) -> None:
    rng = np.random.default_rng(0)
    (folder / "audio").mkdir()
    for number in range(10):
        soundfile.write(folder / f"{number}.wav", rng.normal(0, 0.05, 60 * 16_000), 16_000)
    recordings = []
    for number in range(num_recordings):
        path = f"S{number % 20:02d}/{number:05d}.wav"
        (folder / "audio" / path).parent.mkdir(exist_ok=True)
        os.link(folder / f"{number % 10}.wav", folder / "audio" / path)
        recordings.append(
            {"recording_id": f"r{number}", "path": path, "site": f"S{number % 20:02d}", "duration_s": 60.0}
        )
    home = rng.integers(0, num_recordings, num_boxes)
    begin_s, low_hz = rng.uniform(0, 58, num_boxes), rng.uniform(200, 5000, num_boxes)
    columns = {
        "recording_id": [f"r{n}" for n in home], "path": [recordings[n]["path"] for n in home],
        "site": [recordings[n]["site"] for n in home], "begin_s": begin_s, "end_s": begin_s + rng.uniform(0.2, 2, num_boxes),
        "low_hz": low_hz, "high_hz": low_hz * 1.4, "score": rng.uniform(0.3, 1, num_boxes).astype(np.float32),
    }  # fmt: skip
    empty = {field.name: pa.nulls(num_boxes, field.type) for field in DETECTIONS if field.name not in columns}
    (folder / "detections").mkdir()
    pq.write_table(
        pa.table(columns | empty).select(DETECTIONS.names), folder / "detections" / "boxes.parquet"
    )
    table = pa.Table.from_pylist(recordings, schema=RECORDINGS)
    pq.write_table(table, folder / "detections" / "recordings.parquet")


async def measured(folder: Path, repeats: int) -> dict:
    audio = open_storage(folder / "audio")
    begun_s = time.perf_counter()
    found = load_boxes(str(folder / "detections"), audio, 0.5)
    loaded_s = time.perf_counter() - begun_s
    session = ReviewSession(found, folder / "corrections", "bench")
    server = ReviewServer(AskedQueues(session), WindowPictures(audio), "bench")
    told = asyncio.get_running_loop().create_future()
    serving = asyncio.create_task(serve(server, 0, told.set_result))
    try:
        address = await told
        async with aiohttp.ClientSession() as client:
            result = {
                "load_s": round(loaded_s, 2),
                **await over_http(client, address, len(found), repeats, folder),
            }
        if chromium_path():
            result["browser"] = await in_browser(address, folder)
        return result
    finally:
        serving.cancel()
        await asyncio.gather(serving, return_exceptions=True)


async def over_http(
    client: aiohttp.ClientSession, address: str, total: int, repeats: int, folder: Path
) -> dict:
    async def timed(what: str, body: dict | None = None) -> tuple[float, bytes]:
        begun_s = time.perf_counter()
        request = client.get(address + what) if body is None else client.post(address + what, json=body)
        async with request as answer:
            content = await answer.read()
            assert answer.status == 200, content
        return time.perf_counter() - begun_s, content

    rng = np.random.default_rng(1)
    parts = {}
    for name, what in (("page", ""), ("run", "run"), ("queue", "queue?name=uncertain&first=0&count=200"),
                       ("next", "next?name=uncertain&after=-1")):  # fmt: skip
        parts[name], content = await timed(what)
        if name == "queue":
            item = json.loads(content)["items"][0]
    window = f"recording={item['recording']}&begin_s={max(item['begin_s'] - 5, 0):.3f}&seconds={CHUNK_S}"
    parts["boxes"], _ = await timed(f"boxes?{window}")
    parts["picture"], _ = await timed(f"picture?{window}")
    orders = {name: round((await timed(f"queue?name={name}&first=0&count=1"))[0], 3)
              for name in ("random", "recording", "site_hour")}  # fmt: skip
    rows, acts, pictures, figures = [], [], [], []
    for _ in range(repeats):
        first = int(rng.integers(0, max(total - 200, 1)))
        seconds, content = await timed(f"queue?name=uncertain&first={first}&count=200")
        rows.append(seconds)
        box = json.loads(content)["items"][0]
        acts.append((await timed("act", {"action": "accept", "boxes": [box["id"]], "queue": "uncertain"}))[0])
        place = f"recording={box['recording']}&begin_s={rng.uniform(0, 49):.3f}&seconds={CHUNK_S}"
        pictures.append((await timed(f"picture?{place}"))[0])
        figures.append((await timed("figures"))[0])
    return {
        "first": {name: round(value, 4) for name, value in parts.items()} | {"whole_s": round(sum(parts.values()), 3)},
        "first_order_s": orders, "rows_s": spread(rows), "act_s": spread(acts), "picture_s": spread(pictures),
        "figures_s": spread(figures), "rival_picture_s": spread(rival(folder)),
    }  # fmt: skip


def rival(folder: Path) -> list[float]:
    """The same window as `mast show` draws it."""
    audio, logmel, seconds = open_storage(folder / "audio"), LogMel(), []
    for number in range(6):
        begun_s = time.perf_counter()
        samples = read_window(audio, "S00/00000.wav", float(number), number + CHUNK_S)
        png_bytes(spectrogram_figure(logmel.frames(samples), [], [], "", float(number)))
        seconds.append(time.perf_counter() - begun_s)
    return seconds[1:]  # the first one pays for fonts


def spread(seconds: list[float]) -> dict[str, float]:
    return {"median": round(float(np.median(seconds)), 4), "p95": round(float(np.quantile(seconds, 0.95)), 4)}


async def in_browser(address: str, folder: Path) -> dict:
    async with browser(folder) as view:
        opened = []
        for _ in range(3):
            await view.open(address, 1280, 720)
            opened.append(float(await view.value(READY)) / 1000)  # since navigation began
        frames = np.array(await view.value(SCROLL))
        return {
            "open_s": [round(value, 3) for value in opened],
            "scroll": {"frames": len(frames), "median_ms": round(float(np.median(frames)), 1),
                       "worst_ms": round(float(frames.max()), 1), "over_50_ms": int((frames > STUTTER_MS).sum())},
        }  # fmt: skip


if __name__ == "__main__":
    main()
