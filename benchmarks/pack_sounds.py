"""Make a set of clips small enough to travel: the same files under the same names, each encoded again as Ogg Opus at a lower rate.

A GPU machine without a network takes what a call carries. The study of the next site needs all labels and recordists of the
clips, not their finest sound: better every clip at a lower quality than half of them.

    python benchmarks/pack_sounds.py CLIPS SCENES --out PACKED --megabytes 44     # PACKED/clips.tar, PACKED/scenes.tar
    tar xf PACKED/clips.tar -C DIR                                                # there: DIR/clips, for --clips-dir

The level of compression is the lowest whose sample fits; tables and licences go along as they are.
"""

from __future__ import annotations

import argparse
import io
import sys
import tarfile
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path

import soundfile

LEVELS = (0.8, 0.88, 0.92, 0.95, 0.98)  # of libsndfile's Opus encoder: 0 largest, 1 smallest
SAMPLE_FILES = 24
ENTRY_BYTES = 1024  # a tar's header, and half a block of padding on average
SOUNDS = {".ogg", ".wav", ".flac"}


def main() -> None:
    args = arguments()
    files = {folder: sorted(path for path in folder.rglob("*") if path.is_file()) for folder in args.folders}
    sounds = [path for paths in files.values() for path in paths if path.suffix in SOUNDS]
    others = sum(path.stat().st_size for paths in files.values() for path in paths) - sum(
        path.stat().st_size for path in sounds
    )
    room = args.megabytes * 1e6 - others - ENTRY_BYTES * sum(map(len, files.values()))
    with ProcessPoolExecutor(args.processes) as pool:
        level = chosen_level(sounds, room, pool)
        args.out.mkdir(parents=True, exist_ok=True)
        total = 0
        for folder, paths in files.items():
            target = args.out / f"{folder.name}.tar"
            with tarfile.open(target, "w") as tar:
                made = pool.map(partial(encoded, level=level), paths, chunksize=16)
                for number, (path, data) in enumerate(zip(paths, made, strict=True), 1):
                    entry = tarfile.TarInfo(f"{folder.name}/{path.relative_to(folder)}")
                    entry.size = len(data)
                    tar.addfile(entry, io.BytesIO(data))
                    if number % 500 == 0:
                        print(f"{folder.name}: {number:,} of {len(paths):,} files", flush=True)
            total += target.stat().st_size
            print(f"{target}: {len(paths):,} files, {target.stat().st_size / 1e6:.1f} MB", flush=True)
    print(f"{total / 1e6:.1f} MB in all, compression level {level}")
    if total > args.megabytes * 1e6:
        sys.exit("larger than asked for: the sample was not like the rest; ask for a little less")


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folders", type=Path, nargs="+")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--megabytes", type=float, default=44.0)
    parser.add_argument("--processes", type=int, default=2)
    return parser.parse_args()


def chosen_level(sounds: Sequence[Path], room: float, pool: ProcessPoolExecutor) -> float:
    """The lowest compression at which all sounds fit, judged by every so many-th of them."""
    sample = sounds[:: max(1, len(sounds) // SAMPLE_FILES)]
    for level in LEVELS:
        size = sum(map(len, pool.map(partial(encoded, level=level), sample, chunksize=8)))
        if size * len(sounds) / len(sample) <= 0.97 * room:  # a sample is a sample
            return level
    sys.exit(
        f"{len(sounds):,} sounds do not fit into {room / 1e6:.0f} MB even at the lowest quality: give fewer folders"
    )


def encoded(path: Path, level: float) -> bytes:
    """The bytes of a file; of a sound, encoded again at its own rate."""
    if path.suffix not in SOUNDS:
        return path.read_bytes()
    samples, rate_hz = soundfile.read(path, dtype="float32", always_2d=True)
    target = io.BytesIO()
    with soundfile.SoundFile(
        target, "w", rate_hz, samples.shape[1], format="OGG", subtype="OPUS", compression_level=level
    ) as file:
        file.write(samples)
    return target.getvalue()


if __name__ == "__main__":
    main()
