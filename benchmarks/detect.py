"""`mast detect` from 48 kHz WAV and FLAC files to tables, beside a plain per-file loop of the
same model and its bare inference rate.

    python benchmarks/detect.py --size tiny --hours 0.4 --runner ray          (two CPU cores)
    python benchmarks/detect.py --size base --random-weights --hours 40       (a GPU; add --set detect.decode_threads=16)

Unit: seconds of audio per second (times real time). The sweep is the verb's own code in one process: listing,
units, ledger, decoding threads, detector, stitching, tables, commits, manifest. Compiling and loading are
timed apart. A few recordings are synthesised and linked under many names, so files come from the page cache.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import platform
import shutil
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import soundfile as sf
import soxr
import torch

from mast_ray.config.recipes import field, tiny
from mast_ray.config.tree import Config
from mast_ray.inference.decode_threads import DecodeKnobs, DecodeThreads
from mast_ray.models.build import build_detector
from mast_ray.spectrogram.chunking import SegmentStream
from mast_ray.spectrogram.grid import CHUNK_FRAMES, HOP_S, NUM_BINS, SAMPLE_RATE_HZ
from mast_ray.spectrogram.logmel import LogMel, logmel_on_device
from mast_ray.spectrogram.normalisation import Normalisation
from mast_ray.spectrogram.sample_segments import SampleSegments
from mast_ray.stages.detect.detect import Sweep, settings_of
from mast_ray.stages.detect.load_work import WorkMaker, inference_knobs, work_of
from mast_ray.stages.detect.plan import decode_threads_of, workers_of
from mast_ray.stages.detect.work import DetectWork
from mast_ray.stages.runner import HERE, ON_RAY
from mast_ray.storage.spread import Resources
from mast_ray.storage.storage import open_storage
from mast_ray.storage.units import read_commits
from mast_ray.tables.preparing.inventory import list_archive
from mast_ray.training.assembly import architecture_of, load_detector
from mast_ray.training.engine import autocast
from mast_ray.training.files.model_files import Card, write_model
from mast_ray.verbs.main import config_of, run_verb

NUM_SYNTHESISED = 16
ARCHIVE_BYTES = 10**15  # said to be there: a large archive's detector is compiled


def make_archive(folder: Path, container: str, minutes: float, hours: float) -> Path:
    """48 kHz recordings of `minutes`, as many names as fill `hours`."""
    source = folder / f"synth-{container}"
    command = [
        "--out",
        str(source),
        "--hours",
        str(NUM_SYNTHESISED * minutes / 60),
        "--minutes",
        str(minutes),
        "--sites",
        "4",
    ]
    options = [
        "--days",
        "1",
        "--sample-rate",
        "48000",
        "--format",
        container,
        "--processes",
        str(os.cpu_count() or 1),
    ]
    if run_verb("synth", [*command, *options]):
        raise SystemExit("no recordings could be made")
    files = sorted(source.rglob(f"*.{container}"))
    archive = folder / container
    for number in range(max(1, round(hours * 60 / minutes))):
        day, minute = divmod(number, 1440)
        path = (
            archive
            / f"S{number % 8}"
            / f"S{number % 8}_202405{1 + day % 28:02d}_{minute // 60:02d}{minute % 60:02d}00.{container}"
        )
        path.parent.mkdir(parents=True, exist_ok=True)
        os.link(files[number % len(files)], path)
    return archive


def detector_of(args: argparse.Namespace, config: Config, sound: Path) -> tuple[torch.nn.Module, Card]:
    """The model named, or one of random weights with the statistics of a recording."""
    if args.model:
        return load_detector(args.model)
    torch.manual_seed(0)
    detector = build_detector(architecture_of(config.model)).eval()
    logmel = LogMel().frames(resampled(sound))
    normalisation = Normalisation(float(logmel.mean()), float(logmel.std()))
    return detector, Card(
        "detector", config.model.model_dump(mode="json"), normalisation.to_dict(), weights_sha256="0" * 64
    )


def resampled(path: Path) -> np.ndarray:
    samples, rate_hz = sf.read(path, dtype="float32")
    return soxr.resample(samples, rate_hz, SAMPLE_RATE_HZ, quality="HQ")


def floor_for(
    detector: torch.nn.Module, card: Card, config: Config, sound: Path, device: torch.device, boxes: int
) -> float:
    """The score that leaves `boxes` detections per window: random weights know no silence."""
    stream = SegmentStream()
    segments = [s.logmel for s in [*stream.push(resampled(sound)), *stream.finish()]][:5]
    windows = np.stack([np.concatenate(pair) for pair in pairwise(segments)])
    with torch.no_grad():
        logmel = card.normaliser()(torch.from_numpy(windows).to(device))
        found = detector.to(device).detect(
            logmel, 0.0, config.evaluate.nms_overlap, config.evaluate.max_detections
        )
    scores = np.sort(found.score.float().cpu().numpy(), axis=1)[:, ::-1]
    return float(np.median(scores[:, min(boxes, scores.shape[1] - 1)]))


def sync(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def bare_rate(work: DetectWork, seconds: float) -> float:
    """Windows per second of the model alone, batches lying ready on the device."""
    windows = work.detector
    batch = torch.randn(windows.knobs.batch_size, CHUNK_FRAMES, NUM_BINS, device=windows.device) * 3 - 8
    whole = torch.full((len(batch),), CHUNK_FRAMES, device=windows.device)
    with torch.no_grad():
        for _ in range(2):
            windows._infer(batch, whole)
        sync(windows.device)
        begun_s, count = time.perf_counter(), 0
        while time.perf_counter() - begun_s < seconds:
            windows._infer(batch, whole)
            sync(windows.device)
            count += len(batch)
        return count / (time.perf_counter() - begun_s)


def sweep(
    archive: Path, out: Path, config: Config, card: Card, work: DetectWork, runner: str, model: Path
) -> dict[str, float]:
    """Run the verb's own sweep; seconds, audio, and what its parts waited for."""
    source, stage = open_storage(archive), open_storage(out)
    begun_s = time.perf_counter()
    items = list_archive(source).items
    sweeping = Sweep(source, stage, items, config, None, settings_of(config, card, 0.0))
    if runner == "ray":
        wanted_bytes = ARCHIVE_BYTES if torch.cuda.is_available() else 0
        sweeping.run(ON_RAY, WorkMaker(str(model), source, stage, config, None, 0.0, wanted_bytes))
    else:  # the detector that was loaded and compiled before
        work._archive, work._stage = source, stage
        sweeping.run(HERE, lambda workers: lambda: work)
    wall_s = time.perf_counter() - begun_s
    notes: dict[str, float] = {}
    for commit in read_commits(stage):
        for name, value in commit.notes.items():
            notes[name] = notes.get(name, 0.0) + value
    workers = workers_of(config, Resources(os.cpu_count() or 1, torch.cuda.device_count()))
    actors = 1 if runner == "here" else workers.num_actors
    threads = work._decode.num_threads if runner == "here" else decode_threads_of(config.detect, workers)
    return {
        "workers": actors,
        "wall_s": wall_s,
        "audio_s": notes["audio_s"],
        "x_real_time": notes["audio_s"] / wall_s,
        "detections_per_hour": notes["detections"] / notes["audio_s"] * 3600,
        "decode_threads_busy": notes["decode_s"] / (threads * notes["work_s"]),
        "decode_x_per_thread": notes["audio_s"] / max(1e-9, notes["decode_s"]),
        "waiting_for_sound": notes["starved_s"] / notes["work_s"],
        "waiting_for_device": notes["device_s"] / notes["work_s"],
        "work_x_real_time": notes["audio_s"] / notes["work_s"] * actors,  # without starts and ends
        "outside_units": 1 - notes["work_s"] / actors / wall_s,
    }


