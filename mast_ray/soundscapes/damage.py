"""Damages a share of an archive's recordings in the ways SD cards, recorders and downloads do.

A damaged recording keeps its name, so that tables which mention it stay true; which
ones and how is in damaged.csv.
"""

from __future__ import annotations

import csv
import io
import os
import struct
from functools import lru_cache
from pathlib import Path

import numpy as np
import soundfile
from numpy.typing import NDArray

from mast_ray.recordings.decoding.faults import Reason

REASON_OF_KIND: dict[
    str, Reason
] = {  # what a reader is to find; the order is the order in which kinds are dealt
    "zero_length": Reason.EMPTY_FILE,
    "header_only": Reason.HEADER_ONLY,
    "truncated": Reason.TRUNCATED,
    "data_size_zero": Reason.DATA_SIZE_ZERO,
    "data_size_unknown": Reason.DATA_SIZE_UNKNOWN,
    "zero_tail": Reason.ZERO_TAIL,
    "html_body": Reason.NOT_AUDIO,
    "apple_double": Reason.APPLE_DOUBLE,
    "no_channels": Reason.NO_CHANNELS,
    "no_sample_rate": Reason.NO_SAMPLE_RATE,
    "nan_samples": Reason.NON_FINITE,
    "flac_flip": Reason.CORRUPT_STREAM,
    "bomb": Reason.DECOMPRESSION_BOMB,
    "low_rate": Reason.RATE_TOO_LOW,
    "directory": Reason.NOT_A_FILE,
}
DAMAGE_KINDS = tuple(REASON_OF_KIND)
DAMAGE_BEGUN = "damaged.csv.tmp"  # what is about to be damaged: an interrupted run leaves it, and the next renders these anew
_AUDIO_SUFFIXES = (".wav", ".flac")
_BOMB_S = 3600  # 115 MB of silence in a few kilobytes


def damage_archive(
    archive_dir: Path | str, share: float, seed: int, kinds: tuple[str, ...] = DAMAGE_KINDS
) -> list[tuple[str, str]]:
    """Damage `share` of the recordings (at least one), kinds in turn: sorted (path in the archive, kind).

    A second call on the same archive changes nothing and returns what was done before.
    """
    root = Path(archive_dir)
    record = root / "damaged.csv"
    if record.exists():
        with record.open(newline="", encoding="utf-8") as file:
            return [(row["path"], row["kind"]) for row in csv.DictReader(file)]
    paths = sorted(
        path.relative_to(root).as_posix()
        for path in root.rglob("*")
        if path.suffix.lower() in _AUDIO_SUFFIXES
    )
    rng = np.random.default_rng([seed, 21])
    count = min(max(round(share * len(paths)), 1), len(paths)) if share > 0 else 0
    chosen = sorted(paths[i] for i in rng.permutation(len(paths))[:count])
    order = rng.permutation(count)
    damaged = [(path, kinds[int(place) % len(kinds)]) for path, place in zip(chosen, order, strict=True)]
    partial = root / DAMAGE_BEGUN
    with partial.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(("path", "kind"))
        writer.writerows(damaged)
    for index, (path, kind) in enumerate(damaged):
        damage_file(root / path, kind, np.random.default_rng([seed, 22, index]))
    os.replace(partial, record)
    return damaged


def damage_file(path: Path, kind: str, rng: np.random.Generator) -> None:
    """Put a damaged version in the place of one recording."""
    if kind == "directory":
        path.unlink()
        path.mkdir()
        return
    content = damaged_bytes(path, kind, rng)
    partial = path.with_name(f".{path.name}.tmp")
    partial.write_bytes(content)
    os.replace(partial, path)


def damaged_bytes(path: Path, kind: str, rng: np.random.Generator) -> bytes:
    """What the file of a good recording would hold after one kind of damage."""
    samples, rate = soundfile.read(path, dtype="int16")
    body = samples.tobytes()
    middle = float(rng.uniform(0.4, 0.7))
    match kind:
        case "zero_length":
            return b""
        case "header_only":
            return _wav_header(rate, 1, len(body))
        case "truncated":
            return _wav_header(rate, 1, len(body)) + body[: int(len(body) * middle) // 2 * 2]
        case "data_size_zero":
            return _wav_header(rate, 1, 0) + body
        case "data_size_unknown":
            return _wav_header(rate, 1, 0xFFFFFFFF) + body
        case "zero_tail":
            kept = int(len(body) * middle) // 2 * 2
            return _wav_header(rate, 1, len(body)) + body[:kept] + bytes(len(body) - kept)
        case "html_body":
            return b"<!DOCTYPE html>\n<html><body><h1>403 Forbidden</h1></body></html>\n" * 20
        case "apple_double":
            return struct.pack(">II16sH", 0x00051607, 0x00020000, b"Mac OS X        ", 2) + bytes(4070)
        case "no_channels":
            return _wav_header(rate, 0, len(body)) + body
        case "no_sample_rate":
            return _wav_header(0, 1, len(body)) + body
        case "nan_samples":
            floats = (samples / np.float32(32768)).astype(np.float32)
            floats[int(len(floats) * middle) :: 7] = np.nan
            # not by libsndfile, which writes the time of day beside floats: the same seed gives the same bytes
            return _wav_header(rate, 1, floats.nbytes, format_tag=3, sample_bytes=4) + floats.tobytes()
        case "flac_flip":
            flac = bytearray(_encoded(samples, rate, "FLAC", "PCM_16"))
            at = int(len(flac) * middle)
            flac[at : at + 64] = bytes(byte ^ 0xFF for byte in flac[at : at + 64])
            return bytes(flac)
        case "bomb":
            return _bomb()
        case "low_rate":
            return _encoded(samples[:: max(rate // 4000, 1)], 4000, "WAV", "PCM_16")
        case _:
            raise ValueError(f"no kind of damage is called {kind}: take one of {', '.join(DAMAGE_KINDS)}")


@lru_cache(maxsize=1)
def _bomb() -> bytes:
    return _encoded(np.zeros(_BOMB_S * 16_000, np.int16), 16_000, "FLAC", "PCM_16")


def _wav_header(
    sample_rate_hz: int, num_channels: int, data_size: int, format_tag: int = 1, sample_bytes: int = 2
) -> bytes:
    """44 bytes before samples (16-bit unless told), as a recorder would write them."""
    riff_size = min(36 + data_size, 0xFFFFFFFF)
    block = sample_bytes * num_channels
    return struct.pack(
        "<4sI4s4sIHHIIHH4sI", b"RIFF", riff_size, b"WAVE", b"fmt ", 16, format_tag, num_channels, sample_rate_hz,
        sample_rate_hz * block, block, 8 * sample_bytes, b"data", data_size,
    )  # fmt: skip


def _encoded(samples: NDArray[np.generic], sample_rate_hz: int, container: str, codec: str) -> bytes:
    buffer = io.BytesIO()
    soundfile.write(buffer, samples, sample_rate_hz, codec, format=container)
    return buffer.getvalue()
