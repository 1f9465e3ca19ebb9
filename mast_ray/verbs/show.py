"""`mast show`: draw a recording's spectrogram with its annotations (green, solid) and detections (blue, dashed); of a
model folder, say what its weights began with and which licences come with them.
"""

from __future__ import annotations

import argparse
import io
import math
import os
import sys
import wave
from collections.abc import Collection
from pathlib import Path, PurePosixPath

import numpy as np
from numpy.typing import NDArray

from mast_ray.config.errors import ConfigError, DataError
from mast_ray.config.shown import shown
from mast_ray.recordings.annotations.paths import num_shared_parts, own_stems
from mast_ray.recordings.annotations.reading import read_annotations
from mast_ray.recordings.decoding.faults import UnreadableRecording
from mast_ray.recordings.decoding.reading import ANY_RATE, Channel, open_recording
from mast_ray.reporting.detection_tables import (
    chosen_threshold,
    conform,
    of_run,
    read_detections,
    read_parquet,
    read_recordings,
    recordings_beside,
)
from mast_ray.reporting.figures import FigureBox, png_bytes, spectrogram_figure
from mast_ray.spectrogram.grid import CHUNK_S, FRAME_LENGTH_SAMPLES, SAMPLE_RATE_HZ
from mast_ray.spectrogram.logmel import LogMel
from mast_ray.stages.review.found_boxes import channel_of
from mast_ray.storage.storage import key_of, open_beside
from mast_ray.tables.schemas import DETECTIONS
from mast_ray.training.files.began_with import model_text
from mast_ray.training.files.model_files import read_card
from mast_ray.training.files.shipped import SHIPPED, model_folder
from mast_ray.verbs.idle_options import refuse_idle

HELP = """Draw a recording's spectrogram with boxes, or say what a model's weights began with and under which licences.

  mast show day.wav --detections found -o day.png
  mast show run/self_trained/model                 # also shipped:tiny, shipped:compact"""
OF_RECORDING = ("annotations", "detections", "threshold", "start", "seconds", "out", "sound")
_LONGEST_S = 120.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("file", type=Path, metavar="FILE", help="recording (wav, flac, ogg, mp3), or model folder")
    add(
        "--annotations",
        type=Path,
        metavar="TABLE",
        help="what an expert marked: Raven, Audacity, CSV, AOEF, COCO",
    )
    add(
        "--detections",
        type=Path,
        metavar="TABLE",
        help="what a detector found: any of these formats, Parquet, or the folder that `mast detect` wrote",
    )
    add(
        "--threshold",
        type=float,
        default=None,
        metavar="SCORE",
        help="least score of detections (default: the model's own, else 0)",
    )
    add("--start", type=float, default=0.0, metavar="S", help="first second shown (default 0)")
    add(
        "--seconds", type=float, default=CHUNK_S, metavar="S", help="seconds shown (default 10.24, one chunk)"
    )
    add("-o", "--out", type=Path, metavar="PNG", help="picture to write, of a recording")
    add("--sound", type=Path, metavar="WAV", help="also write what is shown as sound, 16 kHz")


def run(args: argparse.Namespace) -> int:
    if args.file.is_dir() or str(args.file).partition(":")[0] == SHIPPED:
        refuse_idle(args, OF_RECORDING, "they are for a recording, and this is a model")
        folder = model_folder(str(args.file), has_gpu=False)
        print(shown(model_text(read_card(folder), os.path.abspath(folder))))
        return 0
    if args.out is None:
        raise ConfigError("`mast show RECORDING` draws a picture: say where to write it, -o PNG")
    if not 0.0 < args.seconds <= _LONGEST_S or not 0.0 <= args.start < math.inf:
        raise ConfigError(
            f"--start {args.start:g} --seconds {args.seconds:g} is not a stretch that can be drawn:\n"
            f"start at 0 or later and show up to {_LONGEST_S:g} seconds"
        )
    if not args.detections:
        refuse_idle(args, ("threshold",), "it is that of detections, so give them with --detections TABLE")
    table = Path(of_run(str(args.detections))) if args.detections else None
    channel = channel_of(str(table)) if table is not None and table.is_dir() else "mean"
    samples = _excerpt(args.file, args.start, args.seconds, channel)
    named = Path(key_of(str(args.file)))  # as it stands in tables
    truth = _boxes(args.annotations, named, None)
    least = chosen_threshold(args.threshold, str(table)) if table else None
    detections = _boxes(table, named, least)
    end_s = args.start + len(samples) / SAMPLE_RATE_HZ
    title = f"{named.name}   {args.start:g} to {end_s:g} s"
    figure = spectrogram_figure(LogMel().frames(samples), truth, detections, title, args.start)
    _write(args.out, png_bytes(figure))
    if args.sound:
        _write(args.sound, wav_bytes(samples))
    counts = [
        sum(box.begin_s < end_s and box.end_s > args.start for box in boxes) for boxes in (truth, detections)
    ]
    print(f"{args.out}: {end_s - args.start:.2f} s, {counts[0]} annotated and {counts[1]} detected boxes")
    return 0


