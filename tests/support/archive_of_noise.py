"""A prepared archive written directly, without audio: segments of random bytes, a few labels, all
in the train split but one recording.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from mast_ray.storage.stage_folders import SCHEMA_VERSION
from mast_ray.tables.prepared import Prepared, open_prepared
from mast_ray.tables.schemas import LABELS, RECORDINGS, SPLITS, frames_schema

SEGMENT_S = 5.12
RECORDINGS_COUNT, CHUNKS_EACH = 6, 5


def write_archive(root: Path) -> Prepared:
    """Six recordings of five chunks; recording r5 is validation; every second
    chunk of the others has a box.
    """
    rng = np.random.default_rng(0)
    names = [f"r{number}" for number in range(RECORDINGS_COUNT)]
    duration_s = (CHUNKS_EACH + 1) * SEGMENT_S
    (root / "frames").mkdir(parents=True)
    rows, index = [], []
    for number, name in enumerate(names):
        count = CHUNKS_EACH + 1
        values = rng.integers(0, 255, (count, 512, 128), np.uint8)
        tensor = pa.FixedShapeTensorArray.from_numpy_ndarray(values)
        table = pa.table(
            {
                "recording_id": [name] * count,
                "segment": pa.array(range(count), pa.int32()),
                "valid_frames": pa.array([512] * count, pa.int16()),
                "scale": pa.array([0.05] * count, pa.float32()),
                "offset": pa.array([-10.0] * count, pa.float32()),
                "logmel": tensor,
            },
            schema=frames_schema("uint8"),
        )
        file = f"frames/{name}.parquet"
        pq.write_table(table, root / file)
        index.append((name, file, 0, 0, 0, count, 0.05, -10.0))
        rows.append(
            {
                "recording_id": name, "path": f"{name}.wav", "site": f"S{number % 2}", "duration_s": duration_s,
                "sample_rate_hz": 16000, "num_channels": 1, "num_bytes": 1, "num_frames": count * 512 - 2,
                "num_chunks": CHUNKS_EACH, "is_annotated": True, "is_salvaged": False, "fingerprint": name,
                "time_source": "none", "time_flags": "",
            }
        )  # fmt: skip
    columns = ("recording_id", "file", "row_group", "row", "segment", "num_segments", "scale", "offset")
    tables = {
        "recordings": pa.Table.from_pylist(rows, schema=RECORDINGS),
        "index": pa.table({column: [entry[i] for entry in index] for i, column in enumerate(columns)}),
        "labels": pa.Table.from_pylist(
            [
                {
                    "recording_id": name,
                    "begin_s": 0.5,
                    "end_s": 1.5,
                    "low_hz": 1000.0,
                    "high_hz": 3000.0,
                    "label": "x",
                    "score": 1.0,
                    "source": "test",
                }
                for name in names
            ],
            schema=LABELS,
        ),
        "splits": pa.Table.from_pylist(
            [
                {
                    "recording_id": name,
                    "begin_s": 0.0,
                    "end_s": duration_s,
                    "split": "val" if name == "r5" else "train",
                    "in_pool": name != "r5",
                }
                for name in names
            ],
            schema=SPLITS,
        ),
    }
    for name, table in tables.items():
        pq.write_table(table, root / f"{name}.parquet")
    (root / "stats.json").write_text(json.dumps({"count": 1000, "mean": -4.0, "m2": 9000.0}))
    manifest = {
        "stage": "prepare", "schema_version": SCHEMA_VERSION, "key": "k", "inputs": {},
        "config": {"spectrogram": {"storage": "uint8"}},
    }  # fmt: skip
    (root / "manifest.json").write_text(json.dumps(manifest))
    return open_prepared(root)