def decode_rate(archive: Path, knobs: DecodeKnobs, seconds: float) -> float:
    """Times real time of the decoding threads alone, what they give thrown away."""
    source = open_storage(archive)
    threads = DecodeThreads(source, list_archive(source).items, knobs, None)
    begun_s, num_segments = time.perf_counter(), 0
    with threads.started():
        for piece in threads.pieces():
            num_segments += len(piece.segments)
            if time.perf_counter() - begun_s > seconds:
                break
        wall_s = time.perf_counter() - begun_s
    return num_segments * HOP_S / wall_s


def decode_rate_of_processes(archive: Path, knobs: DecodeKnobs, seconds: float) -> float:
    """The same with a process for every thread: what the cores could give without Python's lock."""
    one = replace(knobs, num_threads=1)
    with ProcessPoolExecutor(knobs.num_threads, mp_context=multiprocessing.get_context("spawn")) as pool:
        for length_s in (0.1, seconds):  # the first time they start
            calls = [pool.submit(decode_rate, archive, one, length_s) for _ in range(knobs.num_threads)]
            total = sum(call.result() for call in calls)
    return total


def plain_loop(
    archive: Path, config: Config, card: Card, detector: Any, device: torch.device, seconds: float
) -> dict[str, float]:
    """One file after the other, as a short script does it: read, resample, log-mel,
    windows, model. No stitching, no tables.
    """
    knobs = inference_knobs(config, workers_of(config, HERE.resources()), 0)
    normalise, logmel, audio_s = card.normaliser(), LogMel(), 0.0
    begun_s = time.perf_counter()
    for path in sorted(p for p in archive.rglob("*.*") if p.is_file()):
        sound = resampled(path)
        if device.type == "cuda":
            samples = SampleSegments()
            rows = np.concatenate([samples.push(sound), samples.finish()])
            segments = logmel_on_device(torch.from_numpy(rows).to(device))
        else:
            stream = SegmentStream("pad", logmel)
            segments = torch.from_numpy(np.stack([s.logmel for s in [*stream.push(sound), *stream.finish()]]))
        windows = torch.cat([segments[:-1], segments[1:]], dim=1)
        with torch.no_grad(), autocast(device, knobs.precision):
            found = detector.detect(
                normalise(windows), knobs.score_floor, knobs.nms_overlap, knobs.max_detections
            )
        found.corners.cpu().numpy()[found.is_valid.cpu().numpy()]
        audio_s += len(sound) / SAMPLE_RATE_HZ
        if time.perf_counter() - begun_s > seconds:
            break
    wall_s = time.perf_counter() - begun_s
    return {"wall_s": wall_s, "audio_s": audio_s, "x_real_time": audio_s / wall_s}


