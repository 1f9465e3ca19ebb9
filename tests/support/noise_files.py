"""Recordings of white noise for tests."""

from pathlib import Path

import numpy as np
import soundfile

RATE_HZ = 16_000


def write_noise(path: Path, seconds: float, seed: int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    samples = np.random.default_rng(seed).normal(0, 0.1, int(seconds * RATE_HZ)).astype(np.float32)
    soundfile.write(path, samples, RATE_HZ, "PCM_16")
