"""Log-mel speed on one CPU thread beside torchaudio's Kaldi filterbank, in the same run.

    python benchmarks/logmel.py [--minutes 5] [--rounds 7] [--audio FILE] [--out logmel.json]

Two questions: how long does one frame take (one chunk of 10.24 s, both compute its 1022 frames), and how
many chunks per second come out of a whole recording (torchaudio computes every overlapping chunk anew, we
compute every frame once and cut). Rounds alternate between the two, the first is warm-up and left out, and
the median ratio counts: both then suffer the same neighbours on a shared machine.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import soundfile
import soxr
import torch
import torchaudio.compliance.kaldi

from mast_ray.spectrogram.chunking import assemble_chunk, num_chunks_of, segments_of_blocks
from mast_ray.spectrogram.grid import CHUNK_SAMPLES, HOP_SAMPLES, SAMPLE_RATE_HZ
from mast_ray.spectrogram.logmel import LogMel, num_frames_of

BLOCK_SAMPLES = 60 * SAMPLE_RATE_HZ  # recordings are decoded a minute at a time


def torchaudio_frames(waveform: torch.Tensor) -> torch.Tensor:
    return torchaudio.compliance.kaldi.fbank(
        waveform[None],
        htk_compat=True,
        sample_frequency=SAMPLE_RATE_HZ,
        use_energy=False,
        window_type="hanning",
        num_mel_bins=128,
        dither=0.0,
        frame_shift=10,
    )


def torchaudio_chunks(recording: np.ndarray) -> int:
    """Every chunk on its own: mean-centred, zero-padded, 1022 frames and two rows of zeros."""
    count = num_chunks_of(len(recording))
    for k in range(count):
        valid = torch.from_numpy(recording[k * HOP_SAMPLES : k * HOP_SAMPLES + CHUNK_SAMPLES])
        chunk = torch.zeros(CHUNK_SAMPLES)
        chunk[: len(valid)] = valid - valid.mean()
        torch.nn.functional.pad(torchaudio_frames(chunk), (0, 0, 0, 2))
    return count


def our_chunks(recording: np.ndarray, logmel: LogMel) -> int:
    """Every frame once, chunks cut from stored segments."""
    blocks = (recording[at : at + BLOCK_SAMPLES] for at in range(0, len(recording), BLOCK_SAMPLES))
    before, count = None, 0
    for segment in segments_of_blocks(blocks, logmel=logmel):
        if before is not None:
            assemble_chunk(before, segment.logmel)
            count += 1
        before = segment.logmel
    return count


def seconds_of(work: Callable[[], object]) -> float:
    begin = time.perf_counter()
    work()
    return time.perf_counter() - begin


def alternate(
    rounds: int, ours: Callable[[], object], rival: Callable[[], object]
) -> tuple[list[float], list[float]]:
    """Seconds of `rounds` alternating runs after one warm-up."""
    times = [(seconds_of(ours), seconds_of(rival)) for _ in range(rounds + 1)][1:]
    return [mine for mine, _ in times], [other for _, other in times]


def compared(ours_s: list[float], rival_s: list[float], units: int, unit: str) -> dict[str, float]:
    return {
        f"mast_ray_{unit}_per_s": round(units / statistics.median(ours_s), 1),
        f"torchaudio_{unit}_per_s": round(units / statistics.median(rival_s), 1),
        "ratio": round(statistics.median(r / o for o, r in zip(ours_s, rival_s, strict=True)), 2),
        "ratio_of_best": round(min(rival_s) / min(ours_s), 2),
    }


def read_audio(path: str | None, minutes: float) -> np.ndarray:
    wanted = round(minutes * 60 * SAMPLE_RATE_HZ)
    if path is None:
        return (np.random.default_rng(0).standard_normal(wanted) * 0.1).astype(np.float32)
    samples, rate = soundfile.read(path, dtype="float32", always_2d=True)
    mono = soxr.resample(samples.mean(axis=1), rate, SAMPLE_RATE_HZ).astype(np.float32)
    return np.resize(mono, wanted)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--minutes", type=float, default=5.0, help="length of the recording")
    parser.add_argument("--rounds", type=int, default=7, help="timed rounds, after one of warm-up")
    parser.add_argument("--audio", help="sound file to use (repeated to the length); default: noise")
    parser.add_argument("--out", type=Path, help="write the result as JSON")
    args = parser.parse_args()
    torch.set_num_threads(1)

    recording = read_audio(args.audio, args.minutes)
    chunk = recording[:CHUNK_SAMPLES]
    logmel = LogMel()
    difference = np.abs(logmel.frames(chunk) - torchaudio_frames(torch.from_numpy(chunk)).numpy()).max()
    frames = num_frames_of(len(chunk))
    per_frame = alternate(
        args.rounds * 5, lambda: logmel.frames(chunk), lambda: torchaudio_frames(torch.from_numpy(chunk))
    )
    whole = alternate(
        args.rounds, lambda: our_chunks(recording, logmel), lambda: torchaudio_chunks(recording)
    )
    chunks = num_chunks_of(len(recording))
    result = {
        "configuration": {
            "minutes": args.minutes,
            "rounds": args.rounds,
            "audio": Path(args.audio).name if args.audio else "noise",
            "threads": torch.get_num_threads(),
            "dtype": "float32",
            "processor": platform.machine(),
            "torch": torch.__version__,
            "torchaudio": torchaudio.__version__,
        },
        "max_abs_difference": float(difference),
        "frames_of_one_chunk": compared(*per_frame, frames, "frames"),
        "chunks_of_a_recording": compared(*whole, chunks, "chunks"),
    }
    print(json.dumps(result, indent=2))
    if args.out:
        args.out.write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()