def limit_of(run: dict[str, float]) -> str:
    parts = {"decoding": run["waiting_for_sound"], "detector": run["waiting_for_device"]}
    parts["everything else (Python, tables)"] = 1 - sum(parts.values())
    return max(parts, key=lambda name: parts[name])


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--size", choices=("tiny", "small", "base"), default="tiny")
    parser.add_argument("--model", default="", help="a trained model folder")
    parser.add_argument(
        "--random-weights", action="store_true", help="the default without --model, said aloud"
    )
    parser.add_argument("--hours", type=float, default=0.3, help="of audio per format")
    parser.add_argument("--minutes", type=float, default=1.0, help="per recording")
    parser.add_argument(
        "--seconds", type=float, default=15.0, help="limit of the plain loop, and of the bare rate"
    )
    parser.add_argument("--boxes-per-window", type=int, default=10, help="that random weights are to give")
    parser.add_argument("--formats", nargs="+", default=["wav", "flac"], choices=("wav", "flac"))
    parser.add_argument(
        "--runner", choices=("here", "ray"), default="here", help="ray: all cores, starts included"
    )
    parser.add_argument("--set", dest="sets", action="append", default=[], metavar="KEY=VALUE")
    parser.add_argument("--out", help="JSON to write")
    args = parser.parse_args()
    recipe = tiny() if args.size == "tiny" else field()
    config = config_of(recipe.recipe, None, [f"model.size={args.size}", "audio.timezone=UTC", *args.sets])
    workers = workers_of(config, HERE.resources())
    device = torch.device(workers.device)
    folder = Path(tempfile.mkdtemp(prefix="mast-detect-"))
    result: dict[str, Any] = {
        "machine": platform.machine(), "cores": os.cpu_count(), "torch": torch.__version__, "size": args.size,
        "runner": args.runner, "device": torch.cuda.get_device_name() if device.type == "cuda" else "cpu", "hours": args.hours, "minutes": args.minutes,
    }  # fmt: skip
    try:
        archives = {name: make_archive(folder, name, args.minutes, args.hours) for name in args.formats}
        first = next(p for p in sorted(next(iter(archives.values())).rglob("*.*")) if p.is_file())
        detector, card = detector_of(args, config, first)
        if not args.model:
            floor = floor_for(detector, card, config, first, device, args.boxes_per_window)
            config = config_of(None, None, []).model_validate(
                config.model_dump() | {"evaluate": config.evaluate.model_dump() | {"score_floor": floor}}
            )
        card = write_model(open_storage(folder / "model"), detector.state_dict(), card)
        begun_s = time.perf_counter()
        wanted_bytes = ARCHIVE_BYTES if device.type == "cuda" else 0
        work = work_of(
            detector,
            card,
            config,
            workers,
            open_storage(folder),
            open_storage(folder),
            None,
            0.0,
            wanted_bytes,
        )
        bare = bare_rate(work, min(args.seconds, 10.0))
        knobs = work.detector.knobs
        result |= {
            "batch_size": knobs.batch_size, "precision": knobs.precision, "compile": knobs.compile,
            "decode_threads": decode_threads_of(config.detect, workers), "score_floor": knobs.score_floor,
            "load_and_compile_s": time.perf_counter() - begun_s,
            "bare_windows_per_s": bare, "bare_x_real_time": bare * HOP_S,
        }  # fmt: skip
        print(json.dumps(result, indent=1))
        for name, archive in archives.items():
            plain = plain_loop(archive, config, card, detector, device, args.seconds)
            ours = sweep(archive, folder / f"out-{name}", config, card, work, args.runner, folder / "model")
            share = ours["x_real_time"] / (bare * HOP_S)
            decode = {
                "threads_x_real_time": decode_rate(archive, work._decode, args.seconds),
                "processes_x_real_time": decode_rate_of_processes(archive, work._decode, args.seconds),
            }
            result[name] = {"sweep": ours, "plain_loop": plain, "decoding_alone": decode, "share_of_bare": share, "limited_by": limit_of(ours),
                            "ratio": ours["x_real_time"] / plain["x_real_time"]}  # fmt: skip
            print(
                f"{name}: {ours['x_real_time']:,.0f} x real time ({100 * share:.0f} % of the bare rate; without starts "
                f"and ends {ours['work_x_real_time']:,.0f} x), limited by "
                f"{limit_of(ours)}; plain loop {plain['x_real_time']:,.0f} x; ratio {result[name]['ratio']:.2f}\n"
                f"  decoding alone: {', '.join(f'{k} {v:,.0f}' for k, v in decode.items())}\n"
                f"  {json.dumps({k: round(v, 3) for k, v in ours.items()})}"
            )
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    if args.out:
        Path(args.out).write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