def _write(path: Path, data: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.tmp")
    partial.write_bytes(data)
    os.replace(partial, path)


def wav_bytes(samples: NDArray[np.float32]) -> bytes:
    """16 kHz mono, 16 bit, as loud as it can be: quiet recordings are to be heard too."""
    loudest = max(float(np.abs(samples).max(initial=0.0)), 1e-6)
    held = io.BytesIO()
    with wave.open(held, "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(SAMPLE_RATE_HZ)
        file.writeframes(np.round(samples / loudest * 0.9 * 32767).astype("<i2").tobytes())
    return held.getvalue()


def _excerpt(path: Path, start_s: float, seconds: float, channel: Channel) -> NDArray[np.float32]:
    """16 kHz mono samples of the wanted stretch, as far as the recording goes."""
    first, last = round(start_s * SAMPLE_RATE_HZ), round((start_s + seconds) * SAMPLE_RATE_HZ)
    pieces, position = [], 0
    try:
        with open_recording(path, channel=channel, limits=ANY_RATE) as reading:
            for block in reading.blocks(60.0):
                pieces.append(block[max(first - position, 0) : max(last - position, 0)])
                position += len(block)
                if position >= last:
                    break
    except UnreadableRecording as error:
        raise DataError(f"{path} cannot be read: {error}") from error
    samples = np.concatenate(pieces) if pieces else np.zeros(0, np.float32)
    if len(samples) < FRAME_LENGTH_SAMPLES:
        raise DataError(f"{path} ends at {position / SAMPLE_RATE_HZ:.2f} s:\nchoose an earlier --start")
    return samples


def _boxes(table: Path | None, recording: Path, threshold: float | None) -> list[FigureBox]:
    """Boxes of one recording; rows of a table over many files are chosen by the recording's path."""
    if table is None:
        return []
    if table.suffix == ".parquet" or (table.is_dir() and any(table.rglob("*.parquet"))):
        found = _parquet_boxes(table, recording)
    else:
        read = read_annotations(table)
        annotations = read.annotations
        if read.problems:
            _note(f"of {table} {len(read.problems):,} rows are not drawn, e.g. {read.problems[0]}")
        if table.is_file() and {a.path for a in annotations} == {own_stems(table.name)[0]}:
            chosen = {a.path for a in annotations}  # names no file: it is of what is shown, whatever its name
            own = {recording.name.lower(), recording.stem.lower()}
            if own.isdisjoint(stem.lower() for stem in own_stems(table.name)):
                _note(
                    f"{table} names no recording and is not called like {recording.name}: is it of another?"
                )
        else:
            chosen = _paths_of(recording, read.annotated_paths, table)
        found = [
            FigureBox(a.begin_s, a.end_s, a.low_hz, a.high_hz, a.label, a.score)
            for a in annotations
            if a.path in chosen
        ]
    return [box for box in found if threshold is None or box.score is None or box.score >= threshold]


def _note(text: str) -> None:
    print(f"note: {shown(text)}", file=sys.stderr)


def _paths_of(recording: Path, paths: Collection[str], table: Path) -> set[str]:
    """The path of a table that means a recording: the one that has most of its folders, or its name where that is clear."""
    place = recording.resolve()
    likeness: dict[str, tuple[bool | int, ...]] = {}
    for path in paths:
        name = PurePosixPath(path).name
        if recording.stem.lower() in (name.lower(), PurePosixPath(name).stem.lower()):
            shared = num_shared_parts(path, place.as_posix())
            is_whole = shared == len(PurePosixPath(path).parts)
            is_same = name in (place.name, place.stem)  # x.flac is not x.wav, nor X.wav where both are there
            likeness[path] = (shared, is_whole, is_same)
    if not likeness:
        named = sorted(paths)
        more = f" and {len(named) - 3:,} more" if len(named) > 3 else ""
        _note(
            f"{table} has no recording called {recording.name}, so no box of it is drawn: it is of "
            f"{', '.join(named[:3]) or 'none'}{more}"
        )
    same = {path for path, alike in likeness.items() if alike == max(likeness.values())}
    if len({path.removesuffix(place.suffix) for path in same}) <= 1:
        for path in sorted(same)[:1]:
            if not likeness[path][1]:  # written on another computer, or of another site
                _note(
                    f"{table} is of {path}, which is taken for {recording} by its name: its folders are others"
                )
        return same
    raise DataError(
        f"{table} holds boxes of {len(same)} recordings called {recording.name} ({', '.join(sorted(same)[:3])}):\n"
        "show the recording where it lies, in the folder of its site"
    )


def _parquet_boxes(table: Path, recording: Path) -> list[FigureBox]:
    columns = ["path", "begin_s", "end_s", "low_hz", "high_hz", "score"]
    if table.is_dir():
        found = read_detections(str(table)).select(columns)
    else:
        one = read_parquet(*open_beside(str(table)))
        found = conform(one, DETECTIONS, ("path", "begin_s", "end_s"), str(table)).select(columns)
    rows = [row for row in found.to_pylist() if row["path"]]
    listed = recordings_beside(str(table))  # those without a detection too: another of that name is not meant
    silent = read_recordings(listed).column("path").to_pylist() if listed else []
    chosen = _paths_of(recording, {*silent, *(row["path"] for row in rows)}, table)
    return [
        FigureBox(row["begin_s"], row["end_s"], row["low_hz"], row["high_hz"], "", row["score"])
        for row in rows
        if row["path"] in chosen
    ]
