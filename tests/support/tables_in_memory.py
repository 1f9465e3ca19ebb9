"""A prepared archive that is tables only: recordings, labels and splits as rows, no audio and no frames."""

import pyarrow as pa

from mast_ray.spectrogram.normalisation import Moments
from mast_ray.storage.stage_folders import Manifest
from mast_ray.storage.storage import open_storage
from mast_ray.tables.prepared import Prepared
from mast_ray.tables.schemas import INDEX, LABELS, RECORDINGS, SPLITS

CHUNKS_OF_A_MINUTE = 11  # chunks of 10.24 s every 5.12 s


def prepared_in_memory(splits, labels, folder="/nowhere", unit="recording") -> Prepared:
    """`splits` names the split of each recording id; `labels` are (id, begin_s, end_s, low_hz, high_hz).

    Recordings last 60 s, at site A and B in turn, one begins every hour from midnight UTC on.
    """
    recordings = [
        {
            "recording_id": name, "path": f"{name}.wav", "site": "AB"[number % 2], "duration_s": 60.0,
            "num_chunks": CHUNKS_OF_A_MINUTE, "num_frames": 5998, "is_annotated": bool(split),
            "start_utc": number * 3_600_000_000, "utc_offset_s": 0,
        }
        for number, (name, split) in enumerate(splits.items())
    ]  # fmt: skip
    blocks = [
        {
            "recording_id": name,
            "begin_s": 0.0,
            "end_s": 60.0,
            "split": split,
            "in_pool": split in ("", "train"),
        }
        for name, split in splits.items()
    ]
    names = ("recording_id", "begin_s", "end_s", "low_hz", "high_hz")
    boxes = [dict(zip(names, row, strict=True)) | {"label": "call", "score": 1.0} for row in labels]
    manifest = Manifest("prepare", "k", {}, {}, {"split": {"unit": unit}})
    return Prepared(
        open_storage(folder),
        manifest,
        pa.Table.from_pylist(recordings, schema=RECORDINGS),
        pa.Table.from_pylist([], schema=INDEX),
        pa.Table.from_pylist(boxes, schema=LABELS),
        pa.Table.from_pylist(blocks, schema=SPLITS),
        Moments(),
    )
