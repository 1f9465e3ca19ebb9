"""A small field season that tests can look at: two sites, chirps in noise, detections that
miss and err, all in memory or tmp.
"""

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
import soundfile

from mast_ray.tables.schemas import DETECTIONS, LABELS, RECORDINGS, REJECTS

RATE_HZ = 24_000
DURATION_S = 20.0
OFFSET_S = 7 * 3600


@dataclass(frozen=True)
class Season:
    audio: Path
    recordings: pa.Table
    labels: pa.Table
    detections: pa.Table
    rejects: pa.Table


def chirp(samples: np.ndarray, begin_s: float, end_s: float, low_hz: float, high_hz: float) -> None:
    """Add a rising sweep in place."""
    first, last = int(begin_s * RATE_HZ), int(end_s * RATE_HZ)
    t = np.arange(last - first) / RATE_HZ
    length = end_s - begin_s
    phase = 2 * np.pi * (low_hz * t + (high_hz - low_hz) * t**2 / (2 * length))
    samples[first:last] += 0.25 * np.sin(phase) * np.hanning(last - first)


def make_season(folder: Path, num_recordings: int = 24, seed: int = 0) -> Season:
    rng = np.random.default_rng(seed)
    audio = folder / "audio"
    recordings, labels, detections = [], [], []
    first = datetime(2024, 5, 5, 17, 0, tzinfo=UTC)  # midnight of 6 May in the recorders' zone
    for number in range(num_recordings):
        site = ("Danum", "Sepilok")[number % 2]
        hour = [0, 2, 5, 5, 6, 6, 7, 9, 12, 15, 18, 19][(number // 2) % 12] + 0.25 * (number % 4)
        day = number % 5 + (1 if number % 5 > 2 else 0)  # the fourth day was not recorded
        start = first + timedelta(days=day, hours=hour)
        path = f"{site}/{site}_{start + timedelta(seconds=OFFSET_S):%Y%m%d_%H%M%S}_{number:03d}.wav"
        name = f"rec{number:05d}"
        samples = rng.normal(0, 0.01, int(DURATION_S * RATE_HZ))
        for _ in range(int(rng.integers(2, 6))):
            begin = float(rng.uniform(0.5, DURATION_S - 2.5))
            end = begin + float(rng.uniform(0.3, 1.5))
            low = float(rng.uniform(600, 4000))
            high = low * float(rng.uniform(1.3, 1.8))
            chirp(samples, begin, end, low, high)
            labels.append((name, begin, end, low, high, f"sonotype {number % 3}", 1.0, "labels.txt"))
            if rng.random() < 0.8:
                jitter = rng.normal(0, 0.05, 2)
                score = float(np.clip(rng.beta(6, 2), 0, 1))
                detections.append(
                    (
                        name,
                        path,
                        site,
                        begin + jitter[0],
                        end + jitter[1],
                        low * 0.97,
                        high * 1.03,
                        score,
                        start,
                    )
                )
        for _ in range(int(rng.integers(0, 3))):
            begin = float(rng.uniform(0, DURATION_S - 2))
            low = float(rng.uniform(500, 6000))
            score = float(rng.beta(2, 4))
            detections.append((name, path, site, begin, begin + 0.6, low, low * 1.2, score, start))
        target = audio / path
        target.parent.mkdir(parents=True, exist_ok=True)
        soundfile.write(target, samples.astype(np.float32), RATE_HZ, subtype="PCM_16")
        recordings.append(
            {
                "recording_id": name, "path": path, "site": site, "start_utc": start, "utc_offset_s": OFFSET_S,
                "time_source": "filename", "time_flags": "", "latitude": 4.96, "longitude": 117.8, "duration_s": DURATION_S,
                "sample_rate_hz": RATE_HZ, "num_channels": 1, "num_bytes": target.stat().st_size, "num_frames": 1998,
                "num_chunks": 4, "is_annotated": True, "is_salvaged": False, "fingerprint": name,
            }
        )  # fmt: skip
    rows = [
        {
            "recording_id": r, "path": p, "site": s, "chunk": None, "begin_s": b, "end_s": e, "low_hz": lo, "high_hz": hi,
            "score": sc, "probability": sc, "start_utc": st + timedelta(seconds=b), "utc_offset_s": OFFSET_S, "model_sha": "f" * 8,
        }
        for r, p, s, b, e, lo, hi, sc, st in detections
    ]  # fmt: skip
    rejects = [("Danum/broken.wav", "", "rejected", "TRUNCATED", "the file ends in its header", 44, 0.0)]
    return Season(
        audio,
        pa.Table.from_pylist(recordings, schema=RECORDINGS),
        pa.Table.from_pylist([dict(zip(LABELS.names, row, strict=True)) for row in labels], schema=LABELS),
        pa.Table.from_pylist(rows, schema=DETECTIONS),
        pa.Table.from_pylist([dict(zip(REJECTS.names, row, strict=True)) for row in rejects], schema=REJECTS),
    )


@pytest.fixture(scope="session")
def season(tmp_path_factory) -> Season:
    return make_season(tmp_path_factory.mktemp("season"))
