"""A small run to review: three recordings with sweeps in noise, and detections that are right, doubtful or wrong.

Names of sites, files and labels are as hostile as a disk allows.
"""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import soundfile

from mast_ray.tables.schemas import DETECTIONS, RECORDINGS

RATE_HZ = 16_000
DURATION_S = 30.0
HOSTILE = "<img src=x onerror=alert(1)>"
SITES = ("<b>bold<", "..", "Danum")
PATHS = (f"A/{HOSTILE}.wav", "B/';alert(1);'.wav", "C/%2e%2e%2f..%2fetc.wav")
LABELS = (HOSTILE, '"><script>alert(2)</script>', "Rana")


def write_run(folder: Path, embedded: bool = False) -> tuple[Path, Path]:
    """(run, audio): 8 detections in each of 3 recordings with scores 0.30, 0.38, ... 0.86."""
    rng = np.random.default_rng(0)
    audio, tables = folder / "audio", folder / "run" / "detections"
    tables.mkdir(parents=True)
    (folder / "run" / "steps.json").write_text("{}")
    recordings, detections = [], []
    for number, (path, site) in enumerate(zip(PATHS, SITES)):
        samples = rng.normal(0, 0.01, int(DURATION_S * RATE_HZ))
        for call in range(8):
            begin_s, low_hz = 1.0 + 3.5 * call, 1000.0 + 300.0 * call
            time_s = np.arange(int(0.8 * RATE_HZ)) / RATE_HZ
            first = int(begin_s * RATE_HZ)
            sweep = np.sin(2 * np.pi * (low_hz * time_s + 250 * time_s**2)) * np.hanning(len(time_s))
            samples[first : first + len(time_s)] += 0.2 * sweep
            row = {
                "recording_id": f"rec{number}", "path": path, "site": site, "begin_s": begin_s, "end_s": begin_s + 0.8,
                "low_hz": low_hz, "high_hz": low_hz + 500, "score": 0.3 + 0.08 * call, "label": LABELS[number],
            }  # fmt: skip
            if embedded:
                row["embedding"] = list(np.eye(4)[call % 2] + rng.normal(0, 0.01, 4))
            detections.append(row)
        (audio / path).parent.mkdir(parents=True)
        soundfile.write(audio / path, samples, RATE_HZ)
        recordings.append({"recording_id": f"rec{number}", "path": path, "site": site, "duration_s": DURATION_S,
                           "sample_rate_hz": RATE_HZ, "num_channels": 1})  # fmt: skip
    schema = DETECTIONS
    if embedded:
        schema = schema.append(pa.field("embedding", pa.list_(pa.float32(), 4)))
    pq.write_table(pa.Table.from_pylist(detections, schema=schema), tables / "boxes.parquet")
    pq.write_table(pa.Table.from_pylist(recordings, schema=RECORDINGS), tables / "recordings.parquet")
    return folder / "run", audio
